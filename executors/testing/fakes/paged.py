"""`PagedFakeExecutor`: block memory that is read through block tables only. Same oracle as echo.

A cell is what the fake writes as a token's KV: it depends on the token, its position, its adapter and everything before
it (`fakes/oracle.py`). So a wrong table, a block reused while it is still read, a copy forgotten or a block shared
between different histories changes the tokens, as on a real device; unlike there, reading a cell that was never written
(or that its writer has given up) is an InvalidInput, and so are two sequences writing to one block in one step.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from executors.contract import (
    ConfigError,
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

__all__ = ["PagedFakeExecutor", "PagedFakeFactory", "expected_tokens"]

BYTES_PER_TOKEN = 16
DEFAULT_NUM_BLOCKS = 1024


class PagedFakeExecutor(FakeServing):
    """See the module. Options as echo's, without `kv_capacity`; `num_blocks` (else from
    `memory.kv_cache_memory_bytes` at 16 bytes a token, else 1024), `blocks_per_span` (0: memory is not given back)."""

    paged = True

    def __init__(self, config: ExecutorConfig) -> None:
        super().__init__(config)
        self.block_size = config.attention.block_size
        self.num_blocks = _num_blocks(config)
        self._shape = (self.num_blocks, self.block_size)
        self.num_released = 0
        """Blocks whose memory was given back so far."""

    def kv_layout(self) -> KvLayout:
        self._require_warm()
        span = int(self.config.options.get("blocks_per_span", 0))
        return KvLayout.of(self.block_size, self.num_blocks, self.block_size * BYTES_PER_TOKEN, span)

    def memory(self) -> ExecutorMemoryUsage:
        if not hasattr(self, "written"):
            return ExecutorMemoryUsage()
        used = BYTES_PER_TOKEN * int(np.count_nonzero(self.written))
        total = BYTES_PER_TOKEN * self.num_blocks * self.block_size
        return ExecutorMemoryUsage(
            allocated_bytes=total, used_bytes=used, peak_bytes=total, total_bytes=total
        )

    def _table_shape(self) -> tuple[int, int]:
        return -(-self.max_model_len // self.block_size), 1

    def _allocate(self) -> None:
        # written: False where a cell is poisoned. prefix: the running prefix after the cell's token.
        self.written = np.zeros(self._shape, np.bool_)
        self.cells = np.zeros(self._shape, np.uint64)
        self.prefix = np.zeros(self._shape, np.uint64)
        # tainted: cells that hold no numbers, written by an item that failed alone.
        self.tainted = np.zeros(self._shape, np.bool_)

    def _tables(self, slots: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        return self.table.block_tables[0][slots], self.table.num_blocks[0, slots]

    def copy_blocks(self, copies: NDArray[np.int32]) -> None:
        """Copy whole blocks, poisoned cells included; int32 [m, 3] (group, source, destination)."""
        _, source, destination = copies.T
        for memory in (self.written, self.cells, self.prefix, self.tainted):
            memory[destination] = memory[source]

    def release_memory(self, group: int, block_ids: NDArray[np.int32]) -> None:
        """Poison the blocks: who reads them is refused. Raises InvalidInput for one that does not exist."""
        self._require_warm()
        if len(block_ids) and not 0 <= block_ids.min() <= block_ids.max() < self.num_blocks:
            raise InvalidInput(f"release_memory names a block outside 0..{self.num_blocks - 1}")
        self.written[block_ids] = False
        self.tainted[block_ids] = False
        self.num_released += len(block_ids)

    # -- reading -------------------------------------------------------------------------------------------------------

    def _read(self, work: Work) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        self._check_tables(work)
        total = int(work.pos.sum(dtype=np.int64))
        n = len(work.pos)
        prefix, digest = np.zeros(n, np.uint64), np.zeros(n, np.uint64)
        if not total:
            return prefix, digest
        # The history of all items, one after the other: which item, which position, which cell.
        item = np.repeat(np.arange(n), work.pos)
        begin = np.cumsum(work.pos) - work.pos
        position = np.arange(total) - begin[item]
        cell = self._cells_of(work, item, position)
        unwritten = ~self.written.reshape(-1)[cell]
        if unwritten.any():
            bad = int(np.flatnonzero(unwritten)[0])
            block = int(cell[bad]) // self.block_size
            raise InvalidInput(
                f"row {work.rows[item[bad]]} reads position {position[bad]} in block {block}: not written"
            )
        some = np.flatnonzero(work.pos)
        digest[some] = np.add.reduceat(self.cells.reshape(-1)[cell], begin[some])
        prefix[some] = self.prefix.reshape(-1)[cell[begin[some] + work.pos[some] - 1]]
        return prefix, digest

    def _cells_of(self, work: Work, item: NDArray, position: NDArray) -> NDArray[np.int64]:
        """Index into the flat memory of each (item, position)."""
        assert work.tables is not None
        block = work.tables[item, position // self.block_size].astype(np.int64)
        cell: NDArray[np.int64] = block * self.block_size + position % self.block_size
        return cell

    def _tainted(self, work: Work) -> set[int]:
        if not self.tainted.any():
            return set()
        return {i for i in range(len(work.pos)) if self.tainted.reshape(-1)[self._history(work, i)].any()}

    def _history(self, work: Work, i: int) -> NDArray[np.int64]:
        length = int(work.pos[i])
        return self._cells_of(work, np.full(length, i), np.arange(length))

    def _taint(self, work: Work, items: set[int]) -> None:
        if not items and not self.tainted.any():
            return
        token = self._kept_tokens(work)
        cell = self._cells_of(work, work.item_of[token], work.positions[token])
        self.tainted.reshape(-1)[cell] = np.isin(work.item_of[token], list(items))

    def _check_ahead(self, work: Work, i: int, end: int) -> None:
        assert work.table_lengths is not None
        if work.table_lengths[i] * self.block_size < end:
            raise InvalidInput(f"row {work.rows[i]}: drafts are wanted beyond its block table")

    def _check_tables(self, work: Work) -> None:
        assert work.tables is not None and work.table_lengths is not None
        has_kv = work.table_lengths >= 0
        short = has_kv & (work.table_lengths * self.block_size < work.ends)
        if short.any():
            i = int(np.flatnonzero(short)[0])
            raise InvalidInput(
                f"the block table of row {work.rows[i]} ({work.table_lengths[i]} blocks) is too short"
            )
        if (~has_kv & (work.pos > 0)).any():
            raise InvalidInput("a sequence without a block table has no history")
        used = work.tables[np.arange(work.tables.shape[1]) < work.table_lengths[:, None]]
        if len(used) and (used.min() < 0 or used.max() >= self.num_blocks):
            raise InvalidInput(f"a block table names a block outside 0..{self.num_blocks - 1}")
        self._check_writers(work)

    def _check_writers(self, work: Work) -> None:
        """Raises InvalidInput if two items write to one block."""
        token = self._kept_tokens(work)
        block = self._cells_of(work, work.item_of[token], work.positions[token]) // self.block_size
        pairs = np.unique(block * len(work.rows) + work.item_of[token])
        blocks = pairs // max(len(work.rows), 1)
        if len(np.unique(blocks)) != len(blocks):
            twice = int(blocks[:-1][blocks[1:] == blocks[:-1]][0])
            raise InvalidInput(f"two sequences write to block {twice} in one step")

    def _kept_tokens(self, work: Work) -> NDArray[np.intp]:
        assert work.table_lengths is not None
        return np.flatnonzero(work.table_lengths[work.item_of] >= 0)

    # -- writing -------------------------------------------------------------------------------------------------------

    def _write(self, work: Work, computed: Computed) -> None:
        token = self._kept_tokens(work)
        cell = self._cells_of(work, work.item_of[token], work.positions[token])
        same = self.written.reshape(-1)[cell] & (self.cells.reshape(-1)[cell] == computed.cell[token])
        self.cells.reshape(-1)[cell] = computed.cell[token]
        self.prefix.reshape(-1)[cell] = computed.prefix[token]
        # Behind its new content a block has that of an earlier owner, which no step may read.
        block, offset = cell[~same] // self.block_size, cell[~same] % self.block_size
        last = np.full(self.num_blocks, -1)
        np.maximum.at(last, block, offset)
        touched = np.flatnonzero(last >= 0)
        self.written[touched] &= np.arange(self.block_size) <= last[touched, None]
        self.written.reshape(-1)[cell] = True

    def _digests(self, work: Work, item: int, length: int) -> NDArray[np.uint64]:
        cell = self._cells_of(work, np.full(length, item), np.arange(length))
        return np.cumsum(self.cells.reshape(-1)[cell])

    def _rewind(self, row: int, new_len: int, table: NDArray[np.int32] | None) -> None:
        """Poison what the row wrote from `new_len` on in its partial block; full blocks may be cached by the engine."""
        if table is None:
            return
        for index in range(new_len // self.block_size, len(table)):
            block = int(table[index])
            partial = not self.written[block].all()
            if partial and not self._shared(block, row):
                begin = max(new_len - index * self.block_size, 0)
                self.written[block, begin:] = False

    def _shared(self, block: int, row: int) -> bool:
        """True if another live sequence's table names the block."""
        lengths = self.table.num_blocks[0]
        users = (self.table.block_tables[0] == block) & (
            np.arange(self.table.block_tables[0].shape[1]) < lengths[:, None]
        )
        users[row if row < self.num_slots else slice(0, 0)] = False
        return bool(users.any())


