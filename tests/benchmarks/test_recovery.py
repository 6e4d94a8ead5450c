"""What `benchmarks.recovery` does around a server: flipped bytes, pauses, counts, and the reasons to fail."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

import httpx
import pytest

from benchmarks.recovery import arena
from benchmarks.recovery.cases import CASES, Case
from benchmarks.recovery.feed import Feed
from benchmarks.recovery.rounds import Kill, pause
from tests.chaos.client import Stream

PAGE = os.sysconf("SC_PAGE_SIZE")
GOOD = Kill(0, (), 2, (0.4, 1.0), 30, flipped=0, kept=800, damaged=0)


@pytest.fixture
def file() -> Iterator[int]:
    """A file of this process as a server has it: ten pages, of which the third and the ninth were written."""
    made = os.memfd_create(f"{arena.NAME}-0")
    os.ftruncate(made, 10 * PAGE)
    for page in (2, 8):
        os.pwrite(made, b"\x55" * PAGE, page * PAGE)
    yield made
    os.close(made)


def test_bytes_are_flipped_where_there_is_memory(file: int) -> None:
    assert list(arena.allocated(file)) == [(2 * PAGE, 3 * PAGE), (8 * PAGE, 9 * PAGE)]
    assert arena.memory(os.getpid()) == 2 * PAGE
    assert arena.flip(os.getpid(), 200, seed=1) == 2 * PAGE
    found = os.pread(file, 10 * PAGE, 0)
    changed = {at // PAGE for at in range(len(found)) if found[at] != (0x55 if at // PAGE in (2, 8) else 0)}
    assert changed == {2, 8}
    flipped = sum(byte != 0x55 for byte in found[2 * PAGE : 3 * PAGE] + found[8 * PAGE : 9 * PAGE])
    assert 190 < flipped <= 200, "a byte is drawn twice now and then"


def test_a_server_without_such_memory_is_named() -> None:
    with pytest.raises(
        arena.NoArena, match=r"^process \d+ holds no memory file whose name begins with 'cohort-kv'$"
    ):
        arena.flip(os.getpid(), 1, seed=0)


def test_memory_that_was_never_written_is_not_flipped(file: int) -> None:
    os.ftruncate(file, 0)
    os.ftruncate(file, PAGE)
    with pytest.raises(arena.NoArena, match="no byte"):
        arena.flip(os.getpid(), 1, seed=0)


@pytest.mark.parametrize(
    ("kill", "words"),
    [
        (GOOD, []),
        (replace(GOOD, pauses=(0.4, 1.6)), ["a pause of 1.60 s"]),
        (replace(GOOD, wrong_tokens=3), ["3 tokens lost"]),
        (replace(GOOD, errors=("gone",)), ["ended with gone"]),
        (replace(GOOD, resumed=1), ["met 1 of 2 streams"]),
        (replace(GOOD, kept=0), ["kept no block"]),
        (replace(GOOD, damaged=1), ["0 bytes were flipped, and 1 blocks"]),
        (replace(GOOD, flipped=9), ["9 bytes were flipped, and 0 blocks"]),
        (replace(GOOD, flipped=9, damaged=4, pauses=(9.0,)), []),
    ],
)
def test_each_fault_has_its_line(kill: Kill, words: list[str]) -> None:
    found = kill.faults(streams=2, load_s=1.0)
    assert len(found) == len(words) and all(word in line for word, line in zip(words, found, strict=True))


def test_a_pause_ends_after_the_kill() -> None:
    stream = Stream({}, heard_at=[0.0, 5.0, 5.1, 7.1, 7.2])
    assert pause(stream, 5.1) == pytest.approx(2.0)
    assert pause(stream, 7.15) == pytest.approx(0.1)
    assert pause(stream, 8.0) == float("inf"), "it was over before"


async def test_the_feed_counts_what_is_computed_again() -> None:
    frames = [
        '{"skipped": 0, "steps": [{"kinds": "rdp", "tokens": [64, 1, 9]}, {"id": 4}]}',
        '{"skipped": 0, "steps": [{"kinds": "r", "tokens": [6]}]}',
    ]
    body = "".join(f"data: {frame}\n\n" for frame in frames)
    async with httpx.AsyncClient(
        transport=httpx.MockTransport(lambda _: httpx.Response(200, text=body)), base_url="http://x"
    ) as client:
        async with Feed(client) as feed:
            pass
    assert feed.recomputed == 70


async def test_a_feed_that_leaves_out_steps_proves_nothing() -> None:
    body = 'data: {"skipped": 3, "steps": []}\n\n'
    async with httpx.AsyncClient(
        transport=httpx.MockTransport(lambda _: httpx.Response(200, text=body)), base_url="http://x"
    ) as client:
        with pytest.raises(RuntimeError, match="left out 3 steps"):
            async with Feed(client):
                pass


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_streams_share_a_prompt_only_across_salts(case: Case) -> None:
    bodies = case.bodies(4, 50)
    keys = {(body.get("cache_salt"), tuple(body["prompt"])) for body in bodies}
    assert len(keys) == 4 and {len(body["prompt"]) for body in bodies} == {50}
    if case.name == "salts":
        assert len({prompt for _, prompt in keys}) == 2
    if case.name == "lora":
        assert {body["model"] for body in bodies} == {"bench", "a", "b"}
