"""Names for parts of a step in profilers: phases, layers and what is within a layer.

    copy in | forward | layer 0 | attention, feed-forward | ... | sample | copy out      launched one by one
    copy in | replay | copy out                                                         from a graph

On by the executor's option `profile_ranges`. A graph holds no names: to see layers on a GPU, serve with --enforce-eager.
"""

from __future__ import annotations

import contextlib
from typing import Any, Protocol

PROFILE_RANGES = "profile_ranges"
"""Name of the executor's option."""


class Ranges(Protocol):
    """Makes a context for a part of a step."""

    def __call__(self, name: str, number: int | None = None) -> contextlib.AbstractContextManager[Any]:
        """Return the context of that name, and of a number where there are several."""


_NOTHING = contextlib.nullcontext()


def no_ranges(name: str, number: int | None = None) -> contextlib.AbstractContextManager[Any]:
    """`Ranges` that names nothing: 0.1 us each."""
    return _NOTHING
