"""GGUF files that cannot be served: exit code 2 and one line that names the file and what is wrong in it."""

from __future__ import annotations

import random
import shutil
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from executors.contract import ConfigError
from executors.gguf.file import read_gguf
from executors.llm.checkpoint import weights
from executors.llm.model.config import read_config
from server.model_files.prepared import model_directory
from tests.compiled_kernels import bring_kernels
from tests.e2e.checkpoints import write_model
from tests.e2e.server_process import ServerProcess, run_until_exit
from tests.executors.llm.checkpoint.test_gguf_mutations import damaged
from tests.small_gguf import CONTEXT, write_small_gguf

pytestmark = pytest.mark.long

MUTATIONS = 8
SIDE_BY_SIDE = 2
Change = Callable[[bytes], bytes]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_gguf(tmp_path_factory.mktemp("small") / "small-Q8_0.gguf")


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each server prepares its file anew."""
    bring_kernels(tmp_path / "cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def refusal(model: Path, folder: Path, *args: str) -> str:
    """The one line with which the server ends."""
    folder.mkdir(exist_ok=True)
    code, output, log = run_until_exit([str(model), *args, "--log-level", "error"], folder, within=60)
    assert (code, output) == (2, ""), log
    [line] = log.splitlines()
    assert line.startswith("cohort: error: ")
    return line


CHANGES: dict[str, tuple[Change, str]] = {
    "truncated": (lambda data: data[:-100], "truncated: tensor "),
    "cut in the header": (lambda data: data[:5000], "truncated: metadata tokenizer.ggml."),
    "empty": (lambda data: b"", "cannot be read"),
    "no GGUF": (lambda data: b"GGML" + data[4:], "not a GGUF file"),
    "version": (lambda data: data[:4] + struct.pack("<I", 9) + data[8:], "version 9 is not supported"),
    "architecture": (lambda data: data.replace(b"\x05" + bytes(7) + b"llama", b"\x05" + bytes(7) + b"mamba", 1),
                     "general.architecture 'mamba' is not supported; supported: llama, "),
    "type": (lambda data: data.replace(*_type_of(data, 8, 99)), "has the unknown type 99"),
}  # fmt: skip
METADATA: dict[str, tuple[dict[str, Any], str]] = {
    "pre-tokenizer": ({"tokenizer.ggml.pre": "nope"}, "tokenizer.ggml.pre: pre-tokenizer 'nope' is not supported"),
    "tokenizer": ({"tokenizer.ggml.model": "rwkv"}, "tokenizer.ggml.model: tokenizer model 'rwkv' is not supported"),
    "template": ({"tokenizer.chat_template": "{% for %}"}, "chat template: not a valid Jinja template"),
    "missing": ({"attention.layer_norm_rms_epsilon": None}, "llama.attention.layer_norm_rms_epsilon is missing"),
    "layers": ({"block_count": 3}, "llama.block_count is 3"),
    "sampling": ({"general.sampling.top_p": 7.5}, "top_p: it should be a number from 0 to 1"),
}  # fmt: skip


def _type_of(data: bytes, old: int, new: int) -> tuple[bytes, bytes, int]:
    """What to replace to give the embedding another type: the end of its entry."""
    at = data.index(b"token_embd.weight") + len(b"token_embd.weight")
    entry = data[at : at + 4 + 16 + 4]
    assert entry.endswith(struct.pack("<I", old))
    return entry, entry[:-4] + struct.pack("<I", new), 1


@pytest.mark.long(every=9)
@pytest.mark.parametrize("case", CHANGES)
def test_damaged_files(case: str, small: Path, tmp_path: Path) -> None:
    change, words = CHANGES[case]
    model = tmp_path / "damaged.gguf"
    model.write_bytes(change(small.read_bytes()))
    line = refusal(model, tmp_path / "run")
    assert str(model) in line and words in line, line


@pytest.mark.long(every=6)
@pytest.mark.parametrize("case", METADATA)
def test_metadata_that_cannot_be_served(case: str, tmp_path: Path) -> None:
    changes, words = METADATA[case]
    model = write_small_gguf(tmp_path / "odd.gguf", **changes)
    line = refusal(model, tmp_path / "run")
    assert str(model) in line and words in line, line


def test_an_unknown_pre_tokenizer_with_another_tokenizer(small: Path, tmp_path: Path) -> None:
    """`--tokenizer DIR` serves what the file's own tokenizer would forbid."""
    model = write_small_gguf(tmp_path / "odd.gguf", **{"tokenizer.ggml.pre": "nope"})
    with ServerProcess([str(model), "--tokenizer", str(model_directory(small))], tmp_path) as server:
        assert server.get("/v1/models").json()["data"][0]["id"] == "odd"
        answer = server.post("/v1/completions", {"prompt": "Hello", "max_tokens": 4, "ignore_eos": True})
        assert answer.json()["usage"]["completion_tokens"] == 4


def test_several_files_and_no_q4_k_m(small: Path, tmp_path: Path) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    for name in ("a-Q8_0.gguf", "b-Q4_0.gguf", "mmproj-F16.gguf"):
        shutil.copy(small, folder / name)
    line = refusal(folder, tmp_path / "run")
    assert f"{folder} holds 2 GGUF models; name one of them: a-Q8_0.gguf (0 MiB, fits), b-Q4_0.gguf" in line
    assert "mmproj" not in line


@pytest.mark.long(extended=True)
def test_what_does_not_fit_into_memory(small: Path, tmp_path: Path) -> None:
    line = refusal(small, tmp_path / "run", "--kv-cache-memory-bytes", "8KiB")
    assert (
        f"max_model_len {CONTEXT}: one sequence needs " in line
        and "; take --max-model-len 32 or less" in line
    )


@pytest.mark.long(extended=True)
def test_bitsandbytes(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    write_model(folder, quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True})
    matrix = "model.layers.0.self_attn.o_proj.weight"
    stored = {matrix: torch.zeros(64, 1, dtype=torch.uint8), f"{matrix}.absmax": torch.ones(4)}
    save_file(stored, folder / "model.safetensors")
    line = refusal(folder, tmp_path / "run")
    assert (
        "config.json: quantization_config (bitsandbytes) is not supported: serve the wide checkpoint" in line
    )


def _is_refused(path: Path) -> bool:
    """Whether what a server checks before it loads refuses the file."""
    try:
        read_gguf(path)
        directory = model_directory(path)
        weights.check_tensors(weights.settle_config(read_config(directory), directory), directory)
    except ConfigError:
        return True
    return False


@pytest.mark.long(extended=True)
@pytest.mark.timeout(300)
def test_random_mutations(small: Path, tmp_path: Path) -> None:
    """Of random mutations those that the checks refuse, through the server."""
    whole, header, rng = small.read_bytes(), read_gguf(small).data_offset, random.Random(35)
    models: list[Path] = []
    while len(models) < MUTATIONS:
        path = tmp_path / f"mutation-{len(models)}.gguf"
        path.write_bytes(damaged(whole, header, rng))
        if _is_refused(path):
            models.append(path)
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        lines = list(pool.map(lambda path: refusal(path, tmp_path / path.stem), models))
    for path, line in zip(models, lines, strict=True):
        assert str(path) in line or "gguf.json" in line, line
        assert len(line) < 1000 and line.isprintable()
    assert len({line.partition(".gguf: ")[2][:20] for line in lines}) > 2, "many kinds of faults"
