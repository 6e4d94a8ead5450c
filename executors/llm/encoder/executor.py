"""`EncoderExecutor`: the `ModelExecutor` of encoders. A step computes whole texts and returns a vector for each.

Nothing is kept between steps, so there are no blocks, and a text is never cut. All work runs on the caller's thread, which on a
device waits for the step's vectors.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from executors.cgroup import PressureGauge, cpu_threads
from executors.contract import (
    AttentionType,
    BatchModelExecutor,
    DecodeInput,
    DecodeOutput,
    ExecutorCapabilities,
    ExecutorConfig,
    ExecutorMemoryUsage,
    ExecutorMetrics,
    ExecutorState,
    ExecutorStatus,
    Int32Array,
    InvalidInput,
    KvCacheHandle,
    KvLayout,
    MemoryRequirements,
    ModelInfo,
    NotReady,
    PrefillInput,
    PrefillOutput,
    ProgressCallback,
    SealedBlocks,
    Skipped,
    SlotTable,
    Tensor,
    UnifiedBatch,
    UnifiedOutput,
    Unsupported,
)
from executors.contract.batch import ItemOutput, SequenceStart
from executors.contract.checks import check_arrays, check_limits, check_pooling, check_segments
from executors.contract.stats import StepStats
from executors.kernels import compiler
from executors.llm.device.table import open_device, shares_weights
from executors.llm.encoder.loading import LoadedEncoder, device_setting, load_encoder
from executors.llm.encoder.model import Encoder
from executors.llm.faults import step_fault
from executors.llm.memory.status import memory_usage

_WIDEST = 10
"""float32 values of a token, in units of `hidden_size`: the stream and what is added to it, queries, keys and values before and
after they are rotated, what attention mixes of them, and what a product multiplies."""


class EncoderExecutor(BatchModelExecutor):
    """See the module."""

    name = "encoder"

    def __init__(self, config: ExecutorConfig, loaded: LoadedEncoder | None = None) -> None:
        """`loaded`: a model in memory, None to load `config.model` in `warmup`."""
        self.config = config
        self._loaded = loaded
        self._progress: ProgressCallback = lambda stage, done, total: None
        self._state = ExecutorState.INITIALIZING
        self._stats = StepStats()
        self._gauge = PressureGauge()
        self._table = SlotTable(config.max_num_seqs, 0)
        self._epoch: int | None = None
        self._step_failed = False

    @classmethod
    def over_shared_weights(
        cls, config: ExecutorConfig, progress: ProgressCallback
    ) -> Callable[[ExecutorConfig], EncoderExecutor] | None:
        """Load `config.model`, and return what makes executors over its weights, for processes that are forked; None on a device
        whose weights they do not share."""
        if not shares_weights(device_setting(config)):
            return None
        with compiler.reporting(progress):
            loaded = load_encoder(config, progress)
        return lambda config: cls(config, loaded)

    @classmethod
    def stand_by(cls, config: ExecutorConfig, opens_device: bool) -> str:
        """As `LlmExecutor`'s."""
        return open_device(device_setting(config)) if opens_device else ""

    # -- facts -----------------------------------------------------------------------------------------------------------

    def info(self) -> ModelInfo:
        """See the contract."""
        return self._ready().info

    def capabilities(self) -> ExecutorCapabilities:
        """See the contract. A step has room for the longest text."""
        loaded = self._ready()
        length = loaded.info.max_model_len
        inner = loaded.model.config.intermediate_size
        return ExecutorCapabilities(
            max_batch_size=self.config.max_num_seqs,
            max_sequence_length=length,
            attention_types=(AttentionType.MULTI_HEAD,),
            memory=MemoryRequirements(
                loaded.num_bytes,
                4 * (_WIDEST * loaded.info.hidden_size + 2 * inner),
                0,
                0,
                self._most_tokens(),
            ),
            max_batched_tokens=self._most_tokens(),
            dynamic_batching=True,
            continuous_batching=True,
            whole_prompts_only=True,
            dtypes=(loaded.info.dtype,),
        )

    def _most_tokens(self) -> int:
        return max(self.config.max_num_batched_tokens, self._ready().info.max_model_len)

    def status(self) -> ExecutorStatus:
        """See the contract."""
        loaded = self._loaded
        if loaded is None:
            return self._stats.status(self._state, ExecutorMemoryUsage())
        status = self._stats.status(
            self._state, memory_usage(loaded.device.memory, loaded.num_bytes, self._gauge)
        )
        return replace(status, notes=loaded.notes)

    def metrics(self) -> ExecutorMetrics:
        """See the contract."""
        return self._stats.metrics(self.config.max_num_seqs, 0.0)

    def kv_layout(self) -> KvLayout:
        """See the contract: there are no blocks."""
        self._ready()
        return KvLayout(block_size=self.config.attention.block_size)

    def supports_native_unified_decode(self) -> bool:
        """Return True: a step is one forward."""
        return True

    def slot_table(self) -> SlotTable:
        """Return the table of slots that batches refer to."""
        return self._table

    # -- life ------------------------------------------------------------------------------------------------------------

    def set_progress(self, report: ProgressCallback) -> None:
        """See the contract."""
        self._progress = report

    async def warmup(self) -> None:
        """Load the model and compute one text, so that the first request finds everything warm."""
        if self._state is ExecutorState.SHUTDOWN:
            raise NotReady("the executor was shut down")
        if self._state is not ExecutorState.INITIALIZING:
            return
        torch.set_num_threads(self.config.optimization.num_threads or cpu_threads())
        if self._loaded is None:
            with compiler.reporting(self._progress):
                self._loaded = load_encoder(self.config, self._progress)
        length = min(16, self._loaded.info.max_model_len)
        ids = np.zeros(length, np.int32)
        hidden_states(self._loaded, ids, ids, np.array([0, length]))
        self._state = ExecutorState.READY

    async def shutdown(self) -> None:
        """See the contract."""
        self._state, self._loaded = ExecutorState.SHUTDOWN, None

    async def begin_epoch(self, epoch: int, adopt: SealedBlocks | None = None) -> Int32Array:
        """See the contract. Nothing is adopted: nothing was kept."""
        self._ready()
        self._table.clear()
        self._epoch, self._step_failed = epoch, False
        self._state = ExecutorState.READY
        return np.empty(0, np.int32)

    def _ready(self) -> LoadedEncoder:
        if self._loaded is None or self._state in (ExecutorState.INITIALIZING, ExecutorState.SHUTDOWN):
            raise NotReady(f"the executor is {self._state}: call warmup first")
        return self._loaded

    # -- steps -----------------------------------------------------------------------------------------------------------

    async def unified_decode(self, batch: UnifiedBatch) -> UnifiedOutput:
        """Compute a step of whole texts. Raises as the contract says, and InvalidInput for a part of a text."""
        loaded = self._ready()
        if self._step_failed:
            raise Skipped("a step of this epoch failed before")
        if self._epoch is not None and batch.epoch != self._epoch:
            raise InvalidInput(f"a batch of epoch {batch.epoch} came in epoch {self._epoch}")
        self._check(batch, loaded.info)
        began = time.perf_counter()
        self._table.apply(batch)
        self._state, self._stats.current_batch_size = ExecutorState.BUSY, len(batch)
        try:
            output = self._compute(loaded, batch)
        except Exception as error:
            self._step_failed, self._stats.failed = True, self._stats.failed + 1
            self._state = ExecutorState.ERROR
            raise step_fault(error) from error
        finally:
            self._stats.current_batch_size = 0
        self._state = ExecutorState.READY
        self._stats.record_step(batch, output, 1000 * (time.perf_counter() - began))
        return output

    def _check(self, batch: UnifiedBatch, info: ModelInfo) -> None:
        check_arrays(batch)
        check_limits(batch, info.vocab_size, info.max_model_len, self.config.max_num_seqs)
        if batch.total_q_tokens() > self._most_tokens():
            raise InvalidInput(
                f"{batch.total_q_tokens()} tokens exceed the largest step, {self._most_tokens()}"
            )
        if batch.pos_offsets.any() or not batch.is_final_chunk.all() or batch.num_draft_tokens.any():
            raise InvalidInput("an encoder computes whole texts: each token attends to all of them")
        if batch.pending is not None and batch.pending.any():
            raise InvalidInput("an encoder has no tokens of its own to wait for")
        for start in batch.starts:
            check_pooling(start, info.label_width, info.poolings)
            check_segments(start, info.token_types)
            if start.pooling is None:
                raise InvalidInput(
                    f"sequence {start.seq_id}: an encoder generates nothing; ask for a pooling"
                )
            if start.adapter is not None:
                raise InvalidInput(f"sequence {start.seq_id}: an encoder has no adapters")

    def _compute(self, loaded: LoadedEncoder, batch: UnifiedBatch) -> UnifiedOutput:
        starts = [self._table.start_of(slot) for slot in batch.slots.tolist()]
        types = np.zeros(len(batch.token_ids), np.int32)
        for start, begin, end in zip(starts, batch.q_starts[:-1], batch.q_starts[1:], strict=True):
            if start.second_segment is not None:
                types[begin + start.second_segment : end] = 1
        poolings = [_pooling(loaded.model, start) for start in starts]
        pooled = pooled_texts(loaded, batch.token_ids, types, batch.q_starts.astype(np.int64), poolings)
        items = {
            number: ItemOutput(pooled=vector)
            for number, vector in enumerate(_results(loaded.model, starts, pooled))
        }
        n = len(batch)
        return UnifiedOutput(np.zeros(n, np.int32), np.empty(0, np.int32), items)

    async def prefill(self, request: PrefillInput) -> PrefillOutput:
        """Compute the hidden states of one text. Raises Unsupported where tokens or logits are wanted."""
        raise Unsupported("an encoder has no prompts to continue: use forward, or a step with a pooling")

    async def decode(self, request: DecodeInput) -> DecodeOutput:
        """See the contract: Unsupported."""
        raise Unsupported("an encoder generates nothing")

    async def forward(self, tensor: Tensor) -> Tensor:
        """Return hidden states float32 [1, L, hidden] of a text, int32 [1, L]."""
        loaded = self._ready()
        if (
            len(tensor.shape) != 2
            or tensor.shape[0] != 1
            or not 0 < tensor.shape[1] <= loaded.info.max_model_len
        ):
            raise InvalidInput(
                f"ids {list(tensor.shape)}: [1, L] with L of 1 to {loaded.info.max_model_len} is needed"
            )
        ids = tensor.numpy().astype(np.int32).reshape(-1)
        hidden = hidden_states(loaded, ids, np.zeros_like(ids), np.array([0, len(ids)]))
        return Tensor.of(hidden[None], "float32")

    # -- sequences -------------------------------------------------------------------------------------------------------

    def release_cache(self, cache_id: int) -> None:
        """See the contract."""
        self._table.release(cache_id)

    def truncate_kv(self, handle: KvCacheHandle, new_len: int) -> int:
        """See the contract: nothing is kept."""
        return 0


