"""The context of a call: built once from its body's fields, its key and its arrival."""

import time
from types import SimpleNamespace
from typing import Any

import pytest

from engine.request import RequestContext
from server.http import call as calls
from server.http.call import Call
from server.prepare.engine_request import request_context
from server.schemas.embeddings import EmbeddingRequest
from server.schemas.sampling import GenerationFields


def _model(salt_per_key: bool = False) -> Any:
    return SimpleNamespace(salt_per_key=salt_per_key)


async def test_every_field_of_a_body_reaches_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with a value of its own, so that no two can be exchanged."""
    call = Call(tenant="0123456789abcdef")
    monkeypatch.setattr(calls.time, "monotonic", lambda: 100.0)
    call.receive(b"{}")
    monkeypatch.setattr(calls.time, "monotonic", lambda: 107.0)
    for body in (
        GenerationFields(priority=-3, deadline_ms=2500, cache_salt="salt"),
        EmbeddingRequest(input="a", priority=-3, deadline_ms=2500, cache_salt="salt"),
    ):
        context = request_context(call, "cmpl-", body, _model())
        assert context == RequestContext(context.request_id, 100.0, -3, "salt", "0123456789abcdef", 102.5), (
            "times count from the arrival of the body"
        )
        assert context.request_id.startswith("cmpl-") and len(context.request_id) == len("cmpl-") + 32
    assert (
        request_context(call, "embd-", body, _model()).request_id
        != request_context(call, "embd-", body, _model()).request_id
    )


async def test_a_call_without_a_body_of_http_arrives_when_it_is_prepared() -> None:
    """As offline; and what a body leaves out is not limited, ranked or salted."""
    begun = time.monotonic()
    context = request_context(Call(), "cmpl-", GenerationFields(), _model())
    assert begun <= context.arrival_time <= time.monotonic()
    assert context == RequestContext(context.request_id, context.arrival_time)


async def test_with_a_salt_per_key_no_salt_passes_for_another_key() -> None:
    call = Call(tenant="aa")
    own = request_context(call, "cmpl-", GenerationFields(), _model(True)).cache_salt
    salted = request_context(call, "cmpl-", GenerationFields(cache_salt="bb/x"), _model(True)).cache_salt
    call.tenant = "bb"
    other = request_context(call, "cmpl-", GenerationFields(cache_salt="x"), _model(True)).cache_salt
    assert (own, salted, other) == ("aa/", "aa/bb/x", "bb/x")
