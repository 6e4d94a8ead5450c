"""What a start says of the defaults of sampling."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from server.model_defaults.generation_config import choose
from server.model_defaults.sampling_note import sampling_note
from server.model_files import default_model


def note(
    folder: Path, choice: str = "auto", override: dict[str, object] | None = None, **more: object
) -> str:
    chosen = choose(choice, override or {}, folder, **more)  # type: ignore[arg-type]
    return sampling_note(chosen.defaults, chosen.source)


def write(folder: Path, **values: object) -> None:
    (folder / "generation_config.json").write_text(json.dumps(values))


def test_a_model_without_any(tmp_path: Path) -> None:
    line = note(tmp_path)
    assert line.startswith("temperature 1 and nothing else: the model brings no defaults; ")
    assert """--override-generation-config '{"temperature": 0.7, "min_p": 0.1}'""" in line
    write(tmp_path, eos_token_id=2, pad_token_id=0)
    assert note(tmp_path) == line, "end tokens are no sampling"
    write(tmp_path, temperature=0.5)
    assert (
        note(tmp_path, "none") == "temperature 1 (--generation-config none), unless a request says otherwise"
    )


def test_where_they_come_from(tmp_path: Path) -> None:
    write(tmp_path, temperature=0.6, top_p=0.9)
    end = ", unless a request says otherwise"
    assert note(tmp_path) == f"temperature 0.6, top_p 0.9 (generation_config.json){end}"
    both = note(tmp_path, override={"min_p": 0.1})
    assert (
        both
        == f"temperature 0.6, top_p 0.9, min_p 0.1 (generation_config.json, --override-generation-config){end}"
    )
    packaged = note(tmp_path, packaged={"top_k": 40})
    assert "top_k 40 (generation_config.json, the parameters of Ollama's model)" in packaged
    write(tmp_path, do_sample=False)
    assert note(tmp_path) == f"temperature 0 (generation_config.json){end}"
    write(tmp_path, temperature=1.0)
    assert note(tmp_path) == f"temperature 1 (generation_config.json){end}", "said by the model, not lacking"


def test_metadata_of_a_gguf_file(tmp_path: Path) -> None:
    write(tmp_path, temperature=0.6, top_k=20)
    (tmp_path / "gguf.json").write_text(json.dumps({"files": ["/models/m.gguf"]}))
    assert "(general.sampling.* of m.gguf)" in note(tmp_path)


def test_the_default_model_and_its_file_by_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "min_p 0.15" in note(tmp_path, shipped=default_model.SAMPLING)
    assert "(Cohort, for its default model)" in note(tmp_path, shipped=default_model.SAMPLING)
    chosen = choose("auto", {}, tmp_path)
    line = sampling_note(chosen.defaults, chosen.source, is_default_file=True)
    assert line.endswith("served by name, or where none is given, this model gets Cohort's")
    file = tmp_path / "copy.gguf"
    file.write_bytes(b"the model")
    assert not default_model.is_file_of(file)
    monkeypatch.setattr(default_model, "SIZE", 9)
    assert not default_model.is_file_of(file)
    monkeypatch.setattr(default_model, "SHA256", default_model._sha256(file))
    assert default_model.is_file_of(file)
    assert not default_model.is_file_of(tmp_path)
