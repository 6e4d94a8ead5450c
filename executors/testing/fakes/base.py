"""`FakeExecutor`: everything the fakes have in common. They differ in how they keep a sequence's KV.

A subclass says what its memory is (`_allocate`, `_read`, `_write`, `_rewind`, ...); this class keeps the contract:
life and epochs, checks, the token pool for pending inputs, sampling, verification, and the counters.
"""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from executors.contract import (
    AttentionType,
    BatchModelExecutor,
    ConfigError,
    ExecutorCapabilities,
    ExecutorConfig,
    ExecutorDied,
    ExecutorMemoryUsage,
    ExecutorMetrics,
    ExecutorState,
    ExecutorStatus,
    Int32Array,
    InvalidInput,
    KvCacheHandle,
    MemoryRequirements,
    ModelInfo,
    NotReady,
    OutOfMemory,
    Pace,
    SealedBlocks,
    SequenceStart,
    Skipped,
    SlotTable,
    SnapshotValue,
    StepFailed,
    UnifiedBatch,
    UnifiedOutput,
    checks,
)
from executors.contract.split import split_unified_decode
from executors.contract.stats import StepStats
from executors.testing.fakes import oracle
from executors.testing.fakes.failures import Failure, act, parse_failures
from executors.testing.fakes.work import Computed, Work

HIDDEN_SIZE = 16
DEFAULT_MAX_MODEL_LEN = 4096
OPTIONS: dict[str, type | tuple[type, ...]] = {
    "native": bool,
    "vocab_size": int,
    "step_delay_ms": (int, float),
    "prompt_token_ms": (int, float),
    "fail": str,
    "num_blocks": int,
    "blocks_per_span": int,
    "window": (int, str),
    "window_blocks": int,
    "fingerprint": str,
    "num_states": int,
    "state_interval": int,
    "kv_capacity": int,
    "max_adapters": int,
    "drafts_right": (int, float),
    "token_types": int,
}
POOL_SIZE = 64  # positions of sampled tokens kept per row: more than drafts and steps in flight ever need


