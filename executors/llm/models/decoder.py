"""The generic decoder: every family of `families.py` runs through this one forward.

    embed -> [ norm -> qkv -> (qk norm) -> rotate -> attention -> o -> + -> norm -> gate/up -> act -> down -> + ] -> norm

q, k and v are one linear, gate and up another: fewer, fatter calls. Attention is not done here: the runner hands in
`attend`, which knows where the sequences' keys and values lie.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F

from executors.llm.linear import Linear, can_pack
from executors.llm.models.config import DecoderConfig
from executors.llm.rope import rotary_table, rotate

Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""(layer, q [T, heads, head_dim], k, v [T, kv_heads, head_dim]) -> [T, heads, head_dim]; writes k and v to the cache."""


@dataclass(frozen=True, slots=True)
class ForwardInput:
    """The packed tokens of a step. `token_ids` and `positions` int64 [T] on the model's device."""

    token_ids: torch.Tensor
    positions: torch.Tensor
    attend: Attend


@dataclass(frozen=True, slots=True)
class KvSpec:
    """What the model stores per token: `num_layers` x keys and values of [num_kv_heads, head_dim]."""

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device

    def bytes_per_token(self) -> int:
        """Bytes of keys and values of one token over all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * self.dtype.itemsize


@runtime_checkable
class DecoderOnlyLLM(Protocol):
    """What LlmExecutor asks of a model. One with `unified_forward` too runs one forward per step."""

    @property
    def kv_spec(self) -> KvSpec:
        """Shape of the KV the model needs."""

    def prefill(self, inputs: ForwardInput) -> torch.Tensor:
        """Hidden states [T, hidden] of the tokens of ONE sequence."""

    def batch_decode(self, inputs: ForwardInput) -> torch.Tensor:
        """Hidden states [T, hidden] of one token each of T sequences."""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [rows, width] of hidden states [rows, hidden], in the model's dtype."""


@runtime_checkable
class UnifiedModel(DecoderOnlyLLM, Protocol):
    """A model that computes any mix of prefill chunks and decode steps in one forward."""

    def unified_forward(self, inputs: ForwardInput) -> torch.Tensor:
        """Hidden states [T, hidden] of all tokens of all sequences."""


class _Layer:
    """One block's parameters."""

    def __init__(self, config: DecoderConfig, dtype: torch.dtype, device: torch.device) -> None:
        hidden, inner = config.hidden_size, config.intermediate_size
        self.attn_norm = torch.empty(hidden, dtype=dtype, device=device)
        self.qkv = Linear(config.q_size + 2 * config.kv_size, hidden, config.qkv_bias, dtype, device)
        self.o = Linear(hidden, config.q_size, config.o_bias, dtype, device)
        self.mlp_norm = torch.empty(hidden, dtype=dtype, device=device)
        self.gate_up = Linear(2 * inner, hidden, config.mlp_bias, dtype, device)
        self.down = Linear(hidden, inner, config.mlp_bias, dtype, device)
        # Queries and keys are normed in one call: a row of weights per head, the same for all heads of a kind.
        heads = config.num_heads + config.num_kv_heads
        self.qk_norm = (
            torch.empty(heads, config.head_dim, dtype=dtype, device=device) if config.family.qk_norm else None
        )


