"""The generic decoder: every family of `families.py` runs through this one forward.

    embed -> [ norm -> qkv -> (qk norm) -> rotate -> attention -> o -> (norm) -> +
               norm -> gate/up -> act -> down (or experts) -> (norm) -> + ] -> norm

Every step in it is a switch of the family. q, k and v are one linear, gate and up another: fewer, fatter calls. Attention
is not done here: the runner hands in `attend`, which knows where the sequences' keys and values lie.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F

from executors.kernels.cpu import ACTIVATIONS, CpuKernels
from executors.llm.fp8 import Fp8Plan, hold
from executors.llm.linear import KIND_NAMES, Linear, Packing, can_pack_onednn, padded_rows
from executors.llm.models import parameters as naming
from executors.llm.models.config import DecoderConfig, LayerConfig
from executors.llm.models.modules import Experts, Mlp, Norm
from executors.llm.rope import rotary_table, rotate

Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""(layer, q [T, heads, head_dim], k, v [T, kv_heads, head_dim]) -> [T, heads, head_dim]; writes k and v to the cache."""


@dataclass(frozen=True, slots=True)
class ForwardInput:
    """The packed tokens of a step. `token_ids` and `positions` int64 or int32 [T] on the model's device.

    `wanted` int64, ascending: the rows whose hidden states will be looked at, None for all. A model may leave out others.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    attend: Attend
    wanted: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class KvSpec:
    """What the model's attention needs: it stores `num_layers` x keys and values of [num_kv_heads, head_dim] per token.

    `scale` multiplies the scores, `softcap` c makes them c * tanh(score / c). `windows` has one entry per layer: how many
    tokens a token sees, itself included; None for all before it.

    `kv_dtype`: what keys and values are stored in where that is not `dtype`, and `kv_scales` one pair per layer: what stored
    keys and values are multiplied by; () for 1.
    """

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device
    scale: float
    softcap: float | None
    windows: tuple[int | None, ...]
    kv_dtype: torch.dtype | None = None
    kv_scales: tuple[tuple[float, float], ...] = ()

    @property
    def stored_dtype(self) -> torch.dtype:
        """Of keys and values in the cache."""
        return self.kv_dtype or self.dtype

    def scales(self, layer: int) -> tuple[float, float]:
        """What the layer's stored keys, and values, are multiplied by."""
        return self.kv_scales[layer] if self.kv_scales else (1.0, 1.0)

    def bytes_per_token(self) -> int:
        """Bytes of keys and values of one token over all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * self.stored_dtype.itemsize


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

    def logits(self, hidden: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Logits [rows, width] of hidden states [rows, hidden], in the model's dtype or float32; in `out` if that is given, which
        is of the same dtype."""


@runtime_checkable
class PreparedModel(Protocol):
    """A model that has something to set up once the length of the longest sequence is known."""

    def prepare(self, max_model_len: int) -> None:
        """Called when weights are loaded and KV is planned; again where the plan has changed."""


class FusedForward(Protocol):
    """All layers in one call."""

    def takes(self, attend: Attend) -> bool:
        """Whether it can work with this attention."""

    def __call__(self, inputs: ForwardInput) -> torch.Tensor:
        """Hidden states [T, hidden] after the final norm; of rows that are not wanted they mean nothing."""


