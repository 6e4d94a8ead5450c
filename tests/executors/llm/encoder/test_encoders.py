"""Encoders of every family against transformers, alone and in mixed steps, and what their executor refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from executors.contract import ConfigError, ExecutorConfig, InvalidInput, OptimizationConfig, Skipped, Tensor
from executors.contract.batch import SequenceStart, TableUpdates, UnifiedBatch
from executors.llm.encoder import executor as encoder_executor
from executors.llm.encoder.executor import EncoderExecutor
from executors.llm.encoder.reading import family_in, read_encoder
from executors.llm.factory import LlmFactory

SIZES = {
    "vocab_size": 300, "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 80,
    "max_position_embeddings": 70, "initializer_range": 0.3,
}  # fmt: skip
FAMILIES = {
    "bert": transformers.BertModel,
    "roberta": transformers.RobertaModel,
    "xlm-roberta": transformers.XLMRobertaModel,
    "camembert": transformers.CamembertModel,
}
LENGTHS = (1, 2, 7, 7, 33, 64)


def made(folder: Path, family: str = "bert", **changes: Any) -> transformers.PreTrainedModel:
    """A random model of that family, saved; norms and biases are random, too."""
    kind = FAMILIES[family]
    model = kind(kind.config_class(**{**SIZES, **changes}), add_pooling_layer=False).eval()
    torch.manual_seed(1)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if name.endswith("bias") or "LayerNorm" in name:
                tensor.add_(0.3 * torch.randn_like(tensor))
    model.save_pretrained(folder)
    return model


def config(folder: Path, **changes: Any) -> ExecutorConfig:
    room: dict[str, Any] = {"max_num_seqs": 8, "max_num_batched_tokens": 128}
    return ExecutorConfig("llm", str(folder), device="cpu", **(room | changes))


async def started(folder: Path, **changes: Any) -> EncoderExecutor:
    executor = LlmFactory().create_executor(config(folder, **changes))
    assert isinstance(executor, EncoderExecutor)
    await executor.warmup()
    await executor.begin_epoch(1)
    return executor


def texts(seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(5, SIZES["vocab_size"], length).astype(np.int32) for length in LENGTHS]


def step(ids: list[np.ndarray], poolings: list[str | None], **changes: Any) -> UnifiedBatch:
    n = len(ids)
    numbers = np.arange(n, dtype=np.int32)
    starts = tuple(
        SequenceStart(seq, seq, one, np.empty(0, np.int32), pooling=pooling)
        for seq, (one, pooling) in enumerate(zip(ids, poolings, strict=True))
    )
    none = np.empty(0, np.int32)
    given = {
        "epoch": 1, "step_id": 1, "seq_ids": numbers.astype(np.int64), "slots": numbers,
        "num_q_tokens": np.array([len(one) for one in ids], np.int32), "pos_offsets": np.zeros(n, np.int32),
        "is_final_chunk": np.ones(n, np.bool_), "num_draft_tokens": np.zeros(n, np.int32),
        "token_ids": np.concatenate(ids), "pending": None, "starts": starts,
        "tables": TableUpdates(none, none, none, none, none),
    }  # fmt: skip
    return UnifiedBatch(**{**given, **changes})


def expected(model: transformers.PreTrainedModel, ids: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return model(torch.from_numpy(ids.astype(np.int64))[None]).last_hidden_state[0].numpy()


def off(found: np.ndarray, right: np.ndarray) -> float:
    return float(np.abs(found - right).max())


@pytest.mark.parametrize("family", FAMILIES)
async def test_vectors_of_a_mixed_step_are_those_of_transformers(tmp_path: Path, family: str) -> None:
    model = made(tmp_path, family)
    executor = await started(tmp_path)
    ids = texts()
    poolings = ["cls", "mean", "last", "cls", "mean", "last"]
    output = await executor.unified_decode(step(ids, poolings))
    for number, (one, pooling) in enumerate(zip(ids, poolings, strict=True)):
        hidden = expected(model, one)
        right = {"cls": hidden[0], "last": hidden[-1], "mean": hidden.mean(0)}[pooling]
        assert off(output.details[number].pooled, right) < 1e-5 * max(1.0, float(np.abs(right).max()))
    whole = await executor.forward(Tensor.of(ids[3][None], "int32"))
    assert off(whole.numpy()[0], expected(model, ids[3])) < 1e-4


async def test_the_longest_text_has_as_many_tokens_as_there_are_positions(tmp_path: Path) -> None:
    model = made(tmp_path, "roberta")
    executor = await started(tmp_path)
    # RoBERTa's first position is behind the padding's.
    assert executor.info().max_model_len == executor.capabilities().max_sequence_length == 70 - 2
    ids = np.random.default_rng(3).integers(5, 300, 68).astype(np.int32)
    output = await executor.unified_decode(step([ids], ["mean"]))
    assert off(output.details[0].pooled, expected(model, ids).mean(0)) < 1e-5
    with pytest.raises(InvalidInput, match="68"):
        await executor.unified_decode(step([np.full(69, 9, np.int32)], ["mean"]))


@pytest.mark.parametrize("names", ["with a head", "gamma and beta"])
async def test_tensors_have_the_names_of_older_files(tmp_path: Path, names: str) -> None:
    model = made(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    if names == "with a head":
        tensors = {f"bert.{name}": one for name, one in tensors.items()}
        tensors["cls.predictions.bias"] = torch.zeros(300)
    else:
        old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
        for new, before in old.items():
            tensors = {name.replace(new, before): one for name, one in tensors.items()}
    save_file(tensors, path, {"format": "pt"})
    executor = await started(tmp_path)
    ids = texts()[:3]
    output = await executor.unified_decode(step(ids, ["mean"] * 3))
    for number, one in enumerate(ids):
        assert off(output.details[number].pooled, expected(model, one).mean(0)) < 1e-5


@pytest.mark.parametrize(
    ("changes", "least"),
    [({"dtype": "bfloat16"}, 0.999), ({"optimization": OptimizationConfig(quantization="int8")}, 0.998)],
)
async def test_narrow_weights_give_vectors_of_nearly_the_same_direction(
    tmp_path: Path, changes: dict[str, Any], least: float
) -> None:
    model = made(tmp_path)
    executor = await started(tmp_path, **changes)
    ids = texts()
    output = await executor.unified_decode(step(ids, ["mean"] * len(ids)))
    for number, one in enumerate(ids):
        found, right = output.details[number].pooled, expected(model, one).mean(0)
        assert float(found @ right / np.linalg.norm(found) / np.linalg.norm(right)) > least


async def test_a_part_of_a_text_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    made(tmp_path)
    executor = await started(tmp_path)
    ids = texts()[:2]
    two = np.zeros(2, np.int32)
    for changes in (
        {"is_final_chunk": np.array([True, False])},
        {"pos_offsets": two + 1},
        {"epoch": 2},
    ):
        with pytest.raises(InvalidInput):
            await executor.unified_decode(step(ids, ["cls", "cls"], **changes))
    with pytest.raises(InvalidInput, match="generates nothing"):
        await executor.unified_decode(step(ids, ["cls", None]))
    with pytest.raises(InvalidInput, match="known: cls, mean, last"):
        await executor.unified_decode(step(ids, ["cls", "max"]))
    output = await executor.unified_decode(step(ids, ["cls", "cls"]))
    assert len(output.details) == 2
    executor.release_cache(0)
    executor.release_cache(1)
    assert len((await executor.unified_decode(step(ids, ["cls", "cls"]))).details) == 2


async def test_steps_behind_a_failed_one_are_skipped_until_the_next_epoch(
    tmp_path: Path, monkeypatch
) -> None:
    made(tmp_path)
    executor = await started(tmp_path)
    ids = texts()[:1]

    def fail(*_: object) -> None:
        raise RuntimeError("broken")

    with monkeypatch.context() as patch:
        patch.setattr(encoder_executor, "pooled_texts", fail)
        with pytest.raises(Exception, match="broken"):
            await executor.unified_decode(step(ids, ["cls"]))
    with pytest.raises(Skipped):
        await executor.unified_decode(step(ids, ["cls"]))
    await executor.begin_epoch(2)
    assert (await executor.unified_decode(step(ids, ["cls"], epoch=2))).details


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"position_embedding_type": "relative_key"}, "relative_key"),
        ({"is_decoder": True}, "is_decoder"),
        ({"add_cross_attention": True}, "add_cross_attention"),
        ({"pruned_heads": {"0": [1]}}, "pruned_heads"),
        ({"hidden_act": "quick_gelu"}, "quick_gelu"),
        ({"hidden_size": 50}, "no multiple"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
        ({"architectures": ["BertForTokenClassification"]}, "BertForTokenClassification"),
        ({"layer_norm_eps": "small"}, "layer_norm_eps"),
        ({"max_position_embeddings": 0}, "max_position_embeddings"),
    ],
)
def test_what_would_change_vectors_is_refused_by_name(
    tmp_path: Path, values: dict[str, Any], message: str
) -> None:
    made(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
    with pytest.raises(ConfigError, match=message) as refused:
        LlmFactory().validate_config(config(tmp_path))
    assert str(path) in str(refused.value) and "\n" not in str(refused.value)


def test_a_key_that_is_not_known_is_named(tmp_path: Path) -> None:
    made(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "twist": 3}))
    assert read_encoder(tmp_path).notes == (f"{path}: not used: twist",)


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "relu", "silu"])
async def test_activations_are_those_of_transformers(tmp_path: Path, activation: str) -> None:
    model = made(tmp_path, hidden_act=activation)
    executor = await started(tmp_path)
    ids = texts()[4]
    output = await executor.unified_decode(step([ids], ["mean"]))
    assert off(output.details[0].pooled, expected(model, ids).mean(0)) < 1e-5


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda t: t.pop("encoder.layer.1.output.dense.bias"),
            "encoder.layer.1.output.dense.bias is missing",
        ),
        (lambda t: t.update({"embeddings.word_embeddings.weight": torch.zeros(301, 48)}), "has shape"),
        (
            lambda t: t.update({"embeddings.LayerNorm.weight": torch.zeros(48, dtype=torch.int32)}),
            "float dtype",
        ),
    ],
)
async def test_damaged_files_are_named_at_the_start(tmp_path: Path, damage: Any, message: str) -> None:
    made(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    damage(tensors)
    save_file(tensors, path, {"format": "pt"})
    with pytest.raises(ConfigError, match=message):
        await started(tmp_path)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"optimization": OptimizationConfig(max_loras=1)}, "max_loras"),
        ({"optimization": OptimizationConfig(mtp=True)}, "mtp"),
        ({"optimization": OptimizationConfig(quantization="fp8")}, "fp8"),
        ({"max_model_len": 71}, "max_model_len"),
    ],
)
def test_settings_that_an_encoder_has_no_use_for_are_refused(
    tmp_path: Path, changes: dict[str, Any], name: str
) -> None:
    made(tmp_path)
    with pytest.raises(ConfigError, match=name):
        LlmFactory().validate_config(config(tmp_path, **changes))


def test_decoders_are_no_encoders(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"})
    )
    assert family_in(tmp_path) is None and family_in(tmp_path / "none") is None
