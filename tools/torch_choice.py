"""Chooses the build of torch that `make install` takes, and installs it.

    TORCH_INDEX_URL is given      from that index, as it is
    TORCH_BACKEND=cuda            what pip brings, whatever its size
    an NVIDIA device is seen      the same
    otherwise, or with            a CPU build: pip's own torch where that is one, as it is for some architectures and where pip's
    TORCH_BACKEND=cpu             configuration names such an index; else by uv's `--torch-backend=cpu`, which knows PyTorch's
                                  index of CPU builds. Where that cannot be reached, CUDA's gigabytes come only after a yes on
                                  the terminal.

What pip would bring is read from the lines of `pip install --dry-run`, which is ended at the first one that shows CUDA: a pip
older than 23.3 downloads whole wheels in a dry run.
"""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tools import heartbeat

BACKENDS = ("", "cpu", "cuda")
_UV = "uv==0.13.9"
_PROBE_S = 20.0
"""Seconds within which PyTorch's index has to answer."""
_IMPATIENT = {"UV_HTTP_RETRIES": "0", "UV_HTTP_TIMEOUT": "10"}
_CPU_MB = 300.0
"""Megabytes. A CPU build for x86-64 has 190, one with CUDA 500 and more, beside its libraries."""
_BRINGS = r"\b(?:Collecting|Obtaining|Downloading|Using cached|Processing|Would install)\b.*?[\s/]"
_ACCELERATOR = re.compile(
    _BRINGS + r"(?:nvidia|cuda|pytorch[-_]triton)[-_]|\btorch-[\d.]+(?:\+|%2B)(?:cu\d|rocm|xpu)"
)
_DOWNLOAD = re.compile(r"Downloading \S*?torch-\d\S*\.whl \(([\d.]+) (kB|MB|GB)\)")
_MB = {"kB": 1e-3, "MB": 1.0, "GB": 1e3}


class TorchRefused(Exception):
    """torch is not installed. One line that says why and how to go on."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What the user asks for: a version, an index or "", one of `BACKENDS`."""

    version: str
    index: str = ""
    backend: str = ""


def is_accelerated(line: str) -> bool:
    """Whether a line of `pip install torch` shows a build for GPUs: by the packages that come along, its name or its size."""
    size = _DOWNLOAD.search(line)
    return bool(_ACCELERATOR.search(line)) or (size is not None and float(size[1]) * _MB[size[2]] > _CPU_MB)


def check(wish: Wish) -> None:
    """Raise TorchRefused for a backend of another name."""
    if wish.backend not in BACKENDS:
        raise TorchRefused(f"TORCH_BACKEND={wish.backend}: it should be cpu, cuda or empty")


def install(wish: Wish, has_gpu: bool, pip: Sequence[str], folder: Path) -> None:
    """Install torch into the environment of `pip` (the words of its command), saying what is taken and why.

    `folder`: where uv lies while it is needed. Raises TorchRefused."""
    check(wish)
    index, name = [], f"torch {wish.version}"
    if installed := _installed(wish.version):
        _say(f"torch {installed} is here.")
    elif wish.index:
        index = ["--index-url", wish.index]
        _say(f"{name}, from the index that TORCH_INDEX_URL names.")
    elif wish.backend == "cuda" or (has_gpu and not wish.backend):
        reason = "TORCH_BACKEND=cuda" if wish.backend else "an NVIDIA device is seen"
        _say(f"{name} as pip brings it, which for x86-64 includes several GB of CUDA's libraries: {reason}.")
    else:
        _say(_cpu_build(wish, pip, folder))
    # What torch needs, where uv brought torch alone; otherwise torch with it.
    done = heartbeat.run(
        f"installing {name}", [*pip, "install", "--no-compile", *index, f"torch=={wish.version}"]
    )
    if done.code:
        raise TorchRefused("\n".join([*done.lines[-10:], f"{name} is not installed: pip failed"]))


def _cpu_build(wish: Wish, pip: Sequence[str], folder: Path) -> str:
    """Find a CPU build, which is installed on return or is what pip brings. Returns what it is and why, for the user."""
    name = f"torch {wish.version}"
    reason = "TORCH_BACKEND=cpu" if wish.backend else "no NVIDIA device is seen"
    look = heartbeat.run(
        "looking at what pip would bring", [*pip, "install", "--dry-run", f"torch=={wish.version}"],
        watch=is_accelerated, relays=False,
    )  # fmt: skip
    if not look.code and not look.stopped:
        return f"{name}, a CPU build: {reason}, and what pip brings here is one."
    complaint = _by_uv(wish.version, pip, folder)
    if not complaint:
        return f"{name}, a CPU build from PyTorch's index, which uv knows: {reason}."
    if not look.stopped:
        raise TorchRefused(f"{name} is not installed: pip: {_reason(look.lines)}; {complaint}")
    _ask(f"{reason}, pip's {name} brings several GB with CUDA's libraries, and {complaint}")
    return f"{name} as pip brings it, CUDA's libraries included: you agreed."


def _by_uv(version: str, pip: Sequence[str], folder: Path) -> str:
    """Let uv install torch, and nothing else, from PyTorch's index of CPU builds. Returns why it did not, or ""."""
    shutil.rmtree(folder, ignore_errors=True)
    try:
        fetched = heartbeat.run(
            "fetching uv, which knows PyTorch's index of CPU builds (18 MB)",
            [*pip, "install", "--no-deps", "--target", str(folder), _UV],
        )
        if fetched.code:
            return f"uv could not be fetched: {_reason(fetched.lines)}"
        uv = [str(folder / "bin/uv"), "pip", "install", "--no-deps", "--torch-backend=cpu"]
        uv += ["--python", sys.executable]
        cache = {"UV_CACHE_DIR": str(folder / "cache")}
        probe = heartbeat.run(
            "asking PyTorch's index of CPU builds", [*uv, "--dry-run", f"torch=={version}"],
            env=cache | _IMPATIENT, limit_s=_PROBE_S, relays=False,
        )  # fmt: skip
        if probe.code:
            return "PyTorch's index of CPU builds cannot be reached"
        done = heartbeat.run(
            f"downloading and unpacking torch {version} (0.2 GB)", [*uv, f"torch=={version}"], env=cache
        )
        return f"uv failed: {_reason(done.lines)}" if done.code else ""
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _ask(why: str) -> None:
    """Return after a yes on the terminal. Raises TorchRefused."""
    how = "name an index of CPU builds (make install TORCH_INDEX_URL=...), or take all of it (make install TORCH_BACKEND=cuda)"
    if sys.stdin.isatty() and sys.stdout.isatty():
        print(f"{why[0].upper()}{why[1:]}.")
        try:
            agreed = input("Download all of it? [y/N] ").strip().lower() in ("y", "yes")
        except EOFError:
            agreed = False
        if agreed:
            return
        raise TorchRefused(f"torch is not installed: {how}")
    raise TorchRefused(f"torch is not installed: {why}: {how}")


def _say(line: str) -> None:
    print(line, flush=True)


def _reason(lines: Sequence[str]) -> str:
    """The line that says why a command failed: pip's or uv's first error, else the last line."""
    errors = [line for line in lines if re.match(r"\s*error:", line, re.IGNORECASE)]
    return [*errors, *lines[-1:], "no message"][0].strip()


def _installed(version: str) -> str:
    """The version of torch in this environment, with its local part, if it is `version`; else ""."""
    try:
        found = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return ""
    return found if found.partition("+")[0] == version.partition("+")[0] else ""
