"""Debian's nginx as a proxy in front of a server, for as long as a block runs."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

_TEMPORARY = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


@contextlib.contextmanager
def nginx(folder: Path, directives: str) -> Iterator[str]:
    """The address, without a slash at the end, of an nginx whose server block holds `directives`. Everything else is its default.
    Its files lie in `folder`."""
    program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    assert program is not None, "Debian's package nginx is missing: run `make test-external ONLY=console`"
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    temporary = "".join(f"  {name}_temp_path {folder}/{name};\n" for name in _TEMPORARY)
    configuration = folder / "nginx.conf"
    configuration.write_text(
        f"daemon off;\nworker_processes 1;\npid {folder}/nginx.pid;\n"
        # Its workers' user cannot reach the folder of a test that runs as root.
        f"{'user root;' if os.geteuid() == 0 else ''}\n"
        "events {}\n"
        f"http {{\n{temporary}  access_log {folder}/access.log;\n"
        f"  server {{\n    listen 127.0.0.1:{port};\n{directives}\n  }}\n}}\n"
    )
    errors = folder / "error.log"
    command = [program, "-c", str(configuration), "-p", str(folder), "-e", str(errors)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 10
        while not _listens(port):
            assert process.poll() is None and time.monotonic() < deadline, errors.read_text()
            time.sleep(0.02)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(10)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
