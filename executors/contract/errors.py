"""Every error an executor may raise, on one page. Standard library only.

`kind` is the error's name on the wire; `from_kind` turns it back into the class on the other side.
"""

from __future__ import annotations

import enum
from typing import ClassVar


class ExecutorError(Exception):
    """Base of all executor errors. Recoverable unless a subclass says otherwise."""

    kind: ClassVar[str] = "executor_error"


class InvalidInput(ExecutorError):
    """The caller broke the contract: a token id out of range, a block table too short, a shape that does not fit."""

    kind = "invalid_input"


class Unsupported(ExecutorError):
    """The executor does not support the request, now or later."""

    kind = "unsupported"


class ConfigError(ExecutorError):
    """The model or configuration cannot be served. The message is one line naming the file or field and what is
    supported; `cohort serve` prints it and exits with code 2."""

    kind = "config_error"


class Unavailable(ConfigError):
    """The configuration names something that is not there at the moment and may be later: a GPU whose driver is not loaded,
    memory that another process holds. `cohort serve` prints the message and exits with code 75."""

    kind = "unavailable"


class StepFailed(ExecutorError):
    """A step raised. State of the sequences in it is unknown until the next epoch."""

    kind = "step_failed"


class OutOfMemory(StepFailed):
    """The device had no memory for a step."""

    kind = "out_of_memory"


class Skipped(ExecutorError):
    """A step was not run because an earlier one failed; raised until the engine begins a new epoch."""

    kind = "skipped"


class ExecutorDied(ExecutorError):
    """The executor process is gone (exit, signal, closed socket, hang). `cause` is a short label for metrics: exit, signal,
    closed, hang, load, memory or device."""

    kind = "executor_died"

    def __init__(self, message: str, cause: str = "exit", *, from_outside: bool = False) -> None:
        """`from_outside`: the running computation need not be the reason (a signal, or a process that was stopped)."""
        super().__init__(message)
        self.cause = cause
        self.from_outside = from_outside


class DeviceLost(ExecutorDied):
    """The executor's device can be used only by a new process, and the executor is part of the one that asks: beginning an
    epoch again cannot help."""

    kind = "device_lost"


class NotReady(ExecutorError):
    """Called before warmup, while loading or after shutdown."""

    kind = "not_ready"


_BY_KIND: dict[str, type[ExecutorError]] = {
    cls.kind: cls
    for cls in (
        ExecutorError, InvalidInput, Unsupported, ConfigError, Unavailable, StepFailed, OutOfMemory, Skipped, ExecutorDied,
        DeviceLost, NotReady,
    )
}  # fmt: skip


def from_kind(kind: str, message: str) -> ExecutorError:
    """The error of that wire name; an unknown name gives the base class."""
    return _BY_KIND.get(kind, ExecutorError)(message)


class ItemFault(enum.StrEnum):
    """The reason why one item of a step has no result while the others have theirs. The value is the fault's name on the wire.

    The engine uses it for the status: NOTHING_LEFT and GRAMMAR_TOO_LARGE are errors of the request, answered with 400; the
    others are failures of the executor.
    """

    EXECUTOR = "executor"
    """Any fault that no other member names."""
    NOT_FINITE = "not_finite"
    """The model's logits or hidden states are NaN or infinite."""
    NOTHING_LEFT = "nothing_left"
    """The logits are finite, and the item's own sampling settings or grammar forbid every token."""
    GRAMMAR_TOO_LARGE = "grammar_too_large"
    """The grammar reached the limits of its compiler during generation."""

    @property
    def message(self) -> str:
        """A sentence without its full stop, for `ItemOutput.error`."""
        return _MESSAGES[self]


_MESSAGES = {
    ItemFault.EXECUTOR: "the executor has no result for this sequence",
    ItemFault.NOT_FINITE: "the model's logits are not finite numbers",
    ItemFault.NOTHING_LEFT: "the sampling settings forbid every token",
    ItemFault.GRAMMAR_TOO_LARGE: "the grammar cannot be followed any further",
}
