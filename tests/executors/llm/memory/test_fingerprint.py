"""What makes KV blocks of two lives different."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from executors.contract import ExecutorConfig, KvLayout, ModelInfo, OptimizationConfig, StateLayout
from executors.llm.memory import fingerprint
from executors.llm.memory.fingerprint import checkpoint_files, code_digest

INFO = ModelInfo("m", "qwen3", 1, 2, 8, 2, 1, 16, 16, 64, "bfloat16")
LAYOUT = KvLayout.of(16, 8, 4096)


def digest(
    config: ExecutorConfig,
    info: ModelInfo = INFO,
    layout: KvLayout = LAYOUT,
    parts: tuple[object, ...] = ("spec",),
) -> str:
    """With the files as they are now."""
    return fingerprint.kv_fingerprint(config, info, layout, parts, checkpoint_files(Path(config.model)))


@pytest.fixture
def config(tmp_path: Path) -> ExecutorConfig:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_text(name)
    return ExecutorConfig("llm", model=str(tmp_path))


def test_two_lives_of_a_server_are_equal(config: ExecutorConfig) -> None:
    first = digest(config)
    assert len(first) == 64
    # The second one has the limits that the first one chose.
    second = replace(
        config,
        max_num_seqs=7,
        default_limits=(),
        memory=replace(config.memory, kv_cache_memory_bytes=5, kv_on_demand=True),
    )
    assert digest(second) == first


def test_what_changes_the_blocks_changes_it(config: ExecutorConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [digest(config)]

    def add(
        config: ExecutorConfig, info: ModelInfo = INFO, layout: KvLayout = LAYOUT, part: str = "spec"
    ) -> None:
        found.append(digest(config, info, layout, (part,)))

    add(config, part="another geometry or kernel")
    add(config, replace(INFO, max_model_len=32))
    add(config, layout=KvLayout.of(16, 9, 4096))
    add(config, layout=replace(LAYOUT, state=StateLayout(4096, 8, 64)))
    add(config, layout=replace(LAYOUT, state=StateLayout(4096, 9, 64)))
    add(replace(config, optimization=OptimizationConfig(quantization="int8")))
    add(replace(config, memory=replace(config.memory, kv_cache_dtype="int8")))
    add(replace(config, parallel=replace(config.parallel, rank=1)))
    weights = Path(config.model) / "model.safetensors"
    os.utime(weights, ns=(1, 1))
    add(config)
    weights.rename(weights.with_suffix(".old"))
    weights.write_text("other weights in the same place")
    add(config)
    weights.unlink()
    add(config)
    monkeypatch.setattr(fingerprint, "code_digest", lambda: b"other kernels")
    add(config)
    assert len(set(found)) == len(found) == 13


def test_the_digest_of_the_code_reads_kernels_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = code_digest()
    monkeypatch.setattr(fingerprint, "_CODE", tmp_path)
    digests = set()
    for name in ("a.py", "kernel.h", "kernel.cpp", "notes.txt"):
        (tmp_path / name).write_text("x")
        assert code_digest() == before, "of the sources as they were imported"
        digests.add(code_digest.__wrapped__())
    assert len(digests) == 3 and before not in digests


def test_a_log_beside_the_weights_changes_nothing(config: ExecutorConfig) -> None:
    before = digest(config)
    (Path(config.model) / "server.log").write_text("started")
    assert digest(config) == before


def test_a_file_in_place_of_a_folder_counts_as_its_weights_do(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_text("weights")
    config = ExecutorConfig("llm", model=str(file))
    before = digest(config)
    file.write_text("other weights")
    assert digest(config) != before
