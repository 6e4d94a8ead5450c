"""Checks of a `UnifiedBatch`, and of whether a `UnifiedOutput` fits it. Standard library and NumPy only.

Any executor may run the checks of a batch before it computes anything. The engine runs the check of an output before it uses
any of it. The checks change no state: a refused batch or output has no effect.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from executors.contract.batch import Int32Array, SequenceStart, UnifiedBatch, UnifiedOutput
from executors.contract.errors import InvalidInput, StepFailed
from executors.contract.status import POOLINGS, StateLayout


def check_arrays(batch: UnifiedBatch) -> None:
    """Check lengths, ranges and other rules within the batch. Raises InvalidInput."""
    n, total = len(batch.slots), len(batch.token_ids)
    for name in ("seq_ids", "num_q_tokens", "pos_offsets", "is_final_chunk", "num_draft_tokens"):
        if len(getattr(batch, name)) != n:
            raise InvalidInput(f"{name} has {len(getattr(batch, name))} entries for {n} items")
    if n == 0:
        return
    if batch.num_q_tokens.min() < 1:
        raise InvalidInput("every item needs at least one query token")
    if int(batch.num_q_tokens.sum(dtype=np.int64)) != total:
        raise InvalidInput(
            f"token_ids has {total} entries, num_q_tokens add up to {int(batch.num_q_tokens.sum())}"
        )
    if batch.pos_offsets.min() < 0:
        raise InvalidInput("a position is negative")
    if batch.pending is not None and len(batch.pending) != total:
        raise InvalidInput(f"pending has {len(batch.pending)} entries for {total} tokens")
    if n > 1 and (len(set(batch.seq_ids.tolist())) != n or len(set(batch.slots.tolist())) != n):
        raise InvalidInput("a sequence or slot occurs twice in one step")
    if (most_drafts := batch.drafts_wanted) is not None and (len(most_drafts) != n or most_drafts.min() < 0):
        raise InvalidInput(f"drafts_wanted has {len(most_drafts)} entries for {n} items, or one below 0")
    drafts = batch.num_draft_tokens
    if not drafts.any():
        return
    if drafts.min() < 0 or (drafts >= batch.num_q_tokens).any():
        raise InvalidInput("num_draft_tokens must leave at least one token that is no draft")
    if (drafts[~batch.is_final_chunk] > 0).any():
        raise InvalidInput("only a final chunk can carry drafts")


def check_limits(
    batch: UnifiedBatch, logits_width: int, max_sequence_length: int, max_batch_size: int
) -> None:
    """Check the batch against the executor's facts; `check_arrays` must have passed. Raises InvalidInput."""
    if len(batch) > max_batch_size:
        raise InvalidInput(f"{len(batch)} items exceed the largest batch, {max_batch_size}")
    known_ids = batch.token_ids if batch.pending is None else batch.token_ids[~batch.pending]
    if len(known_ids) and (known_ids.min() < 0 or known_ids.max() >= logits_width):
        raise InvalidInput(f"a token id is outside 0..{logits_width - 1}")
    if len(batch) and int((batch.pos_offsets + batch.num_q_tokens).max()) > max_sequence_length:
        raise InvalidInput(f"a sequence would exceed {max_sequence_length} tokens")


def check_pooling(start: SequenceStart, label_width: int, poolings: Sequence[str] = POOLINGS) -> None:
    """Check what a sequence asks for in place of tokens; `label_width` and `poolings` of the model's `ModelInfo`. Raises
    InvalidInput."""
    if start.pooling not in (None, *poolings, "logits"):
        supported = ", ".join((*poolings, "logits"))
        raise InvalidInput(
            f"sequence {start.seq_id}: pooling {start.pooling!r} is unknown; known: {supported}"
        )
    if start.pooling != "logits":
        return
    ids = start.label_ids
    if not ids or min(ids) < 0 or max(ids) >= label_width:
        raise InvalidInput(
            f"sequence {start.seq_id}: label_ids {ids}; some of 0..{label_width - 1} are needed"
        )


