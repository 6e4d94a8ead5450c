"""Input and output of a step: `UnifiedBatch` in, `UnifiedOutput` out. Standard library and NumPy only.

A step is packed: the query tokens of all items lie one after the other in `token_ids`.

    item        0            1       2
    q tokens    [a b c d]    [e]     [f g]       token_ids = a b c d e f g
    q_starts    0            4       5        7  (length items + 1)

Persistent facts about a sequence (prompt, sampling, block table) travel once, as `starts` and table updates, and are
kept by the executor in a `SlotTable` (`executors/contract/slots.py`), a row per slot. A slot is assigned by the engine and is
free again once `release_cache` of its sequence was sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from executors.contract.errors import ItemFault
from executors.contract.sampling import (
    SamplingParams as SamplingParams,
)  # part of the batch, so imported from here

if TYPE_CHECKING:
    from executors.contract.tensor import Tensor

Int32Array = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class SequenceStart:
    """Everything an executor must know of a sequence that it sees for the first time (or again after a restart).

    `sampling` None means: return no sampled tokens. `grammar` constrains the output, in llguidance's form (a Lark grammar, or
    JSON with a list of "grammars"), None for free text: every sampled token follows it, and the sequence can end where it
    allows.
    `prompt_logprobs` asks for that many alternatives per prompt token (None: nothing).

    `pooling` asks for one vector in place of tokens (None: tokens). "last" is the last token's hidden state, "mean" the mean of
    all and "cls", of encoders, that of the first token, float32 [`ModelInfo.embedding_size`]. "logits" are the raw logits of
    `label_ids` at the last token, float32 [len(label_ids)]: the ids are labels where the model has a classification head
    (`ModelInfo.num_labels`), else token ids. The head of an encoder reads the first token in place of the last one.

    `second_segment` is the position in the prompt at which the second text of a pair begins: tokens from there on have type 1,
    those before it type 0. None: all have type 0. Only models with two types of tokens take one (`ModelInfo.token_types`); other
    executors refuse it with InvalidInput, because it changes the result (`checks.check_segments`).
    """

    seq_id: int
    slot: int
    prompt_token_ids: Int32Array
    output_token_ids: Int32Array
    sampling: SamplingParams | None = None
    adapter: str | None = None
    grammar: str | None = None
    prompt_logprobs: int | None = None
    pooling: str | None = None
    label_ids: tuple[int, ...] = ()
    second_segment: int | None = None


@dataclass(frozen=True, slots=True)
class KvCacheHandle:
    """The location of a sequence's keys and values: one block table per KV group (int32, the block of position p at index
    p // block size). Entries of a window group that lie behind the window of the next token are stale, and must not be read.

    An executor without Paged owns its KV: the tables are empty and `cache_id` alone names the memory.
    """

    cache_id: int
    block_tables: tuple[Int32Array, ...] = ()
    num_tokens: int = 0
    """Number of tokens whose KV is written."""


@dataclass(frozen=True, slots=True)
class TableUpdates:
    """Block-table deltas: entry i writes `counts[i]` ids into the table of `slots[i]`, KV group `groups[i]`, from index
    `starts[i]` on, and the table ends there. The ids lie one after the other in `block_ids`. The table of a full group has no
    hole. That of a window group may begin above index 0, or have one: what is below it is not read. Blocks behind a window are
    given to others without an update."""

    slots: Int32Array
    groups: Int32Array
    starts: Int32Array
    counts: Int32Array
    block_ids: Int32Array

    @staticmethod
    def empty() -> TableUpdates:
        """No update at all."""
        none = np.empty(0, np.int32)
        return TableUpdates(none, none, none, none, none)


@dataclass(frozen=True, slots=True)
class BatchItem:
    """One item of a step, as an object: a view for executors and tests that do not work on the arrays.

    The item computes KV for positions `pos_offset .. pos_offset + len(q_tokens) - 1`. On a final chunk the executor
    samples the token at position `pos_offset + len(q_tokens)` (after verifying the last `num_draft_tokens` inputs).
    """

    seq_id: int
    q_tokens: Int32Array
    kv_cache: KvCacheHandle
    pos_offset: int
    is_final_chunk: bool
    num_draft_tokens: int = 0
    sampling: SamplingParams | None = None
    adapter: str | None = None
    prompt_logprobs: int | None = None
    pooling: str | None = None
    label_ids: tuple[int, ...] = ()
    second_segment: int | None = None


class SlotLookup(Protocol):
    """The facts of each slot that `UnifiedBatch.items` needs; kept by `SlotTable`."""

    def start_of(self, slot: int) -> SequenceStart: ...

    def block_tables_of(self, slot: int) -> tuple[Int32Array, ...]: ...


def _no_copies() -> Int32Array:
    return np.empty((0, 3), np.int32)


def _no_seals() -> Int32Array:
    return np.empty((0, 2), np.int32)


def _no_snapshots() -> Int32Array:
    return np.empty((0, 3), np.int32)


@dataclass(slots=False)
class UnifiedBatch:
    """Any mix of prefill chunks, decode steps and verification: all that one forward computes.

    All arrays are C-contiguous; `n` is the number of items.

    - `seq_ids` int64 [n], `slots` int32 [n], `num_q_tokens` int32 [n] (at least 1), `pos_offsets` int32 [n],
      `is_final_chunk` bool [n], `num_draft_tokens` int32 [n].
    - `token_ids` int32 [total_q]; `pending` bool [total_q] or None: where True the id is not known to the host yet and
      the executor takes the one it sampled for that slot and position itself. If the item that was to sample it had an error,
      which was unknown when the step was submitted, any valid id will do, because the item's result is not used.
    - `starts`: sequences unknown to this executor until now. `tables`: block-table deltas. `block_copies` int32 [m, 3]:
      (group, source, destination) of blocks that are copied before the forward.
    - `drafts_wanted` int32 [n] or None: as many drafts the item's output should bring for the sequence's next step, from a draft
      model; of an intermediate chunk a number above 0 asks the draft model to compute the chunk too. Its block table covers the
      tokens after this step and all these drafts but the last. None, or fewer drafts, is always a valid answer.
    - `seals` int32 [m, 2]: (group, block) of blocks that are full of known tokens once this step is computed, and are not
      written again; requested only from executors with a `KvLayout.fingerprint`. With `KvLayout.state_group` for the group: a
      slot with a snapshot of a state, which this step or one before it has left, and which is not written again.
    - `state_src`, `state_dst` int32 [n], both None without `KvLayout.state`: the slot with the state before an item's first
      token (-1: zeros), and the one that gets the state after its last token: the same slot, or one that no other item reads.
    - `snapshots` int32 [m, 3]: (item, position, slot): the slot gets the state after the first `position` tokens of the item's
      sequence, a multiple of `StateLayout.interval` behind the item's first position and before its end. No slot is written twice
      in a step, and what is written is read by later steps only.
    - `epoch` of the executor's life, `step_id` rising by one per step within the engine's life.
    """

    epoch: int
    step_id: int
    seq_ids: NDArray[np.int64]
    slots: Int32Array
    num_q_tokens: Int32Array
    pos_offsets: Int32Array
    is_final_chunk: NDArray[np.bool_]
    num_draft_tokens: Int32Array
    token_ids: Int32Array
    pending: NDArray[np.bool_] | None = None
    starts: tuple[SequenceStart, ...] = ()
    tables: TableUpdates = field(default_factory=TableUpdates.empty)
    block_copies: Int32Array = field(default_factory=_no_copies)
    drafts_wanted: Int32Array | None = None
    seals: Int32Array = field(default_factory=_no_seals)
    state_src: Int32Array | None = None
    state_dst: Int32Array | None = None
    snapshots: Int32Array = field(default_factory=_no_snapshots)

    def __len__(self) -> int:
        return len(self.slots)

    def total_q_tokens(self) -> int:
        """Number of query tokens over all items: rows of the forward."""
        return len(self.token_ids)

    @cached_property
    def num_decodes(self) -> int:
        """Number of items with one query token beside their drafts."""
        return int(np.count_nonzero(self.num_q_tokens == self.num_draft_tokens + 1))

    @cached_property
    def num_prompt_tokens(self) -> int:
        """Number of query tokens that are no drafts, of all other items."""
        return self.total_q_tokens() - self.num_decodes - int(self.num_draft_tokens.sum())

    def num_sampled_items(self) -> int:
        """Number of items that sample at least one token (or return pooled output): rows of lm_head without drafts."""
        return int(np.count_nonzero(self.is_final_chunk))

    @cached_property
    def q_starts(self) -> Int32Array:
        """int32 [n + 1]: where each item's query tokens begin in `token_ids`; the last entry is the total."""
        starts = np.zeros(len(self.slots) + 1, np.int32)
        np.cumsum(self.num_q_tokens, out=starts[1:])
        return starts

    def items(self, slots: SlotLookup) -> Iterator[BatchItem]:
        """The items as objects, made one by one; `slots` must have applied this batch's starts and tables."""
        offsets = self.q_starts
        for i in range(len(self.slots)):
            slot = int(self.slots[i])
            start = slots.start_of(slot)
            pos = int(self.pos_offsets[i])
            yield BatchItem(
                seq_id=int(self.seq_ids[i]),
                q_tokens=self.token_ids[offsets[i] : offsets[i + 1]],
                kv_cache=KvCacheHandle(int(self.seq_ids[i]), slots.block_tables_of(slot), pos),
                pos_offset=pos,
                is_final_chunk=bool(self.is_final_chunk[i]),
                num_draft_tokens=int(self.num_draft_tokens[i]),
                sampling=start.sampling,
                adapter=start.adapter,
                prompt_logprobs=start.prompt_logprobs,
                pooling=start.pooling,
                label_ids=start.label_ids,
                second_segment=start.second_segment,
            )