@runtime_checkable
class SamplingModel(Protocol):
    """A model that finds what sampling looks for first while it computes logits."""

    def logits_for_sampling(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Logits [rows, width], good until the next call, and maxima of blocks of each row, float32 [rows, blocks]."""


@runtime_checkable
class UnifiedModel(DecoderOnlyLLM, Protocol):
    """A model that computes any mix of prefill chunks and decode steps in one forward."""

    def unified_forward(self, inputs: ForwardInput) -> torch.Tensor:
        """Hidden states [T, hidden] of all tokens of all sequences."""


class Layer:
    """One block's parameters."""

    def __init__(
        self, config: DecoderConfig, layer: LayerConfig, dtype: torch.dtype, device: torch.device
    ) -> None:
        family, hidden = config.family, config.hidden_size

        def norm(name: str, size: int = hidden) -> Norm | None:
            return Norm(family.norm, size, config.norm_eps, dtype, device) if name else None

        self.config = layer
        self.attn_norm = norm(family.names.attn_norm)
        self.attn_post_norm = norm(family.names.attn_post_norm)
        self.mlp_norm = norm(family.names.mlp_norm)
        self.mlp_post_norm = norm(family.names.mlp_post_norm)
        self.qkv = Linear(config.q_size + 2 * config.kv_size, hidden, config.qkv_bias, dtype, device)
        self.o = Linear(hidden, config.q_size, config.o_bias, dtype, device)
        self.mlp: Mlp | Experts = (
            Experts(config, dtype, device)
            if layer.sparse
            else Mlp(config, config.intermediate_size, config.mlp_bias, dtype, device)
        )
        # Over heads, queries and keys are normed in one call: a row of weights per head, the same for all of a kind.
        heads = config.num_heads + config.num_kv_heads
        per_head, full = family.qk_norm == "head", family.qk_norm == "full"
        self.qk_norm = torch.empty(heads, config.head_dim, dtype=dtype, device=device) if per_head else None
        self.q_norm = norm(family.names.q_norm if full else "", config.q_size)
        self.k_norm = norm(family.names.k_norm if full else "", config.kv_size)


class Decoder:
    """A decoder-only transformer whose parameters are allocated, not filled: see `weights.py` and `parameters()`.

    Memory of the parameters is not touched before they are loaded. `finish` and `prepare` come before the first forward.

    With `kernels` linears are packed for them as they are loaded, in int8 if asked for, and the embedding may stay in its
    file (`embed_mapped`, any float dtype): it is only ever looked up by rows. With `fp8` layers' linears hold e4m3, as it says.
    """

    def __init__(
        self, config: DecoderConfig, dtype: torch.dtype, device: torch.device, kernels: CpuKernels | None = None,
        int8: bool = False, fp8: Fp8Plan | None = None,
    ) -> None:  # fmt: skip
        self.config = config
        self.dtype = dtype
        self.device = device
        self.int8 = int8
        self.fp8 = fp8
        self.kv_dtype: torch.dtype | None = None
        self.kv_scales: tuple[tuple[float, float], ...] = ()
        self.embed_mapped = False
        self._kernels = kernels
        self._fused: FusedForward | None = None
        self.embed = torch.empty(config.vocab_size, config.hidden_size, dtype=dtype, device=device)
        self.position_embed: torch.Tensor | None = None
        if config.family.names.positions:
            shape = config.max_context_length, config.hidden_size
            self.position_embed = torch.empty(shape, dtype=dtype, device=device)
        # Rounded as the family rounds it: a root is a tensor of the embedding's dtype, a field a number.
        root = config.family.embed_scaled
        self.embed_scale = float(torch.tensor(config.embed_scale).to(dtype)) if root else config.embed_scale
        self.layers: list[Layer] = []
        for index, layer in enumerate(config.layers):
            self.layers.append(Layer(config, layer, dtype, device))
            if fp8 is not None:  # at once: the next layer takes the memory that this one gives up
                hold(self, index, self.layers[-1], fp8)
        self.final_norm = Norm(config.family.norm, config.hidden_size, config.norm_eps, dtype, device)
        self.lm_head = Linear(
            0 if config.tied else config.vocab_size, config.hidden_size, False, dtype, device
        )
        if config.tied:
            self.lm_head.weight = self.embed
        self._onednn = False
        self.rotary: list[torch.Tensor] = []
        if kernels is not None:
            self._reserve(kernels, int8)

    def _reserve(self, kernels: CpuKernels, int8: bool) -> None:
        for linear, how in self.packing(int8):
            linear.reserve(kernels, how.kind, how.gated)

    def packing(self, int8: bool) -> Iterator[tuple[Linear, Packing]]:
        """How each linear is laid out for the kernels."""
        plain = KIND_NAMES[self.dtype]
        kind, fused = "int8" if int8 else plain, self.config.activation in ACTIVATIONS
        for layer in self.layers:
            yield layer.qkv, Packing(kind)
            yield layer.o, Packing(kind)
            yield from layer.mlp.packing(kind, plain, fused)
        yield self.lm_head, Packing(kind)

    def be_steady(self) -> None:
        """For `--deterministic`: a token's hidden state does not depend on what else is in its step, bit for bit. Linears and
        attention have to be the kernels' for that; norms, softmax and sums of torch keep to rows by themselves."""
        for layer in self.layers:
            layer.mlp.be_steady()

    def finish(self) -> None:
        """Called once, when all parameters are loaded."""
        if self._kernels is not None:
            for linear in self.linears():
                linear.finish()

    def pack_onednn(self) -> int:
        """Where there are no kernels of ours: lay the linears out as oneDNN likes best, if it can. Call after loading: there
        are no `parameters()` any more. Returns the bytes of memory that this took."""
        if self._kernels is not None or not can_pack_onednn(self.dtype, self.device):
            return 0
        for linear in self.linears():
            linear.pack_onednn()
        self._onednn = True
        # A tied head is packed too: it is the largest product of a decode step. The embedding stays for look-ups.
        return self.embed.numel() * self.embed.element_size() if self.config.tied else 0

    @property
    def packed(self) -> bool:
        """Whether the linears are laid out for this CPU."""
        return self._kernels is not None or self._onednn

    @property
    def maps_embedding(self) -> bool:
        """Whether the embedding may stay in the file."""
        return self._kernels is not None

    def linears(self) -> list[Linear]:
        """All of them, the head last."""
        layers = [linear for layer in self.layers for linear in (layer.qkv, layer.o, *layer.mlp.linears)]
        return [*layers, self.lm_head]

    def prepare(self, max_model_len: int) -> None:
        """Make the rotary tables for sequences of at most so many tokens. Called before the first forward."""
        self.rotary = [rotary_table(rope, max_model_len, self.device) for rope in self.config.ropes]
        if self._kernels is not None:
            from executors.kernels import cpu_forward  # which knows decoders

            if cpu_forward.why_not(self) is None:
                self._fused = cpu_forward.CpuForward(self._kernels, self)

    def fuse(self, forward: FusedForward) -> None:
        """Let this compute the layers wherever it can work with the attention."""
        self._fused = forward

    @property
    def kv_spec(self) -> KvSpec:
        """What the model's attention needs."""
        c = self.config
        return KvSpec(
            c.num_layers, c.num_heads, c.num_kv_heads, c.head_dim, self.dtype, self.device,
            c.score_scale, c.attn_softcap, tuple(layer.window for layer in c.layers), self.kv_dtype, self.kv_scales,
        )  # fmt: skip

    @torch.inference_mode()
    def unified_forward(self, inputs: ForwardInput) -> torch.Tensor:
        """Hidden states [T, hidden] after the final norm, for any mix of sequences."""
        tokens = len(inputs.token_ids)
        if self._fused is not None and self._fused.takes(inputs.attend):
            return self._fused(inputs)
        if self._onednn and (wanted := padded_rows(tokens)) != tokens:
            # Once here rather than in every linear. The rows behind the last token are anybody's: nothing reads them.
            inputs = _padded(inputs, wanted)
        rotary = [table.index_select(0, inputs.positions) for table in self.rotary]
        x = self.embed.index_select(0, inputs.token_ids).to(self.dtype)
        if self.embed_scale != 1.0:
            x = x * self.embed_scale
        if self.position_embed is not None:
            x = x + self.position_embed.index_select(0, inputs.positions)
        for index, layer in enumerate(self.layers):
            normed = x if layer.attn_norm is None else layer.attn_norm(x)
            turn = None if layer.config.rope is None else rotary[layer.config.rope]
            out = self._attention(index, layer, normed, turn, inputs.attend)
            x = x + self._scaled(out if layer.attn_post_norm is None else layer.attn_post_norm(out))
            out = layer.mlp(x if layer.mlp_norm is None else layer.mlp_norm(x))
            x = x + self._scaled(out if layer.mlp_post_norm is None else layer.mlp_post_norm(out))
        return self.final_norm(x[:tokens])

    def _scaled(self, out: torch.Tensor) -> torch.Tensor:
        """What a sublayer returns as it is added."""
        scale = self.config.residual_scale
        return out if scale == 1.0 else out * scale

    # One forward serves all three; having them lets a model without a unified forward take this one's place.
    prefill = unified_forward
    batch_decode = unified_forward

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Logits [rows, vocabulary] of hidden states [rows, hidden]: float32 where the head is packed for our kernels, for
        a best token must not be lost to rounding; else of the model's dtype. In `out` if that is given."""
        if out is not None and self.writes_logits:
            assert self.lm_head.weight is not None
            return torch.mm(hidden, self.lm_head.weight.t(), out=out)
        packed = self.lm_head.packed
        logits = self.lm_head(hidden) if packed is None else packed(hidden, wide=True)
        cap, divisor = self.config.final_softcap, self.config.logits_divisor
        logits = logits if divisor == 1.0 else logits / divisor
        logits = logits if cap is None else torch.tanh(logits / cap) * cap
        return logits if out is None else out.copy_(logits)

    @property
    def writes_logits(self) -> bool:
        """Whether `logits` writes them where they are wanted at once, and takes no memory of its own."""
        head, c = self.lm_head, self.config
        return head.plain and head.bias is None and c.final_softcap is None and c.logits_divisor == 1.0

    @torch.inference_mode()
    def logits_for_sampling(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """As `logits`, good until the next call; and where that comes for free the maxima of blocks of each row, float32
        [rows, blocks], all but the last of the same size."""
        c = self.config
        if self.lm_head.packed is None or c.final_softcap is not None or c.logits_divisor != 1.0:
            return self.logits(hidden), None
        return self.lm_head.packed.with_maxima(hidden)

    def _attention(
        self, index: int, layer: Layer, x: torch.Tensor, rotary: torch.Tensor | None, attend: Attend
    ) -> torch.Tensor:
        c = self.config
        qkv = layer.qkv(x)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k, v = qkv.split((c.q_size, c.kv_size, c.kv_size), -1)
            qkv = torch.cat((layer.q_norm(q), layer.k_norm(k), v), -1)
        heads = qkv.view(-1, c.num_heads + 2 * c.num_kv_heads, c.head_dim)
        qk, v = heads[:, : -c.num_kv_heads], heads[:, -c.num_kv_heads :]
        if layer.qk_norm is not None:
            qk = self.norm_heads(qk, layer.qk_norm)
        if rotary is not None:
            qk = rotate(qk, rotary)
        out = attend(index, qk[:, : c.num_heads], qk[:, c.num_heads :], v)
        return layer.o(out.reshape(-1, c.q_size))

    def norm_heads(self, qk: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """RMS norm of [T, heads, head_dim] over head_dim; `weight` [heads, head_dim]."""
        size, eps = (self.config.head_dim,), self.config.norm_eps
        if self.config.family.norm == "rms1":
            return (F.rms_norm(qk.float(), size, None, eps) * (weight.float() + 1.0)).to(qk.dtype)
        return F.rms_norm(qk, size, None, eps) * weight

    def parameters(self) -> dict[str, torch.Tensor]:
        """Checkpoint name -> the memory that tensor is to be copied into, see `parameters.py`."""
        return naming.parameters(self)

    def head_norms(self) -> frozenset[str]:
        """Names in `parameters()` whose checkpoint tensor is broadcast over heads."""
        return naming.head_norms(self)

    def places(self) -> dict[str, naming.Place]:
        """Checkpoint name -> where that tensor goes, see `parameters.py`."""
        return naming.places(self)

    def num_parameters(self) -> int:
        """Elements as the checkpoint counts them, a tied head once."""
        shared = self.head_norms()
        return sum(t.shape[-1] if name in shared else t.numel() for name, t in self.parameters().items())

    def num_bytes(self) -> int:
        """Bytes of memory that the parameters and the rotary tables take. A mapped embedding takes none of its own."""
        alone = [place.tensor for place in self.places().values() if place.linear is None]
        # A tied embedding that is in memory, beside the packed head that it is.
        embedded = self.config.tied and self._kernels is not None and not self.embed_mapped
        tensors = [*alone, *self.rotary, *([self.embed] if embedded else [])]
        if self.embed_mapped:
            tensors = [tensor for tensor in tensors if tensor is not self.embed]
        held = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        return held + sum(linear.num_bytes for linear in self.linears())


def _padded(inputs: ForwardInput, rows: int) -> ForwardInput:
    """The step with rows of token 0 at position 0 behind its own; attention is computed for its own only."""
    tokens = len(inputs.token_ids)
    behind = (0, rows - tokens)

    def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out = inputs.attend(layer, q[:tokens], k[:tokens], v[:tokens])
        return F.pad(out, (0, 0, 0, 0, *behind))

    return ForwardInput(F.pad(inputs.token_ids, behind), F.pad(inputs.positions, behind), attend)
