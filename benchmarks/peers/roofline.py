"""What a workload takes at least on a machine that reads so many bytes and does so many operations a second.

Every weight is read once a step, every key and value once for each token that attends to it, every row is multiplied once
with every matrix, and rows that are sampled with lm_head besides. The longer of reading and multiplying is the least time:
whatever the schedule, and nothing is counted for attention's products, sampling, HTTP or the client. Prompts that share a
beginning compute it once. The roofline model: Williams, Waterman and Patterson, 2009.
"""

from __future__ import annotations

from benchmarks.peers.models import weight_bytes
from benchmarks.shapes import SHAPES, matrix_flops
from server.commands.bench.workloads import Workload

_BYTES = 2
"""of a bfloat16 number"""


def least_seconds(workload: Workload, shape: str, limits: dict[str, float]) -> float:
    """Seconds that all requests of the workload take at least; `limits` as of `limits.measured`."""
    return max(
        bytes_read(workload, shape) / (limits["read_gb_per_s"] * 1e9),
        operations(workload, shape) / (limits["bf16_gflop_per_s"] * 1e9),
    )


def steps(workload: Workload) -> int:
    """Steps at least: the token of a step is input of the next, and `concurrency` sequences run side by side."""
    return -(-workload.requests // workload.concurrency) * workload.output_tokens


def bytes_read(workload: Workload, shape: str) -> float:
    """Weights and KV cache, all steps together. Of the KV only what decoding reads: prompts keep their own in registers."""
    prompt = workload.shared_tokens + workload.prompt_tokens
    decoded = workload.output_tokens - 1
    positions = workload.requests * decoded * (prompt + decoded / 2)
    return steps(workload) * weight_bytes(shape) + positions * _kv_bytes(shape)


def operations(workload: Workload, shape: str) -> float:
    """Floating-point operations of the linear layers; lm_head for rows whose token is drawn."""
    drawn = workload.requests * workload.output_tokens
    prompts = workload.shared_tokens + workload.requests * workload.prompt_tokens
    # The last token of an answer is never an input.
    rows = prompts + workload.requests * (workload.output_tokens - 1)
    return (
        matrix_flops(shape, rows) + 2.0 * drawn * SHAPES[shape]["hidden_size"] * SHAPES[shape]["vocab_size"]
    )


def _kv_bytes(shape: str) -> int:
    """Of one position in all layers, keys and values."""
    of = SHAPES[shape]
    return 2 * _BYTES * int(of["num_hidden_layers"] * of["num_key_value_heads"] * of["head_dim"])
