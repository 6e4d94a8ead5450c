import statistics
import time

import msgspec
import numpy as np
import pytest

from executors.contract import checks
from executors.contract.batch import (
    Drafts,
    ItemOutput,
    SampledToken,
    SamplingParams,
    SequenceStart,
    UnifiedBatch,
    UnifiedOutput,
)
from executors.contract.errors import InvalidInput, StepFailed
from executors.contract.slots import SlotTable
from executors.contract.status import KvGroup, KvLayout, StateLayout


def ids(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def make(**changes: object) -> UnifiedBatch:
    """A chunk of 4 tokens, a decode, and a decode with one draft."""
    starts = tuple(
        SequenceStart(seq, slot, ids(1, 2, 3, 4), ids(), SamplingParams(seed=seq))
        for seq, slot in ((10, 2), (11, 0), (12, 1))
    )
    made = UnifiedBatch(
        1, 1, np.array([10, 11, 12]), ids(2, 0, 1), ids(4, 1, 2), ids(0, 8, 5), np.array([False, True, True]),
        ids(0, 0, 1), ids(1, 2, 3, 4, 50, 60, 61), starts=starts,
    )  # fmt: skip
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def test_counts_and_items() -> None:
    batch = make()
    assert (len(batch), batch.total_q_tokens(), batch.num_sampled_items()) == (3, 7, 2)
    assert batch.q_starts.tolist() == [0, 4, 5, 7]
    table = SlotTable(3, 4)
    table.apply(batch)
    items = list(batch.items(table))
    assert [item.q_tokens.tolist() for item in items] == [[1, 2, 3, 4], [50], [60, 61]]
    assert [(item.seq_id, item.pos_offset, item.num_draft_tokens) for item in items] == [
        (10, 0, 0),
        (11, 8, 0),
        (12, 5, 1),
    ]
    assert [item.sampling.seed for item in items if item.sampling] == [10, 11, 12]
    assert items[2].kv_cache.cache_id == 12 and items[2].kv_cache.num_tokens == 5


def test_output_holds_plain_tokens_as_arrays_and_the_rest_whole() -> None:
    plain = ItemOutput((SampledToken(5),))
    drafts = ItemOutput((SampledToken(6), SampledToken(7)))
    rich = ItemOutput((SampledToken(8, -0.5, ((8, -0.5),)),))
    failed = ItemOutput(error="NaN")
    output = UnifiedOutput.from_items([plain, None, drafts, rich, failed])
    assert (output.num_tokens.tolist(), output.token_ids.tolist()) == ([1, 0, 2, 1, 0], [5, 6, 7, 8])
    assert set(output.details) == {3, 4}
    assert list(output) == [plain, None, drafts, rich, failed]
    with pytest.raises(IndexError):
        output[5]


def test_output_holds_drafts_beside_the_tokens() -> None:
    plain = ItemOutput((SampledToken(5),), drafts=(1, 2))
    rich = ItemOutput((SampledToken(8, -0.5, ((8, -0.5),)),), drafts=(3,))
    none = ItemOutput((SampledToken(6),))
    output = UnifiedOutput.from_items([plain, None, none, rich])
    assert output.drafts is not None and set(output.details) == {3}
    assert output.drafts.counts.tolist() == [2, 0, 0, 1]
    assert output.drafts.by_item() == {0: [1, 2], 3: [3]}
    assert list(output) == [plain, None, none, rich]


@pytest.mark.parametrize(
    ("wanted", "counts", "tokens", "message"),
    [
        (None, (0, 1, 0), (5,), "not asked for"),
        ((2, 2, 2), (0, 3, 0), (5, 6, 7), "not asked for"),
        ((2, 2, 2), (1, 0, 0), (5,), "for an intermediate chunk"),
        ((2, 2, 2), (0, 2, 0), (5,), "with 1 drafts, where counts add up to 2"),
        ((2, 2, 2), (0, 1, 0), (-1,), "with 1 drafts"),
        ((2, 2, 2), (0, 1), (5,), "not asked for"),
    ],
)
def test_drafts_that_do_not_fit(
    wanted: tuple[int, ...] | None, counts: tuple[int, ...], tokens: tuple[int, ...], message: str
) -> None:
    output = UnifiedOutput(ids(0, 1, 1), ids(5, 6), drafts=Drafts(ids(*counts), ids(*tokens)))
    with pytest.raises(StepFailed, match=message):
        checks.check_output(make(drafts_wanted=None if wanted is None else ids(*wanted)), output)


def test_drafts_that_fit() -> None:
    output = UnifiedOutput(ids(0, 1, 1), ids(5, 6), drafts=Drafts(ids(0, 2, 1), ids(7, 8, 9)))
    batch = make(drafts_wanted=ids(1, 2, 4))
    checks.check_arrays(batch)
    checks.check_output(batch, output)
    for wrong in (ids(1, 2), ids(1, -2, 4)):
        with pytest.raises(InvalidInput, match="drafts_wanted"):
            checks.check_arrays(make(drafts_wanted=wrong))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_q_tokens": ids(4, 0, 3)}, "at least one query token"),
        ({"num_q_tokens": ids(4, 1, 1)}, "add up to 6"),
        ({"pos_offsets": ids(0, -1, 5)}, "negative"),
        ({"slots": ids(2, 0, 0)}, "occurs twice"),
        ({"seq_ids": np.array([10, 10, 12])}, "occurs twice"),
        ({"num_draft_tokens": ids(0, 1, 1)}, "no draft"),
        ({"num_draft_tokens": ids(0, 0, -1)}, "no draft"),
        ({"num_draft_tokens": ids(1, 0, 1)}, "only a final chunk"),
        ({"pending": np.array([True])}, "pending has 1"),
        ({"is_final_chunk": np.array([True])}, "is_final_chunk has 1"),
    ],
)
def test_unsound_arrays_are_refused(changes: dict[str, object], message: str) -> None:
    checks.check_arrays(make())
    with pytest.raises(InvalidInput, match=message):
        checks.check_arrays(make(**changes))


