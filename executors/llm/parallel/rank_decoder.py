"""`RankDecoder`: the part of a decoder that one rank has, which asks the other ranks for what it lacks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import torch

from executors.kernels.cpu import BLOCK, CpuKernels
from executors.llm.model.api import ForwardInput
from executors.llm.model.caches import CacheSpec, KvSpec
from executors.llm.model.config import ATTENTION, DecoderConfig
from executors.llm.model.decoder import Decoder
from executors.llm.model.fp8 import Fp8Plan
from executors.llm.model.layers.attention import Attention
from executors.llm.model.layers.layer import Layer
from executors.llm.model.layers.mlp import Mlp
from executors.llm.model.layers.shared_experts import SharedExperts
from executors.llm.model.linear import Linear, Packing, StoredFormat
from executors.llm.model.places import Place
from executors.llm.parallel.ranks import Ranks
from executors.llm.parallel.shard import Shard, routed
from executors.llm.parallel.share import RankShare
from executors.llm.parallel.state_shares import STATEFUL


class RankDecoder(Decoder):
    """Hidden states are the same on all ranks of a stage, after every sublayer. Only the first stage has logits; on others
    `logits` are zeros, and hidden states those of the stage's last layer."""

    alone = False

    def __init__(
        self, shard: Shard, ranks: Ranks | None, dtype: torch.dtype, device: torch.device, kernels: CpuKernels | None = None,
        quantization: str | None = None, fp8: Fp8Plan | None = None,
        each_layer: Callable[[Decoder, int, Layer], None] | None = None,
        stored: Mapping[str, StoredFormat] | None = None,
    ) -> None:  # fmt: skip
        """`ranks` None: for its sizes only."""
        self.shard = shard
        self._ranks = ranks
        self.cuts = shard.cuts
        self.elsewhere = shard.elsewhere
        self.first_layer = shard.first_layer
        self.share = RankShare(shard, lambda: self.ranks)

        def sized(decoder: Decoder, index: int, layer: Layer) -> None:
            self._give_whole_inputs(layer)
            if each_layer is not None:
                each_layer(decoder, index, layer)

        super().__init__(shard.config, dtype, device, kernels, quantization, fp8, sized, stored)

    def _give_whole_inputs(self, layer: Layer) -> None:
        """Make the second matrices whose input is joined, which have the columns of all ranks."""
        hidden = self.config.hidden_size
        if self.shard.attention == "join" and isinstance(layer.mixer, Attention):
            layer.attention.o = Linear(hidden, self.whole.q_size, self.config.o_bias, self.dtype, self.device)
        if self.shard.mlp == "join" and isinstance(layer.feed_forward, Mlp):
            inner = self.whole.intermediate_size
            layer.feed_forward.down = Linear(hidden, inner, self.config.mlp_bias, self.dtype, self.device)

    @property
    def ranks(self) -> Ranks:
        """The ranks that it asks."""
        assert self._ranks is not None, "made without other ranks"
        return self._ranks

    @property
    def whole(self) -> DecoderConfig:
        """See `Decoder`."""
        return self.shard.whole

    @property
    def cache_specs(self) -> tuple[CacheSpec, ...]:
        """See `Decoder`. The windows of all stages decide which groups of blocks there are."""
        windows = tuple(layer.window for layer in self.whole.layers if layer.mixer == ATTENTION)
        specs = super().cache_specs
        return tuple(replace(one, model_windows=windows) if isinstance(one, KvSpec) else one for one in specs)

    def num_parameters(self) -> int:
        """See `Decoder`; of the whole model."""
        return self.shard.num_parameters

    def places(self) -> dict[str, Place]:
        """See `Decoder`; only what this rank has."""
        places = super().places()
        if self.shard.is_first:
            return places
        names = self.config.family.names
        ends = tuple(
            f"{name}." for name in (names.embed, names.positions, names.lm_head, names.final_norm) if name
        )
        return {name: place for name, place in places.items() if not name.startswith(ends)}

    def linears(self) -> list[Linear]:
        """See `Decoder`."""
        linears = super().linears()
        return linears if self.shard.is_first else linears[:-1]

    def packing(self, quantization: str | None) -> Iterator[tuple[Linear, Packing]]:
        """See `Decoder`. The whole matrix says whether its columns are no multiple of 32."""
        odd = set()
        kinds = [layer.feed_forward for layer in self.layers]
        if self.whole.intermediate_size % BLOCK:
            odd = {id(one.down) for one in kinds if isinstance(one, Mlp)}
        moe = self.whole.moe
        if moe is not None and moe.intermediate_size % BLOCK:
            odd |= {
                id(expert.down) for one in map(routed, kinds) if one is not None for expert in one.experts
            }
        if moe is not None and moe.shared_size % BLOCK:
            odd |= {id(one.shared.down) for one in kinds if isinstance(one, SharedExperts)}
        if self.shard.states.columns % BLOCK:
            odd |= {id(layer.mixer.outward) for layer in self.layers if isinstance(layer.mixer, STATEFUL)}
        for linear, how in super().packing(quantization):
            yield linear, Packing("int8", how.gated) if how.kind == "int4" and id(linear) in odd else how

    # -- the forward -----------------------------------------------------------------------------------------------------

    def look_up(self, token_ids: torch.Tensor) -> torch.Tensor:
        """See `Decoder`. Each rank has the embeddings of some tokens."""
        begin, end = self.shard.vocabulary
        own = token_ids - begin
        absent = (own < 0) | (own >= end - begin)
        rows = super().look_up(own.clamp(0, end - begin - 1))
        return self.ranks.sum(rows.masked_fill(absent[:, None], 0.0)).to(self.dtype)

    def _embedded(self, inputs: ForwardInput) -> torch.Tensor:
        if self.shard.is_first:
            return super()._embedded(inputs)
        like = torch.empty(
            len(inputs.token_ids), self.config.hidden_size, dtype=self.dtype, device=self.device
        )
        return self.ranks.take_over(like)

    def _finished(self, x: torch.Tensor) -> torch.Tensor:
        if self.ranks.stages > 1:
            self.ranks.pass_on(x)
            if not self.shard.is_first:
                return x
            x = self.ranks.take_over(x)
        return super()._finished(x)

    # -- logits ----------------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """See `Decoder`; of all tokens, on all ranks of the first stage."""
        if self.shard.is_first:
            logits = self.ranks.join(super().logits(hidden), self.shard.vocabulary_widths)
        else:
            logits = hidden.new_zeros(len(hidden), self.whole.vocab_size)
        return logits if out is None else out.copy_(logits)

    @property
    def writes_logits(self) -> bool:
        """See `Decoder`."""
        return False

    @torch.inference_mode()
    def logits_for_sampling(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """See `Decoder`."""
        return self.logits(hidden), None
