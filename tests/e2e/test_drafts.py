"""Drafts change no token: the same calls with and without them, of every kind, with preemption, prefix hits and kills between."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from safetensors.torch import load_file, save_file

from engine.config import EngineConfig
from engine.core.engine import EngineCore
from engine.policies.draft_length import DraftLengths
from engine.request import RequestContext
from engine.text.generation import TextEngine, TextRequest
from engine.text.tokenizer import Tokenizer
from executors.contract import ExecutorConfig, ExecutorMemoryConfig, OptimizationConfig, SamplingParams
from executors.process import connect
from executors.tiny import weights_dir
from tests.e2e.server_process import ServerProcess
from tests.executors.llm.models import SHAPES, write
from tests.executors.llm.spec.mtp_heads import with_head
from tests.metrics_text import without_model
from tests.tiers import sweep
from tests.tiny_model import NUMBERS_PER_TOKEN

pytestmark = [pytest.mark.timeout(600)]

TOKENIZER = Tokenizer.load(weights_dir())
POOL_TOKENS = 1600
WORDS = "abc xyz one two three count from to Ada Bob is the a red blue 7 12".split()
GRAMMARS = (
    {"type": "array", "items": {"enum": ["abc", "xyz", 7, None]}, "minItems": 3, "maxItems": 7},
    {"type": "object", "required": ["name"], "properties": {"name": {"type": "string", "maxLength": 8}}},
)


@pytest.fixture(scope="module")
def draft_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first layers of cohort-tiny: right often enough, and wrong often enough."""
    folder = tmp_path_factory.mktemp("draft")
    config = json.loads((weights_dir() / "config.json").read_text())
    layers = config["num_hidden_layers"] - 1
    config |= {
        "num_hidden_layers": layers,
        "max_window_layers": layers,
        "layer_types": ["full_attention"] * layers,
    }
    (folder / "config.json").write_text(json.dumps(config))
    kept = {
        name: tensor
        for name, tensor in load_file(weights_dir() / "model.safetensors").items()
        if not name.startswith("model.layers.") or int(name.split(".")[2]) < layers
    }
    save_file(kept, folder / "model.safetensors")
    return folder


@asynccontextmanager
async def served(draft: Path | None, pool_tokens: int, **limits: Any) -> AsyncIterator[EngineCore]:
    """An engine on the executor's process; with drafts it verifies all of them, whatever they cost."""
    per_token = 4 * NUMBERS_PER_TOKEN
    if draft is not None:
        layers = json.loads((draft / "config.json").read_text())["num_hidden_layers"]
        per_token += per_token * layers // (layers + 1)
    config = ExecutorConfig(
        "llm",
        model=str(weights_dir()),
        dtype="float32",
        max_num_seqs=8,
        memory=ExecutorMemoryConfig(kv_cache_memory_bytes=pool_tokens * per_token),
        optimization=OptimizationConfig(deterministic=True, draft_model=str(draft or "")),
        max_model_len=384,
    )
    core = EngineCore(
        connect(config, "process"),
        EngineConfig(
            max_num_seqs=8, max_num_batched_tokens=96, max_queue_wait=600, restart_pause=0.01, **limits
        ),
    )
    await core.start()
    assert core._scheduler is not None
    if "num_speculative_tokens" in limits:
        core._scheduler.policies.lengths = DraftLengths(limits["num_speculative_tokens"], draft is not None)
    try:
        yield core
    finally:
        await core.stop()


def calls(count: int, seed: int) -> list[TextRequest]:
    """Random calls of every kind."""
    rng = random.Random(seed)
    return [_call(rng) for _ in range(count)]


