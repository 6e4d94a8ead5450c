"""Checkpoints with an MTP head, and a reference of the head: the published formula around a decoder layer of transformers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from tests.executors.llm.models import Reference


@dataclass(frozen=True)
class HeadReference:
    """The model `ref` with its head: `fc`, `embed_norm` and `hidden_norm` before the layer, and `norm` behind it; `path` of the
    checkpoint with both."""

    path: Path
    ref: Reference
    text: Any
    layer: nn.Module
    fc: torch.Tensor
    embed_norm: torch.Tensor
    hidden_norm: torch.Tensor
    norm: torch.Tensor

    def drafts(self, tokens: list[int], count: int) -> list[int]:
        """The head's most likely guesses of what follows `tokens`, by torch."""
        ids = torch.tensor([tokens])
        with torch.no_grad():
            hidden = self.text(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
            following, found = ids[:, 1:], []
            while True:
                y = self._norm(self._layer(self._input(following, hidden)), self.norm)
                found.append(int(self.ref.model.lm_head(y[:, -1]).argmax(-1)))
                if len(found) == count:
                    return found
                # A guess takes what the head gave in place of the model's hidden state.
                hidden = torch.cat((hidden, y[:, -1:]), 1)
                following = torch.cat((following, torch.tensor([found[-1:]])), 1)

    def _input(self, token_ids: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        embedded = self._norm(self.text.embed_tokens(token_ids), self.embed_norm)
        return torch.cat((embedded, self._norm(hidden, self.hidden_norm)), -1) @ self.fc.T

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return (
            x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.text.config.rms_norm_eps) * (1 + weight)
        )

    def _layer(self, x: torch.Tensor) -> torch.Tensor:
        length = x.shape[1]
        positions = torch.arange(length)[None]
        mask = torch.full((length, length), -torch.inf).triu(1)[None, None]
        out = self.layer(x, position_embeddings=self.text.rotary_emb(x, positions), attention_mask=mask)
        return out[0] if isinstance(out, tuple) else out


Heads = Callable[[str, float | None], HeadReference]
"""Makes the checkpoint of a shape with a head, see `with_head`; the number is its `right`."""


def with_head(
    ref: Reference, folder: Path, *, right: float | None = None, apart: bool = False
) -> HeadReference:
    """Write the checkpoint of `ref` with a head of random weights beside it. `right`: scale of what the model's layers add, with
    a head that guesses what a model without layers would say; it is always right with 0. `apart`: experts as published
    checkpoints of Qwen3-Next have them, each in tensors of its own."""
    model = copy.deepcopy(ref.model)
    text = getattr(model.model, "language_model", model.model)
    torch.manual_seed(len(folder.name))
    layer = _random_layer(text)
    size = text.config.hidden_size
    norms = [torch.rand(size) - 0.5 for _ in range(3)]
    fc = torch.randn(size, 2 * size) * 1.2 / (2 * size) ** 0.5
    if right is not None:
        with torch.no_grad():
            for name, parameter in [*text.named_parameters(), *layer.named_parameters()]:
                if name.endswith(
                    ("o_proj.weight", "out_proj.weight", "down_proj.weight", "experts.down_proj")
                ):
                    parameter *= right if name.startswith("layers.") else 0.0
        fc = torch.cat((torch.eye(size), torch.zeros(size, size)), 1)
        norms = [torch.zeros(size), norms[1], text.norm.weight.detach().clone()]
    model.save_pretrained(folder)
    beside = {
        "mtp.fc.weight": fc,
        "mtp.pre_fc_norm_embedding.weight": norms[0],
        "mtp.pre_fc_norm_hidden.weight": norms[1],
        "mtp.norm.weight": norms[2],
    }
    for name, parameter in layer.named_parameters():
        beside |= (
            _apart(name, parameter.detach())
            if apart
            else {f"mtp.layers.0.{name}": parameter.detach().clone()}
        )
    tensors = load_file(folder / "model.safetensors")
    save_file({**tensors, **beside}, folder / "model.safetensors")
    return HeadReference(folder, Reference(folder, model), text, layer, fc, *norms)


def _random_layer(text: Any) -> nn.Module:
    """A layer as the model's last one with full attention, with weights of its own."""
    full = max(i for i, one in enumerate(text.config.layer_types) if one == "full_attention")
    layer = copy.deepcopy(text.layers[full])
    with torch.no_grad():
        for parameter in layer.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, 1.2 / parameter.shape[-1] ** 0.5)
            else:
                parameter.uniform_(-0.5, 0.5)
    layer.self_attn.layer_idx = 0
    return layer


def _apart(name: str, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
    """A parameter of the layer; of all experts in tensors of each."""
    if not name.startswith("mlp.experts."):
        return {f"mtp.layers.0.{name}": parameter.clone()}
    roles = ("gate_proj", "up_proj") if name.endswith("gate_up_proj") else ("down_proj",)
    return {
        f"mtp.layers.0.mlp.experts.{e}.{role}.weight": part.clone()
        for e, expert in enumerate(parameter)
        for role, part in zip(roles, expert.chunk(len(roles)), strict=True)
    }