@dataclass(frozen=True, slots=True)
class SampledToken:
    """A token chosen on the executor's device.

    `logprob` is set if the sequence requested logprobs; `top_logprobs` are (token id, logprob) of the most likely tokens,
    best first, as many as requested. `rank`, for tokens of a prompt only, is the token's place in the same order over the
    whole vocabulary, from 1 on; None if the executor does not report it.
    """

    token_id: int
    logprob: float | None = None
    top_logprobs: tuple[tuple[int, float], ...] = ()
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class ItemOutput:
    """The result of one item.

    `tokens`: one sampled token, or up to `num_draft_tokens + 1` with verification; empty for pooled output.
    `prompt_logprobs`: one entry per *input* position p of this chunk whose next prompt token p + 1 is known, describing
    token p + 1 (`SampledToken` with its alternatives). `pooled` float32 [hidden]. `logits` only if requested.
    `drafts`: token ids that a draft model expects after the last of `tokens`, for the sequence's next step.
    `error`: a message, set if this item failed alone (its logits were NaN, say); the other items have their results. `fault`:
    the kind of failure, without meaning if there is no `error`.
    """

    tokens: tuple[SampledToken, ...] = ()
    prompt_logprobs: tuple[SampledToken, ...] | None = None
    pooled: NDArray[np.float32] | None = None
    logits: Tensor | None = None
    error: str | None = None
    fault: ItemFault = ItemFault.EXECUTOR
    drafts: tuple[int, ...] = ()

    @staticmethod
    def failed(fault: ItemFault, detail: str = "") -> ItemOutput:
        """The output of an item that failed; `detail` is added to the fault's message."""
        return ItemOutput(error=f"{fault.message}: {detail}" if detail else fault.message, fault=fault)


