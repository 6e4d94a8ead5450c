"""Damaged GGUF files: each loads or raises a ConfigError of one line that names the file, in little time and memory."""

from __future__ import annotations

import random
import resource
import struct
import time
from collections import Counter
from pathlib import Path

import pytest
import torch
from gguf import GGUFWriter

from executors.contract import ConfigError
from executors.gguf.file import read_gguf
from executors.llm.checkpoint import weights
from executors.llm.model.config import read_config
from tests.executors.checkpoints import write_checkpoint
from tests.executors.gguf_files import Metadata, converted_checkpoint, prepared, sizes

MODELS: dict[str, tuple[dict[str, object], Metadata]] = {
    "llama": ({"architectures": ["LlamaForCausalLM"]}, {"rope.dimension_count": 12}),
    "gemma3": (
        {"architectures": ["Gemma3ForCausalLM"], "tie_word_embeddings": True, "head_dim": 12},
        {"attention.sliding_window": 19, "rope.scaling.type": "linear", "rope.scaling.factor": 8.0},
    ),
    "qwen3moe": (
        {
            "architectures": ["Qwen3MoeForCausalLM"], "head_dim": 12, "num_experts": 6, "num_experts_per_tok": 3,
            "moe_intermediate_size": 20,
        },
        {"expert_count": 6, "expert_used_count": 3, "expert_feed_forward_length": 20},
    ),
}  # fmt: skip
BASE = {
    "vocab_size": 131, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 56, "max_position_embeddings": 256, "tie_word_embeddings": False, "dtype": "float32",
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
}  # fmt: skip
EXTREMES = (
    0,
    1,
    2,
    31,
    127,
    255,
    1 << 15,
    1 << 16,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
    1 << 40,
    1 << 60,
    (1 << 64) - 1,
)


def _whole(tmp_path: Path, arch: str) -> bytes:
    """A file with a tokenizer, whose lists a damage may hit."""
    fields, more = MODELS[arch]
    hf = write_checkpoint(tmp_path / arch, {**BASE, **fields})
    writer = GGUFWriter(tmp_path / f"{arch}.gguf", arch)
    for key, value in {**sizes({**BASE, **fields}), **more}.items():
        add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}[type(value)]
        add(f"{arch}.{key}", value)
    writer.add_token_list([f"token {i}" for i in range(131)])
    writer.add_token_scores([float(-i) for i in range(131)])
    writer.add_token_types([1] * 131)
    for name, tensor in converted_checkpoint(hf, arch).items():
        writer.add_tensor(name, tensor.to(torch.float32).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return (tmp_path / f"{arch}.gguf").read_bytes()


def damaged(whole: bytes, header: int, rng: random.Random) -> bytes:
    """The bytes of a file with one fault, in its header (the first `header` bytes) or at its end."""
    data = bytearray(whole)
    kind = rng.randrange(6)
    at = rng.randrange(header)
    if kind == 0:  # one bit
        data[at] ^= 1 << rng.randrange(8)
    elif kind == 1:  # a few bytes
        for _ in range(rng.randrange(1, 9)):
            data[rng.randrange(header)] = rng.randrange(256)
    elif kind == 2:  # a number of some width
        width = rng.choice((4, 8))
        number = rng.choice(EXTREMES) & ((1 << 8 * width) - 1)
        data[at : at + width] = struct.pack("<I" if width == 4 else "<Q", number)
    elif kind == 3:  # a missing end
        del data[rng.randrange(len(data)) :]
    elif kind == 4:  # a piece too few or twice
        length = rng.randrange(1, 200)
        data[at : at + length] = data[at : at + length] * rng.choice((0, 2))
    else:  # a field where another one was
        length, other = rng.choice((4, 8, 16)), rng.randrange(header)
        data[at : at + length] = data[other : other + length]
    return bytes(data)


def _outcome(path: Path, folder: Path) -> str:
    """What a load's checks say of a file; they are those that come before the weights are read."""
    try:
        read_gguf(path)  # with its lists, as the tokenizer is read
        directory = prepared(folder, path)
        weights.check_tensors(weights.settle_config(read_config(directory), directory), directory)
    except ConfigError as error:
        said = str(error)
        assert str(path) in said or str(folder) in said, said
        assert said.isprintable() and len(said) < 1000, said
        return "refused"
    return "loaded"


@pytest.mark.parametrize("arch", MODELS)
def test_a_tensor_without_a_layers_name_is_refused(tmp_path: Path, arch: str):
    """Its name ends behind the second part, where the name of a layer's tensor would stand."""
    path = tmp_path / "damaged.gguf"
    path.write_bytes(_whole(tmp_path, arch).replace(b"blk.0.attn_norm.weight", b"blk.0-attn_norm_weight"))
    assert _outcome(path, tmp_path / "prepared") == "refused"


@pytest.mark.parametrize("arch", MODELS)
@pytest.mark.parametrize(
    "count", [70, pytest.param(670, marks=[pytest.mark.long(extended=True), pytest.mark.timeout(300)])]
)
def test_a_damaged_file_loads_or_is_refused(tmp_path: Path, arch: str, count: int):
    whole = _whole(tmp_path, arch)
    path, folder = tmp_path / "damaged.gguf", tmp_path / "prepared"
    path.write_bytes(whole)
    header = read_gguf(path).data_offset
    assert _outcome(path, folder) == "loaded"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    rng, outcomes = random.Random(count), Counter()
    for number in range(count):
        path.write_bytes(damaged(whole, header, rng))
        begin = time.thread_time()
        outcomes[_outcome(path, folder)] += 1
        assert time.thread_time() - begin < 1.0, f"mutation {number}"
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert grown < 64 << 10, f"mutation {number}: {grown} KiB"
    assert outcomes["refused"] > count // 3 and outcomes["loaded"] > count // 30, outcomes
