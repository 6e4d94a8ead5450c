"""`SlotGrammars`: the grammars of a step's sequences, followed on a thread while the forward runs.

    step      start                                     join
    main      |------ forward (no GIL) ------| logits   |  sample under the masks, note what was kept
    thread    |-- take last step's tokens, masks --|

A sequence's state follows the inputs of each step, so it survives preemption and rejected drafts. It is rebuilt from the
sequence's start.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from executors.contract.batch import ItemOutput, SequenceStart
from executors.contract.errors import ExecutorError
from executors.contract.token_history import TokenHistory
from executors.llm.sampling.grammar import GrammarCompiler, GrammarState, Mask


class Inputs(NamedTuple):
    """Inputs of an item: `tokens` from `position` on, the last `num_drafts` of them drafts, and which of them are pending
    (their ids are those sampled last)."""

    position: int
    tokens: list[int]
    pending: list[bool] | None
    num_drafts: int


class ItemMasks(NamedTuple):
    """A mask for each sampled row of an item, None for rows that cannot be kept; or, in `failed`, the item's output instead
    of tokens."""

    masks: list[Mask | None]
    failed: ItemOutput | None = None


class _Output(TokenHistory):
    """Output that records how far it was truncated since the last check."""

    def __init__(
        self, prompt: Sequence[int] | NDArray[np.integer], output: Sequence[int] | NDArray[np.integer]
    ) -> None:
        super().__init__(prompt, output)
        self.shortest = 0

    def truncate(self, length: int) -> None:
        """See `TokenHistory`."""
        super().truncate(length)
        self.shortest = min(self.shortest, len(self.output))


class Follower:
    """Follower of one sequence's grammar. The matcher lags behind the output by the tokens kept of the last step."""

    def __init__(self, start: SequenceStart, grammar: str, ends: tuple[int, ...]) -> None:
        self.output = _Output(start.prompt_token_ids, start.output_token_ids)
        self._grammar, self._ends = grammar, ends
        self._state: GrammarState | None = None

    def masks(self, compiler: GrammarCompiler, inputs: Inputs, into: np.ndarray | None = None) -> ItemMasks:
        """Compute masks for the row after the inputs and for the rows after each draft; or write them to `into`, int32
        [1 + drafts, mask_words], a bit a token. Raises InvalidInput for impossible inputs."""
        num_known = len(inputs.tokens) - inputs.num_drafts
        self.output.sync(inputs.position, inputs.tokens[:num_known], inputs.pending)
        try:
            drafts = inputs.tokens[num_known:]
            masks = self._follow(compiler, drafts, into)
            if masks.failed is not None and self._state is not None:
                # What matchers of one grammar share may be used up: once more, with a fresh one.
                compiler.discard(self._grammar, self._state)
                self._state = None
                masks = self._follow(compiler, drafts, into)
            return masks
        except ExecutorError as error:
            return ItemMasks([], ItemOutput(error=str(error)))
        except BaseException as error:  # a panic of the library is no Exception
            message = f"the grammar failed: {type(error).__name__}: {error}"
            return ItemMasks([], ItemOutput(error=message))

    def _follow(self, compiler: GrammarCompiler, drafts: list[int], into: np.ndarray | None) -> ItemMasks:
        state = self._state
        if state is None:
            state = self._state = compiler.begin(self._grammar, self._ends)
        output = self.output.output
        state.rewind(self.output.shortest)
        for token in output[len(state) :]:
            if not state.take(token):
                stray = f"token {len(state)} of the output, {token}, violates its grammar"
                return ItemMasks([], state.failure() or ItemOutput(error=stray))
        self.output.shortest = len(output)
        masks: list[Mask | None] = []
        if into is not None:
            into[1:] = -1
        for row, draft in enumerate((None, *drafts)):
            if draft is not None and not state.take(draft):
                if state.failure() is None and _allows(masks, into, row - 1, draft):
                    return ItemMasks(
                        [], ItemOutput(error=f"the grammar allowed draft {draft} and then refused it")
                    )
                break
            if into is None:
                masks.append(state.mask())
            else:
                state.pack(into[row])
        # The row before a forbidden draft samples another token: those after it are computed for nothing.
        masks += [None] * (1 + len(drafts) - len(masks))
        state.rewind(len(output))
        return ItemMasks(masks, state.failure())


def _allows(masks: list[Mask | None], into: np.ndarray | None, row: int, token: int) -> bool:
    """Whether a mask, in the one form or the other, lets a token come."""
    if into is not None:
        return bool((int(into[row, token >> 5]) >> (token & 31)) & 1)
    mask = masks[row]
    return mask is not None and mask.allows(token)


class SlotGrammars:
    """Grammars by slot. The stages of a step are the only writers, except for the thread between `start` and the result of its
    future."""

    def __init__(self, compiler: GrammarCompiler) -> None:
        self.compiler = compiler
        self._of: dict[int, Follower] = {}
        self._thread: ThreadPoolExecutor | None = None

    def begin(self, start: SequenceStart) -> None:
        """Assign the slot to a sequence."""
        self._of.pop(start.slot, None)
        if start.grammar is not None and start.sampling is not None and start.pooling is None:
            self._of[start.slot] = Follower(start, start.grammar, start.sampling.stop_token_ids)

    def drop(self, slot: int) -> None:
        """Free the slot."""
        self._of.pop(slot, None)

    def clear(self) -> None:
        """Free all slots."""
        self._of.clear()

    def close(self) -> None:
        """End the thread."""
        self.clear()
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None

    def __bool__(self) -> bool:
        return bool(self._of)

    def __contains__(self, slot: int) -> bool:
        return slot in self._of

    def start(self, requests: dict[int, tuple[int, Inputs]]) -> Future[dict[int, ItemMasks]]:
        """Start computing the masks of some items: {item: (slot, inputs)}. Do not use this object until the result is
        available."""
        work = [(item, self._of[slot], inputs) for item, (slot, inputs) in requests.items()]
        return self._own_thread().submit(
            lambda: {item: follower.masks(self.compiler, inputs) for item, follower, inputs in work}
        )

    def follower(self, slot: int) -> Follower:
        """Return what follows the grammar of a slot's sequence, for `start_packed`."""
        return self._of[slot]

    def start_packed(
        self, work: Sequence[tuple[Follower, Inputs]], into: np.ndarray
    ) -> Future[dict[int, ItemOutput]]:
        """Start writing the masks of each follower, one and one behind each draft, to the rows of `into`, int32 [k, mask_words],
        in order: see `row_masks.py`. The result holds, by place in `work`, outputs of items whose grammar cannot go on; their
        masks forbid nothing. Do not use these followers until the result is available."""

        def write() -> dict[int, ItemOutput]:
            failed, begin = {}, 0
            for place, (follower, inputs) in enumerate(work):
                own = into[begin : begin + 1 + inputs.num_drafts]
                begin += len(own)
                masks = follower.masks(self.compiler, inputs, own)
                if masks.failed is not None:
                    failed[place] = masks.failed
                    own[:] = -1
            return failed

        return self._own_thread().submit(write)

    def _own_thread(self) -> ThreadPoolExecutor:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammar masks")
        return self._thread

    def keep(self, slot: int, tokens: list[int]) -> None:
        """Append the tokens that sampling and verification of a step kept for an item."""
        output = self._of[slot].output
        for token in tokens:
            output.append(token)
