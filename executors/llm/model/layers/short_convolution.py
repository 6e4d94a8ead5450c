"""`ShortConvolution`: a convolution over a few tokens between two gates, as the mixer of LFM2's layers without attention."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from executors.contract.errors import ConfigError
from executors.kernels.cpu import CpuKernels
from executors.kernels.scan import MAX_KERNEL, ConvolutionKernel
from executors.llm.model.caches import LayerMemory, LayerState
from executors.llm.model.config import DecoderConfig, LayerConfig
from executors.llm.model.cuts import Range
from executors.llm.model.layers.base import LayerStep, Sublayer
from executors.llm.model.layers.convolution import causal_convolution
from executors.llm.model.linear import Linear
from executors.llm.model.places import NamedPlaces, Place, of_linear


class ShortConvolution(Sublayer):
    """outward(c * convolution(b * u)) with (b, c, u) = inward(x), after Lfm2ShortConv in transformers. The state of a sequence is
    its last kernel - 1 products b * u, float32 [kernel - 1, channels]: as many as hidden states have, on a rank a part."""

    def __init__(
        self, config: DecoderConfig, layer: LayerConfig, dtype: torch.dtype, device: torch.device
    ) -> None:
        hidden, self._kernel = config.hidden_size, config.sizes["conv_L_cache"]
        channels = layer.channels or hidden
        if self._kernel < 2:
            raise ConfigError(f"conv_L_cache is {self._kernel}; at least 2 is needed")
        bias = config.switches["conv_bias"]
        self._channels = self.out_columns = channels
        """Columns of what `outward` multiplies."""
        self._names = config.family.names
        self.inward = Linear(3 * channels, hidden, bias, dtype, device)
        self.outward = Linear(hidden, channels, bias, dtype, device)
        self.weight = torch.empty(channels, 1, self._kernel, dtype=dtype, device=device)
        self.bias = torch.empty(channels, dtype=dtype, device=device) if bias else None
        self.by_kernels: ConvolutionKernel | None = None
        """The layer between its projections, where the CPU's kernels compute it."""

    @property
    def linears(self) -> tuple[Linear, ...]:
        """See `Sublayer`."""
        return self.inward, self.outward

    @property
    def adapted(self) -> tuple[Linear, ...]:
        """See `Sublayer`."""
        return self.inward, self.outward

    def memory(self) -> LayerMemory:
        """See `Sublayer`."""
        return LayerState((self._kernel - 1, self._channels))

    def tensors(self) -> NamedPlaces:
        """See `Sublayer`."""
        yield from of_linear(self.inward, (self._names.conv_in, -1))
        yield from of_linear(self.outward, (self._names.conv_out, -1))
        yield f"{self._names.conv}.weight", Place(self.weight)
        if self.bias is not None:
            yield f"{self._names.conv}.bias", Place(self.bias)

    @property
    def units(self) -> tuple[int, int]:
        """Number of parts that ranks share, channels, and the columns of `outward` that each has."""
        return self._channels, 1

    def rows_of(self, units: Range) -> list[tuple[Linear | torch.Tensor, tuple[Range, ...]]]:
        """Return the rows of tensors that a rank with these channels has."""
        begin, end = units
        thirds = tuple((i * self._channels + begin, i * self._channels + end) for i in range(3))
        alone = [self.weight] if self.bias is None else [self.weight, self.bias]
        return [(self.inward, thirds), *((one, (units,)) for one in alone)]

    @property
    def fits_kernels(self) -> bool:
        """Whether the CPU's kernels have the layer's sizes."""
        return self._kernel <= MAX_KERNEL

    def use_kernels(self, kernels: CpuKernels) -> None:
        """See `Sublayer`."""
        if self.fits_kernels:
            self.by_kernels = ConvolutionKernel(kernels, self.weight[:, 0], self.bias)

    def forward(self, x: torch.Tensor, step: LayerStep) -> torch.Tensor:
        """See `Sublayer`."""
        states, adapters = step.inputs.states, step.inputs.adapters
        assert states is not None
        tokens = sum(states.q_lens)
        extra = None if adapters is None else adapters.extra(self.inward, x)
        if self.by_kernels is not None:
            wide = self.inward.wide(x, extra)
            y = self.by_kernels(wide, states.slots, self.cache_index, x.dtype)
            return step.share.product(self.outward, y, adapters, "states")
        b, c, u = self.inward(x, extra).chunk(3, -1)
        out, carried = causal_convolution(
            (b * u)[:tokens].float(),
            states.begin(self.cache_index),
            states.q_lens,
            self.weight[:, 0],
            self.bias,
            states.inner,
        )
        states.store(self.cache_index, carried)
        y = c * F.pad(out, (0, 0, 0, len(x) - tokens)).to(x.dtype)
        return step.share.product(self.outward, y, adapters, "states")
