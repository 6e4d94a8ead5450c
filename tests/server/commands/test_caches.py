"""`cohort list --caches` knows every folder that the code writes to."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import executors
import server
from server.commands.list import caches
from server.model_files import default_model, made_tokenizer, prepared
from server.running import registry
from server.startup import pace_file
from server.startup.best_model import memory

WRITERS = {
    "server/lora/store.py": "adapters",
    "server/startup/best_model/memory.py": memory.FOLDER,
    "server/startup/pace_file.py": pace_file.FOLDER,
    "server/model_files/default_model.py": default_model._FOLDER,
    "server/model_files/made_tokenizer.py": made_tokenizer._FOLDER,
    "server/model_files/prepared.py": prepared._FOLDER,
    "server/running/registry.py": registry.CACHE_FOLDER,
    "executors/kernels/compiler.py": "kernels",
}
"""Modules that name a folder of the cache, and the folder."""


def test_each_folder_that_the_code_writes_to_is_known() -> None:
    found = set()
    for package in (server, executors):
        root = Path(package.__file__ or "").parent
        for path in root.rglob("*.py"):
            text = path.read_text("utf-8")
            if re.search(r'private_folder\(_?[A-Z"]|cache_root\(\) / [A-Z_]|"cohort" / "kernels"', text):
                found.add(path.relative_to(root.parent).as_posix())
    assert found - {"server/commands/list/caches.py"} == set(WRITERS)
    # Of the tests alone: tools/real_models.py.
    assert set(caches._OWN) == {*WRITERS.values(), "real-models"}


def test_sizes_and_what_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(default_model, "environment_folder", lambda: tmp_path / "none")
    environ = {"HF_HUB_CACHE": str(tmp_path / "hub"), "TRITON_CACHE_DIR": str(tmp_path / "triton"),
               "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"), "XDG_RUNTIME_DIR": str(tmp_path / "run")}  # fmt: skip
    for folder, size in {
        "cohort/kernels": 2000,
        "cohort/gguf/a": 30,
        "cohort/old": 1,
        "hub/models--a": 50,
        "triton": 7,
    }.items():
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "file").write_bytes(b"x" * size)
    rows = {
        Path(row["path"]).relative_to(tmp_path).as_posix(): row
        for row in caches.folders(environ)
        if Path(row["path"]).is_relative_to(tmp_path)
    }
    assert {name: (row["size"], row["shared"]) for name, row in rows.items()} == {
        "cohort/kernels": (2000, False), "cohort/gguf": (30, False), "cohort/old": (1, False), "hub": (50, True),
        "triton": (7, True),
    }  # fmt: skip
    assert all(row["purpose"] and row["delete"] for row in rows.values())
    caches.show(list(rows.values()))
    text = capsys.readouterr().out
    assert f"rm -r {tmp_path}/cohort" in text and "pip uninstall cohort-server" in text
    caches.show([])
    assert capsys.readouterr().out == "Cohort has written nothing here.\n"
