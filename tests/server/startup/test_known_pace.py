"""What a load has measured is taken by the next one, also of another process, if nothing has changed that a pace depends on."""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from executors.contract import ExecutorConfig, OptimizationConfig, Pace
from server.startup import known_pace, pace_file
from server.startup.known_pace import KnownPace

PACE = Pace(0.001, ((1, 0.01), (8, 0.0125), (64, 0.1)), ((1, 0.002),))


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ExecutorConfig:
    """A model with a weight file, and a cache that is empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(known_pace, "has_gpu", lambda: False)
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")
    return ExecutorConfig("llm", model=str(folder))


def learn(config: ExecutorConfig, pace: Pace | None = PACE) -> KnownPace:
    """Load it, and measure."""
    known = KnownPace()
    assert known.of(config) is None
    known.learn(pace)
    return known


def entries() -> list[Path]:
    folder = pace_file.cache_root() / pace_file.FOLDER
    return sorted(folder.iterdir()) if folder.is_dir() else []


def test_the_next_load_of_the_same_files_knows_it(model: ExecutorConfig) -> None:
    known = learn(model)
    (Path(model.model) / "notes.txt").write_text("{}")
    assert known.of(model) == PACE
    assert KnownPace().of(model) == PACE  # of another process
    assert KnownPace().of(replace(model, pace=PACE, seed=7)) == PACE


@pytest.mark.parametrize(
    "change",
    [
        lambda config: replace(config, max_num_seqs=3),
        lambda config: replace(config, dtype="float32"),
        lambda config: replace(config, device="cpu"),
        lambda config: replace(config, attention=replace(config.attention, block_size=64)),
        lambda config: replace(config, memory=replace(config.memory, kv_cache_dtype="int8")),
        *(
            lambda config, options=options: replace(config, optimization=OptimizationConfig(**options))
            for options in (
                {"quantization": "int8"}, {"num_threads": 1}, {"cpu_isa": "avx2"}, {"deterministic": True}, {"max_loras": 2}
            )
        ),
    ],
)  # fmt: skip
def test_another_configuration_is_measured(
    model: ExecutorConfig, change: Callable[[ExecutorConfig], ExecutorConfig]
) -> None:
    known = learn(model)
    assert known.of(change(model)) is None and KnownPace().of(change(model)) is None
    assert KnownPace().of(model) == PACE


def test_another_file_in_its_place_is_measured(model: ExecutorConfig) -> None:
    known = learn(model)
    file = Path(model.model) / "model.safetensors"
    os.utime(file, ns=(0, 0))
    assert known.of(model) is None
    known.learn(PACE)
    (file.parent / "more.safetensors").write_bytes(b"weights")
    assert known.of(model) is None and KnownPace().of(model) is None


def test_another_machine_is_measured(model: ExecutorConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    learn(model)
    for name, value in {
        "cpu_facts": lambda: ["model name: another"],
        "cpu_threads": lambda: 77,
        "cgroup_cpus": lambda root: [0.5],
        "torch_version": lambda: "99.0",
        "__version__": "99.0",
    }.items():
        with monkeypatch.context() as patch:
            patch.setattr(pace_file, name, value)
            assert KnownPace().of(model) is None, name
    assert KnownPace().of(model) == PACE


def test_what_is_known_of_a_cpu_is_its_kind(tmp_path: Path) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text(
        "processor\t: 0\nmodel name\t: Quick 1\ncpu MHz\t\t: 1.0\nflags\t: avx2\n\nprocessor\t: 1\nflags\t: no\n"
    )
    assert pace_file.cpu_facts(file) == ["model name\t: Quick 1", "flags\t: avx2"]
    assert pace_file.cpu_facts(tmp_path / "none") == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "[" * 10_000,
        '{"prompt_token": 0.1}',
        '{"prompt_token": 0.1, "decode_steps": [], "draft_steps": []}',
        '{"prompt_token": 0.1, "decode_steps": [[1, 0.1]], "draft_steps": [], "more": 1}',
        '{"prompt_token": "0.1", "decode_steps": [[1, 0.1]], "draft_steps": []}',
        '{"prompt_token": -0.1, "decode_steps": [[1, 0.1]], "draft_steps": []}',
        '{"prompt_token": NaN, "decode_steps": [[1, 0.1]], "draft_steps": []}',
        '{"prompt_token": 0.1, "decode_steps": [[1, Infinity]], "draft_steps": []}',
        '{"prompt_token": 0.1, "decode_steps": [[8, 0.1], [1, 0.1]], "draft_steps": []}',
        '{"prompt_token": 0.1, "decode_steps": [[0, 0.1]], "draft_steps": []}',
        '{"prompt_token": 0.1, "decode_steps": [[1]], "draft_steps": []}',
        '{"prompt_token": 0.1, "decode_steps": [[1, 0.1]], "draft_steps": [[1, 0.0]]}',
    ],
)
def test_a_damaged_entry_is_measured_and_replaced(model: ExecutorConfig, text: str) -> None:
    learn(model)
    (entry,) = entries()
    entry.write_text(text)
    learn(model)
    assert KnownPace().of(model) == PACE


def test_a_whole_entry_is_read(model: ExecutorConfig) -> None:
    learn(model)
    (entry,) = entries()
    entry.write_text('{"prompt_token": 0.5, "decode_steps": [[1, 0.25]], "draft_steps": []}')
    assert KnownPace().of(model) == Pace(0.5, ((1, 0.25),))


@pytest.mark.parametrize("age", [pace_file.MOST_AGE_S + 60, -3600.0])
def test_an_old_entry_is_measured_anew(model: ExecutorConfig, age: float) -> None:
    learn(model)
    (entry,) = entries()
    at = time.time() - age
    os.utime(entry, (at, at))
    learn(model)
    assert KnownPace().of(model) == PACE


def test_a_load_that_measures_nothing_makes_an_entry_no_younger(model: ExecutorConfig) -> None:
    learn(model)
    (entry,) = entries()
    at = time.time() - pace_file.MOST_AGE_S / 2
    os.utime(entry, (at, at))
    known = KnownPace()
    known.learn(known.of(model))
    assert entry.stat().st_mtime == pytest.approx(at)


def test_what_others_may_write_is_not_read(model: ExecutorConfig) -> None:
    learn(model)
    folder = entries()[0].parent
    folder.chmod(0o777)
    assert KnownPace().of(model) is None


def test_a_disk_that_cannot_be_written_to_costs_nothing_but_the_next_start(
    model: ExecutorConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object, **more: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(pace_file.json, "dump", full)
        known = learn(model)
    assert entries() == [] and known.of(model) == PACE and KnownPace().of(model) is None


@pytest.mark.parametrize(
    ("ratio", "is_kept"), [(0.4, False), (0.6, True), (None, True), (1.9, True), (2.5, False)]
)
def test_a_pace_that_steps_did_not_keep_is_measured_anew(
    model: ExecutorConfig, ratio: float | None, is_kept: bool
) -> None:
    learn(model)
    known = KnownPace()
    assert known.of(model) == PACE
    known.learn(PACE)
    known.judge(ratio)
    assert known.of(model) == KnownPace().of(model) == (PACE if is_kept else None)


def test_the_oldest_entries_are_removed(model: ExecutorConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace_file, "MOST_ENTRIES", 3)
    configs = [replace(model, max_num_seqs=number) for number in range(1, 6)]
    for age, config in zip(range(50, 0, -10), configs, strict=True):
        before = set(entries())
        learn(config)
        for entry in set(entries()) - before:
            os.utime(entry, (time.time() - age,) * 2)
    assert [KnownPace().of(config) == PACE for config in configs] == [False, False, True, True, True]
    assert len(entries()) == 3


def test_a_device_and_other_executors_are_known_to_their_process_alone(
    model: ExecutorConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = replace(model, executor="module:factory")
    assert learn(other).of(other) == PACE and KnownPace().of(other) is None
    monkeypatch.setattr(known_pace, "has_gpu", lambda: True)
    assert learn(model).of(model) == PACE and KnownPace().of(model) is None
    assert entries() == []
    cpu = replace(model, device="cpu")
    learn(cpu)
    assert KnownPace().of(cpu) == PACE


def test_nothing_is_known_of_a_model_without_files(model: ExecutorConfig) -> None:
    for file in Path(model.model).iterdir():
        file.unlink()
    assert learn(model).of(model) is None


def test_without_a_home_the_pace_is_measured(model: ExecutorConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container's user may have no entry in /etc/passwd."""

    def unknown(uid: int) -> None:
        raise KeyError(uid)

    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    with pytest.raises(RuntimeError):
        pace_file.cache_root()
    known = learn(model)
    assert known.of(model) == PACE
    known.judge(1000.0)
    assert KnownPace().of(model) is None
