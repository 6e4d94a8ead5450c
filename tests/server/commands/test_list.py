"""`cohort list` finds models where programs keep them, and names what is broken."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from executors import tiny
from server.model_files.folders import Found, find, roots
from tests.compiled_kernels import bring_kernels
from tests.small_gguf import CONTEXT, write_small_gguf

COHORT = str(Path(sys.executable).with_name("cohort"))


def put(path: Path, content: Any = b"") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path


def found(root: Path, source: str) -> dict[str, Found]:
    return {one.name: one for one in find({source: [root]})}


def repository(root: Path, name: str, commit: str = "abc", ref: bool = True) -> Path:
    folder = root / f"models--{name.replace('/', '--')}"
    snapshot = folder / "snapshots" / commit
    snapshot.mkdir(parents=True)
    if ref:
        put(folder / "refs" / "main", commit.encode())
    return snapshot


def test_hugging_face(tmp_path: Path) -> None:
    snapshot = repository(tmp_path, "acme/small")
    blob = put(tmp_path / "models--acme--small" / "blobs" / "1234", b"x" * 700)
    (snapshot / "model.safetensors").symlink_to(blob)
    put(snapshot / "config.json", {"torch_dtype": "bfloat16", "quantization_config": {"quant_method": "fp8"}})
    old = repository(tmp_path, "acme/other", "old", ref=False)
    put(old / "other-Q4_K_M.gguf", b"x" * 30)
    put(old / "mmproj-other-F16.gguf", b"x")
    assert {
        name: (one.format, one.size, one.problem) for name, one in found(tmp_path, "Hugging Face").items()
    } == {
        "acme/small": ("safetensors bfloat16 fp8", 700, None),
        "acme/other/other-Q4_K_M.gguf": ("GGUF Q4_K_M", 30, None),
    }


def test_what_is_broken_is_named(tmp_path: Path) -> None:
    (tmp_path / "models--acme--empty").mkdir()
    put(repository(tmp_path, "acme/text") / "README.md")
    torn = repository(tmp_path, "acme/torn")
    put(torn / "model-00001-of-00002.safetensors", b"x")
    put(torn / "config.json", b"[1")
    put(
        torn / "model.safetensors.index.json",
        {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "two"}},
    )
    deep = repository(tmp_path, "acme/deep")
    put(deep / "model.safetensors", b"x")
    put(deep / "config.json", b"[" * 100_000)
    gone = repository(tmp_path, "acme/gone")
    (gone / "model.safetensors").symlink_to(tmp_path / "nowhere")
    for name in ("datasets--acme--x", "models--", "models----x", "models--a--b--c"):
        (tmp_path / name).mkdir()
    put(tmp_path / "models--a-file")
    assert {name: one.problem for name, one in found(tmp_path, "Hugging Face").items()} == {
        "acme/empty": "nothing of it was fetched",
        "acme/text": "neither safetensors nor GGUF is here",
        "acme/torn": "1 of 2 weight files are missing",
        "acme/deep": "config.json is missing or no JSON object",
        "acme/gone": "neither safetensors nor GGUF is here",
        "a-file": "nothing of it was fetched",
    }


def test_weights_of_other_names(tmp_path: Path) -> None:
    config = {"architectures": ["LlamaForCausalLM"], "torch_dtype": "bfloat16"}
    for name, files in {
        "other": ("foo.safetensors", "optimizer.safetensors"),
        "shards": ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"),
        "gap": ("model-00002-of-00002.safetensors",),
        "adapter": ("adapter_model.safetensors",),
    }.items():
        snapshot = repository(tmp_path, f"acme/{name}")
        put(snapshot / "config.json", config)
        for file in files:
            put(snapshot / file, b"xx")
    rows = found(tmp_path, "Hugging Face")
    assert {name: (row.size, row.problem) for name, row in rows.items()} == {
        "acme/other": (2, None),
        "acme/shards": (4, None),
        "acme/gap": (0, "model-00001-of-00002.safetensors is missing: there are 1 of 2 shards and no index"),
        "acme/adapter": (0, "neither safetensors nor GGUF is here"),
    }


def test_gguf_in_parts_is_one_model(tmp_path: Path) -> None:
    for part in (1, 2, 3):
        put(tmp_path / f"big-IQ4_XS-0000{part}-of-00003.gguf", b"x" * 10)
    put(tmp_path / "torn-q8_0-00001-of-00002.gguf", b"x")
    put(tmp_path / "plain.gguf", b"xx")
    rows = {Path(name).name: one for name, one in found(tmp_path, "llama.cpp").items()}
    assert {name: (one.format, one.size, one.problem) for name, one in rows.items()} == {
        "big-IQ4_XS-00001-of-00003.gguf": ("GGUF IQ4_XS", 30, None),
        "torn-q8_0-00001-of-00002.gguf": ("GGUF Q8_0", 1, "1 of 2 parts are missing"),
        "plain.gguf": ("GGUF", 2, None),
    }


def test_lm_studio(tmp_path: Path) -> None:
    file = put(tmp_path / "acme" / "small-GGUF" / "small-Q6_K.gguf", b"xyz")
    (tmp_path / "loop").symlink_to(tmp_path)
    assert [(one.name, one.format) for one in find({"LM Studio": [tmp_path]})] == [(str(file), "GGUF Q6_K")]


def test_ollama(tmp_path: Path) -> None:
    put(tmp_path / "blobs" / "sha256-aa", b"x" * 50)
    put(tmp_path / "blobs" / "sha256-cc", {"file_type": "Q4_K_M"})
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:aa"}
    library = tmp_path / "manifests" / "registry.ollama.ai" / "library"
    put(library / "llama3.2" / "1b", {"layers": [{}, layer], "config": {"digest": "sha256:cc"}})
    put(library / "gone" / "latest", {"layers": [{**layer, "digest": "sha256:../../etc/passwd"}]})
    put(library / "odd" / "latest", b"{}")
    put(tmp_path / "manifests" / "hub.example" / "zeta" / "small" / "q8", {"layers": [layer], "config": 5})
    rows = {one.name: (one.format, one.size, one.problem) for one in find({"Ollama": [tmp_path]})}
    assert rows == {
        "llama3.2:1b": ("GGUF Q4_K_M", 50, None),
        "gone:latest": ("GGUF", 0, "its file is missing"),
        "odd:latest": ("?", 0, "its manifest names no model"),
    }, "the same file under a second name is one model"


def test_roots_follow_the_environment(tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert roots({}, home)["Hugging Face"] == [home / ".cache/huggingface/hub"]
    assert roots({"HF_HOME": "/data/hf"}, home)["Hugging Face"] == [Path("/data/hf/hub")]
    assert roots({"HF_HOME": "/data/hf", "HF_HUB_CACHE": "/hub"}, home)["Hugging Face"] == [Path("/hub")]
    told = roots({"OLLAMA_MODELS": "/o", "LLAMA_CACHE": "/l", "COHORT_DOWNLOAD_DIR": "/d"}, home)
    assert (told["Ollama"], told["llama.cpp"], told["Cohort"]) == ([Path("/o")], [Path("/l")], [Path("/d")])


@pytest.mark.parametrize("name", ["a", "b"])
def test_folders_that_are_none(tmp_path: Path, name: str) -> None:
    folder = put(tmp_path / "a", b"a file") if name == "a" else tmp_path / "absent"
    assert [
        list(find({source: [folder]})) for source in ("Hugging Face", "LM Studio", "Ollama", "llama.cpp")
    ] == [[]] * 4


@pytest.mark.parametrize("source", ["Hugging Face", "LM Studio", "Ollama", "llama.cpp"])
def test_a_folder_that_shows_names_alone(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readable but not searchable, as another user's may be: its files cannot be looked at."""
    put(tmp_path / "closed" / "small-Q6_K.gguf", b"xyz")
    put(tmp_path / "closed" / "models--acme--x" / "snapshots" / "abc" / "config.json")
    real = Path.stat

    def stat(path: Path, **options: Any) -> os.stat_result:
        if "closed" in path.parts[:-1]:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, **options)

    monkeypatch.setattr(Path, "stat", stat)
    assert [one.path for one in find({source: [tmp_path / "closed"]}) if one.problem is None] == []


