"""A kind of layer that no family has: a running average of the hidden states. It is the one file that a new kind takes."""

from __future__ import annotations

import torch

from executors.llm.model.caches import LayerMemory, LayerState
from executors.llm.model.config import DecoderConfig, LayerConfig
from executors.llm.model.layers.base import LayerStep, Sublayer
from executors.llm.model.linear import Linear
from executors.llm.model.places import NamedPlaces, Place, of_linear


class RunningAverage(Sublayer):
    """s[t] = d * s[t-1] + (1 - d) * inward(x[t]), output outward(s[t]). Each of `decay_groups` groups of columns has its d,
    sigmoid(decay)."""

    def __init__(
        self, config: DecoderConfig, layer: LayerConfig, dtype: torch.dtype, device: torch.device
    ) -> None:
        hidden = config.hidden_size
        self.name = config.family.names.layer + "average"
        self.groups = config.sizes["decay_groups"]
        self.hidden = hidden
        self.inward = Linear(hidden, hidden, False, dtype, device)
        self.outward = Linear(hidden, hidden, False, dtype, device)
        self.decay = torch.empty(self.groups, dtype=dtype, device=device)

    @property
    def linears(self) -> tuple[Linear, ...]:
        return self.inward, self.outward

    def memory(self) -> LayerMemory:
        return LayerState((self.hidden,))

    def tensors(self) -> NamedPlaces:
        yield from of_linear(self.inward, (f"{self.name}.in_proj", -1))
        yield from of_linear(self.outward, (f"{self.name}.out_proj", -1))
        yield f"{self.name}.decay", Place(self.decay)

    def forward(self, x: torch.Tensor, step: LayerStep) -> torch.Tensor:
        states = step.inputs.states
        assert states is not None
        new = self.inward(x).float()
        decay = torch.sigmoid(self.decay.float()).repeat_interleave(self.hidden // self.groups)
        carried, out, begins = states.begin(self.cache_index), torch.zeros_like(new), []
        for item, count in enumerate(states.q_lens):
            begins.append(sum(states.q_lens[:item]))
            state = carried[item]
            for row in range(begins[item], begins[item] + count):
                state = decay * state + (1.0 - decay) * new[row]
                out[row] = state
            carried[item] = state
        inner = [out[begins[one.item] + one.num_rows - 1] for one in states.inner]
        states.store(self.cache_index, torch.stack([*carried, *inner]))
        return self.outward(out.to(x.dtype))
