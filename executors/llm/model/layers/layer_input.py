"""`LayerInput`: what a layer of Gemma 4 adds of its input of each token, see `layer_inputs.py`."""

from __future__ import annotations

import torch

from executors.llm.model.config import DecoderConfig
from executors.llm.model.layers.activations import ACTIVATIONS, STEADY_ACTIVATIONS
from executors.llm.model.layers.base import LayerStep, Sublayer
from executors.llm.model.layers.norms import Norm
from executors.llm.model.linear import Linear
from executors.llm.model.places import NamedPlaces, of_linear


class LayerInput(Sublayer):
    """norm(projection(act(gate(x)) * input)), which is added to x behind the feed-forward."""

    def __init__(self, config: DecoderConfig, dtype: torch.dtype, device: torch.device) -> None:
        size, hidden = config.layer_input_size, config.hidden_size
        self._names = config.family.names
        self._activation = config.activation
        self._act = ACTIVATIONS[config.activation]
        self._gate = Linear(size, hidden, False, dtype, device)
        self._projection = Linear(hidden, size, False, dtype, device)
        self.norm = Norm(config.family.stream.norm, hidden, config.norm_eps, dtype, device)
        self.index = -1
        """Number of the layer; set by the decoder."""

    @property
    def linears(self) -> tuple[Linear, ...]:
        """See `Sublayer`."""
        return self._gate, self._projection

    def tensors(self) -> NamedPlaces:
        """See `Sublayer`."""
        yield from of_linear(self._gate, (self._names.layer_input_gate, -1))
        yield from of_linear(self._projection, (self._names.layer_input_projection, -1))

    def norms(self) -> NamedPlaces:
        """See `Sublayer`."""
        yield from self.norm.places(self._names.layer_input_norm)

    def be_steady(self) -> None:
        """See `Sublayer`."""
        self._act = STEADY_ACTIVATIONS[self._activation]

    def forward(self, x: torch.Tensor, step: LayerStep) -> torch.Tensor:
        """See `Sublayer`."""
        assert step.layer_inputs is not None
        return self.norm(self._projection(self._act(self._gate(x)) * step.layer_inputs[:, self.index]))
