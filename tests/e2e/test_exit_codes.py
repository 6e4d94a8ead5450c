"""With which exit code a start fails, and that the systemd unit starts again what a later start may cure."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from server.system import exit_codes
from tests.e2e.conftest import ECHO
from tests.e2e.server_process import ServerProcess
from tests.ops.supervisor import Supervisor, read_unit
from tests.ops.test_systemd import UNIT

pytestmark = pytest.mark.long


def end_of(args: Sequence[str], folder: Path, env: Mapping[str, str] | None = None) -> tuple[int, str]:
    """The exit code, and the last line, which is the only one that names an error."""
    server = ServerProcess(args, folder, env=env)
    try:
        code = server.process.wait(40)
    finally:
        server.kill()
    log = server.log()
    assert log.count("cohort: error: ") == 1 and "Traceback" not in log, log
    return code, log.splitlines()[-1].removeprefix("cohort: error: ")


MISTAKES: list[tuple[list[str], dict[str, str], str]] = [
    (["--no-such-flag"], {}, "no-such-flag"),
    (["--max-num-seqs", "many"], {}, "--max-num-seqs"),
    ([], {"COHORT_NO_SUCH": "1"}, "COHORT_NO_SUCH"),
    (["/no/such/folder"], {}, "/no/such/folder"),
    (["--host", "no.such.host.invalid."], {}, "--host no.such.host.invalid.: not an address"),
    (["--api-key-file", "/no/such/keys"], {}, "--api-key-file /no/such/keys"),
    (["--ssl-certfile", "/no/such/cert"], {}, "--ssl-certfile /no/such/cert"),
    (["--executor", "magic"], {}, "unknown executor 'magic'"),
    (["acme/other"], {"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE forbids"),
]


@pytest.mark.long(every=6)
@pytest.mark.parametrize(("args", "env", "words"), MISTAKES)
def test_a_mistake_is_never_tried_again(
    args: list[str], env: dict[str, str], words: str, tmp_path: Path
) -> None:
    code, line = end_of(args, tmp_path, {"HF_HOME": str(tmp_path / "hub"), **env})
    assert code == exit_codes.MISTAKE and words in line, line
    assert not Supervisor(read_unit(UNIT)).restarts(code)


def test_an_address_that_is_not_there_yet(tokenizer_dir: Path, tmp_path: Path) -> None:
    """192.0.2.1 is an address for documentation (RFC 5737), which no machine has."""
    code, line = end_of([str(tokenizer_dir), *ECHO, "--host", "192.0.2.1"], tmp_path)
    assert code == exit_codes.NOT_YET and line.startswith("cannot listen on 192.0.2.1:0: cannot assign")
    assert "--host" in line


@pytest.mark.long(extended=True)
def test_a_hub_that_cannot_be_reached(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    env = {
        "HF_HOME": str(tmp_path / "hub"),
        "HF_ENDPOINT": f"http://127.0.0.1:{port}",
        "HF_HUB_OFFLINE": "0",
    }
    code, line = end_of(["acme/random-1m"], tmp_path, env)
    assert code == exit_codes.NOT_YET and "cannot be reached" in line and "check the network" in line


@pytest.mark.long(every=2)
@pytest.mark.parametrize("mode", ["process", "inline"])
def test_a_device_that_is_not_there_yet(mode: str, tokenizer_dir: Path, tmp_path: Path) -> None:
    executor = f"{__name__.replace('test_exit_codes', 'absent_executor')}:AbsentFactory"
    args = [str(tokenizer_dir), "--executor", executor, *ECHO[2:], "--executor-mode", mode]
    code, line = end_of(args, tmp_path)
    assert code == exit_codes.NOT_YET and line == "device 'cuda': no CUDA device is available"


def test_a_supervisor_brings_it_up_once_the_port_is_free(tokenizer_dir: Path, tmp_path: Path) -> None:
    systemd = Supervisor(read_unit(UNIT))
    taken = socket.create_server(("127.0.0.1", 0))
    args = [str(tokenizer_dir), *ECHO, "--port", str(taken.getsockname()[1])]
    with taken:
        ends = [end_of(args, tmp_path) for _ in range(2)]
    for code, line in ends:
        assert code == exit_codes.NOT_YET and "address already in use" in line and "--port" in line
    assert systemd.starts([code for code, _ in ends] * 100, 0.3) == 200
    with ServerProcess(args, tmp_path) as server:
        assert server.get("/ready").status_code == 200
