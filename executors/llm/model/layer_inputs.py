"""`LayerInputs`: what each layer gets of a token beside the residual stream (Gemma 4's per-layer embeddings).

    (norm(projection(x) / sqrt(hidden)) + sqrt(size) table[token]) / sqrt(2)        x: the scaled embedding

The table is larger than all layers of a small model together, and of each token one row is read: see `RowTable`.
"""

from __future__ import annotations

import torch

from executors.llm.model.config import DecoderConfig
from executors.llm.model.layers.norms import Norm
from executors.llm.model.linear import Linear
from executors.llm.model.places import NamedPlaces, Place, of_linear
from executors.llm.model.row_table import RowTable


class LayerInputs:
    """The parameters, allocated but not filled, and their product."""

    def __init__(self, config: DecoderConfig, dtype: torch.dtype, device: torch.device) -> None:
        size, hidden = config.layer_input_size, config.hidden_size
        self._size = size
        self._names = config.family.names
        columns = config.num_layers * size
        self.table = RowTable(config.layer_input_vocab, columns, dtype, device)
        self.projection = Linear(columns, hidden, False, dtype, device)
        self.norm = Norm(config.family.stream.norm, size, config.norm_eps, dtype, device)
        # A root is a tensor of the embedding's dtype there, as that of the embedding is.
        self.root = float(torch.tensor(size**0.5).to(dtype))
        self.projected = hidden**-0.5
        """Factor of what is projected; `root` is that of rows of the table."""

    def places(self) -> NamedPlaces:
        """Yield the places of the checkpoint's tensors."""
        yield f"{self._names.layer_embed}.weight", Place(self.table.weight)
        yield from of_linear(self.projection, (self._names.layer_projection, -1))
        yield from self.norm.places(self._names.layer_projection_norm)

    def __call__(self, token_ids: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        """Return [T, layers, size] for tokens [T], given what the first layer gets, [T, hidden]."""
        rows = self.table.look_up(token_ids) * self.root
        shape = len(token_ids), -1, self._size
        projected = self.norm((self.projection(embedded) * self.projected).view(shape))
        return (projected + rows.view(shape)) * 2.0**-0.5