def test_limits() -> None:
    checks.check_limits(make(), 62, 9, 3)
    for limits, message in (
        ((61, 9, 3), "token id"),
        ((62, 8, 3), "exceed 8 tokens"),
        ((62, 9, 2), "largest batch"),
    ):
        with pytest.raises(InvalidInput, match=message):
            checks.check_limits(make(), *limits)
    hidden = make(token_ids=ids(1, 2, 3, 4, -1, 60, 61), pending=np.arange(7) == 4)
    checks.check_limits(hidden, 62, 9, 3)


@pytest.mark.parametrize(
    ("copies", "message"),
    [
        ([(0, 0, 8)], "a block outside 0..7"),
        ([(1, 0, 5)], "a block outside 0..4"),
        ([(0, -1, 0)], "a block outside"),
        ([(2, 0, 1)], "a group outside 0..1"),
        ([(0, 0, 1), (0, 2, 1)], "overlap"),
        ([(0, 0, 1), (0, 1, 2)], "overlap"),
    ],
)
def test_block_copies(copies: list[tuple[int, int, int]], message: str) -> None:
    checks.check_blocks(make(block_copies=np.array([(0, 0, 1), (0, 0, 2), (1, 1, 0)], np.int32)), [8, 5])
    with pytest.raises(InvalidInput, match=message):
        checks.check_blocks(make(block_copies=np.array(copies, np.int32)), [8, 5])


def with_states(source: list[int], target: list[int], snapshots: list[tuple[int, int, int]]) -> UnifiedBatch:
    return make(
        state_src=ids(*source), state_dst=ids(*target), snapshots=np.array(snapshots, np.int32).reshape(-1, 3)
    )


STATES = StateLayout(64, 8, 2)


def test_states_that_are_sound() -> None:
    checks.check_states(make(), None)
    for source, target, snapshots in (
        ([-1, 1, 2], [0, 1, 2], []),
        ([-1, 1, 1], [0, 3, 2], [(0, 2, 7)]),
        ([5, 5, 5], [0, 3, 2], [(2, 6, 4)]),
    ):
        checks.check_states(with_states(source, target, snapshots), STATES)


