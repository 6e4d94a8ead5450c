"""Builds the Dockerfile with buildah, and reads what the image says of itself.

buildah's chroot isolation needs root, and neither a daemon nor namespaces that a container denies. The base image is made by
mmdebstrap where no registry can be reached: Debian's minimal system, of the release that the Dockerfile names.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.ops.package_sources import CLEAN, PackageSources

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = ROOT / "Dockerfile"
_BASE = "localhost/cohort-base"
_FORGET = (
    'rm -f "$1"/etc/apt/apt.conf.d/99mmdebstrap "$1"/etc/apt/sources.list.d/*; '
    'echo deb http://deb.debian.org/debian {release} main > "$1"/etc/apt/sources.list'
)
"""Removes this machine's own sources from the base image, where mmdebstrap leaves them."""
_CLEAN = f"echo '{CLEAN.strip()}' > \"$1\"/etc/apt/apt.conf.d/docker-clean"
_RELEASE = re.compile(r"^ARG BASE_IMAGE=debian:(\w+?)(?:-\d+)?(?:-slim)?$", re.M)


class BuildFailed(Exception):
    """A command of the build failed; says which, with the end of its output."""


@dataclass(frozen=True, slots=True)
class ImageConfig:
    """What an engine starts a container of the image with."""

    env: dict[str, str]
    workdir: str
    user: str
    volumes: list[str]
    entrypoint: list[str]
    cmd: list[str]
    healthcheck: dict[str, Any]
    """`Test`, and `Interval`, `Timeout`, `StartPeriod` in nanoseconds, `Retries`."""
    stop_signal: str
    record: str
    """All of the image's record, its history included, as JSON."""

    @property
    def probe(self) -> list[str]:
        """The command of the health check."""
        kind, *command = map(str, self.healthcheck["Test"])
        assert kind == "CMD", self.healthcheck
        return command


class Builder:
    """Images in a store of their own below `folder`; `close` removes it."""

    def __init__(self, folder: Path, sources: PackageSources) -> None:
        self._folder, self._sources = folder, sources
        self._log = folder / "build.log"
        self.driver = "overlay" if _overlay_works(folder) else "vfs"
        store = ["--root", str(folder / "store"), "--runroot", str(folder / "run")]
        self._buildah = ["buildah", *store, "--storage-driver", self.driver]

    def make_base(self, release: str) -> None:
        """Make the base image: the minimal system of a Debian release."""
        archive = self._folder / "base.tar"
        sources = list(map(str, self._sources.sources))
        options = []
        if self._sources.options:
            options = [
                f"--aptopt={self._sources.options}",
                f"--customize-hook={_FORGET.format(release=release)}",
            ]
        self._run("mmdebstrap", "--quiet", "--variant=minbase", *options, release, str(archive), *sources)
        container = self.run("from", "scratch")
        self.run("add", container, str(archive), "/")
        self.run("config", "--cmd", "bash", container)
        self.run("commit", "--rm", container, _BASE)
        archive.unlink()

    def build(self, target: str, arguments: Mapping[str, str]) -> str:
        """Build a target of the Dockerfile and return the name of its image. Steps that targets share are built once where the
        store shares layers; vfs copies the whole tree for each."""
        name = f"localhost/cohort-server:{target}"
        given = {"BASE_IMAGE": _BASE, **{key: value for key, value in arguments.items() if value}}
        build_arguments = [f"--build-arg={key}={value}" for key, value in given.items()]
        volumes = [f"--volume={path}:{inside}:ro" for inside, path in self._sources.volumes.items()]
        # OCI's own format has no health check.
        how = ["--isolation=chroot", "--format=docker", "--network=host", "--pull-never", f"--tag={name}"]
        layers = f"--layers={'true' if self.driver == 'overlay' else 'false'}"
        self.run("build", *how, layers, *build_arguments, *volumes, f"--target={target}", str(ROOT))
        return name

    def config(self, image: str) -> ImageConfig:
        """What the image says of itself."""
        record = self.run("inspect", "--type=image", image)
        config = json.loads(record)["Docker"]["config"]
        return ImageConfig(
            env=dict(pair.split("=", 1) for pair in config["Env"]),
            workdir=config["WorkingDir"],
            user=config["User"],
            volumes=sorted(config["Volumes"]),
            entrypoint=config["Entrypoint"],
            cmd=config["Cmd"],
            healthcheck=config["Healthcheck"],
            stop_signal=config["StopSignal"],
            record=record,
        )

    @contextlib.contextmanager
    def mounted(self, image: str) -> Iterator[Path]:
        """The image's files as a folder: a container's, so that writing there does not change the image."""
        container = self.run("from", "--pull-never", image)
        yield Path(self.run("mount", container))
        self.run("umount", container)
        self.run("rm", container)

    def run(self, *arguments: str) -> str:
        """Run buildah and return its output, which for most commands is a name. Raises BuildFailed."""
        return self._run(*self._buildah, *arguments)

    def close(self) -> None:
        """Remove containers and images, and the store with them."""
        if (self._folder / "store").exists():
            subprocess.run([*self._buildah, "rm", "--all"], capture_output=True)
            subprocess.run([*self._buildah, "rmi", "--all", "--force"], capture_output=True)
            for mounted in ("overlay", ""):
                subprocess.run(["umount", str(self._folder / "store" / mounted)], capture_output=True)
            shutil.rmtree(self._folder / "store")

    def _run(self, *command: str) -> str:
        environment = {**os.environ, "TMPDIR": str(self._folder)}
        with self._log.open("ab") as log, tempfile.TemporaryFile() as output:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=log, env=environment
            )
            output.seek(0)
            text = output.read()
            log.write(text)
        if done.returncode:
            tail = "\n".join(self._log.read_text("utf-8", "replace").splitlines()[-30:])
            raise BuildFailed(f"{command[0]} ended with {done.returncode}; the end of {self._log}:\n{tail}")
        return text.decode().strip()


def base_release() -> str:
    """The Debian release that the Dockerfile builds on by default."""
    match = _RELEASE.search(DOCKERFILE.read_text("utf-8"))
    if match is None:
        raise BuildFailed("Dockerfile: ARG BASE_IMAGE names no Debian release")
    return match[1]


def _overlay_works(folder: Path) -> bool:
    """Whether the kernel mounts overlays on this disk: not on an overlay itself, nor without CAP_SYS_ADMIN."""
    parts = {name: folder / "overlay" / name for name in ("lower", "upper", "work", "all")}
    for part in parts.values():
        part.mkdir(parents=True)
    options = f"lowerdir={parts['lower']},upperdir={parts['upper']},workdir={parts['work']}"
    mount = ["mount", "-t", "overlay", "overlay", "-o", options, str(parts["all"])]
    works = subprocess.run(mount, capture_output=True).returncode == 0
    if works:
        subprocess.run(["umount", str(parts["all"])], check=True)
    shutil.rmtree(folder / "overlay")
    return works
