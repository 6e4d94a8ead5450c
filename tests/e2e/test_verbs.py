"""The verbs beside serve, as a person runs them: in a terminal, in a pipe, against a real server."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.checkpoints import write_tokenizer
from tests.e2e.conftest import ECHO
from tests.e2e.server_process import ServerProcess
from tests.e2e.terminal import Terminal
from tests.e2e.test_disconnect import wait_for_running

pytestmark = pytest.mark.long

COHORT = str(Path(sys.executable).with_name("cohort"))
PROMPT_TOKENS = 'cohort_tokens_total{kind="prompt"}'
ABORTED = 'cohort_requests_total{outcome="abort"}'


def run(
    folder: Path, *args: str, stdin: str = "", env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [COHORT, *args], cwd=folder, input=stdin, env={**os.environ, "COLUMNS": "80", **(env or {})},
        capture_output=True, text=True, timeout=50,
    )  # fmt: skip


@pytest.fixture(scope="module")
def endless_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The echo executor behind a tokenizer without an end token: an answer ends where the context does."""
    model = write_tokenizer(tmp_path_factory.mktemp("endless-model"))
    path = model / "tokenizer_config.json"
    config = json.loads(path.read_text())
    del config["eos_token"]
    path.write_text(json.dumps(config))
    args = [str(model), *ECHO, "--executor-option", "step_delay_ms=10", "--served-model-name", "echo"]
    with ServerProcess(args, tmp_path_factory.mktemp("endless")) as server:
        yield server


# -- chat ------------------------------------------------------------------------------------------------------------------


def test_chat_streams_stops_and_goes_on(endless_server: ServerProcess, tmp_path: Path) -> None:
    server = endless_server
    aborted = server.metric(ABORTED)
    with Terminal([COHORT, "chat", "--url", server.url], tmp_path) as terminal:
        terminal.expect(f"echo at {server.url}")
        terminal.expect(">>> ")
        terminal.type("Talk.\n")
        terminal.expect("Talk.\n")
        wait_for_running(server, 1, within=10)
        shown = len(terminal.shown)
        while len(terminal.shown) < shown + 20:  # it streams: words come while it runs
            assert terminal.read(10)
        assert server.metric("cohort_requests_running") == 1
        terminal.type("\x03")
        terminal.expect("[stopped; ")
        terminal.expect(">>> ")
        wait_for_running(server, 0, within=5)
        assert server.metric(ABORTED) == aborted + 1
        terminal.type("\x03")
        terminal.expect("Ctrl-D leaves")
        terminal.expect(">>> ")
        terminal.type("\x04")
        assert terminal.wait() == 0


def test_chat_remembers(endless_server: ServerProcess, tmp_path: Path) -> None:
    """The third request has both turns before it, seen by the server as so many more tokens; /reset forgets them."""
    server = endless_server

    def ask(terminal: Terminal, text: str) -> float:
        before = server.metric(PROMPT_TOKENS)
        terminal.type(f"{text}\n")
        terminal.expect("[cut at the token limit")
        terminal.expect(">>> ")
        wait_for_running(server, 0, within=5)
        return server.metric(PROMPT_TOKENS) - before

    command = [COHORT, "chat", "--url", f"{server.url}/v1", "--max-tokens", "6", "--temperature", "0"]
    with Terminal(command, tmp_path) as terminal:
        terminal.expect(">>> ")
        question = "Wie geht es?"
        first, second, third = (ask(terminal, question) for _ in range(3))
        turn = (
            len(question) + len("<|im_start|>user\n\n<|im_start|>assistant\n\n") - 22
        )  # marks are a token each
        assert second - first > turn and third - second > turn
        terminal.type("/history\n")
        assert terminal.expect(">>> ").count(question) == 3
        terminal.type("/save talk.json\n")
        terminal.expect("6 messages are in talk.json")
        terminal.type("/reset\n")
        terminal.expect("starts over")
        terminal.expect(">>> ")
        assert ask(terminal, question) == first
        terminal.type("/system Be kind.\n")
        terminal.expect("is set")
        terminal.expect(">>> ")
        assert ask(terminal, question) > first
        terminal.type("/nonsense\n")
        terminal.expect("there is no /nonsense")
        terminal.type("/exit\n")
        assert terminal.wait() == 0
    roles = [message["role"] for message in json.loads((tmp_path / "talk.json").read_text())]
    assert roles == ["user", "assistant"] * 3


