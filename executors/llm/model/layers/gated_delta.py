"""`GatedDelta`: linear attention by the gated delta rule, the mixer of most layers of Qwen3-Next and Qwen3.5.

For each value head, with a state S [value size, key size] of float32, token after token:

    S = exp(g) S                    what is forgotten: g = -exp(A_log) softplus(a + dt_bias)
    S = S + beta (v - S k) k^T      what is learnt: beta = sigmoid(b)
    out = S q / sqrt(key size)

q, k and v come from a projection through a causal convolution and SiLU; q and k have length 1. The output is
rms(out) * weight * silu(z). Yang et al. 2024, Gated Delta Networks (arXiv:2412.06464), in the form of
`torch_recurrent_gated_delta_rule` in transformers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F

from executors.contract.errors import ConfigError
from executors.kernels.cpu import CpuKernels
from executors.kernels.scan import MAX_KERNEL, MAX_KEY_SIZE, DeltaKernel, DeltaPlaces
from executors.llm.model.api import InnerState
from executors.llm.model.caches import LayerMemory, LayerState
from executors.llm.model.config import DecoderConfig, LayerConfig
from executors.llm.model.cuts import Range
from executors.llm.model.layers.activations import STEADY_ACTIVATIONS, steady_sigmoid, steady_softplus
from executors.llm.model.layers.base import LayerStep, PackingPlan, Sublayer
from executors.llm.model.layers.convolution import causal_convolution
from executors.llm.model.linear import Linear, Packing
from executors.llm.model.places import NamedPlaces, Place, of_linear
from executors.llm.row_loras import RowLoras

_LEAST_LENGTH = 1e-6
"""What is added to the square of a length before its root is taken."""


def gated_delta_rule(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, states: torch.Tensor,
    q_lens: Sequence[int], inner: Sequence[InnerState] = (),
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Return the outputs float32 [tokens, heads, value size], and the states [items + inner, heads, value size, key size] behind
    each item's last token, then at the places of `inner`.

    `q`, `k` [tokens, heads, key size], `v` [tokens, heads, value size], `g`, `beta` [tokens, heads], all float32: the tokens of
    all items, one item after the other, `q_lens` of each. `states` float32 [items, heads, value size, key size]: before each
    item's first token. Token t of every item that has one is computed at once. Sums are over the last dimension: those over
    others add in an order that depends on the number of items.
    """
    out = torch.empty_like(v)
    lengths = torch.tensor(q_lens)
    begins = torch.cumsum(lengths, 0) - lengths
    order = lengths.argsort(descending=True, stable=True)
    at = order.argsort().tolist()
    snapshots = states.new_empty(len(inner), *states.shape[1:])
    sizes, begins = lengths[order].tolist(), begins[order].to(v.device)
    carried = states[order.to(v.device)]
    count, decay = len(sizes), g.exp()
    for t in range(sizes[0] if sizes else 0):
        while sizes[count - 1] <= t:
            count -= 1
        rows = begins[:count] + t
        state = carried[:count]
        state *= decay[rows][..., None, None]
        key = k[rows][..., None, :]
        learnt = (v[rows] - (state * key).sum(-1)) * beta[rows][..., None]
        state += learnt[..., None] * key
        out[rows] = (state * q[rows][..., None, :]).sum(-1)
        for i, one in enumerate(inner):
            if one.num_rows == t + 1:
                snapshots[i] = carried[at[one.item]]
    behind = torch.empty_like(states)
    behind[order.to(v.device)] = carried
    return out * q.shape[-1] ** -0.5, torch.cat((behind, snapshots))


