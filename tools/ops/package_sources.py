"""Where this machine gets its packages from, for the steps of an image's build.

A machine behind a mirror or a proxy cannot build the image with the base image's own sources. Its configuration of apt and pip
is mounted over the image's during RUN, so that no layer, variable or line of the history keeps it:

    /etc/apt/sources.list.d, apt.conf.d, auth.conf.d   what apt reads here, where the machine runs the image's Debian release
    /etc/pip.conf                                      what `pip config list` says here
    a folder that pip's configuration names            at its own path, read-only

Proxies in the environment are handed on by buildah itself.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_APT = Path("/etc/apt")
CLEAN = 'APT::Keep-Downloaded-Packages "false";\n'
"""Configuration of apt that Debian's own images come with: a package that is installed is not kept."""
_KEYRINGS = (Path("/usr/share/keyrings"), _APT / "keyrings", _APT / "trusted.gpg.d")
_CERTIFICATES = "/run/build-certificates.crt"
_FOLDERS = frozenset({"index-url", "extra-index-url", "find-links"})
"""pip's options whose values may name folders."""
_PLAIN = frozenset(
    {"trusted-host", "retries", "timeout", "default-timeout", "no-index", "pre", "prefer-binary"}
)
"""pip's options that mean the same in a container. Others name paths of this machine or concern its own environment."""


@dataclass(slots=True)
class PackageSources:
    """`volumes`: paths of this machine by where a step sees them. `sources`, `options`: files of apt's for making the base
    image, none where the machine runs another release than the image's."""

    volumes: dict[str, Path]
    sources: list[Path] = field(default_factory=list)
    options: Path | None = None


def read(release: str, folder: Path, canary: str) -> PackageSources:
    """The sources for an image of Debian `release`; files made for it go into `folder`. `canary`: a word that the files hold as
    they might hold a password."""
    folder.mkdir(parents=True)
    sources = PackageSources(_pip(folder, canary))
    if platform.freedesktop_os_release().get("VERSION_CODENAME") == release:
        _apt(folder, canary, sources)
    return sources


def _apt(folder: Path, canary: str, sources: PackageSources) -> None:
    lists, options = folder / "sources.list.d", folder / "apt.conf.d"
    for made in (lists, options):
        made.mkdir()
    found = [_APT / "sources.list", *sorted((_APT / "sources.list.d").glob("*"))]
    for path in found:
        if path.suffix in (".list", ".sources") and path.is_file() and path.stat().st_size:
            sources.sources.append(Path(shutil.copy(path, lists / path.name)))
    if not sources.sources:
        return
    # Acquire: mirrors, proxies, time-outs. Hooks of this machine's packages have no place in the image.
    dump = subprocess.run(
        ["apt-config", "dump", "Acquire"], capture_output=True, text=True, check=True
    ).stdout
    sources.options = options / "90machine"
    sources.options.write_text(f"// {canary}\n{dump}")
    (options / "docker-clean").write_text(CLEAN)
    nothing = folder / "sources.list"
    nothing.touch()
    sources.volumes |= {f"{_APT}/sources.list": nothing, f"{_APT}/sources.list.d": lists}
    sources.volumes[f"{_APT}/apt.conf.d"] = options
    held = [*_KEYRINGS, _APT / "auth.conf.d"]
    sources.volumes |= {str(path): path for path in held if path.is_dir() and any(path.iterdir())}


def _pip(folder: Path, canary: str) -> dict[str, Path]:
    """Volumes with a pip.conf of its own and what it names."""
    volumes: dict[str, Path] = {}
    lines = ["[global]", f"# {canary}"]
    for name, value in pip_options().items():
        if name in _FOLDERS:
            volumes |= {str(path): path for path in _folders(name, value)}
        elif name == "cert":
            volumes[_CERTIFICATES] = Path(value)
            value = _CERTIFICATES
        elif name == "constraint":
            value = _copied(value, folder / "constraints.txt", "/run/build-constraints.txt", volumes)
        elif name not in _PLAIN:
            continue
        lines.append(f"{name} = {value}")
    configuration = folder / "pip.conf"
    configuration.write_text("\n".join(lines) + "\n")
    return {**volumes, "/etc/pip.conf": configuration}


def pip_options() -> dict[str, str]:
    """pip's options here by name: files and, behind them, variables, as `pip config list` joins them."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = {}
    for line in listing.splitlines():
        key, _, value = line.partition("=")
        # Its values are Python's literals; several of one option stand in lines of their own.
        found[key.rpartition(".")[2].replace("_", "-")] = value.strip("'\"").replace("\\n", " ").strip()
    return found


def _folders(name: str, value: str) -> Iterator[Path]:
    for word in value.split():
        path = Path(word.removeprefix("file://"))
        if path.is_absolute() and path.is_dir():
            # The pages of an index link to files beside it.
            yield path if name == "find-links" else path.parent


def _copied(value: str, target: Path, inside: str, volumes: dict[str, Path]) -> str:
    """Copy the files that `value` names into one, and return its path in the container."""
    with target.open("w") as joined:
        for word in value.split():
            joined.write(Path(word).read_text("utf-8") + os.linesep)
    volumes[inside] = target
    return inside