def _call(rng: random.Random) -> TextRequest:
    said = " ".join(rng.choice(WORDS) for _ in range(rng.choice((2, 8, 30))))
    text = f"<|im_start|>user\nRepeat: {said}<|im_end|>\n<|im_start|>assistant\n"
    if rng.random() < 0.4:  # many with one beginning
        text = (
            "<|im_start|>system\nYou answer with what you are asked for and nothing else.<|im_end|>\n" * 2
            + text
        )
    changes: dict[str, Any] = {}
    if rng.random() < 0.3:
        changes |= {"repetition_penalty": rng.choice((0.9, 1.2)), "frequency_penalty": rng.choice((0.0, 0.5))}
    if rng.random() < 0.2:
        changes |= {"presence_penalty": 0.4, "logit_bias": ((rng.randrange(900), 3.0),)}
    if rng.random() < 0.2:
        changes |= {"min_tokens": rng.randrange(1, 12)}
    if rng.random() < 0.4:
        changes |= {"logprobs": rng.choice((0, 3))}
    sampling = rng.choice(
        (
            SamplingParams(temperature=0.0),
            SamplingParams(temperature=1.0),
            SamplingParams(temperature=0.8, top_p=0.9),
            SamplingParams(temperature=1.3, top_k=20, min_p=0.02),
        )
    )
    grammar = None
    if rng.random() < 0.2:
        schema = {**rng.choice(GRAMMARS), "x-guidance": {"whitespace_flexible": False}}
        grammar = json.dumps({"grammars": [{"json_schema": schema}]})
        changes.pop("min_tokens", None)
        changes.pop("logit_bias", None)
    return TextRequest(
        RequestContext("drafts", 0.0),
        (tuple(TOKENIZER.encode(text)),),
        n=rng.choice((1, 1, 1, 2, 3)),
        max_tokens=rng.randrange(12, 60),
        sampling=replace(sampling, **changes),
        seed=rng.randrange(100),
        stop=tuple(rng.sample(WORDS, 2)) if rng.random() < 0.25 else (),
        ignore_eos=grammar is None and rng.random() < 0.4,
        grammar=grammar,
        prompt_logprobs=rng.choice((None, None, None, None, 2)),
        speculative=rng.random() < 0.95,
    )


async def answer(engine: TextEngine, call: TextRequest) -> dict[int, Any]:
    """What each choice said, with its logprobs and how it ended."""
    whole: dict[int, Any] = {}
    async with engine.start(call) as generation:
        async for delta in generation:
            one = whole.setdefault(
                delta.index, {"text": "", "ids": [], "logprobs": [], "prompt": None, "end": None}
            )
            one["text"] += delta.text
            one["ids"] += delta.token_ids
            one["logprobs"] += delta.logprobs or ()
            one["prompt"] = delta.prompt_logprobs or one["prompt"]
            one["end"] = delta.finish_reason or one["end"]
    return whole


async def answers(
    core: EngineCore, asked: list[TextRequest], at_once: int, kills: int = 0
) -> list[dict[int, Any]]:
    """All calls, so many at once; the executor is killed so many times meanwhile."""
    engine, room = TextEngine(core, TOKENIZER), asyncio.Semaphore(at_once)
    done = 0

    async def one(call: TextRequest) -> dict[int, Any]:
        nonlocal done
        async with room:
            got = await answer(engine, call)
        done += 1
        return got

    tasks = [asyncio.ensure_future(one(call)) for call in asked]
    for number in range(kills):
        while done < (number + 1) * len(asked) // (kills + 1):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        os.kill(core.executor.pid, signal.SIGKILL)  # type: ignore[attr-defined]
        while core.stats().epoch < number + 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return list(await asyncio.gather(*tasks))


async def _compare(draft: Path | None, count: int, kills: int) -> None:
    asked = calls(count, seed=count)
    async with served(None, 8192, prefix_caching=False) as core:
        expected = await answers(core, asked, at_once=4)
    speculation: dict[str, Any] = {"num_speculative_tokens": 4}
    if draft is not None:
        speculation["speculative_method"] = "draft_model"
    async with served(draft, POOL_TOKENS, **speculation) as core:
        got = await answers(core, asked, at_once=12, kills=kills)
        stats = core.stats()
        assert await core.drain(20)
        core.check_integrity()
    for number, (one, truth) in enumerate(zip(got, expected, strict=True)):
        assert one == truth, f"call {number}: {asked[number]}"
    drafts = stats.drafts
    assert stats.epoch == 1 + kills
    assert (
        drafts.num_draft_tokens > 5 * count and drafts.num_draft_tokens > drafts.num_accepted_tokens > count
    )
    assert count < 100 or (stats.preemptions > 0 and stats.prefix_hits > 0)


