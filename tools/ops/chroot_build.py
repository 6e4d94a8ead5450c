"""Builds a Dockerfile's stages as folders, with debootstrap and chroot in the place of a container engine. Needs root.

    FROM image     debootstrap of that Debian release: what the slim image holds, and a little more
    FROM stage     a copy of that stage's folder
    RUN            /bin/sh -c in a chroot, in a mount and a process namespace of its own
    COPY           from the checkout or from another stage's folder, owned by root
    ENV, ARG, ...  as the Dockerfile reference has them

How pip finds packages on this machine (its configuration, certificates, local folders) is handed into RUN and only there.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from tools.ops.dockerfile import DockerfileError, Image, Stage, argument, copy_of, expand

_RELEASE = re.compile(r"debian:(\w+?)(?:-\d+)?(?:-slim)?")
_CERTIFICATES = "/run/build-certificates.crt"
_MOUNTS = """
root=$1; shift
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
while [ "$1" != -- ]; do
  from=$1 to=$root$2; shift 2
  if [ -d "$from" ]; then mkdir -p "$to"; else touch "$to"; fi
  mount --bind "$from" "$to"
  mount -o remount,bind,ro "$to"
done
shift
exec chroot "$root" "$@"
"""


@dataclass(frozen=True, slots=True)
class HostPip:
    """What RUN is given of this machine: variables, and paths by where they are mounted."""

    env: dict[str, str]
    mounts: dict[str, str]

    @classmethod
    def read(cls) -> HostPip:
        """From `pip config list`, which joins files and environment, the environment last."""
        command = [sys.executable, "-m", "pip", "config", "list"]
        listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        env, mounts = {}, {}
        for line in listing.splitlines():
            key, _, value = line.partition("=")
            env[f"PIP_{key.rpartition('.')[2].upper().replace('-', '_')}"] = value.strip("'\"").replace(
                "\\n", " "
            )
        if bundle := env.pop("PIP_CERT", None):
            mounts[bundle] = _CERTIFICATES
            env["PIP_CERT"] = _CERTIFICATES
        for name, value in list(env.items()):
            if name in ("PIP_FIND_LINKS", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
                paths = [Path(word.removeprefix("file://")) for word in value.split()]
                # An index links to files beside it, so the folder above comes along.
                found = [path if name == "PIP_FIND_LINKS" else path.parent for path in paths if path.is_dir()]
                mounts |= {str(path): str(path) for path in found}
            elif os.path.sep in value and name != "PIP_CERT":
                del env[name]  # a path that means nothing in there, such as a log
        return cls(env, mounts)


@dataclass(slots=True)
class Builder:
    """Stages of one Dockerfile below `folder`, each built once."""

    stages: Mapping[str, Stage]
    arguments: Mapping[str, str]
    context: Path
    folder: Path
    host: HostPip
    log: Path
    built: dict[str, Image] = field(default_factory=dict)

    def build(self, name: str) -> Path:
        """The folder of a stage. Raises DockerfileError for what cannot be read, CalledProcessError for a step that fails."""
        root = self.folder / name
        if name in self.built:
            return root
        stage = self.stages[name]
        if stage.parent in self.stages:
            parent = self.build(stage.parent)
            _run("cp", "-a", "--reflink=auto", str(parent), str(root))
            image = _copy(self.built[stage.parent])
        else:
            self._debootstrap(stage.parent, root)
            image = Image(env={"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"})
        arguments: dict[str, str] = {}
        for instruction in stage.instructions:
            print(f"  [{name}] {instruction.word} {instruction.text[:100]}", flush=True)
            if instruction.word == "RUN":
                self._execute(root, image, arguments, instruction.text)
            elif instruction.word == "COPY":
                self._copy(root, image, instruction.text)
            elif instruction.word == "ARG":
                key, default = argument(instruction.text)
                arguments[key] = self.arguments.get(key, default)
            else:
                image.apply(instruction, arguments)
                (root / image.workdir.lstrip("/")).mkdir(parents=True, exist_ok=True)
        self.built[name] = image
        return root

    def _debootstrap(self, image: str, root: Path) -> None:
        match = _RELEASE.fullmatch(image)
        if match is None:
            raise DockerfileError(f"FROM {image}: only Debian images can be stood in for")
        print(f"  debootstrap {match[1]}", flush=True)
        self._logged(["debootstrap", "--variant=minbase", match[1], str(root)])

    def _execute(self, root: Path, image: Image, arguments: Mapping[str, str], command: str) -> None:
        env = {
            "DEBIAN_FRONTEND": "noninteractive",
            "HOME": "/root",
            **self.host.env,
            **image.env,
            **arguments,
        }
        inside = [
            "env",
            "-i",
            "-C",
            image.workdir,
            *(f"{k}={v}" for k, v in env.items()),
            "/bin/sh",
            "-c",
            command,
        ]
        binds = [part for pair in self.host.mounts.items() for part in pair]
        namespaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation=private"]
        self._logged([*namespaces, "sh", "-ec", _MOUNTS, "sh", str(root), *binds, "--", *inside])

    def _copy(self, root: Path, image: Image, text: str) -> None:
        stage, sources, destination = copy_of(expand(text, image.env))
        base = self.build(stage) if stage else self.context
        target = root / (PurePosixPath(image.workdir) / destination).relative_to("/")
        for source in sources:
            origin = base / source.lstrip("/")
            if origin.is_dir():
                # .dockerignore speaks of the context alone.
                ignore = None if stage else shutil.ignore_patterns("__pycache__", "*.pyc")
                shutil.copytree(origin, target, symlinks=True, dirs_exist_ok=True, ignore=ignore)
            else:
                folder = destination.endswith("/") or len(sources) > 1
                (target if folder else target.parent).mkdir(parents=True, exist_ok=True)
                shutil.copy2(origin, target / origin.name if folder else target)
        if not stage:
            _run("chown", "-R", "0:0", str(target))

    def _logged(self, command: Sequence[str]) -> None:
        with self.log.open("ab") as output:
            run = subprocess.run(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL)
        if run.returncode:
            tail = "\n".join(self.log.read_text("utf-8", "replace").splitlines()[-30:])
            raise RuntimeError(f"exit code {run.returncode}; the end of {self.log}:\n{tail}")


def _copy(image: Image) -> Image:
    return Image(
        dict(image.env), image.workdir, image.user, list(image.volumes), list(image.entrypoint), list(image.cmd),
        list(image.healthcheck), image.stop_signal,
    )  # fmt: skip


def _run(*command: str) -> None:
    subprocess.run(command, check=True)
