"""`Call`: one record of a request, under one key of its scope."""

import asyncio
import time
from typing import Any

import pytest

from server.http.call import CALL, CLIENT_CLOSED_REQUEST, Call, Refusal, call_of
from server.http.errors import http_error_response
from server.schemas.extras import MAX_TOLD
from tests.server.fakes import House


def test_the_first_layer_that_asks_makes_the_call_and_the_others_get_the_same() -> None:
    scope: dict[str, Any] = {"type": "http"}
    call = call_of(scope)
    assert call_of(scope) is call is scope[CALL] and scope.keys() == {"type", CALL}
    assert call_of({"type": "http"}).request_id != call.request_id


def test_a_copy_of_the_scope_shares_the_call() -> None:
    """Routers hand copies on: what a route writes reaches the layers around it."""
    scope: dict[str, Any] = {"type": "http"}
    call = call_of(scope)
    call_of({**scope, "path_params": {}}).ignore(["user"])
    assert call.ignored == ["user"]


def test_a_new_call_has_all_that_a_call_without_http_needs() -> None:
    before = time.monotonic()
    call = Call()
    assert before <= call.arrival_time <= time.monotonic()
    assert (call.tenant, call.key_name, call.size, call.story, list(call.ignored)) == ("", "", 0, None, [])


def test_times_count_from_the_complete_body() -> None:
    call = Call(arrival_time=1.0)
    call.receive(b"12345")
    assert call.arrival_time > 1.0 and call.size == 5


def test_the_list_of_ignored_parameters_is_bounded() -> None:
    call = Call(ignored=["a"])
    call.ignore(f"k{number}" for number in range(10 * MAX_TOLD))
    assert len(call.ignored) == MAX_TOLD + 1 and call.ignored[:2] == ["a", "k0"]


@pytest.mark.parametrize(
    ("call", "begun", "sent", "end"),
    [
        (Call(), 200, 200, 200),
        (Call(), 0, CLIENT_CLOSED_REQUEST, 0),
        (Call(disconnected=True), 200, CLIENT_CLOSED_REQUEST, 200),
        (Call(refusal=Refusal(503, "overloaded", None)), 200, 200, 503),
        (Call(refusal=Refusal(400, "invalid_value", "n")), 400, 400, 400),
    ],
)
def test_status_of_the_log_and_of_the_end(call: Call, begun: int, sent: int, end: int) -> None:
    assert (call.sent_status(begun), call.end_status(begun)) == (sent, end)


async def test_an_error_before_any_layer_leaves_its_refusal() -> None:
    """As of a host that is not allowed, in an application without the layer that logs."""

    async def unused(*_: Any) -> Any:
        return {}

    scope: dict[str, Any] = {"type": "http", "path": "/v1/messages"}
    await http_error_response(403, "no")(scope, unused, unused)
    assert call_of(scope).refusal == Refusal(403, "host_not_allowed", None)


async def test_concurrent_requests_have_calls_of_their_own() -> None:
    """Each with its own ignored parameters and its own id, however their tasks alternate."""
    house = House()
    names = [f"metadata_{number}" for number in range(8)]
    answers = await asyncio.gather(*(house.complete(**{name: {}}) for name in names))
    assert [answer.headers["x-cohort-ignored"] for answer in answers] == names
    assert len({answer.headers["x-request-id"] for answer in answers}) == len(names)
