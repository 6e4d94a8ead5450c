"""Adapters in GGUF files: what they compute equals the same adapter in PEFT's form merged into the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from executors.contract import ConfigError
from executors.llm.model.config import read_config
from executors.llm.tools.lora_check import check_adapter
from executors.lora import pack
from tests.executors.checkpoints import write_checkpoint
from tests.executors.gguf_files import converted, prepared, sizes, write_gguf
from tests.executors.llm.lora.test_loras import LINEARS, LLAMA, logits, merged, prompt, shapes, start
from tests.executors.lora.gguf_loras import write_gguf_adapter
from tests.executors.lora.peft_files import write_peft

SHOWN = "/path/a.gguf"
QWEN = {**LLAMA, "architectures": ["Qwen2ForCausalLM"]}
BASES: dict[str, tuple[dict[str, Any], str]] = {
    "llama": (LLAMA, "llama"),
    "mistral": ({**LLAMA, "architectures": ["MistralForCausalLM"], "sliding_window": None}, "llama"),
    "qwen2": (QWEN, "qwen2"),
    "odd heads": (
        {**LLAMA, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 10, "hidden_size": 60},
        "llama",
    ),
}


async def answer(path: Path, adapter: Path | None, tmp_path: Path) -> np.ndarray:
    executor = await start(path, int(adapter is not None))
    try:
        if adapter is not None:
            packed = pack(adapter, tmp_path / "packed", 64, f"/path/{adapter.name}")
            await executor.load_adapter("a", str(packed.path), packed.digest)  # type: ignore[attr-defined]
        [found] = await logits(executor, [(prompt(1), None if adapter is None else "a")])
        return found
    finally:
        await executor.shutdown()


@pytest.mark.parametrize("name", list(BASES))
async def test_equal_to_the_merged_model(tmp_path: Path, name: str) -> None:
    config, arch = BASES[name]
    model = write_checkpoint(tmp_path / "model", config)
    (tmp_path / "packed").mkdir()
    made = write_peft(tmp_path / "peft", shapes(model), rank=4)
    heads = config["num_attention_heads"], config["num_key_value_heads"]
    adapter = write_gguf_adapter(tmp_path / "a.gguf", made, arch, 8.0, heads)
    expected = await answer(merged(model, made, 2.0, tmp_path / "merged"), None, tmp_path)
    found = await answer(model, adapter, tmp_path)
    assert np.abs(found - expected).max() < 1e-4 * max(1.0, np.abs(expected).max())
    assert np.abs(expected - await answer(model, None, tmp_path)).max() > 0.01


async def test_over_a_gguf_model(tmp_path: Path) -> None:
    model = write_checkpoint(tmp_path / "model", LLAMA)
    (tmp_path / "packed").mkdir()
    made = write_peft(tmp_path / "peft", shapes(model), rank=4)
    adapter = write_gguf_adapter(tmp_path / "a.gguf", made)
    named = converted(load_file(model / "model.safetensors"), "llama", 4, 2)
    base = prepared(tmp_path / "base", write_gguf(tmp_path / "base.gguf", "llama", sizes(LLAMA), named))
    expected = await answer(merged(model, made, 2.0, tmp_path / "merged"), None, tmp_path)
    found = await answer(base, adapter, tmp_path)
    assert np.abs(found - expected).max() < 1e-4 * max(1.0, np.abs(expected).max())


@pytest.mark.parametrize(
    ("arch", "tensors", "why"),
    [
        ("qwen2", {}, "general.architecture 'qwen2' is not the model's, whose family is llama"),
        ("unheard-of", {}, "general.architecture 'unheard-of'"),
        ("llama", {"token_embd": (128, 64)}, "adapters of embeddings are not supported"),
        ("llama", {"output": (128, 64)}, "output"),
        ("llama", {"blk.0.attn_qkv": (128, 64)}, "blk.0.attn_qkv: adapters of this weight are not supported"),
        ("llama", {"blk.7.attn_v": (32, 64)}, "blk.7.attn_v: adapters of this weight are not supported"),
        (
            "llama",
            {"blk.1.attn_v": (33, 64)},
            "blk.1.attn_v is for a weight of 33 x 64; the model's has 32 x 64",
        ),
    ],
)
async def test_refusals_name_the_file_and_the_weight(
    tmp_path: Path, arch: str, tensors: dict[str, tuple[int, int]], why: str
) -> None:
    model = write_checkpoint(tmp_path / "model", LLAMA)
    (tmp_path / "packed").mkdir()
    made = write_peft(tmp_path / "peft", shapes(model, LINEARS[:1], 1), rank=4)
    extra = {
        f"{name}.weight.lora_{part}": np.ones((4, size[1]) if part == "a" else (size[0], 4), np.float32)
        for name, size in tensors.items()
        for part in "ab"
    }
    adapter = write_gguf_adapter(tmp_path / "a.gguf", made, arch, tensors=extra)
    with pytest.raises(ConfigError, match=f"^/path/a.gguf: .*{why}"):
        await answer(model, adapter, tmp_path)


@pytest.mark.parametrize(
    "prefix",
    [
        "",
        "model.",
        "language_model.",
        "model.language_model.",
        "_orig_mod.model.",
        "module.model.",
        "model.model.language_model.",
    ],
)
async def test_names_with_the_prefixes_of_wrappers(tmp_path: Path, prefix: str) -> None:
    model = write_checkpoint(tmp_path / "model", LLAMA)
    (tmp_path / "packed").mkdir()
    plain = shapes(model, LINEARS[:2], 1)
    write_peft(tmp_path / "a", plain, rank=4)
    write_peft(
        tmp_path / "b", {name.replace("model.", prefix, 1): size for name, size in plain.items()}, rank=4
    )
    expected = await answer(model, tmp_path / "a", tmp_path)
    assert np.array_equal(await answer(model, tmp_path / "b", tmp_path), expected)


@pytest.mark.parametrize(
    ("arch", "size", "why"),
    [
        ("llama", (32, 64), ""),
        ("qwen2", (32, 64), "general.architecture 'qwen2' is not the model's"),
        ("llama", (33, 64), "is for a weight of 33 x 64; the model's has 32 x 64"),
    ],
)
def test_what_headers_say_of_an_adapter(tmp_path: Path, arch: str, size: tuple[int, int], why: str) -> None:
    """`cohort info` refuses what a load would, and loads nothing."""
    model = write_checkpoint(tmp_path / "model", LLAMA)
    pair = {
        "blk.1.attn_v.weight.lora_a": np.ones((4, size[1]), np.float32),
        "blk.1.attn_v.weight.lora_b": np.ones((size[0], 4), np.float32),
    }
    adapter = write_gguf_adapter(tmp_path / "a.gguf", {}, arch, tensors=pair)
    if not why:
        check_adapter(adapter, SHOWN, read_config(model), 64)
        return
    with pytest.raises(ConfigError, match=f"^/path/a.gguf: .*{why}"):
        check_adapter(adapter, SHOWN, read_config(model), 64)
