"""KV that outlives executors: streams with long prompts, killed executors, and memory that is not what it was.

`python -m benchmarks.recovery` is the same with trained models, in bf16 and int8, with drafts, LoRA adapters and ranks.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks.recovery.rounds import LIMIT_S, killed, load_seconds, undisturbed
from executors.tiny import weights_dir
from tests.chaos.client import Stream, check, metric, open_client
from tests.chaos.crashing_executor import FOLDER
from tests.chaos.test_families import with_vocabulary
from tests.e2e.checkpoints import write_model, write_tokenizer
from tests.e2e.server_process import ServerProcess
from tests.executors.llm.models import SHAPES, write

pytestmark = [pytest.mark.long, pytest.mark.timeout(240)]

STREAMS, PROMPT, OUTPUT = 4, 7000, 80
HYBRID_PROMPT, HYBRID_OUTPUT = 3000, 300
SNAPSHOTS = re.compile(r"(\d+) of (\d+) snapshots of states kept, (\d+) damaged")
DAMAGED = 'cohort_kv_blocks_adopted_total{outcome="damaged"}'
_SHAPE: dict[str, Any] = {
    "hidden_size": 192, "intermediate_size": 384, "num_hidden_layers": 4, "max_position_embeddings": 8192,
}  # fmt: skip
"""Prompts of four streams take some seconds: computing them again would show."""
SETTINGS = {
    "bf16": ["--dtype", "bfloat16"],
    "int8": ["--dtype", "bfloat16", "--kv-cache-dtype", "int8"],
}


def asks(number: int, tokens: int, output: int, **settings: Any) -> dict[str, Any]:
    """A prompt that no other call has."""
    prompt = [(7 * i * i + 13 * number + i // 3) % 251 for i in range(tokens)]
    return {
        "prompt": [number, *prompt[1:]], "max_tokens": output, "ignore_eos": True, "seed": number,
        "temperature": number % 2 * 0.8, **settings,
    }  # fmt: skip


@pytest.mark.parametrize("name", ["bf16", pytest.param("int8", marks=pytest.mark.long(extended=True))])
async def test_a_pause_is_a_load_whatever_the_prompts(name: str, tmp_path: Path) -> None:
    """SIGKILL under four streams of 7,000 prompt tokens, then once more with 1,000 flipped bytes. Hardly anything is computed
    again after the first."""
    folder = tmp_path / "model"
    folder.mkdir()
    model = write_model(folder, **_SHAPE)
    args = [
        str(model),
        "--load-format",
        "dummy",
        "--deterministic",
        "--max-num-seqs",
        str(STREAMS),
        *SETTINGS[name],
    ]
    bodies = [asks(number, PROMPT, OUTPUT) for number in range(STREAMS)]
    with ServerProcess([*args, "--kv-cache-memory-bytes", "256MiB"], tmp_path) as server:
        load_s = await load_seconds(server)
        expected = await undisturbed(server, bodies)
        kills = [await killed(server, expected)]
        while len(kills) < 3 and max(kills[-1].pauses) > load_s + LIMIT_S:
            kills.append(await killed(server, expected))  # other tests run beside this one
        damaged = await killed(server, expected, flips=1000)
    assert [fault for kill in (*kills, damaged) for fault in kill.faults(STREAMS, math.inf)] == []
    assert kills[-1].faults(STREAMS, load_s) == []
    # A partial block, and what was in flight.
    assert all(kill.again <= STREAMS * 2 * 16 for kill in kills)


def write_hybrid(name: str, path: Path) -> Path:
    """A small model whose layers have states, for long prompts."""
    kind, fields = SHAPES[name]
    write(kind, {**with_vocabulary(fields), "max_position_embeddings": 8192}, path, 3)
    write_tokenizer(path)
    return path


@pytest.mark.parametrize(
    "name", ["qwen3-next", pytest.param("lfm2-short-convolutions", marks=pytest.mark.long(extended=True))]
)
@pytest.mark.parametrize(
    "flags", [(), pytest.param(("--no-enable-prefix-caching",), marks=pytest.mark.long(extended=True))]
)
async def test_a_hybrid_goes_on_behind_its_snapshots(
    name: str, flags: tuple[str, ...], tmp_path: Path
) -> None:
    """SIGKILL under four streams with long prompts, then once more with flipped bytes, some of them in snapshots."""
    args = [str(write_hybrid(name, tmp_path / "model")), "--dtype", "float32", "--deterministic", *flags]
    args += ["--max-num-seqs", str(STREAMS), "--kv-cache-memory-bytes", "64MiB"]
    bodies = [asks(number, HYBRID_PROMPT, HYBRID_OUTPUT) for number in range(STREAMS)]
    with ServerProcess(args, tmp_path) as server:
        expected = await undisturbed(server, bodies)
        kill = await killed(server, expected)
        damaged = await killed(server, expected, flips=1000)
        log = server.log()
    assert [fault for one in (kill, damaged) for fault in one.faults(STREAMS, math.inf)] == []
    # What lies behind the deepest snapshot, and was given or in flight.
    assert 0 < kill.again <= STREAMS * HYBRID_PROMPT // 10
    [(kept, total, none), (_, _, flipped)] = SNAPSHOTS.findall(log)
    assert kept == total and none == "0" and int(flipped) > 0


@asynccontextmanager
async def scribbling(folder: Path, *args: str) -> AsyncIterator[ServerProcess]:
    """The embedded model with an executor that can be told to write where it must not."""
    factory = "tests.chaos.scribbling_executor:ScribblingFactory"
    env = {"PYTHONPATH": str(Path(__file__).parents[2]), FOLDER: str(folder)}
    flags = ["--model", str(weights_dir()), "--dtype", "float32", "--deterministic", "--max-num-seqs", "8"]
    with ServerProcess(["--executor", factory, *flags, *args], folder, env=env) as server:
        yield server


async def scribbled(
    server: ServerProcess, folder: Path, bodies: list[dict[str, Any]], share: float
) -> list[Stream]:
    """The calls' answers, with stray writes into that share of the blocks, and a death, when each has some tokens."""
    streams = [Stream(body) for body in bodies]
    async with open_client(server) as client:
        running = [asyncio.create_task(stream.run(client)) for stream in streams]
        await asyncio.gather(*(stream.reaches(4) for stream in streams))
        assert sum(stream.done for stream in streams) <= len(streams) // 2, "most are hit in the middle"
        (folder / "new").write_text(str(share))
        (folder / "new").rename(folder / "scribble")
        await asyncio.gather(*running)
    assert not (folder / "scribble").exists()
    return streams


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param([], id="prefix-caching"),
        pytest.param(["--no-enable-prefix-caching"], id="none", marks=pytest.mark.long(extended=True)),
        pytest.param(["--kv-cache-dtype", "int8"], id="int8", marks=pytest.mark.long(extended=True)),
    ],
)
async def test_stray_writes_before_a_death_change_no_token(flags: list[str], tmp_path: Path) -> None:
    """An executor that is about to crash writes into its KV: into a third of all blocks, and into all."""
    bodies = [asks(number, 700, 60) for number in range(1, 7)]
    async with scribbling(tmp_path, "--kv-cache-memory-bytes", "20MiB", *flags) as server:
        expected = await undisturbed(server, bodies)
        for number, share in enumerate((0.33, 1.0), 1):
            check(
                expected,
                await scribbled(server, tmp_path, bodies, share),
                f"stray writes into {share:.0%} of blocks",
            )
            assert await metric(server, 'cohort_executor_restarts_total{cause="signal"}') == number
            [again] = await undisturbed(server, bodies[:1])
            assert again.said() == expected[0].said(), "what a prefix hit reads later"


async def test_damaged_blocks_are_counted(tmp_path: Path) -> None:
    bodies = [asks(number, 700, 60) for number in range(1, 7)]
    async with scribbling(tmp_path, "--kv-cache-memory-bytes", "20MiB") as server:
        expected = await undisturbed(server, bodies)
        check(expected, await scribbled(server, tmp_path, bodies, 1.0), "stray writes")
        assert await metric(server, DAMAGED) > 6 * 700 // 16