def check_segments(start: SequenceStart, token_types: int) -> None:
    """Check where the second text of a prompt begins; `token_types` of the model's `ModelInfo`. Raises InvalidInput for a model
    that does not tell texts apart, and for a position outside of the prompt, or at its beginning."""
    begin = start.second_segment
    if begin is None:
        return
    if token_types < 2:
        raise InvalidInput(
            f"sequence {start.seq_id}: second_segment {begin}; this model has no type for the tokens of a second text"
        )
    if not 0 < begin < len(start.prompt_token_ids):
        raise InvalidInput(
            f"sequence {start.seq_id}: second_segment {begin} is outside 1..{len(start.prompt_token_ids) - 1}"
        )


def check_blocks(batch: UnifiedBatch, num_blocks: Sequence[int]) -> None:
    """Check block-table deltas and block copies. `num_blocks` of each group. Raises InvalidInput for groups and blocks that do
    not exist, and for copies onto a block twice or while it is a source."""
    tables, copies = batch.tables, batch.block_copies
    if len(num_blocks) == 1 and not len(copies) and not tables.groups.any():
        _check_ids("table", tables.block_ids, num_blocks[0])
        return
    _check_groups("table", tables.groups, len(num_blocks))
    # Otherwise `SlotTable` refuses the updates.
    if min(tables.counts, default=0) >= 0 and int(tables.counts.sum()) == len(tables.block_ids):
        groups = np.repeat(tables.groups, tables.counts)
        for group, count in enumerate(num_blocks):
            _check_ids("table", tables.block_ids[groups == group], count)
    _check_groups("copy", copies[:, 0], len(num_blocks))
    for group, count in enumerate(num_blocks):
        pairs = copies[copies[:, 0] == group, 1:]
        _check_ids("copy", pairs, count)
        if len(np.unique(pairs[:, 1])) != len(pairs) or np.isin(pairs[:, 1], pairs[:, 0]).any():
            raise InvalidInput("block copies overlap: their order would matter")


def check_seals(batch: UnifiedBatch, num_blocks: Sequence[int]) -> None:
    """Check the blocks whose checksums a step asks for. `num_blocks`: `KvLayout.num_sealable`. Raises InvalidInput."""
    seals = batch.seals
    if not len(seals):
        return
    if seals.dtype != np.int32 or seals.shape[1:] != (2,):
        raise InvalidInput(f"seals is {seals.dtype}{list(seals.shape)}, not int32[m, 2]")
    _check_groups("seal", seals[:, 0], len(num_blocks))
    for group, count in enumerate(num_blocks):
        _check_ids("seal", seals[seals[:, 0] == group, 1], count)


def check_states(batch: UnifiedBatch, layout: StateLayout | None) -> None:
    """Check the slots of states; `check_arrays` must have passed. Raises InvalidInput for slots that do not exist, snapshots at a
    position where there can be none, and a slot that is written twice, or by one item and read by another."""
    src, dst, snapshots = batch.state_src, batch.state_dst, batch.snapshots
    if layout is None:
        if src is not None or dst is not None or len(snapshots):
            raise InvalidInput("the batch names states, and the executor has none")
        return
    if src is None or dst is None or len(src) != len(batch) or len(dst) != len(batch):
        raise InvalidInput(f"state_src and state_dst are needed for each of {len(batch)} items")
    if snapshots.dtype != np.int32 or snapshots.shape[1:] != (3,):
        raise InvalidInput(f"snapshots is {snapshots.dtype}{list(snapshots.shape)}, not int32[m, 3]")
    if not len(batch):
        if len(snapshots):
            raise InvalidInput("snapshots of a batch without items")
        return
    items, positions, slots = snapshots.T
    last = layout.num_slots - 1
    written = np.concatenate([dst, slots])
    if written.min() < 0 or src.min() < -1 or max(written.max(), src.max()) > last:
        raise InvalidInput(f"a state lies outside the slots 0..{last}")
    if len(set(written.tolist())) != len(written):
        raise InvalidInput("the slot of a state is written twice in one step")
    moved = src[src != dst]
    if len(moved) and np.isin(moved, written).any():
        raise InvalidInput("a state is read in the step in which its slot is written")
    if not len(snapshots):
        return
    if items.min() < 0 or items.max() >= len(batch):
        raise InvalidInput(f"a snapshot names an item outside 0..{len(batch) - 1}")
    begin = batch.pos_offsets[items]
    inner = (begin < positions) & (positions < begin + batch.num_q_tokens[items])
    if not inner.all() or (positions % layout.interval).any():
        raise InvalidInput(f"a snapshot lies outside its item, or at no multiple of {layout.interval}")