class Decoder:
    """A decoder-only transformer whose parameters are allocated, not filled: see `weights.py` and `parameters()`.

    `max_model_len` tokens of rotary table are made. Memory of the parameters is not touched before they are loaded.
    """

    def __init__(
        self, config: DecoderConfig, dtype: torch.dtype, device: torch.device, max_model_len: int
    ) -> None:
        self.config = config
        self.dtype = dtype
        self.device = device
        self.embed = torch.empty(config.vocab_size, config.hidden_size, dtype=dtype, device=device)
        self.layers = [_Layer(config, dtype, device) for _ in range(config.num_layers)]
        self.final_norm = torch.empty(config.hidden_size, dtype=dtype, device=device)
        self.lm_head = Linear(
            0 if config.tied else config.vocab_size, config.hidden_size, False, dtype, device
        )
        if config.tied:
            self.lm_head.weight = self.embed
        self.rotary = rotary_table(config.rope, config.head_dim, max_model_len, device).to(dtype)

    @property
    def kv_spec(self) -> KvSpec:
        """Shape of the KV the model needs."""
        c = self.config
        return KvSpec(c.num_layers, c.num_heads, c.num_kv_heads, c.head_dim, self.dtype, self.device)

    @torch.inference_mode()
    def unified_forward(self, inputs: ForwardInput) -> torch.Tensor:
        """Hidden states [T, hidden] after the final norm, for any mix of sequences."""
        c = self.config
        width, eps = (c.hidden_size,), c.norm_eps
        rotary = self.rotary.index_select(0, inputs.positions)
        x = self.embed.index_select(0, inputs.token_ids)
        for index, layer in enumerate(self.layers):
            normed = F.rms_norm(x, width, layer.attn_norm, eps)
            x = x + self._attention(index, layer, normed, rotary, inputs.attend)
            normed = F.rms_norm(x, width, layer.mlp_norm, eps)
            gate, up = layer.gate_up(normed).chunk(2, -1)
            x = x + layer.down(F.silu(gate) * up)
        return F.rms_norm(x, width, self.final_norm, eps)

    # One forward serves all three; having them lets a model without a unified forward take this one's place.
    prefill = unified_forward
    batch_decode = unified_forward

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [rows, vocabulary] of hidden states [rows, hidden]."""
        return self.lm_head(hidden)

    def _attention(
        self, index: int, layer: _Layer, x: torch.Tensor, rotary: torch.Tensor, attend: Attend
    ) -> torch.Tensor:
        c = self.config
        heads = layer.qkv(x).view(-1, c.num_heads + 2 * c.num_kv_heads, c.head_dim)
        qk, v = heads[:, : -c.num_kv_heads], heads[:, -c.num_kv_heads :]
        if layer.qk_norm is not None:
            qk = F.rms_norm(qk, (c.head_dim,), None, c.norm_eps) * layer.qk_norm
        qk = rotate(qk, rotary)
        out = attend(index, qk[:, : c.num_heads], qk[:, c.num_heads :], v)
        return layer.o(out.reshape(-1, c.q_size))

    def parameters(self) -> dict[str, torch.Tensor]:
        """Checkpoint name -> the memory that tensor is to be copied into; shapes are the checkpoint's.

        A merged linear appears as its parts. The norm of a query or key head is a [heads, head_dim] block here: its
        checkpoint tensor [head_dim] is broadcast into it.
        """
        c, names = self.config, self.config.family.names
        out = {f"{names.embed}.weight": self.embed, f"{names.final_norm}.weight": self.final_norm}
        if not c.tied:
            out[f"{names.lm_head}.weight"] = self.lm_head.weight
        for i, layer in enumerate(self.layers):
            parts: list[tuple[str, Linear, int, int]] = [
                (names.q, layer.qkv, 0, c.q_size),
                (names.k, layer.qkv, c.q_size, c.kv_size),
                (names.v, layer.qkv, c.q_size + c.kv_size, c.kv_size),
                (names.o, layer.o, 0, c.hidden_size),
                (names.gate, layer.gate_up, 0, c.intermediate_size),
                (names.up, layer.gate_up, c.intermediate_size, c.intermediate_size),
                (names.down, layer.down, 0, c.hidden_size),
            ]
            for name, linear, begin, rows in parts:
                assert linear.weight is not None, "packed weights cannot be loaded into"
                out[f"{name.format(i=i)}.weight"] = linear.weight[begin : begin + rows]
                if linear.bias is not None:
                    out[f"{name.format(i=i)}.bias"] = linear.bias[begin : begin + rows]
            out[f"{names.attn_norm.format(i=i)}.weight"] = layer.attn_norm
            out[f"{names.mlp_norm.format(i=i)}.weight"] = layer.mlp_norm
            if layer.qk_norm is not None:
                out[f"{names.q_norm.format(i=i)}.weight"] = layer.qk_norm[: c.num_heads]
                out[f"{names.k_norm.format(i=i)}.weight"] = layer.qk_norm[c.num_heads :]
        return out

    def head_norms(self) -> frozenset[str]:
        """Names in `parameters()` whose checkpoint tensor is broadcast over heads."""
        names = self.config.family.names
        if not self.config.family.qk_norm:
            return frozenset()
        return frozenset(
            f"{name.format(i=i)}.weight"
            for i in range(len(self.layers))
            for name in (names.q_norm, names.k_norm)
        )

    def pack(self) -> int | None:
        """Once the weights are loaded: lay the linears out as the device likes best; returns the bytes of memory that
        took, None where nothing can be gained. The packed weights are not in `parameters()` any more."""
        if not can_pack(self.dtype, self.device):
            return None
        for layer in self.layers:
            for linear in (layer.qkv, layer.o, layer.gate_up, layer.down):
                linear.pack()
        self.lm_head.pack()
        # A tied head is packed too: it is the largest product of a decode step. The embedding stays for look-ups.
        return self.embed.numel() * self.embed.element_size() if self.config.tied else 0

    def num_parameters(self) -> int:
        """Elements as the checkpoint counts them, a tied head once."""
        shared = self.head_norms()
        return sum(t.shape[-1] if name in shared else t.numel() for name, t in self.parameters().items())

    def num_bytes(self) -> int:
        """Bytes that the parameters and the rotary table take."""
        tensors = [*self.parameters().values(), self.rotary]
        return sum(t.numel() * t.element_size() for t in tensors)
