"""What `make install` and the other targets do to make .venv, step by step, each of which shows that it goes on (`heartbeat`).

    python -m tools.install venv FOLDER             make the virtual environment
    python -m tools.install all --torch VERSION     what running needs: torch (`torch_choice`), packages, kernels, a model
                       [--index URL] [--backend cpu|cuda]
    python -m tools.install dev                     what tests and checks need on top
    python -m tools.install requirements [--dev]    what pip is to install; torch is not among it
    python -m tools.install slim                    delete torch's own test programs from this environment

The first runs before there is an environment: standard library only. torch comes before anything that could pull in another build
of it. The CPU kernels are compiled beside the downloads, which leave a core free.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import re
import signal
import subprocess
import sys
import sysconfig
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path

from tools import heartbeat, torch_choice

ROOT = Path(__file__).resolve().parents[1]
_NEEDED_PROGRAMS = ("torch_shm_manager",)
"""Of torch/bin: torch does not import without them."""
_RUN_TIME = (
    "run-time packages, torch among them, and a small model: 0.35 GB to download and 0.93 GB on disk with a CPU-only torch, "
    "one to two minutes"
)
_WORKSHOP = "packages for tests, checks and benchmarks: 0.1 GB to download and 0.4 GB on disk, a minute"
_KERNELS = "the CPU kernels for this machine, 20 to 90 seconds, once"
_PERCENT_SINCE = (24, 1)
"""The version of pip from which on it says how far a download is to a reader that is no terminal."""


class InstallFailed(Exception):
    """A step failed; what is left of its output, and which it was."""


def requirements(pyproject: str, dev: bool) -> list[str]:
    """What the project requires to run, or what its `dev` extra adds, without torch."""
    project = tomllib.loads(pyproject)["project"]
    wanted: list[str] = project["optional-dependencies"]["dev"] if dev else project["dependencies"]
    return [line for line in wanted if not re.match(r"torch\b", line)]


def has_nvidia_device(dev: Path = Path("/dev")) -> bool:
    """Whether the driver of an NVIDIA GPU shows a device; `dxg` is what it is called inside Windows."""
    return any(dev.glob("nvidia[0-9]*")) or (dev / "dxg").exists()


def slim(torch: Path) -> int:
    """Delete the compiled test programs that torch's wheels carry. Returns the number of bytes they had."""
    freed = 0
    for path in [*(torch / "test").glob("*"), *(torch / "bin").glob("*")]:
        found = path.stat()
        if path.is_file() and found.st_mode & 0o111 and path.name not in _NEEDED_PROGRAMS:
            freed += found.st_size
            path.unlink()
    return freed


def install_all(wish: torch_choice.Wish) -> None:
    """Everything that running the server needs. Raises InstallFailed and torch_choice.TorchRefused."""
    torch_choice.check(wish)
    began = time.monotonic()
    print(f"Installing {_RUN_TIME}.", f"Compiling {_KERNELS}, meanwhile.", sep="\n", flush=True)
    log = Path(sys.prefix) / "kernels.log"
    kernels = heartbeat.spawn([sys.executable, "-m", "executors.kernels.compiler"], log)
    try:
        torch_choice.install(wish, has_nvidia_device(), _pip(), Path(sys.prefix) / "uv")
        print(
            f"Deleted torch's test programs: {slim(Path(sysconfig.get_path('platlib'), 'torch')) / 1e6:.0f} MB",
            flush=True,
        )
        _install_packages(dev=False)
        _step("installing Cohort itself", [*_pip(), "install", "--no-deps", "-e", "."])
        _finish_kernels(kernels, began, log)
    finally:
        heartbeat.end(kernels)
        log.unlink(missing_ok=True)
    cohort = str(Path(sys.executable).with_name("cohort"))
    # Neither a missing compiler nor a missing model keeps the server from starting.
    model = heartbeat.run("fetching the default model, 98 MB", [cohort, "fetch-default"], relays=False)
    print(*model.lines[-1:], sep="\n", flush=True)
    # Imports what a start imports, which writes its bytecode, and reads the default model's tokenizer.
    _step("importing once what a start imports", [cohort, "info"], relays=False)
    print(f"Installed in {time.monotonic() - began:.0f} s. Next: make serve", flush=True)


def install_dev() -> None:
    """What tests and checks need on top. Raises InstallFailed."""
    print(f"Installing {_WORKSHOP}.", flush=True)
    _install_packages(dev=True)


def make_environment(folder: Path) -> None:
    """Make a virtual environment with this Python. Raises InstallFailed."""
    _step(f"making the virtual environment {folder}", [sys.executable, "-m", "venv", str(folder)])


def _install_packages(dev: bool) -> None:
    listing = Path(sys.prefix) / ("requirements-dev.txt" if dev else "requirements.txt")
    listing.write_text("\n".join(requirements((ROOT / "pyproject.toml").read_text("utf-8"), dev)) + "\n")
    # Bytecode is left to the first import: written for everything it takes as much space as all packages but torch.
    plainly = [] if dev else ["--no-compile"]
    _step("installing packages", [*_pip(), "install", *plainly, "-c", "constraints.txt", "-r", str(listing)])


def _finish_kernels(process: subprocess.Popen[bytes], began: float, log: Path) -> None:
    """Wait for the compiler and say how it ended."""
    if heartbeat.wait(f"compiling {_KERNELS}", process, began):
        reason = "".join(log.read_text("utf-8", "replace").strip().splitlines()[-1:])
        print(
            f"The CPU kernels could not be compiled, so torch computes instead, slower: {reason}", flush=True
        )
    else:
        print(f"The CPU kernels are here: {log.read_text('utf-8', 'replace').strip()}", flush=True)


def _step(what: str, command: Sequence[str], relays: bool = True) -> None:
    done = heartbeat.run(what, command, relays=relays)
    if done.code:
        raise InstallFailed("\n".join([*done.lines[-30:], f"{what[0].upper()}{what[1:]} failed."]))


def _pip() -> list[str]:
    """The words of pip's command in this environment. It asks for no password: the question would not be seen."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]
    version = tuple(map(int, re.findall(r"\d+", importlib.metadata.version("pip"))[:2]))
    os.environ["PIP_PROGRESS_BAR"] = "raw" if version >= _PERCENT_SINCE else "off"
    return command


def main(argv: Sequence[str]) -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="what", required=True)
    commands.add_parser("venv").add_argument("folder", type=Path)
    everything = commands.add_parser("all")
    everything.add_argument("--torch", required=True)
    everything.add_argument("--index", default="")
    everything.add_argument("--backend", default="")
    commands.add_parser("dev")
    commands.add_parser("requirements").add_argument("--dev", action="store_true")
    commands.add_parser("slim")
    options = parser.parse_args(argv)
    try:
        if options.what == "venv":
            make_environment(options.folder)
        elif options.what == "all":
            install_all(torch_choice.Wish(options.torch, options.index, options.backend))
        elif options.what == "dev":
            install_dev()
        elif options.what == "requirements":
            print(*requirements((ROOT / "pyproject.toml").read_text("utf-8"), options.dev), sep="\n")
        else:
            freed = slim(Path(sysconfig.get_path("platlib"), "torch"))
            print(f"Deleted torch's test programs: {freed / 1e6:.0f} MB")
    except (InstallFailed, torch_choice.TorchRefused) as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit("Interrupted: the same command goes on from here.")


if __name__ == "__main__":
    # What it started ends with it, however it is ended.
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, signal.default_int_handler)
    main(sys.argv[1:])
