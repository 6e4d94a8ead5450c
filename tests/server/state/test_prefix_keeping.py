"""Where prefixes are kept, by the layout of an executor's KV."""

from __future__ import annotations

import msgspec
import pytest

from executors.contract import KvGroup, KvLayout, StateLayout
from server.state.prefix_keeping import PrefixKeeping

FULL, WINDOW = KvGroup(8, 64), KvGroup(8, 64, 32)


@pytest.mark.parametrize(
    ("layout", "enabled", "interval", "at_points"),
    [
        (KvLayout(16, (FULL,)), True, 16, False),
        (KvLayout(16, (FULL,)), False, 0, False),
        (KvLayout(16, (FULL, WINDOW)), True, 16, True),
        (KvLayout(16, (FULL,), StateLayout(64, 4, 64)), True, 64, True),
        (KvLayout(16, ()), True, 0, False),
    ],
)
def test_by_the_layout(layout: KvLayout, enabled: bool, interval: int, at_points: bool) -> None:
    found = PrefixKeeping.of(layout, enabled)
    assert found == PrefixKeeping(interval, at_points)
    assert found.kept(100) == (100 // interval * interval if interval else 0)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(found), type=PrefixKeeping) == found, (
        "an API worker is told"
    )
