"""Adapters in GGUF files: packed exactly, and refused by the name of a key or tensor where something cannot be served."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from executors.contract import ConfigError
from executors.lora import gguf_rank, pack, read_adapter
from executors.lora.gguf_lora import HARMLESS, READ
from tests.executors.lora.gguf_loras import write_gguf_adapter
from tests.executors.lora.peft_files import write_peft

Q, DOWN = "model.layers.0.self_attn.v_proj", "model.layers.1.mlp.down_proj"
SHAPES = {Q: (32, 64), DOWN: (64, 96)}


def made(tmp_path: Path, rank: int = 4) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    (tmp_path / "packed").mkdir(exist_ok=True)
    return write_peft(tmp_path / "peft", SHAPES, rank=rank, ranks={DOWN: 2 * rank})


@pytest.mark.parametrize(("kind", "error"), [("F32", 0.0), ("F16", 2e-3), ("BF16", 2e-2), ("Q8_0", 2e-2)])
def test_every_number_is_kept(tmp_path: Path, kind: str, error: float) -> None:
    weights = made(tmp_path, rank=32)
    path = write_gguf_adapter(tmp_path / "a.gguf", weights, kind=kind, alpha=16.0)
    packed = pack(path, tmp_path / "packed", 64, "/path/a.gguf")
    assert packed.rank == 64 == gguf_rank(path, "a")
    adapter = read_adapter(packed.path, packed.digest)
    assert (adapter.architecture, adapter.label) == ("llama", "/path/a.gguf")
    assert adapter.names == ["blk.0.attn_v", "blk.1.ffn_down"]
    for module, (a, b), scale in zip(adapter.modules(), weights.values(), (0.5, 0.25), strict=True):
        assert np.abs(module.a - a.numpy()).max() <= error and np.abs(module.b - b.numpy()).max() <= error
        assert module.scale == scale


def test_an_alpha_of_zero_is_a_scale_of_one(tmp_path: Path) -> None:
    packed = pack(write_gguf_adapter(tmp_path / "a.gguf", made(tmp_path), alpha=0.0), tmp_path / "packed", 64)
    assert set(read_adapter(packed.path).scales.values()) == {1.0}


def test_the_architecture_is_part_of_the_digest(tmp_path: Path) -> None:
    weights = made(tmp_path)
    digests = {
        pack(write_gguf_adapter(tmp_path / f"{arch}.gguf", weights, arch), tmp_path / "packed", 64).digest
        for arch in ("qwen2", "qwen3")
    }
    assert len(digests) == 2


@pytest.mark.parametrize(
    ("metadata", "why"),
    [
        ({"general.type": "model"}, "general.type is 'model': no adapter"),
        ({"general.type": None}, "general.type is missing"),
        ({"adapter.type": "ia3"}, "adapter.type 'ia3' is not supported"),
        ({"adapter.lora.alpha": None}, "adapter.lora.alpha is missing"),
        ({"adapter.lora.alpha": float("inf")}, "adapter.lora.alpha"),
        ({"adapter.alora.invocation_tokens": [1, 2]}, "adapter.alora.invocation_tokens"),
        ({"adapter.lora.of_tomorrow": 1}, "'adapter.lora.of_tomorrow' is unknown"),
        ({"llama.attention.head_count": 4, "general.file_type": 1, "adapter.lora.task_name": "x"}, ""),
        ({"adapter.lora.prompt_prefix": "x", "general.base_model.0.name": "org/base"}, ""),
    ],
)
def test_metadata(tmp_path: Path, metadata: dict[str, Any], why: str) -> None:
    path = write_gguf_adapter(tmp_path / "a.gguf", made(tmp_path), metadata=metadata)
    if not why:
        assert pack(path, tmp_path / "packed", 64).base_model == metadata.get("general.base_model.0.name")
        return
    with pytest.raises(ConfigError, match=f"^/path/a.gguf: .*{why}"):
        pack(path, tmp_path / "packed", 64, "/path/a.gguf")


def test_every_key_of_the_format_has_a_place() -> None:
    from gguf import Keys

    keys = {value for name, value in vars(Keys.Adapter).items() if name.isupper()}
    assert keys <= {*READ, *HARMLESS, "adapter.alora.invocation_tokens"}
    assert all(HARMLESS.values())


@pytest.mark.parametrize(
    ("tensors", "why"),
    [
        (
            {"blk.0.attn_norm.weight": np.ones(4, np.float32)},
            "'blk.0.attn_norm.weight' is no lora_a or lora_b",
        ),
        ({"blk.0.attn_k.weight.lora_a": np.ones((4, 64), np.float32)}, "lora_b of 'blk.0.attn_k' is missing"),
        (
            {
                "blk.0.attn_k.weight.lora_a": np.ones((4, 64), np.float32),
                "blk.0.attn_k.weight.lora_b": np.ones((8, 3), np.float32),
            },
            "which are no pair",
        ),
        (
            {
                "blk.0.attn_k.weight.lora_a": np.ones((4, 64), np.int8),
                "blk.0.attn_k.weight.lora_b": np.ones((8, 4), np.int8),
            },
            "type I8; supported in adapters",
        ),
        (
            {
                "blk.0.attn_k.weight.lora_a": np.full((4, 64), np.nan, np.float32),
                "blk.0.attn_k.weight.lora_b": np.ones((8, 4), np.float32),
            },
            "holds NaN",
        ),
        (
            {
                "token_embd.weight.lora_a": np.ones((288, 4), np.float32),
                "token_embd.weight.lora_b": np.ones((64, 4), np.float32),
            },
            "adapters of embeddings are not supported; merge",
        ),
        ({"blk.0.attn_norm.weight": np.ones(64, np.float32)}, "no lora_a or lora_b of a weight; merge"),
    ],
)
def test_tensors_that_are_refused(tmp_path: Path, tensors: dict[str, np.ndarray], why: str) -> None:
    path = write_gguf_adapter(tmp_path / "a.gguf", made(tmp_path), tensors=tensors)
    with pytest.raises(ConfigError, match=f"^/path/a.gguf: .*{why}"):
        pack(path, tmp_path / "packed", 64, "/path/a.gguf")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"GGUF an adapter", "is not supported"),
        (b"algg" + bytes(40), "before GGUF"),
        (b"ggla" + bytes(40), "before GGUF"),
        (b"", "cannot be read"),
        (b"PK\3\4" + bytes(40), "not a GGUF file"),
    ],
)
def test_files_that_are_none(tmp_path: Path, content: bytes, why: str) -> None:
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(ConfigError, match=f"^/path/a.gguf: .*{why}"):
        pack(tmp_path / "a", tmp_path, 64, "/path/a.gguf")


def test_too_high_a_rank(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="rank 16 is more than this server's --max-lora-rank 8"):
        pack(write_gguf_adapter(tmp_path / "a.gguf", made(tmp_path, rank=8)), tmp_path / "packed", 8)


def test_mutations_load_or_say_why(tmp_path: Path) -> None:
    raw, refused = write_gguf_adapter(tmp_path / "a.gguf", made(tmp_path)).read_bytes(), 0
    rng = np.random.default_rng(0)
    for _ in range(200):
        changed = bytearray(raw[: rng.integers(len(raw))] if rng.random() < 0.3 else raw)
        for _ in range(3):
            if changed:
                changed[rng.integers(min(len(changed), 900))] = rng.integers(256)
        (tmp_path / "b.gguf").write_bytes(changed)
        try:
            packed = pack(tmp_path / "b.gguf", tmp_path / "packed", 64)
            read_adapter(packed.path, packed.digest)
        except ConfigError as error:
            assert "\n" not in str(error)
            refused += 1
    assert refused > 100