@pytest.mark.parametrize(
    ("source", "target", "snapshots", "message"),
    [
        ([-2, 1, 2], [0, 1, 2], [], "outside the slots"),
        ([-1, 1, 2], [0, 1, 8], [], "outside the slots"),
        ([-1, 1, 2], [0, 1, -1], [], "outside the slots"),
        ([-1, 1, 2], [0, 1, 2], [(0, 2, 8)], "outside the slots"),
        ([-1, 1, 2], [1, 1, 2], [], "written twice"),
        ([-1, 1, 2], [0, 1, 2], [(0, 2, 2)], "written twice"),
        ([-1, 0, 2], [0, 1, 2], [], "is read in the step"),
        ([-1, 1, 5], [0, 1, 2], [(0, 2, 5)], "is read in the step"),
        ([-1, 1, 2], [0, 1, 2], [(3, 2, 5)], "names an item"),
        ([-1, 1, 2], [0, 1, 2], [(0, 1, 5)], "no multiple of 2"),
        ([-1, 1, 2], [0, 1, 2], [(0, 0, 5)], "outside its item"),
        ([-1, 1, 2], [0, 1, 2], [(0, 4, 5)], "outside its item"),
        ([-1, 1], [0, 1, 2], [], "for each of 3 items"),
    ],
)
def test_states_that_are_unsound(
    source: list[int], target: list[int], snapshots: list[tuple[int, int, int]], message: str
) -> None:
    batch = with_states(source, target, snapshots)
    with pytest.raises(InvalidInput, match=message):
        checks.check_states(batch, STATES)
    with pytest.raises(InvalidInput, match="the executor has none"):
        checks.check_states(batch, None)


def test_states_are_needed_where_the_engine_gives_them_out() -> None:
    with pytest.raises(InvalidInput, match="are needed"):
        checks.check_states(make(), STATES)
    with pytest.raises(InvalidInput, match="not int32"):
        checks.check_states(
            make(state_src=ids(0, 1, 2), state_dst=ids(0, 1, 2), snapshots=np.zeros((1, 2), np.int32)), STATES
        )


@pytest.mark.parametrize(
    ("num_tokens", "new_len", "left"),
    [(20, 20, 20), (20, 19, 19), (20, 17, 17), (20, 15, 0), (20, 0, 0), (6, 3, 3)],
)
def test_what_a_truncated_sequence_keeps(num_tokens: int, new_len: int, left: int) -> None:
    """A window of 6 in blocks of 4: at 20 it reads from position 15 on, and at 15 from position 10 on, in the block before."""
    group = KvGroup(8, 64)
    layout = KvLayout(4, (group, KvGroup(8, 64, window=6)))
    assert layout.kept(num_tokens, new_len) == left
    assert KvLayout(4, (group,)).kept(num_tokens, new_len) == new_len
    assert KvLayout(4, (group,), STATES).kept(num_tokens, new_len) == (
        new_len if new_len == num_tokens else 0
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", True),
        ("temperature", "1"),
        ("temperature", None),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("temperature", -0.1),
        ("temperature", 10**400),
        ("top_p", 0.0),
        ("top_p", 1.5),
        ("top_p", True),
        ("top_p", float("nan")),
        ("top_k", 50.0),
        ("top_k", True),
        ("top_k", -1),
        ("top_k", 2**63),
        ("seed", -1),
        ("seed", 2**64),
        ("seed", None),
        ("choice", -1),
        ("choice", 0.0),
        ("logprobs", -1),
        ("logprobs", 5.0),
        ("logprobs", False),
    ],
)
def test_sampling_of_a_wrong_type_or_range_cannot_exist(field: str, value: object) -> None:
    with pytest.raises(InvalidInput, match=field):
        SamplingParams(**{field: value})  # type: ignore[arg-type]


def test_sampling_keeps_plain_numbers() -> None:
    given = SamplingParams(1, np.int32(5), np.float32(0.5), np.uint64(2**64 - 1), np.int64(3), np.int8(2))  # type: ignore[arg-type]
    assert given == SamplingParams(1.0, 5, 0.5, 2**64 - 1, 3, 2)
    kinds = [float, int, float, int, int, int]
    names = ("temperature", "top_k", "top_p", "seed", "choice", "logprobs")
    assert [type(getattr(given, name)) for name in names] == kinds
    assert SamplingParams(0).greedy and SamplingParams(temperature=0.0, logprobs=0).logprobs == 0
    encoded = msgspec.msgpack.encode(given)
    assert msgspec.msgpack.decode(encoded, type=SamplingParams) == given