@pytest.mark.long(extended=True)
def test_chat_takes_lines_that_go_on(tiny_server: ServerProcess, tmp_path: Path) -> None:
    with Terminal([COHORT, "chat", "--url", tiny_server.url], tmp_path) as terminal:
        terminal.expect(">>> ")
        terminal.type("Count from \\\n")
        terminal.expect("... ")
        terminal.type("3 to 9.\n")
        terminal.expect(">>> ")
        terminal.type("/history\n")
        assert "Count from \n3 to 9.\n" in terminal.expect(">>> ")
        terminal.type("\x04")
        assert terminal.wait() == 0


@pytest.mark.long(extended=True)
def test_chat_in_a_pipe(tiny_server: ServerProcess, tmp_path: Path) -> None:
    done = run(tmp_path, "chat", "--url", tiny_server.url, "--temperature", "0", stdin="Count from 3 to 9.\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "3, 4, 5, 6, 7, 8, 9\n", "")


@pytest.mark.parametrize(
    ("args", "stdin", "words"),
    [
        (["--model", "nope"], "Hi", "the server says 404: The model 'nope' does not exist"),
        ([], " ", "nothing came on stdin"),
        (["--url", "ftp://x"], "Hi", "--url ftp://x: it should be an address such as"),
    ],
)
def test_chat_tells_what_is_wrong(
    tiny_server: ServerProcess, tmp_path: Path, args: list[str], stdin: str, words: str
) -> None:
    done = run(tmp_path, "chat", "--url", tiny_server.url, *args, stdin=stdin)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"cohort: error: {words}") and done.stderr.count("\n") == 1, done.stderr


@pytest.mark.parametrize("args", [["version"], ["--help"], ["chat"]])
def test_a_full_disk_is_one_line(tiny_server: ServerProcess, tmp_path: Path, args: list[str]) -> None:
    more = ["--url", tiny_server.url, "--max-tokens", "4"] if args == ["chat"] else []
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [COHORT, *args, *more], cwd=tmp_path, input="Hi", stdout=full, stderr=subprocess.PIPE, text=True, timeout=50,
        )  # fmt: skip
    told = "cohort: error: the output cannot be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, told)


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (["bogus"], "no such command 'bogus'; see cohort --help"),
        (["sevre"], "no such command 'sevre'; did you mean serve?; see cohort --help"),
        (["show", "small"], "cohort show: `cohort info MODEL` shows a model's size, context and memory"),
        (["doctor", "extra"], "got unexpected extra argument(s) (extra); see cohort doctor --help"),
        (["--bogus"], "no such option: --bogus; see cohort --help"),
        (["serve", "--bogus"], "unknown flag --bogus; see cohort serve --help"),
        (["serve", "--prot", "1"], "unknown flag --prot; did you mean --port?"),
    ],
)
def test_a_command_line_that_makes_no_sense_is_one_line(tmp_path: Path, args: list[str], line: str) -> None:
    done = run(tmp_path, *args)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"cohort: error: {line}\n")


def test_chat_shows_the_speed(tiny_server: ServerProcess, tmp_path: Path) -> None:
    command = [COHORT, "chat", "--url", tiny_server.url, "--top-k", "1", "--min-p", "0.1"]
    with Terminal(command, tmp_path) as terminal:
        terminal.expect(">>> ")
        terminal.type("Count from 3 to 9.\n")
        assert re.search(r"\[\d+ tokens, \d+\.\d/s, first after \d+\.\d s\]\n", terminal.expect(">>> "))
        terminal.type("/exit\n")
        assert terminal.wait() == 0


def test_chat_without_a_server(tmp_path: Path) -> None:
    done = run(tmp_path, "chat", "--url", "http://127.0.0.1:1", stdin="Hi")
    assert done.returncode == 1
    assert (
        done.stderr
        == "cohort: error: no server answers at http://127.0.0.1:1: check the address, or name a model to start one\n"
    )


@pytest.mark.long(extended=True)
def test_chat_with_a_key(tokenizer_dir: Path, tmp_path: Path) -> None:
    with ServerProcess([str(tokenizer_dir), *ECHO, "--api-key", "open-sesame"], tmp_path) as server:
        args = ("chat", "--url", server.url, "--max-tokens", "2")
        without = run(tmp_path, *args, stdin="Hi")
        assert without.returncode == 1
        assert "the server says 401" in without.stderr and "give the key with --api-key" in without.stderr
        assert run(tmp_path, *args, "--api-key", "open-sesame", stdin="Hi").returncode == 0
        assert run(tmp_path, *args, stdin="Hi", env={"COHORT_API_KEY": "open-sesame,other"}).returncode == 0


