"""The journal: which tokens exist.

A token exists once committed here; clients only ever see committed tokens, and a restarted executor is told of them so
that it goes on behind them. Logprobs go to the reader with the token they belong to, and are never computed again.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from engine.request import FinishReason, TokenDelta
from engine.sequence import Sequence
from executors.contract import SampledToken


class Journal:
    """Decides which output is committed, and keeps the epoch.

    An epoch is one life of the executor. Output computed in an older epoch is dropped: the sequence was rewound to what
    is committed, and the same positions will be computed again.
    """

    def __init__(self) -> None:
        self.epoch = 0

    def open_epoch(self) -> int:
        """A new executor life begins; returns its number."""
        self.epoch += 1
        return self.epoch

    def accepts(self, epoch: int) -> bool:
        """True if output of that epoch still counts."""
        return epoch == self.epoch

    def commit(self, seq: Sequence, tokens: SequenceOf[SampledToken]) -> None:
        """Append tokens to the output, in order of position."""
        seq.commit([token.token_id for token in tokens])

    def commit_prompt(self, seq: Sequence, position: int, found: SequenceOf[SampledToken]) -> None:
        """Take in logprobs of prompt tokens `position` + 1 and after. Those that are known already stay as they are: a prompt
        that is computed again is not described again."""
        seq.commit_prompt(found[len(seq.prompt_logprobs) - position :])

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
        """Drop tokens past `num_tokens`: the text layer found an end before them, so they never counted."""
        seq.cut(num_tokens)
