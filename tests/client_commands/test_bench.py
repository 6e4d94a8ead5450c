"""`cohort bench` from its flags to its report, against a scripted server and a real one."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from clients.bench import plot, view
from clients.bench.report import SCHEMA
from clients.bench.workloads import WORKLOADS
from cohort_server.command_line import application
from tests.client_commands.bench_fake import FakeServer
from tests.e2e.checkpoints import VOCAB_SIZE, write_tokenizer
from tests.e2e.server_process import ServerProcess

pytestmark = pytest.mark.long

SMALL = ["--requests", "4", "--concurrency", "2", "--prompt-tokens", "5", "--output-tokens", "3"]
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COHORT_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def bench(*args: str, code: int = 0) -> Any:
    """What `cohort bench ARGS` prints, both streams apart."""
    result = CliRunner().invoke(application(["bench"]), ["bench", *args])
    assert result.exit_code == code, (result.stdout, result.stderr, result.exception)
    return result


def report(*args: str, code: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(bench(*args, "--json", code=code).stdout)
    return found


def sent(server: FakeServer) -> list[Any]:
    """Prompts of the workload, without the trials before it."""
    return [one["prompt"] for one in server.asked if one["max_tokens"] != 1]


# -- the command -----------------------------------------------------------------------------------------------------------


def test_the_report() -> None:
    with FakeServer() as server:
        found = report(server.url, "--workload", "single,prefix", *SMALL, "--seed", "7")
    assert set(found) == {"schema", "when", "config", "client", "server", "workloads"}
    assert found["schema"] == SCHEMA == 1
    config = found["config"]
    assert (config["url"], config["model"], config["repeat"], config["warm_up"], config["seed"]) == (
        server.url, "first", 3, 1, 7,
    )  # fmt: skip
    assert config["prompts"] == {"form": "token ids", "low": 1000, "high": 99_999, "source": "default"}
    assert (found["client"]["commit"] is not None) == (Path(__file__).parents[2] / ".git").exists()
    assert {"cohort", "commit", "modified", "python", "kernel", "packages", "hardware"} == set(
        found["client"]
    )
    assert found["client"]["hardware"]["cpu"]["logical"] >= 1
    assert found["server"] == {"version": None, "model": None}
    single, prefix = found["workloads"]
    assert single["workload"] | {"about": ""} == {
        "name": "single", "requests": 4, "concurrency": 2, "prompt_tokens": 5, "shared_tokens": 0, "output_tokens": 3,
        "about": "",
    }  # fmt: skip
    assert (len(single["warm_up"]), len(single["runs"])) == (1, 2)
    for run in single["runs"]:
        assert (run["output_tokens"], run["prompt_tokens"], run["failed"]) == (12, 20, 0)
        assert run["output_tokens_per_s"] == pytest.approx(12 / run["wall_s"])
    assert prefix["runs"][0]["prompt_tokens"] == 4 * 517
    middle = single["summary"]["output_tokens_per_s"]
    assert middle["min"] <= middle["median"] <= middle["max"]
    assert len(sent(server)) == 2 * 3 * 4 and server.most_running == 2


def test_what_is_asked() -> None:
    with FakeServer(key="k") as server:
        report(server.url, *SMALL, "--api-key", "k", "--model", "other", "--repeat", "1")
    body = server.asked[-1]
    assert len(body.pop("prompt")) == 5
    assert body == {
        "model": "other", "max_tokens": 3, "temperature": 0, "ignore_eos": True, "stream": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip


def test_a_single_run_counts() -> None:
    with FakeServer() as server:
        [entry] = report(server.url, *SMALL, "--repeat", "1")["workloads"]
    assert (len(entry["warm_up"]), len(entry["runs"])) == (0, 1)


def test_two_calls_share_no_prompt_unless_told_to() -> None:
    with FakeServer() as server:
        for _ in range(2):
            report(server.url, *SMALL, "--repeat", "1")
        first, second = sent(server)[:4], sent(server)[4:]
        assert not {tuple(one) for one in first} & {tuple(one) for one in second}


@pytest.mark.long(every=2)
@pytest.mark.parametrize("name", ["COHORT_API_KEY", "OPENAI_API_KEY"])
def test_keys_from_the_environment(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeServer(key="one") as server:
        monkeypatch.setenv(name, "one,two")
        report(server.url, *SMALL, "--repeat", "1")


def test_the_table() -> None:
    with FakeServer(tokens_per_event=2, delay=0.001) as server:
        shown = bench(server.url, *SMALL, "--repeat", "2").stdout
    assert f"first at {server.url}" in shown
    assert "steady: 4 requests, 2 at a time, 5 tokens in, 3 out" in shown
    for row in (
        "output tokens/s",
        "total tokens/s",
        "requests/s",
        "TTFT ms, p50",
        "ITL ms, p50",
        "end to end ms, p50",
    ):
        assert re.search(rf"^ *{re.escape(row)} +[\d.,]+ +[\d.,]+ +[\d.,]+ +\d+%", shown, re.M), shown
    assert "1 run, after one to warm up." in shown
    assert "Up to 1.50 tokens came in one event" in " ".join(shown.split())


@pytest.mark.long(extended=True)
@pytest.mark.parametrize("width", ["80", "140"])
def test_it_fits_the_terminal(width: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", width)
    with FakeServer(refuse_in=lambda n: n in (3, 7)) as server:
        shown = bench(server.url, *SMALL, code=1).stdout
    assert "1 requests failed while warming up, the first with: 400: not today" in shown
    assert all(len(line) <= int(width) for line in shown.splitlines()), shown
    listed = bench("--list").stdout
    assert all(len(line) <= int(width) for line in listed.splitlines()), listed
    assert all(name in listed for name in WORKLOADS) and "512 + 32" in listed


def test_a_bar_in_a_terminal_and_none_in_a_pipe(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with view.progress(2, "steady, run 1 of 2") as step:
        step()
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with view.progress(2, "steady, run 1 of 2") as step:
        step()
        step()
    shown = capsys.readouterr().err
    assert "steady, run 1 of 2" in shown and "2/2" in shown


def test_files(tmp_path: Path) -> None:
    with FakeServer() as server:
        result = bench(
            server.url, "--workload", "single,burst,steady", "--requests", "4", "--repeat", "2", "--json",
            str(tmp_path / "out.json"), "--plot", str(tmp_path / "out.png"),
        )  # fmt: skip
    assert "output tokens/s" in result.stdout
    found = json.loads((tmp_path / "out.json").read_text())
    assert [entry["workload"]["name"] for entry in found["workloads"]] == ["single", "burst", "steady"]
    picture = (tmp_path / "out.png").read_bytes()
    assert picture.startswith(PNG) and len(picture) > 10_000


@pytest.mark.long(extended=True)
def test_a_point_for_each_workload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Time between tokens exists where there are two; the other panel has all."""
    from matplotlib.axes import Axes

    labels: list[str] = []
    monkeypatch.setattr(Axes, "annotate", lambda self, text, *args, **more: labels.append(text))
    with FakeServer() as server:
        found = report(server.url, "--workload", "single,burst", "--requests", "2", "--repeat", "1")
    plot.draw(found, tmp_path / "out.png")
    assert labels == ["single (1)", "single (1)", "burst (32)"]


