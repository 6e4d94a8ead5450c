"""`SequenceStates`: all state of sequences that lasts between steps, by slot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch

from executors.contract.batch import Drafts, SequenceStart, UnifiedBatch, UnifiedOutput
from executors.contract.errors import InvalidInput
from executors.contract.slots import SlotTable
from executors.llm.lora.table import LoraTable
from executors.llm.memory.kv_cache import lazy_zeros
from executors.llm.sampling.edits import SlotShapers
from executors.llm.sampling.grammar import GrammarCompiler
from executors.llm.sampling.sampler import SamplingTable
from executors.llm.sampling.slot_grammars import SlotGrammars
from executors.llm.step_arrays import StepArrays


class Companion(Protocol):
    """What guesses the next tokens of sequences: `spec.companion.DraftCompanion`, `spec.mtp.MtpCompanion`, and where steps are
    launched `spec.device_companion.DeviceDraftCompanion`."""

    max_model_len: int
    reads_hidden: bool
    """Whether it takes the model's hidden states, of all rows of a step."""

    @property
    def kv_bytes(self) -> int:
        """Bytes of its KV."""

    def note(self, batch: UnifiedBatch) -> None:
        """Take in which blocks change hands and which are copied, before the step's forward."""

    def draft(
        self, batch: UnifiedBatch, output: UnifiedOutput, step: StepArrays, hidden: torch.Tensor
    ) -> Drafts | None:
        """Guess the tokens after those that the step gave; None if no item wants drafts. `hidden` [T, hidden]: of the model."""

    def time_forward(self, count: int, past: int) -> float:
        """Seconds of a forward of one token for each of `count` sequences of `past` tokens."""

    def give_back(self, group: int, block_ids: np.ndarray) -> None:
        """Return the memory of these blocks of a group."""

    def forget(self, slot: int) -> None:
        """A sequence is gone from its slot, or begins in it."""

    def clear(self) -> None:
        """All sequences are released."""


class SlotPart(Protocol):
    """State by slot that a stage of its own holds. Told of every change, before the states here change."""

    def begin(self, start: SequenceStart) -> bool:
        """A sequence begins in its slot. Return whether `shapers` must record its tokens from the start."""

    def drop(self, slot: int) -> None:
        """The slot's sequence is released."""

    def clear(self) -> None:
        """All sequences are released."""


