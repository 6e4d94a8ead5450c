"""`cohort verify` on encoders: equal to transformers, and what was made different is found."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from executors.llm.encoder.reading import read_encoder
from executors.llm.tools import compare
from server.commands.verify import command as verb
from server.commands.verify import view
from tests.e2e.test_cross_encoders import WRITERS
from tests.executors.llm.encoder.test_encoders import made
from tests.executors.llm.encoder.test_heads import with_dense, with_modules

pytestmark = pytest.mark.long


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def in_process(job: dict[str, Any]) -> dict[str, Any]:
    """As the child does it: what travels is plain JSON."""
    return json.loads(json.dumps(compare.run(json.loads(json.dumps(job)), lambda stage: None)))


def compared(model: Path, **options: Any) -> dict[str, Any]:
    return verb.compare(model, model, verb.Options(num_threads=1, **options), in_process)


@pytest.fixture(params=sorted(WRITERS))
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    torch.manual_seed(2)
    WRITERS[request.param](tmp_path)
    return tmp_path


def outcomes(report: dict[str, Any]) -> dict[str, str]:
    return {name: report[name]["outcome"] for name in ("token_ids", "pairs", "vectors", "labels")}


def test_a_cross_encoder_is_equal(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = compared(model)
    assert report["equal"] and set(outcomes(report).values()) == {"equal"}, outcomes(report)
    rows = report["vectors"]["texts"]
    assert len(rows) > 5
    assert any(row["pair"] for row in rows) == (read_encoder(model).num_types > 1)
    assert 0 < max(row["vectors"] for row in rows) < report["tolerance"] < 1e-4
    view.show(report, "model")
    text = capsys.readouterr().out
    assert "Equal." in text and "1 of a head" in text and "pairs, ids and types" in text


def test_a_narrower_dtype_may_lose_what_transformers_loses(model: Path) -> None:
    report = compared(model, dtype="bfloat16")
    assert report["equal"] and report["tolerance"] > 1e-3


def change(path: Path, ending: str) -> None:
    tensors = load_file(path)
    name = next(name for name in tensors if name.endswith(ending))
    tensors[name] = tensors[name] * 1.001
    save_file(tensors, path, {"format": "pt"})


@pytest.mark.parametrize(
    ("ending", "parts"),
    [("classifier.weight", {"labels"}), ("layer.1.output.dense.weight", {"labels", "vectors"})],
)
def test_other_weights_differ(
    tmp_path: Path, ending: str, parts: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(2)
    reference = tmp_path / "reference"
    reference.mkdir()
    WRITERS["bert"](reference)
    copy = Path(shutil.copytree(reference, tmp_path / "copy"))
    change(copy / "model.safetensors", ending)
    report = verb.compare(copy, reference, verb.Options(num_threads=1), in_process)
    assert {name for name, outcome in outcomes(report).items() if outcome == "different"} == parts
    assert not report["equal"]
    view.show(report, "model")
    assert "Different: " in capsys.readouterr().out


def test_another_post_processor_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """transformers joins pairs of BERT's class as it knows them, whatever the file says."""
    WRITERS["bert"](tmp_path)
    path = tmp_path / "tokenizer.json"
    content = json.loads(path.read_text())
    for piece in content["post_processor"]["pair"]:
        next(iter(piece.values()))["type_id"] = 0
    path.write_text(json.dumps(content))
    report = compared(tmp_path)
    assert not report["equal"] and outcomes(report)["pairs"] == "different"
    view.show(report, "model")
    assert "pair of" in capsys.readouterr().out


def test_layers_behind_the_pooling_are_compared_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made(tmp_path)
    with_modules(tmp_path, "Pooling", "Dense", "Normalize")
    with_dense(tmp_path / "2_Dense", 48, 20, "Tanh")
    report = compared(tmp_path)
    assert report["equal"], report
    assert outcomes(report) == {
        "token_ids": "not there",
        "pairs": "not there",
        "vectors": "equal",
        "labels": "not there",
    }
    view.show(report, "model")
    assert "no head" in capsys.readouterr().out
