"""Sampling settings that name tokens: from the client's fields to token ids of the model."""

from __future__ import annotations

from engine.errors import FIELD, InvalidRequest, field
from server.schemas.sampling import GenerationFields
from server.state.server_state import ServedModel


def check_ids(fields: GenerationFields, width: int) -> None:
    """Raises InvalidRequest, naming the field, for an id of `width` or more: the model has no logit for it."""
    for name, ids in (
        ("stop_token_ids", fields.stop_token_ids or ()),
        ("allowed_token_ids", fields.allowed_token_ids or ()),
        ("logit_bias", [int(key) for key in fields.logit_bias or ()]),
    ):
        largest = max(ids, default=0)
        if largest >= width:
            message = f"'{FIELD}' holds {largest}, but this model's ids end at {width - 1}."
            raise InvalidRequest(message, param=name, code="invalid_value")


def check_do_sample(fields: GenerationFields, temperature: float) -> None:
    """Check `do_sample`, which is not a parameter here: it may only agree with the temperature. Raises InvalidRequest."""
    do_sample = (fields.model_extra or {}).get("do_sample")
    if do_sample is not None and do_sample != (temperature > 0):
        means = "more than 0" if do_sample else "0"
        message = (
            f"'{FIELD}' is not supported: set '{field('temperature')}' to {means}, which means the same."
        )
        raise InvalidRequest(message, param="do_sample", code="unsupported_parameter")


def typical_p(value: float) -> float:
    """The value of typical_p: 0 disables it, as 1 does, since other servers accept both."""
    return value or 1.0


def logit_bias(fields: GenerationFields) -> tuple[tuple[int, float], ...]:
    """(token id, bias) pairs. Raises InvalidRequest if two keys, such as "7" and "07", mean one id."""
    biases = {int(key): bias for key, bias in (fields.logit_bias or {}).items()}
    if len(biases) < len(fields.logit_bias or {}):
        raise InvalidRequest(f"'{FIELD}' names a token id twice.", param="logit_bias", code="invalid_value")
    return tuple(biases.items())


def bad_words(fields: GenerationFields, model: ServedModel) -> tuple[tuple[int, ...], ...]:
    """Token sequences of the forbidden words: each at the beginning of a text and after a space, where most tokenizers have
    other ids for it. Raises InvalidRequest."""
    sequences: dict[tuple[int, ...], None] = {}
    for number, word in enumerate(fields.bad_words or ()):
        bare = word.lstrip(" ") or word
        for text in (bare, " " + bare):
            try:
                ids = tuple(model.tokenizer.encode(text, False))
            except UnicodeEncodeError:
                message = f"'{FIELD}' holds half of a surrogate pair, which is not a character."
                raise InvalidRequest(message, param=f"bad_words.{number}", code="invalid_value") from None
            # A sequence with an id that the model has no logit for cannot come anyway.
            if ids and max(ids) < model.info.logits_width:
                sequences[ids] = None
    return tuple(sequences)
