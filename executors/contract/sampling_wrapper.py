"""`SamplingWrapper`: gives an executor that can only return logits a sampler. Standard library and NumPy only.

It runs beside the executor, in the child process, so that rows of the vocabulary's width never cross the socket. The
inner executor never sees sampling parameters: it is asked for the last logits, and `reference_sampler` draws from them.

If the inner executor declares a native unified decode, its sequences are started with `sampling=None`, for which it
answers a final chunk with `ItemOutput.logits` float32 [num_draft_tokens + 1, V], a row after each of the last inputs.
Otherwise steps take the split path.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from executors.contract import (
    BatchModelExecutor,
    BlockMemory,
    DecodeInput,
    DecodeOutput,
    ExecutorCapabilities,
    ExecutorMetrics,
    ExecutorStatus,
    Int32Array,
    InvalidInput,
    ItemOutput,
    KvCacheHandle,
    KvLayout,
    LogitsMode,
    ModelExecutor,
    ModelInfo,
    Pace,
    PrefillInput,
    PrefillOutput,
    ProgressCallback,
    SealedBlocks,
    SequenceStart,
    SlotTable,
    SnapshotValue,
    StepFailed,
    Tensor,
    UnifiedBatch,
    UnifiedOutput,
    Unsupported,
    reference_sampler,
)
from executors.contract.split import ANY_TOKEN, BlockCopier, fill_pending, split_unified_decode
from executors.contract.stats import StepStats
from executors.contract.token_history import TokenHistory

_Output = TypeVar("_Output", PrefillOutput, DecodeOutput)


class SamplingWrapper(BatchModelExecutor):
    """Wraps `inner`; see the module. Owns the token pool for pending inputs, nothing else."""

    def __init__(self, inner: ModelExecutor) -> None:
        self.inner = inner
        self._sequences: dict[int, SequenceStart] = {}
        self._sampled: dict[int, tuple[int, tuple[int, ...]]] = {}
        self._histories: dict[int, TokenHistory] = {}
        """Histories of sequences with settings that need them, on the unified path; the split path keeps its own."""
        self._stats = StepStats()
        self._max_batch_size = 1

    # -- facts and life: the inner executor's ----------------------------------------------------------------------------

    def info(self) -> ModelInfo:
        return self.inner.info()

    def capabilities(self) -> ExecutorCapabilities:
        # Rows are sampled here, where there are no grammars; what the inner executor would draft after is not known to it.
        return replace(self.inner.capabilities(), grammars=False, drafts=False)

    def status(self) -> ExecutorStatus:
        return self.inner.status()

    def metrics(self) -> ExecutorMetrics:
        # On the split path the inner executor sees no steps, and it never samples.
        inner = self.inner.metrics()
        own = self._stats.metrics(self._max_batch_size, inner.memory_efficiency)
        return replace(own, failed_steps=max(own.failed_steps, inner.failed_steps))

    def kv_layout(self) -> KvLayout:
        return self.inner.kv_layout()

    def kv_capacity(self) -> int | None:
        return self.inner.kv_capacity()

    def pace(self) -> Pace | None:
        return self.inner.pace()

    def cache_metrics_snapshot(self) -> Mapping[str, SnapshotValue] | None:
        return self.inner.cache_metrics_snapshot()

    def lora_metrics_snapshot(self) -> Mapping[str, SnapshotValue] | None:
        return self.inner.lora_metrics_snapshot()

    def set_progress(self, report: ProgressCallback) -> None:
        self.inner.set_progress(report)

    def supports_native_unified_decode(self) -> bool:
        return self.inner.supports_native_unified_decode()

    def slot_table(self) -> SlotTable:
        return self.inner.slot_table()

    def copy_blocks(self, copies: np.ndarray[tuple[int, ...], np.dtype[np.int32]]) -> None:
        """See `BlockCopier`. Raises Unsupported if the inner executor has no such method."""
        if not isinstance(self.inner, BlockCopier):
            raise Unsupported(f"{type(self.inner).__name__} needs copy_blocks(copies)")
        self.inner.copy_blocks(copies)

    def use_memory(self, descriptor: int) -> None:
        self.inner.use_memory(descriptor)

    def block_memory(self) -> BlockMemory | None:
        return self.inner.block_memory()

    async def adopt_blocks(self, sealed: SealedBlocks) -> Int32Array:
        return await self.inner.adopt_blocks(sealed)

    async def warmup(self) -> None:
        await self.inner.warmup()
        self._max_batch_size = self.inner.capabilities().max_batch_size

    async def shutdown(self) -> None:
        await self.inner.shutdown()

    async def begin_epoch(self, epoch: int, adopt: SealedBlocks | None = None) -> Int32Array:
        self._sequences.clear()
        self._sampled.clear()
        self._histories.clear()
        return await self.inner.begin_epoch(epoch, adopt)

    async def forward(self, tensor: Tensor) -> Tensor:
        return await self.inner.forward(tensor)

    # -- sequence state --------------------------------------------------------------------------------------------------

    def release_cache(self, cache_id: int) -> None:
        self._sequences.pop(cache_id, None)
        self._sampled.pop(cache_id, None)
        self._histories.pop(cache_id, None)
        self.inner.release_cache(cache_id)

    def truncate_kv(self, handle: KvCacheHandle, new_len: int) -> int:
        return self.inner.truncate_kv(handle, new_len)

    def release_memory(self, group: int, block_ids: Int32Array) -> None:
        self.inner.release_memory(group, block_ids)

    # -- one sequence and many -------------------------------------------------------------------------------------------

    async def prefill(self, request: PrefillInput) -> PrefillOutput:
        return (await self.batch_prefill([request]))[0]

    async def decode(self, request: DecodeInput) -> DecodeOutput:
        return (await self.batch_decode([request]))[0]

    async def batch_prefill(self, inputs: Sequence[PrefillInput]) -> list[PrefillOutput]:
        outputs = await self.inner.batch_prefill([_asking_for_logits(one) for one in inputs])
        return [
            _with_sample(one, output, one.pos_offset + one.sequence_length())
            for one, output in zip(inputs, outputs, strict=True)
        ]

    async def batch_decode(self, inputs: Sequence[DecodeInput]) -> list[DecodeOutput]:
        outputs = await self.inner.batch_decode([_asking_for_logits(one) for one in inputs])
        return [
            _with_sample(one, output, one.pos_offset + 1) for one, output in zip(inputs, outputs, strict=True)
        ]

    async def forward_verify(self, inputs: Sequence[DecodeInput]) -> list[DecodeOutput]:
        outputs = await self.inner.forward_verify([_asking_for_logits(one) for one in inputs])
        return [
            _with_sample(one, output, one.pos_offset + 1) for one, output in zip(inputs, outputs, strict=True)
        ]

    # -- unified ---------------------------------------------------------------------------------------------------------

    async def unified_decode(self, batch: UnifiedBatch) -> UnifiedOutput:
        began = time.perf_counter()
        step = self._unified if self.inner.supports_native_unified_decode() else self._split
        try:
            output = await step(batch)
        except StepFailed:
            self._stats.failed += 1
            raise
        self._stats.record_step(batch, output, 1000 * (time.perf_counter() - began))
        return output

    async def _split(self, batch: UnifiedBatch) -> UnifiedOutput:
        return await split_unified_decode(self, batch)

    async def _unified(self, batch: UnifiedBatch) -> UnifiedOutput:
        for start in batch.starts:
            if start.sampling is not None:
                start.sampling.check_ids(self.inner.info().logits_width)
        plain = replace(batch, starts=tuple(replace(start, sampling=None) for start in batch.starts))
        if batch.pending is not None and batch.pending.any():
            plain = replace(plain, token_ids=fill_pending(batch, batch.pending, self._recall), pending=None)
        outputs = await self.inner.unified_decode(plain)
        for start in batch.starts:
            self._sequences[start.seq_id] = start
            if start.sampling is not None and start.sampling.needs_history:
                self._histories[start.seq_id] = TokenHistory.of(start)
        items = [self._sample_item(plain, i, outputs[i]) for i in range(len(outputs))]
        return UnifiedOutput.from_items(items)

    def _recall(self, seq_id: int, position: int) -> int:
        first, tokens = self._sampled.get(seq_id, (0, ()))
        if not first <= position < first + len(tokens):
            raise InvalidInput(f"sequence {seq_id}: no token was sampled for position {position}")
        return tokens[position - first]

    def _sample_item(self, batch: UnifiedBatch, i: int, output: ItemOutput | None) -> ItemOutput | None:
        """The item with tokens in place of logits."""
        seq_id = int(batch.seq_ids[i])
        params = self._sequences[seq_id].sampling
        end, num_drafts = int(batch.q_starts[i + 1]), int(batch.num_draft_tokens[i])
        length = int(batch.pos_offsets[i] + batch.num_q_tokens[i])
        if output is not None and output.error is not None:
            self._sampled[seq_id] = (length - num_drafts, (ANY_TOKEN,))
        if output is None or output.error is not None or output.logits is None or params is None:
            return output
        rows = output.logits.numpy().astype(np.float32)
        drafts = batch.token_ids[end - num_drafts : end].tolist()
        history = self._histories.get(seq_id)
        if history is not None:
            begin = int(batch.q_starts[i])
            history.sync(int(batch.pos_offsets[i]), batch.token_ids[begin : end - num_drafts].tolist())
        try:
            tokens = reference_sampler.verify(rows, params, drafts, length - num_drafts, history)
        except reference_sampler.NoToken as none:
            self._sampled[seq_id] = (length - num_drafts, (ANY_TOKEN,))
            return ItemOutput.failed(none.fault)
        self._sampled[seq_id] = (length - num_drafts, tuple(token.token_id for token in tokens))
        if len(tokens) <= num_drafts:
            # The inner executor computed all drafts and does not know which of them were rejected.
            self.inner.truncate_kv(KvCacheHandle(seq_id), length - num_drafts + len(tokens) - 1)
        return replace(output, tokens=tokens, logits=None)


_Input = TypeVar("_Input", PrefillInput, DecodeInput)


def _asking_for_logits(request: _Input) -> _Input:
    if request.sampling is None:
        return request
    logits = LogitsMode.ALL if request.logits is LogitsMode.ALL else LogitsMode.LAST
    return replace(request, logits=logits, sampling=None)


def _with_sample(request: PrefillInput | DecodeInput, output: _Output, position: int) -> _Output:
    """The output as requested: sampled, and without logits that were only needed for sampling."""
    if request.sampling is None:
        return output
    try:
        sampled = reference_sampler.sample(output.last_token_logits(), request.sampling, position)
    except reference_sampler.NoToken:
        return output  # logits without a token: the split path reports this one item as failed
    logits = None if request.logits is LogitsMode.NONE else output.logits
    return replace(output, sampled=sampled, logits=logits)
