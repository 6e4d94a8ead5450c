"""The models that are checked, as config.json without weights, and how long their work must take at least."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.shapes import SHAPES as NAMED

SMALL, LARGE, TINY = "qwen3-0.6b", "qwen3-8b", "tiny"
SHALLOW = "qwen3-0.6b, 4 layers"
"""For what has to be compared with a plain way that is slow."""
SHAPES: dict[str, dict[str, Any]] = {
    SMALL: NAMED[SMALL],
    SHALLOW: NAMED[SMALL] | {"num_hidden_layers": 4},
    LARGE: NAMED[SMALL]
    | {
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "tie_word_embeddings": False,
    },
    TINY: NAMED["qwen3-tiny"] | {"vocab_size": 256, "eos_token_id": 255, "torch_dtype": "float32"},
}


@dataclass(frozen=True, slots=True)
class Stored:
    """Bytes of a number: in the layers' weights, in lm_head, and in keys and values."""

    layers: int = 2
    head: int = 2
    kv: int = 2


BF16 = Stored()
E4M3 = Stored(layers=1, kv=1)
"""Weights and KV in e4m3; lm_head stays wide. Scales, one a row, are left out."""


def write(shape: str, folder: Path) -> Path:
    """The config.json of a shape; returns the folder."""
    (folder / "config.json").write_text(json.dumps(SHAPES[shape], indent=2) + "\n", "utf-8")
    return folder


@dataclass(frozen=True, slots=True)
class Workload:
    """Prompts as token ids, and how many tokens each is to be given."""

    prompts: list[list[int]]
    outputs: list[int]

    @property
    def output_tokens(self) -> int:
        return sum(self.outputs)


def offline(sequences: int, least: int, most: int, vocabulary: int) -> Workload:
    """Lengths of prompt and output uniform in least..most, seed 0. For 256 sequences, 100, 1024 and ids up to 10,000 it is the
    workload that published figures are of, draw by draw: 142,827 prompt and 133,966 output tokens."""
    draw = random.Random(0)
    prompts = [
        [draw.randint(0, vocabulary) for _ in range(draw.randint(least, most))] for _ in range(sequences)
    ]
    return Workload(prompts, [draw.randint(least, most) for _ in range(sequences)])


def layer_weights(shape: str) -> int:
    """Numbers in the linears of all layers."""
    s = SHAPES[shape]
    hidden, head = int(s["hidden_size"]), int(s["head_dim"])
    q, kv = head * int(s["num_attention_heads"]), head * int(s["num_key_value_heads"])
    return int(s["num_hidden_layers"]) * (
        hidden * (2 * q + 2 * kv) + 3 * hidden * int(s["intermediate_size"])
    )


def step_bytes(shape: str, stored: Stored = BF16) -> int:
    """Bytes of weights that each step reads: all layers and lm_head."""
    s = SHAPES[shape]
    head = int(s["hidden_size"]) * int(s["vocab_size"])
    return stored.layers * layer_weights(shape) + stored.head * head


def kv_bytes(shape: str, stored: Stored = BF16) -> int:
    """Bytes of keys and values of one token."""
    s = SHAPES[shape]
    return stored.kv * 2 * int(s["num_hidden_layers"]) * int(s["num_key_value_heads"]) * int(s["head_dim"])


def least_seconds(shape: str, work: Workload, copy: float, products: float, stored: Stored = BF16) -> float:
    """The roofline: prompts at the rate of matrix products, then decode steps that read all weights, and the KV of all that
    still run, at the rate of copies. Attention of prompts and sampling are left out."""
    prompts = 2.0 * layer_weights(shape) * sum(len(prompt) for prompt in work.prompts) / products
    read = step_bytes(shape, stored) * max(work.outputs)
    for prompt, count in zip(work.prompts, work.outputs, strict=True):
        read += kv_bytes(shape, stored) * (count * len(prompt) + count * (count + 1) // 2)
    return prompts + read / copy
