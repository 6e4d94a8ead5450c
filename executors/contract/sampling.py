"""`SamplingParams`: the settings for choosing a token. Standard library and NumPy only.

Meaning and names are vLLM's, and so is the order in which the settings act on a row of raw logits (its v1 sampler):

    1. masks    grammar, allowed ids, bad words, stop ids before min_tokens float32, single logits
    2. bias     logit_bias is added                                         float32
    3. penalties  repetition (prompt and output), then frequency, then presence (output only)    float32
    4. greedy?  the most likely token of that; else temperature
    5. min-p, top-k (ties with the k-th stay), top-p on what they left, renormalised
    6. typical-p on what is left, renormalised; vLLM has none: this is the order of transformers and TGI

`executors/contract/reference_sampler.py` does it row by row. Logprobs describe the raw logits: the settings do not affect them.
"""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from executors.contract.errors import InvalidInput

MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY = 0.01, 100.0
"""Range of the repetition penalty: a logit grows by a factor of 100 at most, so that no float32 in use overflows."""

_MAX_TOKEN_ID, _MAX_INT64, _MAX_UINT64 = 2**31 - 1, 2**63 - 1, 2**64 - 1
"""Largest values of the array types in which executors keep the settings of all sequences."""


def _plain_float(name: str, value: object) -> float:
    # Exactly float first: it is the usual case, and a bool is an int to isinstance.
    if type(value) is float:
        return value
    if isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            pass
    raise InvalidInput(f"{name} is {value!r}; a number is needed")


def _natural(name: str, value: object, largest: int) -> int:
    if type(value) is not int:
        if not isinstance(value, (int, np.integer)) or isinstance(value, bool):
            raise InvalidInput(f"{name} is {value!r}; an integer is needed")
        value = operator.index(value)
    if not 0 <= value <= largest:
        raise InvalidInput(f"{name} is {value}; 0 to {largest} is needed")
    return value


def _within(name: str, value: object, low: float, high: float, above: bool = False) -> float:
    number = _plain_float(name, value)
    if not (low < number if above else low <= number) or not number <= high or number == math.inf:
        raise InvalidInput(
            f"{name} is {number}; {'more than' if above else 'at least'} {low:g} and at most {high:g} is needed"
        )
    return number


def _ids(name: str, values: object) -> tuple[int, ...]:
    if not isinstance(values, (tuple, list)):
        raise InvalidInput(f"{name} is {values!r}; a list of token ids is needed")
    return tuple(_natural(name, value, _MAX_TOKEN_ID) for value in values)


def _further(params: SamplingParams) -> Iterator[tuple[str, object]]:
    """The settings after `logprobs` as plain values. Raises InvalidInput."""
    largest = 3.4028234663852886e38  # logits are float32
    yield "min_p", _within("min_p", params.min_p, 0.0, 1.0)
    yield "typical_p", _within("typical_p", params.typical_p, 0.0, 1.0, above=True)
    yield (
        "repetition_penalty",
        _within(
            "repetition_penalty", params.repetition_penalty, MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY
        ),
    )
    for name in ("presence_penalty", "frequency_penalty"):
        yield name, _within(name, getattr(params, name), -largest, largest)
    if not isinstance(params.logit_bias, (tuple, list)):
        raise InvalidInput(f"logit_bias is {params.logit_bias!r}; pairs of token id and number are needed")
    bias = []
    for pair in params.logit_bias:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise InvalidInput(f"logit_bias holds {pair!r}; pairs of token id and number are needed")
        bias.append(
            (
                _natural("logit_bias", pair[0], _MAX_TOKEN_ID),
                _within("logit_bias", pair[1], -largest, largest),
            )
        )
    if len({token for token, _ in bias}) < len(bias):
        raise InvalidInput("logit_bias names a token id twice")
    yield "logit_bias", tuple(bias)
    if not isinstance(params.bad_words, (tuple, list)):
        raise InvalidInput(f"bad_words is {params.bad_words!r}; lists of token ids are needed")
    words = tuple(_ids("bad_words", word) for word in params.bad_words)
    if not all(words):
        raise InvalidInput("bad_words holds an empty word")
    yield "bad_words", words
    if params.allowed_token_ids is not None:
        allowed = _ids("allowed_token_ids", params.allowed_token_ids)
        if not allowed:
            raise InvalidInput("allowed_token_ids is empty: nothing could be sampled")
        yield "allowed_token_ids", allowed
    yield "min_tokens", _natural("min_tokens", params.min_tokens, _MAX_INT64)
    yield "stop_token_ids", _ids("stop_token_ids", params.stop_token_ids)


