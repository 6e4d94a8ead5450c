"""Gradients of `TinyModel`'s loss in bf16, forwards and backwards written out: products by PyTorch, all between them by our own passes.

Autograd's composition of the same makes half as many tokens a second: it spends half of its time on passes over memory between the
products. Here weights, gradients, the residual stream, norms and softmax are fp32, the operands and results of products bf16.
"""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from executors import kernels
from executors.kernels.compiler import library
from executors.tiny.model import Apart, TinyModel

SOURCE = Path(kernels.__file__).with_name("training.cpp")
_ROWS = 256
"""Rows of products come in multiples of it: oneDNN compiles a kernel for each size it meets, which took a third of the time."""
_QUERIES = 128
"""Queries of a conversation whose scores are made together: what lies behind the last of them is never computed."""


class Passes:
    """The compiled passes. Tensors are handed over as they are: contiguous, and of the types that the source names."""

    def __init__(self) -> None:
        """Raises KernelUnavailable where there is no compiler, or a CPU of another kind."""
        self._library, self.isa = library(SOURCE)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = getattr(self._library, f"training_{name}")

        def call(*arguments: Any) -> Any:
            return function(*map(_argument, arguments))

        setattr(self, name, call)
        return call


def _argument(value: Any) -> Any:
    """Return `value` as the library takes it."""
    if isinstance(value, Tensor):
        if not value.is_contiguous():
            raise ValueError(f"a pass takes contiguous tensors, not strides {value.stride()}")
        return ctypes.c_void_p(value.data_ptr())
    if isinstance(value, float):
        return ctypes.c_float(value)
    return ctypes.c_void_p(None) if value is None else ctypes.c_int64(value)


@dataclass(frozen=True)
class LayerWeights:
    """A layer's matrices in bf16, those of one operand side by side."""

    qkv: Tensor
    out: Tensor
    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True)
class Weights:
    """All matrices in bf16, made once a step."""

    layers: tuple[LayerWeights, ...]
    embedding: Tensor


def rounded(model: TinyModel) -> Weights:
    """Return `model`'s matrices in bf16."""
    layers = []
    for layer in model.model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        parts = (
            (attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight),
            (attention.o_proj.weight,),
            (mlp.gate_proj.weight, mlp.up_proj.weight),
            (mlp.down_proj.weight,),
        )
        layers.append(
            LayerWeights(*(torch.cat([part.to(torch.bfloat16) for part in each]) for each in parts))
        )
    return Weights(tuple(layers), model.model.embed_tokens.weight.to(torch.bfloat16))


Choice = Callable[[Tensor], Tensor]
"""Takes the losses of a batch (batch, tokens - 1) and returns which conversations to learn, bool (batch,)."""


class Gradients:
    """Adds the gradients of batches to buffers of its own; one for each thread."""

    def __init__(self, model: TinyModel) -> None:
        """Raises KernelUnavailable."""
        self._passes, self._model = Passes(), model
        self.isa = self._passes.isa
        self.sums: dict[str, Tensor] = {
            name: torch.zeros_like(parameter) for name, parameter in model.named_parameters()
        }

    def add(self, weights: Weights, ids: Tensor, counts: Tensor, apart: Apart | None = None) -> float:
        """Add the gradients of sum(counts * cross-entropy) over `ids` (batch, tokens) and return that sum.

        `counts` (batch, tokens) weighs each token; what has weight 0 is not learned.
        """
        every = torch.ones(len(ids), dtype=torch.bool)
        return float(self.add_chosen(weights, ids, counts, lambda losses: every, apart).sum())

    @torch.no_grad()
    def add_chosen(
        self, weights: Weights, ids: Tensor, counts: Tensor, choose: Choice, apart: Apart | None = None
    ) -> Tensor:
        """Add the gradients of those conversations only that `choose` picks, and return the losses of all (batch, tokens - 1).

        A loss is counts * cross-entropy of the token behind. What is not picked goes forwards only, a third of the work.
        """
        run = _Run(self._passes, self._model, weights, self.sums, ids[:, :-1], apart or Apart.none(ids))
        wanted = (counts[:, 1:] > 0).flatten().nonzero().flatten()
        return run.learn(wanted, ids[:, 1:].flatten()[wanted], counts[:, 1:].flatten()[wanted], choose)


