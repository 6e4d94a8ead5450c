"""From a request's body to the grammar of its sequences; called by the routes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.errors import FIELD, InvalidRequest, Overloaded
from executors.contract import ExecutorError
from server.grammar.compose import alone
from server.grammar.forms import constraint_of
from server.grammar.schemas import MAX_GRAMMAR_LENGTH
from server.http.call import Call
from server.http.large_body import run_off_loop_if_large
from server.schemas.structured import StructuredFields

if TYPE_CHECKING:
    from server.state.server_state import ServedModel, ServerState


@dataclass(frozen=True, slots=True)
class ValidGrammar:
    """`text`: the value for `TextRequest.grammar`. `param`: the request's field that requires it."""

    text: str
    param: str


async def for_body(
    state: ServerState, call: Call, model: ServedModel, body: StructuredFields
) -> ValidGrammar | None:
    """The grammar of a request whose whole answer is constrained; None for free text. Raises InvalidRequest naming the field."""
    constraint = await run_off_loop_if_large(call, state.threads, lambda: constraint_of(body))
    if constraint is None:
        return None
    return await prepared(state, call, model, alone(constraint), constraint.param)


async def prepared(
    state: ServerState, call: Call, model: ServedModel, grammar: str, param: str
) -> ValidGrammar:
    """The grammar, validated and compiled by the executor. `param` is the field it came from.

    Raises InvalidRequest naming `param` with the compiler's reason, Overloaded or Unavailable.
    """
    if len(grammar) > MAX_GRAMMAR_LENGTH:
        message = f"Invalid value for '{FIELD}': the schemas of a request should have at most {MAX_GRAMMAR_LENGTH} characters."
        raise InvalidRequest(message, param=param, code="invalid_value")
    if state.judge is None or not _has_grammars(state):
        message = (
            f"'{FIELD}' is not supported: this server's executor cannot constrain its output to a grammar."
        )
        raise InvalidRequest(message, param=param, code="unsupported_parameter")
    try:
        text = await state.judge.check(grammar, call.tenant)
        await model.engine.prepare_grammar(text)
    except Overloaded as error:
        state.metrics.refused(str(error.code))
        raise
    except InvalidRequest as error:
        message = f"Invalid value for '{FIELD}': {error.message.rstrip('.')}."
        raise InvalidRequest(message, param=param, code=error.code) from None
    return ValidGrammar(text, param)


def _has_grammars(state: ServerState) -> bool:
    try:
        return state.core is not None and state.core.executor.capabilities().grammars
    except ExecutorError:  # it is away for a moment; the engine says what it can do when the request comes
        return True
