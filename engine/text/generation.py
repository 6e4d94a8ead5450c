"""From prompts in token ids to text: one call, one or many choices, an async stream of text deltas.

The text side of the engine: it owns detokenizing and stop strings, and exchanges only token ids with `engine.core`, so that
API workers may run it in processes of their own later.
"""

from __future__ import annotations

import secrets
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from engine.errors import FIELD, EngineError, InvalidRequest, SequenceFailed
from engine.mailbox import Mailbox
from engine.request import FinishReason, Request, RequestContext, TokenDelta
from engine.text.choice import Choice, ChoiceOptions, TextDelta, TokenText
from engine.text.core import TextCore
from engine.text.embedding import Embedder, EmbeddingRequest
from engine.text.prompt_logprobs import prompt_texts
from engine.text.tokenizer import Tokenizer
from executors.contract import SamplingParams

__all__ = ["Generation", "TextDelta", "TextEngine", "TextRequest", "TokenText", "Usage"]


_CONTEXT = 32
"""Number of the prompt's last tokens that affect how its continuation is decoded."""
MAX_SETTING_IDS = 2**20
"""Limit on token ids in `bad_words`, `logit_bias` and `allowed_token_ids`, times the choices of a call: 0.1 s of work."""
_SEED_BITS = 53
"""Number of bits of generated seeds: clients send them back, and JavaScript rounds larger numbers."""
_PLAIN = SamplingParams()


@dataclass(frozen=True, slots=True)
class TextRequest:
    """One API call. Choices are numbered prompt by prompt: index = prompt number * n + choice.

    The engine sets `seed`, `choice` and `stop_token_ids` of `sampling` itself, and its `min_tokens` also delays stop strings
    until that many tokens have been generated. `seed` counts modulo 2**64; for None the engine generates one (reported by
    `Generation.seed`). `max_tokens` None means: as many as the context allows, and at most `default_tokens`. Choices of equal
    prompts differ like those of one prompt. `stop` strings end a choice and are cut from its text unless
    `include_stop_str_in_output`.
    """

    context: RequestContext
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
    """Whether the text continues the prompt's: if the tokenizer drops the space at the beginning of a text, the answer keeps
    it. False for a separate answer."""
    adapter: str | None = None
    """Digest of the LoRA adapter to compute with, known to the engine."""
    speculative: bool = True
    """Whether drafts may be made for it."""
    grammar: str | None = None
    """As in `engine.request.Request`; best compiled before by `TextEngine.prepare_grammar`."""
    prompt_logprobs: int | None = None
    """As in `engine.request.Request`; reported once for each prompt."""
    shown_special: frozenset[int] = frozenset()
    """Special tokens that are shown despite `skip_special_tokens`: notation that a parser of the text needs."""
    marks: Mapping[int, str] = field(default_factory=dict)
    """Texts in place of tokens, for a parser of the text: no token spells them. Only for a byte-level vocabulary."""
    ends: Callable[[], Callable[[str], bool]] | None = None
    """Factory, called for each choice, of a function that takes the text of each new token. The choice ends with the token for
    which the function returns True, as with one that completes a stop string."""
    cache_points: tuple[int, ...] = ()
    """As in `engine.request.Request`, for each prompt."""
    stop_scope: Callable[[], Callable[[str], Sequence[tuple[str, bool]]]] | None = None
    """Factory, called for each choice, of a function that divides the text of each new token into pieces, and tells whether stop
    strings count in each. None: they count everywhere."""


@dataclass(slots=True)
class Usage:
    """Token counts of a call so far; each prompt is counted once, for any n. `cached_tokens`: tokens of the prompts that were
    found in the prefix cache, without those that choices share with each other."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0


TakeText = Callable[[str], bool]
"""Type of a function that takes the text of a choice's next token, maybe "", and returns False where it does not take it now."""


class TextSink(Protocol):
    """Takes text as its tokens come, without a task, while the task that iterates over the call waits."""

    @property
    def ready(self) -> bool:
        """Whether the next delta may be given to `take`."""

    def take(self, delta: TextDelta) -> None:
        """Take a delta; never waits."""

    def text_taker(self, index: int) -> TakeText | None:
        """Function to which the deltas of a choice may go from now on, if they are text alone, up to its last one; None while
        they have to go to `take`. Called behind `take`."""

    def flush(self, now: float) -> None:
        """Send what was taken. Called before the turn of the event loop ends. `now`: `time.monotonic()`."""


