"""Layers with states on a CPU: one call for all layers against torch around the kernels, and the delta rule alone.

    python -m benchmarks.states [--shape qwen3.5-0.8b] [--quantization int8] [--rounds 3] [--json FILE]

Steps of the layers without lm_head, in this process: one stream, 16 streams, and a prompt of 2,048 tokens. Weights are random.
Ways alternate, and each figure is the median of the rounds, in milliseconds a step. `torch`: layers by torch, linear layers and
attention by the kernels.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from benchmarks.shapes import SHAPES, write_shape
from executors.contract import ExecutorConfig, OptimizationConfig
from executors.contract.status import StateLayout
from executors.kernels.cpu import cpu_kernels
from executors.kernels.scan import DeltaKernel, DeltaPlaces, LayerSlots, StateStep
from executors.llm.attention.cpu_attention import CpuAttention
from executors.llm.checkpoint.loader import load_model
from executors.llm.kernel_support.kernel_choice import fuse
from executors.llm.memory.kv_cache import KvCache
from executors.llm.memory.state_cache import StateCache
from executors.llm.model.api import ForwardInput
from executors.llm.model.caches import kv_group, state_group
from executors.llm.model.decoder import Decoder
from executors.llm.model.layers.gated_delta import GatedDelta
from executors.llm.model.layers.short_convolution import ShortConvolution
from executors.llm.step_arrays import StateSlots, StepArrays

STEPS = {"one stream": (1, 1), "16 streams": (16, 1), "a prompt of 2,048": (1, 2048)}
"""Items of a step, and tokens of each."""
_LENGTH, _BLOCK = 2304, 16
_WARM = 3


class Steps:
    """Steps of a decoder over memory of its own."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder, self.attention = decoder, CpuAttention()
        sequences, blocks = 16, _LENGTH // _BLOCK
        self.cache = KvCache(kv_group(decoder), sequences * blocks, _BLOCK)
        self.tables = np.arange(sequences * blocks, dtype=np.int32).reshape(sequences, blocks)
        spec = state_group(decoder)
        if spec is None:
            raise SystemExit("the shape has no layers with states")
        self.states = StateCache(spec, StateLayout(spec.bytes_per_slot(), sequences, 1))

    def run(self, items: int, tokens: int, begin: int) -> float:
        """Compute a step of items that begin at a position; return its seconds."""
        counts, begins = np.full(items, tokens), np.full(items, begin)
        ids = np.random.default_rng(begin).integers(1000, 60000, items * tokens)
        began = time.perf_counter()
        step = StepArrays(ids, counts, begins, self.tables[:items])
        slots = np.arange(items)
        step.states = StateSlots(slots if begin else np.full(items, -1), slots, np.empty((0, 3), np.int64))
        attend, states = self.attention.begin(step, self.cache), self.states.step(step)
        last = torch.from_numpy(np.cumsum(counts) - 1)
        rows = torch.from_numpy(step.positions)
        self.decoder.unified_forward(ForwardInput(torch.from_numpy(ids), rows, attend, last, states=states))
        return time.perf_counter() - began


def ways(decoder: Decoder) -> dict[str, Callable[[], None]]:
    """Return what makes the decoder compute in each way."""
    mixers = [
        layer.mixer for layer in decoder.layers if isinstance(layer.mixer, (GatedDelta, ShortConvolution))
    ]
    made = [mixer.by_kernels for mixer in mixers]

    def in_one_call() -> None:
        for mixer, kernel in zip(mixers, made, strict=True):
            mixer.by_kernels = kernel  # type: ignore[assignment]
        fuse(CpuAttention(), decoder)

    def by_torch() -> None:
        decoder._fused = None
        for mixer in mixers:
            mixer.by_kernels = None

    return {"one call": in_one_call, "torch": by_torch}


def compare(shape: str, quantization: str | None, rounds: int) -> dict[str, dict[str, float]]:
    """Return milliseconds a step, by step and way."""
    with tempfile.TemporaryDirectory() as folder:
        path = write_shape(shape, Path(folder))
        optimization = OptimizationConfig(quantization=quantization)
        config = ExecutorConfig(
            "llm", str(path), load_format="dummy", max_model_len=_LENGTH, optimization=optimization
        )
        model = load_model(config, lambda *report: None).model
    assert isinstance(model, Decoder)
    model.prepare(_LENGTH)
    steps, each = Steps(model), ways(model)
    found: dict[str, dict[str, float]] = {}
    for name, (items, tokens) in STEPS.items():
        times: dict[str, list[float]] = {way: [] for way in each}
        for _ in range(rounds):
            for way, use in each.items():
                use()
                if tokens > 1:
                    times[way].append(steps.run(items, tokens, 0))
                    continue
                steps.run(items, 64, 0)
                taken = [steps.run(items, 1, 64 + i) for i in range(_WARM + 8)][_WARM:]
                times[way].append(statistics.median(taken))
        found[name] = {way: 1e3 * statistics.median(taken) for way, taken in times.items()}
    return found


def rule_alone(
    rounds: int, layers: int = 18, heads: int = 16, size: int = 128, tokens: int = 256
) -> dict[str, float]:
    """Return milliseconds of one processor a token of the delta rule, convolution and norm included: of a prompt, and of steps
    of one token whose states are read from memory and written there."""
    kernels, channels = cpu_kernels(), 3 * heads * size
    places = DeltaPlaces(
        [(0, 0, channels)],
        [(h * size, (heads + h) * size) for h in range(heads)],
        [
            (h * size, (heads + h) * size, (2 * heads + h) * size, (3 * heads + h) * size, h, heads + h)
            for h in range(heads)
        ],
    )
    zeros, ones = torch.zeros(heads), torch.ones(size)
    kernel = DeltaKernel(
        kernels, places, size, size, torch.full((channels, 4), 0.3), zeros, zeros, ones, 1e-6
    )
    slots = LayerSlots([torch.zeros(1, 3 * channels + heads * size * size) for _ in range(layers)])
    nothing, slot = np.empty(0, np.int64), np.zeros(1, np.int64)
    found, before = {}, torch.get_num_threads()
    torch.set_num_threads(1)
    for name, rows in (("of a prompt", tokens), ("of a step of one", 1)):
        step, taken = StateStep(slots, [rows], slot, slot, [], nothing), []
        for _ in range(rounds * (8 if rows == 1 else 1)):
            x, rates = torch.randn(rows, 4 * heads * size), torch.randn(rows, 2 * heads)
            parts = [(x.clone(), rates.clone()) for _ in range(layers)]
            began = time.thread_time()
            for layer, (row, rate) in enumerate(parts):
                kernel(row, rate, step, layer, torch.bfloat16)
            taken.append((time.thread_time() - began) / rows)
        found[name] = 1e3 * statistics.median(taken)
    torch.set_num_threads(before)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--shape", default="qwen3.5-0.8b", choices=[n for n in SHAPES if "layer_types" in SHAPES[n]]
    )
    parser.add_argument("--quantization", choices=["int8", "int4"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    result = {
        "steps": compare(options.shape, options.quantization, options.rounds),
        "delta rule": rule_alone(options.rounds),
    }
    print(json.dumps(result, indent=2))
    if options.json is not None:
        options.json.write_text(json.dumps(result))


if __name__ == "__main__":
    main()
