"""`--quantization` and `--cpu-isa` on a real server with the embedded model."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from executors.kernels.compiler import usable_isas
from tests.e2e.server_process import ServerProcess, run_until_exit

pytestmark = pytest.mark.long
COUNT = {"messages": [{"role": "user", "content": "Count from 3 to 9."}], "temperature": 0}


@pytest.mark.long(extended=True)
@pytest.mark.parametrize("isa", [isa.name for isa in usable_isas()][::-1][:1])
def test_int8_on_the_least_instructions_answers_and_says_so(isa: str, tmp_path: Path) -> None:
    with ServerProcess(["cohort-tiny", "--quantization", "int8", "--cpu-isa", isa], tmp_path) as server:
        answer = httpx.post(f"{server.url}/v1/chat/completions", json=COUNT, timeout=60).json()
        (executor,) = httpx.get(f"{server.url}/v1/executors", timeout=10).json()["data"]
        log = server.log()
    assert answer["choices"][0]["message"]["content"] == "3, 4, 5, 6, 7, 8, 9"
    assert executor["info"]["quantization"] == "int8"
    notes = executor["status"]["notes"]
    assert f"attention: cohort-cpu {isa}" in notes
    assert f"CPU kernels {isa}, int8; layers: in one call" in notes
    assert [note for note in notes if f"executor: {note}" not in log] == []


@pytest.mark.long(every=4)
@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--quantization", "int3"], "quantization 'int3' is not supported; supported: int8, int4, fp8"),
        (
            ["--cpu-isa", "sse2"],
            "cpu_isa 'sse2' is not supported; supported: avx512_bf16, avx512_vnni, avx512, avx2",
        ),
        (
            ["--cpu-isa", "avx2", "--attention-backend", "torch"],
            "cpu_isa avx2 cannot be used: attention backend torch is set",
        ),
    ],
)
def test_what_cannot_be_is_one_line(flags: list[str], words: str, tmp_path: Path) -> None:
    code, _, log = run_until_exit(flags, tmp_path)
    assert code not in (0, None)
    assert words in log and "Traceback" not in log