def _check_groups(what: str, groups: Int32Array, count: int) -> None:
    if groups.size and (groups.min() < 0 or groups.max() >= count):
        raise InvalidInput(f"a block {what} names a group outside 0..{count - 1}")


def _check_ids(what: str, blocks: Int32Array, count: int) -> None:
    if blocks.size and (blocks.min() < 0 or blocks.max() >= count):
        raise InvalidInput(f"a block {what} names a block outside 0..{count - 1}")


def check_output(batch: UnifiedBatch, output: UnifiedOutput) -> None:
    """Check by its shape that an output can answer the step: an output for each item, with as many tokens as it can have; for a
    final chunk a token, a pooled result or an error (not for a batch that requests logits). Raises StepFailed: the executor's
    state of these sequences is unknown."""
    counts, ids, final = output.num_tokens, output.token_ids, batch.is_final_chunk
    if counts.dtype != np.int32 or ids.dtype != np.int32 or counts.ndim != 1 or ids.ndim != 1:
        raise StepFailed(
            f"an answer with num_tokens {counts.dtype}{list(counts.shape)}, token_ids {ids.dtype}{list(ids.shape)}"
        )
    if len(counts) != len(batch):
        raise StepFailed(f"an answer for {len(counts)} items to a step of {len(batch)}")
    wrong = (counts < 0) | (counts > (batch.num_draft_tokens + 1) * final)
    if wrong.any():
        i = int(wrong.argmax())
        what = (
            f"a final chunk with {batch.num_draft_tokens[i]} drafts" if final[i] else "an intermediate chunk"
        )
        raise StepFailed(f"an answer with {counts[i]} tokens for item {i}, {what}")
    if int(counts.sum(dtype=np.int64)) != len(ids):
        raise StepFailed(
            f"an answer with {len(ids)} token ids, where num_tokens add up to {int(counts.sum())}"
        )
    if len(ids) and ids.min() < 0:
        raise StepFailed(f"an answer with {ids.min()} for a token id")
    _check_details(output)
    _check_drafts(batch, output)
    _check_checksums(batch, output)
    for i in np.flatnonzero(final & (counts == 0)).tolist():
        detail = output.details.get(i)
        if detail is None or (detail.error is None and detail.pooled is None):
            raise StepFailed(f"an answer with neither a token nor a result for item {i}, a final chunk")


def _check_drafts(batch: UnifiedBatch, output: UnifiedOutput) -> None:
    drafts = output.drafts
    if drafts is None:
        return
    counts, ids, most_drafts = drafts.counts, drafts.token_ids, batch.drafts_wanted
    if counts.dtype != np.int32 or ids.dtype != np.int32:
        raise StepFailed(f"an answer with drafts of {counts.dtype} and {ids.dtype}, not int32")
    if most_drafts is None or len(counts) != len(batch) or (counts < 0).any() or (counts > most_drafts).any():
        raise StepFailed("an answer with drafts that were not asked for")
    if (counts[~batch.is_final_chunk] > 0).any():
        raise StepFailed("an answer with drafts for an intermediate chunk")
    if int(counts.sum(dtype=np.int64)) != len(ids) or (len(ids) and ids.min() < 0):
        raise StepFailed(f"an answer with {len(ids)} drafts, where counts add up to {int(counts.sum())}")


def _check_checksums(batch: UnifiedBatch, output: UnifiedOutput) -> None:
    checksums = output.checksums
    if checksums is None:
        return
    if checksums.dtype != np.uint64 or checksums.shape != (len(batch.seals),):
        raise StepFailed(
            f"an answer with checksums {checksums.dtype}{list(checksums.shape)} to {len(batch.seals)} seals"
        )


def _check_details(output: UnifiedOutput) -> None:
    counts = output.num_tokens.tolist() if output.details else []
    for i, detail in output.details.items():
        if not 0 <= i < len(counts):
            raise StepFailed(f"an answer with details of item {i}, of {len(counts)}")
        if len(detail.tokens) != counts[i] and detail.error is None:
            raise StepFailed(
                f"an answer that describes {len(detail.tokens)} of item {i}'s {counts[i]} tokens"
            )
