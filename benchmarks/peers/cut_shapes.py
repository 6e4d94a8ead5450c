"""GGUF files in the shapes of large models with fewer layers: random blocks in the types that published files have.

    gpt-oss-20b-cut    6 of 24 layers: experts in MXFP4, all other matrices in Q8_0
    gemma-4-e4b-cut    12 of 42 layers, the last 6 reading the keys and values of the 6 before: Q4_0, its embedding in Q6_K, as
                       llama-quantize chooses for an embedding that is the head

Every layer, the vocabulary and the head are as large as in the whole model; so the head has a larger share of a step than there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

BLOCKS = {"Q4_0": (32, 18), "Q8_0": (32, 34), "MXFP4": (32, 17), "Q6_K": (256, 210)}
"""Weights and bytes of a block."""
_DEVIATIONS = {"Q4_0": 4.64, "Q8_0": 73.9, "MXFP4": 2.93, "Q6_K": 18.5}
"""Of codes that are drawn evenly, before their scale."""
_SIXTEENTHS = 64
"""Each scale of 16 weights in Q6_K, of which their block has a scale in turn."""


@dataclass(frozen=True)
class Tensor:
    """`type` is one of BLOCKS, BF16, or F32; `shape` as NumPy has it. `value` of all of a tensor in F32, or None for random
    numbers."""

    name: str
    shape: tuple[int, ...]
    type: str = "F32"
    value: float | np.ndarray | None = 1.0


@dataclass(frozen=True)
class Cut:
    """A file: its architecture, metadata below the architecture's name, the vocabulary, and the tensors in order."""

    architecture: str
    metadata: dict[str, Any]
    vocabulary: int
    tensors: tuple[Tensor, ...] = field(repr=False)


def gpt_oss(
    layers: int = 6, hidden: int = 2880, experts: int = 32, vocabulary: int = 201088, heads: int = 64
) -> Cut:
    """gpt-oss-20b with that many layers; what is not asked for is as published."""
    size, kv_heads, inner = 64, 8, hidden
    tensors = [
        Tensor("token_embd.weight", (vocabulary, hidden), "Q8_0"),
        Tensor("output.weight", (vocabulary, hidden), "Q8_0"),
        Tensor("output_norm.weight", (hidden,)),
    ]
    for i in range(layers):

        def add(name: str, *shape: int, kind: str = "F32", value: float | None = 1.0, layer: int = i) -> None:
            tensors.append(Tensor(f"blk.{layer}.{name}", shape, kind, value))

        add("attn_norm.weight", hidden)
        add("post_attention_norm.weight", hidden)
        for part, rows in (("q", heads * size), ("k", kv_heads * size), ("v", kv_heads * size)):
            add(f"attn_{part}.weight", rows, hidden, kind="Q8_0")
            add(f"attn_{part}.bias", rows, value=None)
        add("attn_output.weight", hidden, heads * size, kind="Q8_0")
        add("attn_output.bias", hidden, value=None)
        add("attn_sinks.weight", heads, value=None)
        add("ffn_gate_inp.weight", experts, hidden, value=None)
        add("ffn_gate_inp.bias", experts, value=None)
        for part, rows, columns in (("gate", inner, hidden), ("up", inner, hidden), ("down", hidden, inner)):
            add(f"ffn_{part}_exps.weight", experts, rows, columns, kind="MXFP4")
            add(f"ffn_{part}_exps.bias", experts, rows, value=None)
    metadata = {
        "block_count": layers, "context_length": 131072, "embedding_length": hidden, "feed_forward_length": inner,
        "attention.head_count": heads, "attention.head_count_kv": kv_heads, "attention.key_length": size,
        "attention.value_length": size, "attention.layer_norm_rms_epsilon": 1e-5, "attention.sliding_window": 128,
        "expert_count": experts, "expert_used_count": min(4, experts), "expert_feed_forward_length": inner,
        "rope.freq_base": 150000.0, "rope.scaling.type": "yarn", "rope.scaling.factor": 32.0,
        "rope.scaling.original_context_length": 4096, "vocab_size": vocabulary,
    }  # fmt: skip
    return Cut("gpt-oss", metadata, vocabulary, tuple(tensors))


