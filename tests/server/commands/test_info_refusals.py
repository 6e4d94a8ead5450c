"""`cohort info` of a model that `cohort serve` refuses gives the same sentence."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from executors.contract import ConfigError, ExecutorConfig
from executors.llm.checkpoint.loader import load_model
from executors.llm.tools import describe
from executors.tiny import weights_dir
from server.commands import info as verb
from server.settings.load import load
from server.startup.core_configs import executor_config
from server.startup.text_side import read_text_side, retrieval_side
from server.system import executor_tool
from tests.executors.checkpoints import write_checkpoint
from tests.executors.gguf_files import converted_checkpoint, prepared, retyped, sizes, write_gguf

FIELDS: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "vocab_size": 131, "hidden_size": 256, "num_hidden_layers": 1, "dtype": "float32",
    "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 256, "max_position_embeddings": 64,
    "tie_word_embeddings": False, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
}  # fmt: skip
Q, DOWN = "model.layers.0.self_attn.q_proj", "model.layers.0.mlp.down_proj"
Tensors = dict[str, torch.Tensor]
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True}
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}


def _drop(name: str) -> Callable[[Tensors, Path], None]:
    return lambda tensors, folder: tensors.__delitem__(name)


def _put(name: str, tensor: torch.Tensor) -> Callable[[Tensors, Path], None]:
    return lambda tensors, folder: tensors.update({name: tensor})


def _fields(**fields: Any) -> Callable[[Tensors, Path], None]:
    def change(tensors: Tensors, folder: Path) -> None:
        (folder / "config.json").write_text(json.dumps({**FIELDS, **fields}))

    return change


def _gptq(*without: str) -> Callable[[Tensors, Path], None]:
    def change(tensors: Tensors, folder: Path) -> None:
        _fields(quantization_config=GPTQ)(tensors, folder)
        del tensors[f"{DOWN}.weight"]
        parts = {
            "qweight": torch.zeros(32, 256, dtype=torch.int32),
            "qzeros": torch.zeros(8, 32, dtype=torch.int32),
            "scales": torch.ones(8, 256),
        }
        tensors.update({f"{DOWN}.{name}": part for name, part in parts.items() if name not in without})

    return change


def _index(tensors: Tensors, folder: Path) -> None:
    names = dict.fromkeys(tensors, "model.safetensors") | {f"{Q}.weight": "model-2.safetensors"}
    del tensors[f"{Q}.weight"]
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))


def _fp8(tensors: Tensors, folder: Path) -> None:
    _fields(quantization_config=FP8)(tensors, folder)
    tensors[f"{DOWN}.weight"] = tensors[f"{DOWN}.weight"].to(torch.float8_e4m3fn)


SAFETENSORS: dict[str, Callable[[Tensors, Path], None]] = {
    "missing": _drop(f"{Q}.weight"),
    "shape": _put(f"{DOWN}.weight", torch.zeros(256, 128)),
    "dtype": _put(f"{DOWN}.weight", torch.zeros(256, 256, dtype=torch.int64)),
    "shard": _index,
    "architecture": _fields(architectures=["JambaForCausalLM"]),
    "method": _fields(quantization_config={"quant_method": "quip"}),
    "heads": _fields(num_attention_heads=3),
    "gptq-parts": _gptq("qzeros"),
    "gptq-none": _fields(quantization_config={**GPTQ, "bits": 5}),
    "fp8-without-scale": _fp8,
    "fp8-unsaid": _put(f"{DOWN}.weight", torch.zeros(256, 256).to(torch.float8_e4m3fn)),
    "dtype-name": _fields(dtype="float8_e5m2"),
}
GGUF: dict[str, Callable[[Tensors], None]] = {
    "missing": lambda tensors: tensors.__delitem__("blk.0.ffn_down.weight"),
    "surplus": lambda tensors: tensors.update({"blk.0.attn_sinks.weight": torch.zeros(4)}),
    "shape": lambda tensors: tensors.update({"blk.0.ffn_down.weight": torch.zeros(256, 128)}),
}


def _in_process(tool: str, job: dict[str, Any], stage: Any = None) -> Any:
    try:
        return describe.run(job, lambda text: None)
    except ConfigError as error:
        raise executor_tool.ToolRefusal(str(error)) from None


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[[Path], str]:
    """What `cohort info` prints of a directory, which ends with code 2."""
    monkeypatch.setattr(executor_tool, "ask", _in_process)
    monkeypatch.setenv("COLUMNS", "2000")
    monkeypatch.setenv("COHORT_DEVICE", "cpu")

    def run(directory: Path) -> str:
        with pytest.raises(SystemExit) as ended:
            verb.info(str(directory))
        assert ended.value.code == 2
        shown = capsys.readouterr()
        assert shown.err.count("\n") == 1 and "cannot be served" in shown.err
        return str(shown.err)

    return run


def _server(directory: Path) -> ExecutorConfig:
    settings, _ = load({"model": str(directory), "device": "cpu"}, {})
    return executor_config(settings, directory)


def _refused_by_the_loader(directory: Path) -> str:
    with pytest.raises(ConfigError) as refused:
        load_model(_server(directory), lambda *args: None)
    return str(refused.value)


def _with_tokenizer(directory: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(weights_dir() / name, directory / name)


@pytest.mark.parametrize("fault", SAFETENSORS)
def test_a_checkpoint_that_the_loader_refuses(
    fault: str, tmp_path: Path, said: Callable[[Path], str]
) -> None:
    write_checkpoint(tmp_path, FIELDS)
    _with_tokenizer(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    SAFETENSORS[fault](tensors, tmp_path)
    save_file(tensors, tmp_path / "model.safetensors")

    sentence = _refused_by_the_loader(tmp_path)

    assert f"cohort: error: {sentence} (" in said(tmp_path)


@pytest.mark.parametrize("bytes_left", [4, 200, -1000])
def test_a_file_that_is_cut_short(bytes_left: int, tmp_path: Path, said: Callable[[Path], str]) -> None:
    write_checkpoint(tmp_path, FIELDS)
    _with_tokenizer(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:bytes_left])

    assert f"cohort: error: {_refused_by_the_loader(tmp_path)} (" in said(tmp_path)


@pytest.mark.parametrize("fault", [*GGUF, "architecture", "type"])
def test_a_gguf_file_that_the_loader_refuses(
    fault: str, tmp_path: Path, said: Callable[[Path], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_checkpoint(tmp_path / "hf", FIELDS)
    tensors = converted_checkpoint(tmp_path / "hf", "llama")
    GGUF.get(fault, lambda tensors: None)(tensors)
    arch = "jamba" if fault == "architecture" else "llama"
    file = write_gguf(tmp_path / "m.gguf", arch, sizes(FIELDS), tensors)
    if fault == "type":  # I32
        retyped(file, "blk.0.ffn_down.weight", 2, 26)
    folder = prepared(tmp_path / "served", file)
    _with_tokenizer(folder)

    assert f"cohort: error: {_refused_by_the_loader(folder)} (" in said(folder)


TEXT: dict[str, tuple[str, str]] = {
    "tokenizer": ("tokenizer.json", '{"version": "1.0", "model": {"type": "Unknown"}}'),
    "template": ("chat_template.jinja", "{% for m in messages %}{{ m.content }"),
    "sampling": ("generation_config.json", '{"temperature": "hot"}'),
    "pooling": ("modules.json", '{"not": "a list"}'),
    "prompts": ("config_sentence_transformers.json", "[1, 2"),
}


@pytest.mark.parametrize("fault", [*TEXT, "no-tokenizer"])
def test_files_of_text_that_a_server_refuses(fault: str, tmp_path: Path, said: Callable[[Path], str]) -> None:
    folder = Path(shutil.copytree(weights_dir(), tmp_path / "model"))
    if fault == "no-tokenizer":
        (folder / "tokenizer.json").unlink()
    else:
        (folder / TEXT[fault][0]).write_text(TEXT[fault][1])
    settings, _ = load({"model": str(folder), "device": "cpu"}, {})
    served = load_model(executor_config(settings, folder), lambda *args: None).info
    with pytest.raises(ConfigError) as refused:
        text = read_text_side(settings, folder, False)
        retrieval_side(settings, text.tokenizer, served, folder, ("model",))

    assert f"cohort: error: {' '.join(str(refused.value).split())} (" in said(folder)


def test_what_is_not_fetched_is_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a model on the hub the weights may be missing: a server would fetch them."""
    folder = Path(shutil.copytree(weights_dir(), tmp_path / "model"))
    (folder / "model.safetensors").unlink()
    monkeypatch.setattr(executor_tool, "ask", _in_process)
    named, _ = load({"model": "org/name", "device": "cpu"}, {})
    facts = verb._facts(named, "org/name", folder, None)
    assert facts["refused"] is None and "no weights" in facts["checkpoint"]["problem"]
    local, _ = load({"model": str(folder), "device": "cpu"}, {})
    assert verb._facts(local, "model", folder, None)["refused"] == facts["checkpoint"]["problem"]


def test_left_out_tensors_are_noted(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, FIELDS)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({**tensors, "model.extra.weight": torch.ones(2)}, tmp_path / "model.safetensors")

    noted = load_model(_server(tmp_path), lambda *args: None).warnings

    assert noted and describe.describe(_server(tmp_path))["warnings"] == list(noted)
