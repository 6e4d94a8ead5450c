"""The store of responses: bounds in number, bytes and age, tenants apart, and what is in progress."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.state.responses.errors import StoreFull
from server.state.responses.run import BackgroundRun
from server.state.responses.store import MemoryResponseStore, StoredResponse
from tests.tiers import examples


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Run(BackgroundRun):
    """In progress until told otherwise."""

    def __init__(self, size: int = 0) -> None:
        self.size, self.done, self.cancelled = size, False, False

    async def cancel(self) -> None:
        self.cancelled = self.done = True


def response(number: int, tenant: str = "", size: int = 0, run: Run | None = None) -> StoredResponse:
    item = (f"msg_{number}", b"{}")
    return StoredResponse(f"resp_{number}", tenant, (("in", b"{}"),), b"x" * size, (item,), run)


async def test_the_oldest_go_first() -> None:
    store = MemoryResponseStore(3, 10**6, 60.0)
    for number in range(5):
        await store.put(response(number))
    assert [await store.get("", f"resp_{number}") is not None for number in range(5)] == [
        False,
        False,
        True,
        True,
        True,
    ]
    assert await store.item("", "msg_0") is None and await store.item("", "msg_4") == b"{}"


async def test_bytes_are_bounded() -> None:
    store = MemoryResponseStore(1000, 100_000, 60.0)
    for number in range(100):
        await store.put(response(number, size=10_000))
        assert store.counted_bytes <= 100_000
    assert len(store) == 9
    with pytest.raises(StoreFull):
        await store.put(response(1000, size=200_000))


async def test_age_is_bounded() -> None:
    clock = Clock()
    store = MemoryResponseStore(10, 10**6, 60.0, clock)
    await store.put(response(1))
    await store.put(response(2, run=(run := Run())))
    clock.now = 61.0
    assert await store.get("", "resp_1") is None
    assert await store.get("", "resp_2") is not None, "one in progress stays"
    run.done = True
    assert await store.get("", "resp_2") is None
    assert store.counted_bytes == 0


async def test_what_is_in_progress_stays() -> None:
    store = MemoryResponseStore(2, 10**6, 60.0)
    runs = [Run(), Run()]
    for number, run in enumerate(runs):
        await store.put(response(number, run=run))
    with pytest.raises(StoreFull):
        await store.put(response(3))
    runs[1].done = True
    await store.put(response(3))
    assert await store.get("", "resp_0") is not None and await store.get("", "resp_1") is None
    await store.close()
    assert runs[0].cancelled and len(store) == 0


async def test_tenants_are_apart() -> None:
    store = MemoryResponseStore(10, 10**6, 60.0)
    await store.put(response(1, "a"))
    assert await store.get("b", "resp_1") is None
    assert await store.item("b", "msg_1") is None
    assert await store.delete("b", "resp_1") is None
    assert await store.delete("a", "resp_1") is not None


async def test_a_response_that_grows_is_counted_again() -> None:
    store = MemoryResponseStore(10, 10**6, 60.0)
    await store.put(growing := response(1, run=(run := Run(100))))
    before = store.counted_bytes
    run.size = 5100
    await store.put(growing)
    assert store.counted_bytes == before + 5000 and len(store) == 1


@settings(max_examples=examples(300), deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from("pdg"), st.integers(0, 5), st.integers(0, 4000), st.booleans()), max_size=40
    )
)
async def test_the_counts_always_add_up(steps: list[tuple[str, int, int, bool]]) -> None:
    store = MemoryResponseStore(3, 10_000, 60.0)
    for act, number, size, runs in steps:
        if act == "p":
            try:
                await store.put(response(number, size=size, run=Run() if runs else None))
            except StoreFull:
                pass
        elif act == "d":
            await store.delete("", f"resp_{number}")
        else:
            await store.get("", f"resp_{number}")
        kept = list(store._responses.values())
        assert store.counted_bytes == sum(one.size for one in kept) <= 10_000
        assert len(kept) <= 3
        assert {item_id for _, item_id in store._items} == {
            item_id for one in kept for item_id, _ in one.outputs
        }
