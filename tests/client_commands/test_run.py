"""`cohort run` takes the flags of `cohort chat`, each for what it is there: of a request, or of the server that is started."""

import io
from typing import Any

import pytest
from typer.main import get_command

from clients.chat import run
from clients.chat.command import SAMPLING, Wishes
from clients.chat.parameters import PARAMETERS
from cohort_server import command_line


@pytest.fixture
def talks(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    asked: list[tuple[Any, ...]] = []
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    monkeypatch.setattr(run, "talk", lambda *args: asked.append(args))
    return asked


def ask(*argv: str) -> None:
    command: Any = get_command(command_line.application())
    command.main(["run", *argv], prog_name="cohort", standalone_mode=False)


def test_settings_of_a_request_are_none_of_the_server(talks: list[tuple[Any, ...]]) -> None:
    ask("m", "Why?", "--repetition-penalty", "1.1", "--stop", "a", "--stop", "b", "--max-model-len", "512")
    [(target, url, wishes, settings)] = talks
    assert (target, url, settings) == ("m", None, {"max_model_len": "512"})
    assert isinstance(wishes, Wishes) and wishes.prompt == "Why?"
    given = {name: value for name, value in wishes.sampling.items() if value}
    assert given == {"repetition_penalty": 1.1, "stop": ["a", "b"]}


def test_each_field_with_a_flag_is_one_that_set_takes() -> None:
    assert set(SAMPLING) < set(PARAMETERS)
