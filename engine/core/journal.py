"""The journal: records which tokens are committed.

A token exists once it is committed here. Clients only see committed tokens, and a restarted executor receives them so
that it continues after them. Logprobs go to the reader with their token and are never computed again.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from engine.request import FinishReason, TokenDelta
from engine.sequence import Sequence
from executors.contract import SampledToken


class Journal:
    """Decides which output is committed, and holds the epoch.

    An epoch is one life of the executor. Output computed in an older epoch is dropped: the sequence was rewound to the
    committed tokens, and the same positions will be computed again.
    """

    def __init__(self) -> None:
        self.epoch = 0

    def open_epoch(self) -> int:
        """Begin a new epoch and return its number."""
        self.epoch += 1
        return self.epoch

    def accepts(self, epoch: int) -> bool:
        """Return True if output of that epoch still counts."""
        return epoch == self.epoch

    def commit(self, seq: Sequence, tokens: SequenceOf[SampledToken]) -> None:
        """Append tokens to the output, in order of position."""
        seq.commit([token.token_id for token in tokens])

    def commit_prompt(self, seq: Sequence, position: int, logprobs: SequenceOf[SampledToken]) -> None:
        """Record logprobs of the prompt tokens from `position` + 1 on. Known logprobs do not change: a prompt
        that is computed again does not replace them."""
        seq.commit_prompt(logprobs[len(seq.prompt_logprobs) - position :])

    def restore(self, seq: Sequence, committed: SequenceOf[SampledToken]) -> TokenDelta | None:
        """Commit tokens that existed before this engine met the sequence (resume after a crash elsewhere). Returns the final
        delta if they end the sequence: the crash came between the last token and that delta."""
        self.commit(seq, committed)
        last = committed[-1].token_id
        if last in seq.request.stop_token_ids:
            reason, stop_token_id = FinishReason.STOP, last
        elif len(committed) >= seq.request.max_tokens:
            reason, stop_token_id = FinishReason.LENGTH, None
        else:
            return None
        seq.finish(reason)
        return TokenDelta(finish_reason=reason, stop_token_id=stop_token_id)

    def cut(self, seq: Sequence, num_tokens: int) -> None:
        """Drop tokens past `num_tokens`: the text layer found the end of the output before them."""
        seq.cut(num_tokens)
