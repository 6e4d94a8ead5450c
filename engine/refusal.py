"""`Refusal`: why a call was refused with the advice to retry later, and the numbers that decided it. Stories show it."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Because(enum.StrEnum):
    """The reason of a refusal."""

    ESTIMATED_WAIT = "estimated_wait"
    """It would have waited longer than a request may."""
    DEADLINE = "deadline"
    """It would not have been started before its own deadline, or was not."""
    QUEUED_SEQS = "queued_seqs"
    """As many sequences wait as may wait (`max_queued_seqs`), and its key has its share of them."""
    QUEUED_TOKENS = "queued_tokens"
    """Prompts of as many tokens wait as may wait (`max_queued_tokens`), and its key has its share of them."""
    WAITED = "waited"
    """It was let in, and not started within the time that a request may wait."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """`because` of what, and the numbers of that moment; None for a number that played no part.

    - `estimated_wait`, `waited` and `limit` in seconds; `limit` of `queued_seqs` and `queued_tokens` is a number of those.
    - `queued_seqs`, `queued_tokens`: what waits to be started, of all keys.
    - `queued_of_key`: sequences of the call's own tenant among them, of `keys` tenants that wait.
    """

    because: Because
    limit: float | None = None
    estimated_wait: float | None = None
    waited: float | None = None
    queued_seqs: int | None = None
    queued_tokens: int | None = None
    queued_of_key: int | None = None
    keys: int | None = None