@pytest.mark.long
async def test_drafts_of_a_model_change_no_token(draft_model: Path) -> None:
    await _compare(draft_model, 24, kills=1)


@pytest.mark.long(extended=True)
@sweep(every=2)
@pytest.mark.parametrize("method", ["draft_model", "ngram"])
async def test_drafts_change_no_token_of_200_calls(method: str, draft_model: Path) -> None:
    await _compare(draft_model if method == "draft_model" else None, 200, kills=3)


@pytest.mark.long(extended=True)
def test_a_server_with_a_draft_model(draft_model: Path, tmp_path: Path) -> None:
    config = json.dumps({"model": str(draft_model), "num_speculative_tokens": 3})
    body = {"prompt": "abc xyz abc xyz", "max_tokens": 24, "temperature": 0, "return_token_ids": True}
    with ServerProcess(
        ["cohort-tiny", "--deterministic", "--dtype", "float32", "--speculative-config", config], tmp_path
    ) as server:
        said = [
            httpx.post(f"{server.url}/v1/completions", json=body | more, timeout=60).json()["choices"][0]
            for more in ({}, {"speculative": True}, {"speculative": False})
        ]
        assert said[0] == said[1] == said[2]
        metrics = without_model(server.get("/metrics").text)
    assert "cohort_spec_decode_num_draft_tokens_total " in metrics
    assert 'cohort_spec_decode_num_accepted_tokens_per_pos_total{position="2"}' in metrics


@pytest.mark.long(extended=True)
def test_a_server_with_an_mtp_head(tmp_path: Path) -> None:
    """Of a hybrid, which is used without a flag, and which a server that is to make no drafts says that it has."""
    kind, fields = SHAPES["qwen3.5"]
    plain = write(kind, {**fields, "vocab_size": 1024}, tmp_path / "plain", 1)
    model = with_head(plain, tmp_path / "model", right=0.02).path
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(weights_dir() / file, model)
    flags = [str(model), "--deterministic", "--dtype", "float32", "--max-model-len", "128"]
    body = {
        "prompt": "abc xyz abc xyz",
        "max_tokens": 40,
        "temperature": 0,
        "return_token_ids": True,
        "ignore_eos": True,
    }
    said, notes, codes = [], [], []
    for more in (
        [],
        ["--num-speculative-tokens", "0"],
        ["--speculative-config", json.dumps({"method": "qwen3_5_mtp", "num_speculative_tokens": 3})],
    ):
        with ServerProcess([*flags, *more], tmp_path) as server:
            answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).json()
            said.append(answer["choices"][0])
            notes.append(server.get("/v1/executors").text)
            asked = httpx.post(f"{server.url}/v1/completions", json={**body, "speculative": True}, timeout=60)
            codes.append(asked.status_code)
    assert said[0] == said[1] == said[2] and len(said[0]["token_ids"]) == 40
    assert ["the MTP head (15 tensors" in one for one in notes] == [False, True, False]
    # How many it verifies is a matter of pace: of a model so small perhaps none.
    assert codes == [200, 400, 200]


@pytest.mark.long(extended=True)
def test_a_draft_model_of_another_vocabulary_ends_the_start(tmp_path: Path) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    config = json.loads((weights_dir() / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 500}))
    process = ServerProcess(
        ["cohort-tiny", "--load-format", "dummy", "--speculative-config", json.dumps({"model": str(folder)})],
        tmp_path,
    )
    assert process.process.wait(60) == 2
    assert "its vocabulary has 500 tokens, the model's 1024" in process.log()