class PagedFakeFactory(ModelExecutorFactory):
    """Makes `PagedFakeExecutor`s."""

    def create_executor(self, config: ExecutorConfig) -> PagedFakeExecutor:
        self.validate_config(config)
        return PagedFakeExecutor(config)

    def supported_types(self) -> tuple[ExecutorType, ...]:
        return (ExecutorType.BATCH, ExecutorType.CONTINUOUS_BATCH, ExecutorType.SPECULATIVE)

    def validate_config(self, config: ExecutorConfig) -> None:
        super().validate_config(config)
        check_options(
            config,
            (
                "native",
                "vocab_size",
                "step_delay_ms",
                "prompt_token_ms",
                "num_blocks",
                "blocks_per_span",
                "max_adapters",
                "drafts_right",
                "fail",
            ),
        )
        if config.attention.block_size < 1:
            raise ConfigError("attention.block_size: at least 1")
        if _num_blocks(config) < 1:
            raise ConfigError("memory.kv_cache_memory_bytes: too small for one block")


def _num_blocks(config: ExecutorConfig) -> int:
    if "num_blocks" in config.options:
        return int(config.options["num_blocks"])
    if config.memory.kv_cache_memory_bytes is not None:
        return config.memory.kv_cache_memory_bytes // (config.attention.block_size * BYTES_PER_TOKEN)
    return DEFAULT_NUM_BLOCKS
