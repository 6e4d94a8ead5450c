"""What model directories say of retrieval: prompts, and how pairs are scored."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from executors.contract import ConfigError
from server.model_defaults.pooling import DefaultPooling, default_pooling
from server.model_defaults.retrieval import Scoring, embedding_prompts, scoring
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
    assert found(tmp_path, "mine", generates=False, num_labels=1).label_ids == (0,)
    write(tmp_path, config={"classifier_from_token": ["no", "yes"]})
    assert found(tmp_path).label_ids == (9, 7)
    write(tmp_path, modules=steps("Transformer", "LogitScore"))
    write(tmp_path, **{"1_LogitScore__config": {"true_token_id": 3, "false_token_id": None}})
    assert found(tmp_path).label_ids == (3,)
    write(tmp_path, **{"1_LogitScore__config": {"true_token_id": 3, "false_token_id": 4}})
    assert found(tmp_path).label_ids == (3, 4)


def test_embedding_models_compare_vectors(tmp_path: Path) -> None:
    assert found(tmp_path, generates=False).by_vectors
    write(tmp_path, modules=steps("Transformer", "Pooling", "Normalize"))
    write(tmp_path, **{"1_Pooling__config": {"pooling_mode_lasttoken": True}})
    assert found(tmp_path, "mine").kind == "embedding"
    write(tmp_path, **{"1_Pooling__config": {"pooling_mode_cls_token": True}})
    assert found(tmp_path) == Scoring(reason="the model's own pooling is cls_token")


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