# -- info, doctor, verify --------------------------------------------------------------------------------------------------


@pytest.mark.long(extended=True)
def test_info_says_what_the_server_says(tmp_path: Path) -> None:
    flags = ["cohort-tiny", "--kv-cache-memory-bytes", "40MiB", "--max-num-seqs", "16", "--dtype", "float32"]
    with ServerProcess(flags, tmp_path) as server:
        log = server.log()
    done = run(tmp_path, "info", *flags)
    assert (done.returncode, done.stderr) == (0, "")
    (capacity,) = re.findall(r"kv_tokens=(\d+)", log)
    assert f"{int(capacity):,} tokens" in done.stdout
    (parameters,) = re.findall(r"parameters=(\d+)", log)
    assert f"{int(parameters) / 1e6:.3g}M (" in done.stdout
    facts = json.loads(run(tmp_path, "info", *flags, "--json").stdout)
    assert facts["memory"]["capacity_tokens"] == int(capacity)
    assert facts["text"] == {
        "tokens": facts["vocab_size"], "chat_template": True, "tools": True, "problem": None, "notes": [],
    }  # fmt: skip


@pytest.mark.long(every=6)
@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["/nowhere"], "/nowhere: no such directory"),
        (["--memory", "much"], "--memory: it should be a number of bytes such as 4GiB"),
        (["--memory", "4GiB", "--kv-cache-memory-bytes", "1GiB"], "--memory is for weights, KV and all"),
        (["--dtype", "int3"], "dtype 'int3' is not supported"),
        (
            ["cohort-tiny", "--max-model-len", "999999"],
            "max_model_len 999999 is longer than the model's 2048",
        ),
    ],
)
def test_info_tells_what_is_wrong(tmp_path: Path, args: list[str], words: str) -> None:
    done = run(tmp_path, "info", *args)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"cohort: error: {words}") and done.stderr.count("\n") == 1, done.stderr


def test_doctor(tmp_path: Path) -> None:
    done = run(tmp_path, "doctor", "--json", env={"HF_TOKEN": "hf_very_secret"})
    assert (done.returncode, done.stderr) == (0, "")
    facts = json.loads(done.stdout)
    assert facts["torch"]["torch"] == facts["versions"]["torch"]
    assert facts["torch"]["threads"] == facts["box"]["threads"] <= len(os.sched_getaffinity(0))
    assert facts["hub"]["token"] is True and "hf_very_secret" not in done.stdout


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("raise ImportError('libtorch_cpu.so: cannot open')", "ImportError: libtorch_cpu.so: cannot open"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", "its process ended with signal SIGILL"),
    ],
    ids=["import", "crash"],
)
def test_doctor_where_torch_is_broken(tmp_path: Path, code: str, words: str) -> None:
    package = tmp_path / "broken" / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(code)
    done = run(tmp_path, "doctor", env={"PYTHONPATH": str(package.parent), "COLUMNS": "200"})
    assert (done.returncode, done.stderr) == (0, "")
    assert f"torch does not work, so no model can be served: {words}" in done.stdout
    assert "free of" in done.stdout and "avx" in done.stdout


@pytest.mark.long(extended=True)
def test_verify_cohort_tiny(tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("Count from 3 to 9.\n\nReverse: one two\n")
    done = run(tmp_path, "verify", "cohort-tiny", "--tokens", "12", "--prompts", "prompts.txt")
    assert done.returncode == 0, done.stderr
    for line in (
        "chat template  equal",
        "token ids      equal",
        "logits         equal",
        "greedy text    equal",
    ):
        assert line in done.stdout
    assert done.stdout.count("12 of 12") == 2 and "Equal.\n" in done.stdout


@pytest.mark.long(extended=True)
def test_verify_something_else(tokenizer_dir: Path, tmp_path: Path) -> None:
    """A reference that is no model is one line, not a report."""
    done = run(tmp_path, "verify", "cohort-tiny", "--reference", str(tokenizer_dir), "--json")
    assert (done.returncode, done.stdout) == (1, "")
    assert "cohort: error: transformers cannot load the" in done.stderr
