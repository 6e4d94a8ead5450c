"""benchmarks/peers: what may become a headline of README, and what is recorded beside a measurement."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers import beside, headline, machine, tree
from benchmarks.peers.tree import Tree

CLEAN = Tree("c" * 40, ())
FIT = ("vllm", "qwen3-0.6b", ["single", "burst", "steady", "wide"], 5, "")


def rounds(*readings: tuple[float, ...], load: dict[int, float] | None = None) -> list[dict[str, Any]]:
    """Rounds on one commit; `load` is the share that others take in rounds of that number."""
    return [
        {
            "round": number, "commit": CLEAN.commit, "changed": [], "read_gb_per_s": list(each),
            "beside": [{"what": "a, single", "seconds": 9.0, "others": (load or {}).get(number, 0.01), "stolen": 0.0}],
        }
        for number, each in enumerate(readings)
    ]  # fmt: skip


def judged(*readings: tuple[float, ...], load: dict[int, float] | None = None) -> list[dict[str, Any]]:
    conditions = rounds(*readings, load=load)
    headline.judge(conditions)
    return conditions


def test_five_quiet_rounds_on_one_commit_are_a_headline() -> None:
    conditions = judged(*[(50.0, 51.0, 49.0)] * 5)
    assert headline.unfit(*FIT, CLEAN) == []
    assert headline.refused([], conditions, CLEAN) == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({3: 4}, "4 rounds, and 5 are needed"),
        ({2: ["single", "wide"]}, "without the workloads burst, steady"),
        ({1: "qwen3-tiny"}, "the model is qwen3-tiny"),
        ({4: "--quantization int8"}, "with --flags"),
        ({0: "cohort"}, "there is none for --peer cohort"),
    ],
)
def test_another_run_is_refused_before_it_starts(change: dict[int, Any], reason: str) -> None:
    words = [change.get(at, value) for at, value in enumerate(FIT)]
    [found] = headline.unfit(*words, CLEAN)  # type: ignore[arg-type]
    assert reason in found


def test_changed_files_and_no_checkout_are_refused() -> None:
    assert "engine/a.py and 1 more differ" in headline.unfit(*FIT, Tree("c", ("engine/a.py", "b")))[0]
    assert "no git checkout" in headline.unfit(*FIT, Tree(None, ()))[0]


def test_a_loaded_round_does_not_count() -> None:
    conditions = judged(*[(50.0, 50.0)] * 5, load={2: 0.2})
    assert [one["trusted"] for one in conditions] == [True, True, False, True, True]
    assert conditions[2]["why"] == [
        "a, single: others took 20% of the cores and the hypervisor 0%, more than 5%"
    ]
    [reason] = headline.refused([], conditions, CLEAN)
    assert reason.startswith("4 of 5 rounds can be trusted") and "round 3: a, single" in reason


def test_stolen_time_counts_as_load() -> None:
    conditions = rounds((50.0,))
    conditions[0]["beside"][0]["stolen"] = 0.06
    headline.judge(conditions)
    assert not conditions[0]["trusted"]


def test_a_round_in_which_a_neighbour_took_most_of_the_memory_does_not_count() -> None:
    """Readings of an idle machine vary by less than two; the load of its cores does not show a neighbour on the host."""
    conditions = judged((80.0,), (45.0, 79.0), (50.0,), (39.0, 80.0), (60.0,), (53.0,))
    assert [one["trusted"] for one in conditions] == [True, True, True, False, True, True]
    assert conditions[3]["why"] == ["memory was read at 39.0 GB/s, less than 50% of 80.0"]
    # A spare round makes up for one that was left out.
    assert headline.refused([], conditions, CLEAN) == []


def test_commits_must_not_mix_and_files_must_not_change() -> None:
    conditions = judged(*[(50.0,)] * 5)
    assert headline.refused([], conditions, Tree("d" * 40, ())) == ["the rounds are of 2 commits"]
    conditions[3]["changed"] = ["server/x.py"]
    assert headline.refused([], conditions, CLEAN) == ["server/x.py changed meanwhile"]


def test_figures_are_of_rounds_that_count_with_their_spread() -> None:
    values = {
        "single": {"a": [[10.0, 30.0, 10.0], [99.0], [20.0], [12.0]], "b": [[20.0], [1.0], [20.0], [36.0]]},
        "wide": {"a": [[100.0], [9.0], [300.0], [200.0]], "b": [[100.0], [9.0], [100.0], [100.0]]},
        "burst": {"a": [[1.0]], "b": [[1.0]]},
    }
    found = headline.figures(values, ["a", "b"], [0, 2, 3])
    assert set(found) == {"single", "wide"}
    assert found["single"]["sides"]["a"] == {
        "median": 12.0,
        "min": 10.0,
        "max": 20.0,
        "rounds": [10.0, 20.0, 12.0],
    }
    # The median of the rounds' ratios: 2, 1 and 3. Fewer milliseconds are better, and more tokens.
    assert found["single"]["ratio"] == {"median": 2.0, "min": 1.0, "max": 3.0, "rounds": [2.0, 1.0, 3.0]}
    assert found["wide"]["ratio"]["rounds"] == [1.0, 3.0, 2.0]


def test_a_figure_that_is_missing_in_a_round_is_no_headline() -> None:
    conditions = judged(*[(50.0,)] * 5)
    each = {"a": [[1.0]] * 5, "b": [[2.0]] * 5}
    values = {name: dict(each) for name in ("single", "burst", "steady", "wide", "start")}
    report = {
        "conditions": conditions, "when": "2026-01-02T03:04:05+00:00", "machine": {}, "config": {}, "limits": {},
    }  # fmt: skip
    made = headline.made("vllm", "1.0", report, values, ["a", "b"])
    assert (made["date"], made["commit"], made["rounds"]) == ("2026-01-02", CLEAN.commit, 5)
    assert made["figures"]["single"]["ratio"]["median"] == 2.0
    values["wide"]["b"] = [[2.0]] * 4 + [[0.0]]
    with pytest.raises(ValueError, match="not measured in every round: wide"):
        headline.made("vllm", "1.0", report, values, ["a", "b"])


def cpuinfo(**facts: object) -> str:
    lines = [
        f"{name.replace('_', ' ') if name != 'vendor_id' else name}\t: {value}"
        for name, value in facts.items()
    ]
    return "\n".join(["processor\t: 0", *lines]) + "\n\nprocessor\t: 1\n"


@pytest.mark.parametrize(
    ("vendor", "family", "number", "stepping", "generation"),
    [
        ("AuthenticAMD", 23, 1, 2, "Zen"), ("AuthenticAMD", 23, 49, 0, "Zen 2"), ("AuthenticAMD", 25, 1, 1, "Zen 3"),
        ("AuthenticAMD", 25, 17, 1, "Zen 4"), ("AuthenticAMD", 25, 0xA0, 2, "Zen 4"), ("AuthenticAMD", 26, 2, 1, "Zen 5"),
        ("AuthenticAMD", 26, 17, 0, "Zen 5"), ("AuthenticAMD", 26, 0x50, 0, "Zen 6"), ("AuthenticAMD", 99, 1, 0, ""),
        ("GenuineIntel", 6, 0x6A, 6, "Ice Lake"), ("GenuineIntel", 6, 0x8F, 8, "Sapphire Rapids"),
        ("GenuineIntel", 6, 0x55, 4, "Skylake"), ("GenuineIntel", 6, 0x55, 7, "Cascade Lake"),
        ("GenuineIntel", 6, 0x55, 11, "Cooper Lake"), ("GenuineIntel", 15, 0x6A, 0, ""),
    ],
)  # fmt: skip
def test_generations_by_family_and_model(
    vendor: str, family: int, number: int, stepping: int, generation: str
) -> None:
    text = cpuinfo(vendor_id=vendor, cpu_family=family, model=number, stepping=stepping, model_name="X")
    assert machine.of(text, 2, 0).generation == generation


def test_a_machine_has_a_name_and_words() -> None:
    text = cpuinfo(
        vendor_id="AuthenticAMD",
        cpu_family=26,
        model=2,
        model_name="AMD EPYC",
        flags="avx2 avx512f avx512_bf16",
    )
    found = machine.of(text, 2, 25_276_518_400)
    assert found.name == "zen5-2cores"
    assert found.words == "2 cores of an AMD EPYC (Zen 5, avx512_bf16), 25 GB"
    intel = cpuinfo(
        vendor_id="GenuineIntel", cpu_family=6, model=0xDD, stepping=1,
        model_name="Intel(R) Xeon(R) CPU 6999P @ 2.10GHz", flags="avx2",
    )  # fmt: skip
    assert machine.of(intel, 4, 0).name == "intelxeon6999p-4cores"
    arm = cpuinfo(CPU_implementer="0x41", CPU_part="0xd40", Features="asimd sve bf16")
    assert machine.of(arm, 64, 0).name == "neoversev1-64cores"
    assert machine.this().cores == len(os.sched_getaffinity(0))


def fake_proc(
    folder: Path, machine_ticks: tuple[int, int], processes: dict[int, tuple[int, int, int]]
) -> Path:
    """A /proc with these ticks of all processes and stolen ones; of each process its parent, session and ticks."""
    used, stolen = machine_ticks
    folder.mkdir(exist_ok=True)
    (folder / "stat").write_text(f"cpu  {used} 0 0 999 999 999 999 {stolen} 0 0\ncpu0 1\n")
    for pid, (parent, session, ticks) in processes.items():
        (folder / str(pid)).mkdir(exist_ok=True)
        rest = ["S", parent, 1, session, *[0] * 7, ticks, 0, 0, 0, *[0] * 20]
        (folder / str(pid) / "stat").write_text(f"{pid} (a (strange) name) {' '.join(map(str, rest))}")
    return folder


def test_own_processes_are_descendants_and_sessions_of_theirs(tmp_path: Path) -> None:
    """A server in a session of its own, its child, and one whose parent has ended; beside them two that are others'."""
    me, mine = os.getpid(), 40_000_000
    proc = fake_proc(
        tmp_path / "proc",
        (10_000, 300),
        {
            1: (0, 1, 5000), me: (1, 1, 100), mine: (me, mine, 200), mine + 1: (mine, mine, 400),
            mine + 2: (1, mine, 800), mine + 3: (1, 1, 1600), mine + 4: (1, mine + 4, 3200),
        },
    )  # fmt: skip
    ticks = os.sysconf("SC_CLK_TCK")
    assert beside.read(proc) == beside.Times(10_000 / ticks, 1500 / ticks, 300 / ticks)


