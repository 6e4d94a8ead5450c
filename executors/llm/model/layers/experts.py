"""`Experts`: a mixture of experts as the feed-forward of a layer."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from executors.kernels.device_layouts import DeviceRows
from executors.llm.model.config import DecoderConfig, LayerConfig
from executors.llm.model.layers.base import LayerStep, PackingPlan, Sublayer
from executors.llm.model.layers.mlp import Mlp, MlpNames
from executors.llm.model.linear import Linear, Packing
from executors.llm.model.places import NamedPlaces, of_linear
from executors.llm.row_loras import RowLoras


class Experts(Sublayer):
    """A mixture of experts: each expert computes all of its tokens in one call, one expert after another.

    Router weights are the largest `top_k` of the fp32 softmax over all experts of router(x) (Shazeer et al. 2017, in the form
    of Qwen3-MoE), or the fp32 softmax over the largest `top_k` of router(x) (`softmax_last`, gpt-oss).
    """

    def __init__(self, config: DecoderConfig, dtype: torch.dtype, device: torch.device) -> None:
        assert config.moe is not None
        self.moe = config.moe
        self.activation = config.activation
        self.dtype = dtype
        self.steady = False
        self.on_device: tuple[DeviceRows, DeviceRows] | None = None
        """The experts' weights in a GPU's memory as a file holds them: the rows of gate and up of all, and of down."""
        self.router = Linear(self.moe.num_experts, config.hidden_size, self.moe.biased, dtype, device)
        count, hidden, inner = self.moe.num_experts, config.hidden_size, self.moe.intermediate_size
        gate_up = torch.empty(count, 2 * inner, hidden, dtype=dtype, device=device)
        down = torch.empty(count, hidden, inner, dtype=dtype, device=device)
        names = config.family.names
        self.router_name = names.router
        own = MlpNames("", names.expert_gate, names.expert_up, names.expert_down)
        self.experts: list[Mlp] = []
        for e in range(count):
            expert = Mlp(config, inner, self.moe.biased, dtype, device, own)
            # Only views of the whole are kept: it goes when the last of them is packed.
            expert.gate_up.weight, expert.down.weight = gate_up[e], down[e]
            self.experts.append(expert)
        if self.moe.biased:
            gate_up_bias = torch.empty(count, 2 * inner, dtype=dtype, device=device)
            down_bias = torch.empty(count, hidden, dtype=dtype, device=device)
            for e, expert in enumerate(self.experts):
                expert.gate_up.bias, expert.down.bias = gate_up_bias[e], down_bias[e]

    def __call__(self, x: torch.Tensor, adapters: RowLoras | None = None) -> torch.Tensor:
        """[T, hidden] -> [T, hidden]."""
        return self.mix(x, self.router(x))

    def mix(self, x: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """Compute the output for `x`, given the router's `logits` [T, experts]."""
        weights, chosen = self.routed(logits)
        flat = chosen.flatten()
        # Stable: within an expert the tokens keep their order, so the result does not depend on the batch's layout.
        order = flat.argsort(stable=True)
        counts = torch.bincount(flat, minlength=self.moe.num_experts).tolist()
        rows = order // self.moe.top_k
        shares = weights.flatten()[order].to(x.dtype)[:, None]
        out = torch.zeros_like(x)
        begin = 0
        for expert, count in zip(self.experts, counts, strict=True):
            if count:
                part = slice(begin, begin + count)
                out.index_add_(0, rows[part], expert(x[rows[part]]) * shares[part])
                begin += count
        return out

    def routed(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the weights of each token's experts, float32 [T, top_k], and their numbers, int64 [T, top_k]."""
        if self.moe.softmax_last:
            highest, chosen = logits.float().topk(self.moe.top_k, -1)
            return highest.softmax(-1), chosen
        weights, chosen = logits.float().softmax(-1).topk(self.moe.top_k, -1)
        return weights / weights.sum(-1, keepdim=True) if self.moe.normalized else weights, chosen

    def be_steady(self) -> None:
        """See `Mlp`. The experts that share a step do not change a sum: each token adds its own experts in the experts'
        order."""
        self.steady = True
        for expert in self.experts:
            expert.be_steady()

    def stacked(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return all experts' weights as [experts, 2 * inner, hidden], gate before up, and [experts, hidden, inner], as
        views; None if linear layers store them in other formats or are more than products with them."""
        if any(linear.rotation is not None for expert in self.experts for linear in expert.linears):
            return None
        gate_up = _whole([expert.gate_up.weight for expert in self.experts])
        down = _whole([expert.down.weight for expert in self.experts])
        return None if gate_up is None or down is None else (gate_up, down)

    def stacked_biases(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return all experts' biases as [experts, 2 * inner], gate before up, and [experts, hidden], as views; None if they have
        none."""
        if not self.moe.biased:
            return None
        gate_up = _whole([expert.gate_up.bias for expert in self.experts])
        down = _whole([expert.down.bias for expert in self.experts])
        assert gate_up is not None and down is not None
        return gate_up, down

    def keep_on_device(self, kind: str) -> None:
        """Keep the weights of all experts in the format `kind` of STORED_KINDS, side by side in the memory of their device. This
        frees the memory of the weights, which is still untouched."""
        rows: list[DeviceRows] = []
        for linears in (
            [expert.gate_up for expert in self.experts], [expert.down for expert in self.experts],
        ):  # fmt: skip
            weight = linears[0].weight
            assert weight is not None
            count, columns = weight.shape
            whole = DeviceRows.empty(kind, len(linears) * count, columns, weight.device)
            for e, linear in enumerate(linears):
                linear.keep_rows_on_device(whole.part(e * count, (e + 1) * count), kind)
            rows.append(whole)
        self.on_device = rows[0], rows[1]

    @property
    def linears(self) -> tuple[Linear, ...]:
        """See `Sublayer`."""
        return (self.router, *(linear for expert in self.experts for linear in expert.linears))

    def tensors(self) -> NamedPlaces:
        """See `Sublayer`."""
        yield from of_linear(self.router, (self.router_name, self.moe.num_experts))
        for e, expert in enumerate(self.experts):
            for name, place in expert.tensors():
                yield name.replace("{e}", str(e)), place

    def packing(self, plan: PackingPlan) -> Iterator[tuple[Linear, Packing]]:
        """See `Sublayer`. The router is small and affects the whole result, so it is never int8."""
        yield self.router, Packing(plan.plain)
        for expert in self.experts:
            yield from expert.packing(plan)

    def forward(self, x: torch.Tensor, step: LayerStep) -> torch.Tensor:
        """See `Sublayer`."""
        return step.share.added(self(x, step.inputs.adapters))


def layer_experts(
    config: DecoderConfig, layer: LayerConfig, dtype: torch.dtype, device: torch.device
) -> Experts:
    """Make the experts of a layer."""
    return Experts(config, dtype, device)


def _whole(parts: list[torch.Tensor | None]) -> torch.Tensor | None:
    """Return the tensor [n, ...] whose parts, in order, these are; None if there is none, or if they have no memory."""
    first = parts[0]
    if first is None or first.device.type == "meta":
        return None
    memory, size = first.untyped_storage().data_ptr(), first.numel()
    for i, part in enumerate(parts):
        if part is None or part.dtype != first.dtype or part.shape != first.shape or not part.is_contiguous():
            return None
        place = first.storage_offset() + i * size
        if part.untyped_storage().data_ptr() != memory or part.storage_offset() != place:
            return None
    return first.as_strided((len(parts), *first.shape), (size, *first.stride()))
