"""A container without an engine: namespaces, a read-only root, a volume, /tmp in memory, no network but its own loopback.

As a module, `python -m tools.ops.container SPECIFICATION` is what runs first in the new namespaces: it mounts, and turns
into the container's process. So that process is number 1 of its namespace, as under an engine.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from tools.ops.image import ImageConfig

_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1
_DEVICES = ("null", "zero", "full", "random", "urandom")


class Container:
    """A running container of `image` over the folder `root`, with a new volume below `folder` at the image's one volume.

    Leaving the block kills it if it still runs.
    """

    def __init__(
        self, root: Path, image: ImageConfig, folder: Path, env: Mapping[str, str] | None = None
    ) -> None:
        """`env`: variables beside the image's own. The volume begins as the image's folder, as an engine fills a new one."""
        self.image = image
        self._env = image.env | dict(env or {})
        self.volume, self._log = folder / "volume", folder / "container.log"
        [mount] = image.volumes
        shutil.copytree(root / mount.lstrip("/"), self.volume, symlinks=True)
        uid, _, gid = image.user.partition(":")
        for path in (self.volume, *self.volume.rglob("*")):
            os.chown(path, int(uid), int(gid), follow_symlinks=False)
        specification = {
            "root": str(root),
            "volume": str(self.volume),
            "mount": mount,
            "command": self._as_user([*image.entrypoint, *image.cmd], {}),
        }
        namespaces = ["unshare", "--mount", "--pid", "--net", "--ipc", "--uts", "--fork", "--kill-child"]
        module = [sys.executable, "-m", "tools.ops.container", json.dumps(specification)]
        with self._log.open("wb") as output:
            self._outer = subprocess.Popen(
                [*namespaces, "--propagation=private", *module], stdout=output, stderr=output
            )

    @property
    def pid(self) -> int:
        """The container's first process, as the host numbers it; waits until it is there and sees the image's files."""
        children = Path(f"/proc/{self._outer.pid}/task/{self._outer.pid}/children")
        deadline = time.monotonic() + 10
        while not (pids := children.read_text().split()) or not _has_root(pids[0]):
            assert time.monotonic() < deadline and self._outer.poll() is None, self.log()
            time.sleep(0.01)
        return int(pids[0])

    def log(self) -> str:
        """stdout and stderr of the container."""
        return self._log.read_text("utf-8", "replace")

    def execute(
        self, command: Sequence[str], env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in it, as its user, with its environment and `env`: what `docker exec` and HEALTHCHECK do."""
        spaces = ["--mount", "--pid", "--net", "--ipc", "--uts", "--root"]
        enter = ["nsenter", "--target", str(self.pid), *spaces]
        inside = self._as_user(command, env or {})
        return subprocess.run([*enter, *inside], capture_output=True, text=True, timeout=120, check=False)

    def stop(self, within: float = 60) -> int:
        """Send the image's stop signal to the first process; returns the container's exit code."""
        os.kill(self.pid, signal.Signals[self.image.stop_signal])
        return self._outer.wait(within)

    def check_alive(self) -> None:
        """Raises AssertionError with the log if it has ended."""
        assert self._outer.poll() is None, f"it ended with {self._outer.returncode}:\n{self.log()}"

    def _as_user(self, command: Sequence[str], env: Mapping[str, str]) -> list[str]:
        uid, _, gid = self.image.user.partition(":")
        environment = [f"{name}={value}" for name, value in (self._env | dict(env)).items()]
        drop = ["--clear-groups", "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"]
        identity = ["setpriv", f"--reuid={uid}", f"--regid={gid}", *drop]
        return ["env", "-i", "-C", self.image.workdir, *environment, *identity, *command]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._outer.poll() is None:
            self._outer.kill()
            self._outer.wait()


def become(specification: Mapping[str, object]) -> None:
    """Mount everything below the root, then turn into the command. Runs as root in fresh namespaces; does not return."""
    root, command = str(specification["root"]), specification["command"]
    assert isinstance(command, list)
    _mount("--bind", root, root)
    # Nothing is made in the root itself: the image's folders are enough to mount on.
    _mount("-o", "remount,bind,ro", root)
    _mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", f"{root}/dev")
    for device in (f"/dev/{name}" for name in _DEVICES):
        Path(root + device).touch()
        _mount("--bind", device, root + device)
    Path(f"{root}/dev/shm").mkdir()
    _mount("-t", "tmpfs", "-o", "mode=1777,size=64m", "tmpfs", f"{root}/dev/shm")
    _mount("-t", "tmpfs", "-o", "mode=1777,size=256m", "tmpfs", f"{root}/tmp")
    _mount("-t", "proc", "proc", f"{root}/proc")
    _mount("--bind", str(specification["volume"]), root + str(specification["mount"]))
    _loopback_up()
    os.execvp("chroot", ["chroot", root, *command])


def _has_root(pid: str) -> bool:
    """Whether a process is in a root of its own already."""
    return Path(f"/proc/{pid}/root").readlink() != Path("/")


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


def _loopback_up() -> None:
    """`ip link set lo up` without iproute2; request and flags as in netdevice(7)."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack("16sh22x", b"lo", 0)
        flags = struct.unpack_from("16sh", fcntl.ioctl(control, _SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", flags | _IFF_UP))


if __name__ == "__main__":
    become(json.loads(sys.argv[1]))
