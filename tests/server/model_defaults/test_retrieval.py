"""What model directories say of retrieval: prompts, and how pairs are scored."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from executors.contract import ConfigError
from server.model_defaults.pooling import DefaultPooling, default_pooling, length_notes
from server.model_defaults.retrieval import Scoring, embedding_prompts, scoring
from server.model_files.prepared import write_source
from tests.executors.gguf_files import write_gguf
from tests.server.fakes import INFO

IDS = {"yes": 9, "no": 7}


def write(folder: Path, **files: Any) -> Path:
    for name, value in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(exist_ok=True)
        path.with_suffix(".json").write_text(json.dumps(value))
    return folder


def found(folder: Path, *names: str, tokens: str | None = None, **facts: Any) -> Scoring:
    info = replace(INFO, **facts)
    return scoring(folder, names, info, default_pooling(folder), IDS.get, tokens)


def steps(*types: str) -> list[dict[str, str]]:
    return [
        {"type": f"sentence_transformers.x.{one}", "path": f"{i}_{one}" if i else ""}
        for i, one in enumerate(types)
    ]


def test_what_makes_a_reranker(tmp_path: Path) -> None:
    assert found(tmp_path) == Scoring()
    assert found(tmp_path, "Qwen/Qwen3-Reranker-0.6B").label_ids == (9, 7)
    assert found(tmp_path, "qwen3_reranker-4b.q8").label_ids == (9, 7)
    assert found(tmp_path, "Qwen3-0.6B").kind == ""
    assert found(tmp_path, "mine", tokens="no,yes").label_ids == (9, 7)
    assert found(tmp_path, "mine", generates=False, num_labels=1) == Scoring((0,))
    write(tmp_path, config={"classifier_from_token": ["no", "yes"]})
    assert found(tmp_path).label_ids == (9, 7)
    write(tmp_path, modules=steps("Transformer", "LogitScore"))
    write(tmp_path, **{"1_LogitScore__config": {"true_token_id": 3, "false_token_id": None}})
    assert found(tmp_path).label_ids == (3,)
    write(tmp_path, **{"1_LogitScore__config": {"true_token_id": 3, "false_token_id": 4}})
    assert found(tmp_path).label_ids == (3, 4)


IDENTITY, SIGMOID = "torch.nn.modules.linear.Identity", "torch.nn.modules.activation.Sigmoid"


@pytest.mark.parametrize(
    ("files", "as_logits"),
    [
        ({}, False),
        ({"config": {"sentence_transformers": {"activation_fn": IDENTITY, "version": "4.0.1"}}}, True),
        ({"config": {"sentence_transformers": {"activation_fn": SIGMOID}}}, False),
        ({"config": {"sentence_transformers": {}, "sbert_ce_default_activation_function": IDENTITY}}, True),
        ({"config": {"sbert_ce_default_activation_function": None}}, False),
        ({"config_sentence_transformers": {"activation_fn": IDENTITY, "default_prompt_name": None}}, True),
        (
            {
                "config_sentence_transformers": {"activation_fn": SIGMOID},
                "config": {"sbert_ce_default_activation_function": IDENTITY},
            },
            False,
        ),
    ],
)
def test_scores_have_the_activation_that_the_files_name(
    tmp_path: Path, files: dict[str, Any], as_logits: bool
) -> None:
    write(tmp_path, **files)
    assert found(tmp_path, generates=False, num_labels=1) == Scoring((0,), as_logits=as_logits)
    write(
        tmp_path, modules=steps("Transformer", "LogitScore"), **{"1_LogitScore__config": {"true_token_id": 3}}
    )
    assert found(tmp_path) == Scoring((3,), as_logits=as_logits)


def test_a_head_that_makes_no_score_says_why(tmp_path: Path) -> None:
    def reason(**facts: Any) -> str:
        how = found(tmp_path, generates=False, **facts)
        assert how.kind == ""
        return how.reason

    assert "has 3 labels, and a score is made of one" in reason(num_labels=3)
    write(tmp_path, config={"id2label": {"0": "contradiction", "1": "entailment"}})
    assert "2 labels (contradiction, entailment)" in reason(num_labels=2)
    write(tmp_path, config={"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Tanh"}})
    assert "torch.nn.modules.activation.Tanh; supported: Sigmoid, Identity" in reason(num_labels=1)
    write(
        tmp_path,
        config={},
        config_sentence_transformers={"default_prompt_name": "query", "prompts": {"query": "q"}},
    )
    assert "default_prompt_name" in reason(num_labels=1)


def test_the_prompt_before_every_text(tmp_path: Path) -> None:
    write(
        tmp_path,
        config_sentence_transformers={"prompts": {"document": "passage: "}, "default_prompt_name": None},
    )
    assert embedding_prompts(tmp_path).default is None
    write(
        tmp_path,
        config_sentence_transformers={
            "prompts": {"document": "passage: "},
            "default_prompt_name": "document",
        },
    )
    assert embedding_prompts(tmp_path).default == "document"
    write(tmp_path, config_sentence_transformers={"prompts": {}, "default_prompt_name": "document"})
    with pytest.raises(
        ConfigError, match="default_prompt_name is 'document', and 'prompts' has no such name"
    ):
        embedding_prompts(tmp_path)


def test_embedding_models_compare_vectors(tmp_path: Path) -> None:
    assert found(tmp_path, generates=False).by_vectors
    write(tmp_path, modules=steps("Transformer", "Pooling", "Normalize"))
    write(tmp_path, **{"1_Pooling__config": {"pooling_mode_lasttoken": True}})
    assert found(tmp_path, "mine").kind == "embedding"
    write(tmp_path, **{"1_Pooling__config": {"pooling_mode_cls_token": True}})
    assert found(tmp_path) == Scoring(reason="the model's own pooling is cls_token")


@pytest.mark.parametrize("name", ["cosine", "dot", "euclidean", "manhattan", None])
@pytest.mark.parametrize("last", ["Normalize", "Pooling"])
def test_embedding_models_name_their_similarity(tmp_path: Path, name: str | None, last: str) -> None:
    write(tmp_path, modules=steps(*dict.fromkeys(("Transformer", "Pooling", last))))
    write(tmp_path, **{"1_Pooling__config": {"pooling_mode_lasttoken": True}})
    write(tmp_path, config_sentence_transformers={"similarity_fn_name": name})
    how = found(tmp_path)
    assert (how.by_vectors, how.similarity) == (True, name or "cosine")
    assert how.unit_length == (last == "Normalize" or how.similarity == "cosine")


def test_a_similarity_that_is_not_known_is_named(tmp_path: Path) -> None:
    write(tmp_path, modules=steps("Transformer", "Pooling"))
    write(tmp_path, **{"1_Pooling__config": {"pooling_mode_lasttoken": True}})
    write(tmp_path, config_sentence_transformers={"similarity_fn_name": "jaccard"})
    assert found(tmp_path).kind == "" and "similarity_fn_name is jaccard" in found(tmp_path).reason


MODES: list[tuple[dict[str, Any], str | None, str]] = [
    ({"pooling_mode_lasttoken": True}, "last", ""),
    ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, "mean", ""),
    ({"pooling_mode": "mean"}, "mean", ""),
    ({"pooling_mode": "lasttoken", "pooling_mode_mean_tokens": True}, "last", ""),  # the later key wins there
    ({"pooling_mode": ["mean"]}, "mean", ""),
    ({}, "mean", ""),
    ({"pooling_mode_lasttoken": False}, "mean", ""),
    ({"pooling_mode": "cls"}, None, "cls"),
    ({"pooling_mode_cls_token": True}, None, "cls_token"),
    ({"pooling_mode_max_tokens": True}, None, "max_tokens"),
    ({"pooling_mode_weightedmean_tokens": True}, None, "weightedmean_tokens"),
    ({"pooling_mode": "weightedmean"}, None, "weightedmean"),
    ({"pooling_mode_mean_sqrt_len_tokens": True}, None, "mean_sqrt_len_tokens"),
    ({"pooling_mode": ["cls", "mean"]}, None, "cls and mean"),
    ({"pooling_mode_mean_tokens": True, "pooling_mode_lasttoken": True}, None, "mean_tokens and lasttoken"),
]  # fmt: skip


@pytest.mark.parametrize("folder", ["1_Pooling", "2_Pooling", "pooling"])
@pytest.mark.parametrize(("config", "kind", "named"), MODES)
def test_the_pooling_of_the_folder_that_modules_json_names(
    tmp_path: Path, folder: str, config: dict[str, Any], kind: str | None, named: str
) -> None:
    listed = [
        {"type": "sentence_transformers.models.Transformer", "path": ""},
        {"type": "sentence_transformers.models.Pooling", "path": folder},
    ]
    write(tmp_path, modules=listed, **{f"{folder}__config": {"word_embedding_dimension": 8, **config}})
    reason = f"the model's own pooling is {named}" if kind is None else ""
    assert default_pooling(tmp_path) == DefaultPooling(kind, reason, declared=True)


def test_what_sentence_transformers_does_beside_pooling(tmp_path: Path) -> None:
    write(tmp_path, modules=steps("Transformer", "Pooling", "Dropout", "Normalize"))
    assert default_pooling(tmp_path) == DefaultPooling(
        None, "1_Pooling/config.json, which modules.json names, is missing", True
    )
    write(tmp_path, **{"1_Pooling__config": {"pooling_mode": "mean", "include_prompt": False}})
    assert default_pooling(tmp_path) == DefaultPooling("mean", "", True, False)
    write(tmp_path, sentence_bert_config={"max_seq_length": 512, "do_lower_case": True})
    assert default_pooling(tmp_path) == DefaultPooling("mean", "", True, False, lower_case=True)
    write(tmp_path, sentence_bert_config={"max_seq_length": 512, "do_lower_case": False})
    assert default_pooling(tmp_path) == DefaultPooling("mean", "", True, False)
    [note] = length_notes(tmp_path, INFO)
    assert "max_seq_length 512 is not applied" in note
    assert length_notes(tmp_path, replace(INFO, token_types=2)) == (), "it is an encoder's context"
    write(tmp_path, modules=steps("Transformer", "Pooling", "Dense", "Dense", "Normalize"))
    assert default_pooling(tmp_path, vector_layers=(4, 3)).kind == "mean", "the executor computes them"
    for other in ("Dense", "LayerNorm", "WeightedLayerPooling"):
        write(tmp_path, modules=steps("Transformer", "Pooling", other, other, "Normalize"))
        assert default_pooling(tmp_path) == DefaultPooling(None, f"the model ends with a module '{other}'")
    for listed, said in (
        (steps("Transformer", "Pooling", "Pooling"), "two modules 'Pooling'"),
        ([{"type": "x.Pooling", "path": "../1_Pooling"}], "path '../1_Pooling'"),
    ):
        write(tmp_path, modules=listed)
        with pytest.raises(ConfigError, match=said):
            default_pooling(tmp_path)


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (None, DefaultPooling()),
        (0xFFFF_FFFF, DefaultPooling()),  # -1, unspecified, written without a sign
        (0, DefaultPooling(None, "the model's own pooling is none")),
        (1, DefaultPooling("mean", "", True)),
        (2, DefaultPooling(None, "the model's own pooling is cls", True)),
        (3, DefaultPooling("last", "", True)),
        (4, DefaultPooling(None, "its GGUF file names rank, a reranker's")),
        (9, DefaultPooling(None, "the model's own pooling is pooling_type 9", True)),
    ],
)
def test_the_pooling_of_a_gguf_file(tmp_path: Path, number: int | None, expected: DefaultPooling) -> None:
    named = {} if number is None else {"pooling_type": number}
    file = write_gguf(tmp_path / "a.gguf", "qwen3", named, {"token_embd.weight": torch.zeros(4, 4)})
    source = {"files": [str(file)], "header": ""}
    (tmp_path / "gguf.json").write_text(json.dumps(source))
    assert default_pooling(tmp_path) == expected, "a directory that an earlier version made"
    file.unlink()
    (tmp_path / "gguf.json").write_text(json.dumps(source | {"pooling": number}))
    assert default_pooling(tmp_path) == expected
    assert found(tmp_path, "mine").by_vectors is (number in (1, 3))
    assert (
        number != 4 or "rank, a reranker's, and it has no head for labels" in found(tmp_path, "mine").reason
    )
    assert found(tmp_path, "mine", generates=False, num_labels=2).label_ids == (0, 1)
    encoder = {"generates": False, "token_types": 1}
    assert found(tmp_path, "mine", **encoder, num_labels=1).label_ids == (0,)
    several = found(tmp_path, "mine", **encoder, num_labels=2)
    assert not several.label_ids and "has 2 labels, and a score is made of one" in several.reason


def test_a_pooling_type_that_is_no_number_is_refused(tmp_path: Path) -> None:
    file = write_gguf(
        tmp_path / "a.gguf", "qwen3", {"pooling_type": "mean"}, {"token_embd.weight": torch.zeros(4, 4)}
    )
    with pytest.raises(
        ConfigError, match=r"a\.gguf: qwen3\.pooling_type is 'mean'; a number is needed, such as"
    ):
        write_source(file, tmp_path / "made")


@pytest.mark.parametrize(
    ("tokens", "facts", "said"),
    [
        ("no", {}, "two tokens are needed"),
        ("no,perhaps", {}, "'perhaps' is not one token"),
        ("no,yes", {"generates": False}, "no lm_head"),
        ("no,yes", {"generates": False, "num_labels": 1}, "has a classification head"),
    ],
)
def test_tokens_that_cannot_score(tmp_path: Path, tokens: str, facts: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        found(tmp_path, tokens=tokens, **facts)


def test_broken_files_are_named(tmp_path: Path) -> None:
    write(tmp_path, modules=steps("Transformer", "LogitScore"))
    for config in (
        {},
        {"true_token_id": "9"},
        {"true_token_id": 10**6},
        {"true_token_id": 1, "false_token_id": -1},
    ):
        write(tmp_path, **{"1_LogitScore__config": config})
        with pytest.raises(ConfigError, match="1_LogitScore"):
            found(tmp_path)


def test_prompts(tmp_path: Path) -> None:
    assert embedding_prompts(tmp_path).instructed is None
    query = "Instruct: Given a web search query, retrieve relevant passages\nQuery:"
    write(tmp_path, config_sentence_transformers={"prompts": {"document": "", "query": query, "odd": 3}})
    prompts = embedding_prompts(tmp_path)
    assert prompts.by_name == {"document": "", "query": query}
    assert prompts.instructed == ("Instruct: ", "\nQuery:")
    assert default_pooling(tmp_path) == DefaultPooling()
