"""A causal convolution over the tokens of each sequence, one kernel for each channel, which goes on where an earlier step ended.

    out[t] = bias + sum over j < kernel of weight[j] * x[t - kernel + 1 + j]

What lies before a sequence is zeros. The carried state is its last kernel - 1 inputs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from executors.llm.model.api import InnerState


def causal_convolution(
    x: torch.Tensor, carried: torch.Tensor, q_lens: Sequence[int], weight: torch.Tensor, bias: torch.Tensor | None = None,
    inner: Sequence[InnerState] = (),
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Return the outputs float32 [tokens, channels] and what is carried on, float32 [items + inner, kernel - 1, channels]: behind
    each item, then at the places of `inner`.

    `x` float32 [tokens, channels]: the tokens of all items, one item after the other, `q_lens` of each. `carried` of each item.
    `weight` [channels, kernel], `bias` [channels]. Each token adds its products in the order of the kernel, so that its bits do
    not depend on where a sequence is cut.
    """
    before = weight.shape[1] - 1
    counts = torch.tensor(q_lens, device=x.device)
    # Each item's inputs behind what it carries:  c c x x x | c c x | c c x x
    item = torch.repeat_interleave(counts)
    places = torch.arange(len(x), device=x.device) + item * before
    begins = torch.cumsum(counts + before, 0) - counts - before
    history = begins[:, None] + torch.arange(before, device=x.device)
    inputs = x.new_empty(len(x) + len(counts) * before, x.shape[1])
    inputs[history.flatten()] = carried.flatten(0, 1)
    inputs[places + before] = x
    taps = weight.float().T
    out = inputs[places] * taps[0]
    for j in range(1, before + 1):
        out += inputs[places + j] * taps[j]
    if bias is not None:
        out += bias.float()
    ends = torch.tensor([*q_lens, *(one.num_rows for one in inner)], device=x.device)
    of_item = torch.tensor([*range(len(q_lens)), *(one.item for one in inner)], device=x.device)
    return out, inputs[history[of_item] + ends[:, None]]
