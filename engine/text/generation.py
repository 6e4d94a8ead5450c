"""From prompts in token ids to text: one call, one or many choices, an async stream of text deltas.

The text side of the engine: it owns detokenizing and stop strings, and talks to `engine.core` in token ids only, so that
API workers may run it in processes of their own later.
"""

from __future__ import annotations

import secrets
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from engine.core.loop import EngineCore
from engine.errors import EngineError, InvalidRequest, SequenceFailed
from engine.mailbox import Mailbox
from engine.request import FinishReason, Request, TokenDelta
from engine.text.choice import Choice, ChoiceOptions, TextDelta, TokenText
from engine.text.embedding import Embedder, EmbeddingRequest
from engine.text.prompt_logprobs import prompt_texts
from engine.text.tokenizer import Tokenizer
from executors.contract import SamplingParams

__all__ = ["Generation", "TextDelta", "TextEngine", "TextRequest", "TokenText", "Usage"]


_CONTEXT = 32
"""Tokens of the prompt that decide how its continuation is decoded."""
MAX_SETTING_IDS = 2**20
"""Token ids in `bad_words`, `logit_bias` and `allowed_token_ids`, times the choices of a call: a tenth of a second's work."""
_SEED_BITS = 53
"""Of minted seeds: clients send them back, and JavaScript rounds larger numbers."""
_PLAIN = SamplingParams()


@dataclass(frozen=True, slots=True)
class TextRequest:
    """One API call. Choices are numbered prompt by prompt: index = prompt number * n + choice.

    Of `sampling` the engine sets `seed`, `choice` and `stop_token_ids` itself, and its `min_tokens` also holds back stop strings
    until that many tokens have come. `seed` counts modulo 2**64, and None lets the engine mint one (reported by
    `Generation.seed`). `max_tokens` None means: as many as the context allows, and no more than `default_tokens`. Choices of
    equal prompts differ as those of one prompt do. `stop` strings end a choice and are cut from its text unless
    `include_stop_str_in_output`.
    """

    request_id: str
    prompts: tuple[tuple[int, ...], ...]
    n: int = 1
    max_tokens: int | None = None
    default_tokens: int | None = None
    sampling: SamplingParams = _PLAIN
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    continues_prompt: bool = False
    """The text goes on with the prompt's: where the tokenizer drops the space at the beginning of a text, the answer keeps
    it. False for an answer that stands alone."""
    priority: int = 0
    """As in `engine.request.Request`, and refused where the engine's policy would pay no heed to it."""
    cache_salt: str | None = None
    """As in `engine.request.Request`."""
    tenant: str = ""
    """As in `engine.request.Request`."""
    deadline_ms: int | None = None
    """Milliseconds from its arrival by which the request must have started to be computed."""
    arrival_time: float | None = None
    """When the call came, in seconds of the engine's clock, for what it took to make this of it; None: now. Deadlines and the
    times that are measured count from then."""
    grammar: str | None = None
    """As in `engine.request.Request`; best made known by `TextEngine.prepare_grammar` before."""
    prompt_logprobs: int | None = None
    """As in `engine.request.Request`; told once for each prompt."""
    shown_special: frozenset[int] = frozenset()
    """Special tokens that are shown although `skip_special_tokens`: notation that a parser of the text needs."""
    ends: Callable[[], Callable[[str], bool]] | None = None
    """Makes, for each choice, what is told the text of each token as it comes; a choice ends with the token for which it
    answers True, as with one that completes a stop string."""


