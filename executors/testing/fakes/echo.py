"""`EchoExecutor`: token = f(history), with KV that the executor owns. Fast enough to benchmark a scheduler on it.

A sequence's history is kept by its cache id and continued at `pos_offset` only: a position that does not follow what was
written, or a truncation that was forgotten, is refused with InvalidInput; a wrong token or a foreign slot's history
changes every token after it. `expected_tokens` (also importable from here) is the oracle to compare with.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from executors.contract import (
    ExecutorConfig,
    ExecutorMemoryUsage,
    ExecutorType,
    InvalidInput,
    KvLayout,
    ModelExecutorFactory,
)
from executors.testing.fakes.base import check_options
from executors.testing.fakes.oracle import expected_tokens
from executors.testing.fakes.serving import FakeServing
from executors.testing.fakes.work import Computed, Work

__all__ = ["EchoExecutor", "EchoFactory", "expected_tokens"]


class EchoExecutor(FakeServing):
    """See the module. Options: `native` (True: one forward a step; False: the split path), `vocab_size` (1000),
    `step_delay_ms` (0), `prompt_token_ms` (0), `kv_capacity` (tokens a sequence may hold; none), `fail` (see
    `fakes/failures.py`)."""

    paged = False

    def kv_capacity(self) -> int | None:
        capacity = self.config.options.get("kv_capacity")
        return int(capacity) if capacity is not None else None

    def kv_layout(self) -> KvLayout:
        self._require_warm()
        return KvLayout(block_size=self.config.attention.block_size)

    def memory(self) -> ExecutorMemoryUsage:
        if not hasattr(self, "_lengths"):
            return ExecutorMemoryUsage()
        used = 16 * int(self._lengths.sum())
        total = self._prefix.nbytes + self._digest.nbytes
        return ExecutorMemoryUsage(allocated_bytes=used, used_bytes=used, peak_bytes=used, total_bytes=total)

    def _allocate(self) -> None:
        # Entry p of a row describes its first p tokens. np.zeros takes memory only where rows are really used.
        shape = (2 * self.num_slots, self.max_model_len + 1)
        self._prefix = np.zeros(shape, np.uint64)
        self._digest = np.zeros(shape, np.uint64)
        self._lengths = np.zeros(2 * self.num_slots, np.int32)

    def _read(self, work: Work) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        wrong = self._lengths[work.rows] != work.pos
        if wrong.any():
            i = int(np.flatnonzero(wrong)[0])
            length = int(self._lengths[work.rows[i]])
            raise InvalidInput(
                f"position {work.pos[i]} does not follow the {length} tokens held (truncate_kv forgotten?)"
            )
        capacity = self.kv_capacity()
        if capacity is not None and len(work.pos) and int(work.ends.max()) > capacity:
            raise InvalidInput(f"a sequence would exceed the KV capacity, {capacity} tokens")
        return self._prefix[work.rows, work.pos], self._digest[work.rows, work.pos]

    def _write(self, work: Work, computed: Computed) -> None:
        rows = work.rows[work.item_of]
        self._prefix[rows, work.positions + 1] = computed.prefix
        self._digest[rows, work.positions + 1] = computed.digest
        self._lengths[work.rows] = work.ends

    def _digests(self, work: Work, item: int, length: int) -> NDArray[np.uint64]:
        return self._digest[work.rows[item], 1 : length + 1]

    def _rewind(self, row: int, new_len: int, tables: tuple[NDArray[np.int32], ...]) -> None:
        self._lengths[row] = min(int(self._lengths[row]), new_len)

    def _tables(self, slots: NDArray[np.int32]) -> None:
        return None


class EchoFactory(ModelExecutorFactory):
    """Makes `EchoExecutor`s."""

    def create_executor(self, config: ExecutorConfig) -> EchoExecutor:
        self.validate_config(config)
        return EchoExecutor(config)

    def supported_types(self) -> tuple[ExecutorType, ...]:
        return (ExecutorType.BATCH, ExecutorType.CONTINUOUS_BATCH, ExecutorType.SPECULATIVE)

    def validate_config(self, config: ExecutorConfig) -> None:
        super().validate_config(config)
        names = (
            "native",
            "vocab_size",
            "step_delay_ms",
            "prompt_token_ms",
            "kv_capacity",
            "max_adapters",
            "drafts_right",
            "token_types",
            "fail",
        )
        check_options(config, names)