class FakeExecutor(BatchModelExecutor):
    """See the module. For tests, all of this may be read, and `failures` written:

    - `failures`: what to do wrong and when (`fakes/failures.py`).
    - `released`: how often `release_cache` was called for each cache id; a correct engine leaves every count at 1.
    - `steps`: unified steps so far; `epoch`: the current one, None until the first `begin_epoch`.
    """

    def __init__(self, config: ExecutorConfig) -> None:
        options = config.options
        self.config = config
        self.native = bool(options.get("native", True))
        self.vocab_size = int(options.get("vocab_size", oracle.DEFAULT_VOCAB_SIZE))
        self.max_model_len = config.max_model_len or DEFAULT_MAX_MODEL_LEN
        self.num_slots = config.max_num_seqs
        self.step_delay_ms = float(options.get("step_delay_ms", 0.0))
        self.prompt_token_ms = float(options.get("prompt_token_ms", 0.0))
        self.failures: list[Failure] = parse_failures(str(options.get("fail", "")))
        self.released: Counter[int] = Counter()
        self.max_adapters = int(options.get("max_adapters", 1 << 30))
        self.adapters: dict[str, np.uint64] = {}
        # The split path carries no token types.
        self.token_types = int(options.get("token_types", 0)) if self.native else 0
        self.drafts_right = float(options.get("drafts_right", self.default_drafts_right))
        self.epoch: int | None = None
        self.steps = 0
        self.stats = StepStats()
        self._state = ExecutorState.INITIALIZING
        self._stopped: type[Skipped] | type[ExecutorDied] | None = None

    # -- what a subclass gives -----------------------------------------------------------------------------------------

    default_drafts_right = 0.0
    paged: bool
    """True if the engine lays out its blocks."""

    @abstractmethod
    def _allocate(self) -> None:
        """Make (or empty) the KV memory, for `2 * num_slots` rows."""

    @abstractmethod
    def _read(self, work: Work) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """Prefix and digest uint64 [n] before each item. Raises InvalidInput where the history is not there."""

    @abstractmethod
    def _write(self, work: Work, computed: Computed) -> None:
        """Keep what was computed."""

    @abstractmethod
    def _digests(self, work: Work, item: int, length: int) -> NDArray[np.uint64]:
        """uint64 [length]: the digest after each of an item's first tokens, for pooling."""

    @abstractmethod
    def _rewind(self, row: int, new_len: int, tables: tuple[NDArray[np.int32], ...]) -> None:
        """Forget what a row wrote from position `new_len` on. `tables`: one for each KV group, or none."""

    @abstractmethod
    def _tables(self, slots: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.int32]] | None:
        """Block tables [groups, n, max_blocks] and their lengths for `Work`, None for an executor that owns its KV."""

    @abstractmethod
    def memory(self) -> ExecutorMemoryUsage:
        """What the KV memory holds."""

    def _tainted(self, work: Work) -> set[int]:
        """Items that read KV of a failed item: not a number begets none."""
        return set()

    def _taint(self, work: Work, items: set[int]) -> None:
        """Mark what these items have just written, and take the mark off what the others wrote."""

    def _seal(self, batch: UnifiedBatch, output: UnifiedOutput) -> None:
        """Add the checksums that the step asks for."""

    def copy_blocks(self, copies: NDArray[np.int32]) -> None:
        """Copy blocks, int32 [m, 3] (group, source, destination). Raises InvalidInput where there are none to copy."""
        if len(copies):
            raise InvalidInput(f"{type(self).__name__} owns its KV and has no blocks to copy")

    # -- facts ---------------------------------------------------------------------------------------------------------

    def info(self) -> ModelInfo:
        self._require_warm()
        return ModelInfo(
            name=type(self).__name__, family="fake", num_layers=1, num_heads=1, num_kv_heads=1, head_dim=HIDDEN_SIZE,
            hidden_size=HIDDEN_SIZE, vocab_size=self.vocab_size, logits_width=self.vocab_size,
            max_model_len=self.max_model_len, dtype="float32", token_types=self.token_types,
        )  # fmt: skip

    def capabilities(self) -> ExecutorCapabilities:
        self._require_warm()
        return ExecutorCapabilities(
            max_batch_size=self.num_slots,
            max_sequence_length=self.max_model_len,
            attention_types=(AttentionType.PAGED,) if self.paged else (),
            memory=MemoryRequirements(0, 16, 16, 0),
            dynamic_batching=True,
            continuous_batching=True,
            speculative=True,
            drafts=self.native and self.drafts_right > 0,
        )

    def status(self) -> ExecutorStatus:
        return self.stats.status(self._state, self.memory())

    def metrics(self) -> ExecutorMetrics:
        return self.stats.metrics(self.num_slots, self.memory().percent / 100)

    def pace(self) -> Pace | None:
        """What the options say, where they name a time for prompts."""
        self._require_warm()
        if not self.prompt_token_ms:
            return None
        return Pace(self.prompt_token_ms / 1000, ((1, self.step_delay_ms / 1000),))

    def cache_metrics_snapshot(self) -> Mapping[str, SnapshotValue] | None:
        memory = self.memory()
        return {
            "used_bytes": memory.used_bytes,
            "total_bytes": memory.total_bytes,
            "layout": type(self).__name__,
        }

    def lora_metrics_snapshot(self) -> Mapping[str, SnapshotValue] | None:
        return {"loaded": len(self.adapters), "names": ",".join(sorted(self.adapters))}

    def supports_native_unified_decode(self) -> bool:
        return self.native

    # -- life ----------------------------------------------------------------------------------------------------------

    async def warmup(self) -> None:
        if self._state is ExecutorState.SHUTDOWN:
            raise NotReady("the executor was shut down")
        if self._state is not ExecutorState.INITIALIZING:
            return
        self._reset()
        self._state = ExecutorState.READY

    async def shutdown(self) -> None:
        self._state = ExecutorState.SHUTDOWN

    async def suspend(self) -> None:
        """As the contract's; a step before the next epoch fails."""
        self._require_warm()
        self._reset()
        self._stopped = ExecutorDied

    async def begin_epoch(self, epoch: int, adopt: SealedBlocks | None = None) -> Int32Array:
        self._require_warm()
        self.epoch = epoch
        if self._stopped is ExecutorDied:
            self.adapters.clear()  # its next life has none
        self._reset()
        self._stopped = None
        self._state = ExecutorState.READY
        return np.empty(0, np.int32)

    def _reset(self) -> None:
        # One row per slot, then one for each sequence that `prefill` meets without a slot.
        rows = 2 * self.num_slots
        self.table = SlotTable(self.num_slots, *self._table_shape())
        self._guests: dict[int, int] = {}
        self._free_guests = list(range(rows - 1, self.num_slots - 1, -1))
        self._pool_tokens = np.zeros((rows, POOL_SIZE), np.int32)
        self._pool_positions = np.full((rows, POOL_SIZE), -1, np.int32)
        self._sampling = oracle.OracleRows(
            np.zeros(rows),
            np.zeros(rows, np.int64),
            np.ones(rows),
            np.zeros(rows, np.uint64),
            np.zeros(rows, np.uint64),
        )
        self._salts = np.zeros(rows, np.uint64)
        self._detailed = np.zeros(rows, np.bool_)
        self._allocate()

    def _table_shape(self) -> tuple[int, Sequence[int | None]]:
        """Blocks per table and windows of the KV groups, for the slot table."""
        return 0, (None,)

    def _require_warm(self) -> None:
        if self._state in (ExecutorState.INITIALIZING, ExecutorState.SHUTDOWN):
            raise NotReady(f"the executor is {self._state.lower()}")

    def _require_running(self) -> None:
        self._require_warm()
        if self._stopped is not None:
            raise self._stopped("a step of this epoch failed before")

    # -- adapters ------------------------------------------------------------------------------------------------------

    async def load_adapter(self, name: str, path: str, digest: str) -> None:
        """Adapters only change the hash, by their digest; `path` is not read. Raises ConfigError for one whose path ends in
        "/bad", OutOfMemory for one more than the option `max_adapters`."""
        self._require_warm()
        if self._stopped is ExecutorDied:
            raise ExecutorDied("the executor is dead", "test")
        if path.endswith("/bad"):
            raise ConfigError(f"{path}: a bad adapter")
        if len(self.adapters) >= self.max_adapters and name not in self.adapters:
            raise OutOfMemory(f"{len(self.adapters)} adapters are loaded")
        self.adapters[name] = oracle.adapter_salt(digest)

    async def unload_adapter(self, name: str) -> None:
        """Raises InvalidInput while a sequence uses it."""
        self._require_warm()
        if name in self.adapters and any(
            self.table.holds(slot) and self.table.start_of(slot).adapter == name
            for slot in range(self.num_slots)
        ):
            raise InvalidInput(f"adapter {name!r} is in use")
        self.adapters.pop(name, None)

    def _salt(self, adapter: str | None) -> np.uint64:
        if adapter is None:
            return np.uint64(0)
        if adapter not in self.adapters:
            raise InvalidInput(f"adapter {adapter!r} is not loaded")
        return self.adapters[adapter]

    # -- a step --------------------------------------------------------------------------------------------------------

    async def unified_decode(self, batch: UnifiedBatch) -> UnifiedOutput:
        self._require_running()
        if self.epoch is not None and batch.epoch != self.epoch:
            raise InvalidInput(f"a batch of epoch {batch.epoch} came in epoch {self.epoch}")
        began = time.perf_counter()
        self._check(batch)
        self.steps += 1
        self._state, self.stats.current_batch_size = ExecutorState.BUSY, len(batch)
        try:
            ruined, spoiling = await self._misbehave(batch)
            if (seconds := self._seconds(batch)) > 0:
                await asyncio.sleep(seconds)
            if self.native:
                output = self._native_step(batch, ruined, spoiling)
            else:
                self.table.check(batch)
                self._admit(batch.starts)
                output = self._ruin(await split_unified_decode(self, batch), ruined)
            self._seal(batch, output)
            self.stats.record_step(batch, output, 1000 * (time.perf_counter() - began))
            return output
        except (StepFailed, ExecutorDied) as error:
            self.stats.failed += 1
            self._stopped = ExecutorDied if isinstance(error, ExecutorDied) else Skipped
            raise
        finally:
            self.stats.current_batch_size = 0
            self._state = ExecutorState.READY if self._stopped is None else ExecutorState.ERROR

    def _seconds(self, batch: UnifiedBatch) -> float:
        """How long the step is to take."""
        decodes = np.count_nonzero(batch.num_q_tokens == batch.num_draft_tokens + 1)
        prompt_tokens = batch.total_q_tokens() - int(decodes) - int(batch.num_draft_tokens.sum())
        return (self.step_delay_ms + prompt_tokens * self.prompt_token_ms) / 1000

    def _check(self, batch: UnifiedBatch) -> None:
        checks.check_arrays(batch)
        checks.check_limits(batch, self.vocab_size, self.max_model_len, self.num_slots)
        layout = self.kv_layout()
        checks.check_blocks(batch, [group.num_blocks for group in layout.groups])
        checks.check_seals(batch, layout.num_sealable)
        checks.check_states(batch, layout.state)
        for start in batch.starts:
            self._salt(start.adapter)
            checks.check_pooling(start, self.vocab_size)
            checks.check_segments(start, self.token_types)
            if start.sampling is not None:
                start.sampling.check_ids(self.vocab_size)
            if start.grammar is not None:
                raise InvalidInput(f"{type(self).__name__} knows no grammars")

    async def _misbehave(self, batch: UnifiedBatch) -> tuple[set[int], set[int]]:
        """Act out the failures that match; returns the items that get an error of their own, and those of them whose KV is
        spoiled."""
        ruined: set[int] = set()
        spoiling: set[int] = set()
        for failure in self.failures:
            if failure.matches(batch, self.steps):
                await act(failure)
                ruined.update(failure.items(batch))
                if failure.kind == "nan":
                    spoiling.update(failure.items(batch))
        return ruined, spoiling

    async def _misbehave_alone(self, cache_ids: list[int]) -> set[int]:
        """As `_misbehave`, for members that take no batch: failures that name a sequence."""
        ruined = set()
        for i, cache_id in enumerate(cache_ids):
            for failure in self.failures:
                if failure.times and failure.seq == cache_id:
                    try:
                        await act(failure)
                    except (StepFailed, ExecutorDied) as error:
                        self._stopped = ExecutorDied if isinstance(error, ExecutorDied) else Skipped
                        raise
                    ruined.add(i)
        return ruined

    def slot_table(self) -> SlotTable:
        self._require_warm()
        return self.table

    def _admit(self, starts: tuple[SequenceStart, ...]) -> None:
        """Take in what sampling needs of new sequences; their KV is empty."""
        for start in starts:
            row, params = start.slot, start.sampling
            self._clear_row(row)
            # Where a second text begins changes the hash of the whole, as it does in an encoder.
            self._salts[row] = self._salt(start.adapter) ^ oracle.segment_salt(start.second_segment)
            plain = params is not None and params.logprobs is None and not oracle.needs_rows(params)
            self._detailed[row] = not plain or start.prompt_logprobs is not None or start.pooling is not None
            if params is not None:
                self._sampling.temperature[row] = params.temperature
                self._sampling.top_k[row] = params.top_k
                self._sampling.top_p[row] = params.top_p
                self._sampling.seed[row] = params.seed
                self._sampling.choice[row] = params.choice

    def _clear_row(self, row: int) -> None:
        self._rewind(row, 0, ())
        self._pool_positions[row] = -1

    @abstractmethod
    def _native_step(self, batch: UnifiedBatch, ruined: set[int], spoiling: set[int]) -> UnifiedOutput:
        """One forward for the whole batch; see `fakes/serving.py`."""

    @abstractmethod
    def _ruin(self, output: UnifiedOutput, ruined: set[int]) -> UnifiedOutput:
        """The output with errors in place of the ruined items."""

    # -- sequence state ------------------------------------------------------------------------------------------------

    def release_cache(self, cache_id: int) -> None:
        self._require_warm()
        self.released[cache_id] += 1
        row = self._guests.pop(cache_id, None)
        if row is not None:
            self._free_guests.append(row)
        slot, tables = self.table.slot_of(cache_id), self._tables_of(cache_id)
        for place in (row, slot):
            if place is not None:
                self._rewind(place, 0, tables)
                self._pool_positions[place] = -1
        self.table.release(cache_id)

    def truncate_kv(self, handle: KvCacheHandle, new_len: int) -> int:
        self._require_warm()
        row = self._row_of(handle.cache_id)
        if row is not None:
            self._rewind(row, new_len, handle.block_tables or self._tables_of(handle.cache_id))
        return self.kv_layout().kept(handle.num_tokens, new_len)

    def _tables_of(self, cache_id: int) -> tuple[NDArray[np.int32], ...]:
        """The block tables in the slot table; none for a sequence without a slot or an executor that owns its KV."""
        slot = self.table.slot_of(cache_id)
        return () if slot is None else self.table.block_tables_of(slot)

    def _row_of(self, cache_id: int) -> int | None:
        slot = self.table.slot_of(cache_id)
        return slot if slot is not None else self._guests.get(cache_id)

    def _guest_row(self, cache_id: int) -> int:
        """The row of a sequence, made for one that has no slot. Raises InvalidInput when all are taken."""
        row = self._row_of(cache_id)
        if row is None:
            if not self._free_guests:
                raise InvalidInput(f"{self.num_slots} sequences without a slot are held already")
            row = self._guests[cache_id] = self._free_guests.pop()
            self._clear_row(row)
        return row


def check_options(config: ExecutorConfig, names: tuple[str, ...]) -> None:
    """Raises ConfigError, one line naming the option, for one that is unknown or of the wrong type."""
    for name, value in config.options.items():
        if name not in names:
            raise ConfigError(f"options.{name} is unknown to {config.executor}; known: {', '.join(names)}")
        kind = OPTIONS[name]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise ConfigError(f"options.{name}: {value!r} has the wrong type")
    vocab = config.options.get("vocab_size", oracle.DEFAULT_VOCAB_SIZE)
    if int(vocab) < oracle.MIN_VOCAB_SIZE:
        raise ConfigError(f"options.vocab_size: at least {oracle.MIN_VOCAB_SIZE}")
    parse_failures(str(config.options.get("fail", "")))
