"""Errors name fields by their roles until the code that knows the client's names renders them."""

import pytest

from engine.errors import FIELD, ContextLengthExceeded, EngineError, InvalidRequest, field

CLIENTS = {"max_tokens": "options.num_predict", "stop": "options.stop", "grammar": None}


def names(role: str, element: int) -> str | None:
    return f"prompt.{element}" if role == "prompt" else CLIENTS.get(role, role)


def error(message: str, param: str | None, element: int | None = None) -> InvalidRequest:
    refusal = InvalidRequest(message, param)
    refusal.element = element
    return refusal


@pytest.mark.parametrize(
    ("message", "param", "message_then", "param_then"),
    [
        (f"'{FIELD}' is 9", "max_tokens", "'options.num_predict' is 9", "options.num_predict"),
        (f"'{FIELD}' is empty", "prompt", "'prompt.3' is empty", "prompt.3"),
        (f"'{FIELD}' needs '{field('stop')}'", "n", "'n' needs 'options.stop'", "n"),
        (f"{FIELD} is refused", "grammar", "grammar is refused", None),
        (f"'{field('grammar')}' is refused", None, "'grammar' is refused", None),
        ("'max_tokens' is a word of the client's", "max_tokens", "'max_tokens' is a word of the client's",
         "options.num_predict"),
        ("{params}, {0} and '{field}' stay", "max_tokens", "{params}, {0} and '{field}' stay", "options.num_predict"),
    ],
)  # fmt: skip
def test_names_are_put_where_roles_stand(
    message: str, param: str | None, message_then: str, param_then: str | None
) -> None:
    refusal = error(message, param, 3)
    refusal.render(names)
    assert (refusal.message, refusal.param) == (message_then, param_then)


def test_until_then_a_message_has_the_roles() -> None:
    refusal = ContextLengthExceeded(f"'{FIELD}' and '{field('stop')}'", "max_tokens")
    assert refusal.message == str(refusal) == "'max_tokens' and 'stop'"
    assert EngineError("plain").message == "plain"


def test_another_field_may_be_at_fault() -> None:
    refusal = error(f"'{FIELD}' is not supported beside '{field('stop')}'", "response_format")
    refusal.rename("tools")
    assert (refusal.message, refusal.param) == ("'tools' is not supported beside 'stop'", "tools")
    refusal.render(names)
    assert refusal.message == "'tools' is not supported beside 'options.stop'"
    refusal.rename(None)
    refusal.render(names)
    assert (refusal.message, refusal.param) == ("'tools' is not supported beside 'options.stop'", None)
