"""A limit to what an answer that is not streamed may hold."""

from __future__ import annotations

from engine.errors import InvalidRequest

MAX_LOGPROB_BYTES = 256 * 2**20
"""Of one answer's logprobs, encoded: four million tokens and alternatives. All of it is kept until the last token has come."""


class Room:
    """What one answer may still take in. One writer: the task that collects it."""

    def __init__(self, param: str) -> None:
        """`param` is the field that asked for it."""
        self._param = param
        self._taken = 0

    def take(self, size: int) -> None:
        """So many bytes more. Raises InvalidRequest where it is too much."""
        self._taken += size
        if self._taken > MAX_LOGPROB_BYTES:
            message = (
                f"The logprobs of this answer would be more than {MAX_LOGPROB_BYTES} bytes. Ask for fewer alternatives, "
                "choices or tokens, or for a stream."
            )
            raise InvalidRequest(message, self._param, "answer_too_large")
