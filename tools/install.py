"""What `make install` does around pip.

    python tools/install.py notice [--dev] [--index URL]    what comes, how much and how long, before anything is downloaded
    python tools/install.py requirements [--dev]            what pip is to install; torch is not among it
    python tools/install.py slim                            delete torch's own test programs from this environment

Torch comes from an index of the user's choice, in a version of the user's choice, and before anything that could pull in
another build of it: the Makefile names it. Standard library only; the first form runs before there is an environment.
"""

from __future__ import annotations

import argparse
import platform
import re
import sys
import sysconfig
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_NEEDED_PROGRAMS = ("torch_shm_manager",)
"""Of torch/bin: torch does not import without them."""
_RUN_TIME = (
    "run-time packages, torch among them, and a small model: 0.35 GB to download and 0.95 GB on disk with a CPU-only torch, "
    "two minutes"
)
_WORKSHOP = "packages for tests, checks and benchmarks: 0.1 GB to download and 0.4 GB on disk, a minute"


def requirements(pyproject: str, dev: bool) -> list[str]:
    """What the project requires to run, or what its `dev` extra adds, without torch."""
    project = tomllib.loads(pyproject)["project"]
    wanted: list[str] = project["optional-dependencies"]["dev"] if dev else project["dependencies"]
    return [line for line in wanted if not re.match(r"torch\b", line)]


def notice(dev: bool, index: str, has_gpu: bool, machine: str) -> list[str]:
    """Lines about an installation that is about to begin."""
    if dev:
        return [f"Installing {_WORKSHOP}."]
    lines = [f"Installing {_RUN_TIME}."]
    if not index and not has_gpu and machine == "x86_64":
        lines += [
            "There is no NVIDIA device here, and pip's own torch for x86-64 brings CUDA's libraries: several gigabytes more.",
            "To leave them out, stop now and run: make install TORCH_INDEX_URL=<index of CPU-only builds>",
            'PyTorch\'s page "Get Started" shows that index: choose Linux, Pip and "CPU".',
        ]
    return lines


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


def main(argv: Sequence[str]) -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("notice", "requirements", "slim"))
    parser.add_argument("--dev", action="store_true")
    parser.add_argument("--index", default="")
    options = parser.parse_args(argv)
    if options.what == "notice":
        print(
            *notice(options.dev, options.index, has_nvidia_device(), platform.machine()), sep="\n", flush=True
        )
    elif options.what == "requirements":
        print(*requirements((ROOT / "pyproject.toml").read_text("utf-8"), options.dev), sep="\n")
    else:
        freed = slim(Path(sysconfig.get_path("platlib"), "torch"))
        print(f"Deleted torch's test programs: {freed / 1e6:.0f} MB")


if __name__ == "__main__":
    main(sys.argv[1:])
