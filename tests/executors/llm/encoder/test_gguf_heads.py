"""Classification heads in GGUF files: the logits of the same weights in safetensors, and heads that are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file

from executors.contract import ConfigError
from executors.llm.encoder.reading import family_in, read_encoder
from executors.llm.tools.describe import describe
from tests.executors.gguf_files import prepared
from tests.executors.llm.encoder.gguf_encoders import write_encoder
from tests.executors.llm.encoder.rotary_models import CONFIGS
from tests.executors.llm.encoder.test_encoders import SIZES, config, started, texts
from tests.executors.llm.encoder.test_gguf_encoders import vectors
from tests.executors.llm.encoder.test_heads import SEGMENTS, cross_encoder, pairs

LABELS = {"id2label": {0: "no", 1: "maybe", 2: "yes"}, "label2id": {"no": 0, "maybe": 1, "yes": 2}}


def modernbert(folder: Path, **changes: Any) -> transformers.PreTrainedModel:
    """A random ModernBERT with a head, saved; norms and biases are random, too."""
    kind, fields = transformers.ModernBertForSequenceClassification, CONFIGS["modernbert"][1]
    torch.manual_seed(4)
    sizes = {**SIZES, "max_position_embeddings": 320, "pad_token_id": 0, "num_labels": 1, **fields, **changes}
    model = kind(kind.config_class(**sizes)).eval()
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if "norm" in name or name.endswith("bias"):
                tensor.add_(0.3 * torch.randn_like(tensor))
    model.save_pretrained(folder)
    return model


async def logits(
    folder: Path, labels: int, segments: tuple[int | None, ...] = SEGMENTS, **changes: Any
) -> np.ndarray:
    """float32 [texts, labels] of an executor."""
    executor = await started(folder, **changes)
    assert executor.info().num_labels == labels
    ids = texts()
    output = await executor.unified_decode(pairs(ids, tuple(range(labels)), segments))
    return np.stack([output.details[number].pooled for number in range(len(ids))])


def written(tmp_path: Path, **given: Any) -> Path:
    """The directory of the file that the converter makes of `hf`."""
    return prepared(tmp_path / "gguf", write_encoder(tmp_path / "m.gguf", tmp_path / "hf", **given))


@pytest.mark.parametrize("family", ["roberta", "xlm-roberta"])
@pytest.mark.parametrize("labels", [1, 3])
async def test_roberta_scores_as_its_safetensors(tmp_path: Path, family: str, labels: int) -> None:
    """As bge-reranker-v2-m3 and jina-reranker-v2."""
    cross_encoder(tmp_path / "hf", family, labels)
    directory = written(tmp_path)
    found = await logits(directory, labels)
    right = await logits(tmp_path / "hf", labels)
    np.testing.assert_allclose(found, right, atol=1e-6 * max(1.0, float(abs(right).max())))
    assert np.ptp(right) > 0.1
    assert family_in(directory) is not None
    facts = describe(config(directory))
    assert facts["checkpoint"]["problem"] is None and facts["warnings"] == []


@pytest.mark.parametrize(
    ("changes", "metadata"),
    [
        ({"classifier_pooling": "mean"}, {}),
        ({"classifier_pooling": "mean"}, {"classifier__pooling_type": None}),
        ({"classifier_pooling": "cls", "num_labels": 3}, {}),
        ({"classifier_pooling": "cls", "classifier_bias": True}, {}),
    ],
)
async def test_modernbert_scores_as_its_safetensors(
    tmp_path: Path, changes: dict[str, Any], metadata: dict[str, Any]
) -> None:
    modernbert(tmp_path / "hf", **changes)
    labels, none = changes.get("num_labels", 1), (None,) * len(texts())
    found = await logits(written(tmp_path, **metadata), labels, none)
    right = await logits(tmp_path / "hf", labels, none)
    np.testing.assert_allclose(found, right, atol=1e-6 * max(1.0, float(abs(right).max())))
    assert np.ptp(right) > 0.1


async def test_a_bert_without_its_pooler_scores_by_the_first_tokens_state(tmp_path: Path) -> None:
    """The converter leaves the pooler out, and llama.cpp multiplies what is left."""
    model = cross_encoder(tmp_path / "hf", "bert", 2)
    directory = written(tmp_path)
    read = read_encoder(directory)
    assert "logits are llama.cpp's" in "\n".join(read.notes)
    found = await logits(directory, 2)
    for number, (ids, segment) in enumerate(zip(texts(), SEGMENTS, strict=True)):
        types = torch.zeros(1, len(ids), dtype=torch.int64)
        if segment is not None:
            types[:, segment:] = 1
        with torch.no_grad():
            given = torch.from_numpy(ids.astype(np.int64))[None]
            first = model.bert(given, token_type_ids=types)[0][0, 0]
            right = model.classifier(first).numpy()
        np.testing.assert_allclose(found[number], right, atol=1e-5 * max(1.0, float(abs(right).max())))


async def test_labels_have_the_names_of_the_file(tmp_path: Path) -> None:
    cross_encoder(tmp_path / "hf", "roberta", 3, **LABELS)
    assert read_encoder(written(tmp_path)).labels == ("no", "maybe", "yes")
    bare = write_encoder(tmp_path / "b.gguf", tmp_path / "hf", classifier__output_labels=None)
    assert read_encoder(prepared(tmp_path / "bare", bare)).labels == ("LABEL_0", "LABEL_1", "LABEL_2")


async def test_a_label_of_one_row_may_be_a_vector(tmp_path: Path) -> None:
    """As older versions of the converter squeezed it."""
    cross_encoder(tmp_path / "hf", "xlm-roberta", 1)

    def squeeze(tensors: dict[str, torch.Tensor]) -> None:
        tensors["cls.output.weight"] = tensors["cls.output.weight"][0]

    found = await logits(written(tmp_path, change=squeeze), 1)
    right = await logits(tmp_path / "hf", 1)
    np.testing.assert_allclose(found, right, atol=1e-6 * max(1.0, float(abs(right).max())))


@pytest.mark.parametrize("kind", ["F16", "Q8_0"])
async def test_a_head_may_be_narrow(tmp_path: Path, kind: str) -> None:
    wide = {"hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 96}
    cross_encoder(tmp_path / "hf", "xlm-roberta", 2, **wide)
    directory = written(tmp_path, kinds=lambda name: kind if name.startswith("cls.") else "F32")
    found = await logits(directory, 2, dtype="float32")
    right = await logits(tmp_path / "hf", 2)
    assert 0 < float(abs(found - right).max()) < 0.02 * float(abs(right).max())


async def test_an_encoder_with_a_head_makes_vectors_too(tmp_path: Path) -> None:
    cross_encoder(tmp_path / "hf", "roberta", 1)
    np.testing.assert_allclose(await vectors(written(tmp_path)), await vectors(tmp_path / "hf"), atol=1e-6)


@pytest.mark.parametrize(
    ("family", "removed", "added", "message"),
    [
        ("roberta", ("cls.output.weight", "cls.output.bias"), {}, "tensor cls.output.bias is missing, a part of the class"),
        ("roberta", ("cls.bias",), {}, "tensor cls.bias is missing"),
        ("bert", ("cls.output.bias",), {}, "tensor cls.output.bias is missing"),
        ("bert", (), {"cls.norm.weight": (48,)}, "tensor cls.norm.weight is not supported for architecture bert"),
        ("bert", (), {"cls.output.weight": (2, 47)}, r"tensor cls.output.weight has shape \[2, 47\]"),
        ("bert", (), {"cls.output.weight": (3, 48)}, "classifier.output_labels has 2 names; .* has 3 rows"),
    ],
)  # fmt: skip
async def test_heads_that_are_not_computed_are_refused(
    tmp_path: Path, family: str, removed: tuple[str, ...], added: dict[str, tuple[int, ...]], message: str
) -> None:
    cross_encoder(tmp_path / "hf", family, 2)

    def change(tensors: dict[str, torch.Tensor]) -> None:
        for name in removed:
            del tensors[name]
        tensors.update({name: torch.zeros(shape) for name, shape in added.items()})

    with pytest.raises(ConfigError, match=message) as refused:
        read_encoder(written(tmp_path, change=change))
    assert "m.gguf" in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(("value", "family"), [(1, "bert"), (3, "modernbert"), (0, "modernbert")])
def test_a_pooling_before_the_head_that_is_not_computed_is_refused(
    tmp_path: Path, value: int, family: str
) -> None:
    if family == "modernbert":
        modernbert(tmp_path / "hf")
    else:
        cross_encoder(tmp_path / "hf", family, 1)
    with pytest.raises(ConfigError, match=rf"classifier.pooling_type.* {value}"):
        read_encoder(written(tmp_path, classifier__pooling_type=value))


async def test_a_head_of_another_shape_is_named_as_in_the_file(tmp_path: Path) -> None:
    cross_encoder(tmp_path / "hf", "roberta", 1)
    change = {"cls.weight": torch.zeros(40, 48)}
    path = written(tmp_path, change=lambda tensors: tensors.update(change))
    with pytest.raises(
        ConfigError, match=r"tensor cls.weight has shape \[40, 48\]; m.gguf asks for \[48, 48\]"
    ):
        await started(path)
    assert load_file(tmp_path / "hf/model.safetensors")["classifier.dense.weight"].shape == (48, 48)