def hidden_states(
    loaded: LoadedEncoder, ids: Int32Array, types: Int32Array, starts: NDArray[np.int64]
) -> NDArray[np.float32]:
    """Return float32 [n, hidden] of texts that lie one after the other: text i in rows starts[i] to starts[i + 1] - 1 of `ids`
    and `types`, int32 [n]."""
    if loaded.fused is not None:
        return loaded.fused(ids, types, starts, None)
    states: NDArray[np.float32] = _forward(loaded, ids, types, starts).cpu().numpy()
    return states


def pooled_texts(
    loaded: LoadedEncoder, ids: Int32Array, types: Int32Array, starts: NDArray[np.int64], poolings: Sequence[str]
) -> torch.Tensor:  # fmt: skip
    """Return float32 [texts, hidden], on the model's device: the first or the last of a text's hidden states or their mean, see
    `hidden_states`."""
    if loaded.fused is not None:
        return torch.from_numpy(loaded.fused(ids, types, starts, poolings))
    return pool(_forward(loaded, ids, types, starts), starts, poolings)


@torch.inference_mode()
def pool(hidden: torch.Tensor, starts: NDArray[np.int64], poolings: Sequence[str]) -> torch.Tensor:
    """Return float32 [texts, hidden], what `poolings` make of hidden states float32 [n, hidden]. All texts in one operation each:
    on a device every operation is a launch."""
    lasts = np.array([pooling == "last" for pooling in poolings])
    rows = torch.from_numpy(np.where(lasts, starts[1:] - 1, starts[:-1])).to(hidden.device)
    pooled = hidden[rows]
    if "mean" not in poolings:
        return pooled
    lengths = torch.from_numpy(np.diff(starts)).to(hidden.device)
    means = torch.segment_reduce(hidden, "mean", lengths=lengths, axis=0)
    of_mean = torch.tensor([pooling == "mean" for pooling in poolings], device=hidden.device)
    return torch.where(of_mean[:, None], means, pooled)


