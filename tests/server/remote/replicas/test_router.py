"""Where requests go: few keys move when replicas come and go, no replica gets more than its share, turns stay together."""

from __future__ import annotations

import hashlib
import math
import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.kv.prefix_cache import block_key, root_key
from server.remote.replicas.router import (
    FIRST_BLOCKS,
    LOAD_FACTOR,
    SLACK,
    Router,
    prefix_keys,
    rendezvous,
    short_key,
)

NAMES = st.sets(st.text("abcdefgh0123456789", min_size=1, max_size=8), min_size=1, max_size=12)
KEY = st.binary(min_size=1, max_size=40)
Tokens = np.ndarray[tuple[int], np.dtype[np.int32]]


def tokens(*ids: int) -> Tokens:
    return np.array(ids, np.int32)


def keys_of(seed: object, blocks: int) -> list[bytes]:
    """A chain of keys: two seeds have nothing in common."""
    return [hashlib.sha256(f"{seed}/{number}".encode()).digest() for number in range(blocks)]


def router(names: set[str] | list[str], **settings: float) -> Router:
    made = Router(**settings)  # type: ignore[arg-type]
    for name in names:
        made.join(name)
    return made


@given(KEY, NAMES)
def test_the_order_depends_on_key_and_names_alone(key: bytes, names: set[str]) -> None:
    """Two ingresses that know the same replicas agree, in whatever order these came."""
    order = rendezvous(key, names)
    assert sorted(order) == sorted(names)
    assert order == rendezvous(key, list(names)[::-1])


@given(KEY, NAMES, st.text("xyz", min_size=1, max_size=4))
def test_who_comes_or_goes_moves_no_other(key: bytes, names: set[str], new: str) -> None:
    """The order of the others stays: a key moves to the one that came, or from the one that went, and nowhere else."""
    more = rendezvous(key, names | {new})
    assert [name for name in more if name != new] == rendezvous(key, names)


def test_shares_of_keys_are_even() -> None:
    counts = Counter(rendezvous(str(number).encode(), ["a", "b", "c", "d"])[0] for number in range(4000))
    assert all(900 < count < 1100 for count in counts.values()), counts


@given(NAMES, st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5)), max_size=60), st.randoms())
def test_no_replica_has_more_than_its_share(
    names: set[str], calls: list[tuple[int, int]], rng: random.Random
) -> None:
    """However few the prefixes are: at most LOAD_FACTOR times the mean of what is unfinished, and SLACK, unless one call is
    larger than a share."""
    one, open_ = router(names), list[tuple[str, int]]()
    for prompt, count in calls:
        chosen = one.choose(keys_of(prompt, 4), b"", None, count)
        assert chosen in names
        loads = {name: one.load(name) for name in names}
        total = sum(loads.values()) + count
        limit = math.ceil(LOAD_FACTOR * total / len(names)) + SLACK
        assert loads[chosen] + count <= limit or loads[chosen] == min(loads.values())
        one.begin(chosen, count)
        one.remember(keys_of(prompt, 4), chosen)
        open_.append((chosen, count))
        if rng.random() < 0.3:
            name, ended = open_.pop(rng.randrange(len(open_)))
            one.end(name, ended)
    for name, count in open_:
        one.end(name, count)
    assert not any(one.load(name) for name in names)


@given(NAMES, st.integers(0, 1000), st.lists(st.integers(1, 6), min_size=1, max_size=8))
def test_turns_of_a_conversation_stay_together(names: set[str], seed: int, lengths: list[int]) -> None:
    """Each turn's prompt begins with the one before it, and is at most twice as long."""
    one, blocks, homes = router(names, load_factor=100.0), 6, set()
    for more in lengths:
        keys = keys_of(seed, blocks)
        chosen = one.choose(keys, b"")
        assert chosen is not None
        one.remember(keys, chosen)
        homes.add(chosen)
        blocks += more
    assert len(homes) == 1


@given(NAMES, st.integers(0, 1000), st.integers(FIRST_BLOCKS, 40), st.integers(FIRST_BLOCKS, 40))
def test_two_ingresses_agree_on_a_long_prefix(names: set[str], seed: int, first: int, second: int) -> None:
    """Without having seen the conversation, by its first blocks."""
    chosen = {router(names).choose(keys_of(seed, blocks), b"") for blocks in (first, second)}
    assert len(chosen) == 1


def test_a_shared_system_prompt_does_not_gather_everything() -> None:
    """Prompts that share less than half go by their own hash."""
    one, homes = router(["a", "b"], load_factor=100.0), Counter[str | None]()
    for number in range(200):
        keys = keys_of("system", 2) + keys_of(number, 3)
        homes[chosen := one.choose(keys, b"")] += 1
        assert chosen is not None
        one.remember(keys, chosen)
    assert min(homes.values()) > 60, homes


@given(NAMES, st.integers(0, 1000))
def test_a_prefix_is_forgotten_with_its_replica(names: set[str], seed: int) -> None:
    one, keys = router(names | {"gone"}, load_factor=100.0), keys_of(seed, 8)
    one.remember(keys, "gone")
    assert one.choose(keys, b"") == "gone"
    one.leave("gone")
    assert one.choose(keys, b"") == rendezvous(keys[-1], names)[0]
    one.join("gone")
    assert one.choose(keys, b"") == rendezvous(keys[-1], names | {"gone"})[0]


def test_requests_of_an_adapter_gather_while_their_replica_has_room() -> None:
    one = router(["a", "b", "c"], load_factor=100.0)
    chosen = {one.choose(keys_of(number, 3), b"", "digest-1") for number in range(50)}
    assert len(chosen) == 1 and one.decisions["adapter"] == 50
    others = {next(iter({one.choose(keys_of(0, 3), b"", f"digest-{number}")})) for number in range(30)}
    assert others == {"a", "b", "c"}
    tight = router(["a", "b", "c"])
    for number in range(30):
        name = tight.choose(keys_of(number, 3), b"", "digest-1")
        assert name is not None
        tight.begin(name)
    assert max(tight.load(name) for name in "abc") <= math.ceil(LOAD_FACTOR * 30 / 3) + SLACK


def test_who_may_not_be_chosen_is_not() -> None:
    one = router(["a", "b"])
    assert one.choose(keys_of(1, 2), b"", allowed={"b"}) == "b"
    assert one.choose(keys_of(1, 2), b"", allowed=set()) is None
    assert Router().choose([], b"x") is None
    one.end("b", 5)
    one.begin("unknown")
    assert one.load("b") == one.load("unknown") == 0


def test_memory_is_bounded() -> None:
    one = router(["a", "b"], memory=100)
    for number in range(50):
        one.remember(keys_of(number, 8), "a")
    assert len(one._home) == 100
    assert one._known(keys_of(49, 8), ["a", "b"]) == ("a", 8)


@pytest.mark.parametrize("salt, adapter", [(None, None), ("s", None), (None, "d")])
def test_keys_are_those_of_the_prefix_cache(salt: str | None, adapter: str | None) -> None:
    """Full blocks only; salt and adapter part what is equal otherwise."""
    ids = tokens(*range(40))
    first = block_key(root_key("m", adapter, salt), ids[:16])
    assert prefix_keys(ids, 16, "m", adapter, salt) == [first, block_key(first, ids[16:32])]
    plain = prefix_keys(ids, 16, "m", None, None)
    assert (prefix_keys(ids, 16, "m", adapter, salt) == plain) == (salt is adapter is None)
    assert prefix_keys(ids[:15], 16, "m", adapter, salt) == []
    assert short_key(ids[:15], "m", adapter, salt) != short_key(ids[:14], "m", adapter, salt)
