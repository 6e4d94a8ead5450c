"""What drafts gain: a draft model and n-grams for one stream, and what they cost where the batch makes them a loss.

    python -m benchmarks.drafts model|ngram|batch-model|batch-ngram|lookup [--rounds 3] [--json FILE]

The engine runs in this process, the executor in its own, without HTTP. Rounds with and without drafts alternate on two engines
that are both loaded, and each figure is the median over the rounds.

The models are made here, with random weights: the layers of the model behind the first ones add little (`--tail`), so that the
draft model, which is those first layers, agrees with it as often as `--tail` lets it. Speeds depend on shapes alone.
For `model` the formula says (1 - a^(k+1)) / ((1 - a)(v + k c)): a is the chance that a draft is accepted if those before it were,
v the time of a step that verifies k drafts and c that of a forward of the draft model, both in units of a step without drafts.

`lookup`: microseconds that one look-up of n-grams takes, by the length of the sequence; no model.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import os
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.engine import generate
from engine.config import EngineConfig
from engine.core.engine import EngineCore
from engine.mailbox import Mailbox
from engine.policies.drafter import NgramDrafter
from engine.request import Request, RequestContext
from engine.sequence import Sequence
from executors.contract import ExecutorConfig, SamplingParams, UnifiedBatch, UnifiedOutput
from executors.process import connect
from server.system.gc_tuning import freeze_after_load

Result = dict[str, Any]
_GIB = 1 << 30
_VOCAB = 32_768
_LAYERS, _DRAFT_LAYERS = 28, 2
_SHAPE: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": _VOCAB, "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0, "max_position_embeddings": 8192, "attention_bias": False, "hidden_act": "silu",
    "tie_word_embeddings": True, "torch_dtype": "bfloat16",
}  # fmt: skip
"""Qwen3-0.6B with a vocabulary of 32k, so that the head is no larger a part of the draft model than it usually is."""


def write_models(folder: Path, tail: float) -> tuple[Path, Path]:
    """Write the model and its draft model. `tail` scales what the layers behind the draft model's add. Returns their folders."""
    import torch
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(0)

    def weight(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return (torch.randn(*shape, generator=generator) * 0.02 * scale).to(torch.bfloat16)

    hidden, inner, head = _SHAPE["hidden_size"], _SHAPE["intermediate_size"], _SHAPE["head_dim"]
    q, kv = head * _SHAPE["num_attention_heads"], head * _SHAPE["num_key_value_heads"]
    tensors = {"model.embed_tokens.weight": weight(_VOCAB, hidden)}
    tensors["model.norm.weight"] = torch.ones(hidden, dtype=torch.bfloat16)
    for index in range(_LAYERS):
        at, scale = f"model.layers.{index}.", 1.0 if index < _DRAFT_LAYERS else tail
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{at}{name}.weight"] = torch.ones(hidden, dtype=torch.bfloat16)
        for name in ("q_norm", "k_norm"):
            tensors[f"{at}self_attn.{name}.weight"] = torch.ones(head, dtype=torch.bfloat16)
        for name, shape in (("q_proj", (q, hidden)), ("k_proj", (kv, hidden)), ("v_proj", (kv, hidden))):
            tensors[f"{at}self_attn.{name}.weight"] = weight(*shape)
        tensors[f"{at}self_attn.o_proj.weight"] = weight(hidden, q, scale=scale)
        tensors[f"{at}mlp.gate_proj.weight"] = weight(inner, hidden)
        tensors[f"{at}mlp.up_proj.weight"] = weight(inner, hidden)
        tensors[f"{at}mlp.down_proj.weight"] = weight(hidden, inner, scale=scale)
    folders = []
    for name, layers in (("model", _LAYERS), ("draft", _DRAFT_LAYERS)):
        path = folder / name
        path.mkdir()
        (path / "config.json").write_text(json.dumps(_SHAPE | {"num_hidden_layers": layers}))
        kept = {
            key: tensor
            for key, tensor in tensors.items()
            if not key.startswith("model.layers.") or int(key.split(".")[2]) < layers
        }
        save_file(kept, path / "model.safetensors")
        folders.append(path)
    return folders[0], folders[1]


@dataclasses.dataclass(slots=True)
class Steps:
    """What the steps of an engine took that have no prompt in them, in seconds: (drafts verified, without drafting), and the
    forwards of the draft model."""

    verified: list[tuple[int, float]] = dataclasses.field(default_factory=list)
    rounds: int = 0
    drafting: float = 0.0
    beside_prompts: float = 0.0
    """Seconds that the draft model took in steps with prompts."""

    def median(self, least: int, most: int) -> float:
        """Median time of a step that verifies so many drafts; nan if there was none."""
        took = [seconds for drafts, seconds in self.verified if least <= drafts <= most]
        return statistics.median(took) if took else float("nan")


@contextlib.asynccontextmanager
async def engine(
    model: Path, draft: Path | None, max_num_seqs: int, **config: Any
) -> AsyncIterator[tuple[EngineCore, Steps]]:
    """A started engine, and what its steps take."""
    limits = ExecutorConfig("llm", str(model), max_num_seqs=max_num_seqs, max_model_len=4096)
    limits = dataclasses.replace(
        limits,
        memory=dataclasses.replace(limits.memory, kv_cache_memory_bytes=2 * _GIB),
        optimization=dataclasses.replace(limits.optimization, draft_model=str(draft or "")),
    )
    executor, steps = connect(limits), Steps()
    inner = executor.unified_decode

    async def timed(batch: UnifiedBatch) -> UnifiedOutput:
        began = time.perf_counter()
        output = await inner(batch)
        took = time.perf_counter() - began
        drafting = output.drafts.seconds if output.drafts else 0.0
        if batch.num_prompt_tokens:
            steps.beside_prompts += drafting
        else:
            steps.verified.append((int(batch.num_draft_tokens.sum()), took - drafting))
            steps.drafting += drafting
            steps.rounds += output.drafts.rounds if output.drafts else 0
        return output

    executor.unified_decode = timed  # type: ignore[method-assign]
    core = EngineCore(executor, EngineConfig(max_num_seqs=max_num_seqs, max_queue_wait=3600, **config))
    await core.start()
    freeze_after_load()
    try:
        yield core, steps
    finally:
        await core.stop()


def _cpu_seconds(core: EngineCore) -> float:
    """CPU time of both processes so far."""
    total = 0
    for pid in (os.getpid(), core.executor.pid):  # type: ignore[attr-defined]
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


async def _streams(core: EngineCore, prompts: list[np.ndarray], count: int) -> tuple[float, float]:
    """Seconds per token between the first and the last one of a stream, and CPU seconds per token of all."""
    before = _cpu_seconds(core)
    timed = await asyncio.gather(*(generate(core, prompt, count) for prompt in prompts))
    cpu = (_cpu_seconds(core) - before) / (count * len(prompts))
    return statistics.median((one.times[-1] - one.times[0]) / (count - 1) for one in timed), cpu


def _prompts(kind: str, number: int, round_: int) -> list[np.ndarray]:
    rng = np.random.default_rng(round_)
    prompts = [rng.integers(0, _VOCAB, 32) for _ in range(number)]
    return [np.tile(prompt, 4) for prompt in prompts] if kind == "ngram" else prompts


async def compare(
    models: tuple[Path, Path], kind: str, number: int, rounds: int, count: int, drafts: int
) -> Result:
    """A B A B: `number` streams without and with drafts."""
    with_model = kind != "ngram"
    speculation: dict[str, Any] = {"num_speculative_tokens": drafts}
    if with_model:
        speculation["speculative_method"] = "draft_model"
    seqs = max(number, 8)
    async with (
        engine(models[0], None, seqs) as (plain, plain_steps),
        engine(models[0], models[1] if with_model else None, seqs, **speculation) as (fast, steps),
    ):
        for core in (plain, fast):  # what is learned at first is no part of the figures
            await _streams(core, _prompts(kind, number, 999), count)
        before = dataclasses.replace(fast.stats().drafts, accepted_at=list(fast.stats().drafts.accepted_at))
        for one in (plain_steps, steps):
            one.verified.clear()
        steps.rounds, steps.drafting, steps.beside_prompts = 0, 0.0, 0.0
        took: dict[str, list[tuple[float, float]]] = {"without": [], "with": []}
        for round_ in range(rounds):
            for name, core in (("without", plain), ("with", fast)):
                took[name].append(await _streams(core, _prompts(kind, number, round_), count))
        return _result(kind, number, took, fast, before, plain_steps, steps)


def _result(
    kind: str, number: int, took: dict[str, list[tuple[float, float]]], fast: EngineCore, before: Any,
    plain_steps: Steps, steps: Steps,
) -> Result:  # fmt: skip
    wall = {name: statistics.median(one for one, _ in of) for name, of in took.items()}
    cpu = {name: statistics.median(one for _, one in of) for name, of in took.items()}
    stats = fast.stats().drafts
    proposals = stats.num_drafts - before.num_drafts
    tokens = stats.num_draft_tokens - before.num_draft_tokens
    accepted = stats.num_accepted_tokens - before.num_accepted_tokens
    result: Result = {
        "kind": kind, "streams": number, "speedup": wall["without"] / wall["with"],
        "cpu_per_token": cpu["with"] / cpu["without"], "ms_per_token": {n: 1e3 * s for n, s in wall.items()},
        "proposals": proposals, "tokens": tokens, "accepted": accepted, "drafting_s": steps.drafting,
        "drafting_beside_prompts_s": steps.beside_prompts,
        "rounds": {n: [[1e3 * w, 1e3 * c] for w, c in of] for n, of in took.items()},
    }  # fmt: skip
    if proposals and number == 1:
        k = tokens / proposals
        # Judged are those accepted, and of each proposal that was not accepted as a whole the first wrong one.
        last = stats.accepted_at[max(0, round(k) - 1)] - before.accepted_at[max(0, round(k) - 1)]
        a = accepted / max(1, accepted + proposals - min(proposals, last))
        step = plain_steps.median(0, 0)
        v = steps.median(max(1, int(k)), int(k) + 1) / step
        c = steps.drafting / steps.rounds / step if steps.rounds else 0.0
        gained = (1 - a ** (k + 1)) / (1 - a) if a < 1 else k + 1
        result |= {"a": a, "k": k, "v": v, "c": c, "step_ms": 1e3 * step, "predicted": gained / (v + k * c)}
    return result


def lookup(rounds: int) -> list[Result]:
    """Time of `NgramDrafter.propose` after each new token, for sequences of several lengths."""
    found, rng = [], np.random.default_rng(0)
    for length in (1_000, 10_000, 100_000):
        took = []
        for _ in range(rounds):
            prompt = rng.integers(0, 2_000, length).astype(np.int32)
            context = RequestContext("bench", 0.0)
            request = Request(context, prompt, SamplingParams(temperature=0.0), 2_000)
            seq, drafter = Sequence(1, request, Mailbox(), 0), NgramDrafter(5)
            while drafter._indexes.get(seq) is None or drafter._indexes[seq].num_tokens < length:
                drafter.propose(seq)
            tokens = rng.integers(0, 2_000, 1_000).tolist()
            for token in tokens:
                seq.commit([token])
                began = time.perf_counter()
                drafter.propose(seq)
                took.append(1e6 * (time.perf_counter() - began))
        found.append({"kind": "lookup", "tokens": length, "microseconds": statistics.median(took)})
        print(json.dumps(found[-1]), flush=True)
    return found


async def _main(args: argparse.Namespace) -> list[Result]:
    found = []
    with tempfile.TemporaryDirectory() as folder:
        models = write_models(Path(folder), args.tail)
        for kind, number in {
            "model": [("model", 1)],
            "ngram": [("ngram", 1)],
            "batch-model": [("model", 32)],
            "batch-ngram": [("ngram", 32)],
        }[args.what]:
            found.append(await compare(models, kind, number, args.rounds, args.tokens, args.drafts))
            print(json.dumps(found[-1], indent=1), flush=True)
    return found


def main() -> None:
    """Run what the arguments say."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("model", "ngram", "batch-model", "batch-ngram", "lookup"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=128, help="output tokens of a stream")
    parser.add_argument("--drafts", type=int, default=5, help="num_speculative_tokens")
    parser.add_argument(
        "--tail", type=float, default=0.02, help="what the layers behind the draft model's add"
    )
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    found = lookup(args.rounds) if args.what == "lookup" else asyncio.run(_main(args))
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