def _forward(
    loaded: LoadedEncoder, ids: Int32Array, types: Int32Array, starts: NDArray[np.int64]
) -> torch.Tensor:
    loaded.device.prepare_torch_attention()
    hidden: torch.Tensor = loaded.model.forward(
        torch.from_numpy(ids.astype(np.int64)), torch.from_numpy(types.astype(np.int64)), np.diff(starts).tolist()
    )  # fmt: skip
    return hidden


def _pooling(model: Encoder, start: SequenceStart) -> str:
    """What a text's result is made of: "cls", "last" or "mean"."""
    if start.pooling == "logits" and model.head is not None:
        return model.head.config.pooling
    return start.pooling or "cls"


@torch.inference_mode()
def _results(
    model: Encoder, starts: Sequence[SequenceStart], pooled: torch.Tensor
) -> list[NDArray[np.float32]]:
    """float32 [embedding size] or [labels] of each text, of its pooled hidden states, float32 [texts, hidden]."""
    labelled = [number for number, start in enumerate(starts) if start.pooling == "logits"]
    logits = model.head(pooled[labelled]).cpu().numpy() if labelled and model.head is not None else None
    for layer in model.dense:
        pooled = layer(pooled)
    rows = list(pooled.cpu().numpy())
    if logits is not None:
        for number, row in zip(labelled, logits, strict=True):
            rows[number] = row[list(starts[number].label_ids)]
    return rows
