"""`MtpHead`: the head of a checkpoint that guesses the token after the next one (multi-token prediction).

    x = fc(cat(norm_e(embed(token p + 1)), norm_h(hidden p)))      hidden p: the model's, after its final norm
    y = norm(layer(x))                                             the layer has full attention, over the head's own KV
    logits of token p + 2 = lm_head(y)                             embedding and lm_head are the model's own

The guess after that takes y in place of a hidden state of the model, at position p + 1. Source of the formula: the heads of
Qwen3-Next and Qwen3.5 as vLLM's models Qwen3NextMTP and Qwen3_5MTP compute them. That hidden states come after the final norm
is measured in pull request 24025 of llama.cpp and 1402 of LightLLM.

A row has the position p of its hidden state, for rotation and for its place in KV.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from executors.llm.model import parameters as naming
from executors.llm.model.api import ForwardInput, FusedForward
from executors.llm.model.decoder import Decoder
from executors.llm.model.layers.norms import Norm
from executors.llm.model.linear import Linear, Packing, StoredFormat
from executors.llm.model.mtp_config import head_config
from executors.llm.model.places import NamedPlaces, Place, of_linear


class MtpHead(Decoder):
    """A decoder of one layer that gets hidden states of `model` beside tokens (`ForwardInput.hidden`), and has the embedding,
    the rotary tables and the lm_head of that model. Its parameters are allocated but not filled, as a decoder's are."""

    mtp_used = True

    def __init__(self, model: Decoder, stored: Mapping[str, StoredFormat] | None = None) -> None:
        """`stored`: see `Decoder`. Raises ConfigError as `head_config`."""
        # Kernels come last: they pack what this class adds, too.
        super().__init__(head_config(model.config), model.dtype, model.device)
        config, dtype, device = self.config, model.dtype, model.device
        norm = config.family.stream.norm
        self._model = model
        self.fc = Linear(config.hidden_size, 2 * config.hidden_size, False, dtype, device)
        self.embed_norm = Norm(norm, config.hidden_size, config.norm_eps, dtype, device)
        self.hidden_norm = Norm(norm, config.hidden_size, config.norm_eps, dtype, device)
        self.kv_dtype = model.kv_dtype
        self.quantization, self.kernels = model.quantization, model.kernels
        self.keeps_stored = model.keeps_stored and bool(stored)
        if self.kernels is not None:
            self._reserve(self.kernels, stored if stored and self.keeps_stored else {})

    def packing(self, quantization: str | None) -> Iterator[tuple[Linear, Packing]]:
        """See `Decoder`. The last one is the decoder's own head, which is the model's here."""
        *of_layers, (_, how) = super().packing(quantization)
        yield from of_layers
        yield self.fc, how

    def linears(self) -> list[Linear]:
        """See `Decoder`."""
        return [*super().linears()[:-1], self.fc]

    def places(self) -> dict[str, Place]:
        """See `Decoder`."""
        return dict(self._places())

    def _places(self) -> NamedPlaces:
        begin = self.config.family.mtp
        yield from of_linear(self.fc, (f"{begin}fc", -1))
        yield from self.embed_norm.places(f"{begin}pre_fc_norm_embedding")
        yield from self.hidden_norm.places(f"{begin}pre_fc_norm_hidden")
        yield from self.final_norm.places(f"{begin}norm")
        for index, layer in enumerate(self.layers):
            yield from naming.of_layer(self, index, layer)

    def parameters(self) -> dict[str, torch.Tensor]:
        """See `Decoder`."""
        return {name: place.tensor for name, place in self._places()}

    def owns(self, name: str) -> bool:
        """See `Decoder`."""
        return name.startswith(self.config.family.mtp)

    def prepare(self, max_model_len: int) -> None:
        """Take the model's rotary tables, which have as many positions at least."""
        self.rotary, self.query_factors = self._model.rotary, self._model.query_factors

    def fuse(self, forward: FusedForward) -> None:
        """Does nothing: a fused forward begins with the embedding."""

    def _embedded(self, inputs: ForwardInput) -> torch.Tensor:
        assert inputs.hidden is not None
        embedded = self.embed_norm(self._model.look_up(inputs.token_ids))
        return self.fc(torch.cat((embedded, self.hidden_norm(inputs.hidden)), -1))

    def logits(self, hidden: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """See `Decoder`: with the model's lm_head."""
        return self._model.logits(hidden, out)

    def logits_for_sampling(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """See `Decoder`: with the model's lm_head."""
        return self._model.logits_for_sampling(hidden)