@dataclass(frozen=True, slots=True)
class Drafts:
    """What a draft model proposes after a step: `counts` int32 [n] for each item, `token_ids` int32 [sum of counts].

    `rounds`: forwards of the draft model, one after the other. `seconds`: the time they took, part of the step's.
    """

    counts: Int32Array
    token_ids: Int32Array
    rounds: int = 0
    seconds: float = 0.0

    def by_item(self) -> dict[int, list[int]]:
        """The drafts of each item that has some."""
        ends = np.cumsum(self.counts)
        ids = self.token_ids.tolist()
        return {i: ids[ends[i] - self.counts[i] : ends[i]] for i in np.flatnonzero(self.counts).tolist()}


@dataclass(slots=True)
class UnifiedOutput(Sequence["ItemOutput | None"]):
    """The outputs of a step, one per item: None for an intermediate chunk that asked for nothing.

    Held as arrays, because the usual step has one plain token an item: `num_tokens` int32 [n], `token_ids` int32
    [sum of num_tokens]. `details` holds a full `ItemOutput` for the few items with more than token ids.
    """

    num_tokens: Int32Array
    token_ids: Int32Array
    details: dict[int, ItemOutput] = field(default_factory=dict)
    drafts: Drafts | None = None
    """Where the step asked for some."""
    checksums: NDArray[np.uint64] | None = None
    """uint64 [m]: checksums of the batch's `seals` at the end of the step, in their order, combined over ranks by exclusive or.
    None without seals, or from an executor that seals nothing."""
    waited: float = 0.0
    """Seconds that the step waited for its turn at cores that other executors compute on as well."""

    @staticmethod
    def from_items(items: Sequence[ItemOutput | None]) -> UnifiedOutput:
        """Pack objects into arrays; items with more than token ids are kept whole in `details`."""
        counts = np.array([len(it.tokens) if it else 0 for it in items], np.int32)
        ids = np.array([t.token_id for it in items if it for t in it.tokens], np.int32)
        details = {
            i: replace(it, drafts=()) for i, it in enumerate(items) if it is not None and not _is_plain(it)
        }
        proposed = [it.drafts if it else () for it in items]
        drafts = None
        if any(proposed):
            drafts = Drafts(
                np.array([len(one) for one in proposed], np.int32),
                np.array([token for one in proposed for token in one], np.int32),
            )
        return UnifiedOutput(counts, ids, details, drafts)

    def __len__(self) -> int:
        return len(self.num_tokens)

    def __getitem__(self, i):  # type: ignore[no-untyped-def]  # int only; Sequence's overload for slices is not offered
        if i < 0 or i >= len(self.num_tokens):
            raise IndexError(i)
        drafts = () if self.drafts is None else tuple(self.drafts.by_item().get(i, ()))
        if i in self.details:
            return replace(self.details[i], drafts=drafts)
        count = int(self.num_tokens[i])
        if not count:
            return None
        begin = int(self.num_tokens[:i].sum())
        tokens = tuple(SampledToken(int(t)) for t in self.token_ids[begin : begin + count])
        return ItemOutput(tokens, drafts=drafts)


def _is_plain(item: ItemOutput) -> bool:
    if item.prompt_logprobs is not None or item.pooled is not None or item.logits is not None or item.error:
        return False
    return bool(item.tokens) and all(t.logprob is None and not t.top_logprobs for t in item.tokens)
