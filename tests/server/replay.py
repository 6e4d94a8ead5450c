"""A server whose model writes recorded token ids: text engine and tokenizer are real, and a core plays the answers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as RawTokenizer

from engine.config import EngineConfig
from engine.mailbox import Mailbox
from engine.request import FinishReason, Request, TokenDelta
from engine.text.generation import TextEngine
from engine.text.tokenizer import Tokenizer
from executors.contract import SampledToken
from server.answer.notation import model_notation
from server.templates.template import ChatTemplate
from tests.engine.tokenizers_for_tests import load
from tests.server.fakes import House

CONTEXT = 20_000


@dataclass
class ReplayCore:
    """Gives each request the next answer of `answers`, `size` tokens at a time, up to its limit and to its stop tokens.
    Complains about an answer that ends by neither."""

    answers: list[Sequence[int]] = field(default_factory=list)
    size: int = 1
    requests: list[Request] = field(default_factory=list)
    finished: dict[int, int] = field(default_factory=dict)
    """Numbers of tokens after which the text side ended sequences."""
    grammars: list[str] = field(default_factory=list)
    config: EngineConfig = field(default_factory=EngineConfig)
    max_model_len: int = CONTEXT
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def play(self, answers: list[Sequence[int]], size: int) -> None:
        """Begin anew, with these answers in turn."""
        self.answers, self.size = answers, size
        self.requests.clear()
        self.finished.clear()

    def call(self) -> Any:
        return nullcontext()

    def submit_choices(self, requests: Sequence[Request], mailbox: Mailbox, first_key: int = 0) -> list[int]:
        return [self.submit(one, mailbox, key) for key, one in enumerate(requests, first_key)]

    def submit(self, request: Request, mailbox: Mailbox, key: int = 0, *, accepted: bool = False) -> int:
        number = len(self.requests)
        self.requests.append(request)
        answer = self.answers[number % len(self.answers)]
        self._tasks.append(asyncio.create_task(self._write(number, request, mailbox, key, answer)))
        return number

    async def _write(
        self, number: int, request: Request, mailbox: Mailbox, key: int, answer: Sequence[int]
    ) -> None:
        for delta in self._deltas(request, answer):
            if number in self.finished:
                return
            mailbox.put(key, delta)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert number in self.finished or delta.finish_reason is not None, "an answer without an end"

    def _deltas(self, request: Request, answer: Sequence[int]) -> Iterator[TokenDelta]:
        ids = list(answer[: request.max_tokens])
        stop = next((at for at, one in enumerate(ids) if one in request.stop_token_ids), None)
        ids = ids if stop is None else ids[: stop + 1]
        for start in range(0, len(ids), self.size):
            delta = TokenDelta([SampledToken(one, -0.5) for one in ids[start : start + self.size]])
            if start + self.size >= len(ids):
                if stop is not None:
                    delta.finish_reason, delta.stop_token_id = FinishReason.STOP, ids[-1]
                elif len(ids) == request.max_tokens:
                    delta.finish_reason = FinishReason.LENGTH
            yield delta

    def abort(self, seq_id: int) -> None:
        self.finished.setdefault(seq_id, -1)

    def finish(self, seq_id: int, num_tokens: int) -> None:
        self.finished[seq_id] = num_tokens

    async def prepare_grammar(self, grammar: str) -> None:
        self.grammars.append(grammar)


def byte_tokenizer(folder: Path, special: Sequence[str], eos: str) -> Tokenizer:
    """A token a byte, and these special tokens."""
    raw = RawTokenizer(
        models.BPE(vocab={c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, merges=[])
    )
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens([AddedToken(one, special=True, normalized=False) for one in special])
    return load(raw, folder, eos)


@contextmanager
def replaying(tokenizer: Tokenizer, template: str) -> Iterator[tuple[House, ReplayCore]]:
    """A server over a core that replays, with the notation that the template shows."""
    core = ReplayCore()
    source = ChatTemplate(template, {})
    house = House(notation=model_notation(tokenizer, source, None, None))
    assert house.state.model is not None
    house.state.model = replace(
        house.state.model,
        engine=TextEngine(core, tokenizer),
        tokenizer=tokenizer,
        max_model_len=CONTEXT,
        template=source,
    )
    try:
        yield house, core
    finally:
        house.state.threads.close()
