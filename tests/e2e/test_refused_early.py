"""What is refused is refused before the log says that the server listens: of a model on this disk, whichever process finds it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from executors import tiny
from tests.e2e.server_process import run_until_exit

pytestmark = [pytest.mark.timeout(120), pytest.mark.long]


def config(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


def cut_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])


def shard_is_missing(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {"model.embed_tokens.weight": "model-1.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def no_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


def bad_template(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{% for x in %}")


def adapter(folder: Path) -> None:
    """Beside the model, with weights that are none, and one without weights."""
    for name in ("junk", "empty"):
        (folder.parent / name).mkdir()
        keys = {"peft_type": "LORA", "r": 8, "lora_alpha": 8, "target_modules": ["q_proj"]}
        (folder.parent / name / "adapter_config.json").write_text(json.dumps(keys))
    (folder.parent / "junk/adapter_model.safetensors").write_bytes(b"junk")


def nothing(folder: Path) -> None:
    pass


CASES: dict[str, tuple[Callable[[Path], None], list[str], str]] = {
    "architecture": (config(architectures=["Foo"]), [], "architecture 'Foo' is not supported"),
    "tokenizer": (no_tokenizer, [], "tokenizer.json: not found"),
    "cut weights": (cut_weights, [], "model.safetensors: truncated: tensor "),
    "missing shard": (shard_is_missing, [], "model-1.safetensors: no such file"),
    "shape": (config(intermediate_size=544), [], "has shape [512, 256]; config.json makes it [544, 256]"),
    "template": (bad_template, [], "not a valid Jinja template"),
    "context": (nothing, ["--max-model-len", "9999999"], "is longer than the model's 2048"),
    "kv memory": (nothing, ["--kv-cache-memory-bytes", "1000"], "one sequence needs "),
    "step memory": (nothing, ["--max-num-batched-tokens", "2000000000"], "a step of that size needs "),
    "kernels": (nothing, ["--cpu-isa", "avx2", "--attention-backend", "torch"], "cpu_isa avx2 cannot be used"),
    "quantization": (nothing, ["--quantization", "fp8"], "take int8"),
    "adapter": (nothing, ["--lora-modules", "x=/nope"], "--lora-modules x: there is no folder /nope"),
    "option": (nothing, ["--executor", "echo", "--executor-option", "x=1"], "options.x is unknown to echo"),
    "foreign option": (
        nothing,
        ["--executor", "tests.e2e.slow_executor:SlowFactory", "--executor-option", "x=1"],
        "options.x is unknown to tests.e2e.slow_executor:SlowFactory",
    ),
    "cut adapter": (adapter, ["--lora-modules", "x=junk"], "x=junk: The adapter 'x' cannot be loaded: "),
    "empty adapter": (adapter, ["--lora-modules", "x=empty"], "x=empty: The adapter has no adapter_model.safetensors."),
    "defaults": (nothing, ["--override-generation-config", '{"temp": 1}'], "temp: no such default"),
}  # fmt: skip


@pytest.mark.long(every=9)
@pytest.mark.parametrize("case", CASES)
def test_before_it_listens(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    change, args, words = CASES[case]
    model = tmp_path / "model"
    shutil.copytree(tiny.weights_dir(), model)
    change(model)
    code, output, log = run_until_exit([str(model), *args], tmp_path, within=60)
    assert (code, output) == (2, ""), log
    last = log.splitlines()[-1]
    assert last.startswith("cohort: error: ") and words in last
    assert "listening" not in log
    assert log.count("cohort: error: ") == 1
