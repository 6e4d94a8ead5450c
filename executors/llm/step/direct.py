"""The calls on single sequences (`prefill`, `decode`, `forward_verify` and their batches) as packed forwards.

These calls do not use slots. Each call either brings its block table in its handle or keeps no KV.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from executors.contract import DecodeInput, DecodeOutput, LogitsMode, PrefillInput, PrefillOutput
from executors.contract.batch import KvCacheHandle, SampledToken, SamplingParams
from executors.contract.errors import InvalidInput, ItemFault, StepFailed, Unsupported
from executors.contract.tensor import Tensor
from executors.llm.lora.table import LoraTable
from executors.llm.memory.paged_kv import PagedKv
from executors.llm.sampling.edits import EditsBuilder, LogitEdits, Shaper
from executors.llm.sampling.sampler import SamplingTable, sample
from executors.llm.step.runner import ModelRunner
from executors.llm.step_arrays import StepArrays, pack_tables


class NoTokenSampled(StepFailed):
    """A row of logits is not finite, or the sampling settings forbid every token."""


@dataclass
class DirectItem:
    """One sequence's share of a direct forward. `logits_from`: the first of its rows that needs logits."""

    token_ids: np.ndarray
    pos_offset: int
    handle: KvCacheHandle | None
    logits_from: int
    sampling: SamplingParams | None
    rotary: np.ndarray | None = None
    adapter: str | None = None

    def __len__(self) -> int:
        return len(self.token_ids)


@dataclass
class DirectResult:
    """`logits` [rows, V] or None, `sampled` for the last rows if requested, `hidden` [len, hidden]."""

    hidden: torch.Tensor
    logits: torch.Tensor | None
    sampled: list[SampledToken]


RunDirect = Callable[[list[DirectItem], PagedKv], list[DirectResult]]
"""Computes a forward of items over a KV cache, and samples."""


