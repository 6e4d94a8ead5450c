"""Encoders in GGUF files: the vectors of the same weights in safetensors, and keys and tensors that are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, quants
from safetensors.torch import load_file, save_file

from executors.contract import ConfigError
from executors.llm.encoder.reading import family_in, read_encoder
from executors.llm.tools.describe import describe
from tests.executors.gguf_files import merge_qkv, prepared
from tests.executors.llm.encoder import test_encoders
from tests.executors.llm.encoder.gguf_encoders import write_encoder
from tests.executors.llm.encoder.rotary_models import CONFIGS, made, texts
from tests.executors.llm.encoder.test_encoders import expected, off, step
from tests.executors.llm.encoder.test_rotary_encoders import config, started

FAMILIES = ["bert", "roberta", "xlm-roberta", *CONFIGS]
LENGTHS = (1, 7, 64, 33)
WIDE = {"hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 96}
"""Multiples of a block, for quantized files."""


def make(folder: Path, family: str, **changes: Any) -> Any:
    return (made if family in CONFIGS else test_encoders.made)(folder, family, **changes)


async def vectors(folder: Path, **changes: Any) -> np.ndarray:
    executor = await started(folder, **changes)
    ids = texts(LENGTHS)
    output = await executor.unified_decode(step(ids, ["mean", "cls", "mean", "last"]))
    return np.stack([output.details[number].pooled for number in range(len(ids))])


@pytest.mark.parametrize("family", FAMILIES)
async def test_the_same_weights_give_the_same_vectors(tmp_path: Path, family: str) -> None:
    model = make(tmp_path / "hf", family)
    directory = prepared(tmp_path / "gguf", write_encoder(tmp_path / "m.gguf", tmp_path / "hf"))
    found = await vectors(directory)
    np.testing.assert_allclose(found, await vectors(tmp_path / "hf"), atol=1e-6)
    assert off(found[0], expected(model, texts(LENGTHS)[0]).mean(0)) < 1e-5
    assert family_in(directory) is not None
    facts, right = (describe(config(one)) for one in (directory, tmp_path / "hf"))
    for name in ("generates", "context_length", "hidden_size", "kv_heads", "head_dim", "layers"):
        assert facts[name] == right[name], name
    cut = 2 * 48 if "roberta" in family else 0  # rows of positions before the first token's
    assert facts["parameters"] == right["parameters"] - cut
    assert facts["checkpoint"]["problem"] is None and facts["warnings"] == []


async def test_a_tensor_of_another_shape_is_named_as_the_file_has_it(tmp_path: Path) -> None:
    made(tmp_path / "hf", "modernbert")
    path = write_encoder(tmp_path / "m.gguf", tmp_path / "hf", feed_forward_length=72)
    with pytest.raises(
        ConfigError, match=r"m.gguf: tensor blk.0.ffn_up.weight has shape \[160, 48\]; m.gguf asks"
    ):
        await started(prepared(tmp_path / "gguf", path))


@pytest.mark.parametrize("family", ["bert", "gemma3_text"])
async def test_queries_keys_and_values_may_be_merged(tmp_path: Path, family: str) -> None:
    make(tmp_path / "hf", family)
    path = write_encoder(tmp_path / "m.gguf", tmp_path / "hf", change=merge_qkv)
    found = await vectors(prepared(tmp_path / "gguf", path))
    np.testing.assert_allclose(found, await vectors(tmp_path / "hf"), atol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q5_1"])
async def test_narrow_weights_are_what_they_dequantize_to(tmp_path: Path, family: str, kind: str) -> None:
    """The same numbers in float32 in safetensors give the same vectors in float32."""
    make(tmp_path / "hf", family, **WIDE)
    path = write_encoder(tmp_path / "m.gguf", tmp_path / "hf", kinds=lambda name: kind)
    tensors = load_file(tmp_path / "hf/model.safetensors")
    number = GGMLQuantizationType[kind]
    for name, tensor in tensors.items():
        if tensor.dim() == 2:
            rows = quants.dequantize(quants.quantize(tensor.numpy(), number), number)
            tensors[name] = torch.from_numpy(np.ascontiguousarray(rows))
    save_file(tensors, tmp_path / "hf/model.safetensors", {"format": "pt"})
    directory = prepared(tmp_path / "gguf", path)
    found = await vectors(directory, dtype="float32")
    np.testing.assert_allclose(found, await vectors(tmp_path / "hf", dtype="float32"), atol=1e-5)
    own = {"F16": "float16"}.get(kind, "bfloat16")
    executor = await started(directory)
    assert executor.info().dtype == own
    facts = describe(config(directory))
    assert next(iter(facts["checkpoint"]["formats"])) == {"F16": "float16", "BF16": "bfloat16"}.get(
        kind, kind
    )


@pytest.mark.parametrize(
    ("pattern", "types"),
    [
        (None, [0, 1, 1, 0, 1]),
        (2, [0, 1, 0, 1, 0]),
        ([True, False, False, True, True], [1, 0, 0, 1, 1]),
    ],
)
async def test_windows_of_modernbert_follow_the_pattern(
    tmp_path: Path, pattern: object, types: list[int]
) -> None:
    kinds = ["sliding_attention" if one else "full_attention" for one in types]
    made(tmp_path / "hf", "modernbert", layer_types=kinds)
    path = write_encoder(
        tmp_path / "m.gguf",
        tmp_path / "hf",
        attention__sliding_window_pattern=pattern,
        hidden_activation=None,
    )
    found = await vectors(prepared(tmp_path / "gguf", path))
    np.testing.assert_allclose(found, await vectors(tmp_path / "hf"), atol=1e-6)


async def test_modernbert_without_a_window_sees_all(tmp_path: Path) -> None:
    made(tmp_path / "hf", "modernbert", layer_types=["full_attention"] * 5)
    path = write_encoder(tmp_path / "m.gguf", tmp_path / "hf", attention__sliding_window=None)
    found = await vectors(prepared(tmp_path / "gguf", path))
    np.testing.assert_allclose(found, await vectors(tmp_path / "hf"), atol=1e-6)


async def test_activation_of_modernbert_is_that_of_the_key(tmp_path: Path) -> None:
    made(tmp_path / "hf", "modernbert", hidden_activation="silu")
    found = await vectors(prepared(tmp_path / "gguf", write_encoder(tmp_path / "m.gguf", tmp_path / "hf")))
    np.testing.assert_allclose(found, await vectors(tmp_path / "hf"), atol=1e-6)


@pytest.mark.parametrize(
    ("family", "metadata", "message"),
    [
        ("bert", {"attention__causal": True}, "bert.attention.causal true"),
        ("bert", {"attention__head_count_kv": 1}, "bert.attention.head_count_kv 1"),
        ("bert", {"attention__layer_norm_epsilon": None}, "attention.layer_norm_epsilon"),
        ("bert", {"embedding_length": 40}, "token_embd.weight"),
        ("bert", {"twist": 3}, "bert.twist"),
        ("modernbert", {"block_count": 2**31 - 1, "attention__sliding_window": 0}, "block_count 2147483647"),
        ("bert", {"expert_count": 8}, "bert.expert_count 8"),
        ("nomic_bert", {"rope__scaling__type": "yarn"}, "nomic-bert.rope.scaling.type yarn"),
        ("nomic_bert", {"rope__scaling__factor": 2.0}, "nomic-bert.rope.scaling.factor 2.0"),
        ("nomic_bert", {"rope__dimension_count": 8}, "nomic-bert.rope.dimension_count 8"),
        ("nomic_bert", {"attention__sliding_window": 8}, "nomic-bert.attention.sliding_window 8"),
        ("nomic_bert", {"moe_every_n_layers": 2}, "nomic-bert.moe_every_n_layers 2"),
        ("modernbert", {"hidden_activation": "swish_glu"}, "hidden_activation 'swish_glu'"),
        ("modernbert", {"attention__key_length": 8}, "modern-bert.attention.key_length 8"),
        ("gemma3_text", {"attention__sliding_window": None}, "attention.sliding_window is missing"),
        ("gemma3_text", {"attn_logit_softcapping": 30.0}, "attn_logit_softcapping 30.0"),
        ("gemma3_text", {"dense_2_feat_out": 96}, "gemma-embedding.dense_2_feat_out 96"),
        ("gemma3_text", {"dense_3_feat_in": 96}, "gemma-embedding.dense_3_feat_in 96"),
    ],
)
def test_what_would_change_vectors_is_refused_by_name(
    tmp_path: Path, family: str, metadata: dict[str, Any], message: str
) -> None:
    make(tmp_path / "hf", family)
    path = write_encoder(tmp_path / "m.gguf", tmp_path / "hf", **metadata)
    with pytest.raises(ConfigError) as refused:
        read_encoder(prepared(tmp_path / "gguf", path))
    assert message in str(refused.value) and str(path) in str(refused.value)


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("nomic_bert", "cls.output.weight"),
        ("gemma3_text", "cls.weight"),
        ("bert", "cls.norm.weight"),
        ("bert", "blk.9.attn_q.weight"),
        ("gemma3_text", "dense_4.weight"),
        ("gemma3_text", "dense_2.bias"),
        ("modernbert", "dense_2.weight"),
        ("modernbert", "blk.0.attn_gate.weight"),
        ("nomic_bert", "position_embd.weight"),
    ],
)
async def test_tensors_that_are_not_computed_with_are_refused(tmp_path: Path, family: str, name: str) -> None:
    make(tmp_path / "hf", family)
    path = write_encoder(
        tmp_path / "m.gguf",
        tmp_path / "hf",
        change=lambda tensors: tensors.update({name: torch.zeros(4, 48)}),
    )
    with pytest.raises(ConfigError, match=f"tensor {name} is not supported"):
        await started(prepared(tmp_path / "gguf", path))


async def test_layers_of_vectors_stand_in_the_file_of_embedding_gemma(tmp_path: Path) -> None:
    """As the converter writes them with --sentence-transformers-dense-modules."""
    made(tmp_path / "hf", "gemma3_text")
    torch.manual_seed(2)
    layers = {"dense_2.weight": torch.randn(64, 48) / 8, "dense_3.weight": torch.randn(32, 64) / 8}
    sizes = {"dense_2_feat_in": 48, "dense_2_feat_out": 64, "dense_3_feat_in": 64, "dense_3_feat_out": 32}
    path = write_encoder(
        tmp_path / "m.gguf", tmp_path / "hf", change=lambda tensors: tensors.update(layers), **sizes
    )
    directory = prepared(tmp_path / "gguf", path)
    found = await vectors(directory)
    right = await vectors(tmp_path / "hf")
    for layer in layers.values():
        right = right @ layer.numpy().T
    assert found.shape == (len(LENGTHS), 32)
    np.testing.assert_allclose(found, right, atol=1e-5)
    assert describe(config(directory))["checkpoint"]["problem"] is None
    wrong = write_encoder(
        tmp_path / "w.gguf", tmp_path / "hf", change=lambda tensors: tensors.update(layers),
        **{**sizes, "dense_3_feat_out": 33},
    )  # fmt: skip
    with pytest.raises(ConfigError, match="dense_3_feat_out 33"):
        read_encoder(prepared(tmp_path / "wrong", wrong))
    odd = {"dense_3.weight": torch.zeros(32, 64)}
    narrow = write_encoder(tmp_path / "n.gguf", tmp_path / "hf", change=lambda tensors: tensors.update(odd))
    with pytest.raises(ConfigError, match=r"dense_3.weight has shape \[32, 64\]; vectors of 48 come in"):
        read_encoder(prepared(tmp_path / "narrow", narrow))


async def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    make(tmp_path / "hf", "bert")
    path = write_encoder(
        tmp_path / "m.gguf", tmp_path / "hf", change=lambda tensors: tensors.pop("blk.1.ffn_up.bias")
    )
    with pytest.raises(ConfigError, match=r"m\.gguf: tensor blk\.1\.ffn_up\.bias is missing"):
        await started(prepared(tmp_path / "gguf", path))


def test_decoders_are_no_encoders(tmp_path: Path) -> None:
    made(tmp_path / "hf", "gemma3_text")
    path = write_encoder(tmp_path / "m.gguf", tmp_path / "hf")
    raw = path.read_bytes().replace(b"gemma-embedding", b"gemma3.notnamed")
    path.write_bytes(raw)
    assert family_in(prepared(tmp_path / "gguf", path)) is None