def test_without_matplotlib(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = bench("http://127.0.0.1:1", "--plot", str(tmp_path / "out.png"), code=2)
    assert result.stderr == (
        "cohort: error: --plot draws with matplotlib, which is not installed: pip install 'cohort-server[bench]'\n"
    )


# -- what can go wrong -----------------------------------------------------------------------------------------------------


def refusal(*args: str, code: int = 1) -> str:
    """The one line on stderr."""
    (line,) = bench(*args, code=code).stderr.splitlines()
    assert line.startswith("cohort: error: ")
    return str(line.removeprefix("cohort: error: "))


def test_failures_are_counted_and_the_exit_code_says_so() -> None:
    with FakeServer(error_in=lambda n: n == 8) as server:
        found = report(server.url, *SMALL, code=1)
    [entry] = found["workloads"]
    assert [run["failed"] for run in entry["runs"]] == [1, 0]
    assert entry["runs"][0]["first_error"] == "the engine is down"
    with FakeServer(error_in=lambda n: n == 8) as server:
        assert (
            "1 of 8 requests failed, the first with: the engine is down"
            in bench(server.url, *SMALL, code=1).stdout
        )


def test_a_server_that_dies_after_the_trial() -> None:
    with FakeServer(hang_up_in=lambda n: n > 1) as server:
        line = refusal(server.url, *SMALL)
    assert line.startswith("steady: all requests failed, the first with: the server closed the connection")


def test_a_server_that_refuses_ignore_eos() -> None:
    with FakeServer(knows_ignore_eos=False) as server:
        line = refusal(server.url, *SMALL)
    assert "refuses `ignore_eos`" in line and "Unrecognized request argument" in line


def test_a_server_that_does_not_know_ignore_eos() -> None:
    with FakeServer(stops_after=2) as server:
        shown = bench(server.url, *SMALL, "--repeat", "1").stdout
    assert "4 answers were shorter than asked for" in shown


def test_nobody_there() -> None:
    with FakeServer() as server:
        pass
    assert refusal(server.url).startswith(f"no server answers at {server.url}")


def test_wrong_keys_wrong_servers_and_too_long_prompts() -> None:
    with FakeServer(key="right") as server:
        assert "401: who is it?; give the key with --api-key" in refusal(server.url)
    with FakeServer(models=[1, 2]) as server:
        assert "no server with an OpenAI-compatible API" in refusal(server.url)
    with FakeServer(models={"data": []}) as server:
        assert "serves no model" in refusal(server.url)
    with FakeServer(models={"data": [{"id": "small", "max_model_len": 100}]}) as server:
        assert "steady takes 192 tokens of context, and small has 100" in refusal(server.url)
        assert server.asked == []
    with FakeServer(vocab=10) as server:
        assert "Token id 399 is out of vocabulary" in refusal(server.url, "--vocab-size", "400")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--workload", "fast"], "there is no workload 'fast'; there are single, burst"),
        (["--requests", "0"], "--requests 0: it should be at least 1"),
        (["--output-tokens", "-1"], "--output-tokens -1: it should be at least 1"),
        (["--repeat", "0"], "--repeat 0: at least 1 is needed"),
        (["--vocab-size", "3"], "--vocab-size 3: no model has so few"),
        (["--json", "/nowhere/out.json"], "--json /nowhere/out.json: this file cannot be written"),
        (["--plot", "/"], "--plot /: this file cannot be written"),
    ],
)
def test_flags_that_make_no_sense(args: list[str], words: str) -> None:
    assert words in refusal("http://127.0.0.1:1", *args, code=2)


