"""From the body of a completion to the engine's request."""

from __future__ import annotations

from dataclasses import dataclass, replace

from engine.text.generation import TextRequest
from server.http.call import Call
from server.prepare.chat_prompt import INLINE_CHARACTERS
from server.prepare.engine_request import request_context, text_request
from server.prepare.field_names import FieldNames
from server.prepare.fill_in_middle import encode_behind, fill_in_middle
from server.prepare.prompts import added_ids, fenced, input_ids, place_in, total_length, truncation_of
from server.prepare.structured_output import for_body
from server.schemas.completions import DEFAULT_MAX_TOKENS, CompletionRequest
from server.state.server_state import ServedModel, ServerState

FIELD_NAMES = FieldNames({"prompt": "{prompt}", "max_tokens": "{limit}"})
"""Names of a completion's fields by their roles. `prompt`: with the number of the prompt at fault, if there are several.
`limit`: of the two names of the limit on output tokens, the one that was sent."""


@dataclass(frozen=True, slots=True)
class PreparedCompletion:
    """The engine's request, and the role of the field that requires its grammar, if there is one."""

    request: TextRequest
    grammar_param: str | None


async def prepare_completion(
    state: ServerState, call: Call, model: ServedModel, body: CompletionRequest
) -> PreparedCompletion:
    """Tokenize the prompts and validate the grammar. Raises InvalidRequest, Overloaded or Unavailable."""
    prompts = await _tokenize(state, model, body)
    body.check_answer(total_length(prompts))
    limit = body.output_limit
    grammar = await for_body(state, call, model, body)
    request = text_request(
        request_context(call, "cmpl-", body, model),
        body,
        model,
        prompts,
        body.num_logprobs,
        None if limit is None else max(1, limit),  # with `max_tokens` 0 one token is computed, and dropped
        continues_prompt=True,
        grammar=None if grammar is None else grammar.text,
        prompt_logprobs=body.num_prompt_logprobs,
    )
    default = model.preset.max_tokens or DEFAULT_MAX_TOKENS
    request = replace(request, n=body.num_generated, default_tokens=default)
    if body.suffix and not body.ignore_eos:
        marks = fill_in_middle(model.tokenizer).end_ids
        request = replace(request, stop_token_ids=(*request.stop_token_ids, *marks))
    return PreparedCompletion(request, None if grammar is None else grammar.param)


async def _tokenize(
    state: ServerState, model: ServedModel, body: CompletionRequest
) -> tuple[tuple[int, ...], ...]:
    """The prompts as token ids. Raises InvalidRequest."""
    special = body.add_special_tokens is not False
    if body.suffix:
        return await _tokenize_around(state, model, body, special)
    reserved = DEFAULT_MAX_TOKENS if body.output_limit is None else max(1, body.output_limit)
    truncation = truncation_of(body, model, reserved)
    place = place_in("prompt", body.prompt)
    return await input_ids(
        state, model, body.prompts, "prompt", place=place, add_special_tokens=special, truncation=truncation
    )


async def _tokenize_around(
    state: ServerState, model: ServedModel, body: CompletionRequest, special: bool
) -> tuple[tuple[int, ...], ...]:
    """The prompts with the suffix, around the middle that is to be written. Raises InvalidRequest."""
    notation = fill_in_middle(model.tokenizer)
    behind = await _encode_behind(state, model, body.suffix or "")
    # Nothing may stand before the middle.
    numbers = [number for number, prompt in enumerate(body.prompts) if prompt != ""]
    written, place = [body.prompts[number] for number in numbers], place_in("prompt", body.prompt)
    batches = await input_ids(
        state, model, written, "prompt", place=lambda at: place(numbers[at]), add_special_tokens=False
    )
    ids = iter(batches)
    first = added_ids(model)[0] if special else []
    befores = [() if prompt == "" else next(ids) for prompt in body.prompts]
    return tuple((*first, *notation.prompt(before, behind)) for before in befores)


async def _encode_behind(state: ServerState, model: ServedModel, suffix: str) -> list[int]:
    if len(suffix) <= INLINE_CHARACTERS:
        return encode_behind(model, suffix)
    return await fenced(state, lambda: encode_behind(model, suffix), "suffix", "to tokenize")
