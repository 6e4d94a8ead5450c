"""Penalties, biases and bans without the host: the lists of `edits.py` as a table on the device.

    | counted, repetition, frequency, presence | biases | until | words, one per token id | results |
      ------------------------- HEADER --------------------------

A word holds the number of times the token is in the output (the low bits), whether the prompt contains it, and the index of
the row's entry that changes its logit (the high bits, 0 for none): a bias, and a number of tokens until which the token is
forbidden. `results` belong to the kernels: float32 logits as they are sampled. A sampled token is counted once, when it
returns as an input: `counted` is the position up to which inputs have been counted. A step may therefore be launched before
the host knows the token of the step before it.

With drafts a sequence has several rows of logits in a step, of which each takes one more draft for given:

    input     t5   d6   d7           t5 is known, d6 and d7 are guessed
    row        a    b    c
    counts    t5   t5   t5           beside what the table has counted
                   d6   d6
                        d7

So a row counts the inputs of its sequence's rows up to its own. Only t5 is counted in the table: the host tells which drafts
were accepted, before the next step of the sequence. Rows b and c have results of their own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from executors.kernels.shaping_layout import (
    BIASES,
    ENTRY_SHIFT,
    FREQUENCY,
    HEADER,
    IN_PROMPT,
    PRESENCE,
    REPETITION,
    UNTIL,
)


@dataclass(frozen=True, slots=True)
class RowShaping:
    """Shaping of n rows of logits.

    `table` int32 [m, row_words]; `rows` int32 [n], indices into the table, -1 for logits that are not shaped; `lengths` int32
    [n]: tokens of the sequence before the sampled one; `inputs` int32 [n]: the last of those tokens. `guessed` int32 [n]: 0, or
    for a shaped row whose last input is a draft, which lies behind the sequence's row before it, from 1: the row of `results`,
    float32 [k, result_words], that kernels write its logits to.
    """

    table: torch.Tensor
    rows: torch.Tensor
    lengths: torch.Tensor
    inputs: torch.Tensor
    guessed: torch.Tensor
    results: torch.Tensor

    def part(self, rows: slice) -> RowShaping:
        """Return the shaping of some of the rows: of a sequence all or none."""
        return replace(
            self, rows=self.rows[rows], lengths=self.lengths[rows], inputs=self.inputs[rows], guessed=self.guessed[rows]
        )  # fmt: skip


def shaped(logits: torch.Tensor, shaping: RowShaping, part: slice = slice(None)) -> torch.Tensor:
    """Apply the table to raw `logits` [n, V], those of a `part` of the rows; return float32 [n, V]. Inputs that are not counted
    yet are counted."""
    wide, width = logits.float(), logits.shape[1]
    rows, lengths = shaping.rows[part], shaping.lengths[part]
    own = shaping.table.index_select(0, rows.clamp_min(0))
    counted, words = own[:, 0], own[:, HEADER : HEADER + width]
    # [n, all rows]: the rows of the same sequence up to this one, whose inputs are not in the table.
    new = (rows[:, None] == shaping.rows) & (shaping.lengths <= lengths[:, None])
    new &= _fresh(counted[:, None], shaping.lengths)
    count = (words & (IN_PROMPT - 1)).contiguous()
    count.scatter_add_(1, shaping.inputs.long().expand(len(rows), -1), new.int())
    entry = (words >> ENTRY_SHIFT).long()
    banned = own[:, UNTIL:HEADER].gather(1, entry) > lengths[:, None]
    bias = own[:, BIASES:UNTIL].contiguous().view(torch.float32).gather(1, entry)
    result = wide + bias.masked_fill(banned & (entry > 0), -torch.inf)
    repetition, frequency, presence = (
        own[:, at : at + 1].contiguous().view(torch.float32) for at in (REPETITION, FREQUENCY, PRESENCE)
    )
    repeated = torch.where(result > 0, result / repetition, result * repetition)
    result = torch.where((count > 0) | (words & IN_PROMPT > 0), repeated, result)
    result = result - frequency * count - presence * (count > 0)
    return torch.where(rows[:, None] >= 0, result, wide)


def count_inputs(shaping: RowShaping) -> None:
    """Count the inputs that are not counted yet and no drafts. Rows that are not shaped may write to the table's last row."""
    table, last_row = shaping.table, len(shaping.table) - 1
    rows = torch.where(shaping.rows < 0, last_row, shaping.rows).long()
    settled = (shaping.rows >= 0) & (shaping.guessed == 0)
    fresh = settled & _fresh(table[:, 0].index_select(0, rows), shaping.lengths)
    places = rows * table.shape[1] + HEADER + shaping.inputs
    table.view(-1).index_add_(0, places, fresh.int())
    table[:, 0].scatter_reduce_(0, rows, torch.where(fresh, shaping.lengths, 0), "amax")


def _fresh(counted: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Return which rows' last input is not counted yet."""
    return counted < lengths
