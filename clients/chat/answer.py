"""One answer as it is received: its text, and the line that closes it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from clients.chat.client import ChatClient
from clients.chat.screen import AnswerWriter


@dataclass
class Answer:
    """`pieces`: of its text, reasoning excluded. `tokens`: of both, as the server counts them, or None if it has not told.
    `asked_at`, `first`, `last`: seconds of a monotonic clock at the request, its first piece and the newest event."""

    asked_at: float = field(default_factory=lambda: time.monotonic())
    pieces: list[str] = field(default_factory=list)
    tokens: int | None = None
    received: int = 0
    """Pieces of both kinds: most servers send one for each token."""
    first: float | None = None
    last: float = 0.0
    note: str = ""
    """How it ended, unless by itself."""

    @property
    def text(self) -> str:
        """As far as it came."""
        return "".join(self.pieces)

    def receive(
        self, client: ChatClient, messages: Sequence[Mapping[str, str]], writer: AnswerWriter, *, counts: bool
    ) -> None:
        """Take in the whole answer and write it. Raises what `ChatClient.stream` raises, and KeyboardInterrupt; what came before
        is here then."""
        # Closed also by Ctrl-C, which is what tells the server.
        with contextlib.closing(client.stream(messages, count_tokens=counts)) as pieces:
            for kind, piece in pieces:
                self.last = time.monotonic()
                if kind == "finish":
                    self.note = "cut at the token limit" if piece == "length" else ""
                elif kind == "tokens":
                    self.tokens = int(piece)
                else:
                    self.first = self.last if self.first is None else self.first
                    self.received += 1
                    if kind == "text":
                        self.pieces.append(piece)
                    writer.write(kind, piece)

    def closing(self) -> str:
        """Such as "183 tokens, 18.6/s, first after 0.1 s"; empty if nothing came. The first token waits for the prompt: the rate
        is that of the others."""
        if self.first is None:
            return ""
        tokens = self.received if self.tokens is None else self.tokens
        parts = [f"{'about ' if self.tokens is None else ''}{tokens:,} token{'' if tokens == 1 else 's'}"]
        if tokens > 1 and (seconds := self.last - self.first) > 0:
            parts.append(f"{(tokens - 1) / seconds:.1f}/s")
        return ", ".join((*parts, f"first after {self.first - self.asked_at:.1f} s"))