class GatedDelta(Sublayer):
    """See the module. A family that names `delta_qkvz` has its projections by key head:

        qkvz   of each key head q, k, and v and z of its value heads        ba   of each key head b and a of its value heads

    otherwise q, k and v of all heads are one tensor and z, b and a one each. The state of a sequence is one vector: the
    convolution's last kernel - 1 inputs [kernel - 1, channels], then S transposed [value heads, key size, value size]: the
    columns of a value then are neighbours, which the kernels compute side by side.
    """

    def __init__(
        self, config: DecoderConfig, layer: LayerConfig, dtype: torch.dtype, device: torch.device
    ) -> None:
        sizes, self._names = config.sizes, config.family.names
        self._key_heads, self._heads = sizes["linear_num_key_heads"], sizes["linear_num_value_heads"]
        self._key_size, self._value_size = sizes["linear_key_head_dim"], sizes["linear_value_head_dim"]
        self._kernel, self._eps = sizes["linear_conv_kernel_dim"], config.norm_eps
        if self._heads % self._key_heads:
            raise ConfigError(
                f"linear_num_value_heads {self._heads} is not a multiple of linear_num_key_heads {self._key_heads}"
            )
        if self._kernel < 2:
            raise ConfigError(f"linear_conv_kernel_dim is {self._kernel}; at least 2 is needed")
        self._keys, self._values = self._key_heads * self._key_size, self._heads * self._value_size
        self._channels = channels = 2 * self._keys + self._values
        self.out_columns = self._values
        """Columns of what `outward` multiplies."""
        hidden = config.hidden_size
        self.inward = Linear(channels + self._values, hidden, False, dtype, device)
        self.rates = Linear(2 * self._heads, hidden, False, dtype, device)
        self.outward = Linear(hidden, self._values, False, dtype, device)
        self.weight = torch.empty(channels, 1, self._kernel, dtype=dtype, device=device)
        # Float32 whatever the model's dtype: a decay of half-life 10,000 differs from 1 by less than bf16 can tell.
        self.a_log, self.dt_bias = (
            torch.empty(self._heads, dtype=torch.float32, device=device) for _ in range(2)
        )
        self.norm = torch.empty(self._value_size, dtype=torch.float32, device=device)
        self.by_kernels: DeltaKernel | None = None
        """The layer between its projections, where the CPU's kernels compute it."""

    @property
    def linears(self) -> tuple[Linear, ...]:
        """See `Sublayer`."""
        return self.inward, self.rates, self.outward

    @property
    def adapted(self) -> tuple[Linear, ...]:
        """See `Sublayer`."""
        return self.linears

    def memory(self) -> LayerMemory:
        """See `Sublayer`."""
        return LayerState((self._carried_inputs + self._values * self._key_size,))

    @property
    def _carried_inputs(self) -> int:
        return (self._kernel - 1) * self._channels

    def tensors(self) -> NamedPlaces:
        """See `Sublayer`."""
        names = self._names
        if names.delta_qkvz:
            yield from of_linear(self.inward, (names.delta_qkvz, -1))
        else:
            yield from of_linear(
                self.inward, (names.delta_qkv, self._channels), (names.delta_z, self._values)
            )
        if names.delta_ba:
            yield from of_linear(self.rates, (names.delta_ba, -1))
        else:
            yield from of_linear(self.rates, (names.delta_b, self._heads), (names.delta_a, self._heads))
        yield from of_linear(self.outward, (names.delta_out, -1))
        yield f"{names.delta_conv}.weight", Place(self.weight)

    def norms(self) -> NamedPlaces:
        """See `Sublayer`. The vectors of the decay are among them."""
        yield f"{self._names.delta_norm}.weight", Place(self.norm)
        yield self._names.delta_a_log, Place(self.a_log)
        yield self._names.delta_dt_bias, Place(self.dt_bias)

    def packing(self, plan: PackingPlan) -> Iterator[tuple[Linear, Packing]]:
        """See `Sublayer`. The rates are small and decide what is forgotten, so they are never int8."""
        yield self.inward, Packing(plan.kind)
        yield self.rates, Packing(plan.plain)
        yield self.outward, Packing(plan.kind)

    def _projected(
        self, x: torch.Tensor, adapters: RowLoras | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return q, k and v [T, channels], z [T, values], b and a [T, heads] of x [T, hidden]."""
        qkvz, ba = (
            linear(x, None if adapters is None else adapters.extra(linear, x))
            for linear in (self.inward, self.rates)
        )
        per_key = self._heads // self._key_heads
        if self._names.delta_qkvz:
            values = per_key * self._value_size
            parts = qkvz.view(len(x), self._key_heads, -1).split(
                (self._key_size, self._key_size, values, values), -1
            )
            q, k, v, z = (part.reshape(len(x), -1) for part in parts)
            qkv = torch.cat((q, k, v), -1)
        else:
            qkv, z = qkvz.split((self._channels, self._values), -1)
        if self._names.delta_ba:
            b, a = (part.reshape(len(x), -1) for part in ba.view(len(x), self._key_heads, 2, -1).unbind(2))
        else:
            b, a = ba.chunk(2, -1)
        return qkv, z, b, a

    def _of_value_heads(self, x: torch.Tensor) -> torch.Tensor:
        """Return queries or keys of length 1 for each value head, [T, heads, key size], of those of key heads [T, keys]."""
        x = x.view(len(x), self._key_heads, self._key_size)
        x = x * torch.rsqrt(x.square().sum(-1, keepdim=True) + _LEAST_LENGTH)
        per_key = self._heads // self._key_heads
        return x.repeat(1, per_key, 1) if self._names.delta_tiled else x.repeat_interleave(per_key, 1)

    @property
    def units(self) -> tuple[int, int]:
        """Number of parts that ranks share, key heads with their value heads, and the columns of `outward` that each has; (0, 0)
        where the value heads of a key head do not follow each other."""
        return (0, 0) if self._names.delta_tiled else (self._key_heads, self._values // self._key_heads)

    def rows_of(self, units: Range) -> list[tuple[Linear | torch.Tensor, tuple[Range, ...]]]:
        """Return the rows of tensors that a rank with these key heads has."""
        per_key = self._heads // self._key_heads

        def part(begin: int, size: int) -> Range:
            return begin + units[0] * size, begin + units[1] * size

        heads, values = part(0, per_key), part(0, per_key * self._value_size)
        channels = (
            part(0, self._key_size),
            part(self._keys, self._key_size),
            part(2 * self._keys, per_key * self._value_size),
        )
        inward: tuple[Range, ...] = (*channels, (self._channels + values[0], self._channels + values[1]))
        if self._names.delta_qkvz:
            inward = (part(0, 2 * self._key_size + 2 * per_key * self._value_size),)
        rates = (part(0, 2 * per_key),) if self._names.delta_ba else (heads, part(self._heads, per_key))
        return [
            (self.inward, inward), (self.rates, rates), (self.weight, channels), (self.a_log, (heads,)),
            (self.dt_bias, (heads,)),
        ]  # fmt: skip

    @property
    def fits_kernels(self) -> bool:
        """Whether the CPU's kernels have the layer's sizes."""
        return self._kernel <= MAX_KERNEL and self._key_size <= MAX_KEY_SIZE

    def use_kernels(self, kernels: CpuKernels) -> None:
        """See `Sublayer`."""
        if self.fits_kernels:
            self.by_kernels = DeltaKernel(
                kernels, self._places(), self._key_size, self._value_size, self.weight[:, 0], self.a_log, self.dt_bias,
                self.norm, self._eps,
            )  # fmt: skip

    def _places(self) -> DeltaPlaces:
        """Say where `inward` and `rates` have the parts of `_projected`."""
        per_key, key, value = self._heads // self._key_heads, self._key_size, self._value_size
        of_values = per_key * value
        runs: list[tuple[int, int, int]] = [(0, 0, self._channels)]
        keys = [(h * key, self._keys + h * key) for h in range(self._key_heads)]
        values = [(2 * self._keys + h * value, self._channels + h * value) for h in range(self._heads)]
        if self._names.delta_qkvz:
            size, starts = 2 * (key + of_values), (0, self._keys, 2 * self._keys)
            runs = [
                (start + h * count, h * size + at, count)
                for h in range(self._key_heads)
                for start, at, count in zip(starts, (0, key, 2 * key), (key, key, of_values), strict=True)
            ]
            keys = [(h * size, h * size + key) for h in range(self._key_heads)]
            begins = [h // per_key * size + 2 * key + h % per_key * value for h in range(self._heads)]
            values = [(begin, begin + of_values) for begin in begins]
        rates = [(h, self._heads + h) for h in range(self._heads)]
        if self._names.delta_ba:
            begins = [h // per_key * 2 * per_key + h % per_key for h in range(self._heads)]
            rates = [(begin, begin + per_key) for begin in begins]
        key_of = [
            h % self._key_heads if self._names.delta_tiled else h // per_key for h in range(self._heads)
        ]
        heads = [(*keys[key_of[h]], *values[h], *rates[h]) for h in range(self._heads)]
        return DeltaPlaces(runs, keys, heads)

    def forward(self, x: torch.Tensor, step: LayerStep) -> torch.Tensor:
        """See `Sublayer`."""
        states, adapters, silu = step.inputs.states, step.inputs.adapters, STEADY_ACTIVATIONS["silu"]
        assert states is not None
        if self.by_kernels is not None:
            qkvz, ba = (
                linear.wide(x, None if adapters is None else adapters.extra(linear, x))
                for linear in (self.inward, self.rates)
            )
            y = self.by_kernels(qkvz, ba, states.slots, self.cache_index, x.dtype)
            return step.share.product(self.outward, y, adapters, "states")
        tokens = sum(states.q_lens)
        qkv, z, b, a = self._projected(x, adapters)
        carried = states.begin(self.cache_index)
        inputs, matrices = carried.split((self._carried_inputs, self._values * self._key_size), -1)
        mixed, inputs = causal_convolution(
            qkv[:tokens].float(),
            inputs.view(-1, self._kernel - 1, self._channels),
            states.q_lens,
            self.weight[:, 0],
            None,
            states.inner,
        )
        q, k, v = silu(mixed).split((self._keys, self._keys, self._values), -1)
        matrices = matrices.reshape(-1, self._heads, self._key_size, self._value_size).mT.contiguous()
        g = -self.a_log.exp() * steady_softplus(a[:tokens].float() + self.dt_bias)
        beta = steady_sigmoid(b[:tokens].float())
        q, k, v = self._of_value_heads(q), self._of_value_heads(k), v.view(tokens, self._heads, -1)
        out, matrices = gated_delta_rule(q, k, v, g, beta, matrices, states.q_lens, states.inner)
        states.store(self.cache_index, torch.cat((inputs.flatten(1), matrices.mT.flatten(1)), -1))
        out = F.rms_norm(out, (self._value_size,), self.norm, self._eps)
        out = out.flatten(1) * silu(z[:tokens].float())
        y = F.pad(out, (0, 0, 0, len(x) - tokens)).to(x.dtype)
        return step.share.product(self.outward, y, adapters, "states")
