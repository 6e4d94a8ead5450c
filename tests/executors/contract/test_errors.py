"""Errors keep their class on the way from the executor's process."""

from __future__ import annotations

import pytest

from executors.contract import errors
from executors.contract.errors import ConfigError, ExecutorError, Unavailable, from_kind


def subclasses(cls: type[ExecutorError]) -> list[type[ExecutorError]]:
    return [cls, *(each for direct in cls.__subclasses__() for each in subclasses(direct))]


@pytest.mark.parametrize(
    "cls",
    [one for one in subclasses(ExecutorError) if one.__module__ == errors.__name__],
    ids=lambda one: one.__name__,
)
def test_an_error_is_its_own_class_on_the_other_side(cls: type[ExecutorError]) -> None:
    found = from_kind(cls.kind, "why")
    assert type(found) is cls and str(found) == "why"


def test_what_is_not_there_yet_is_a_configuration_that_cannot_be_served() -> None:
    assert issubclass(Unavailable, ConfigError) and Unavailable.kind != ConfigError.kind