class DirectRunner:
    """Packs direct calls into forwards. `max_model_len` and `logits_width` bound positions and token ids; `guard` makes what is
    called in place of its own forward."""

    def __init__(
        self, runner: ModelRunner, max_model_len: int, logits_width: int,
        guard: Callable[[RunDirect], RunDirect] | None = None,
    ) -> None:  # fmt: skip
        self._guard = guard
        self.runner = runner
        self.max_model_len = max_model_len
        self.logits_width = logits_width
        self.adapters: LoraTable | None = None
        """LoRA adapters, if the executor has any."""

    @torch.inference_mode()
    def prefill(self, inputs: Sequence[PrefillInput]) -> list[PrefillOutput]:
        """Compute all prompts in one forward. Prompts that keep no KV form a second forward over scratch memory.

        Raises InvalidInput, Unsupported, StepFailed.
        """
        items = [self._prefill_item(one) for one in inputs]
        results: dict[int, DirectResult] = {}
        for in_cache in (True, False):
            chosen = [i for i, one in enumerate(inputs) if (one.kv_cache is not None) == in_cache]
            if chosen:
                cache = self.runner.cache if in_cache else self._scratch([items[i] for i in chosen])
                results |= dict(zip(chosen, self._run([items[i] for i in chosen], cache), strict=True))
        return [_prefill_output(one, results[i]) for i, one in enumerate(inputs)]

    @torch.inference_mode()
    def decode(self, inputs: Sequence[DecodeInput]) -> list[DecodeOutput]:
        """Compute one token for each sequence, in one forward. Raises InvalidInput, StepFailed."""
        items = [self._decode_item(one) for one in inputs]
        results = self._run(items, self.runner.cache)
        return [_decode_output(one, result, 0) for one, result in zip(inputs, results, strict=True)]

    @torch.inference_mode()
    def verify(self, inputs: Sequence[DecodeInput]) -> list[DecodeOutput]:
        """Compute consecutive tokens of one sequence in one forward, with logits after each. Raises as decode."""
        items = [self._decode_item(one) for one in inputs]
        first, last = inputs[0], inputs[-1]
        for i, one in enumerate(inputs):
            if one.pos_offset != first.pos_offset + i or one.kv_cache.cache_id != first.kv_cache.cache_id:
                raise InvalidInput("forward_verify takes consecutive tokens of one sequence")
        ids = np.concatenate([item.token_ids for item in items])
        joined = DirectItem(ids, first.pos_offset, last.kv_cache, 0, first.sampling, adapter=first.adapter)
        result = self._run([joined], self.runner.cache)[0]
        return [_decode_output(one, result, i) for i, one in enumerate(inputs)]

    # -- checks ----------------------------------------------------------------------------------------------------------

    def _prefill_item(self, one: PrefillInput) -> DirectItem:
        if one.want_attention_weights:
            raise Unsupported("attention weights are unavailable: the kernels never hold a whole row of them")
        self._check_adapter(one.adapter)
        if one.attention_mask is not None:
            mask = one.attention_mask.numpy()
            if mask.shape != (1, one.pos_offset + one.sequence_length()):
                raise InvalidInput("attention_mask must have shape [1, pos_offset + L]")
            if not mask.all():
                raise Unsupported("attention_mask with zeros: leave padding out instead")
        if one.kv_cache is None and one.pos_offset:
            raise InvalidInput("pos_offset must be 0 without kv_cache")
        ids = self._ids(one.input_ids, one.pos_offset)
        rotary = None
        if one.position_ids is not None:
            rotary = one.position_ids.numpy().reshape(-1).astype(np.int64)
            if len(rotary) != len(ids) or rotary.min() < 0 or rotary.max() >= self.max_model_len:
                raise InvalidInput(f"position_ids must be [1, L] within 0..{self.max_model_len - 1}")
        self._check_sampling(one.sampling)
        needs_hidden = one.logits is not LogitsMode.NONE or one.sampling is not None
        first = 0 if one.logits is LogitsMode.ALL else len(ids) - 1 if needs_hidden else len(ids)
        return DirectItem(ids, one.pos_offset, one.kv_cache, first, one.sampling, rotary, one.adapter)

    def _decode_item(self, one: DecodeInput) -> DirectItem:
        self._check_adapter(one.adapter)
        ids = self._ids(one.input_ids, one.pos_offset)
        if len(ids) != 1:
            raise InvalidInput("decode takes one token: input_ids [1, 1]")
        self._check_sampling(one.sampling)
        needs_hidden = one.logits is not LogitsMode.NONE or one.sampling is not None
        return DirectItem(
            ids, one.pos_offset, one.kv_cache, 0 if needs_hidden else 1, one.sampling, adapter=one.adapter
        )

    def _check_adapter(self, adapter: str | None) -> None:
        if self.adapters is not None:
            self.adapters.check(adapter)
        elif adapter is not None:
            raise Unsupported(f"this executor cannot use adapter {adapter!r}")

    def _check_sampling(self, sampling: SamplingParams | None) -> None:
        if sampling is None:
            return
        sampling.check_ids(self.logits_width)
        if sampling.needs_history:
            raise Unsupported(
                "penalties, min_tokens and bad words of several tokens look back at the sequence: use unified_decode"
            )

    def _ids(self, tensor: Tensor, pos_offset: int) -> np.ndarray:
        if len(tensor.shape) != 2 or tensor.shape[0] != 1 or tensor.shape[1] < 1:
            raise InvalidInput(f"input_ids must be [1, L] with L at least 1, not {list(tensor.shape)}")
        ids = tensor.numpy().reshape(-1).astype(np.int64)
        if ids.min() < 0 or ids.max() >= self.logits_width:
            raise InvalidInput(f"token ids must be within 0..{self.logits_width - 1}")
        if pos_offset < 0 or pos_offset + len(ids) > self.max_model_len:
            raise InvalidInput(f"positions must be within 0..{self.max_model_len - 1} (max_model_len)")
        return ids

    # -- the forward -----------------------------------------------------------------------------------------------------

    def _scratch(self, items: list[DirectItem]) -> PagedKv:
        """Allocate KV for these items alone, in their order; it is freed with the call."""
        size = self.runner.cache.block_size
        begin = 0
        for item in items:
            count = -(-len(item) // size)
            blocks = np.arange(begin, begin + count, dtype=np.int32)
            item.handle = KvCacheHandle(-1, (blocks,) * len(self.runner.cache.caches))
            begin += count
        return self.runner.cache.scratch(begin)

    def _run(self, items: list[DirectItem], cache: PagedKv) -> list[DirectResult]:
        return (
            self._forward(items, cache) if self._guard is None else self._guard(self._forward)(items, cache)
        )

    def _forward(self, items: list[DirectItem], cache: PagedKv) -> list[DirectResult]:
        if self.runner.states is not None and cache is self.runner.cache:
            raise Unsupported(
                "the model's layers have a state per sequence, which a handle does not name: use unified_decode"
            )
        step = self._step(items, cache)
        hidden = self.runner.forward(step, cache=cache)
        starts = step.q_starts.tolist()
        rows = np.concatenate(
            [np.arange(s + item.logits_from, s + len(item)) for s, item in zip(starts, items, strict=True)]
        )
        logits = self.runner.logits(hidden, rows) if len(rows) else None
        results: list[DirectResult] = []
        begin = 0
        for start, item in zip(starts, items, strict=True):
            count = len(item) - item.logits_from
            part = logits[begin : begin + count] if logits is not None and count else None
            results.append(DirectResult(hidden[start : start + len(item)], part, []))
            begin += count
        self._sample(items, results)
        return results

    def _step(self, items: list[DirectItem], cache: PagedKv) -> StepArrays:
        handles, lengths = [], []
        for item in items:
            if item.handle is None or len(item.handle.block_tables) != len(cache.caches):
                raise InvalidInput(
                    f"kv_cache must bring {len(cache.caches)} block table(s), one of each group"
                )
            handles.append(item.handle)
            lengths.append(item.pos_offset + len(item))
        packed, *more_tables = (
            pack_tables(
                [np.asarray(one.block_tables[group]) for one in handles],
                lengths,
                cache.block_size,
                num_blocks,
            )
            for group, num_blocks in enumerate(cache.num_blocks)
        )
        rotary = None
        if any(item.rotary is not None for item in items):
            own = [np.arange(item.pos_offset, item.pos_offset + len(item)) for item in items]
            rotary = np.concatenate(
                [o if it.rotary is None else it.rotary for it, o in zip(items, own, strict=True)]
            )
        counts = np.array([len(item) for item in items], np.int64)
        adapters = None
        if self.adapters is not None:
            adapters = self.adapters.rows([item.adapter for item in items], counts)
        return StepArrays(
            np.concatenate([item.token_ids for item in items]),
            counts,
            np.array([item.pos_offset for item in items], np.int64),
            packed,
            rotary,
            adapters=adapters,
            more_tables=tuple(more_tables),
        )

    def _sample(self, items: list[DirectItem], results: list[DirectResult]) -> None:
        """Sample the last row of each item that has sampling set, or all rows of a verification."""
        drawn = [i for i, item in enumerate(items) if item.sampling is not None]
        if not drawn:
            return
        parts: list[torch.Tensor] = []
        owners: list[int] = []
        positions: list[int] = []
        for i in drawn:
            item, logits = items[i], results[i].logits
            assert logits is not None  # sampling asks for at least the last row
            parts.append(logits)
            owners += [i] * len(logits)
            positions += range(item.pos_offset + item.logits_from + 1, item.pos_offset + len(item) + 1)
        settings = [items[i].sampling for i in drawn]
        index = np.searchsorted(np.array(drawn), np.array(owners))
        rows = SamplingTable.of([one for one in settings if one is not None]).rows(
            index, np.array(positions, np.int64)
        )
        sampled = sample(torch.cat(parts), rows, self._edits([items[i].sampling for i in owners]))
        if sampled.bad.any():
            raise NoTokenSampled(f"{ItemFault.NOT_FINITE.message}, or {ItemFault.NOTHING_LEFT.message}")
        for row, owner in enumerate(owners):
            token = sampled.described.get(row) or SampledToken(int(sampled.tokens[row]))
            results[owner].sampled.append(token)

    def _edits(self, settings: Sequence[SamplingParams | None]) -> LogitEdits | None:
        """Collect the logit changes of rows with these settings. None of the settings depends on earlier tokens."""
        builder = EditsBuilder()
        for row, one in enumerate(settings):
            if one is not None and one.edits_logits:
                builder.add(row, Shaper(one, None))
        return builder.build()


def _tensor(values: torch.Tensor) -> Tensor:
    """float32 [1, rows, columns] of a [rows, columns] tensor."""
    return Tensor.of(values.float().cpu().numpy()[None])


def _moved(handle: KvCacheHandle, num_tokens: int) -> KvCacheHandle:
    return replace(handle, num_tokens=num_tokens)


def _prefill_output(one: PrefillInput, result: DirectResult) -> PrefillOutput:
    logits = None if one.logits is LogitsMode.NONE or result.logits is None else _tensor(result.logits)
    handle = one.kv_cache
    if handle is not None:
        handle = _moved(handle, one.pos_offset + one.sequence_length())
    hidden = _tensor(result.hidden) if one.want_hidden_states else None
    return PrefillOutput(logits, handle, hidden, None, result.sampled[-1] if result.sampled else None)


def _decode_output(one: DecodeInput, result: DirectResult, row: int) -> DecodeOutput:
    logits = None
    if one.logits is not LogitsMode.NONE and result.logits is not None:
        logits = _tensor(result.logits[row : row + 1])
    sampled = result.sampled[row] if result.sampled else None
    return DecodeOutput(logits, _moved(one.kv_cache, one.pos_offset + 1), sampled=sampled)
