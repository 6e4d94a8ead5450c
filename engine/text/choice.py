"""One choice of a call on its way from tokens to text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from engine.request import FinishReason, TokenDelta
from engine.text.detokenizer import detokenizer
from engine.text.stop_strings import StopStrings
from engine.text.tokenizer import Tokenizer
from executors.contract import SampledToken


@dataclass(frozen=True, slots=True)
class TokenText:
    """A sampled token as text, for logprobs: `text` is this token alone (incomplete characters are shown as U+FFFD), `raw` its
    exact bytes, `offset` the character offset in the choice's text at which it begins."""

    token: SampledToken
    text: str
    raw: bytes
    offset: int
    top: tuple[tuple[str, bytes, float], ...] = ()
    """(text, bytes, logprob) of each alternative, best first."""


@dataclass(slots=True)  # a frozen one takes 1.5 us longer to make, and there is one for each token
class TextDelta:
    """New text of one choice: never half a character, never part of a stop string.

    `finish_reason` ("stop" or "length") is set on the choice's last delta only; `stop_reason` is the stop string or stop
    token id that ended it (None for the model's own end token). `token_ids` may be non-empty with empty text. `logprobs`
    covers exactly the tokens of `token_ids`, if requested.
    """

    index: int
    text: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenText, ...] | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    prompt_logprobs: tuple[TokenText, ...] | None = None
    """Logprobs of the prompt, if requested, with the first delta of each prompt's first choice: one entry per prompt token; the
    first entry has no logprob."""


@dataclass(frozen=True, slots=True)
class ChoiceOptions:
    """Options for turning a choice into text; the same for all choices of a call."""

    stop: tuple[str, ...] = ()
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    logprobs: bool = False
    own_end_tokens: frozenset[int] = frozenset()
    """End tokens of the model: stopping at one has no `stop_reason`."""
    shown_special: frozenset[int] = frozenset()
    """Special tokens that are shown as text regardless of `skip_special_tokens`."""
    marks: Mapping[int, str] = field(default_factory=dict)
    """Texts in place of tokens, for a tokenizer with a byte-level vocabulary."""
    min_tokens: int = 0
    """Number of tokens before a stop string counts: a later token must complete it, but it may begin in their text."""


def begins_at(offset: int, text: str, own: str) -> int:
    """The offset where a token's text begins: `offset`, or after the earlier text that became certain with it. Bytes that turn
    out not to be a character are shown with the next token, as the first part of `text`."""
    return offset + len(text) - len(own) if own and "\ufffd" not in own and text.endswith(own) else offset


class Choice:
    """Detokenizes and watches for stop strings. Pure: tokens in, text out.

    `context`: ids that the text continues, see `detokenizer`. `ends` takes the text that each token adds, and returns whether
    the choice ends with that token. `stop_scope` takes the same text and divides it into pieces in which stop strings count
    (True) and others.
    """

    __slots__ = (
        "_detokenizer", "_ended", "_ends", "_offset", "_options", "_stop_scope", "_stops", "_tokenizer", "finished", "index",
        "num_tokens", "plain",
    )  # fmt: skip

    def __init__(
        self,
        index: int,
        tokenizer: Tokenizer,
        options: ChoiceOptions,
        context: Sequence[int] = (),
        ends: Callable[[str], bool] | None = None,
        stop_scope: Callable[[str], Sequence[tuple[str, bool]]] | None = None,
    ) -> None:
        self.index = index
        self.num_tokens = 0
        """Number of tokens that count: up to and including the one that completed a stop string."""
        self.finished = False
        self._tokenizer = tokenizer
        self._options = options
        self._detokenizer = detokenizer(
            tokenizer, options.skip_special_tokens, context, options.shown_special, options.marks
        )
        self._stops = StopStrings(options.stop, options.include_stop_str_in_output)
        self._ends = ends
        self._stop_scope = stop_scope if options.stop else None
        self._ended = False
        self._offset = 0
        self.plain = not options.logprobs and not options.stop and ends is None
        """Whether text alone is made of tokens, and does not end the choice."""

    @property
    def ended_by_text(self) -> bool:
        """True once a stop string matched or `ends` returned True: the engine must end the sequence at `num_tokens`."""
        return self._ended or self._stops.matched is not None

    def push(self, delta: TokenDelta) -> TextDelta:
        """Text for newly committed tokens. The caller handles `delta.error`."""
        if self.plain and len(delta.tokens) == 1 and delta.finish_reason is None:  # the frequent case
            token_id = delta.tokens[0].token_id
            return TextDelta(self.index, self.push_plain(token_id), (token_id,))
        parts: list[str] = []
        ids: list[int] = []
        logprobs: list[TokenText] = []
        last = len(delta.tokens) - 1
        for i, token in enumerate(delta.tokens):
            ends_here = i == last and delta.stop_token_id is not None
            ids.append(token.token_id)
            early = self.num_tokens + len(ids) <= self._options.min_tokens
            parts.append(self._text_of(token, ends_here, logprobs, early))
            self._ended = self._ends is not None and self._ends(parts[-1])
            if self.ended_by_text:
                break
        self.num_tokens += len(ids)
        reason, stop_reason = self._ending(delta, parts)
        return TextDelta(
            self.index,
            "".join(parts),
            tuple(ids),
            tuple(logprobs) if self._options.logprobs else None,
            reason,
            stop_reason,
        )

    def push_plain(self, token_id: int) -> str:
        """The text of one new token, behind which the choice goes on. Only where `plain` is True."""
        self.num_tokens += 1
        return self._detokenizer.push(token_id)

    def _text_of(self, token: SampledToken, ends_here: bool, logprobs: list[TokenText], early: bool) -> str:
        # Neither the token that ends the choice nor a stop string is part of its text.
        hidden = ends_here and not self._options.include_stop_str_in_output
        text = "" if hidden else self._detokenizer.push(token.token_id)
        if self._options.logprobs:
            logprobs.append(self._logprob_text(token, text))
        self._offset += len(text)
        if self._stop_scope is None:
            return self._stops.push(text, ignored=early)
        pieces = self._stop_scope(text)
        return "".join(
            self._stops.push(piece, early) if counts else self._stops.skip(piece) for piece, counts in pieces
        )

    def _logprob_text(self, token: SampledToken, text: str) -> TokenText:
        of, own = self._tokenizer, self._tokenizer.token_text(token.token_id)
        top = tuple((of.token_text(i), of.token_bytes(i), logprob) for i, logprob in token.top_logprobs)
        return TokenText(token, own, of.token_bytes(token.token_id), begins_at(self._offset, text, own), top)

    def _ending(self, delta: TokenDelta, parts: list[str]) -> tuple[str | None, str | int | None]:
        """Finish reason and stop reason; adds the held-back text when the choice ends."""
        if self.ended_by_text:
            self.finished = True
            return "stop", self._stops.matched
        if delta.finish_reason is None:
            return None, None
        self.finished = True
        # The last bytes may complete a stop string, too.
        early = self.num_tokens <= self._options.min_tokens
        parts.append(self._stops.push(self._detokenizer.flush(), ignored=early))
        if self._stops.matched is not None:
            return "stop", self._stops.matched
        parts.append(self._stops.flush())
        if delta.finish_reason is FinishReason.LENGTH:
            return "length", None
        own_end = delta.stop_token_id in self._options.own_end_tokens
        return "stop", None if own_end else delta.stop_token_id
