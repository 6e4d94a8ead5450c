"""What stands on an encoder's hidden states: a classification head, and linear layers of vectors. All in float32: they are small,
and their products are the result."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F

from executors.llm.encoder.config import HeadConfig
from executors.llm.encoder.modules import DenseConfig

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "identity": lambda x: x,
    "tanh": torch.tanh,
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
}
"""Activations of `DenseConfig` and `HeadConfig`."""


class Dense:
    """y = act(W x + b), float32 [n, inputs] -> float32 [n, outputs]. `bias` None: there is none."""

    def __init__(self, inputs: int, outputs: int, bias: bool, activation: str, device: torch.device) -> None:
        self.weight = torch.empty(outputs, inputs, device=device)
        self.bias = torch.empty(outputs, device=device) if bias else None
        self._act = ACTIVATIONS[activation]

    @staticmethod
    def of(config: DenseConfig, device: torch.device) -> Dense:
        """Return the layer of a configuration, its weights not yet filled."""
        return Dense(config.inputs, config.outputs, config.bias, config.activation, device)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """See the class."""
        return self._act(F.linear(x, self.weight, self.bias))

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Weights by the endings of their names."""
        yield "weight", self.weight
        if self.bias is not None:
            yield "bias", self.bias


class ClassificationHead:
    """Labels' logits of a text: out(act(dense(x))) of its first token, as BERT's pooler and classifier, and RoBERTa's head
    (Devlin et al., 2018; Liu et al., 2019); ModernBERT has a norm between them, and may take the mean (Warner et al., 2024). A
    GGUF file may have the last layer alone."""

    def __init__(self, hidden: int, labels: int, config: HeadConfig, device: torch.device) -> None:
        first, _ = config.names
        self.dense = Dense(hidden, hidden, config.bias, config.activation, device) if first else None
        self.out = Dense(hidden, labels, True, "identity", device)
        self.norm = torch.empty(hidden, device=device) if config.norm else None
        self.norm_bias = torch.empty(hidden, device=device) if config.norm and config.norm_bias else None
        self.config = config

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """float32 [n, hidden], what `config.pooling` makes of each text -> float32 [n, labels]."""
        if self.dense is not None:
            x = self.dense(x)
        if self.norm is not None:
            x = F.layer_norm(x, self.norm.shape, self.norm, self.norm_bias, self.config.norm_eps)
        return self.out(x)

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """All weights by their names in files."""
        for name, layer in zip(self.config.names, (self.dense, self.out), strict=True):
            for ending, tensor in () if layer is None else layer.tensors():
                yield f"{name}.{ending}", tensor
        for ending, norm in (("weight", self.norm), ("bias", self.norm_bias)):
            if norm is not None:
                yield f"{self.config.norm}.{ending}", norm
