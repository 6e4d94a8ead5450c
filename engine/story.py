"""`Story`: the record of one call, from its arrival to its end.

The call's sequences share one story. It feeds the access log, `GET /v1/requests`, the timings of answers, traces and
histograms. The front end adds what it knows of the call in a subclass.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple, Protocol

from engine.interruptions import Interruptions, Outage
from engine.refusal import Refusal

MAX_EVENTS = 256
"""Events kept of one call. A call of a thousand choices, or one that is preempted again and again, has more."""


class WaitReason(enum.StrEnum):
    """Why a sequence waits to be admitted."""

    STEP = "step"
    """A step is being computed; the queue is looked at after it."""
    SLOTS = "slots"
    """As many sequences run as may run at once (`max_num_seqs`)."""
    FAIR_SHARE = "fair_share"
    """A slot is free, and kept for other tenants: this one has as many as it may have beside them."""
    KV_BLOCKS = "kv_blocks"
    """The KV pool has too few free blocks."""
    TOKENS = "tokens"
    """Others use up the tokens of each step (`max_num_batched_tokens`, or the share that prompts get beside streams)."""
    ADAPTER = "adapter"
    """The executor does not hold its LoRA adapter."""
    PREFIX = "prefix"
    """Another sequence computes the same prefix in this very step."""
    TIER = "tier"
    """KV of its prompt is read from disk."""
    RECOVERY = "recovery"
    """The executor is being restarted, or computes suspects of a failure alone."""


class Missed(enum.StrEnum):
    """Why part of a prompt was not found in the prefix cache."""

    DIFFERS = "differs"
    """The latest prompt with the same beginning, in memory or on disk, goes on with other tokens."""
    EVICTED = "evicted"
    """The next block was cached once and is gone."""
    ON_DISK = "on_disk"
    """The next block is on disk and was not read: computing it was faster, the read failed, or no snapshot of states is there."""
    NEW = "new"
    """No known prompt goes on from there."""
    SHORT = "short"
    """The prompt has no full block before its last token."""
    OFF = "off"
    """The cache was not searched: it is off, or every position of the prompt has to be computed."""


class Lost(enum.StrEnum):
    """Why a block is no longer in the prefix cache."""

    ROOM = "room"
    """Another sequence needed it."""
    RESTART = "restart"
    """The executor was restarted."""
    RELEASE = "release"
    """Its memory was given back after a burst."""
    FAULT = "fault"
    """Its computation failed."""
    WINDOW = "window"
    """It lay behind the window of its layers, away from the positions that are kept for later prompts."""
    STATE = "state"
    """It is there, and there is no snapshot of the states of layers to begin with behind it."""


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """How much of a prompt was found in the prefix cache, and why not more of it.

    `matched_tokens`: length of the longest match. `first_difference`: with `Missed.DIFFERS` the position of the first token that
    differs from the latest prompt with the same beginning. `evicted_tokens` behind the match were cached once. `window`: they are
    missing for layers that see so many tokens only; those that see all tokens may have them still. `unread_tokens` behind the
    match are on disk; with `Missed.ON_DISK` the first difference is that from the chain there, None if there is none.
    """

    matched_tokens: int
    missed: Missed | None = None
    first_difference: int | None = None
    evicted_tokens: int = 0
    evicted_by: Lost | None = None
    window: int | None = None
    unread_tokens: int = 0


class Event(NamedTuple):
    """Something that happened to a call, in seconds of the engine's clock. `choice`: the key of its sequence; None for what
    concerns the call."""

    at: float
    name: str
    choice: int | None = None
    details: Mapping[str, object] = MappingProxyType({})


class Part(Protocol):
    """The part of a Sequence that its story reads."""

    @property
    def output_token_ids(self) -> list[int]:
        """Committed tokens."""

    @property
    def paused(self) -> bool:
        """Whether it was rolled back and has given no token since."""


class Story:
    """The engine's record of one call. Its methods are called by the loop task, `queue` also by the task that submits; times are
    seconds of the engine's clock, None until it comes to that.

        received - queued ---- admitted ---- first token ---------- last token - ended
                 prepare  queue        prefill             decode
    """

    def __init__(self, received: float = 0.0) -> None:
        self.received = received
        self.queued: float | None = None
        self.admitted: float | None = None
        self.first_token: float | None = None
        self.ended: float | None = None
        """End of the sequence that ended last; more may follow."""
        self.parts: dict[int, Part] = {}
        """Sequences that have not ended, by choice."""
        self.choices = 0
        """Sequences submitted."""
        self.prompt_tokens = 0
        """Each prompt once, for any number of choices."""
        self.cached_tokens = 0
        """Prompt tokens found in the prefix cache, without those that choices share with each other."""
        self.disk_tokens = 0
        """Prompt tokens whose KV was read from disk for this call; they are among `cached_tokens` unless it was lost again."""
        self.preempted = 0
        """How often a sequence was put back for want of KV blocks."""
        self.resumed = 0
        """How often a sequence went on after a failed step or a restart."""
        self.waited: dict[WaitReason, float] = {}
        """Seconds before the first admission, by reason: of the sequence that had waited longest by then."""
        self._wait_so_far: Callable[[], dict[WaitReason, float]] = dict
        """The same until now, of the first sequence."""
        self.paused: dict[WaitReason, float] = {}
        """Seconds that sequences lost after they had begun, until their next token: of all choices, by reason (`KV_BLOCKS`:
        preempted)."""
        self.prefix: PrefixMatch | None = None
        """Of the first prompt."""
        self.finish_reasons: dict[int, str] = {}
        """By choice."""
        self.interruptions = Interruptions()
        self.refusal: Refusal | None = None
        """Why it was refused, or dropped from the queue."""
        self.error: str | None = None
        """Code of the first error that ended a sequence."""
        self.events: list[Event] = []
        self.num_dropped_events = 0
        self._ended_tokens = 0
        self._paused_at: dict[int, tuple[float, WaitReason]] = {}
        """When and why each choice was rolled back that has given no token since."""

    @property
    def output_tokens(self) -> int:
        """Committed output tokens of all choices so far."""
        return self._ended_tokens + sum(len(part.output_token_ids) for part in self.parts.values())

    def tell(self, at: float, name: str, choice: int | None = None, **details: object) -> None:
        """Add an event."""
        if len(self.events) >= MAX_EVENTS:
            self.num_dropped_events += 1
        else:
            self.events.append(Event(at, name, choice, details))

    # -- what happens to a sequence --------------------------------------------------------------------------------------

    def queue(self, now: float, choice: int, part: Part, prompt_tokens: int) -> None:
        """A sequence was submitted. `prompt_tokens`: 0 where another choice counts them."""
        if self.queued is None:
            self.queued = now
        self.parts[choice] = part
        self.choices += 1
        self.prompt_tokens += prompt_tokens
        self.tell(now, "queued", choice)

    def watch_wait(self, so_far: Callable[[], dict[WaitReason, float]]) -> None:
        """`so_far` returns the seconds that a sequence has waited by reason, {} once it waits no longer. The first one counts."""
        if self.choices <= 1:
            self._wait_so_far = so_far

    def waited_for(self) -> dict[WaitReason, float]:
        """Seconds before the first admission by reason; of a call that waits until now."""
        return self.waited or self._wait_so_far()

    def admit(self, now: float, choice: int, waited: dict[WaitReason, float], cached: int | None) -> None:
        """A sequence begins to run, or does so again. `cached`: prompt tokens that it found in the prefix cache, None if that was
        counted before."""
        if self.admitted is None:
            # Where a later sequence is admitted first, the call has waited since its first one came.
            self.admitted, self.waited = now, _longest(self._wait_so_far(), waited)
            self._wait_so_far = dict
        self.resumed += self.interruptions.admit(now, choice)
        details = {} if cached is None else {"cached_tokens": cached}
        self.cached_tokens += cached or 0
        self.tell(now, "admitted", choice, waited=waited, **details)

    def match(self, prefix: PrefixMatch) -> None:
        """A prompt was looked up in the prefix cache; the first one counts."""
        if self.prefix is None:
            self.prefix = prefix

    def fetch(self, now: float, choice: int, tokens: int, num_bytes: int, seconds: float) -> None:
        """KV of `tokens` tokens of a waiting prompt came from disk; 0: the read was of no use."""
        self.disk_tokens += tokens
        self.tell(now, "kv_from_disk", choice, tokens=tokens, bytes=num_bytes, seconds=round(seconds, 4))

    def start_output(self, now: float, choice: int) -> None:
        """A sequence's first token was committed."""
        if self.first_token is None:
            self.first_token = now
        self.tell(now, "first_token", choice)

    def preempt(self, now: float, choice: int, output_tokens: int) -> None:
        """A sequence was rolled back for want of KV blocks."""
        self.preempted += 1
        self._pause(now, choice, WaitReason.KV_BLOCKS)
        self.tell(now, "preempted", choice, output_tokens=output_tokens)

    def interrupt(
        self, now: float, choice: int, cause: str, output_tokens: int, outage: Outage | None = None
    ) -> None:
        """A running sequence was rolled back by a failure."""
        self._pause(now, choice, WaitReason.RECOVERY)
        self.interruptions.interrupt(now, choice, cause, outage)
        self.tell(now, "restart", choice, cause=cause, output_tokens=output_tokens)

    def adopt(self, now: float, choice: int, tokens: int, stateless: int = 0) -> None:
        """A sequence runs again after a failure, with the KV of its first `tokens` tokens from before it. Of the next `stateless`
        tokens KV is there as well, and lacks a snapshot of the states of layers."""
        details = {"stateless_tokens": stateless} if stateless else {}
        self.tell(now, "kv_adopted", choice, tokens=tokens, **details)

    def resume(self, now: float, choice: int) -> None:
        """A sequence that was rolled back gave its next token."""
        self._go_on(now, choice)
        self.tell(now, "resumed", choice)

    def give_up(self, waited: dict[WaitReason, float]) -> None:
        """A sequence ends that was never admitted."""
        if self.admitted is None:
            self.waited = _longest(self.waited, waited)
            if len(self.parts) <= 1:
                self._wait_so_far = dict  # a story outlives its sequences, and is not to keep them

    def finish(self, now: float, choice: int, reason: str, output_tokens: int) -> None:
        """A sequence ended."""
        self.ended = now
        self._ended_tokens += output_tokens
        self.parts.pop(choice, None)
        self._go_on(now, choice)
        self.finish_reasons[choice] = reason
        self.tell(now, "finished", choice, reason=reason, output_tokens=output_tokens)

    def refuse(self, refusal: Refusal | None) -> None:
        """The call was refused with the advice to retry later. The first reason counts."""
        if self.refusal is None:
            self.refusal = refusal

    def fail(self, code: str) -> None:
        """A sequence ended, or is about to end, in an error."""
        if self.error is None:
            self.error = code

    def _pause(self, now: float, choice: int, reason: WaitReason) -> None:
        self._go_on(now, choice)  # it may be rolled back again before its next token
        self._paused_at[choice] = now, reason

    def _go_on(self, now: float, choice: int) -> None:
        self.interruptions.end(now, choice)
        if (paused := self._paused_at.pop(choice, None)) is not None:
            began, reason = paused
            self.paused[reason] = self.paused.get(reason, 0.0) + max(0.0, now - began)

    # -- durations, in seconds; those under way count up to `now` -------------------------------------------------------

    def queue_seconds(self, now: float) -> float | None:
        """From the queue to the first admission."""
        return _between(self.queued, self.admitted, self.ended, now)

    def prefill_seconds(self, now: float) -> float | None:
        """From the first admission to the first token; for embeddings to the end."""
        return _between(self.admitted, self.first_token, self.ended, now)

    def decode_seconds(self, now: float) -> float | None:
        """From the first token to the end."""
        return _between(self.first_token, None if self.parts else self.ended, None, now)

    def ttft_seconds(self) -> float | None:
        """From the arrival to the first token."""
        return None if self.first_token is None else self.first_token - self.received


def _longest(one: dict[WaitReason, float], other: dict[WaitReason, float]) -> dict[WaitReason, float]:
    return one if sum(one.values()) > sum(other.values()) else other


def _between(begin: float | None, end: float | None, otherwise: float | None, now: float) -> float | None:
    if begin is None:
        return None
    if end is None:
        end = now if otherwise is None else otherwise
    return max(0.0, end - begin)
