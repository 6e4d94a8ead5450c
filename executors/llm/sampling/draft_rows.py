"""How many drafts a launched step has room for."""

from __future__ import annotations

DRAFT_ROWS = 256
"""Most drafts of a launched step. Logits of a row take 300 KB (151,936 of two bytes), and a step in which so many are verified
is bound by its products: more drafts would not pay."""


def draft_rows(max_batch_size: int, max_drafts: int) -> int:
    """Return the most drafts of a launched step of up to `max_batch_size` sequences, with up to `max_drafts` of each."""
    return min(max_batch_size * max_drafts, DRAFT_ROWS)
