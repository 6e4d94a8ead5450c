"""The device's work in a step, from the packed inputs to the tokens: two phases of calls, launched or captured one by one.

    forward   token ids or the pool's -> embedding, layers, norm -> rows that are sampled -> lm_head -> logits
    sample    logits, settings -> sampler -> pool, results

No call depends on values, allocates memory according to them or waits for them. Between the phases lie only `logits` and the
last token id of each sampled row, both in memory of their own: the host may bring more for the sampler while the forward runs.
A head that reads hidden states takes those of the sampled rows, where `forward` hands them to lm_head.
"""

from __future__ import annotations

import torch

from executors.kernels.lora_tiles import LoraTiles, tile_rows
from executors.llm.attention import groups
from executors.llm.attention.key_pieces import idle_pieces
from executors.llm.attention.packed import PackedAttention, StepMeta
from executors.llm.lora.device import DeviceRows, DeviceWeights
from executors.llm.model.api import Attend
from executors.llm.sampling import device_logprobs
from executors.llm.sampling.columns import PADDING, SamplingColumns
from executors.llm.sampling.device_sampler import DeviceSampler
from executors.llm.sampling.device_shaping import RowShaping
from executors.llm.sampling.row_masks import RowMasks, mask_words
from executors.llm.step.launched.graphs import Phases
from executors.llm.step.launched.inputs import (
    DeviceStep,
    DeviceTables,
    StepShape,
    cells_of,
    num_words,
    result_views,
    result_words,
)
from executors.llm.step.runner import ModelRunner


