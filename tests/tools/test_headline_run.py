"""`python -m benchmarks.peers` as a whole, with servers and measurements that are made up: what is written, and the exit code."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers import __main__ as command
from benchmarks.peers import (
    arguments,
    beside,
    compare,
    limits,
    machine,
    models,
    one_stream_install,
    servers,
    tree,
)
from benchmarks.peers.servers import Side
from benchmarks.peers.tree import Tree
from tools import benchmark_block

COMMIT = "c" * 40


class Faked:
    """What a run meets, by round: the share of the cores that others take, and the state of the checkout."""

    def __init__(self) -> None:
        self.loads: dict[int, float] = {}
        self.trees: dict[int, Tree] = {}
        self.rounds = 0
        self.started: list[str] = []

    @contextmanager
    def serving(self, side: Side, model: Path, log: Path, room: servers.Room) -> Iterator[tuple[str, float]]:
        self.started.append(side.name)
        yield side.name, 4.0 if side.name == "cohort" else 60.0

    def bench(self, url: str, names: list[str], *rest: Any) -> dict[str, Any]:
        """The first side is half as fast again in every figure. Numbers differ by round."""
        value = (10.0 if url == "cohort" else 15.0) + self.rounds / 10
        run = {
            compared.metric: value if compared.lower_is_better else 1000 / value
            for compared in compare.COMPARED.values()
        }
        return {"workloads": [{"workload": {"name": name}, "runs": [run, run]} for name in names]}

    @contextmanager
    def watched(self, what: str, into: list[dict[str, Any]]) -> Iterator[None]:
        yield
        into.append(
            {"what": what, "seconds": 1.0, "others": self.loads.get(self.rounds - 1, 0.0), "stolen": 0.0}
        )

    def state(self) -> Tree:
        """Asked before the run, at the beginning of each round and at the end."""
        self.rounds += 1
        return self.trees.get(self.rounds - 2, Tree(COMMIT, ()))


@pytest.fixture
def faked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Faked:
    made = Faked()
    results = tmp_path / "benchmarks/results"
    results.mkdir(parents=True)
    monkeypatch.setattr(command, "RESULTS", results)
    monkeypatch.setattr(command, "_log", lambda side: tmp_path / side.name)
    monkeypatch.setattr(command, "_bench", made.bench)
    monkeypatch.setattr(command, "client_facts", dict)
    monkeypatch.setattr(command, "IDLE_SECONDS", 0.0)
    monkeypatch.setattr(servers, "serving", made.serving)
    monkeypatch.setattr(servers, "vllm", lambda dtype: Side("vllm", [], "/health"))
    monkeypatch.setattr(models, "ensure", lambda shape: tmp_path / shape)
    monkeypatch.setattr(limits, "measured", lambda: {"read_gb_per_s": 50.0, "bf16_gflop_per_s": 1000.0})
    monkeypatch.setattr(limits, "reading", lambda: 50.0)
    monkeypatch.setattr(beside, "watched", made.watched)
    monkeypatch.setattr(tree, "state", made.state)
    return made


def ran(monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[int, dict[str, Any], Path]:
    """The exit code, the report, and where the headline would be."""
    monkeypatch.setattr(sys, "argv", ["peers", *words])
    code = 0
    try:
        command.main()
    except SystemExit as end:
        code = int(str(end.code))
    name = machine.this().name
    report = json.loads((command.RESULTS / f"peers-{name}.json").read_text())
    return code, report, command.RESULTS / f"headline-vllm-{name}.json"


def test_five_quiet_rounds_write_a_headline_that_readme_takes(
    faked: Faked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, report, path = ran(monkeypatch)
    assert (code, report["headline"], report["why"], report["rounds_done"]) == (0, True, [], 5)
    # Once before the rounds.
    assert faked.started == ["cohort", "vllm"] * 6
    output = capsys.readouterr().out
    assert output.index("minutes on two cores") < output.index("round 1: cohort")
    headline = json.loads(path.read_text())
    assert headline["commit"] == COMMIT and set(headline["figures"]) == {
        "start",
        "single",
        "burst",
        "steady",
        "wide",
    }
    assert headline["figures"]["start"]["ratio"]["median"] == 15.0
    single = headline["figures"]["single"]["sides"]["cohort"]
    assert len(set(single["rounds"])) == 5 and single["min"] < single["median"] < single["max"]
    assert headline["machine"]["words"] == machine.this().words
    assert list(benchmark_block.problems(tmp_path, benchmark_block.load(tmp_path))) == []
    assert "ms between tokens" in benchmark_block.parts(benchmark_block.load(tmp_path))["bench"]


def test_a_loaded_round_is_run_again(faked: Faked, monkeypatch: pytest.MonkeyPatch) -> None:
    faked.loads = {2: 0.3}
    code, report, path = ran(monkeypatch)
    assert code == 0 and report["rounds_done"] == 6
    headline = json.loads(path.read_text())
    assert [one["trusted"] for one in headline["conditions"]] == [number != 2 for number in range(1, 7)]
    assert headline["rounds"] == 5 and len(headline["figures"]["wide"]["ratio"]["rounds"]) == 5


@pytest.mark.parametrize(
    ("words", "loads", "trees", "reason"),
    [
        (["--rounds", "4"], {}, {}, "4 rounds, and 5 are needed"),
        (["--workloads", "single"], {}, {}, "without the workloads"),
        ([], dict.fromkeys(range(1, 9), 0.3), {}, "0 of 7 rounds can be trusted"),
        ([], {}, {-1: Tree(COMMIT, ("engine/a.py",))}, "engine/a.py differ from the commit"),
        ([], {}, {2: Tree(COMMIT, ("engine/a.py",))}, "engine/a.py changed meanwhile"),
        ([], {}, {5: Tree("d" * 40, ())}, "the rounds are of 2 commits"),
    ],
)
def test_what_is_refused_leaves_results_and_the_old_headline(
    words: list[str], loads: dict[int, float], trees: dict[int, Tree], reason: str, faked: Faked,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    old = command.RESULTS / f"headline-vllm-{machine.this().name}.json"
    old.write_text("old")
    faked.loads, faked.trees = loads, trees
    code, report, path = ran(monkeypatch, *words)
    assert code == 3 and path.read_text() == "old"
    assert report["headline"] is False and reason in " ".join(report["why"])
    assert reason in capsys.readouterr().out and report["results"]["single"]["ratio"] > 1


def test_without_the_wish_for_a_headline_nothing_is_refused(
    faked: Faked, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, report, path = ran(monkeypatch, "--rounds", "1", "--no-headline")
    assert code == 0 and not path.exists() and report["rounds_done"] == 1 and report["headline"] is False


def test_peers_without_a_server_get_one_stream(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The other side's AVX2 code meets ours."""
    monkeypatch.setattr(one_stream_install, "ensure", lambda library: tmp_path)
    for peer, flags in (("openvino", ""), ("ik", "--cpu-isa avx2")):
        monkeypatch.setattr(sys, "argv", ["peers", "--peer", peer])
        asked = arguments.parse("")
        assert asked.workloads == ["single", "prompt"] and asked.gguf == ["qwen3-0.6b-q4_k_m"]
        ours, theirs = command._sides(asked)
        assert flags in " ".join(ours.command) and theirs.name == peer
        argv = theirs.argv(Path("m.gguf"), 1234, servers.DEEP)
        assert argv[0] == str(tmp_path / "bin/python") and argv[2:6] == [peer, "m.gguf", "1234", "8192"]
        assert Path(argv[1]).is_file()
        monkeypatch.setattr(sys, "argv", ["peers", "--peer", peer, "--workloads", "wide"])
        with pytest.raises(SystemExit, match="2"):
            arguments.parse("")
