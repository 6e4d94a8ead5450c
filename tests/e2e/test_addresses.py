"""`--host`: both families for localhost and for every address, with one port, in one process and with API workers."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from server.commands import healthcheck
from tests.e2e.conftest import ECHO
from tests.e2e.server_process import ServerProcess, run_until_exit
from tests.server.http.test_listener import has_ipv6, reached

pytestmark = pytest.mark.long

WORKERS = ["--api-server-count", "2"]
BODY = {"prompt": "Hi", "max_tokens": 5, "ignore_eos": True}


def port_of(server: ServerProcess) -> int:
    return int(server.url.rpartition(":")[2])


@pytest.mark.long(every=3)
@pytest.mark.parametrize("workers", [[], WORKERS], ids=["one process", "api workers"])
@pytest.mark.parametrize("host", ["localhost", "::"])
def test_both_families_have_one_port(
    host: str, workers: list[str], tokenizer_dir: Path, tmp_path: Path
) -> None:
    with ServerProcess([str(tokenizer_dir), *ECHO, "--host", host, *workers], tmp_path) as server:
        port = port_of(server)
        addresses = ["127.0.0.1", "localhost"]
        if has_ipv6():
            assert server.url == f"http://localhost:{port}"
            addresses.append("[::1]")
        for _ in range(4):  # several connections, so that each worker gets some
            for address in addresses:
                answer = httpx.post(f"http://{address}:{port}/v1/completions", json=BODY, timeout=20)
                assert answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] == 5
        environ = {"COHORT_PORT": str(port), "COHORT_HOST": host}
        assert healthcheck.main(environ) == 0 and healthcheck.main({"COHORT_PORT": str(port)}) == 0
        chat = subprocess.run(
            [str(Path(sys.executable).with_name("cohort")), "chat", "--url", server.url, "--max-tokens", "5"],
            input="Hi",
            env=os.environ,
            capture_output=True,
            text=True,
            timeout=30,
        )
        assert chat.returncode == 0 and chat.stdout.strip(), chat.stderr
        assert server.stop(10) == 0
    assert not reached(port, "127.0.0.1") and not reached(port, "::1")


@pytest.mark.long(extended=True)
@pytest.mark.skipif(not has_ipv6(), reason="needs a loopback address of IPv6, which this machine has not")
def test_only_ipv6(tokenizer_dir: Path, tmp_path: Path) -> None:
    with ServerProcess([str(tokenizer_dir), *ECHO, "--host", "::1"], tmp_path) as server:
        port = port_of(server)
        assert server.url == f"http://[::1]:{port}" and not reached(port, "127.0.0.1")
        assert healthcheck.main({"COHORT_PORT": str(port), "COHORT_HOST": "::1"}) == 0
        assert healthcheck.main({"COHORT_PORT": str(port)}) == 1


@pytest.mark.skipif(not has_ipv6(), reason="needs a loopback address of IPv6, which this machine has not")
def test_a_name_is_not_shared_with_another_server(tokenizer_dir: Path, tmp_path: Path) -> None:
    """Development servers often listen on ::1 alone: half of the clients of http://localhost would reach that one."""
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as taken:
        port = str(taken.getsockname()[1])
        args = [str(tokenizer_dir), *ECHO, "--host", "localhost", "--port", port]
        code, _, log = run_until_exit(args, tmp_path)
    assert code == 75 and f"cannot listen on localhost:{port} (at ::1): address already in use" in log


def test_loopback_names_alone_pass_the_check_of_hosts(tokenizer_dir: Path, tmp_path: Path) -> None:
    """A server for this machine alone answers no page that points its own name here (DNS rebinding)."""
    with ServerProcess([str(tokenizer_dir), *ECHO, "--host", "localhost"], tmp_path) as server:
        for host, status in (("localhost", 200), ("127.0.0.1", 200), ("[::1]", 200), ("evil.example", 403)):
            answer = httpx.get(f"{server.url}/v1/models", headers={"Host": f"{host}:{port_of(server)}"})
            assert answer.status_code == status, host
