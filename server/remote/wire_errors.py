"""Errors of the engine on their way to another process."""

from __future__ import annotations

from collections.abc import Iterator

from engine.errors import EngineError, Overloaded
from server.remote.messages import WireFault
from server.state.responses import errors as response_errors

_ROOTS: tuple[type[EngineError], ...] = (
    EngineError,
    response_errors.ResponseNotFound,
    response_errors.StoreFull,
)


def packed(error: EngineError) -> WireFault:
    """The error as a message."""
    retry = error.retry_after if isinstance(error, Overloaded) else None
    return WireFault(type(error).__name__, error.template, error.param, error.code, retry)


def unpacked(fault: WireFault) -> EngineError:
    """An error of the same class with the same members."""
    kinds = {kind.__name__: kind for root in _ROOTS for kind in _all(root)}
    error = kinds.get(fault.kind, EngineError)(fault.template)
    error.rename(fault.param)
    error.code = fault.code  # type: ignore[misc]  # as the instance that was packed
    if isinstance(error, Overloaded) and fault.retry_after is not None:
        error.retry_after = fault.retry_after
    return error


def _all(kind: type[EngineError]) -> Iterator[type[EngineError]]:
    yield kind
    for one in kind.__subclasses__():
        yield from _all(one)
