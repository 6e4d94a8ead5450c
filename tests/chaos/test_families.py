"""A kill in the middle of the streams of each family: they go on as if nothing had been, which transformers confirms."""

from __future__ import annotations

import asyncio
import copy
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.chaos.client import Stream, answers, check, open_client, ready_pid
from tests.e2e.checkpoints import VOCAB_SIZE, write_tokenizer
from tests.e2e.family_calls import NEW, OTHERS, TOLERANCE, Judge
from tests.e2e.server_process import ServerProcess
from tests.executors.llm.models import SHAPES, Reference, write

OUTPUT = 80


def with_vocabulary(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a shape with the tokens of `write_tokenizer`."""
    changed = copy.deepcopy(fields)
    for own in (changed, changed.get("text_config")):
        for name in own or ():
            if name in ("vocab_size", "vocab_size_per_layer_input"):
                own[name] = VOCAB_SIZE  # type: ignore[index]
    return changed


def bodies() -> list[dict[str, Any]]:
    """Greedy calls and such with seeds, prompts of several chunks and with a common beginning, two choices, one with tokens that
    come again, for drafts."""
    rng = np.random.default_rng(7)
    common = rng.integers(32, 127, 60).tolist()
    prompts = [rng.integers(32, 127, count).tolist() for count in (5, 130)]
    prompts += [common + rng.integers(32, 127, count).tolist() for count in (3, 40)]
    same = {"max_tokens": OUTPUT, "ignore_eos": True, "logprobs": 2}
    calls = [
        {"prompt": prompt, "temperature": number % 2 * 0.9, "seed": number, **same}
        for number, prompt in enumerate(prompts)
    ]
    calls.append({"prompt": common[:21], "temperature": 0.8, "seed": 9, "n": 2, **same})
    return [*calls, {"prompt": common[:9] * 4, "temperature": 0.0, "logit_bias": {"40": 9, "41": 9}, **same}]


def join_logprobs(streams: list[Stream]) -> None:
    """Make one object of lists of those of all events: how tokens are grouped into events depends on drafts and on the kill."""
    for stream in streams:
        for choice in stream.choices.values():
            names = choice.logprobs[0].keys()
            choice.logprobs = [
                {name: [one for event in choice.logprobs for one in event[name]] for name in names}
            ]


def judged(reference: Reference, streams: list[Stream]) -> None:
    """Every logprob is that of one forward of the whole, and greedy tokens are its most likely ones."""
    judge = Judge(reference)
    for stream in streams:
        prompt = tuple(stream.body["prompt"])
        for choice in stream.choices.values():
            assert len(choice.ids) == OUTPUT
            [rows] = judge.logprobs([(*prompt, *choice.ids)])
            outputs = rows[len(prompt) - 1 : -1]
            [logprobs] = choice.logprobs
            expected = outputs[np.arange(OUTPUT), choice.ids]
            assert np.abs(np.array(logprobs["token_logprobs"]) - expected).max() < TOLERANCE
            if not stream.body["temperature"] and "logit_bias" not in stream.body:
                assert (outputs.max(1) - expected).max() <= 2 * TOLERANCE


@pytest.mark.long(every=20)
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "name",
    [
        "gemma4-inputs-of-layers-and-shared-kv",
        *(name for name in NEW if name != "gemma4-inputs-of-layers-and-shared-kv"),
        "qwen3-next",
        *(
            pytest.param(name, marks=pytest.mark.long(extended=True))
            for name in ("lfm2-short-convolutions", "qwen3.5", *OTHERS)
        ),
    ],
)
async def test_streams_survive_a_kill(name: str, tmp_path: Path) -> None:
    kind, fields = SHAPES[name]
    reference = write(kind, with_vocabulary(fields), tmp_path / "model", len(name))
    write_tokenizer(tmp_path / "model")
    args = [
        str(tmp_path / "model"), "--dtype", "float32", "--deterministic", "--block-size", "8", "--max-model-len", "256",
        "--max-num-seqs", "8", "--max-num-batched-tokens", "32", "--num-speculative-tokens", "3",
    ]  # fmt: skip
    with ServerProcess(args, tmp_path) as server:
        undisturbed = await answers(server, bodies())
        join_logprobs(undisturbed)
        judged(reference, undisturbed)
        pid = await ready_pid(server)
        async with open_client(server) as client:
            # Nothing is found that the calls before have computed.
            streams = [Stream({**body, "cache_salt": "again"}) for body in bodies()]
            running = asyncio.gather(*(stream.run(client) for stream in streams))
            await asyncio.gather(*(stream.reaches(5) for stream in streams))
            os.kill(pid, signal.SIGKILL)
            assert sum(not stream.done for stream in streams) > 3
            found = await running
        join_logprobs(found)
        check(undisturbed, found, name)
        assert server.metric("cohort_requests_resumed_total") > 3
        assert server.metric("cohort_kv_blocks_used") == 0
