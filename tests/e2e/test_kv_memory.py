"""Memory of KV that the machine has not, and systems that give none that outlives a process."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.recovery import arena
from server.system import exit_codes
from tests.chaos.client import Stream, answers, check, metric, open_client, ready_pid
from tests.e2e.cgroups import limited
from tests.e2e.checkpoints import write_model
from tests.e2e.server_process import ServerProcess

pytestmark = [pytest.mark.long, pytest.mark.timeout(120)]

NOTE = "the system gives no memory that outlives it"
_REFUSING = f"""
import os
_create = os.memfd_create

def _refuse(name, *args):
    if name.startswith({arena.NAME!r}):
        raise PermissionError(1, "Operation not permitted")
    return _create(name, *args)

os.memfd_create = _refuse
"""


def test_kv_beyond_the_memory_is_refused_in_one_line(tmp_path: Path) -> None:
    """Memory of a file is taken page by page: without a look at the limit, the kernel's killer would tell, and much later."""
    folder = tmp_path / "model"
    folder.mkdir()
    model = write_model(folder, max_position_embeddings=1 << 20)
    args = [str(model), "--load-format", "dummy", "--kv-cache-memory-bytes", "64GiB", "--max-num-seqs", "128"]
    with limited(2 << 30, 2.0) as box:
        server = ServerProcess(args, tmp_path, enter=box.enter)
        try:
            code = server.process.wait(60)
        finally:
            server.kill()
    errors = [line for line in server.log().splitlines() if line.startswith("cohort: error: ")]
    assert len(errors) == 1 and "Traceback" not in server.log(), server.log()
    assert "kv" in errors[0].lower() and "memory" in errors[0] and "weights" not in errors[0], errors[0]
    assert code == exit_codes.MISTAKE


def small_files() -> None:
    """Files of a process have at most a megabyte, memory files too."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))


def no_memory_files(folder: Path) -> dict[str, str]:
    """An environment in which Python is refused the server's memory files, as a container's filter of system calls may do."""
    (folder / "sitecustomize.py").write_text(_REFUSING)
    return {"PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)}


@pytest.mark.parametrize(
    "how", ["RLIMIT_FSIZE", pytest.param("memfd_create", marks=pytest.mark.long(extended=True))]
)
async def test_without_lasting_memory_it_serves_and_says_so(how: str, tmp_path: Path) -> None:
    """KV is then the executor's own: a kill costs the time to compute it again, and no token."""
    enter: Callable[[], None] | None = small_files if how == "RLIMIT_FSIZE" else None
    env = None if enter else no_memory_files(tmp_path)
    args = ["cohort-tiny", "--dtype", "float32", "--deterministic", "--kv-cache-memory-bytes", "64MiB"]
    bodies: list[dict[str, Any]] = [
        {
            "prompt": list(range(40 * number, 40 * number + 300)),
            "max_tokens": 60,
            "ignore_eos": True,
            "seed": number,
        }
        for number in range(1, 5)
    ]
    with ServerProcess(args, tmp_path, env=env, enter=enter) as server:
        assert server.log().count(NOTE) == 1, server.log()
        expected = await answers(server, bodies)
        streams = [Stream(body) for body in bodies]
        pid = await ready_pid(server)
        async with open_client(server) as client:
            await _run_and_kill(streams, client, pid)
        check(expected, streams, "killed without lasting memory")
        # A stream that has ended before the kill is not resumed.
        assert 1 <= await metric(server, "cohort_requests_resumed_total") <= len(bodies)
        assert _lasting(server.pid) == 0


async def _run_and_kill(streams: list[Stream], client: Any, pid: int) -> None:
    running = [asyncio.create_task(stream.run(client)) for stream in streams]
    await asyncio.gather(*(stream.reaches(3) for stream in streams))
    os.kill(pid, signal.SIGKILL)
    await asyncio.gather(*running)


def _lasting(pid: int) -> int:
    try:
        return arena.memory(pid)
    except arena.NoArena:
        return 0
