"""Settings of generation in Ollama's form: the keys of `options`, and the same keys beside it."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import AliasChoices, Field

from engine.errors import InvalidRequest
from executors.contract import MAX_REPETITION_PENALTY, MIN_REPETITION_PENALTY
from server.schemas.base import WireModel
from server.schemas.extras import Rules
from server.schemas.sampling import (
    MAX_OUTPUT_TOKENS,
    MAX_STOPS,
    MAX_TEMPERATURE,
    MAX_TOP_K,
    Integer,
    Stop,
)

TOLERANT = Rules(unsupported={}, tolerant=True)
"""Ollama ignores every key that it does not know: so do these objects, and `x-cohort-ignored` lists them."""


def _also(*names: str) -> Any:
    """The default of an optional field that is read by the first of `names` that the client gave. Others are ignored."""
    return Field(None, validation_alias=AliasChoices(*names))


class OllamaSettings(WireModel):
    """Settings that `options` has. Several clients write them beside it."""

    temperature: Annotated[float, Field(ge=0, le=MAX_TEMPERATURE)] | None = None
    """Ollama: Sampling temperature; 0 takes the likeliest token at each step. Default: the model's."""
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    """Ollama: Sample from the likeliest tokens whose probabilities add up to this. Default: the model's."""
    top_k: Annotated[Integer, Field(ge=-1, le=MAX_TOP_K)] | None = None
    """Ollama: Sample from this number of likeliest tokens; 0 and -1 mean all. Default: the model's."""
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    """Ollama: Exclude tokens whose probability is below this fraction of the likeliest token's. Default: the model's."""
    typical_p: Annotated[float, Field(ge=0, le=1)] | None = None
    """Ollama: Probability mass of locally typical sampling; 1 and 0 disable it. Default: the model's."""
    seed: Annotated[Integer, Field(ge=-(2**63), lt=2**64)] | None = _also("seed", "random_seed")
    """Ollama: Seed of sampling: the same request with the same seed gets the same answer if the same requests run
    beside it, or with `--deterministic`. -1 means no seed. Default: random."""
    num_predict: Annotated[Integer, Field(ge=-(2**31), le=MAX_OUTPUT_TOKENS)] | None = _also(
        "num_predict",
        "max_tokens",
        "max_completion_tokens",
        "max_output_tokens",
        "max_new_tokens",
        "n_predict",
    )
    """Ollama: Maximum number of tokens to generate; 0 and less mean what fits the context. `max_tokens`, `max_completion_tokens`,
    `max_output_tokens`, `max_new_tokens` and `n_predict` mean the same. Default: -1."""
    num_ctx: Annotated[Integer, Field(ge=-(2**63), lt=2**63)] | None = None
    """Ollama: Without effect, and listed in `x-cohort-ignored`: the context is that of `--max-model-len`."""
    stop: Stop | Annotated[list[Stop], Field(max_length=MAX_STOPS, fail_fast=True)] | None = _also(
        "stop", "stop_sequences"
    )
    """Ollama: Texts that end the answer. They are not part of it."""
    repeat_penalty: Annotated[float, Field(ge=MIN_REPETITION_PENALTY, le=MAX_REPETITION_PENALTY)] | None = (
        _also("repeat_penalty", "repetition_penalty")
    )
    """Ollama: Divides the positive logits of tokens that occur in the prompt or the answer, and multiplies the negative ones.
    Default: the model's."""
    repeat_last_n: Annotated[Integer, Field(ge=-1, le=MAX_OUTPUT_TOKENS)] | None = None
    """Ollama: Number of last tokens that penalties count. -1 means all and 0 turns penalties off; other numbers return 400 if a
    penalty is set, since penalties count all tokens here. Default: -1."""
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    """Ollama: Subtracted from the logits of tokens that occur in the answer. Default: 0."""
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    """Ollama: Subtracted from the logit of a token once for each time it occurs in the answer. Default: the model's."""


class OllamaOptions(OllamaSettings):
    """Settings of generation. Settings of Ollama's own loader, such as `num_gpu` and `num_thread`, and unknown ones have no
    effect here and are listed in `x-cohort-ignored`."""

    rules: ClassVar[Rules] = TOLERANT

    @property
    def stops(self) -> list[str]:
        """Stop strings as a list, whichever form the client used."""
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or ())

    def penalties(self) -> dict[str, float]:
        """The chat's fields for penalties. Raises InvalidRequest for a window of tokens that cannot be kept."""
        fields = {
            "repetition_penalty": self.repeat_penalty,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
        }
        penalties = {name: value for name, value in fields.items() if value is not None}
        if self.repeat_last_n == 0:
            return {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
        neutral = {"repetition_penalty": 1.0}
        if (self.repeat_last_n or -1) > 0 and any(
            value != neutral.get(name, 0.0) for name, value in penalties.items()
        ):
            message = "'options.repeat_last_n' is not supported beside a penalty: penalties count all tokens, which -1 asks for."
            raise InvalidRequest(message, "options.repeat_last_n", "unsupported_value")
        return penalties