class DeviceProgram:
    """The calls and the memory that they share.

    `tables` of each group; `pool` int32, flat: the token pool, whose place `padding_dest` receives the tokens of padding;
    `shaping` int32 and `results` float32: the table of `device_shaping.py` and the results outside it; `masks` int32: that of
    `row_masks.py`; `inputs` int32: the packed inputs; `result` int32: tokens and flags of the step computed last.
    """

    def __init__(
        self, runner: ModelRunner, sampler: DeviceSampler, tables: tuple[DeviceTables, ...], pool: torch.Tensor, width: int,
        padding_dest: int, shaping: torch.Tensor, results: torch.Tensor,
    ) -> None:  # fmt: skip
        self.runner = runner
        self.sampler = sampler
        self.tables = tables
        self.pool = pool
        self.padding_dest = padding_dest
        self.shaping = shaping
        self._shaping_results = results
        self.adapters: DeviceWeights | None = None
        """LoRA adapters, if the executor has any."""
        self.inputs = torch.zeros(0, dtype=torch.int32, device=runner.device)
        self.masks = torch.zeros(0, mask_words(width), dtype=torch.int32, device=runner.device)
        self.result = torch.zeros(0, dtype=torch.int32, device=runner.device)
        self._last_ids = torch.zeros(0, dtype=torch.int32, device=runner.device)
        """The last token id before each sample of the step computed last."""
        self._logits: torch.Tensor | None = None
        self._width = width
        self._samples = 0
        attention = runner.attention
        self.packed = attention if isinstance(attention, PackedAttention) else None
        """The attention if it reads packed inputs; None if it has inputs of its own, in which case there are no graphs."""

    def reserve(self, words: int, samples: int, pieces: int, tile_pieces: int) -> None:
        """Reserve memory for steps of that many words of input, sampled rows and pieces of keys, of decodes and of tiles. Called
        before the first capture."""
        device = self.runner.device
        self.inputs = torch.zeros(words, dtype=torch.int32, device=device)
        self.result = torch.zeros(result_words(samples), dtype=torch.int32, device=device)
        self._last_ids = torch.zeros(samples, dtype=torch.int32, device=device)
        self.masks = torch.zeros(samples, self.masks.shape[1], dtype=torch.int32, device=device)
        self._samples = samples
        if self.packed is not None:
            self.packed.reserve(pieces, tile_pieces, self.runner.cache.of_group(0))

    def forward(self, step: DeviceStep, attend: Attend | None, blocks: int) -> None:
        """Compute the logits of the sampled rows of a step that is on the device. `attend`: attention that is not packed;
        otherwise `blocks` is the number of columns of the block tables to read."""
        shape = step.shape
        with self.runner.ranges("forward"):
            ids = self._token_ids(step)
            hidden = self.runner.forward_packed(
                ids, step["positions"], attend or self._attend(step, blocks), self._adapters(step)
            )
            if not shape.samples:
                return
            if shape.listed:
                torch.index_select(ids, 0, step["rows"], out=self._last_ids[: shape.samples])
                hidden = hidden.index_select(0, step["rows"])
            self.runner.model.logits(hidden, self.logits(hidden)[: shape.samples])

    def sample(self, step: DeviceStep) -> None:
        """Choose a token for each sampled row of the logits that `forward` computed last, and put it into the pool."""
        samples = step.shape.samples
        if not samples:
            return
        with self.runner.ranges("sample"):
            tokens, bad = result_views(self.result, samples)
            shaping = RowShaping(
                self.shaping, step["shaped"], step["ends"], self._last_ids[:samples], step["guessed"],
                self._shaping_results,
            )  # fmt: skip
            masks = RowMasks(self.masks, step["masked"])
            self.sampler.sample(self.logits()[:samples], _settings(step), tokens, bad, shaping, masks)
            self.pool.index_copy_(0, step["dest"], tokens)

    def logits(self, hidden: torch.Tensor | None = None) -> torch.Tensor:
        """Return the raw logits [samples, V] of the step computed last. With `hidden` states, return the tensor that the next
        logits are written to; it is made at the first step, because only the model knows the dtype."""
        if self._logits is None:
            assert hidden is not None
            one = self.runner.model.logits(hidden[:1])
            self._logits = one.new_empty(self._samples, one.shape[1])
        return self._logits

    def captured(self, shape: StepShape) -> Phases:
        """Return the work to capture for a shape: both phases over `inputs`, which hold only padding at first."""
        begin = self.inputs[: num_words(shape)]
        begin.copy_(self.padding(shape))
        step = DeviceStep(begin, shape)
        blocks = self.tables[0].tensor.shape[1]

        @torch.inference_mode()
        def forward() -> None:
            self.forward(step, None, blocks)

        @torch.inference_mode()
        def sample() -> None:
            self.sample(step)

        return Phases(forward, sample)

    def described(self, shape: StepShape, rows: torch.Tensor, most: int) -> torch.Tensor:
        """See `device_logprobs.described`; applies to the step of this shape that was computed last."""
        tokens, _ = result_views(self.result, shape.samples)
        return device_logprobs.described(self.logits()[: shape.samples], tokens, rows, most)

    def padding(self, shape: StepShape) -> torch.Tensor:
        """Return int32 words of a step that consists of padding."""
        words = torch.zeros(num_words(shape), dtype=torch.int32)
        step = DeviceStep(words, shape)
        step["source"].fill_(-1)
        for group in range(shape.groups):
            step[cells_of(group)].fill_(-1)
        step["slots"].fill_(self.tables[0].padding_slot)
        step["dest"].fill_(self.padding_dest)
        step["rows"].fill_(shape.tokens - 1)
        step["shaped"].fill_(-1)
        step["masked"].fill_(-1)
        step["lora_rows"].fill_(-1)
        step["lora_owners"].fill_(-1)
        step["temperature"].fill_(PADDING)
        step["top_p"].fill_(1.0)
        if shape.pieces:
            step.pieces.fill_(-1)
            step.pieces[: shape.decodes] = torch.from_numpy(idle_pieces(0, shape.decodes, 0))
        if shape.listed:
            step.pairs("tiles")[:, 0] = shape.items - 1
            step.tile_pieces.fill_(-1)
            step.pairs("decodes").copy_(torch.tensor([shape.items - 1, shape.tokens - 1]))
        return words

    def _token_ids(self, step: DeviceStep) -> torch.Tensor:
        """int32 [T]: ids that the host knows, and ids from the pool. A bad row may have left an arbitrary id there."""
        source, shape = step["source"], step.shape
        pending = self.pool.index_select(0, source.clamp_min(0))
        if shape.listed or not shape.samples:
            return torch.where(source >= 0, pending, step["token_ids"]).clamp_(0, self._width - 1)
        ids = self._last_ids[: shape.samples]  # each row is an item's last
        return torch.where(source >= 0, pending, step["token_ids"], out=ids).clamp_(0, self._width - 1)

    def _adapters(self, step: DeviceStep) -> DeviceRows | None:
        if not step.shape.lora_tiles:
            return None
        assert self.adapters is not None
        return self.adapters.bind(
            LoraTiles(step["lora_rows"], step["lora_owners"], tile_rows(step.shape.tokens))
        )

    def _attend(self, step: DeviceStep, blocks: int) -> Attend:
        assert self.packed is not None
        shape, cache = step.shape, self.runner.cache
        parts: dict[int, Attend] = {}
        for group in range(shape.groups):
            tables = self.tables[group].tensor[:, :blocks].index_select(0, step["slots"])
            meta = StepMeta(
                step[cells_of(group)], step["q_starts"], step["q_lens"], step["pos_offsets"], step["lengths"], tables,
                step.pairs("tiles"), step.pairs("decodes") if shape.listed else None, shape.decodes, step.pieces,
                step.tile_pieces,
            )  # fmt: skip
            parts[group] = self.packed.bind(meta, cache.of_group(group))
        return parts[0] if len(parts) == 1 else groups.joined(parts, cache.places)


def _settings(step: DeviceStep) -> SamplingColumns[torch.Tensor]:
    return SamplingColumns(step["temperature"], step["top_k"], step["top_p"], step["min_p"], step["u"])
