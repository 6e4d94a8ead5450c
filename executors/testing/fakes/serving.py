"""`FakeServing`: the forwards of a fake. The plain step works on arrays; the rest goes item by item."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from executors.contract import (
    DecodeInput,
    DecodeOutput,
    Drafts,
    InvalidInput,
    ItemFault,
    ItemOutput,
    KvCacheHandle,
    LogitsMode,
    PrefillInput,
    PrefillOutput,
    SampledToken,
    SamplingParams,
    SequenceStart,
    Tensor,
    UnifiedBatch,
    UnifiedOutput,
    Unsupported,
    reference_sampler,
)
from executors.testing.fakes import oracle
from executors.testing.fakes.base import HIDDEN_SIZE, POOL_SIZE, FakeExecutor
from executors.testing.fakes.work import Computed, Work, check_tokens, compute


class FakeServing(FakeExecutor):
    """The computing half of a fake."""

    # -- unified -------------------------------------------------------------------------------------------------------

    def _native_step(self, batch: UnifiedBatch, ruined: set[int], spoiling: set[int]) -> UnifiedOutput:
        self.table.apply(batch)
        self._admit(batch.starts)
        slots = batch.slots
        tables = self._tables(slots) or (None, None)
        tokens = batch.token_ids
        work = Work(slots, batch.pos_offsets, batch.num_q_tokens, tokens, self._salts[slots], *tables)
        work.state_src, work.state_dst, work.snapshots = batch.state_src, batch.state_dst, batch.snapshots
        if batch.pending is not None and batch.pending.any():
            work.tokens = self._gather_pending(work, batch.pending)
        self.copy_blocks(batch.block_copies)
        tainted = self._tainted(work)
        ruined = ruined | tainted
        computed = self._forward(work)
        self._taint(work, tainted | spoiling)
        if ruined or batch.num_draft_tokens.any() or self._detailed[slots].any():
            items = [self._item(batch, i, work, computed) for i in range(len(batch))]
            for i in ruined:
                # What an argmax over no numbers gives: a step submitted already goes on from it.
                self._scatter(work.rows[i : i + 1], work.ends[i : i + 1], np.zeros(1, np.int32))
            output = self._ruin(UnifiedOutput.from_items(items), ruined)
        else:
            output = self._plain_output(batch, work, computed)
        if batch.drafts_wanted is not None and self.capabilities().drafts:
            output.drafts = self._drafts(batch, batch.drafts_wanted, work, computed, output)
        return output

    def _drafts(
        self,
        batch: UnifiedBatch,
        requested: NDArray[np.int32],
        work: Work,
        computed: Computed,
        output: UnifiedOutput,
    ) -> Drafts:
        """The tokens that will come, `drafts_right` of them as they will be and the others wrong. Raises InvalidInput where a
        block table is too short for them."""
        counts, tokens = np.zeros(len(batch), np.int32), list[int]()
        for i in np.flatnonzero((requested > 0) & batch.is_final_chunk).tolist():
            num_tokens = int(output.num_tokens[i])
            params = self.table.start_of(int(batch.slots[i])).sampling
            if not num_tokens or params is None:
                continue
            self._check_ahead(work, i, int(work.ends[i] + requested[i]))
            row = int(work.starts[i + 1]) - 1 - int(batch.num_draft_tokens[i]) + num_tokens - 1
            token = np.array([output[i].tokens[-1].token_id], np.int32)  # type: ignore[union-attr]
            settings, position = oracle.OracleRows.of([params]), int(work.positions[row]) + 1
            history = self._running(
                work, i, position, computed.prefix[row : row + 1], computed.digest[row : row + 1]
            )
            for at in range(position, position + int(requested[i])):
                history.append(token, at, work.salts[i : i + 1])
                token = oracle.sample_tokens(history.digest, settings, np.array([at + 1]), self.vocab_size)
                if int(oracle.mix(history.digest + np.uint64(at))[0]) % 1000 >= 1000 * self.drafts_right:
                    token = ((token + 1) % self.vocab_size).astype(np.int32)
                tokens.append(int(token[0]))
            counts[i] = requested[i]
        return Drafts(counts, np.array(tokens, np.int32), int(counts.max(initial=0)))

    def _running(
        self, work: Work, i: int, length: int, prefix: NDArray[np.uint64], digest: NDArray[np.uint64]
    ) -> oracle.RunningHistory:
        """The history of an item's first `length` tokens, with this prefix and digest."""
        return oracle.RunningHistory(prefix, digest, oracle.FULL, [np.empty(0, np.uint64)])

    def _check_ahead(self, work: Work, i: int, end: int) -> None:
        """Raise InvalidInput unless the item's table covers `end` tokens."""

    def _forward(self, work: Work) -> Computed:
        check_tokens(work, self.vocab_size, self.max_model_len)
        computed = compute(work, *self._read(work))
        self._write(work, computed)
        return computed

    def _plain_output(self, batch: UnifiedBatch, work: Work, computed: Computed) -> UnifiedOutput:
        """One token for each final chunk: the usual step, on arrays only."""
        final = np.flatnonzero(batch.is_final_chunk)
        rows, positions = work.rows[final], work.ends[final]
        digests = computed.digest[work.starts[final + 1] - 1]
        tokens = oracle.sample_tokens(digests, self._sampling.take(rows), positions, self.vocab_size)
        self._scatter(rows, positions, tokens)
        return UnifiedOutput(batch.is_final_chunk.astype(np.int32), tokens)

    def _scatter(self, rows: NDArray, positions: NDArray, tokens: NDArray) -> None:
        """Keep sampled tokens for later steps' pending inputs."""
        self._pool_tokens[rows, positions % POOL_SIZE] = tokens
        self._pool_positions[rows, positions % POOL_SIZE] = positions

    def _gather_pending(self, work: Work, pending: NDArray[np.bool_]) -> NDArray[np.int32]:
        """The step's tokens with the pending ones filled in. Raises InvalidInput for one that was never sampled."""
        where = np.flatnonzero(pending)
        rows, positions = work.rows[work.item_of[where]], work.positions[where]
        missing = self._pool_positions[rows, positions % POOL_SIZE] != positions
        if missing.any():
            first = int(np.flatnonzero(missing)[0])
            raise InvalidInput(f"slot {rows[first]}: no token was sampled for position {positions[first]}")
        tokens = work.tokens.copy()
        tokens[where] = self._pool_tokens[rows, positions % POOL_SIZE]
        return tokens

    def _item(self, batch: UnifiedBatch, i: int, work: Work, computed: Computed) -> ItemOutput | None:
        """The output of one item of any kind."""
        slot = int(batch.slots[i])
        start = self.table.start_of(slot)
        digests = computed.digest[work.starts[i] : work.starts[i + 1]]
        prompt_logprobs = self._prompt_logprobs(start, int(work.pos[i]), digests)
        if not batch.is_final_chunk[i]:
            return None if prompt_logprobs is None else ItemOutput(prompt_logprobs=prompt_logprobs)
        end = int(work.ends[i])
        if start.pooling == "logits":
            logits = oracle.logits_rows(digests[-1:], self.vocab_size)[0]
            return ItemOutput(prompt_logprobs=prompt_logprobs, pooled=logits[list(start.label_ids)])
        if start.pooling is not None:
            return ItemOutput(
                prompt_logprobs=prompt_logprobs, pooled=self._pooled(start.pooling, work, i, end)
            )
        num_drafts = int(batch.num_draft_tokens[i])
        digests = digests[-num_drafts - 1 :]
        if start.sampling is None:
            return ItemOutput(
                prompt_logprobs=prompt_logprobs,
                logits=Tensor.of(oracle.logits_rows(digests, self.vocab_size)),
            )
        drafts = work.tokens[work.starts[i + 1] - num_drafts : work.starts[i + 1]]
        positions = np.arange(end - num_drafts, end + 1)
        if oracle.needs_rows(start.sampling):
            rows = oracle.logits_rows(digests, self.vocab_size)
            inputs = work.tokens[work.starts[i] : work.starts[i + 1] - num_drafts].tolist()
            history = self.table.history_of(slot)
            history.sync(int(work.pos[i]), inputs)
            try:
                tokens = reference_sampler.verify(
                    rows, start.sampling, drafts.tolist(), end - num_drafts, history
                )
            except reference_sampler.NoToken as none:
                self._scatter(work.rows[i : i + 1], work.ends[i : i + 1], np.zeros(1, np.int32))
                return ItemOutput.failed(none.fault)
        else:
            tokens = self._verify(digests, start.sampling, drafts, positions)
        ids = np.array([token.token_id for token in tokens], np.int32)
        self._scatter(np.full(len(ids), slot), positions[: len(ids)], ids)
        if len(tokens) <= num_drafts:
            self._rewind(slot, end - num_drafts + len(tokens) - 1, self._tables_of(start.seq_id))
        return ItemOutput(tokens, prompt_logprobs)

    def _verify(
        self, digests: NDArray, params: SamplingParams, drafts: NDArray[np.int32], positions: NDArray
    ) -> tuple[SampledToken, ...]:
        """The drafts that equal what is sampled at their positions, and the one token after them."""
        rows = oracle.OracleRows.of([params] * len(digests))
        ids = oracle.sample_tokens(digests, rows, positions, self.vocab_size)
        accepted = int(np.cumprod(ids[:-1] == drafts).sum())
        return tuple(
            self._describe(digests[k : k + 1], int(ids[k]), params.logprobs) for k in range(accepted + 1)
        )

    def _describe(
        self, digest: NDArray, token: int, num_alternatives: int | None, ranked: bool = False
    ) -> SampledToken:
        if num_alternatives is None:
            return SampledToken(token)
        row = oracle.logits_rows(digest, self.vocab_size)[0]
        return reference_sampler.describe(row, token, num_alternatives, ranked)

    def _prompt_logprobs(
        self, start: SequenceStart, pos: int, digests: NDArray
    ) -> tuple[SampledToken, ...] | None:
        """One entry for each input position whose next prompt token is known; None if there is none."""
        count = min(len(digests), len(start.prompt_token_ids) - 1 - pos)
        if start.prompt_logprobs is None or count <= 0:
            return None
        return tuple(
            self._describe(
                digests[k : k + 1],
                int(start.prompt_token_ids[pos + k + 1]),
                start.prompt_logprobs,
                ranked=True,
            )
            for k in range(count)
        )

    def _pooled(self, pooling: str, work: Work, i: int, length: int) -> NDArray[np.float32]:
        """float32 [hidden]: the last hidden state or the mean of all."""
        states = oracle.hidden_states(self._digests(work, i, length), HIDDEN_SIZE)
        pooled: NDArray[np.float32] = (
            states[-1] if pooling == "last" else states.mean(axis=0, dtype=np.float32)
        )
        return pooled

    def _ruin(self, output: UnifiedOutput, ruined: set[int]) -> UnifiedOutput:
        if not ruined:
            return output
        failed = ItemOutput.failed(ItemFault.NOT_FINITE)
        items = [failed if i in ruined else output[i] for i in range(len(output))]
        return UnifiedOutput.from_items(items)

    # -- one sequence and many -----------------------------------------------------------------------------------------

    async def prefill(self, request: PrefillInput) -> PrefillOutput:
        return (await self.batch_prefill([request]))[0]

    async def decode(self, request: DecodeInput) -> DecodeOutput:
        return (await self.batch_decode([request]))[0]

    async def batch_prefill(self, inputs: Sequence[PrefillInput]) -> list[PrefillOutput]:
        self._require_running()
        for one in inputs:
            _check_prefill(one)
            self._check_sampling(one.sampling)
        scratch = itertools.count(-1, -1)
        handles = [one.kv_cache or KvCacheHandle(next(scratch)) for one in inputs]
        ruined = await self._misbehave_alone([handle.cache_id for handle in handles])
        try:
            work, computed = self._forward_inputs(inputs, handles)
        finally:
            for handle in handles:
                if handle.cache_id < 0:
                    self._drop_scratch(handle.cache_id)
        outputs = []
        for i, one in enumerate(inputs):
            digests = computed.digest[work.starts[i] : work.starts[i + 1]]
            outputs.append(
                PrefillOutput(
                    logits=self._nan() if i in ruined else self._logits(digests, one.logits),
                    kv_cache=one.kv_cache and replace(one.kv_cache, num_tokens=int(work.ends[i])),
                    hidden_states=Tensor.of(oracle.hidden_states(digests, HIDDEN_SIZE)[None])
                    if one.want_hidden_states
                    else None,
                    sampled=None
                    if i in ruined
                    else self._sampled(digests[-1:], one.sampling, int(work.ends[i])),
                )
            )
        return outputs

    async def batch_decode(self, inputs: Sequence[DecodeInput]) -> list[DecodeOutput]:
        self._require_running()
        for one in inputs:
            if one.input_ids.shape != (1, 1):
                raise InvalidInput(f"decode takes input_ids of shape [1, 1], not {list(one.input_ids.shape)}")
            self._check_sampling(one.sampling)
        ruined = await self._misbehave_alone([one.kv_cache.cache_id for one in inputs])
        work, computed = self._forward_inputs(inputs, [one.kv_cache for one in inputs])
        return [
            DecodeOutput(
                logits=self._nan() if i in ruined else self._logits(computed.digest[i : i + 1], one.logits),
                kv_cache=replace(one.kv_cache, num_tokens=int(work.ends[i])),
                sampled=None
                if i in ruined
                else self._sampled(computed.digest[i : i + 1], one.sampling, int(work.ends[i])),
            )
            for i, one in enumerate(inputs)
        ]

    def _check_sampling(self, params: SamplingParams | None) -> None:
        """Raises InvalidInput or Unsupported before anything is computed."""
        if params is None:
            return
        params.check_ids(self.vocab_size)
        if params.needs_history:
            raise Unsupported(
                "penalties, min_tokens and bad words of several tokens look back at the sequence: use unified_decode"
            )

    def _forward_inputs(
        self, inputs: Sequence[PrefillInput] | Sequence[DecodeInput], handles: Sequence[KvCacheHandle]
    ) -> tuple[Work, Computed]:
        """One forward over many inputs."""
        if len({handle.cache_id for handle in handles}) != len(handles):
            raise InvalidInput("a sequence occurs twice in one forward")
        ids = [np.asarray(one.input_ids.numpy(), np.int32).reshape(-1) for one in inputs]
        tables: tuple[NDArray[np.int32] | None, NDArray[np.int32] | None] = (None, None)
        if self.paged:
            tables = _pad([handle.block_tables for handle in handles], len(self.table.block_tables))
        work = Work(
            np.array([self._guest_row(handle.cache_id) for handle in handles], np.int32),
            np.array([one.pos_offset for one in inputs], np.int32),
            np.array([len(tokens) for tokens in ids], np.int32),
            np.concatenate([*ids, np.empty(0, np.int32)]),
            np.array([self._salt(one.adapter) for one in inputs], np.uint64),
            *tables,
        )
        return work, self._forward(work)

    def _drop_scratch(self, cache_id: int) -> None:
        row = self._guests.pop(cache_id, None)
        if row is not None:
            self._free_guests.append(row)
            self._clear_row(row)

    def _logits(self, digests: NDArray, mode: LogitsMode) -> Tensor | None:
        if mode is LogitsMode.NONE:
            return None
        rows = oracle.logits_rows(digests if mode is LogitsMode.ALL else digests[-1:], self.vocab_size)
        return Tensor.of(rows[None])

    def _nan(self) -> Tensor:
        return Tensor.of(np.full((1, 1, self.vocab_size), np.nan, np.float32))

    def _sampled(self, digest: NDArray, params: SamplingParams | None, position: int) -> SampledToken | None:
        if params is None:
            return None
        if oracle.needs_rows(params):
            return reference_sampler.sample(oracle.logits_rows(digest, self.vocab_size)[0], params, position)
        return self._verify(digest, params, np.empty(0, np.int32), np.array([position]))[0]


