"""README's first screen is read, typed, recorded and judged."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path

import pytest

from tools.first_minutes import report, root, screen, session
from tools.first_minutes.screen import Command
from tools.first_minutes.terminal import rendered
from tools.ops.package_sources import PackageSources

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "TERM": "xterm"}
README = """# X

With `apt install git make`.

```console
$ git clone somewhere && cd x
$ ask "Who?" \\
    --now
It is me.
```

```python
print("$ not a command")
```

```console
$ serve
Ready 1.2 at port 80
...
```

## Your own model

```console
$ later
```
"""


def play(*commands: Command, folder: Path) -> session.Session:
    return session.play(commands, folder, ENVIRONMENT)


def test_readme_begins_with_a_clone_two_commands_and_an_answer() -> None:
    text = screen.first_screen((ROOT / "README.md").read_text("utf-8"))
    clone, install, question, *others = screen.commands(text)
    assert clone.text.startswith("git clone https://.../cohort") and install.text == "make install"
    assert question.is_question and question.output == ["The capital of Peru is Lima."]
    assert any(command.text.startswith("make serve") and not command.is_question for command in others)
    assert {"git", "make", "g++", "python3-venv"} <= set(screen.packages(text))
    for platform in ("macOS", "Windows", "AMD"):
        assert platform in text


def test_readmes_figure_is_the_recorded_one() -> None:
    recorded = json.loads((ROOT / "benchmarks/results/first-minutes.json").read_text("utf-8"))
    figure = re.search(r"the first answer came (\d+) s", (ROOT / "README.md").read_text("utf-8"))
    assert figure and int(figure[1]) == round(recorded["first_answer_s"]) and recorded["faults"] == []
    typed = [command["command"] for command in recorded["commands"]]
    screen_text = screen.first_screen((ROOT / "README.md").read_text("utf-8"))
    assert typed == [command.text for command in screen.commands(screen_text)]


def test_commands_of_a_screen() -> None:
    text = screen.first_screen(README)
    clone, ask, serve = screen.commands(text)
    assert clone == Command("git clone somewhere && cd x")
    assert ask.text == 'ask "Who?" \\\n    --now' and ask.output == ["It is me."] and ask.is_question
    assert serve.lines == ["Ready 1.2 at port 80"] and not serve.is_question
    assert screen.packages(text) == ["git", "make"]
    with pytest.raises(ValueError, match="Your own model"):
        screen.first_screen("# X")


def test_an_answer_of_another_kind_is_a_fault() -> None:
    words = Command('ask "What?"', ["The capital of Peru is Lima."])
    assert not words.complaint("Lima is the capital.") and words.complaint("xq zk 17")
    shown = ['{"id":"a","model":"SmolLM2", ...', '"choices":[{"message":{"content":"Lima."}}], ...']
    body = Command('curl -d "What?"', shown)
    answer = '{"id":"b","model":"M","choices":[{"message":{"content":"It is \\"Lima\\"."}}]}'
    assert not body.complaint(answer) and body.answer(answer) == 'It is \\"Lima\\".'
    assert body.complaint('{"error":{"message":"no"}}') == "the answer has no choices, content, id, model"
    lines = Command("serve", ["Ready 1.2 at port 80"])
    assert not lines.complaint("x\nReady 1.3 at port 8000\ny") and "no line like" in lines.complaint("Failed")


def test_a_session_with_a_server(tmp_path: Path) -> None:
    """A server keeps its terminal, the next command has another one in the same folder, and Ctrl-C ends the server."""
    (tmp_path / "inner").mkdir()
    serve = Command("printf '\\033[1mReady 17\\033[0m\\n'; sleep 50; exit 3", ["Ready 1", "..."])
    ask = Command(
        'echo "What?" | sed \
  "s|What.|$PWD|"',
        ["inner"],
    )
    done = play(Command("cd inner"), serve, ask, folder=tmp_path)
    assert session.judge(done, 2, 90) == [] and done.first_answer_s is not None
    assert [one.code for one in done.done] == [0, None, 0]
    assert done.answer == str(tmp_path / "inner") and not done.as_shown
    text = "".join(text for _, text in done.recording.events)
    assert "777" not in text and text.startswith("$ ") and "Ready 17" in text


def test_faults_of_a_session(tmp_path: Path) -> None:
    silent = play(Command("sleep 0.5"), Command("echo Lima '?'", ["Lima ?"]), folder=tmp_path)
    assert silent.as_shown and silent.done[0].longest_silence > 0.4
    assert session.judge(silent, 0.3, 0.1) == [
        "sleep 0.5: silent for 0.5 s",
        "the first answer came after 1 s",
    ]
    failed = play(Command("echo so; false"), Command("echo never"), folder=tmp_path)
    assert session.judge(failed, 2, 90) == ["echo so; false: exit code 1: so", "no question was answered"]
    wrong = play(Command("echo '?'; echo xx", ["The capital"]), folder=tmp_path)
    assert "of another kind" in session.judge(wrong, 2, 90)[0]


def test_a_command_that_does_not_end_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_COMMAND_S", 0.3)
    began = time.monotonic()
    given_up = play(Command("sleep 60"), folder=tmp_path)
    assert "it has not ended after 0 s" in given_up.faults[0] and time.monotonic() - began < 10


def test_what_stands_on_the_screen() -> None:
    spinner = "\x1b[?25l\x1b[32m⠋\x1b[0m one\r\x1b[2K⠙ two\r\n\x1b[?25h\x1b[1A\x1b[2KLima.\r\n"
    assert rendered(spinner) == "Lima.\n"
    assert rendered("  12 s  long line\r\x1b[Kdone\r\nnext") == "done\nnext"
    assert rendered("abc\rX") == "Xbc" and rendered("\x1b]0;title\x07a\x1b[1mb") == "ab"


def test_files_name_no_place_and_hold_no_key(tmp_path: Path) -> None:
    text = "see https://mirror.example:8080/simple, http://127.0.0.1:8000/#admin_key=s3cret and \x1b[1m/mnt/wheels/x.whl\r\n"
    done = play(Command("echo 'Lima?'", ["Lima?"]), folder=tmp_path)
    done.recording.events.append((1.23456, text))
    report.write_cast(done, tmp_path / "x.cast")
    header, *events = map(json.loads, (tmp_path / "x.cast").read_text().splitlines())
    assert header["version"] == 2 and header["width"] > 80
    assert all(kind == "o" for _, kind, _ in events)
    assert events[-1][0] == 1.235
    assert (
        events[-1][2]
        == "see https://.../simple, http://127.0.0.1:8000/#admin_key=... and \x1b[1m.../x.whl\r\n"
    )
    summary = report.summary(done, ["one"], {"silence": 2.0}, "abc")
    assert (
        summary["commands"][0]["exit_code"] == 0
        and summary["faults"] == ["one"]
        and summary["answer"] == "Lima?"
    )


def test_a_root_sees_pips_sources_and_not_apts(tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    (tmp_path / "pip.conf").touch()
    volumes = {"/etc/apt/sources.list": tmp_path / "pip.conf", "/etc/pip.conf": tmp_path / "pip.conf"}
    volumes[str(tmp_path / "wheels")] = tmp_path / "wheels"
    made = root.mounts(tmp_path / "root", PackageSources(volumes))
    targets = [command[-1].removeprefix(str(tmp_path / "root")) for command in made]
    assert {"/dev", "/proc", "/etc/resolv.conf", "/etc/pip.conf", str(tmp_path / "wheels")} <= set(targets)
    assert not any("apt" in target for target in targets)
    assert (tmp_path / "root/etc/pip.conf").is_file()
