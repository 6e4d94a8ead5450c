"""The journal: which tokens exist.

A token exists once committed here; clients only ever see committed tokens, and a restarted executor is told of them so
that it goes on behind them. Logprobs go to the reader with the token they belong to, and are never computed again.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from engine.request import FinishReason, TokenDelta
from engine.sequence import Sequence, SequenceStatus
from executors.contract import SampledToken


class Journal:
    """The only writer of a sequence's output, and the keeper of the epoch.

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
        """Make tokens exist, in order of position."""
        seq.output_token_ids.extend([token.token_id for token in tokens])
        seq.num_known_tokens += len(tokens)

    def commit_one(self, seq: Sequence, token_id: int) -> None:
        """`commit` of a single token."""
        seq.output_token_ids.append(token_id)
        seq.num_known_tokens += 1

    def commit_prompt(self, seq: Sequence, position: int, found: SequenceOf[SampledToken]) -> None:
        """Take in logprobs of prompt tokens `position` + 1 and after. What is known already stays as it was told: a prompt
        that is computed again is not described again."""
        seq.prompt_logprobs.extend(found[len(seq.prompt_logprobs) - position :])

    def restore(self, seq: Sequence, committed: SequenceOf[SampledToken]) -> TokenDelta | None:
        """Tokens that existed before this engine met the sequence (resume after a crash elsewhere). Returns its end, if they
        are all: it was lost between the last token and its end."""
        self.commit(seq, committed)
        last = committed[-1].token_id
        if last in seq.request.stop_token_ids:
            reason, stop_token_id = FinishReason.STOP, last
        elif len(committed) >= seq.request.max_tokens:
            reason, stop_token_id = FinishReason.LENGTH, None
        else:
            return None
        seq.status, seq.finish_reason = SequenceStatus.FINISHED, reason
        return TokenDelta(finish_reason=reason, stop_token_id=stop_token_id)

    def cut(self, seq: Sequence, num_tokens: int) -> None:
        """Tokens past `num_tokens` came after the end that the text layer found: they never counted."""
        del seq.output_token_ids[num_tokens:]
        seq.num_known_tokens = seq.prompt_len + len(seq.output_token_ids)
