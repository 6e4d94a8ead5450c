"""`TextCore`: what the text side needs of the engine core, in this process or in another one."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from engine.config import EngineConfig
from engine.mailbox import Mailbox
from engine.request import Request


class TextCore(Protocol):
    """The part of `engine.core.engine.EngineCore` that turns token ids into token ids.

    A core in another process cannot refuse a request at once: there `submit` and `submit_choices` return, and the refusal is
    the first delta.
    """

    @property
    def config(self) -> EngineConfig:
        """The engine's settings."""

    @property
    def max_model_len(self) -> int:
        """Most tokens a sequence may have, prompt and output."""

    def submit(self, request: Request, mailbox: Mailbox, key: int = 0, *, accepted: bool = False) -> int:
        """Queue a request; returns the id of its sequence. Raises EngineError."""

    def submit_choices(self, requests: Sequence[Request], mailbox: Mailbox, first_key: int = 0) -> list[int]:
        """Queue requests with one prompt, all of them or none; returns the ids of their sequences. Raises EngineError."""

    def call(self) -> AbstractContextManager[None]:
        """For a call that submits its parts one after the other: a drain waits until the block is left."""

    def abort(self, seq_id: int) -> None:
        """Drop a sequence. Unknown or finished ids are harmless."""

    def finish(self, seq_id: int, num_tokens: int) -> None:
        """End a sequence after `num_tokens` tokens: a stop string was found."""

    async def prepare_grammar(self, grammar: str) -> None:
        """Compile a grammar in the executor. Raises InvalidRequest."""