def gemma4(
    layers: int = 12, shared: int = 6, hidden: int = 2560, inner: int = 10240, vocabulary: int = 262144
) -> Cut:
    """Gemma 4 E4B with that many layers, of which the last `shared` have no keys and values of their own; what is not asked for
    is as published."""
    heads, kv_heads, of_layer = 8, 2, 256
    windows = [i % 6 != 5 for i in range(layers)]
    wide, near = 512, 256
    turning = wide // 8
    factors = np.array([1.0] * turning + [1e30] * (wide // 2 - turning), np.float32)
    tensors = [
        Tensor("token_embd.weight", (vocabulary, hidden), "Q6_K"),
        Tensor("per_layer_token_embd.weight", (vocabulary, layers * of_layer), "Q4_0"),
        Tensor("per_layer_model_proj.weight", (layers * of_layer, hidden), "BF16", None),
        Tensor("per_layer_proj_norm.weight", (of_layer,)),
        Tensor("output_norm.weight", (hidden,)),
        Tensor("rope_freqs.weight", (wide // 2,), value=factors),
    ]
    for i, window in enumerate(windows):
        size = near if window else wide
        matrices = {"attn_q": (heads * size, hidden), "attn_output": (hidden, heads * size)}
        if i < layers - shared:
            matrices |= {"attn_k": (kv_heads * size, hidden), "attn_v": (kv_heads * size, hidden)}
            tensors.append(Tensor(f"blk.{i}.attn_k_norm.weight", (size,)))
        matrices |= {
            "ffn_gate": (inner, hidden), "ffn_up": (inner, hidden), "ffn_down": (hidden, inner),
            "inp_gate": (of_layer, hidden), "proj": (hidden, of_layer),
        }  # fmt: skip
        tensors += [Tensor(f"blk.{i}.{name}.weight", shape, "Q4_0") for name, shape in matrices.items()]
        tensors.append(Tensor(f"blk.{i}.attn_q_norm.weight", (size,)))
        names = ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm", "post_norm")
        tensors += [Tensor(f"blk.{i}.{name}.weight", (hidden,)) for name in names]
        tensors.append(Tensor(f"blk.{i}.layer_output_scale.weight", (1,)))
    metadata = {
        "block_count": layers, "context_length": 131072, "embedding_length": hidden, "feed_forward_length": inner,
        "attention.head_count": heads, "attention.head_count_kv": kv_heads, "attention.key_length": wide,
        "attention.value_length": wide, "attention.key_length_swa": near, "attention.value_length_swa": near,
        "attention.layer_norm_rms_epsilon": 1e-6, "attention.sliding_window": 512,
        "attention.sliding_window_pattern": windows, "attention.shared_kv_layers": shared,
        "embedding_length_per_layer_input": of_layer, "final_logit_softcapping": 30.0, "rope.freq_base": 1e6,
        "rope.freq_base_swa": 1e4, "rope.dimension_count": wide, "rope.dimension_count_swa": near, "vocab_size": vocabulary,
    }  # fmt: skip
    return Cut("gemma4", metadata, vocabulary, tuple(tensors))


CUTS: dict[str, Callable[[], Cut]] = {"gpt-oss-20b-cut": gpt_oss, "gemma-4-e4b-cut": gemma4}


def write(cut: Cut, path: Path, add_tokenizer: Callable[[Any], None]) -> None:
    """Write the file, a tensor at a time. `add_tokenizer` adds a vocabulary to the writer that it is given."""
    import gguf

    writer = gguf.GGUFWriter(path, cut.architecture)
    writer.add_name(path.stem)
    for key, value in cut.metadata.items():
        _add(writer, f"{cut.architecture}.{key}", value)
    add_tokenizer(writer)
    for tensor in cut.tensors:
        shape, kind = _stored(tensor)
        writer.add_tensor_info(tensor.name, shape, kind, math.prod(shape) * kind.itemsize, _raw(tensor))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    rng = np.random.default_rng(0)
    for tensor in cut.tensors:
        writer.write_tensor_data(contents(tensor, rng))
    writer.close()


def contents(tensor: Tensor, rng: np.random.Generator) -> np.ndarray:
    """What the file stores: of blocks their bytes, uint8 [..., bytes of a row]."""
    shape, _ = _stored(tensor)
    if isinstance(tensor.value, np.ndarray):
        return tensor.value
    if tensor.type in BLOCKS:
        rows = math.prod(shape[:-1])
        return np.concatenate(list(_rows(tensor.type, rows, tensor.shape[-1], rng))).reshape(shape)
    if tensor.value is not None:
        return np.full(shape, tensor.value, np.float32)
    # Products keep unit variance; biases, sinks and the like stay below what they are added to.
    scale = tensor.shape[-1] ** -0.5 if len(tensor.shape) > 1 else 0.1
    drawn = (rng.standard_normal(tensor.shape) * scale).astype(np.float32)
    return drawn if tensor.type == "F32" else (drawn.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)


def _stored(tensor: Tensor) -> tuple[tuple[int, ...], np.dtype[Any]]:
    *rows, columns = tensor.shape
    if tensor.type in BLOCKS:
        of, size = BLOCKS[tensor.type]
        return (*rows, columns // of * size), np.dtype(np.uint8)
    if tensor.type == "BF16":
        return (*rows, 2 * columns), np.dtype(np.uint8)
    return tensor.shape, np.dtype(np.float32)


def _raw(tensor: Tensor) -> Any:
    import gguf

    return gguf.GGMLQuantizationType[tensor.type]


def _rows(kind: str, rows: int, columns: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Random rows whose product with a row of unit variance has about unit variance, uint8 [some, bytes of a row] each."""
    of, size = BLOCKS[kind]
    wanted = columns**-0.5 / _DEVIATIONS[kind]
    scale = np.float16(wanted / (_SIXTEENTHS if kind == "Q6_K" else 1)).view(np.uint16)
    for begin in range(0, rows, 4096):
        count = min(4096, rows - begin) * (columns // of)
        blocks = np.frombuffer(rng.bytes(count * size), np.uint8).reshape(count, size).copy()
        if kind == "MXFP4":
            blocks[:, 0] = 127 + round(math.log2(wanted))
        elif kind == "Q6_K":
            blocks[:, 192:208] = _SIXTEENTHS
            blocks[:, 208:] = np.frombuffer(scale.tobytes(), np.uint8)
        else:
            blocks[:, :2] = np.frombuffer(scale.tobytes(), np.uint8)
        yield blocks.reshape(-1, columns // of * size)


def _add(writer: Any, key: str, value: Any) -> None:
    match value:
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case _:
            writer.add_array(key, value)
