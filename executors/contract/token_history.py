"""`TokenHistory`: the tokens of one sequence and the number of their occurrences, kept up to date token by token.

Penalties, bad words and `min_tokens` use it. Standard library and NumPy only.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from executors.contract.batch import SequenceStart
from executors.contract.errors import InvalidInput


class TokenHistory:
    """Prompt and output of a sequence. One writer: the executor's step.

        position   0 .. prompt_len - 1 | prompt_len .. len - 1        the next token is sampled at position `len`

    - `ids` int64, `counts` int32, `in_prompt` bool [d]: the distinct tokens, how often each is in the output, and whether
      the prompt has it. A token that was rolled back stays listed with count 0.
    """

    def __init__(
        self, prompt: Sequence[int] | NDArray[np.integer], output: Sequence[int] | NDArray[np.integer] = ()
    ) -> None:
        prompt_ids = np.unique(np.asarray(prompt, np.int64))
        self.prompt_len = len(prompt)
        self.output: list[int] = []
        self._num = len(prompt_ids)
        self._ids = np.zeros(max(64, 2 * self._num), np.int64)
        self._ids[: self._num] = prompt_ids
        self._counts = np.zeros(len(self._ids), np.int32)
        self._in_prompt = np.zeros(len(self._ids), np.bool_)
        self._in_prompt[: self._num] = True
        self._place = {int(token): i for i, token in enumerate(prompt_ids)}
        for token in output:
            self.append(int(token))

    @staticmethod
    def of(start: SequenceStart) -> TokenHistory:
        """The history of a sequence's start."""
        return TokenHistory(start.prompt_token_ids, start.output_token_ids)

    def __len__(self) -> int:
        return self.prompt_len + len(self.output)

    @property
    def ids(self) -> NDArray[np.int64]:
        """Distinct tokens; a view, valid until the next `append`."""
        return self._ids[: self._num]

    @property
    def counts(self) -> NDArray[np.int32]:
        """Occurrences in the output of each of `ids`; a view."""
        return self._counts[: self._num]

    @property
    def in_prompt(self) -> NDArray[np.bool_]:
        """Whether the prompt has each of `ids`; a view."""
        return self._in_prompt[: self._num]

    def append(self, token: int) -> None:
        """Append one output token."""
        self.output.append(token)
        place = self._place.get(token)
        if place is None:
            place = self._place[token] = self._num
            if place == len(self._ids):
                self._ids = np.resize(self._ids, 2 * place)
                self._counts = np.concatenate([self._counts, np.zeros(place, np.int32)])
                self._in_prompt = np.concatenate([self._in_prompt, np.zeros(place, np.bool_)])
            self._ids[place] = token
            self._num += 1
        self._counts[place] += 1

    def truncate(self, length: int) -> None:
        """Forget the output from position `length` on; the prompt stays."""
        while len(self) > length and self.output:
            self._counts[self._place[self.output.pop()]] -= 1

    def sync(self, position: int, tokens: Sequence[int], pending: Sequence[bool] | None = None) -> None:
        """Make the history end with `tokens` at `position` and after it: the inputs of the step that samples next.

        Usually it does already, and this is one comparison. After a rollback the tokens past the inputs are forgotten, and
        inputs that differ from the recorded ones replace them. `pending` marks inputs whose id the host does not know: they
        are the recorded ones. Raises InvalidInput if tokens before `position` were never seen.
        """
        end, first = position + len(tokens), max(position, self.prompt_len)
        if len(self) < first:
            raise InvalidInput(f"the sampler knows {len(self)} tokens of a sequence that is at {position}")
        for place in range(first, end):
            token = int(tokens[place - position])
            is_recorded = place < len(self)
            if pending is not None and pending[place - position]:
                if not is_recorded:
                    raise InvalidInput(f"no token was sampled for position {place}, it cannot be pending")
                continue
            if is_recorded and self.output[place - self.prompt_len] != token:
                self.truncate(place)
                is_recorded = False
            if not is_recorded:
                self.append(token)
        self.truncate(max(end, self.prompt_len))

    def ends_with(self, tokens: Sequence[int]) -> bool:
        """True if the output (not the prompt) ends with `tokens`."""
        count = len(tokens)
        return count == 0 or (
            count <= len(self.output) and tuple(self.output[len(self.output) - count :]) == tuple(tokens)
        )
