"""The ingress's journal: what each unfinished sequence needs to go on at another replica, or at the same one in its next life."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from engine.errors import EngineError, Overloaded
from engine.mailbox import Mailbox
from engine.request import PLAIN_TOKENS, Request, RequestContext, TokenDelta
from engine.story import Story

MOST_LIVES = 5
"""Replicas in a row that a sequence may lose without a token in between. Then it is failed: it may be what kills them."""


class DeltaSink:
    """Where one replica, in one of its lives, puts the deltas of a call. A sequence that has moved on has another one, so that
    late deltas are dropped."""

    __slots__ = ("__weakref__", "call", "on_delta", "replica")

    def __init__(
        self, call: JournaledCall, replica: str, on_delta: Callable[[DeltaSink, int, TokenDelta], None]
    ) -> None:
        self.call = call
        self.replica = replica
        self.on_delta = on_delta

    def put(self, choice: int, delta: TokenDelta) -> None:
        """See `engine.mailbox.Outlet`."""
        self.on_delta(self, choice, delta)

    def put_token(self, choice: int, token_id: int, num_cached_tokens: int) -> None:
        """See `engine.mailbox.Outlet`."""
        self.on_delta(self, choice, TokenDelta([PLAIN_TOKENS[token_id]], None, None, num_cached_tokens))


@dataclass(slots=True, eq=False)
class JournaledCall:
    """One API call: all sequences that answer to one mailbox. `entries`: those that have not ended, by choice."""

    context: RequestContext
    """As replicas get it. Its story is empty but for the times that a replica sends: the call's own is written here."""
    entries: dict[int, Entry] = field(default_factory=dict)
    sinks: dict[str, DeltaSink] = field(default_factory=dict)
    """By replica."""
    home: str | None = None
    """The replica that got its first prompt."""
    started: bool = False
    """Whether one of its sequences has given something: then none of them is refused or late any more."""


@dataclass(slots=True, eq=False)
class Entry:
    """One sequence. One writer: `FleetCore`."""

    seq_id: int
    call: JournaledCall
    mailbox: Mailbox
    """Kept here and not in the call: the core finds calls by their mailboxes, weakly."""
    choice: int
    request: Request
    """As the replica gets it."""
    story: Story
    keys: list[bytes]
    """Of its prompt's blocks."""
    siblings: list[Entry] = field(default_factory=list)
    """Sequences of one prompt that were submitted together, itself included; they are refused together."""
    output_token_ids: list[int] = field(default_factory=list)
    """Committed tokens: those that the reader has been given."""
    paused: bool = False
    """Whether its replica was lost and it has given no token since."""
    cached_tokens: int | None = None
    """Prompt tokens found in the prefix cache of the first replica that gave a token; None before."""
    sink: DeltaSink | None = None
    """Where its deltas come from; None while no replica has it."""
    remote_id: int = 0
    """Its id at that replica's core."""
    lives: int = 0
    """Replicas lost since its last token."""
    refused_by: dict[str, EngineError] = field(default_factory=dict)
    """What replicas that do not take it said, in their present lives."""
    waits_since: float | None = None
    """When it began to wait for a replica, in seconds of the engine's clock; None while one has it."""

    @property
    def refusal(self) -> Overloaded | None:
        """The refusal with the shortest wait."""
        refusals = [one for one in self.refused_by.values() if isinstance(one, Overloaded)]
        return min(refusals, key=lambda one: one.retry_after, default=None)

    def forget_refusals(self) -> None:
        """Refusals of a full queue concern the moment they were made: a sequence that was let in since may go anywhere."""
        for name in [name for name, refusal in self.refused_by.items() if isinstance(refusal, Overloaded)]:
            del self.refused_by[name]
