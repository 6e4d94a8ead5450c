"""Who made the executor fail is asked not to try again; who only met a failure may."""

import pytest

from engine.errors import BrokeExecutor, EngineError, ExecutorFailed, Overloaded, SequenceFailed, Unavailable
from server.http.errors import engine_error_response


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (BrokeExecutor("died", code="out_of_memory"), "false"),
        (SequenceFailed("not a number"), "false"),
        (ExecutorFailed("the engine failed", code="engine_failed"), None),
        (Unavailable("draining"), None),
        (Overloaded("full"), None),
    ],
)
def test_clients_are_told_not_to_send_poison_again(error: EngineError, said: str | None) -> None:
    assert engine_error_response(error).headers.get("x-should-retry") == said