def _check_prefill(request: PrefillInput) -> None:
    """Raises InvalidInput or Unsupported for what a fake cannot honour."""
    shape = request.input_ids.shape
    if len(shape) != 2 or shape[0] != 1 or shape[1] < 1:
        raise InvalidInput(f"prefill takes input_ids of shape [1, L], not {list(shape)}")
    if request.kv_cache is None and request.pos_offset:
        raise InvalidInput("pos_offset must be 0 without a kv_cache")
    if request.want_attention_weights:
        raise Unsupported("the fakes have no attention weights")
    if request.attention_mask is not None and not request.attention_mask.numpy().all():
        raise Unsupported("the fakes honour no attention mask with zeros")
    plain = np.arange(request.pos_offset, request.pos_offset + shape[1])
    if request.position_ids is not None and (request.position_ids.numpy().reshape(-1) != plain).any():
        raise Unsupported("the fakes honour consecutive position_ids only")


def _pad(
    block_tables: Sequence[tuple[NDArray[np.int32], ...]], num_groups: int
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Ragged block tables as one array [groups, n, max_blocks] and lengths [groups, n]; a sequence without tables gets length -1:
    not kept."""
    lengths = np.full((num_groups, len(block_tables)), -1, np.int32)
    for i, tables in enumerate(block_tables):
        for group, table in enumerate(tables):
            lengths[group, i] = len(table)
    padded = np.zeros((num_groups, len(block_tables), max(int(lengths.max(initial=0)), 1)), np.int32)
    for i, tables in enumerate(block_tables):
        for group, table in enumerate(tables):
            padded[group, i, : len(table)] = table
    return padded, lengths
