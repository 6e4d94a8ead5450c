"""How ranks share layers that keep a state of each sequence. A rank has some units of each such layer, and their states:

    short convolution   a channel: its three rows of the projection, its kernel, its column of the output
    gated delta rule    a key head with its value heads: their rows of q, k, v, z, b and a, channels and decays, and the columns
                        of the output that belong to the value heads

Outputs are summed over ranks. Each rank has the whole layer, and the whole state, where no such cut is possible: there are fewer
units than ranks, blocks of quantized columns lie in several of them, or value heads are in the order of GGUF files.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from executors.llm.model.config import DecoderConfig
from executors.llm.model.cuts import Range
from executors.llm.model.layers.base import Sublayer
from executors.llm.model.layers.gated_delta import GatedDelta
from executors.llm.model.layers.short_convolution import ShortConvolution

Joining = Literal["whole", "sum", "join"]
"""How a sublayer's second matrix is computed: by each rank alone with the whole sublayer, as a sum over ranks, or by each rank
alone after its input was joined."""
STATEFUL = (GatedDelta, ShortConvolution)


@dataclass(frozen=True, slots=True)
class StateShare:
    """The `units` of each layer that a rank has. `columns`: of the output's matrix in the whole layer, 0 without such layers;
    `own_columns`: those of the rank."""

    joining: Joining
    units: Range
    columns: int
    own_columns: Range

    def rows_of(self, mixers: Sequence[Sublayer]) -> dict[int, tuple[Range, ...]]:
        """Return the rows that the rank has, by the ids of linear layers and of other tensors; {} if it has all."""
        if self.joining == "whole":
            return {}
        stateful = (one for one in mixers if isinstance(one, STATEFUL))
        return {id(one): rows for mixer in stateful for one, rows in mixer.rows_of(self.units)}

    def of_rank(self, config: DecoderConfig) -> DecoderConfig:
        """Return the configuration of the rank's layers."""
        if self.joining == "whole":
            return config
        count, sizes = self.units[1] - self.units[0], dict(config.sizes)
        if (keys := sizes.get("linear_num_key_heads")) is not None:
            sizes["linear_num_value_heads"] = sizes["linear_num_value_heads"] // keys * count
            sizes["linear_num_key_heads"] = count
            return replace(config, sizes=sizes)
        return replace(config, layers=tuple(replace(layer, channels=count) for layer in config.layers))


def share_states(
    mixers: Sequence[GatedDelta | ShortConvolution], size: int, place: int, block: int | None
) -> StateShare:
    """Share the layers of a model, which are alike, among `size` ranks; `block`: columns of the output's matrix that stay
    together, None for all of them. Return the part of the rank at this place."""
    count, columns = mixers[0].units if mixers else (0, 0)
    total = mixers[0].out_columns if mixers else 0
    if count and block is not None:
        ranges = cut_ranges(count, size, block // math.gcd(block, columns))
        if all(begin < end for begin, end in ranges):
            begin, end = ranges[place]
            return StateShare("sum", (begin, end), total, (columns * begin, columns * end))
    return StateShare("whole", (0, count), total, (0, total))


def cut_ranges(total: int, parts: int, unit: int) -> tuple[Range, ...]:
    """Cut 0..total into parts at multiples of `unit`, as equal as these allow, the larger ones first."""
    units, ranges, begin = -(-total // unit), [], 0
    for i in range(parts):
        end = begin + units // parts + (i < units % parts)
        ranges.append((min(total, begin * unit), min(total, end * unit)))
        begin = end
    return tuple(ranges)
