"""What a workload takes at least on a machine that reads so many bytes and does so many operations a second.

Every weight is read once a step, every key and value once for each token that attends to it, every row is multiplied once
with every matrix, and rows that are sampled with lm_head besides. The longer of reading and multiplying is the least time:
whatever the schedule, and nothing is counted for attention's products, sampling, HTTP or the client. Prompts that share a
beginning compute it once. The roofline model: Williams, Waterman and Patterson, 2009.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.peers.models import weight_bytes
from benchmarks.shapes import SHAPES, matrix_flops
from clients.bench.workloads import Workload
from executors.gguf.file import GgufFile, read_gguf

_READ_BY_ROW = ("token_embd.weight", "position_embd.weight", "per_layer_token_embd.weight")
_BYTES = 2
"""of a number in the KV cache, and in a checkpoint in bfloat16"""


@dataclass(frozen=True, slots=True)
class Cost:
    """What a model takes: `weight_bytes` that each step reads, operations of one row in the layers' matrices and in lm_head,
    bytes of one position's keys and values in all layers. `rates`: which of the measured rates bound its products, of which
    the highest counts. `state_bytes`: what a sequence's states take in a step, read and written."""

    weight_bytes: float
    layer_operations: float
    head_operations: float
    kv_bytes: float
    rates: tuple[str, ...] = ("bf16_gflop_per_s",)
    state_bytes: float = 0.0

    def reading(self, num_bytes: float, limits: Mapping[str, float]) -> float:
        """Seconds to read so many bytes; `limits` as of `limits.measured`."""
        return num_bytes / (limits["read_gb_per_s"] * 1e9)

    def multiplying(self, operations: float, limits: Mapping[str, float]) -> float:
        """Seconds of so many operations."""
        return operations / (max(limits[name] for name in self.rates) * 1e9)


def of_shape(shape: str) -> Cost:
    """A shape of benchmarks/shapes.py with weights in bfloat16."""
    of = SHAPES[shape]
    return Cost(
        weight_bytes(shape),
        matrix_flops(shape, 1),
        2.0 * of["hidden_size"] * of["vocab_size"],
        2 * _BYTES * int(of["num_hidden_layers"] * of["num_key_value_heads"] * of["head_dim"]),
    )


def of_gguf(path: Path) -> Cost:
    """A GGUF file: the bytes of its tensors as they are stored, and keys and values of 16 bits.

    Of experts, those that one token uses. An embedding beside a head of its own is read by row, as are inputs of layers: their
    bytes do not count. Nor do keys and values in a model with windows, most of whose layers read few. Products may be of
    integers.

    Raises ConfigError where the file is no GGUF file.
    """
    file = read_gguf(path, arrays=False)
    arch = file.metadata["general.architecture"]
    head = "output.weight" if "output.weight" in file.tensors else "token_embd.weight"
    used = file.metadata.get(f"{arch}.expert_used_count", 1) / file.metadata.get(f"{arch}.expert_count", 1)
    read = multiplied = 0.0
    for name, tensor in file.tensors.items():
        if name in _READ_BY_ROW and name != head:
            continue
        share = used if "_exps." in name else 1.0
        read += share * tensor.num_bytes
        if len(tensor.shape) > 1 and name != head:
            multiplied += share * 2.0 * float(np.prod(tensor.shape, dtype=float))
    return Cost(
        read,
        multiplied,
        2.0 * float(np.prod(file.tensors[head].shape, dtype=float)),
        _kv_bytes(file, arch),
        ("bf16_gflop_per_s", "int8_gop_per_s"),
        _state_bytes(file, arch),
    )


def _kv_bytes(file: GgufFile, arch: str) -> float:
    def told(name: str, default: int = 0) -> int:
        return int(file.metadata.get(f"{arch}.attention.{name}", default))

    if told("sliding_window"):
        return 0.0
    size = told("key_length") + told("value_length")
    if not size:
        size = 2 * int(file.metadata[f"{arch}.embedding_length"]) // told("head_count")
    # One number, or one for each layer.
    heads = file.metadata.get(
        f"{arch}.attention.head_count_kv", file.metadata[f"{arch}.attention.head_count"]
    )
    layers = int(file.metadata[f"{arch}.block_count"])
    # Qwen3.5 has one number for all, and keys in the layers with attention alone.
    attends = [f"blk.{layer}.ssm_conv1d.weight" not in file.tensors for layer in range(layers)]
    return float(_BYTES * size * (np.broadcast_to(heads, layers) * attends).sum())


def _state_bytes(file: GgufFile, arch: str) -> float:
    """A step of one token reads and writes the last inputs of convolutions and the delta rule's matrices, in float32."""

    def told(name: str) -> int:
        return int(file.metadata.get(f"{arch}.{name}", 0))

    numbers = 0
    for name, tensor in file.tensors.items():
        if name.endswith("ssm_conv1d.weight"):
            # [channels, kernel]; keys and values are of one size.
            size = told("ssm.state_size")
            numbers += tensor.shape[0] * (tensor.shape[1] - 1) + told("ssm.inner_size") * size
        elif name.endswith("shortconv.conv.weight"):
            numbers += tensor.shape[0] * (tensor.shape[1] - 1)
    return 2.0 * 4 * numbers


def least_seconds(workload: Workload, cost: Cost, limits: Mapping[str, float]) -> float:
    """Seconds that all requests of the workload take at least; `limits` as of `limits.measured`."""
    return max(
        cost.reading(bytes_read(workload, cost), limits),
        cost.multiplying(operations(workload, cost), limits),
    )


def least_step(workload: Workload, cost: Cost, limits: Mapping[str, float]) -> float:
    """Seconds of the mean decoding step: reading alone, for what prompts multiply is in no step between two tokens."""
    return cost.reading(bytes_read(workload, cost), limits) / steps(workload)


def least_first_token(workload: Workload, cost: Cost, limits: Mapping[str, float]) -> float:
    """Seconds from a prompt that is alone to its first token."""
    prompt = workload.shared_tokens + workload.prompt_tokens
    return max(
        cost.reading(cost.weight_bytes, limits),
        cost.multiplying(prompt * cost.layer_operations + cost.head_operations, limits),
    )


def steps(workload: Workload) -> int:
    """Steps at least: the token of a step is input of the next, and `concurrency` sequences run side by side."""
    return -(-workload.requests // workload.concurrency) * workload.output_tokens


def bytes_read(workload: Workload, cost: Cost) -> float:
    """Weights, states and KV cache, all steps together. Of the KV only what decoding reads: prompts keep theirs in registers."""
    prompt = workload.shared_tokens + workload.prompt_tokens
    decoded = workload.output_tokens - 1
    positions = workload.requests * decoded * (prompt + decoded / 2)
    states = workload.requests * decoded * cost.state_bytes
    return steps(workload) * cost.weight_bytes + positions * cost.kv_bytes + states


def operations(workload: Workload, cost: Cost) -> float:
    """Operations of the linear layers; lm_head for rows whose token is drawn."""
    drawn = workload.requests * workload.output_tokens
    prompts = workload.shared_tokens + workload.requests * workload.prompt_tokens
    # The last token of an answer is never an input.
    rows = prompts + workload.requests * (workload.output_tokens - 1)
    return rows * cost.layer_operations + drawn * cost.head_operations
