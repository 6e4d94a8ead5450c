"""A dialect is one folder and one line: `toy_dialect/` and an entry of `DIALECTS`, and nothing else of the server knows of it."""

from __future__ import annotations

import ast
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest

from engine.errors import Overloaded
from server.apis import dialects
from tests.house import toy_dialect
from tests.server.fakes import FakeTextEngine, House, says, steps

ROOT = Path(__file__).resolve().parents[2]
HI = [{"role": "user", "content": "Hi"}]
KEYS = {"api_keys": ("secret",)}


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one line."""
    monkeypatch.setattr(dialects, "DIALECTS", (*dialects.DIALECTS, toy_dialect.DIALECT))


async def ask(house: House, **body: Any) -> httpx.Response:
    return await house.post("/v2/chat", {"model": "fake", "messages": HI, **body})


def message_of(response: httpx.Response) -> str:
    """The message of an error in the toy's form."""
    body = response.json()
    assert set(body) == {"message"} and body["message"], body
    assert response.headers["x-request-id"].startswith("req_")
    return str(body["message"])


def events_of(text: str) -> Iterator[dict[str, Any]]:
    """The events of a stream, whose types stand on lines of their own, too."""
    *blocks, last = text.split("\n\n")
    assert last == ""
    for block in blocks:
        kind, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert kind == f"event: {event['type']}"
        yield event


async def test_a_whole_answer() -> None:
    house = House()
    response = await ask(house, max_tokens=5)
    assert response.status_code == 200, response.text
    body = response.json()
    assert body["message"] == {"role": "assistant", "content": [{"type": "text", "text": "Hello!"}]}
    assert body["finish_reason"] == "COMPLETE"
    [request] = house.engine.requests
    assert request.max_tokens == 5
    tokens = {"input_tokens": len(request.prompts[0]), "output_tokens": 4}
    assert body["usage"] == {"tokens": tokens}
    assert bytes(request.prompts[0]).endswith(b"[user:Hi][assistant:")


async def test_a_streamed_answer() -> None:
    house = House(FakeTextEngine(says("Hel", "lo", finish="length")))
    response = await ask(house, stream=True)
    events = list(events_of(response.text))
    kinds = [event["type"] for event in events]
    assert kinds == [
        "message-start",
        "content-start",
        "content-delta",
        "content-delta",
        "content-end",
        "message-end",
    ]
    deltas = [event["delta"]["message"]["content"]["text"] for event in events[2:4]]
    assert deltas == ["Hel", "lo"]
    assert events[-1]["delta"]["finish_reason"] == "MAX_TOKENS"


async def test_a_stream_that_fails_ends_in_its_form() -> None:
    [partly, *_] = says("Hel")(_one_choice())
    house = House(FakeTextEngine(steps(partly, Overloaded("The queue is full."))))
    *_, last = events_of((await ask(house, stream=True)).text)
    assert last["delta"] == {"finish_reason": "ERROR", "error": "The queue is full."}


def _one_choice() -> Any:
    class Asked:
        prompts, n = ((1,),), 1

    return Asked()


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"messages": []}, 400, "messages"),
        ({"messages": [{"role": "robot", "content": "Hi"}]}, 400, "messages.0.role"),
        ({"model": "other"}, 404, "'other' does not exist"),
    ],
)
async def test_refusals_of_a_body(body: dict[str, Any], status: int, words: str) -> None:
    response = await ask(House(), **body)
    assert response.status_code == status
    assert words in message_of(response)


async def test_refusals_of_the_protocol() -> None:
    house = House(options={**KEYS, "max_body_bytes": 1000})
    with_key = {"Authorization": "Bearer secret", "Content-Type": "application/json"}
    async with house.client() as client:

        async def post(content: str, headers: dict[str, str], path: str = "/v2/chat") -> httpx.Response:
            return await client.post(path, content=content, headers=headers)

        answers = {
            400: await post("{", with_key),
            401: await post("{}", {**with_key, "Authorization": "Bearer wrong"}),
            404: await post("{}", with_key, "/v2/chat/nothing"),
            405: await client.get("/v2/chat", headers=with_key),
            413: await post(json.dumps({"messages": "x" * 1000}), with_key),
            415: await post("{}", {**with_key, "Content-Type": "text/plain"}),
        }
    for status, response in answers.items():
        assert response.status_code == status
        assert message_of(response)
    assert "not valid JSON" in message_of(answers[400])
    elsewhere = await house.get("/v2/other", headers=with_key)
    assert set(elsewhere.json()) == {"error"}, "other paths keep their form"


async def test_a_refusal_before_the_application() -> None:
    """What the protocol answers itself takes the form of the path, too."""
    forms = House().app.state.forms
    assert forms.of("/v2/chat") is toy_dialect.DIALECT.form
    assert forms.of("/v2/chat/x") is toy_dialect.DIALECT.form
    assert forms.of("/v2/chatter") is not toy_dialect.DIALECT.form


async def test_it_is_described() -> None:
    house = House()
    document = (await house.get("/openapi.json")).json()
    operation = document["paths"]["/v2/chat"]["post"]
    assert operation["operationId"] == "toyChat"
    answer = (await ask(house)).json()
    schema = {"$ref": "#/components/schemas/ToyChat", "components": document["components"]}
    jsonschema.validate(answer, schema)
    fault = (await ask(house, messages=[])).json()
    error = {"$ref": "#/components/schemas/ToyError", "components": document["components"]}
    jsonschema.validate(fault, error)
    fields = document["components"]["schemas"]["ToyRequest"]["properties"]
    assert fields["stream"]["x-origin"] == "Cohere"


async def test_it_is_counted_and_told() -> None:
    house = House()
    response = await ask(house)
    await ask(house, messages=[])
    metrics = (await house.get("/metrics")).text
    counted = [line for line in metrics.splitlines() if 'route="/v2/chat"' in line]
    assert any('status="200"' in line and line.endswith(" 1.0") for line in counted), counted
    assert any('status="400"' in line and line.endswith(" 1.0") for line in counted), counted
    story = (await house.get(f"/v1/requests/{response.json()['id']}")).json()
    assert (story["route"], story["status"], story["model"]) == ("/v2/chat", 200, "fake")


def test_nothing_else_knows_it() -> None:
    """No tracked file of the product names the toy, and the toy reaches into no other dialect."""
    named = subprocess.run(
        [
            "git",
            "grep",
            "-lE",
            "toy_dialect|/v2/chat|ToyRequest",
            "--",
            "server/**.py",
            "engine/**.py",
            "executors/**.py",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
    ).stdout.split()
    assert named == []
    for file in sorted((ROOT / "tests/house/toy_dialect").glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("server.apis."):
                assert (node.module or "").startswith("server.apis.base."), f"{file.name}: {node.module}"


def test_http_names_no_dialect() -> None:
    """Below `apis/` no module imports a dialect; above it, only what the composition is made of."""
    below = ("http", "prepare", "answer", "openapi", "state", "telemetry", "schemas", "system")
    for room in below:
        for file in (ROOT / "server" / room).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text("utf-8"))):
                if isinstance(node, ast.ImportFrom):
                    assert not (node.module or "").startswith("server.apis"), file