class _Run:
    """One batch on its way through the model and back."""

    def __init__(
        self,
        passes: Passes,
        model: TinyModel,
        weights: Weights,
        sums: dict[str, Tensor],
        ids: Tensor,
        apart: Apart,
    ) -> None:
        self.passes, self.model, self.weights, self.sums = passes, model, weights, sums
        config = model.config
        self.batch, self.tokens = ids.shape
        self.rows = ids.numel()
        self.ids = ids.flatten()
        self.heads, self.kv_heads, self.size = (
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
        )
        self.group, self.eps = self.heads // self.kv_heads, config.rms_norm_eps
        self.shared, self.skipped = apart.shared, apart.skipped[:, : self.tokens].contiguous()
        self.rope = (
            model.cos[: self.tokens].contiguous(),
            model.sin[: self.tokens].contiguous(),
            self.skipped,
        )

    def learn(self, wanted: Tensor, targets: Tensor, counts: Tensor, choose: Choice) -> Tensor:
        """Go forwards, then backwards with what `choose` picks; return the losses (batch, tokens).

        Only the rows in `wanted` go through the last layer's feed-forward part and the head.
        """
        stream = self.model.model.embed_tokens.weight[self.ids]
        layers = []
        added = None
        last = len(self.weights.layers) - 1
        for index in range(len(self.weights.layers)):
            layer = _Layer(self, index, wanted if index == last else None)
            stream, added = layer.forward(stream, added)
            layers.append(layer)
        final = _Norm(self, "model.norm.weight", stream, added)
        logits = final.out @ self.weights.embedding.T
        each = torch.empty(len(wanted))
        self.passes.loss(logits, targets, counts, each, len(wanted), logits.shape[1])
        losses = torch.zeros(self.rows).index_put_((wanted,), each).view(self.batch, self.tokens)
        chosen = choose(losses)
        if not bool(chosen.all()):
            logits = self._keep(chosen, wanted, layers, final, logits)
        if self.batch:
            self._back(layers, final, logits)
        return losses

    def _keep(
        self, chosen: Tensor, wanted: Tensor, layers: list["_Layer"], final: "_Norm", logits: Tensor
    ) -> Tensor:
        """Forget all conversations but the `chosen` ones, and return their rows of `logits`; modifies what it is given."""
        rows = chosen.repeat_interleave(self.tokens).nonzero().flatten()
        learned = chosen[wanted // self.tokens].nonzero().flatten()
        place = torch.zeros(self.rows, dtype=torch.long).index_put_((rows,), torch.arange(len(rows)))
        final.keep(learned)
        for layer in layers:
            kept = (place[wanted[learned]], learned) if layer.chosen is not None else (None, rows)
            layer.keep(chosen, rows, *kept)
        self.batch, self.rows, self.ids = int(chosen.sum()), len(rows), self.ids[rows]
        self.skipped = self.skipped[chosen]
        self.rope = (*self.rope[:2], self.skipped)
        return _filled_up(logits, learned)

    def _back(self, layers: list["_Layer"], final: "_Norm", logits: Tensor) -> None:
        """Go backwards from the gradient of the logits."""
        logits[final.stream.shape[0] :] = 0
        self.sums["model.embed_tokens.weight"].add_(logits.T @ final.out)
        slope = final.backward(logits @ self.weights.embedding, None)
        for layer in reversed(layers):
            slope = layer.backward(slope)
        self.sums["model.embed_tokens.weight"].index_add_(0, self.ids, slope.stream)


def _filled_up(operand: Tensor, rows: Tensor) -> Tensor:
    """Return these rows of a product's operand, filled up with rows of zeros."""
    kept = operand.new_zeros(len(rows) + -len(rows) % _ROWS, operand.shape[1])
    torch.index_select(operand, 0, rows, out=kept[: len(rows)])
    return kept


@dataclass
class _Slope:
    """The gradient of the residual stream in fp32, and rounded, filled up with rows of zeros."""

    stream: Tensor
    rounded: Tensor


class _Norm:
    """The residual stream with what a block adds to it, and its norm."""

    def __init__(self, run: _Run, name: str, stream: Tensor, added: Tensor | None) -> None:
        self.run, self.name = run, name
        self.weight = run.model.get_parameter(name)
        rows, size = stream.shape
        self.stream = torch.empty_like(stream)
        self.scales = torch.empty(rows)
        self.out = torch.empty(rows + -rows % _ROWS, size, dtype=torch.bfloat16)
        run.passes.norm(
            stream,
            added,
            self.stream,
            self.weight.detach(),
            self.out,
            self.scales,
            rows,
            len(self.out),
            size,
            run.eps,
        )

    def keep(self, rows: Tensor) -> None:
        """Forget all rows but these."""
        self.stream, self.scales, self.out = self.stream[rows], self.scales[rows], _filled_up(self.out, rows)

    def backward(self, slope_out: Tensor, slope: _Slope | None) -> _Slope:
        """Return the stream's gradient: `slope`, if there is one, and what comes through the norm."""
        rows, size = self.stream.shape
        both = slope or _Slope(torch.empty_like(self.stream), torch.empty_like(self.out))
        self.run.passes.norm_back(
            slope_out, self.stream, self.scales, self.weight.detach(), both.stream, both.rounded, self.run.sums[self.name],
            rows, len(self.out), size, int(slope is None),
        )  # fmt: skip
        return both


class _Layer:
    """One layer with what its way back needs."""

    def __init__(self, run: _Run, index: int, chosen: Tensor | None) -> None:
        self.run, self.chosen = run, chosen
        self.weights = run.weights.layers[index]
        self.prefix = f"model.layers.{index}."

    def _sum(self, *names: str) -> list[Tensor]:
        return [self.run.sums[f"{self.prefix}{name}.weight"] for name in names]

    def forward(self, stream: Tensor, added: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the residual stream after attention and what the feed-forward part adds to it."""
        run = self.run
        self.first = _Norm(run, self.prefix + "input_layernorm.weight", stream, added)
        self.qkv = self.first.out @ self.weights.qkv.T
        self.q = torch.empty(run.batch * run.kv_heads, run.tokens * run.group, run.size, dtype=torch.bfloat16)
        self.k = torch.empty(run.batch * run.kv_heads, run.tokens, run.size, dtype=torch.bfloat16)
        self.v = torch.empty_like(self.k)
        self.scales = torch.empty(run.rows, run.heads), torch.empty(run.rows, run.kv_heads)
        norms = [
            run.model.get_parameter(f"{self.prefix}self_attn.{name}.weight").detach()
            for name in ("q_norm", "k_norm")
        ]
        self.norms = norms
        run.passes.split(
            self.qkv, *norms, *run.rope, self.q, self.k, self.v, *self.scales,
            run.batch, run.tokens, run.heads, run.kv_heads, run.size, run.eps,
        )  # fmt: skip
        mixed = self._attend()
        rows = run.rows if self.chosen is None else len(self.chosen)
        self.merged = torch.empty(rows + -rows % _ROWS, run.heads * run.size, dtype=torch.bfloat16)
        run.passes.merge(
            mixed,
            self.chosen,
            self.merged,
            rows,
            len(self.merged),
            run.tokens,
            run.heads,
            run.kv_heads,
            run.size,
        )
        out = self.merged @ self.weights.out.T
        residual = self.first.stream if self.chosen is None else self.first.stream[self.chosen]
        self.second = _Norm(run, self.prefix + "post_attention_layernorm.weight", residual, out)
        self.gate_up = self.second.out @ self.weights.gate_up.T
        self.inner = torch.empty(len(self.gate_up), self.gate_up.shape[1] // 2, dtype=torch.bfloat16)
        run.passes.gate(self.gate_up, self.inner, *self.inner.shape)
        return self.second.stream, self.inner @ self.weights.down.T

    def _attend(self) -> Tensor:
        """Return the heads' outputs, shaped as the queries; keeps the shares."""
        run = self.run
        self.shares, parts = [], []
        for begin in range(0, run.tokens, _QUERIES):
            end = min(begin + _QUERIES, run.tokens)
            queries = self.q[:, begin * run.group : end * run.group]
            shares = torch.bmm(queries, self.k[:, :end].mT)
            run.passes.softmax(
                shares, run.shared, run.skipped, len(shares), shares.shape[1], end, begin, run.group, run.kv_heads, run.tokens,
            )  # fmt: skip
            self.shares.append(shares)
            parts.append(torch.bmm(shares, self.v[:, :end]))
        return torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]

    def _attend_back(self, slope: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients of queries, keys and values from that of the heads' outputs."""
        run = self.run
        dk, dv, dq = torch.zeros_like(self.k), torch.zeros_like(self.v), []
        for index, begin in enumerate(range(0, run.tokens, _QUERIES)):
            end = min(begin + _QUERIES, run.tokens)
            part, shares = slope[:, begin * run.group : end * run.group], self.shares[index]
            back = torch.bmm(part, self.v[:, :end].mT)
            run.passes.softmax_back(shares, back, len(shares), shares.shape[1], end, begin, run.group)
            dv[:, :end] += torch.bmm(shares.mT, part)
            dk[:, :end] += torch.bmm(back.mT, self.q[:, begin * run.group : end * run.group])
            dq.append(torch.bmm(back, self.k[:, :end]))
        return torch.cat(dq, dim=1) if len(dq) > 1 else dq[0], dk, dv

    def keep(self, conversations: Tensor, rows: Tensor, chosen: Tensor | None, later: Tensor) -> None:
        """Forget all but some conversations (bool), whose rows these are; `later` of those behind attention, if `chosen` only."""
        run = self.run
        self.first.keep(rows)
        self.second.keep(later)
        self.chosen = chosen
        self.qkv = _filled_up(self.qkv, rows)
        self.scales = self.scales[0][rows], self.scales[1][rows]
        self.merged, self.gate_up, self.inner = (
            _filled_up(each, later) for each in (self.merged, self.gate_up, self.inner)
        )

        def of(each: Tensor) -> Tensor:
            return each.view(run.batch, run.kv_heads, *each.shape[1:])[conversations].flatten(0, 1)

        self.q, self.k, self.v = of(self.q), of(self.k), of(self.v)
        self.shares = [of(each) for each in self.shares]

    def backward(self, slope: _Slope) -> _Slope:
        """Return the gradient of the stream that came in from that of the one that goes out."""
        run = self.run
        (down,) = self._sum("mlp.down_proj")
        down.add_(slope.rounded.T @ self.inner)
        back = torch.empty_like(self.gate_up)
        run.passes.gate_back(self.gate_up, slope.rounded @ self.weights.down, back, *self.inner.shape)
        self._add(back.T @ self.second.out, "mlp.gate_proj", "mlp.up_proj")
        slope = self.second.backward(back @ self.weights.gate_up, slope)
        self._add(slope.rounded.T @ self.merged, "self_attn.o_proj")
        mixed = torch.empty_like(self.q)
        rows = run.rows if self.chosen is None else len(self.chosen)
        run.passes.merge_back(
            slope.rounded @ self.weights.out,
            self.chosen,
            mixed,
            rows,
            run.batch,
            run.tokens,
            run.heads,
            run.kv_heads,
            run.size,
        )
        dq, dk, dv = self._attend_back(mixed)
        dqkv = torch.empty_like(self.qkv)
        run.passes.split_back(
            dq, dk, dv, self.qkv, *self.norms, *run.rope, *self.scales, dqkv, *self._sum("self_attn.q_norm", "self_attn.k_norm"),
            run.batch, run.tokens, len(dqkv), run.heads, run.kv_heads, run.size,
        )  # fmt: skip
        self._add(dqkv.T @ self.first.out, "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
        if self.chosen is not None:
            whole = torch.zeros_like(self.first.stream)
            whole[self.chosen] = slope.stream
            slope = _Slope(whole, torch.empty_like(self.first.out))
        return self.first.backward(dqkv @ self.weights.qkv, slope)

    def _add(self, gradient: Tensor, *names: str) -> None:
        """Add the rows of `gradient` to the sums of the matrices that lie side by side in it."""
        sums = self._sum(*names)
        for each, part in zip(sums, gradient.split([len(one) for one in sums]), strict=True):
            each.add_(part)
