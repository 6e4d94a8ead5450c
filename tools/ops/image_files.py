"""What an image of the Dockerfile may and may not contain: its files, and what it says of itself."""

from __future__ import annotations

import os
import re
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from tools.ops.image import ImageConfig

_COMPILER = re.compile(
    r"(?:.*-)?(?:cc|gcc|g\+\+|c\+\+|cpp|clang(?:\+\+)?|as|ld(?:\.(?:bfd|gold|lld))?|lld|nvcc|ptxas|rustc)(?:-[\d.]+)?|cc1|cc1plus"
)
_LEFT_OVER = (
    "root/.cache", "root/.config", "var/cache/apt/archives/*.deb", "var/lib/apt/lists/*_*", "wheels", "src",
    "opt/build", "tmp/*", "var/tmp/*", "etc/apt/auth.conf.d/*", "root/.netrc", "root/.ssh", "root/.docker",
)  # fmt: skip
"""Caches, what only building needs, and where passwords are kept."""
_MAKES_SECRET = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY", re.I)
_SHORTEST_SECRET = 8
OWN = "opt/cohort"


def files_of(root: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Every file and folder below `root`, without what is mounted there."""
    device = root.stat().st_dev
    for folder, folders, names in os.walk(root):
        here = Path(folder)
        folders[:] = [name for name in folders if (here / name).lstat().st_dev == device]
        for name in (*folders, *names):
            path = here / name
            yield path.relative_to(root), path.lstat()


def size_of(root: Path) -> int:
    """Bytes of all files; one with several names counts once."""
    known: dict[int, int] = {
        status.st_ino: status.st_size for _, status in files_of(root) if stat.S_ISREG(status.st_mode)
    }
    return sum(known.values())


def compilers(root: Path) -> list[str]:
    """Programs that compile or link."""
    return [
        str(path)
        for path, status in files_of(root)
        if _COMPILER.fullmatch(path.name) and (stat.S_ISLNK(status.st_mode) or _is_program(status))
    ]


def left_over(root: Path) -> list[str]:
    """What a step should have removed, or should not have brought."""
    return [str(path.relative_to(root)) for pattern in _LEFT_OVER for path in root.glob(pattern)]


def writable(root: Path, uid: int) -> list[str]:
    """What the image's user could change, beside its home and the folders for temporary files."""
    allowed = ("var/lib/cohort", "tmp", "var/tmp", "run/lock", "dev/", "proc", "sys")
    return [
        str(path)
        for path, status in files_of(root)
        if not str(path).startswith(allowed)
        and not stat.S_ISLNK(status.st_mode)
        and (status.st_uid == uid or status.st_mode & stat.S_IWOTH)
    ]


def secrets(root: Path, config: ImageConfig, canary: str) -> list[str]:
    """Where a secret of this machine stands: by the place, never the secret itself. `canary` stands for what apt's and pip's
    configuration held during the build."""
    words = {canary: "the build's configuration"}
    for name, value in os.environ.items():
        if _MAKES_SECRET.search(name) and len(value) >= _SHORTEST_SECRET:
            words[value] = name
        password = urlsplit(value).password if "://" in value and "@" in value else None
        if password:
            words[password] = f"the password in {name}"
    places = [f"{name} in the image's record" for word, name in words.items() if word in config.record]
    command = [
        "grep",
        "--recursive",
        "--files-with-matches",
        "--fixed-strings",
        "--devices=skip",
        "-f",
        "-",
        str(root),
    ]
    found = subprocess.run(command, input="\n".join(words), capture_output=True, text=True)
    return places + [str(Path(line).relative_to(root)) for line in found.stdout.splitlines()]


def _is_program(status: os.stat_result) -> bool:
    return stat.S_ISREG(status.st_mode) and bool(status.st_mode & 0o111)