def test_ctrl_c_ends_it_and_leaves_the_server_alone() -> None:
    with FakeServer(delay=0.05) as server:
        command = [str(Path(sys.executable).with_name("cohort")), "bench", server.url, "--requests", "500"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 20
        while server.running < 16:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, complaints = process.communicate(timeout=10)
        assert (process.returncode, complaints) == (130, "")
        while server.running:
            assert time.monotonic() < deadline
            time.sleep(0.01)


@pytest.mark.long(extended=True)
def test_json_needs_no_file_before_another_flag_or_an_address() -> None:
    with FakeServer() as server:
        for args in (
            ["--json", server.url, *SMALL],
            [server.url, "--json", *SMALL],
            [server.url, *SMALL, "--json", "-"],
        ):
            assert json.loads(bench(*args, "--repeat", "1").stdout)["config"]["model"] == "first"


# -- a real server ---------------------------------------------------------------------------------------------------------


def test_against_a_real_server(tmp_path: Path) -> None:
    """Its vocabulary is small, which it tells; every token is counted."""
    model = write_tokenizer(tmp_path)
    args = [str(model), "--executor", "echo", "--executor-option", f"vocab_size={VOCAB_SIZE}"]
    (tmp_path / "server").mkdir()
    with ServerProcess(args, tmp_path / "server") as server:
        command = [
            str(Path(sys.executable).with_name("cohort")),
            "bench",
            server.url,
            "--json",
            "--repeat",
            "2",
        ]
        done = subprocess.run(
            [*command, "--workload", "tiny", "--requests", "40", "--concurrency", "16"],
            capture_output=True, text=True, timeout=50,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert found["server"]["model"]["vocab_size"] <= VOCAB_SIZE
    assert found["config"]["prompts"]["source"] == "/v1/executors"
    [entry] = found["workloads"]
    [run] = entry["runs"]
    assert (run["failed"], run["output_tokens"], run["prompt_tokens"]) == (0, 40 * 64, 40 * 32)
    assert run["counted_by_server"] and not run["cut_short"]
