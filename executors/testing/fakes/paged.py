"""`PagedFakeExecutor`: block memory that is read through block tables only. Same oracle as echo.

A cell is what the fake writes as a token's KV: it depends on the token, its position, its adapter and everything before
it (`fakes/oracle.py`). So a wrong table, a block reused while it is still read, a copy forgotten or a block shared
between different histories changes the tokens, as on a real device. With the option `window` there are KV groups of which
some have cells of the last tokens only, so a block freed early or tables that are mixed up change them too. Unlike on a device,
reading a cell that was never written (or that its writer has given up) is an InvalidInput, and so are two sequences writing to
one block in one step.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from executors.contract import (
    ConfigError,
    ExecutorConfig,
    ExecutorMemoryUsage,
    ExecutorType,
    InvalidInput,
    KvGroup,
    KvLayout,
    ModelExecutorFactory,
)
from executors.testing.fakes import oracle
from executors.testing.fakes.base import check_options
from executors.testing.fakes.group_memory import Cells, GroupMemory
from executors.testing.fakes.oracle import expected_tokens
from executors.testing.fakes.sealing import SealingFake
from executors.testing.fakes.work import Computed, Work, check_tokens, compute

__all__ = ["PagedFakeExecutor", "PagedFakeFactory", "expected_tokens"]

BYTES_PER_TOKEN = 16
DEFAULT_NUM_BLOCKS = 1024


class PagedFakeExecutor(SealingFake):
    """See the module. Options as echo's, without `kv_capacity`; `num_blocks` (else from `memory.kv_cache_memory_bytes` at 16
    bytes a token and group, else 1024), `blocks_per_span` (0: memory is not given back).

    `window`: a number for a second KV group with that window, or a list of groups, "full,8,3" or "8". `window_blocks`: number of
    blocks of each window group, else as many as the others. `fingerprint`: text, "": blocks do not outlive the process.
    """

    paged = True

    def __init__(self, config: ExecutorConfig) -> None:
        super().__init__(config)
        self.block_size = config.attention.block_size
        self.windows = _windows(config)
        self.num_blocks, self.window_blocks = _num_blocks(config)
        self.num_released = 0
        """Blocks whose memory was given back so far."""

    def kv_layout(self) -> KvLayout:
        self._require_warm()
        span = int(self.config.options.get("blocks_per_span", 0))
        bytes_per_block = self.block_size * BYTES_PER_TOKEN
        groups = tuple(
            KvGroup(self._blocks_of(window), bytes_per_block, window, span) for window in self.windows
        )
        return KvLayout(
            self.block_size,
            groups,
            max_tokens=0 if None in self.windows else self.max_model_len,
            fingerprint=self.fingerprint,
            content=self.fingerprint,
        )

    def _blocks_of(self, window: int | None) -> int:
        return self.num_blocks if window is None else self.window_blocks

    def memory(self) -> ExecutorMemoryUsage:
        if not hasattr(self, "memories"):
            return ExecutorMemoryUsage()
        used = BYTES_PER_TOKEN * sum(int(np.count_nonzero(memory.written)) for memory in self.memories)
        total = BYTES_PER_TOKEN * self.block_size * sum(memory.num_blocks for memory in self.memories)
        return ExecutorMemoryUsage(
            allocated_bytes=total, used_bytes=used, peak_bytes=total, total_bytes=total
        )

    @property
    def written(self) -> NDArray[np.bool_]:
        """bool [num_blocks, block_size]: the cells of the first group that may be read."""
        return self.memories[0].written

    def _table_shape(self) -> tuple[int, Sequence[int | None]]:
        return -(-self.max_model_len // self.block_size), self.windows

    def _allocate(self) -> None:
        self.memories = [
            GroupMemory(index, window, self._blocks_of(window), self.block_size, self.mask)
            for index, window in enumerate(self.windows)
        ]
        self._lengths = np.zeros(2 * self.num_slots, np.int32)
        # With windows a mean over all positions is no longer made of what the blocks hold.
        self._digest_rows = (
            np.zeros((2 * self.num_slots, self.max_model_len), np.uint64) if any(self.windows) else None
        )

    def _tables(self, slots: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        return np.stack([table[slots] for table in self.table.block_tables]), self.table.num_blocks[:, slots]

    def copy_blocks(self, copies: NDArray[np.int32]) -> None:
        """Copy whole blocks, poisoned cells included; int32 [m, 3] (group, source, destination)."""
        for memory in self.memories:
            of_group = copies[copies[:, 0] == memory.index]
            memory.copy(of_group[:, 1], of_group[:, 2])

    def release_memory(self, group: int, block_ids: NDArray[np.int32]) -> None:
        """Poison the blocks: who reads them is refused. Raises InvalidInput for one that does not exist."""
        self._require_warm()
        self.memories[group].poison(block_ids)
        self.num_released += len(block_ids)

    # -- reading -------------------------------------------------------------------------------------------------------

    def _forward(self, work: Work) -> Computed:
        if self._digest_rows is None:
            return super()._forward(work)
        check_tokens(work, self.vocab_size, self.max_model_len)
        prefix, _ = self._read(work)
        self._check_readers(work)
        computed = compute(work, prefix, np.zeros(len(work.pos), np.uint64))
        computed.digest = np.zeros(len(work.tokens), np.uint64)
        for memory in self.memories:
            cell, counts = self._visible(work, memory)
            computed.digest += memory.sums(work, computed.cell, cell, counts)
        self._write(work, computed)
        self._digest_rows[work.rows[work.item_of], work.positions] = computed.digest
        return computed

    def _read(self, work: Work) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """Prefix and digest before each item; the digest is that of the first group, if it is a full one."""
        self._check_tables(work)
        for memory in self.memories:
            cell, counts = self._visible(work, memory)
            item = np.repeat(np.arange(len(counts)), counts)
            position = np.arange(len(item)) - (np.cumsum(counts) - work.pos)[item]
            memory.check_written(cell, work.rows[item], position)
        first = self.memories[0]
        prefix, some = np.zeros(len(work.pos), np.uint64), np.flatnonzero(work.pos)
        prefix[some] = first.prefixes(self._cells_of(work, some, work.pos[some] - 1))
        if first.window is not None:
            return prefix, np.zeros(len(prefix), np.uint64)
        return prefix, first.totals(*self._visible(work, first))

    def _visible(self, work: Work, memory: GroupMemory) -> tuple[Cells, NDArray[np.int64]]:
        """The cells before each item that its first token reads, one item after the other, and their numbers."""
        begins = memory.begins(work.pos)
        counts = work.pos - begins
        item = np.repeat(np.arange(len(counts)), counts)
        position = np.arange(len(item)) - (np.cumsum(counts) - work.pos)[item]
        return self._cells_of(work, item, position, memory.index), counts

    def _cells_of(self, work: Work, item: NDArray, position: NDArray, group: int = 0) -> Cells:
        """Index into the flat memory of the group for each (item, position)."""
        assert work.tables is not None
        block = work.tables[group, item, position // self.block_size].astype(np.int64)
        cell: Cells = block * self.block_size + position % self.block_size
        return cell

    def _running(
        self, work: Work, i: int, length: int, prefix: NDArray[np.uint64], digest: NDArray[np.uint64]
    ) -> oracle.RunningHistory:
        latest = []
        for memory in self.memories:
            begin = length if memory.window is None else max(0, length - memory.window)
            cell = self._cells_of(work, np.full(length - begin, i), np.arange(begin, length), memory.index)
            latest.append(memory.values(cell))
        return oracle.RunningHistory(prefix, digest, self.windows, latest)

    def _tainted(self, work: Work) -> set[int]:
        tainted: set[int] = set()
        for memory in self.memories:
            if memory.tainted.any():
                cell, counts = self._visible(work, memory)
                item = np.repeat(np.arange(len(counts)), counts)
                tainted.update(item[memory.tainted.reshape(-1)[cell]].tolist())
        return tainted

    def _taint(self, work: Work, items: set[int]) -> None:
        token = self._kept_tokens(work)
        for memory in self.memories:
            if items or memory.tainted.any():
                cell = self._cells_of(work, work.item_of[token], work.positions[token], memory.index)
                memory.tainted.reshape(-1)[cell] = np.isin(work.item_of[token], list(items))

    def _check_ahead(self, work: Work, i: int, end: int) -> None:
        assert work.table_lengths is not None
        if (work.table_lengths[:, i] * self.block_size < end).any():
            raise InvalidInput(f"row {work.rows[i]}: drafts are wanted beyond its block table")

    def _check_tables(self, work: Work) -> None:
        assert work.tables is not None and work.table_lengths is not None
        if (~self._has_kv(work) & (work.pos > 0)).any():
            raise InvalidInput("a sequence without a block table has no history")
        for memory, lengths, tables in zip(self.memories, work.table_lengths, work.tables, strict=False):
            short = (lengths >= 0) & (lengths * self.block_size < work.ends)
            if short.any():
                i = int(np.flatnonzero(short)[0])
                raise InvalidInput(
                    f"the block table of row {work.rows[i]} ({lengths[i]} blocks) is too short"
                )
            used = tables[np.arange(tables.shape[1]) < lengths[:, None]]
            if len(used) and (used.min() < 0 or used.max() >= memory.num_blocks):
                raise InvalidInput(f"a block table names a block outside 0..{memory.num_blocks - 1}")
            self._check_writers(work, memory)

    def _check_writers(self, work: Work, memory: GroupMemory) -> None:
        """Raises InvalidInput if two items write to one block."""
        token = self._kept_tokens(work)
        cell = self._cells_of(work, work.item_of[token], work.positions[token], memory.index)
        pairs = np.unique(cell // self.block_size * len(work.rows) + work.item_of[token])
        blocks = pairs // max(len(work.rows), 1)
        if len(np.unique(blocks)) != len(blocks):
            twice = int(blocks[:-1][blocks[1:] == blocks[:-1]][0])
            raise InvalidInput(f"two sequences write to block {twice} in one step")

    def _check_readers(self, work: Work) -> None:
        """Raises InvalidInput if an item reads a block that another one writes to: on a device it may find either content."""
        token = self._kept_tokens(work)
        for memory in self.memories:
            written = (
                self._cells_of(work, work.item_of[token], work.positions[token], memory.index)
                // self.block_size
            )
            writer = np.full(memory.num_blocks, -1, np.int64)
            writer[written] = work.item_of[token]
            cell, counts = self._visible(work, memory)
            block, item = cell // self.block_size, np.repeat(np.arange(len(counts)), counts)
            foreign = (writer[block] >= 0) & (writer[block] != item)
            if foreign.any():
                raise InvalidInput(
                    f"block {block[foreign][0]} is read in the step in which another sequence writes to it"
                )

    def _has_kv(self, work: Work) -> NDArray[np.bool_]:
        assert work.table_lengths is not None
        has_kv: NDArray[np.bool_] = work.table_lengths[0] >= 0
        return has_kv

    def _kept_tokens(self, work: Work) -> NDArray[np.intp]:
        return np.flatnonzero(self._has_kv(work)[work.item_of])

    # -- writing -------------------------------------------------------------------------------------------------------

    def _write(self, work: Work, computed: Computed) -> None:
        token = self._kept_tokens(work)
        for memory in self.memories[: 0 if work.tables is None else len(work.tables)]:
            cell = self._cells_of(work, work.item_of[token], work.positions[token], memory.index)
            memory.write(cell, computed.cell[token], computed.prefix[token])
        self._lengths[work.rows] = work.ends

    def _digests(self, work: Work, item: int, length: int) -> NDArray[np.uint64]:
        if self._digest_rows is not None:
            return self._digest_rows[work.rows[item], :length]
        cell = self._cells_of(work, np.full(length, item), np.arange(length))
        return np.cumsum(self.memories[0].values(cell))

    def _rewind(self, row: int, new_len: int, tables: tuple[NDArray[np.int32], ...]) -> None:
        """Poison what the row wrote from `new_len` on in its partial block; full blocks may be cached by the engine."""
        for memory, table in zip(self.memories, tables, strict=False):
            stale = int(memory.begins(self._lengths[row : row + 1])[0])
            for index in range(max(new_len, stale) // self.block_size, len(table)):
                block = int(table[index])
                if not memory.written[block].all() and not self._shared(memory.index, block, row):
                    begin = max(new_len - index * self.block_size, 0)
                    memory.written[block, begin:] = False

    def _shared(self, group: int, block: int, row: int) -> bool:
        """True if another live sequence's table names the block."""
        table, lengths = self.table.block_tables[group], self.table.num_blocks[group]
        users = (table == block) & (np.arange(table.shape[1]) < lengths[:, None])
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
                "fingerprint",
                "window",
                "window_blocks",
                "max_adapters",
                "drafts_right",
                "token_types",
                "fail",
            ),
        )
        if config.attention.block_size < 1:
            raise ConfigError("attention.block_size: at least 1")
        windows = _windows(config)
        if any(window is not None and window < 2 for window in windows):
            raise ConfigError("options.window: at least 2")
        if min(_num_blocks(config)) < 1:
            raise ConfigError("memory.kv_cache_memory_bytes: too small for one block")


def _windows(config: ExecutorConfig) -> tuple[int | None, ...]:
    """The window of each KV group, None for a full one. Raises ConfigError for a text that is not a list of these."""
    option = config.options.get("window")
    if option is None:
        return (None,)
    if isinstance(option, int):
        return (None, option)
    try:
        return tuple(None if part == "full" else int(part) for part in str(option).split(","))
    except ValueError:
        raise ConfigError(f'options.window: {option!r} is no list of "full" and numbers') from None


def _num_blocks(config: ExecutorConfig) -> tuple[int, int]:
    """Blocks of each full group, and of each window group."""
    options, windows = config.options, _windows(config)
    if "num_blocks" in options:
        num_blocks = int(options["num_blocks"])
    elif config.memory.kv_cache_memory_bytes is not None:
        total = config.memory.kv_cache_memory_bytes // (config.attention.block_size * BYTES_PER_TOKEN)
        num_windows = len(windows) - windows.count(None)
        fixed = int(options.get("window_blocks", 0)) * num_windows
        num_blocks = (total - fixed) // max(1, windows.count(None) if fixed else len(windows))
    else:
        num_blocks = DEFAULT_NUM_BLOCKS
    return num_blocks, int(options.get("window_blocks", num_blocks))
