"""Whether this checkout has memory of KV that outlives executors: engine and executor come in separate changes."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

_PARTS = ("executors.llm.memory.arena", "engine.kv.adoption")
MISSING = [name for name in _PARTS if find_spec(name) is None]
needs_adoption = pytest.mark.skipif(
    bool(MISSING), reason=f"KV is not adopted by the next executor: there is no {', '.join(MISSING)}"
)
