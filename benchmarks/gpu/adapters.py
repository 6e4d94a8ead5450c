"""LoRA adapters on the device: eight of them and the model alone in one batch against each merged model, and what they cost.

Agreement is of a small model in float32: the engine with graphs, overlap and mixed batches against eager forwards of the merged
models over torch's attention. Costs are of Qwen3-0.6B with random weights, from one start: tokens a second of 32 streams before
an adapter is loaded, with eight of which none is used, and with all of them used in turn; and of one stream without an
adapter and with one. What room for adapters costs before any is loaded is not in them.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import save_file

from benchmarks.gpu import shapes
from benchmarks.gpu.engine import check_counts, facts, limits_of, random_prompts
from benchmarks.gpu.part import Failed, Found, Options
from benchmarks.gpu.serving import Crowd, Setup, engine, settled
from engine.core.engine import EngineCore
from engine.observer import Observer, Observers
from engine.sequence import Sequence as EngineSequence
from executors.llm.model.config import read_config
from executors.llm.model.decoder import Decoder
from executors.lora import PackedLora, pack
from tests.gpu.agreement import compare

ADAPTERS = 8
RANKS = (1, 8, 16, 64, 3, 32, 2, 16)
"""Of the agreement; the costs are of RANK alone."""
RANK = 16
LEAST_ACTIVE, LEAST_IDLE = 0.85, 0.98
"""Shares of the speed without LoRA that are to be reached, with all adapters used and with none."""
NOTE = "adapters: cohort-triton"
_SCALE = 2.0
_ROUNDS = 4
"""The first is not counted: kernels are compiled in it."""
Matrices = dict[str, tuple[torch.Tensor, torch.Tensor]]


def agree(options: Options, found: Found) -> None:
    """Raises Failed where tokens differ, or where torch computes in place of the kernels."""
    with tempfile.TemporaryDirectory() as folder:
        found(asyncio.run(_agreement(options, Path(folder))))


def run(options: Options, found: Found) -> None:
    """Costs. Raises Failed where torch computes in place of the kernels, or an adapter is not loaded when it is to be."""
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_costs(options, found, Path(folder)))


# -- agreement ---------------------------------------------------------------------------------------------------------------


async def _agreement(options: Options, folder: Path) -> dict[str, Any]:
    count, tokens = (3, 4) if options.tiny else (ADAPTERS, 60)
    base = folder / "base"
    weights = write_model(base)
    made = [adapter(base, folder / f"a{i}", rank, i) for i, rank in enumerate(RANKS[:count])]
    order = [*range(count), None, 0, *range(count), None]
    prompts = random_prompts(len(order), 9 if options.tiny else 40, 1, shapes.TINY)
    setup = Setup(shapes.TINY, max_num_seqs=24, model=base, max_loras=count + 1)
    async with engine(options, setup) as core:
        digests = [await known(core, packed) for packed, _ in made]
        await settled(core)
        asked = [None if i is None else digests[i] for i in order]
        fast = await _tokens(core, prompts, tokens, asked)
        notes = list(core.executor.status().notes)
    check_kernels(options, notes)
    expected: dict[int, list[int]] = {}
    for which in (None, *range(count)):
        path = base if which is None else folder / f"merged{which}"
        if which is not None:
            _write(path, merged(weights, made[which][1]))
        plain = Setup(shapes.TINY, max_num_seqs=24, enforce_eager=True, backend="torch", model=path)
        rows = [row for row, one in enumerate(order) if one == which]
        async with engine(replace(options, mode="inline"), plain) as core:
            alone = await _tokens(core, [prompts[row] for row in rows], tokens, [None] * len(rows))
        expected |= dict(zip(rows, alone, strict=True))
    return {"adapter_notes": notes, **compare(fast, [expected[row] for row in range(len(order))])}


async def _tokens(
    core: EngineCore, prompts: Sequence[Sequence[int]], tokens: int, adapters: Sequence[str | None]
) -> list[list[int]]:
    crowd = Crowd(core, keep=True)
    crowd.ask(prompts, [tokens] * len(prompts), [0.0] * len(prompts), adapters)
    await crowd.read()
    return crowd.tokens


async def known(core: EngineCore, packed: PackedLora) -> str:
    """Make an adapter known to the engine; its digest."""
    await core.add_adapter(packed.digest, str(packed.path))
    return packed.digest


def write_model(folder: Path) -> dict[str, torch.Tensor]:
    """A checkpoint of the smallest shape with random weights in float32; its tensors."""
    folder.mkdir()
    decoder = Decoder(read_config(shapes.write(shapes.TINY, folder)), torch.float32, torch.device("meta"))
    drawn, shared = torch.Generator().manual_seed(0), decoder.head_norms()
    made = {}
    for name, target in decoder.parameters().items():
        size = tuple(target.shape[1:] if name in shared else target.shape)
        numbers = torch.randn(size, generator=drawn)
        made[name] = 1 + 0.1 * numbers if len(size) == 1 else numbers * 1.5 / size[-1] ** 0.5
    save_file(made, folder / "model.safetensors", {"format": "pt"})
    return made


def _write(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    folder.mkdir()
    shapes.write(shapes.TINY, folder)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def merged(weights: dict[str, torch.Tensor], matrices: Matrices) -> dict[str, torch.Tensor]:
    """The model's tensors with an adapter in them."""
    added = {f"{name}.weight": _SCALE * (b @ a) for name, (a, b) in matrices.items()}
    return {name: tensor + added.get(name, 0.0) for name, tensor in weights.items()}


