"""A server that ends while its kernels are compiled leaves no compiler behind."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.e2e.server_process import ServerProcess

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.long,
]

FAKE = """#!/bin/sh
[ "$1" = --version ] && echo fake && exit
sh -c 'echo $$ > "$0.part"; mv "$0.part" "$0"; sleep 300; :' {pid}
"""


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.long(every=2)
@pytest.mark.parametrize("victim", ["fork server", "server", "server, at once"])
def test_a_compiler_ends_with_its_server(tmp_path: Path, victim: str) -> None:
    fake, pid = tmp_path / "fake-cxx", tmp_path / "pid"
    fake.write_text(FAKE.format(pid=pid))
    fake.chmod(0o755)
    server = ServerProcess(
        ["cohort-tiny"], tmp_path, env={"CXX": str(fake), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    )
    try:
        deadline = time.monotonic() + 30
        while not pid.exists():
            server.check_alive()
            assert time.monotonic() < deadline, server.log()
            time.sleep(0.02)
        compiler = int(pid.read_text())
        assert lives(compiler)
        if victim == "fork server":
            [fork_server] = server.fork_servers()
            os.kill(fork_server, signal.SIGKILL)
        else:
            server.process.send_signal(signal.SIGTERM if victim == "server" else signal.SIGKILL)
            server.process.wait(20)
        deadline = time.monotonic() + 5
        while lives(compiler):
            assert time.monotonic() < deadline, "the compiler goes on"
            time.sleep(0.02)
    finally:
        server.kill()