def test_a_thousand_repositories_take_little_time(tmp_path: Path) -> None:
    for i in range(1000):
        snapshot = repository(tmp_path, f"acme/m{i}")
        put(snapshot / "model.safetensors", b"x")
        put(snapshot / "config.json", {})
    began = time.process_time()
    assert len(list(find({"Hugging Face": [tmp_path]}))) == 1000
    assert time.process_time() - began < 3


@pytest.mark.long
def test_the_command(tmp_path: Path) -> None:
    snapshot = repository(tmp_path / "hub", "acme/tiny")
    for file in tiny.weights_dir().iterdir():
        (snapshot / file.name).symlink_to(file)
    wrong = repository(tmp_path / "hub", "acme/unknown")
    put(wrong / "model.safetensors", b"x")
    put(wrong / "config.json", {"architectures": ["NoSuchModel"]})
    put(tmp_path / "cache" / "llama.cpp" / "big-Q4_0.gguf", b"x")
    small = write_small_gguf(tmp_path / "cache" / "llama.cpp" / "small-Q8_0.gguf")
    bring_kernels(tmp_path / "cache")
    env = {**os.environ, "HF_HUB_CACHE": str(tmp_path / "hub"), "XDG_CACHE_HOME": str(tmp_path / "cache"),
           "LLAMA_CACHE": "", "HOME": str(tmp_path), "COLUMNS": "160"}  # fmt: skip
    done = subprocess.run(
        [COHORT, "list", "--json"], env=env, capture_output=True, text=True, timeout=50, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    rows = {row["name"]: row for row in json.loads(done.stdout)}
    assert rows["acme/tiny"]["context"] == rows["cohort-tiny"]["context"] == 2048
    assert rows["acme/unknown"]["context"] is None and "NoSuchModel" in rows["acme/unknown"]["problem"]
    gguf = str(tmp_path / "cache" / "llama.cpp" / "big-Q4_0.gguf")
    assert rows[gguf]["problem"] == f"{gguf}: not a GGUF file: it begins with b'x', not b'GGUF'"
    row = rows[str(small)]
    assert (row["format"], row["size"], row["context"]) == ("GGUF Q8_0", small.stat().st_size, CONTEXT)
    done = subprocess.run([COHORT, "list"], env=env, capture_output=True, text=True, timeout=50, cwd=tmp_path)
    assert done.returncode == 0 and "acme/tiny" in done.stdout and "acme/unknown: " in done.stdout
