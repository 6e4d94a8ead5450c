"""Values that few send: numbers with many zeros, names written another way, settings times choices."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from engine.errors import InvalidRequest
from engine.text.generation import MAX_SETTING_IDS, Generation
from server.http.call import CALL, Call
from server.http.middleware import BodyLimit
from server.http.protocol import BoundedHttpProtocol
from tests.server.fakes import House, error_of
from tests.text_requests import text_request


@pytest.mark.parametrize(
    ("value", "status"), [(b"0" * 5000 + b"5", 200), (b"0" * 5000 + b"11", 413), (b"9" * 5000, 413)]
)
async def test_lengths_of_thousands_of_digits(value: bytes, status: int) -> None:
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b""}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/", "headers": [(b"content-length", value)]}
    await BodyLimit(app, 10)(scope, receive, send)  # type: ignore[arg-type]
    assert sent[0]["status"] == status


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("maxTokens", "max_tokens"), ("MAX_TOKENS", "max_tokens"), ("topP", "top_p"), ("top-p", "top_p"), ("TopK", "top_k"),
        ("minP", "min_p"), ("logitBias", "logit_bias"), ("stopTokenIds", "stop_token_ids"), ("ignoreEos", "ignore_eos"),
        ("Stop", "stop"), ("Seed", "seed"), ("N", "n"),
    ],
)  # fmt: skip
async def test_names_joined_another_way_are_refused(house: House, name: str, meant: str) -> None:
    response = await house.complete(**{name: 1})
    assert response.status_code == 400
    error = error_of(response)
    assert (error["param"], error["code"]) == (name, "unknown_parameter")
    assert f"Did you mean '{meant}'" in error["message"]


def test_token_ids_times_choices_are_bounded() -> None:
    """Before the first is queued: each choice has its own copy, and the loop stands while they are made."""
    core: Any = SimpleNamespace(max_model_len=100)
    for n, refused in ((1, False), (8, True)):
        asked = text_request(
            "r", ((1, 2),) * 128, n=n, allowed_token_ids=tuple(range(1100)), bad_words=((1, 2),)
        )
        generation: Any = SimpleNamespace(request=asked, _core=core)
        try:
            Generation._check_volume(generation)
            assert not refused
        except InvalidRequest as error:
            assert refused and error.param == "allowed_token_ids" and str(MAX_SETTING_IDS) in error.message


@pytest.mark.parametrize(("scope", "owed"), [({}, False), ({CALL: Call(response_id="cmpl-1")}, True)])
def test_a_call_that_was_taken_in_is_owed_its_answer(scope: dict[str, Any], owed: bool) -> None:
    """Before its first byte: between the engine's last token and that no drain ends. One still judged is told to leave."""
    protocol: Any = SimpleNamespace(
        _busy=True,
        _active=SimpleNamespace(response_started=False, scope=scope),
        transport=SimpleNamespace(get_write_buffer_size=lambda: 0),
    )
    getter: Any = BoundedHttpProtocol.owes_an_answer.fget  # type: ignore[attr-defined]
    assert getter(protocol) is owed