def adapter(
    model: Path, folder: Path, rank: int, seed: int, dtype: torch.dtype = torch.float32
) -> tuple[PackedLora, Matrices]:
    """A random adapter of all linear layers of the model whose config.json is in `model`, packed, and its A and B by module."""
    decoder, drawn = (
        Decoder(read_config(model), torch.float32, torch.device("meta")),
        torch.Generator().manual_seed(seed),
    )
    served = {id(linear) for layer in decoder.layers for linear in layer.adapted_linears()}
    made: Matrices = {}
    tensors: dict[str, torch.Tensor] = {}
    for name, place in decoder.places().items():
        if place.linear is None or id(place.linear) not in served or not name.endswith(".weight"):
            continue
        outputs, inputs = place.tensor.shape
        a = (torch.randn(rank, inputs, generator=drawn) / inputs**0.5).to(dtype)
        b = (torch.randn(outputs, rank, generator=drawn) / rank**0.5).to(dtype)
        module = name.removesuffix(".weight")
        made[module] = a, b
        tensors |= {
            f"base_model.model.{module}.lora_{part}.weight": one
            for part, one in zip("AB", (a, b), strict=True)
        }
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors", {"format": "pt"})
    fields = {"peft_type": "LORA", "r": rank, "lora_alpha": _SCALE * rank, "target_modules": sorted(made)}
    (folder / "adapter_config.json").write_text(json.dumps(fields), "utf-8")
    return pack(folder, folder, rank), made


# -- costs -------------------------------------------------------------------------------------------------------------------


async def _costs(options: Options, found: Found, folder: Path) -> None:
    shape = shapes.TINY if options.tiny else shapes.SMALL
    streams, tokens = (4, 8) if options.tiny else (32, 256)
    limits = limits_of(options)
    base = folder / "base"
    base.mkdir()
    shapes.write(shape, base)
    dtype = torch.float32 if options.tiny else torch.bfloat16
    made = [
        adapter(base, folder / f"a{i}", RANK, i, dtype)[0] for i in range(2 if options.tiny else ADAPTERS)
    ]
    setup = Setup(
        shape, max_num_seqs=streams, prefix_caching=False, max_loras=len(made) + 1, max_lora_rank=RANK
    )
    async with engine(options, setup) as core:
        about = {"streams": streams, "adapters": len(made), "rank": RANK}
        found({**about, "capture_seconds": await settled(core)})
        check_kernels(options, core.executor.status().notes)
        off = await _rates(core, shape, streams, tokens, [None])
        off_alone = await _rates(core, shape, 1, tokens, [None])
        found({"tokens_per_s_without_lora": off, "tokens_per_s_of_one_without_lora": off_alone})
        check_loaded(core, 0)
        digests = [await known(core, packed) for packed in made]
        # Adapters are loaded for their first requests.
        await _round(core, shape, len(made), 4, 0, digests)
        check_loaded(core, len(made))
        idle = await _rates(core, shape, streams, tokens, [None])
        found({"tokens_per_s_idle": idle, "idle_share_of_speed": idle / off})
        used = Used()
        cast(Observers, core.observer).add(used)
        active = await _rates(core, shape, streams, tokens, digests)
        check_used(used.requests, _ROUNDS * streams)
        found({"tokens_per_s_active": active, "active_share": active / off})
        alone = await _rates(core, shape, 1, tokens, digests)
        check_loaded(core, len(made))
        found({"tokens_per_s_of_one_active": alone, "one_active_share": alone / off_alone})
        about = facts(core, limits)
        found({"reached": active >= LEAST_ACTIVE * off and idle >= LEAST_IDLE * off, **about})
        if options.device != "cpu" and about["fell_back"]:
            raise Failed(f"an executor that fell back was measured: {about['fell_back']}")


def check_kernels(options: Options, notes: Sequence[str]) -> None:
    """Raises Failed where something else than Cohort's kernels computes adapters on a GPU."""
    if options.device != "cpu" and NOTE not in notes:
        raise Failed(f"no note of the executor is {NOTE!r}: {'; '.join(notes)}")


class Used(Observer):
    """Counts the requests that ended and had an adapter."""

    requests = 0

    def finished(self, seq: EngineSequence, now: float) -> None:
        """See `Observer`."""
        self.requests += seq.request.adapter is not None


def check_used(requests: int, count: int) -> None:
    """Raises Failed unless so many requests had an adapter: streams without one are as fast as ever."""
    if requests != count:
        raise Failed(f"{requests} of {count} requests had an adapter")


def check_loaded(core: EngineCore, count: int) -> None:
    """Raises Failed unless so many adapters were loaded, and none of them gave way to another."""
    if (moves := core.adapter_moves) != (count, 0):
        raise Failed(f"{moves[0]} adapters were loaded and {moves[1]} gave way, not {count} and 0")


async def _rates(
    core: EngineCore, shape: str, streams: int, tokens: int, digests: Sequence[str | None]
) -> float:
    """Median of output tokens a second, from the last of the first tokens to the end; streams have the adapters in turn."""
    rates = []
    for number in range(_ROUNDS):
        crowd = await _round(core, shape, streams, tokens, number, digests)
        rates.append(streams * (tokens - 1) / max(max(crowd.last) - max(crowd.first), 1e-9))
    return statistics.median(rates[1:])


async def _round(
    core: EngineCore, shape: str, streams: int, tokens: int, number: int, digests: Sequence[str | None]
) -> Crowd:
    adapters = [digests[i % len(digests)] for i in range(streams)]
    crowd = Crowd(core)
    crowd.ask(random_prompts(streams, 32, number, shape), [tokens] * streams, None, adapters)
    await crowd.read()
    check_counts(crowd, [tokens] * streams)
    return crowd