def test_an_output_that_fits() -> None:
    """What executors answer to a chunk, a decode and a decode with a draft."""
    token = SampledToken(8, -0.5, ((8, -0.5),))
    for items in (
        [None, ItemOutput((SampledToken(5),)), ItemOutput((SampledToken(6), SampledToken(7)))],
        [ItemOutput(prompt_logprobs=(token,)), ItemOutput((token,), (token,)), ItemOutput((token, token))],
        [ItemOutput(error="NaN"), ItemOutput(error="NaN"), ItemOutput((token,))],
        [None, ItemOutput(pooled=np.zeros(4, np.float32)), ItemOutput(error="NaN")],
    ):
        checks.check_output(make(), UnifiedOutput.from_items(items))
    with_tokens = UnifiedOutput(ids(0, 1, 1), ids(5, 6), {1: ItemOutput(error="NaN")})
    checks.check_output(make(), with_tokens)


@pytest.mark.parametrize(
    ("counts", "tokens", "details", "message"),
    [
        ((0, 1), (5,), {}, "for 2 items to a step of 3"),
        ((0, 1, 1, 1), (5, 6, 7), {}, "for 4 items to a step of 3"),
        ((0, 1, 1), (5,), {}, "with 1 token ids, where num_tokens add up to 2"),
        ((0, 1, 1), (5, 6, 7), {}, "with 3 token ids"),
        ((1, 1, 1), (4, 5, 6), {}, "with 1 tokens for item 0, an intermediate chunk"),
        ((0, 2, 1), (5, 6, 7), {}, "with 2 tokens for item 1, a final chunk with 0 drafts"),
        ((0, 1, 3), (5, 6, 7, 8), {}, "with 3 tokens for item 2, a final chunk with 1 drafts"),
        ((0, -1, 2), (5,), {}, "with -1 tokens for item 1"),
        ((0, 1, 1), (5, -1), {}, "with -1 for a token id"),
        ((0, 0, 1), (5,), {}, "neither a token nor a result for item 1"),
        ((0, 0, 1), (5,), {1: ItemOutput(prompt_logprobs=(SampledToken(1),))}, "neither a token nor a result"),
        ((0, 1, 1), (5, 6), {3: ItemOutput(error="NaN")}, "details of item 3, of 3"),
        ((0, 1, 1), (5, 6), {-1: ItemOutput(error="NaN")}, "details of item -1, of 3"),
        ((0, 1, 1), (5, 6), {1: ItemOutput()}, "describes 0 of item 1's 1 tokens"),
        ((0, 0, 1), (6,), {1: ItemOutput((SampledToken(5),))}, "describes 1 of item 1's 0 tokens"),
    ],
)  # fmt: skip
def test_outputs_that_do_not_fit(
    counts: tuple[int, ...], tokens: tuple[int, ...], details: dict[int, ItemOutput], message: str
) -> None:
    with pytest.raises(StepFailed, match=message):
        checks.check_output(make(), UnifiedOutput(ids(*counts), ids(*tokens), details))


def test_outputs_of_other_arrays() -> None:
    for output in (
        UnifiedOutput(np.array([0, 1, 1]), ids(5, 6)),  # type: ignore[arg-type]
        UnifiedOutput(ids(0, 1, 1), np.array([5.0, 6.0])),  # type: ignore[arg-type]
        UnifiedOutput(ids(0, 1, 1).reshape(3, 1), ids(5, 6)),
        UnifiedOutput(ids(0, 1, 1), ids(5, 6).reshape(2, 1)),
    ):
        with pytest.raises(StepFailed, match="an answer with num_tokens"):
            checks.check_output(make(), output)
    nothing = make(
        seq_ids=np.empty(0, np.int64),
        slots=ids(),
        num_draft_tokens=ids(),
        is_final_chunk=np.empty(0, np.bool_),
    )
    checks.check_output(nothing, UnifiedOutput(ids(), ids()))


@pytest.mark.parametrize("detailed", [False, True])
def test_a_thousand_rows_are_checked_in_no_time(detailed: bool) -> None:
    n = 1024
    rows = np.arange(n, dtype=np.int32)
    batch = UnifiedBatch(
        1,
        1,
        rows.astype(np.int64),
        rows,
        np.ones(n, np.int32),
        rows,
        np.ones(n, np.bool_),
        np.zeros(n, np.int32),
        rows,
    )
    described = ItemOutput((SampledToken(8, -0.5),))
    output = UnifiedOutput(np.ones(n, np.int32), rows, dict.fromkeys(range(n), described) if detailed else {})
    taken = []
    for _ in range(200):
        began = time.perf_counter()
        checks.check_output(batch, output)
        taken.append(time.perf_counter() - began)
    print(f"{1e6 * statistics.median(taken):.0f} us")
    assert min(taken) < (0.001 if detailed else 0.0002)