def test_work_of_others_is_seen_and_ones_own_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([beside.Times(100.0, 20.0, 1.0), beside.Times(118.0, 36.0, 2.0)])
    clock = iter([50.0, 60.0])
    monkeypatch.setattr(beside, "read", lambda: next(times))
    monkeypatch.setattr(beside.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(beside.os, "sched_getaffinity", lambda pid: {0, 1})
    records: list[dict[str, Any]] = []
    with beside.watched("a, wide", records):
        pass
    assert records == [{"what": "a, wide", "seconds": 10.0, "others": 0.1, "stolen": 0.05}]


def test_a_child_that_computes_is_ones_own() -> None:
    before = beside.read()
    subprocess.run(["python3", "-S", "-c", "import time\nwhile time.process_time() < 0.3: pass"], check=True)
    after = beside.read()
    assert after.own - before.own >= 0.25


def test_changed_files_are_seen_and_recorded_results_are_none(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        subprocess.run(
            ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b", *words], check=True
        )

    assert tree.state(tmp_path) == Tree(None, ())
    (tmp_path / "a.py").write_text("1")
    results = tmp_path / tree.RESULTS
    results.mkdir(parents=True)
    (results / "peers.json").write_text("1")
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "one")
    clean = tree.state(tmp_path)
    assert clean.commit is not None and len(clean.commit) == 40 and clean.changed == ()
    (results / "peers.json").write_text("2")
    assert tree.state(tmp_path) == clean
    (tmp_path / "a.py").write_text("2")
    (tmp_path / "new.py").write_text("2")
    assert tree.state(tmp_path).changed == ("a.py", "new.py")
