"""docs/not-supported.md gives each message as the server writes it."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

from server.settings.load import SettingsError
from server.settings.table import DEFAULTS
from server.startup.model_loader import model_source
from tests.server.fakes import House, error_of

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "not-supported.md").read_text("utf-8")
ROW = re.compile(r"^\| `(.+?)` \| (.+) \|$", re.M)
ROWS = ROW.findall(PAGE)
REQUESTS = [row for row in ROWS if row[0].startswith(("GET ", "POST "))]
FIELDS = [row for row in ROWS if row[0].startswith('"')]


def test_every_row_is_read() -> None:
    assert len(REQUESTS) + len(FIELDS) == len(ROWS)
    assert len(REQUESTS) >= 14 and len(FIELDS) >= 14


@pytest.mark.parametrize(("request_line", "message"), REQUESTS)
async def test_endpoints(house: House, request_line: str, message: str) -> None:
    method, path = request_line.split()
    response = await (house.get(path) if method == "GET" else house.post(path, {}))
    assert response.status_code == 404
    error = error_of(response)
    assert error["code"] == "not_found"
    assert error["message"] == f"There is no {method} {path} here. {message}"


@pytest.mark.parametrize(("field", "message"), FIELDS)
async def test_parameters(house: House, field: str, message: str) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}]} | json.loads("{" + field + "}")
    response = await house.post("/v1/chat/completions", body)
    error = error_of(response)
    if error["code"] == "model_not_found":
        assert response.status_code == 404
        named = re.compile(r"This server has: .*")
        assert named.sub("", error["message"]) == named.sub("", message)
    else:
        assert response.status_code == 400
        assert error["message"] == message


def test_a_file_is_no_model(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.touch()
    [message] = re.findall(r"^\| a file \| (.+) \|$", PAGE, re.M)
    with pytest.raises(SettingsError) as error:
        model_source(dataclasses.replace(DEFAULTS, model=str(path)))
    assert str(error.value) == f"{path}: {message}"


async def test_the_opening_example(house: House) -> None:
    body, answer = re.search(r"-d '(.+)'\n(\{.+\})\n", PAGE).groups()  # type: ignore[union-attr]
    assert (await house.post("/v1/chat/completions", json.loads(body))).json() == json.loads(answer)
