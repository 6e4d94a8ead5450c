"""`SamplingParams` and `StructuredOutputsParams`: how to generate, with vLLM's names."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class StructuredOutputsParams:
    """What the text must follow: exactly one of `json` (a schema, as an object or as JSON text), `regex`, `choice`, `grammar` and
    `json_object`. The other fields control how JSON is written; the HTTP API's `structured_outputs` documents each. What cannot
    be followed raises ValueError when it is used."""

    json: str | Mapping[str, Any] | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    whitespace_pattern: str | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingParams:
    """How the answers to one prompt are generated. Ranges are those of the HTTP API; a value outside of its range raises
    ValueError when it is used. None means the model's own default, or none at all.

    `max_tokens` None: as many as the context has room for. `logprobs` k: for each generated token its own logprob and those
    of the k most likely tokens; `prompt_logprobs` likewise for the prompt. `structured_outputs`: what the text must follow,
    one of {"json": schema}, {"regex": text}, {"choice": [text, ...]}, {"grammar": text} or {"json_object": True}, or
    StructuredOutputsParams with the same names.
    """

    n: int = 1
    max_tokens: int | None = 16
    min_tokens: int = 0
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float | None = None
    seed: int | None = None
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logit_bias: Mapping[int, float] | None = None
    bad_words: Sequence[str] | None = None
    allowed_token_ids: Sequence[int] | None = None
    skip_special_tokens: bool = True
    truncate_prompt_tokens: int | None = None
    structured_outputs: StructuredOutputsParams | Mapping[str, Any] | None = None

    def completion_body(self, prompt: str | Sequence[int]) -> bytes:
        """The JSON body of POST /v1/completions that asks for the same."""
        return _encoded({**self._given(), "prompt": prompt})

    def chat_body(self, messages: Sequence[Mapping[str, Any]], **more: Any) -> bytes:
        """The JSON body of POST /v1/chat/completions that asks for the same; `more` are further fields of it."""
        values = self._given()
        num_logprobs = values.pop("logprobs", None)
        if num_logprobs is not None:
            values |= {"logprobs": True, "top_logprobs": num_logprobs}
        return _encoded({**values, **more, "messages": messages})

    def _given(self) -> dict[str, Any]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}


def _encoded(body: Mapping[str, Any]) -> bytes:
    """Tuples and other sequences become lists, and token ids that are keys become strings. Raises ValueError."""
    try:
        return json.dumps(body, default=_plain).encode()
    except TypeError as error:
        raise ValueError(str(error)) from None


def _plain(value: Any) -> Any:
    if isinstance(value, StructuredOutputsParams):
        members = {one.name: getattr(value, one.name) for one in fields(value)}
        return {name: member for name, member in members.items() if member is not None}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence):
        return list(value)
    if hasattr(value, "tolist"):  # NumPy's numbers and arrays
        return value.tolist()
    raise TypeError(f"{value!r:.100} is no value of a request")
