"""`MetricsSink`: where the figures of an engine go, for `/metrics`."""

from __future__ import annotations


class MetricsSink:
    """Takes figures of sequences and calls. Called from the loop task; must be quick and never raise.

    All durations in seconds. The methods do nothing here: an engine without metrics needs none.
    """

    def first_token(self, ttft: float) -> None:
        """A sequence's first token was committed `ttft` after its arrival."""

    def tokens(self, count: int, inter_token: float, sequences: int = 1) -> None:
        """`count` tokens of each of so many sequences were committed in one step, `inter_token` seconds after the sequence's
        previous ones."""

    def finished(self, outcome: str, prompt_tokens: int, output_tokens: int, e2e: float) -> None:
        """A sequence ended; `outcome` is its finish reason. `prompt_tokens`: 0 where another choice of the call counts them, or
        nothing was computed."""

    def used(self, key_name: str, prompt_tokens: int, output_tokens: int) -> None:
        """A sequence of a call with this API key ended, after so many tokens; see `finished`. Only for calls with a key."""

    def refused(self, code: str) -> None:
        """A call was refused with the advice to retry later; `code` is the error's: overloaded or deadline_exceeded."""

    def failed(self, code: str) -> None:
        """A sequence ended in an error that is not its client's; `code` is the error's: sequence_failed for NaN logits, say."""

    def restarted(self, cause: str) -> None:
        """The executor was restarted after a death of this cause."""

    def adopted(self, num_kept: int, num_damaged: int) -> None:
        """After a failure the executor kept `num_kept` KV blocks, and dropped `num_damaged` whose memory was damaged."""
