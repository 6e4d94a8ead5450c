"""A model that cannot be served: one line that names file or field, exit code 2, no traceback."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.checkpoints import write_model
from tests.e2e.conftest import ECHO
from tests.e2e.server_process import run_until_exit

pytestmark = pytest.mark.long

Change = Callable[[Path], None]


def remove(name: str) -> Change:
    return lambda folder: (folder / name).unlink()


def write(name: str, content: str | bytes) -> Change:
    def change(folder: Path) -> None:
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())

    return change


def config(**changes: object) -> Change:
    def change(folder: Path) -> None:
        write_model(folder, **changes)

    return change


TRUNCATED = struct.pack("<Q", 1000) + b"{"
CASES: dict[str, tuple[Change, list[str], tuple[str, ...]]] = {
    "unknown architecture": (config(architectures=["MambaForCausalLM"], model_type="mamba"), [], ("Mamba", "Qwen3")),
    "no config": (remove("config.json"), [], ("config.json",)),
    "config is no JSON": (write("config.json", "{"), [], ("config.json",)),
    "no tokenizer": (remove("tokenizer.json"), [], ("tokenizer.json",)),
    "broken tokenizer": (write("tokenizer.json", "{}"), [], ("tokenizer.json",)),
    "no weights": (lambda folder: None, ["--load-format", "auto"], ("safetensors",)),
    "truncated weights": (write("model.safetensors", TRUNCATED), ["--load-format", "auto"], ("model.safetensors",)),
    "context too long": (lambda folder: None, ["--max-model-len", "100000"], ("max_model_len", "512")),
    "unknown dtype": (lambda folder: None, ["--dtype", "int3"], ("dtype", "float32")),
    "unknown device": (lambda folder: None, ["--device", "abacus"], ("device",)),
    "unknown load format": (lambda folder: None, ["--load-format", "pickle"], ("load_format",)),
    "unknown executor": (lambda folder: None, ["--executor", "nope"], ("executor", "llm")),
    "unknown executor option": (lambda folder: None, ["--executor-option", "a=1"], ("option",)),
    "broken template": (write("chat_template.jinja", "{% for %}"), [], ("template",)),
    "template file missing": (lambda folder: None, ["--chat-template", "nope.jinja"], ("nope.jinja",)),
    "tokenizer folder missing": (lambda folder: None, ["--tokenizer", "nope"], ("--tokenizer", "nope")),
}  # fmt: skip


@pytest.mark.long(every=6)
@pytest.mark.parametrize("case", CASES)
def test_bad_model(case: str, tmp_path: Path) -> None:
    change, args, words = CASES[case]
    folder = tmp_path / "model"
    folder.mkdir()
    write_model(folder)
    change(folder)
    load_format = [] if "--load-format" in args else ["--load-format", "dummy"]
    code, output, log = run_until_exit([str(folder), *args, *load_format, "--log-level", "error"], tmp_path)
    assert code == 2, log
    assert output == ""
    [line] = log.splitlines()
    assert line.startswith("cohort: error: ")
    for word in words:
        assert word in line, line


@pytest.mark.long(extended=True)
@pytest.mark.parametrize("values", ['{"temperature": true}', '{"top_k": 1.5}', '{"top_p": NaN}'])
def test_generation_config_with_a_value_that_no_request_may_have(
    tokenizer_dir: Path, tmp_path: Path, values: str
) -> None:
    model = tmp_path / "model"
    shutil.copytree(tokenizer_dir, model)
    (model / "generation_config.json").write_text(values)
    code, _, log = run_until_exit([str(model), *ECHO], tmp_path)
    assert code == 2
    assert "generation_config.json: t" in log.splitlines()[-1]