class SequenceStates:
    """Block tables and starts (`slots`), sampling settings, shaping, grammars, and the token pool.

    `pool` int32 [num_slots + 1, max_model_len + 1] on the device holds each sampled token at its position. A later step reads
    its input from there if the host does not know the token's id yet. The last row belongs to no slot. Only the stages of a
    step, `release` and `clear` write this state.
    """

    def __init__(
        self, num_slots: int, max_model_len: int, block_size: int, compiler: GrammarCompiler, device: torch.device,
        samples_here: bool = True, windows: Sequence[int | None] = (None,),
    ) -> None:  # fmt: skip
        """`samples_here`: whether this process samples; otherwise it keeps no grammars. `windows` of the groups of blocks."""
        self.max_model_len = max_model_len
        self.block_size = block_size
        self.logits_width = self.label_width = compiler.width
        self.slots = SlotTable(num_slots, -(-max_model_len // block_size), windows)
        self.sampling = SamplingTable(num_slots)
        self.shapers = SlotShapers()
        """Shaping state of slots whose settings change single logits, token counts included."""
        self.grammars = SlotGrammars(compiler)
        self.pool = lazy_zeros((num_slots + 1, max_model_len + 1), torch.int32, device)
        self.adapters: LoraTable | None = None
        """LoRA adapters, if the executor has any."""
        self.companion: Companion | None = None
        """A draft model or an MTP head, if there is one."""
        self.history: np.ndarray | None = None
        """int32 [num_slots, positions] on the host: all tokens of a slot that are known, where a companion reads them. On a CPU
        that is the token pool itself."""
        self.part: SlotPart | None = None
        """State of launched steps, if there are any."""
        self.samples = np.zeros(num_slots, np.bool_)
        """Marks slots whose sequences sample."""
        self.special = np.zeros(num_slots, np.bool_)
        """Marks slots that need more than tokens: prompt logprobs or pooled output."""
        self.pooled_sums: dict[int, torch.Tensor] = {}
        """Sums of hidden states so far, float32 [hidden], of slots whose prompts are pooled by their mean."""
        self._samples_here = samples_here

    label_width: int
    """`ModelInfo.label_width`; that of the vocabulary unless the executor sets another."""

    def begin(self, start: SequenceStart) -> None:
        """Take in what lasts of a sequence that begins."""
        slot = start.slot
        follows = True if self.part is None else self.part.begin(start)
        self.pooled_sums.pop(slot, None)
        self.samples[slot] = start.sampling is not None and start.pooling is None
        if start.sampling is not None:
            self.sampling.set(slot, start.sampling)
        self.shapers.begin(start, follows)
        self.grammars.begin(start)
        if self.adapters is not None:
            self.adapters.begin(slot, start.adapter)
        if self.companion is not None:
            self.companion.forget(slot)
            if self.history is not None:
                tokens = np.concatenate((start.prompt_token_ids, start.output_token_ids))
                self.history[slot, : len(tokens)] = tokens
        self.special[slot] = start.prompt_logprobs is not None or start.pooling is not None
        if not self._samples_here:
            self.grammars.drop(slot)

    def release(self, seq_id: int) -> None:
        """Forget a sequence."""
        slot = self.slots.release(seq_id)
        if slot is not None:
            self._drop(slot)

    def _drop(self, slot: int) -> None:
        if self.part is not None:
            self.part.drop(slot)
        self.pooled_sums.pop(slot, None)
        self.shapers.drop(slot)
        self.grammars.drop(slot)
        if self.adapters is not None:
            self.adapters.drop(slot)
        if self.companion is not None:
            self.companion.forget(slot)

    def clear(self) -> None:
        """Forget every sequence."""
        if self.part is not None:
            self.part.clear()
        self.slots.clear()
        self.shapers.clear()
        self.grammars.clear()
        self.pooled_sums.clear()
        if self.adapters is not None:
            self.adapters.clear()
        if self.companion is not None:
            self.companion.clear()

    def tables_of(self, batch: UnifiedBatch, needed: int) -> tuple[np.ndarray, ...]:
        """Block tables int32 [n, needed] of a step's items, of each group."""
        # The slice comes first: a row of the full table is as wide as the longest possible sequence.
        return tuple(tables[:, :needed][batch.slots] for tables in self.slots.block_tables)

    def blocks_needed(self, batch: UnifiedBatch) -> int:
        """Return the number of blocks of the longest item. Raises InvalidInput for a table that is too short. Tables of all
        groups end alike."""
        ends = batch.num_q_tokens.astype(np.int64) + batch.pos_offsets
        needed = -(-ends // self.block_size)
        for group, num_blocks in enumerate(self.slots.num_blocks):
            short = np.flatnonzero(num_blocks[batch.slots] < needed)
            if len(short):
                i = int(short[0])
                have, where = int(num_blocks[batch.slots[i]]), f" of group {group}" if group else ""
                raise InvalidInput(
                    f"sequence {batch.seq_ids[i]}: its table{where} has {have} blocks, this step needs {needed[i]}"
                )
        return int(needed.max())

    def pool_index(self, slots: np.ndarray, positions: np.ndarray) -> torch.Tensor:
        """int64 [n] on the device: places of tokens in the flat pool."""
        index = np.ascontiguousarray(slots.astype(np.int64) * self.pool.shape[1] + positions, np.int64)
        return torch.from_numpy(index).to(self.pool.device)
