"""`DraftRests`: when steps are launched ahead in place of steps with drafts, on executors whose steps overlap.

A draft is made of the tokens before it, so a step that may verify drafts is made when the step before it has given its tokens;
the executor waits for the host meanwhile. Steps of tokens to come are launched ahead of those tokens, and no time is lost. Drafts
compete with such steps, whose time shows only while none are made:

    drafting    step | host | step | host | step | host                   each may verify drafts
    a rest      step | step | step | step                                 none does

A rest begins where a few steps in a row had nothing to verify that would pay, and is longer each time; and it is a short one
where steps have verified drafts for long, so that it is known what they are compared with.
"""

from __future__ import annotations

from dataclasses import dataclass

_IDLE = 4
"""Steps in a row without drafts after which a rest begins."""
_FIRST, _LONGEST = 16, 128
"""Steps of the first rest, doubled up to the longest: then looking for drafts costs four steps of 132 their overlap."""
_COMPARE_EVERY = 64
_COMPARED = 4
"""Steps of drafting after which, and for which, steps are launched ahead to be measured. The first of them is not ahead yet."""


@dataclass(slots=True)
class _Size:
    """Of batches of about as many sequences. `idle` steps in a row without drafts; `without_rest`: steps since one was ahead; the
    rest lasts from step `begin` to `until`; `length` of the next rest."""

    idle: int = 0
    without_rest: int = 0
    begin: int = 0
    until: int = 0
    length: int = _FIRST


class DraftRests:
    """See the module. Sizes of batches are told apart by powers of two."""

    def __init__(self) -> None:
        self._sizes: dict[int, _Size] = {}
        self._step = 0

    def _of(self, num_seqs: int) -> _Size:
        return self._sizes.setdefault(num_seqs.bit_length(), _Size())

    def resting(self, num_seqs: int) -> bool:
        """Whether a step of `num_seqs` sequences is to be launched ahead, without drafts."""
        size = self._of(num_seqs)
        return size.begin <= self._step < size.until

    def decided(self, num_seqs: int, drafts: bool) -> None:
        """A step of `num_seqs` sequences was made of known tokens; `drafts`: it verifies some. May begin a rest."""
        size = self._of(num_seqs)
        size.without_rest += 1
        size.idle = 0 if drafts else size.idle + 1
        if drafts:
            size.length = _FIRST
        if size.idle >= _IDLE:
            self._rest(size, size.length)
            size.length = min(2 * size.length, _LONGEST)
        elif size.without_rest >= _COMPARE_EVERY:
            self._rest(size, _COMPARED)

    def _rest(self, size: _Size, steps: int) -> None:
        # When the step that is made now has landed: until then sequences without drafts would go ahead of the others.
        size.begin = self._step + 1
        size.until, size.idle, size.without_rest = size.begin + steps, 0, 0

    def step_landed(self) -> None:
        """A step of decodes has landed."""
        self._step += 1
