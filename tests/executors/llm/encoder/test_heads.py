"""Classification heads of encoders, pairs of texts, and layers behind the pooling: against transformers, in mixed steps."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from executors.contract import ConfigError, InvalidInput, OptimizationConfig
from executors.contract.batch import UnifiedBatch
from executors.llm.encoder.executor import EncoderExecutor
from executors.llm.encoder.reading import read_encoder
from executors.llm.factory import LlmFactory
from executors.testing.conformance import run_case
from tests.executors.llm.encoder.rotary_models import CONFIGS
from tests.executors.llm.encoder.rotary_models import made as rotary
from tests.executors.llm.encoder.test_encoders import SIZES, config, expected, made, off, started, step, texts

HEADS = {
    "bert": transformers.BertForSequenceClassification,
    "roberta": transformers.RobertaForSequenceClassification,
    "xlm-roberta": transformers.XLMRobertaForSequenceClassification,
    "camembert": transformers.CamembertForSequenceClassification,
}
SEGMENTS: tuple[int | None, ...] = (None, 1, 3, 6, 20, None)
"""Where the second text of each of `texts` begins."""


def cross_encoder(
    folder: Path, family: str = "bert", labels: int = 1, **changes: Any
) -> transformers.PreTrainedModel:
    """A random model of that family with a head, saved; norms and biases are random, too."""
    kind = HEADS[family]
    torch.manual_seed(4)
    fields = {**SIZES, "type_vocab_size": 2, "num_labels": labels, **changes}
    model = kind(kind.config_class(**fields)).eval()
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if name.endswith("bias") or "LayerNorm" in name:
                tensor.add_(0.3 * torch.randn_like(tensor))
    model.save_pretrained(folder)
    return model


def pairs(ids: list[np.ndarray], labels: tuple[int, ...], segments: tuple[int | None, ...]) -> UnifiedBatch:
    """A step that asks for the labels of each text."""
    batch = step(ids, ["logits"] * len(ids))
    starts = (
        replace(start, label_ids=labels, second_segment=segment)
        for start, segment in zip(batch.starts, segments, strict=True)
    )
    return replace(batch, starts=tuple(starts))


def right_logits(model: transformers.PreTrainedModel, ids: np.ndarray, segment: int | None) -> np.ndarray:
    """float32 [labels] of transformers."""
    types = torch.zeros(1, len(ids), dtype=torch.int64)
    if segment is not None:
        types[:, segment:] = 1
    with torch.no_grad():
        given = torch.from_numpy(ids.astype(np.int64))[None]
        return model(given, token_type_ids=types).logits[0].numpy()


@pytest.mark.parametrize("labels", [1, 3])
@pytest.mark.parametrize("family", HEADS)
async def test_logits_of_a_mixed_step_are_those_of_transformers(
    tmp_path: Path, family: str, labels: int
) -> None:
    model = cross_encoder(tmp_path, family, labels)
    executor = await started(tmp_path)
    info = executor.info()
    assert (info.num_labels, info.label_width, info.token_types, info.generates) == (labels, labels, 2, False)
    assert info.num_parameters == model.num_parameters() - unused_parameters(model)
    ids, wanted = texts(), tuple(reversed(range(labels)))
    output = await executor.unified_decode(pairs(ids, wanted, SEGMENTS))
    for number, (one, segment) in enumerate(zip(ids, SEGMENTS, strict=True)):
        right = right_logits(model, one, segment)
        assert off(output.details[number].pooled, right[list(wanted)]) < 1e-5 * max(1.0, abs(right).max())
        if segment is not None:  # or the test would see nothing of the types
            assert off(right_logits(model, one, None), right) > 1e-3


def unused_parameters(model: transformers.PreTrainedModel) -> int:
    """Parameters of the reference that an encoder has no use for: none today."""
    return sum(one.numel() for name, one in model.named_parameters() if "lm_head" in name)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"classifier_pooling": "mean", "norm_bias": True},
        {"classifier_bias": True, "classifier_activation": "silu", "norm_eps": 1e-3, "num_labels": 3},
    ],
)
async def test_the_head_of_modernbert_is_that_of_transformers(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    kind, fields = transformers.ModernBertForSequenceClassification, CONFIGS["modernbert"][1]
    torch.manual_seed(4)
    sizes = {**SIZES, "max_position_embeddings": 320, "pad_token_id": 0, "num_labels": 1, **fields, **changes}
    model = kind(kind.config_class(**sizes)).eval()
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if "norm" in name or name.endswith("bias"):
                tensor.add_(0.3 * torch.randn_like(tensor))
    model.save_pretrained(tmp_path)
    executor = await started(tmp_path)
    labels = tuple(range(sizes["num_labels"]))
    assert (executor.info().num_labels, executor.info().token_types) == (len(labels), 1)
    assert executor.info().num_parameters == model.num_parameters()
    ids = texts()
    output = await executor.unified_decode(pairs(ids, labels, (None,) * len(ids)))
    for number, one in enumerate(ids):
        with torch.no_grad():
            right = model(torch.from_numpy(one.astype(np.int64))[None]).logits[0].numpy()
        assert off(output.details[number].pooled, right) < 1e-5 * max(1.0, abs(right).max())


def test_a_pooling_of_modernberts_head_that_is_not_known_is_refused(tmp_path: Path) -> None:
    rotary(tmp_path, "modernbert")
    path = tmp_path / "config.json"
    values = {
        **json.loads(path.read_text()),
        "architectures": ["ModernBertForSequenceClassification"],
        "classifier_pooling": "max",
    }
    path.write_text(json.dumps(values))
    with pytest.raises(ConfigError, match="classifier_pooling 'max'"):
        read_encoder(tmp_path)


async def test_scores_and_vectors_share_a_step(tmp_path: Path) -> None:
    model = cross_encoder(tmp_path, "bert", 2)
    executor = await started(tmp_path)
    ids = texts()[2:5]
    mixed = step(ids, ["logits", "mean", "logits"])
    starts = (
        replace(mixed.starts[0], label_ids=(1,), second_segment=2),
        replace(mixed.starts[1], second_segment=4),
        replace(mixed.starts[2], label_ids=(0, 1)),
    )
    output = await executor.unified_decode(replace(mixed, starts=starts))
    assert off(output.details[0].pooled, right_logits(model, ids[0], 2)[1:]) < 1e-5
    assert off(output.details[2].pooled, right_logits(model, ids[2], None)) < 1e-5
    types = torch.zeros(1, len(ids[1]), dtype=torch.int64)
    types[:, 4:] = 1
    with torch.no_grad():
        hidden = model.bert(torch.from_numpy(ids[1].astype(np.int64))[None], token_type_ids=types)[0][0]
    assert off(output.details[1].pooled, hidden.mean(0).numpy()) < 1e-5


@pytest.mark.parametrize(
    ("changes", "least"), [({"dtype": "bfloat16"}, 0.05), ({"optimization": OptimizationConfig(quantization="int8")}, 0.1)]
)  # fmt: skip
async def test_a_head_on_narrow_weights_stays_near(
    tmp_path: Path, changes: dict[str, Any], least: float
) -> None:
    model = cross_encoder(tmp_path, "xlm-roberta", 3)
    executor = await started(tmp_path, **changes)
    ids = texts()
    output = await executor.unified_decode(pairs(ids, (0, 1, 2), SEGMENTS))
    right = [right_logits(model, one, segment) for one, segment in zip(ids, SEGMENTS, strict=True)]
    spread = float(np.abs(np.array(right)).max())
    worst = max(off(output.details[number].pooled, one) for number, one in enumerate(right))
    assert 0 < worst < least * spread


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"second_segment": 7}, "second_segment 7 is outside 1..6"),
        ({"second_segment": 0}, "second_segment 0"),
        ({"second_segment": -1}, "second_segment -1"),
        ({"label_ids": (1,)}, "label_ids"),
        ({"label_ids": ()}, "label_ids"),
    ],
)
async def test_segments_and_labels_outside_of_the_model_are_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    cross_encoder(tmp_path)
    executor = await started(tmp_path)
    batch = pairs(texts()[2:3], (0,), (3,))
    with pytest.raises(InvalidInput, match=message):
        await executor.unified_decode(replace(batch, starts=(replace(batch.starts[0], **changes),)))
    assert (await executor.unified_decode(batch)).details


async def test_a_model_without_types_or_head_refuses_both(tmp_path: Path) -> None:
    made(tmp_path, "xlm-roberta", type_vocab_size=1)
    executor = await started(tmp_path)
    assert (executor.info().token_types, executor.info().num_labels) == (1, 0)
    batch = step(texts()[2:3], ["cls"])
    with pytest.raises(InvalidInput, match="no type for the tokens of a second text"):
        await executor.unified_decode(replace(batch, starts=(replace(batch.starts[0], second_segment=3),)))
    with pytest.raises(InvalidInput, match="label_ids"):
        await executor.unified_decode(pairs(texts()[2:3], (0,), (None,)))


@pytest.mark.parametrize("types", [1, 2])
async def test_an_encoder_keeps_the_contract_on_second_texts(tmp_path: Path, types: int) -> None:
    made(tmp_path, type_vocab_size=types)

    def make() -> EncoderExecutor:
        executor = LlmFactory().create_executor(config(tmp_path))
        assert isinstance(executor, EncoderExecutor)
        return executor

    assert await run_case("a_second_text_counts_or_is_refused", make, tolerance=1e-5) is None


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ({"id2label": {"0": "no", "1": "yes"}}, ("no", "yes")),
        ({"id2label": None, "num_labels": 1}, ("LABEL_0",)),
        ({"id2label": None}, ("LABEL_0", "LABEL_1")),
    ],
)
def test_labels_are_counted_as_transformers_counts_them(
    tmp_path: Path, values: dict[str, Any], labels: tuple[str, ...]
) -> None:
    cross_encoder(tmp_path, labels=len(labels))
    path = tmp_path / "config.json"
    kept = {name: one for name, one in json.loads(path.read_text()).items() if name != "label2id"}
    path.write_text(json.dumps({**kept, **values}))
    assert read_encoder(tmp_path).labels == labels
    assert transformers.AutoConfig.from_pretrained(tmp_path).num_labels == len(labels)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"id2label": {"1": "a", "2": "b"}}, "id2label"),
        ({"id2label": {}}, "id2label"),
        ({"id2label": ["a"]}, "id2label"),
        ({"id2label": None, "num_labels": 0}, "num_labels"),
    ],
)
def test_labels_that_cannot_be_counted_are_refused(
    tmp_path: Path, values: dict[str, Any], message: str
) -> None:
    cross_encoder(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
    with pytest.raises(ConfigError, match=message):
        LlmFactory().validate_config(config(tmp_path))


@pytest.mark.parametrize(
    ("family", "name"),
    [("bert", "bert.pooler.dense.weight"), ("bert", "classifier.bias"), ("roberta", "classifier.out_proj.weight")],
)  # fmt: skip
async def test_a_head_that_is_missing_or_has_another_shape_is_named(
    tmp_path: Path, family: str, name: str
) -> None:
    cross_encoder(tmp_path, family)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    bare = name.removeprefix("bert.")
    save_file({**tensors, name: torch.zeros(5)}, path, {"format": "pt"})
    with pytest.raises(ConfigError, match=rf"{name} has shape \[5\]"):
        await started(tmp_path)
    save_file({key: one for key, one in tensors.items() if key != name}, path, {"format": "pt"})
    with pytest.raises(ConfigError, match=f"tensor {bare} is missing"):
        await started(tmp_path)


async def test_random_weights_have_a_head_too(tmp_path: Path) -> None:
    cross_encoder(tmp_path, "camembert", 2)
    (tmp_path / "model.safetensors").unlink()
    executor = await started(tmp_path, load_format="dummy")
    output = await executor.unified_decode(pairs(texts()[:2], (0, 1), (None, 1)))
    assert all(np.isfinite(one.pooled).all() and one.pooled.any() for one in output.details.values())


# -- modules of sentence-transformers ------------------------------------------------------------------------------------


def with_modules(folder: Path, *names: str) -> None:
    """modules.json with these steps behind the transformer, each in a folder of its own."""
    steps = [
        {"idx": i, "type": f"sentence_transformers.models.{name}", "path": f"{i}_{name}" if i else ""}
        for i, name in enumerate(("Transformer", *names))
    ]
    (folder / "modules.json").write_text(json.dumps(steps))


def with_dense(
    folder: Path, inputs: int, outputs: int, activation: str, bias: bool = True, **changes: Any
) -> torch.nn.Sequential:
    """A layer in a folder, as sentence-transformers saves it. Returns the same of torch."""
    folder.mkdir(exist_ok=True)
    module = getattr(torch.nn, activation)()
    name = f"{type(module).__module__}.{activation}"
    values = {"in_features": inputs, "out_features": outputs, "bias": bias, "activation_function": name}
    (folder / "config.json").write_text(json.dumps({**values, **changes}))
    linear = torch.nn.Linear(inputs, outputs, bias)
    save_file(
        {f"linear.{key}": one for key, one in linear.state_dict().items()}, folder / "model.safetensors"
    )
    return torch.nn.Sequential(linear, module).eval()


async def test_vectors_go_through_the_layers_behind_the_pooling(tmp_path: Path) -> None:
    model = made(tmp_path)
    for order in (
        ("Pooling", "Dense", "Dropout", "Dense"),
        ("Dense", "Pooling", "Dense"),
        ("Pooling", "Normalize", "Dense"),
    ):
        with_modules(tmp_path, *order)
        assert read_encoder(tmp_path).dense == (), "an order that is not computed here"
    with_modules(tmp_path, "Pooling", "Dense", "Dense", "Normalize")
    first = with_dense(tmp_path / "2_Dense", 48, 32, "Tanh")
    second = with_dense(tmp_path / "3_Dense", 32, 20, "Identity", bias=False)
    executor = await started(tmp_path)
    info = executor.info()
    assert (info.vector_layers, info.embedding_size, info.hidden_size) == ((32, 20), 20, 48)
    assert info.num_parameters == model.num_parameters() + 48 * 32 + 32 + 32 * 20
    ids, poolings = texts(), ["cls", "mean", "last", "cls", "mean", "last"]
    output = await executor.unified_decode(step(ids, poolings))
    for number, (one, pooling) in enumerate(zip(ids, poolings, strict=True)):
        hidden = expected(model, one)
        pooled = {"cls": hidden[0], "last": hidden[-1], "mean": hidden.mean(0)}[pooling]
        with torch.no_grad():
            right = second(first(torch.from_numpy(pooled.copy()))).numpy()
        assert off(output.details[number].pooled, right) < 1e-5


@pytest.mark.parametrize("family", CONFIGS)
async def test_layers_of_vectors_stand_on_encoders_with_rotary_positions(tmp_path: Path, family: str) -> None:
    """EmbeddingGemma has two, without biases and activations."""
    model = rotary(tmp_path, family)
    hidden = model.config.hidden_size
    with_modules(tmp_path, "Pooling", "Dense", "Dense", "Normalize")
    first = with_dense(tmp_path / "2_Dense", hidden, 2 * hidden, "Identity", bias=False)
    second = with_dense(tmp_path / "3_Dense", 2 * hidden, hidden, "Identity", bias=False)
    executor = await started(tmp_path)
    info, own = executor.info(), sum(one.numel() for one in model.parameters())
    assert (info.vector_layers, info.num_parameters) == ((2 * hidden, hidden), own + 4 * hidden * hidden)
    memory = executor.capabilities().memory
    ids = texts()
    output = await executor.unified_decode(step(ids, ["mean"] * len(ids)))
    for number, one in enumerate(ids):
        with torch.no_grad():
            right = second(first(torch.from_numpy(expected(model, one).mean(0)))).numpy()
        assert off(output.details[number].pooled, right) < 1e-5 * max(1.0, float(np.abs(right).max()))
    (tmp_path / "modules.json").unlink()
    bare = (await started(tmp_path)).capabilities().memory
    assert memory.parameter_memory - bare.parameter_memory == 4 * 4 * hidden * hidden


def _remove_weights(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def _save(name: str, shape: tuple[int, ...]) -> Callable[[Path], None]:
    def save(folder: Path) -> None:
        path = folder / "model.safetensors"
        save_file({**load_file(path), name: torch.zeros(shape)}, path)

    return save


@pytest.mark.parametrize(
    ("changes", "damage", "message"),
    [
        ({"activation_function": "torch.nn.modules.activation.Mish"}, None, "Mish' is not supported"),
        ({"in_features": 50}, None, "in_features is 50; vectors of 48"),
        ({"out_features": 0}, None, "out_features"),
        ({"bias": 1}, None, "bias is 1"),
        ({"module_output_name": "token_embeddings"}, None, "module_output_name"),
        ({"use_residual": True}, None, "use_residual is not known"),
        ({}, _remove_weights, "read from safetensors alone"),
        ({}, _save("linear.weight", (48, 31)), "has shape"),
        ({}, _save("gate.weight", (2,)), "gate.weight is not used"),
    ],
)
async def test_layers_behind_the_pooling_that_are_not_computed_are_refused(
    tmp_path: Path, changes: dict[str, Any], damage: Callable[[Path], None] | None, message: str
) -> None:
    made(tmp_path)
    with_modules(tmp_path, "Pooling", "Dense")
    folder = tmp_path / "2_Dense"
    with_dense(folder, 48, 48, "Tanh", **changes)
    if damage is not None:
        damage(folder)
    with pytest.raises(ConfigError, match=message) as refused:
        await started(tmp_path)
    assert str(folder) in str(refused.value) and "\n" not in str(refused.value)


async def test_the_longest_text_is_that_of_sentence_transformers_unless_a_setting_asks_for_more(
    tmp_path: Path,
) -> None:
    made(tmp_path)
    with_modules(tmp_path, "Pooling")
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 40, "do_lower_case": false}')
    executor = await started(tmp_path)
    assert executor.info().max_model_len == 40
    with pytest.raises(InvalidInput, match="40"):
        await executor.unified_decode(step([np.full(41, 9, np.int32)], ["mean"]))
    assert (await started(tmp_path, max_model_len=70)).info().max_model_len == 70
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": "many"}')
    with pytest.raises(ConfigError, match="max_seq_length"):
        read_encoder(tmp_path)
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 900}')
    assert read_encoder(tmp_path).context_length == 70
