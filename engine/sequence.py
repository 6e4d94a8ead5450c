"""`Sequence`: the mutable progress of one request, and the verbs that change it."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

import numpy as np

from engine.block_table import TAKE, TURN, BlockTable, Stride, Way
from engine.config import FAILED_STEPS_BEFORE_ALONE
from engine.mailbox import Outlet
from engine.request import FinishReason, Request, RequestContext
from engine.sequence_state import SequenceState
from executors.contract import SampledToken, SequenceStart


class SequenceStatus(enum.StrEnum):
    """Where a sequence is: waiting for its first grant, in the running list, rolled back, or over."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


@dataclass(slots=True, eq=False, weakref_slot=True)
class Sequence:
    """Progress of one request. Its methods are the only code that writes its fields; the loop task alone calls those that change
    it (`tests/house/test_sequence_writer.py` looks for others).

    One idea drives everything: `num_computed_tokens` catches up with `num_tokens`. A prefill, a chunk, a decode step and a
    recompute are all the same grant of tokens.

        tokens    p0 p1 p2 p3 | o0 o1 | x       prompt_len 4, num_known_tokens 6, num_pending_tokens 1
        computed  -------------------           num_computed_tokens 6: the next grant computes x, whatever it will be

    What counts as computed is what has been submitted: steps run in the order of their submission. A pending token is being
    sampled by a step in flight; the executor will know it when the next step needs it, the host only later.
    """

    seq_id: int
    request: Request
    mailbox: Outlet
    mailbox_key: int
    siblings: list[Sequence] = field(default_factory=list)
    """All choices of one prompt, this one included, which may share the prompt's KV; empty for an only one, and at its end:
    choices that referred to each other at their end would keep their prompt in memory until garbage collection."""
    is_first: bool = True
    """Of those choices: the one that looks the prompt up and computes it."""
    output_token_ids: list[int] = field(default_factory=list)
    """Committed tokens. Their logprobs go to the mailbox: nothing is computed from them."""
    prompt_logprobs: list[SampledToken] = field(default_factory=list)
    """Logprobs of prompt tokens 1, 2, ... as far as they are committed."""
    status: SequenceStatus = SequenceStatus.WAITING
    slot: int | None = None
    started_epoch: int | None = None
    """The executor life that knows this sequence; None if none does."""
    context: RequestContext = field(init=False)
    """Context of the request, kept here because queue policies read it for each sequence of a step."""
    prompt_len: int = field(init=False)
    max_len: int = field(init=False)
    """Tokens of the prompt and of the longest output that the request allows."""
    num_known_tokens: int = field(init=False)
    """Tokens of the prompt and of the committed output."""
    num_computed_tokens: int = 0
    num_pending_tokens: int = 0
    in_flight: int = 0
    """Steps in flight that compute this sequence."""
    last_step: int = 0
    """Id of the last step that was granted tokens of it; 0 before the first."""
    drafting: bool = False
    """True while a step in flight verifies drafts: how many tokens it will give is not known."""
    num_replayed_tokens: int = 0
    """Tokens before its last one whose KV was computed and whose state was not kept, because drafts behind them were rejected.
    They are computed again with the last one: `num_computed_tokens` is where the state is."""
    num_void_results: int = 0
    """Results of steps in flight that do not count: the oldest ones, so many of them."""
    alone: bool = False
    """True if the sequence shares no KV: it failed with KV that others had written, and is computed once more with its own."""
    num_cached_tokens: int = 0
    """Prompt tokens that were not computed when it was first admitted: found in the cache, or shared by a sibling."""
    num_charged_tokens: int = 0
    """End of the last position that the queue policy was charged with. Never lowered: what a failure or a preemption undoes is
    computed anew without a charge."""
    num_failed_steps: int = 0
    """Steps that failed with this sequence in them since its last committed token."""
    block_tables: list[BlockTable] = field(default_factory=list)
    """Its KV blocks, a table for each group of the layout while it has KV. KvCacheManager decides on this and the following
    seven. Indices of blocks are the same in all groups: positions // block size."""
    block_keys: list[bytes] = field(default_factory=list)
    num_shared_blocks: int = 0
    """Index behind the blocks that others have written (a copied one included)."""
    num_keyed_blocks: int = 0
    """Index behind the blocks that can be found by their key, as far as they are full of known tokens."""
    num_settled_tokens: int = 0
    """Tokens that it had when it was given its tables, and of chunks whose result is in."""
    num_restored_tokens: int = 0
    """Output tokens that were committed when it was given its tables."""
    cache_points: tuple[int, ...] = ()
    """Indices behind which a later sequence is likely to begin, see `engine.kv.cache_points`."""
    names_windows: bool = False
    """Whether full blocks of its output get their keys in window groups, once they leave the window or the tables are freed."""
    takes_snapshots: bool = False
    """Whether its steps leave snapshots of its state at cache points."""
    stride: Stride | None = None
    """How its tables go on; None if that is not known."""
    state: SequenceState | None = None
    """Where the state of its layers lies; None while it has none. StatePool decides on it."""
    num_table_blocks: int = 0
    """Index behind the last block that all tables have."""
    num_prepared_tokens: int = 0
    """End of the tokens that can be computed without a further block and without a block to be named."""
    num_prepared_pending: int = 0
    """The same while its last token is pending: a block that ends with it is not to be named yet."""
    finish_reason: FinishReason | None = None
    first_token_time: float | None = None
    """When its first token was committed, in seconds of the engine's clock."""
    last_token_time: float | None = None
    paused: bool = False
    """True if it was rolled back and has given no token since."""
    lost_executor: bool = False
    """True if it was preempted when the executor was lost, and has not run since."""

    def __post_init__(self) -> None:
        self.context = self.request.context
        self.prompt_len = self.num_known_tokens = len(self.request.prompt_token_ids)
        self.max_len = self.prompt_len + self.request.max_tokens

    @property
    def num_tokens(self) -> int:
        """Known and pending tokens."""
        return self.num_known_tokens + self.num_pending_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        """What the next grants have to compute."""
        return self.num_known_tokens + self.num_pending_tokens - self.num_computed_tokens

    @property
    def num_uncharged_tokens(self) -> int:
        """What its tenant will be charged with for those."""
        return max(0, self.num_tokens - max(self.num_computed_tokens, self.num_charged_tokens))

    @property
    def was_started(self) -> bool:
        """Whether a step was to compute some of it."""
        return bool(self.num_computed_tokens or self.output_token_ids or self.last_step)

    @property
    def num_to_generate(self) -> int:
        """Output tokens that no submitted step computes yet."""
        return self.max_len - self.num_tokens

    @property
    def needs_whole_prompt(self) -> bool:
        """True if every position of the prompt must be computed, in this sequence's own name."""
        whole = self.request.needs_whole_prompt
        return whole and not (self.output_token_ids or len(self.prompt_logprobs) == self.prompt_len - 1 > 0)

    @property
    def settled(self) -> int:
        """End of the positions whose KV is certain to be there, because no step in flight computes it. A sequence that is rolled
        back begins again from there at best."""
        if len(self.output_token_ids) > self.num_restored_tokens:
            return self.num_known_tokens - 1 - self.num_replayed_tokens
        return self.num_settled_tokens

    @property
    def num_blocks(self) -> int:
        """KV blocks that it holds in all groups, those shared with others included."""
        return sum(len(table.blocks) for table in self.block_tables)

    @property
    def num_held_shared_blocks(self) -> int:
        """Those of them that others have written (a copied one included)."""
        ends = (min(self.num_shared_blocks, table.end) for table in self.block_tables)
        return sum(max(0, end - table.first) for end, table in zip(ends, self.block_tables, strict=True))

    @property
    def suspected(self) -> bool:
        """True if it took part in consecutive failed steps: its KV may be the cause."""
        return self.num_failed_steps >= FAILED_STEPS_BEFORE_ALONE

    @property
    def finished(self) -> bool:
        """No more tokens will come."""
        return self.status is SequenceStatus.FINISHED

    def token_ids(self, begin: int, end: int) -> list[int]:
        """Known ids at positions begin .. end - 1."""
        prompt_len = self.prompt_len
        if begin >= prompt_len:
            return self.output_token_ids[begin - prompt_len : end - prompt_len]
        head: list[int] = self.request.prompt_token_ids[begin:end].tolist()
        return head + self.output_token_ids[: end - prompt_len] if end > prompt_len else head

    # -- admission and end ---------------------------------------------------------------------------------------------

    def link_siblings(self, siblings: list[Sequence]) -> None:
        """Make it one of several choices of a prompt; `siblings` holds all of them, the first one computes the prompt."""
        self.siblings, self.is_first = siblings, self is siblings[0]

    def take_slot(self, slot: int) -> None:
        """Give it a slot, which it keeps to its end."""
        self.slot = slot

    def admit(self, num_cached_tokens: int) -> None:
        """Let it run. The first admission notes how many tokens of the prompt had their KV already."""
        if self.status is SequenceStatus.WAITING:
            self.num_cached_tokens = min(num_cached_tokens, self.prompt_len)
        self.status, self.lost_executor = SequenceStatus.RUNNING, False

    def finish(self, reason: FinishReason) -> None:
        """End it. Steps in flight may still compute it: slot and blocks are released later."""
        self.status, self.finish_reason = SequenceStatus.FINISHED, reason

    def release(self) -> int | None:
        """Drop what a finished sequence refers to. Returns the slot that is free now, None if it had none."""
        slot, self.slot = self.slot, None
        self.started_epoch = None
        self.siblings = []
        return slot

    # -- a step --------------------------------------------------------------------------------------------------------

    def charge(self, begin: int, end: int) -> int:
        """Note that the queue policy is charged with positions begin .. end - 1. Returns how many of them it was not charged with
        before."""
        count = end - max(begin, self.num_charged_tokens)
        if count <= 0:
            return 0
        self.num_charged_tokens = end
        return count

    def verify_drafts(self) -> None:
        """The next grant contains drafts: nothing more can be granted before `settle`."""
        self.drafting = True

    def grant(self, count: int, step_id: int) -> bool:
        """Step `step_id` computes the next `count` tokens, which count as computed from here on. Returns whether the step
        reaches the last token, so that a token is sampled."""
        self.num_computed_tokens = end = self.num_computed_tokens + count
        self.in_flight += 1
        self.last_step = step_id
        if end < self.num_known_tokens + self.num_pending_tokens:
            return False
        if not self.drafting:
            self.num_pending_tokens += 1
            self.num_replayed_tokens = 0
        return True

    def start(self, epoch: int) -> SequenceStart:
        """What the executor's life `epoch`, which has not met this sequence, must know of it. Requires a slot."""
        assert self.slot is not None, "a sequence starts in a slot"
        self.started_epoch = epoch
        return SequenceStart(
            seq_id=self.seq_id,
            slot=self.slot,
            prompt_token_ids=self.request.prompt_token_ids,
            output_token_ids=np.array(self.output_token_ids, np.int32),
            sampling=self.request.sampling if self.request.pooling is None else None,
            adapter=self.request.adapter,
            grammar=self.request.grammar,
            prompt_logprobs=self.request.prompt_logprobs if self.needs_whole_prompt else None,
            pooling=self.request.pooling,
            label_ids=self.request.label_ids,
            second_segment=self.request.second_segment,
        )

    def receive(self, sampled: bool) -> bool:
        """The oldest step in flight is done; `sampled`: it sampled the oldest pending token. Returns whether its result counts:
        not where the sequence has ended or `void_in_flight` was called since."""
        self.in_flight -= 1
        if self.status is SequenceStatus.FINISHED:
            return False
        if self.num_void_results:
            self.num_void_results -= 1
            return False
        if sampled:
            self.num_pending_tokens -= 1
        return True

    def take_plain(self, token_id: int, now: float) -> float | None:
        """`receive`, `commit` and `stamp_tokens` of a token that ends nothing, is not the first and follows neither a failure nor
        a preemption: nearly all are that. Returns when the token before it came; None, and does nothing, for any other."""
        request, output, previous = self.request, self.output_token_ids, self.last_token_time
        if (
            self.status is not SequenceStatus.RUNNING
            or previous is None
            or self.paused
            or self.num_void_results
            or self.num_failed_steps
            or not output
            or len(output) + 1 >= request.max_tokens
            or token_id in request.stop_token_ids
        ):
            return None
        self.in_flight -= 1
        self.num_pending_tokens -= 1
        self.num_known_tokens += 1
        output.append(token_id)
        self.last_token_time = now
        return previous

    def settle(self, num_computed: int) -> None:
        """Drafts are verified: the KV of the first `num_computed` tokens is valid, that of rejected drafts is not."""
        self.drafting, self.num_replayed_tokens = False, 0
        if self.status is SequenceStatus.RUNNING:
            self.num_computed_tokens = num_computed

    def replay_from(self, position: int) -> None:
        """Drafts were rejected, and the state of its layers is that of an earlier position."""
        if self.status is SequenceStatus.RUNNING:
            self.num_replayed_tokens = self.num_computed_tokens - position
            self.num_computed_tokens = position

    def settle_chunk(self, num_computed: int) -> None:
        """The result of a chunk that ends at `num_computed` is in."""
        self.num_settled_tokens = num_computed

    # -- output --------------------------------------------------------------------------------------------------------

    def commit(self, token_ids: Iterable[int]) -> None:
        """Append tokens to the output."""
        self.output_token_ids.extend(token_ids)
        self.num_known_tokens = self.prompt_len + len(self.output_token_ids)

    def commit_prompt(self, logprobs: Iterable[SampledToken]) -> None:
        """Append logprobs of the next prompt tokens."""
        self.prompt_logprobs.extend(logprobs)

    def cut(self, num_tokens: int) -> None:
        """Drop output tokens past the first `num_tokens`."""
        del self.output_token_ids[num_tokens:]
        self.num_known_tokens = self.prompt_len + len(self.output_token_ids)

    def stamp_tokens(self, now: float) -> float | None:
        """Note when tokens were committed, in seconds of the engine's clock. Returns when the previous ones were, None for the
        first."""
        previous, self.last_token_time = self.last_token_time, now
        if previous is None:
            self.first_token_time = now
        return previous

    def go_on(self) -> None:
        """Note that it has given a token since it was rolled back."""
        self.paused = False

    # -- preemption and failure ----------------------------------------------------------------------------------------

    def roll_back(self) -> None:
        """Preempt it: nothing of it is computed any more."""
        self.num_computed_tokens = self.num_replayed_tokens = 0
        self.status = SequenceStatus.PREEMPTED
        self.paused = True

    def lose_executor(self) -> None:
        """Record that its executor is gone: it waits for the next one until it runs again."""
        self.lost_executor = self.status is SequenceStatus.PREEMPTED

    def void_in_flight(self) -> None:
        """Ignore the results of all steps in flight, and share no KV from now on."""
        self.alone, self.num_pending_tokens, self.drafting = True, 0, False
        self.num_void_results = self.in_flight

    def drop_in_flight(self) -> None:
        """The steps in flight died with their executor: no result of theirs will come."""
        self.in_flight, self.num_pending_tokens, self.num_void_results = 0, 0, 0
        self.drafting = False

    def count_failed_step(self, least: int = 0) -> None:
        """A step with this sequence in it failed. `least`: failed steps to be counted in all, at least."""
        self.num_failed_steps = max(self.num_failed_steps + 1, least)

    def clear_failed_steps(self) -> None:
        """A step with this sequence in it went well: the failures before were not its fault."""
        self.num_failed_steps = 0

    # -- KV blocks -----------------------------------------------------------------------------------------------------

    def begin_tables(
        self, firsts: Iterable[int], num_computed: int, num_blocks: int, keys: list[bytes]
    ) -> None:
        """Begin with KV of `num_computed` tokens that others have written: in named blocks up to index `num_blocks`, the first
        of which have these keys, and in a copy of one block. `firsts`: where the table of each group begins."""
        self.block_tables = [BlockTable(first) for first in firsts]
        self.num_computed_tokens = self.num_settled_tokens = num_computed
        self.num_restored_tokens = len(self.output_token_ids)
        self.num_shared_blocks = self.num_keyed_blocks = num_blocks
        if len(keys) > len(self.block_keys):
            # All choices fill their next block in one step: none of them should hash a long prompt then.
            self.block_keys = keys

    def extend_table(self, group: int, blocks: SequenceOf[int]) -> None:
        """Append blocks to the table of a group."""
        self.stride = None
        self.block_tables[group].blocks.extend(blocks)

    def step_tables(self, ways: SequenceOf[Way], blocks: list[int]) -> None:
        """Let the table of each group go on by one of these blocks; with `TURN` by the block that it leaves, which replaces the
        one in the list."""
        tables = self.block_tables
        for index, way in enumerate(ways):
            table = tables[index]
            if way is TURN:
                blocks[index] = block = table.blocks.pop(0)
                table.blocks.append(block)
                table.first += 1
            else:
                if way is not TAKE:
                    del table.blocks[0]
                    table.first += 1
                table.blocks.append(blocks[index])

    def go_in_stride(self, stride: Stride | None) -> None:
        """Note how its tables go on."""
        self.stride = stride

    def slide_table(self, group: int, first: int) -> list[int]:
        """Let the table of a group begin at index `first`; returns the blocks below."""
        self.stride = None
        table = self.block_tables[group]
        count = first - table.first
        blocks = table.blocks[:count]
        del table.blocks[:count]
        table.first = first
        return blocks

    def cover(self, num_blocks: int) -> None:
        """All tables go up to index `num_blocks` at least."""
        self.num_table_blocks = num_blocks

    def set_cache_points(self, points: tuple[int, ...]) -> None:
        """Its blocks before these points can be found after it has gone on, and so can those before its end."""
        self.cache_points, self.names_windows = points, True

    def take_snapshots(self, points: tuple[int, ...]) -> None:
        """Its steps leave snapshots of its state at these points and behind the prompt."""
        self.cache_points, self.takes_snapshots = points, True

    def name_no_more(self) -> None:
        """What it holds is not to be found by names that it does not have yet."""
        self.names_windows = self.takes_snapshots = False

    def count_copied_block(self) -> None:
        """The block behind the shared ones begins as a copy of another sequence's."""
        self.num_shared_blocks += 1

    def extend_keys(self, keys: Iterable[bytes]) -> None:
        """Append keys of its next blocks."""
        self.block_keys.extend(keys)

    def name_blocks(self, num_blocks: int) -> None:
        """The first `num_blocks` blocks can be found by their key."""
        self.num_keyed_blocks = num_blocks

    def prepare(self, num_tokens: int, num_pending: int) -> None:
        """Tokens up to `num_tokens` can be computed without a further block or name; up to `num_pending` while the last of them
        is pending."""
        self.num_prepared_tokens, self.num_prepared_pending = num_tokens, num_pending

    def free_tables(self) -> list[BlockTable]:
        """Give up all blocks and return their tables."""
        tables, self.block_tables = self.block_tables, []
        self.names_windows = self.takes_snapshots = False
        self.stride = None
        self.num_keyed_blocks = self.num_prepared_tokens = self.num_prepared_pending = 0
        return tables

    # -- states of layers ------------------------------------------------------------------------------------------------

    def begin_state(self, state: SequenceState) -> None:
        """Begin with a state that another sequence left, or with zeros."""
        self.state = state

    def end_state(self) -> SequenceState | None:
        """Give up its state and return it."""
        state, self.state = self.state, None
        return state

    def __repr__(self) -> str:
        return (
            f"<Sequence {self.seq_id} {self.status} slot={self.slot} "
            f"{self.num_computed_tokens}/{self.num_tokens} of {self.prompt_len}+{self.request.max_tokens}>"
        )