MIN_TEMPERATURE = 1e-8
"""Smallest temperature that is divided by. Below it every token but the best has weight 0; dividing by less would overflow."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """The settings for choosing a token. Neutral defaults: plain sampling from the softmax at temperature 1.

    The token at a position is a function of (processed logits, `seed`, `choice`, position), see `executors/contract/noise.py`;
    it never depends on neighbours in the batch. `logprobs` asks for that many alternatives beside the sampled token's own
    (0: only its own; None: nothing). Logprobs are fp32 log-softmax of the *raw* logits.

    Raises InvalidInput for a value of another type or out of range, so that no executor has to expect one. Numbers of
    NumPy and integers for floats are taken, and kept as plain ones.
    """

    temperature: float = 1.0
    """Finite; 0 means greedy."""
    top_k: int = 0
    """Keep the k most likely tokens; 0 keeps all. Ties with the k-th are kept."""
    top_p: float = 1.0
    """Keep the smallest set of most likely tokens whose probability reaches top_p."""
    seed: int = 0
    """Seed, always set: the engine generates one (64 bits, unsigned) for a request without."""
    choice: int = 0
    """Index of this choice among the request's n."""
    logprobs: int | None = None
    min_p: float = 0.0
    """Drop tokens less likely than min_p times the most likely one; 0 drops none."""
    typical_p: float = 1.0
    """Keep the most typical tokens (information content nearest the entropy) whose probability reaches typical_p."""
    repetition_penalty: float = 1.0
    """Divides positive logits of tokens seen in prompt or output, multiplies negative ones; 0.01 to 100."""
    presence_penalty: float = 0.0
    """Subtracted from the logit of every token in the output."""
    frequency_penalty: float = 0.0
    """Subtracted from a token's logit once for each time the output has it."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token id, finite number added to its logit), each id once."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Token sequences that the output must not contain: the last id is forbidden where the output ends with the rest."""
    allowed_token_ids: tuple[int, ...] | None = None
    """The only ids that may be sampled; None allows all."""
    min_tokens: int = 0
    """Tokens to generate before `stop_token_ids` may be sampled."""
    stop_token_ids: tuple[int, ...] = ()
    """Ids that end the sequence, including end tokens; used by the sampler only with `min_tokens`, and with a grammar, which
    allows them where its text may end."""

    def __post_init__(self) -> None:
        temperature = _plain_float("temperature", self.temperature)
        if not 0.0 <= temperature < math.inf:
            raise InvalidInput(f"temperature is {temperature}; a finite number of at least 0 is needed")
        top_p = _plain_float("top_p", self.top_p)
        if not 0.0 < top_p <= 1.0:
            raise InvalidInput(f"top_p is {top_p}; more than 0 and at most 1 is needed")
        plain: tuple[tuple[str, object], ...] = (
            ("temperature", temperature),
            ("top_p", top_p),
            ("top_k", _natural("top_k", self.top_k, _MAX_INT64)),
            ("seed", _natural("seed", self.seed, _MAX_UINT64)),
            ("choice", _natural("choice", self.choice, _MAX_INT64)),
            ("logprobs", None if self.logprobs is None else _natural("logprobs", self.logprobs, _MAX_INT64)),
        )
        for name, value in plain:
            if value is not getattr(self, name):
                object.__setattr__(self, name, value)  # frozen, but not shared yet
        if self._any_further:
            for name, value in _further(self):
                object.__setattr__(self, name, value)

    def of_choice(self, choice: int) -> SamplingParams:
        """The same settings for choice number `choice` (0 or more), without another check and with shared contents."""
        other = copy.copy(self)
        object.__setattr__(other, "choice", choice)
        return other

    @property
    def _any_further(self) -> bool:
        """True if any setting after `logprobs` was given: most sequences have none, and skip their cost."""
        return not (
            self.min_p == 0.0 and self.typical_p == 1.0 and self.repetition_penalty == 1.0
            and self.presence_penalty == 0.0 and self.frequency_penalty == 0.0 and self.allowed_token_ids is None
            and self.min_tokens == 0 and not (self.logit_bias or self.bad_words or self.stop_token_ids)
        )  # fmt: skip

    @property
    def penalized(self) -> bool:
        """True if a logit depends on how often its token occurred."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    @property
    def needs_history(self) -> bool:
        """True if the token depends on the ids before it, besides the logits."""
        if self.penalized or (self.min_tokens > 0 and bool(self.stop_token_ids)):
            return True
        return any(len(word) > 1 for word in self.bad_words)

    @property
    def edits_logits(self) -> bool:
        """True if single logits are changed or masked before the distribution is computed."""
        return (
            bool(self.logit_bias or self.bad_words)
            or self.allowed_token_ids is not None
            or self.needs_history
        )

    def ids_by_name(self) -> tuple[tuple[str, Sequence[int]], ...]:
        """The settings that name token ids, each with its ids; empty if none was given."""
        if not self._any_further:
            return ()
        return (
            ("logit_bias", [token for token, _ in self.logit_bias]),
            ("bad_words", [token for word in self.bad_words for token in word]),
            ("allowed_token_ids", self.allowed_token_ids or ()),
            ("stop_token_ids", self.stop_token_ids),
        )

    def check_ids(self, width: int) -> None:
        """Raises InvalidInput, naming the field, for an id of `width`, the number of logits, or more."""
        for name, ids in self.ids_by_name():
            if ids and max(ids) >= width:
                raise InvalidInput(f"{name} holds {max(ids)}; the model's ids end at {width - 1}")

    def exhausted(self, width: int) -> bool:
        """True if the settings forbid all `width` ids for the first token: each is a bad word of one id, or would end the
        sequence before `min_tokens`. Bad words of several ids may forbid the rest later, which is only known then."""
        banned = {word[0] for word in self.bad_words if len(word) == 1}
        if self.min_tokens > 0:
            banned.update(self.stop_token_ids)
        if self.allowed_token_ids is not None:
            return banned.issuperset(self.allowed_token_ids)
        return len(banned) >= width

    def restricted_by(self) -> str | None:
        """The setting that most likely forbids all tokens, None if no setting restricts them."""
        if self.bad_words:
            return "bad_words"
        if self.allowed_token_ids is not None:
            return "allowed_token_ids"
        return "min_tokens" if self.min_tokens else None

    @property
    def greedy(self) -> bool:
        """True if the most likely token is taken, no noise."""
        return self.temperature == 0.0
