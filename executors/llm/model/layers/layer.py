"""`Layer`: a mixer and a feed-forward, each with norms around it and a residual."""

from __future__ import annotations

import torch

from executors.llm.model.caches import LayerMemory
from executors.llm.model.config import DecoderConfig, LayerConfig
from executors.llm.model.layers.attention import Attention
from executors.llm.model.layers.base import LayerStep, Sublayer
from executors.llm.model.layers.kinds import FEED_FORWARDS, MIXERS
from executors.llm.model.layers.layer_input import LayerInput
from executors.llm.model.layers.norms import Norm
from executors.llm.model.linear import Linear
from executors.llm.model.places import NamedPlaces, Place


class Layer:
    """x + norm(mixer(norm(x))), then the same with the feed-forward. The family's names say which norms there are. Then, where
    the model has such, the layer's input of each token is added, and all is multiplied by the layer's scalar."""

    def __init__(
        self, config: DecoderConfig, layer: LayerConfig, dtype: torch.dtype, device: torch.device
    ) -> None:
        names = config.family.names

        def norm(name: str) -> Norm | None:
            if not name:
                return None
            return Norm(config.family.stream.norm, config.hidden_size, config.norm_eps, dtype, device)

        self.config = layer
        self.names = names
        self.residual_scale = config.residual_scale
        self.attn_norm = norm(names.attn_norm)
        self.attn_post_norm = norm(names.attn_post_norm)
        self.mixer = MIXERS[layer.mixer](config, layer, dtype, device)
        self.feed_forward = FEED_FORWARDS[layer.feed_forward](config, layer, dtype, device)
        self.mlp_norm = None if self.feed_forward.norms_input else norm(names.mlp_norm)
        self.mlp_post_norm = norm(names.mlp_post_norm)
        self.layer_input = LayerInput(config, dtype, device) if config.layer_input_size else None
        self.scalar = torch.empty(1, dtype=dtype, device=device) if names.layer_scalar else None

    @property
    def attention(self) -> Attention:
        """The mixer of a layer with attention."""
        assert isinstance(self.mixer, Attention)
        return self.mixer

    @property
    def linears(self) -> tuple[Linear, ...]:
        """Linear layers that can be packed."""
        return tuple(linear for sublayer in self.sublayers for linear in sublayer.linears)

    @property
    def sublayers(self) -> tuple[Sublayer, ...]:
        """All sublayers, in their order."""
        last = () if self.layer_input is None else (self.layer_input,)
        return self.mixer, self.feed_forward, *last

    def adapted_linears(self) -> tuple[Linear, ...]:
        """The linear layers that LoRA adapters may change: those of the mixer (of attention qkv and o), and of an MLP without
        experts gate and up, and down."""
        return *self.mixer.adapted, *self.feed_forward.adapted

    def memory(self) -> LayerMemory | None:
        """Return what the layer keeps between steps."""
        return self.mixer.memory()

    def tensors(self) -> NamedPlaces:
        """Yield the places of the checkpoint's tensors: matrices, then norms."""
        names = self.names
        for sublayer in self.sublayers:
            yield from sublayer.tensors()
        norms = (
            (self.attn_norm, names.attn_norm),
            (self.attn_post_norm, names.attn_post_norm),
            (self.mlp_norm, names.mlp_norm),
            (self.mlp_post_norm, names.mlp_post_norm),
        )
        for norm, name in norms:
            if norm is not None:
                yield from norm.places(name)
        for sublayer in self.sublayers:
            yield from sublayer.norms()
        if self.scalar is not None:
            yield names.layer_scalar, Place(self.scalar)

    def head_norms(self) -> tuple[str, ...]:
        """Return which names belong to tensors that are broadcast over heads."""
        return *self.mixer.head_norms(), *self.feed_forward.head_norms()

    def be_steady(self) -> None:
        """See `Decoder.be_steady`."""
        for sublayer in self.sublayers:
            sublayer.be_steady()

    def forward(self, x: torch.Tensor, step: LayerStep) -> torch.Tensor:
        """[T, hidden] -> [T, hidden]."""
        out = self.mixer.forward(x if self.attn_norm is None else self.attn_norm(x), step)
        x = x + self._scaled(out if self.attn_post_norm is None else self.attn_post_norm(out))
        out = self.feed_forward.forward(x if self.mlp_norm is None else self.mlp_norm(x), step)
        x = x + self._scaled(out if self.mlp_post_norm is None else self.mlp_post_norm(out))
        if self.layer_input is not None:
            x = x + self.layer_input.forward(x, step)
        return x if self.scalar is None else x * self.scalar

    def _scaled(self, out: torch.Tensor) -> torch.Tensor:
        """Scale the output of a sublayer before it is added to the residual stream."""
        return out if self.residual_scale == 1.0 else out * self.residual_scale
