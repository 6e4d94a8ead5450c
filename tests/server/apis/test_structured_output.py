"""Structured output over HTTP, before fakes: what reaches the engine, and what a client is told."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from engine.errors import InvalidRequest, Overloaded, Unavailable
from engine.text.generation import TextDelta
from server.grammar.compose import compose
from server.http.call import Call
from server.prepare.structured_output import prepared
from tests.server.fakes import House, error_of, events, steps

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
FORMAT = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}

BOTH = pytest.mark.parametrize("route", ["chat", "complete"])


async def ask(house: House, route: str, **body: Any) -> httpx.Response:
    response: httpx.Response = await getattr(house, route)(**body)
    return response


@BOTH
@pytest.mark.parametrize("stream", [False, True])
async def test_the_grammar_reaches_the_engine(house: House, route: str, stream: bool) -> None:
    assert (await ask(house, route, response_format=FORMAT, stream=stream)).status_code == 200
    text = house.asked().grammar
    assert text is not None
    assert house.judge.asked == house.engine.grammars == [text]
    [part] = json.loads(text)["grammars"]
    guidance = part["json_schema"].pop("x-guidance")
    assert part == {"name": "start", "json_schema": SCHEMA}
    assert set(guidance) == {"whitespace_pattern", "json_allowed_escapes"}


@BOTH
async def test_what_the_judge_makes_of_it_is_what_the_engine_gets(house: House, route: str) -> None:
    async def check(grammar: str, tenant: str = "") -> str:
        return grammar.replace("gbnf_grammar", "lark_grammar")

    house.judge.check = check  # type: ignore[method-assign]
    response = await ask(house, route, structured_outputs={"grammar": 'root ::= "a"'})
    assert response.status_code == 200
    assert house.engine.grammars == [house.asked().grammar]
    assert "gbnf" not in house.engine.grammars[0]


@BOTH
@pytest.mark.parametrize("body", [{}, {"response_format": {"type": "text"}}, {"structured_outputs": None}])
async def test_free_text_asks_nobody(house: House, route: str, body: dict[str, Any]) -> None:
    assert (await ask(house, route, **body)).status_code == 200
    assert house.asked().grammar is None
    assert not house.judge.asked and not house.engine.grammars


@BOTH
async def test_all_choices_have_it(house: House, route: str) -> None:
    assert (await ask(house, route, structured_outputs={"choice": ["a", "b"]}, n=3)).status_code == 200
    assert house.asked().n == 3 and house.asked().grammar
    assert len(house.judge.asked) == 1


@BOTH
@pytest.mark.parametrize("stream", [False, True])
async def test_a_refusal_is_a_400_with_the_compilers_reason(house: House, route: str, stream: bool) -> None:
    house.judge.refusal = InvalidRequest("Unimplemented keys: ['not']", code="invalid_value")
    response = await ask(house, route, response_format=FORMAT, stream=stream)
    assert response.status_code == 400
    param = "response_format.json_schema.schema"
    assert error_of(response) == {
        "message": f"Invalid value for '{param}': Unimplemented keys: ['not'].",
        "type": "invalid_request_error",
        "param": param,
        "code": "invalid_value",
    }
    assert not house.engine.requests and not house.engine.grammars


@BOTH
async def test_what_the_executor_refuses(house: House, route: str) -> None:
    house.engine.refusal = InvalidRequest("the grammar was refused: no", code="invalid_value")
    response = await ask(house, route, structured_outputs={"regex": "a"})
    assert response.status_code == 400
    assert error_of(response)["param"] == "structured_outputs.regex"
    assert "the grammar was refused: no" in error_of(response)["message"]


@BOTH
@pytest.mark.parametrize(("refusal", "status"), [(Overloaded("full"), 429), (Unavailable("gone"), 503)])
async def test_what_is_not_the_clients_fault(
    house: House, route: str, refusal: Exception, status: int
) -> None:
    house.judge.refusal = refusal
    response = await ask(house, route, structured_outputs={"regex": "a"})
    assert response.status_code == status
    assert error_of(response)["param"] is None
    told = (await house.get("/metrics")).text
    assert f'cohort_requests_refused_total{{code="overloaded"}} {1.0 if status == 429 else 0.0}' in told


@BOTH
async def test_an_executor_without_grammars(house: House, route: str) -> None:
    house.core.executor.grammars = False
    response = await ask(house, route, response_format={"type": "json_object"})
    assert response.status_code == 400
    assert error_of(response)["param"] == "response_format"
    assert error_of(response)["code"] == "unsupported_parameter"
    assert not house.judge.asked
    assert (await ask(house, route, response_format={"type": "text"})).status_code == 200


@BOTH
async def test_without_a_judge_nothing_passes(house: House, route: str) -> None:
    house.state.judge = None
    response = await ask(house, route, structured_outputs={"regex": "a"})
    assert response.status_code == 400
    assert not house.engine.grammars and not house.engine.requests


@BOTH
@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "structural_tag": "x"}}, "structured_outputs.structural_tag"),
        ({"structured_outputs": {"regex": "a"}, "response_format": FORMAT}, "structured_outputs"),
        ({"structured_outputs": {"regx": "a"}}, "structured_outputs.regx"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schem": {}}}},
            "response_format.json_schema.schem",
        ),
        ({"json_schema": SCHEMA}, "json_schema"),
    ],
)
async def test_faults(house: House, route: str, body: dict[str, Any], param: str) -> None:
    response = await ask(house, route, **body)
    assert response.status_code == 400
    assert error_of(response)["param"] == param
    assert "_'" not in error_of(response)["message"]  # names as they are on the wire
    assert not house.judge.asked


@BOTH
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"response_format": FORMAT}, "response_format.json_schema.schema"),
        ({"structured_outputs": {"regex": "a"}}, "structured_outputs.regex"),
    ],
)
async def test_a_grammar_that_goes_no_further_is_blamed_on_what_asked_for_it(
    house: House, route: str, stream: bool, asked: dict[str, Any], param: str
) -> None:
    """The engine has one name for all of them."""
    drawn_out = InvalidRequest("the grammar cannot be followed any further", "grammar", "invalid_value")
    house.engine.script = steps(TextDelta(0, "{", (5,)), drawn_out)
    response = await ask(house, route, stream=stream, **asked)
    error = json.loads(events(response)[-2])["error"] if stream else error_of(response)
    assert (error["param"], error["code"]) == (param, "invalid_value")
    assert response.status_code == (200 if stream else 400)


async def test_many_schemas_in_one_grammar(house: House) -> None:
    assert house.state.model is not None
    part = {"json_schema": {"description": "x" * 60_000}}
    for count, fits in ((8, True), (9, False)):
        grammar = compose("start: @p0", {f"p{i}": part for i in range(count)})
        if fits:
            assert (await prepared(house.state, Call(), house.state.model, grammar, "tools")).text == grammar
        else:
            with pytest.raises(InvalidRequest, match="at most") as caught:
                await prepared(house.state, Call(), house.state.model, grammar, "tools")
            assert caught.value.param == "tools"
    assert len(house.judge.asked) == 1


@BOTH
async def test_a_client_that_goes_away_while_it_waits(house: House, route: str) -> None:
    waiting, cancelled = asyncio.Event(), asyncio.Event()

    async def check(grammar: str, tenant: str = "") -> str:
        waiting.set()
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.set()
        return grammar

    house.judge.check = check  # type: ignore[method-assign]
    task = asyncio.create_task(ask(house, route, structured_outputs={"regex": "a"}))
    await waiting.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert cancelled.is_set()
    assert not house.engine.requests


async def test_a_body_of_ten_megabytes(house: House) -> None:
    """Parsed on a thread and refused by its size."""
    schema = {"enum": [f"value {i}" for i in range(600_000)]}
    body = {
        "type": "json_schema",
        "json_schema": {"name": "big", "schema": schema},
    }
    response = await house.chat(response_format=body)
    assert response.status_code == 400
    assert error_of(response)["param"] == "response_format.json_schema.schema"
    assert len(error_of(response)["message"]) < 300