@dataclass(slots=True)
class Usage:
    """Token counts of a call so far; prompts are counted once each, whatever n. `cached_tokens` are those of the prompts
    that were found in the prefix cache; what choices share with each other is not among them."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0


class Generation:
    """A call in progress: iterate it for deltas of all choices as they come.

        async with text_engine.start(request) as generation:
            async for delta in generation: ...

    Leaving the block (early, by an error or by cancellation) aborts what still runs, within one step. The iteration
    raises `EngineError` when a choice fails; the other choices are aborted with it.
    """

    def __init__(self, core: EngineCore, tokenizer: Tokenizer, request: TextRequest) -> None:
        self.request = request
        self.seed = secrets.randbits(_SEED_BITS) if request.seed is None else request.seed
        self.usage = Usage(prompt_tokens=sum(map(len, request.prompts)))
        self._core = core
        self._tokenizer = tokenizer
        # Weakly: a circle would keep the prompt until the garbage collector comes, which is seldom.
        give_up = weakref.WeakMethod(self._abort_all)
        self._mailbox = Mailbox(on_full=lambda: method() if (method := give_up()) else None)
        end_tokens = tokenizer.eos_token_ids - frozenset(request.stop_token_ids)
        options = ChoiceOptions(
            request.stop,
            request.include_stop_str_in_output,
            request.skip_special_tokens,
            request.sampling.logprobs is not None,
            end_tokens,
            request.shown_special,
            request.sampling.min_tokens,
        )
        self._stop_token_ids = frozenset(request.stop_token_ids)
        if not request.ignore_eos:
            self._stop_token_ids |= tokenizer.eos_token_ids
        # A grammar says where these may come, `min_tokens` from when on.
        ends = self._stop_token_ids if request.sampling.min_tokens or request.grammar else ()
        self._sampling = replace(request.sampling, seed=self.seed % 2**64, stop_token_ids=tuple(sorted(ends)))
        self._choices = {
            number * request.n + choice: Choice(
                number * request.n + choice,
                tokenizer,
                options,
                prompt[-_CONTEXT:] if request.continues_prompt else (),
                None if request.ends is None else request.ends(),
            )
            for number, prompt in enumerate(request.prompts)
            for choice in range(request.n)
        }
        self._cached: dict[int, int] = {}
        """Cached tokens of each prompt, by its number."""
        self._seq_ids: dict[int, int] = {}
        """Sequences that still run, by choice index."""

    def _submit(self) -> None:
        """Queue all choices, or none: an error takes back those queued before it."""
        try:
            self._check_volume()
            n, before = self.request.n, self._equal_before()
            for prompt_number, prompt in enumerate(self.request.prompts):
                ids, first = np.array(prompt, np.int32), prompt_number * n
                asked = [self._ask(ids, choice, before[prompt_number] * n) for choice in range(n)]
                seq_ids = self._core.submit_choices(asked, self._mailbox, first)
                self._seq_ids.update(enumerate(seq_ids, first))
        except EngineError:
            self._abort()
            raise

    def _check_volume(self) -> None:
        """Each choice carries its own copy of these, and each of their ids is looked at for each. Raises InvalidRequest."""
        asked, sampling = self.request, self.request.sampling
        sizes = {
            "bad_words": sum(map(len, sampling.bad_words)),
            "logit_bias": len(sampling.logit_bias),
            "allowed_token_ids": len(sampling.allowed_token_ids or ()),
        }
        if sum(sizes.values()) * asked.n * len(asked.prompts) > MAX_SETTING_IDS:
            param = max(sizes, key=lambda name: sizes[name])
            message = f"The token ids of '{param}' times the choices may be at most {MAX_SETTING_IDS}; ask for fewer of one."
            raise InvalidRequest(message, param=param, code="invalid_value")

    def _equal_before(self) -> list[int]:
        """Of each prompt, how many before it are the same: with one seed for all they would say the same, and who sends a prompt
        many times wants many answers. By itself a prompt says what it says in a list of others."""
        if len(self.request.prompts) == 1:
            return [0]  # hashing a long prompt takes a millisecond
        seen: Counter[tuple[int, ...]] = Counter()
        found = []
        for prompt in self.request.prompts:
            found.append(seen[prompt])
            seen[prompt] += 1
        return found

    def _ask(
        self, ids: np.ndarray[tuple[int], np.dtype[np.int32]], choice: int, chosen_before: int
    ) -> Request:
        asked = self.request
        arrived = self._core.clock() if asked.arrival_time is None else asked.arrival_time
        max_tokens = asked.max_tokens
        if max_tokens is None:
            room = self._core.max_model_len - len(ids)
            max_tokens = max(1, room if asked.default_tokens is None else min(room, asked.default_tokens))
        return Request(
            asked.request_id,
            ids,
            self._sampling.of_choice(chosen_before + choice),
            max_tokens,
            self._stop_token_ids,
            arrived,
            priority=asked.priority,
            cache_salt=asked.cache_salt,
            tenant=asked.tenant,
            deadline=None if asked.deadline_ms is None else arrived + asked.deadline_ms / 1000,
            grammar=asked.grammar,
            prompt_logprobs=None if choice else asked.prompt_logprobs,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._abort()

    def _abort(self) -> None:
        self._abort_all()
        self._seq_ids.clear()

    def _abort_all(self) -> None:
        """What was computed so far is still to be read."""
        for seq_id in self._seq_ids.values():
            self._core.abort(seq_id)

    async def __aiter__(self) -> AsyncIterator[TextDelta]:
        while self._seq_ids:
            for index, delta in (await self._mailbox.take()).items():
                if index not in self._seq_ids:
                    continue  # tokens past a stop string: neither shown nor counted
                text = self._advance(index, delta)
                if delta.prompt_logprobs is not None:
                    prompt = self.request.prompts[index // self.request.n]
                    told = await prompt_texts(self._tokenizer, prompt, delta.prompt_logprobs)
                    text = replace(text, prompt_logprobs=told)
                if text.text or text.token_ids or text.finish_reason or text.prompt_logprobs:
                    yield text
                if delta.finish_reason is FinishReason.ERROR and index in self._seq_ids:
                    del self._seq_ids[index]
                    self._abort()
                    error = delta.error or SequenceFailed("the sequence failed")
                    try:
                        raise error
                    finally:
                        del error, delta  # it knows this frame: a frame that knew it would close a circle

    def _advance(self, index: int, delta: TokenDelta) -> TextDelta:
        choice = self._choices[index]
        failed = delta.finish_reason is FinishReason.ERROR  # behind its tokens
        text = choice.push(replace(delta, finish_reason=None) if failed else delta)
        self.usage.completion_tokens += len(text.token_ids)
        prompt, number = divmod(index, self.request.n)
        if not number:
            # The first choice of a prompt is the one that looks it up; the others begin with its KV.
            self._cached[prompt] = delta.num_cached_tokens
            self.usage.cached_tokens = sum(self._cached.values())
        if choice.finished:
            seq_id = self._seq_ids.pop(index)
            if choice.ended_by_text:
                self._core.finish(seq_id, choice.num_tokens)
        return text


class TextEngine:
    """Starts generations. Holds no state of its own beyond the core and the tokenizer."""

    def __init__(self, core: EngineCore, tokenizer: Tokenizer) -> None:
        self.core = core
        self.tokenizer = tokenizer

    def start(self, request: TextRequest) -> Generation:
        """Queue a call. Raises InvalidRequest, ContextLengthExceeded, Overloaded or Unavailable at once, and then nothing
        of it is queued."""
        self._check_priority(request.priority)
        generation = Generation(self.core, self.tokenizer, request)
        generation._submit()
        return generation

    async def embed(self, request: EmbeddingRequest) -> tuple[list[NDArray[np.float32]], Usage]:
        """The vector of each prompt, float32 [hidden] of any length, and what was counted. Raises EngineError."""
        self._check_priority(request.priority)
        embedder = Embedder(self.core, request)
        vectors = await embedder.run()
        return vectors, Usage(sum(map(len, request.prompts)), 0, embedder.cached_tokens)

    async def prepare_grammar(self, grammar: str) -> None:
        """Have the executor compile a grammar before a request with it is queued, while others go on.

        Raises InvalidRequest where the executor has no grammars, or finds this one at fault. An executor that is away for a
        moment is no error: it will compile the grammar when the request comes.
        """
        await self.core.prepare_grammar(grammar)

    def _check_priority(self, priority: int) -> None:
        policy = self.core.config.scheduling_policy
        if priority and policy != "priority":
            message = f"'priority' has no effect with --scheduling-policy {policy}: this server does not serve by priority."
            raise InvalidRequest(message, "priority", "unsupported_value")