class Generation:
    """A call in progress: iterate over it for the deltas of all choices as they come.

        async with text_engine.start(request) as generation:
            async for delta in generation: ...

    Leaving the block (early, by an error or by cancellation) aborts the running sequences within one step. The iteration
    raises `EngineError` when a choice fails; the other choices are aborted with it.

    Deltas that neither begin nor end a choice go to `sink`, if there is one and it is ready, in place of the iteration: a task
    that wakes for each token costs more than the token's text. Together they give all deltas, in their order.
    """

    def __init__(self, core: TextCore, tokenizer: Tokenizer, request: TextRequest) -> None:
        self.request = request
        self._num_prompt_tokens = sum(map(len, request.prompts))
        self._num_tokens = 0
        """Tokens of all deltas so far."""
        self._num_cached_tokens = 0
        """Of all prompts."""
        self.seed = secrets.randbits(_SEED_BITS) if request.seed is None else request.seed
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
            min_tokens=request.sampling.min_tokens,
            marks=request.marks,
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
                None if request.stop_scope is None else request.stop_scope(),
            )
            for number, prompt in enumerate(request.prompts)
            for choice in range(request.n)
        }
        self._cached: dict[int, int] = {}
        """Cached tokens of each prompt, by the index of its first choice."""
        self._seq_ids: dict[int, int] = {}
        """Sequences that still run, by choice index."""
        self.sink: TextSink | None = None
        """Set by the caller once it has taken a delta from the iteration, or before."""
        self.takers: dict[int, Callable[[int], None]] = {}
        """See `engine.mailbox.Direct`: of choices that go on with text alone, by index."""
        self._last: TextDelta | None = None
        """A delta whose text was made outside of the iteration, which gives it next: it ended its choice, or was not taken."""
        self._failure: Exception | None = None
        """What `sink` raised; the iteration raises it next."""

    @property
    def usage(self) -> Usage:
        """Token counts of the deltas so far."""
        return Usage(self._num_prompt_tokens, self._num_tokens, self._num_cached_tokens)

    def _submit(self) -> None:
        """Queue all choices or none: an error aborts those queued before it."""
        try:
            self._check_volume()
            n, before = self.request.n, self._equal_before()
            for prompt_number, prompt in enumerate(self.request.prompts):
                ids, first = np.array(prompt, np.int32), prompt_number * n
                requests = [self._ask(ids, choice, before[prompt_number] * n) for choice in range(n)]
                try:
                    seq_ids = self._core.submit_choices(requests, self._mailbox, first)
                except InvalidRequest as error:
                    error.element = prompt_number
                    raise
                self._seq_ids.update(enumerate(seq_ids, first))
        except EngineError:
            self._abort()
            raise

    def _check_volume(self) -> None:
        """Check the number of ids in settings: each choice has its own copy, whose ids are all checked. Raises InvalidRequest."""
        call, sampling = self.request, self.request.sampling
        sizes = {
            "bad_words": sum(map(len, sampling.bad_words)),
            "logit_bias": len(sampling.logit_bias),
            "allowed_token_ids": len(sampling.allowed_token_ids or ()),
        }
        if sum(sizes.values()) * call.n * len(call.prompts) > MAX_SETTING_IDS:
            param = max(sizes, key=lambda name: sizes[name])
            message = f"The token ids of '{FIELD}' times the choices may be at most {MAX_SETTING_IDS}; ask for fewer of one."
            raise InvalidRequest(message, param=param, code="invalid_value")

    def _equal_before(self) -> list[int]:
        """For each prompt, the number of equal prompts before it. With one seed they would all give the same text, and a client
        that repeats a prompt wants different answers. A prompt that occurs once gives the same text alone and in a list."""
        if len(self.request.prompts) == 1:
            return [0]  # hashing a long prompt takes a millisecond
        counts: Counter[tuple[int, ...]] = Counter()
        ranks = []
        for prompt in self.request.prompts:
            ranks.append(counts[prompt])
            counts[prompt] += 1
        return ranks

    def _ask(
        self, ids: np.ndarray[tuple[int], np.dtype[np.int32]], choice: int, chosen_before: int
    ) -> Request:
        call = self.request
        max_tokens = call.max_tokens
        if max_tokens is None:
            room = self._core.max_model_len - len(ids)
            max_tokens = max(1, room if call.default_tokens is None else min(room, call.default_tokens))
        return Request(
            call.context,
            ids,
            self._sampling.of_choice(chosen_before + choice),
            max_tokens,
            self._stop_token_ids,
            adapter=call.adapter,
            speculative=call.speculative,
            grammar=call.grammar,
            prompt_logprobs=None if choice else call.prompt_logprobs,
            cache_points=call.cache_points,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._abort()
        self.sink = None  # it may know this call

    def _abort(self) -> None:
        self._abort_all()
        self._seq_ids.clear()
        self.takers.clear()  # they know this call

    def _abort_all(self) -> None:
        """Abort all running sequences; deltas computed so far can still be read."""
        for seq_id in self._seq_ids.values():
            self._core.abort(seq_id)

    async def __aiter__(self) -> AsyncIterator[TextDelta]:
        while self._seq_ids:
            if self.sink is None:
                deltas = await self._mailbox.take()
            else:
                deltas = await self._mailbox.take(self, self.sink.flush)
            if self._failure is not None:
                try:
                    raise self._failure
                finally:
                    self._failure = None  # it knows this frame
            if self._last is not None:
                last, self._last = self._last, None
                yield last
            for index, delta in deltas.items():
                if index not in self._seq_ids:
                    continue  # tokens past a stop string: neither shown nor counted
                text = self._advance(index, delta)
                if delta.prompt_logprobs is not None:
                    prompt = self.request.prompts[index // self.request.n]
                    entries = await prompt_texts(self._tokenizer, prompt, delta.prompt_logprobs)
                    text = replace(text, prompt_logprobs=entries)
                if text.text or text.token_ids or text.finish_reason or text.prompt_logprobs:
                    yield text
                if delta.finish_reason is FinishReason.ERROR and index in self._seq_ids:
                    del self._seq_ids[index]
                    self._abort()
                    error = delta.error or SequenceFailed("the sequence failed")
                    error.element = index // self.request.n
                    try:
                        raise error
                    finally:
                        # It knows this frame: a frame that knew it would close a circle.
                        del error, delta, deltas

    # -- what `Mailbox` gives while the iteration waits ----------------------------------------------------------------

    def take(self, index: int, delta: TokenDelta) -> bool:
        """See `engine.mailbox.Direct`: give a delta's text to `sink`; False if the iteration has to take the delta."""
        sink, choice = self.sink, self._choices[index]
        if (
            sink is None
            or not choice.num_tokens
            or delta.finish_reason is not None
            or delta.prompt_logprobs is not None
            or not sink.ready
        ):
            return False
        if index not in self._seq_ids:
            return True  # tokens past a stop string: neither shown nor counted
        try:
            text = self._advance(index, delta)
            if not choice.finished:
                if text.token_ids:
                    sink.take(text)
                    if choice.plain and (take := sink.text_taker(index)) is not None:
                        self.takers[index] = self._token_taker(choice, take)
                return True
            self._last = text
        except Exception as error:
            self._failure = error
        self._mailbox.wake()
        return True

    def _token_taker(self, choice: Choice, take: TakeText) -> Callable[[int], None]:
        """Function that gives the text of a choice's next token to `take`, or else to the iteration."""

        def take_token(token_id: int) -> None:
            try:
                text = choice.push_plain(token_id)
                self._num_tokens += 1
                if take(text):
                    return
                self._last = TextDelta(choice.index, text, (token_id,))
            except Exception as error:
                self._failure = error
            self._mailbox.wake()

        return take_token

    def _note_cached(self, index: int, delta: TokenDelta) -> None:
        """Count tokens found in the cache. The first choice of a prompt looks it up; the others begin with its KV."""
        if not index % self.request.n:
            self._num_cached_tokens += delta.num_cached_tokens - self._cached.get(index, 0)
            self._cached[index] = delta.num_cached_tokens

    def _advance(self, index: int, delta: TokenDelta) -> TextDelta:
        choice = self._choices[index]
        failed = delta.finish_reason is FinishReason.ERROR  # behind its tokens
        text = choice.push(replace(delta, finish_reason=None) if failed else delta)
        self._num_tokens += len(text.token_ids)
        self._note_cached(index, delta)
        if choice.finished:
            seq_id = self._seq_ids.pop(index)
            self.takers.pop(index, None)
            if choice.ended_by_text:
                self._core.finish(seq_id, choice.num_tokens)
        return text


class TextEngine:
    """Starts generations. Holds no state of its own beyond the core and the tokenizer."""

    def __init__(self, core: TextCore, tokenizer: Tokenizer) -> None:
        self.core = core
        self.tokenizer = tokenizer

    def start(self, request: TextRequest) -> Generation:
        """Queue a call. Raises InvalidRequest, ContextLengthExceeded, Overloaded or Unavailable at once; then no part of it is
        queued."""
        self._check_priority(request.context)
        generation = Generation(self.core, self.tokenizer, request)
        generation._submit()
        return generation

    async def embed(self, request: EmbeddingRequest) -> tuple[list[NDArray[np.float32]], Usage]:
        """The vector of each prompt, float32 [hidden] or [labels], not normalised, and the token counts. Raises EngineError."""
        self._check_priority(request.context)
        embedder = Embedder(self.core, request)
        vectors = await embedder.run()
        return vectors, Usage(sum(map(len, request.prompts)), 0, embedder.cached_tokens)

    async def prepare_grammar(self, grammar: str) -> None:
        """Compile a grammar in the executor before a request with it is queued; other requests proceed meanwhile.

        Raises InvalidRequest if the executor has no grammars or refuses this one. An executor that is temporarily unavailable
        is not an error: it will compile the grammar when the request comes.
        """
        await self.core.prepare_grammar(grammar)

    def _check_priority(self, context: RequestContext) -> None:
        policy = self.core.config.scheduling_policy
        if context.priority and policy != "priority":
            message = (
                f"'{FIELD}' has no effect with --scheduling-policy {policy}: this server ignores priorities."
            )
            raise InvalidRequest(message, "priority", "unsupported_value")
