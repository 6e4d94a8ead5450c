"""The engine's request for a call: the client's fields, and the model's defaults for omitted ones."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Protocol

from engine.errors import FIELD, InvalidRequest
from engine.request import RequestContext
from engine.story import Story
from engine.text.generation import TextRequest
from engine.waiting.admission import check_min_tokens
from executors.contract import SamplingParams
from server.http.call import Call
from server.prepare.token_settings import bad_words, check_do_sample, check_ids, logit_bias, typical_p
from server.schemas.sampling import GenerationFields
from server.state.server_state import ServedModel
from server.telemetry.stories.record import CallStory

_SMALLEST_TOP_P = 1e-6
"""Value used for top_p 0, which OpenAI accepts for the most likely token; a set whose probability "reaches 0" would be
empty."""
_STORY_FIELDS = ("n", "temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty")
"""Fields that a story tells."""
_LOGGED_TOKENS = 1024
"""Tokens of a prompt that the log shows, if it shows prompts."""


class ContextFields(Protocol):
    """The fields of a body that concern the call as a whole, whatever it asks for."""

    priority: int | None
    cache_salt: str | None
    deadline_ms: int | None


def request_context(call: Call, prefix: str, fields: ContextFields, model: ServedModel) -> RequestContext:
    """The context of a call. The id begins with `prefix` and is generated here: a client's own id is never used. `deadline_ms`
    counts from the arrival of the body."""
    arrived, wait, tenant = call.arrival_time, fields.deadline_ms, call.tenant
    story, id_ = call.story, f"{prefix}{secrets.token_hex(16)}"
    if story is not None:
        story.id = id_
    return RequestContext(
        id_,
        arrived,
        fields.priority or 0,
        # The separator occurs in no hash, so a client's salt cannot pass for another key.
        f"{tenant}/{fields.cache_salt or ''}" if model.salt_per_key else fields.cache_salt,
        tenant,
        None if wait is None else arrived + wait / 1000,
        key_name=call.key_name,
        story=Story(arrived) if story is None else story,
    )


def text_request(
    context: RequestContext,
    fields: GenerationFields,
    model: ServedModel,
    prompts: tuple[tuple[int, ...], ...],
    logprobs: int | None,
    max_tokens: int | None,
    *,
    continues_prompt: bool,
    grammar: str | None = None,
    prompt_logprobs: int | None = None,
    shown_special: frozenset[int] = frozenset(),
    ends: Callable[[], Callable[[str], bool]] | None = None,
) -> TextRequest:
    """The engine's form of a call. Fields that the client omitted come from the model's defaults.

    Raises InvalidRequest for token ids the model does not have, for min_tokens above max_tokens, for a `do_sample` that the
    temperature contradicts, and for drafts that the server does not make.
    """
    defaults, preset = model.defaults, model.preset
    top_k = defaults.top_k if fields.top_k is None else fields.top_k
    check_ids(fields, model.info.logits_width)
    temperature = defaults.temperature if fields.temperature is None else fields.temperature
    check_do_sample(fields, temperature)
    if max_tokens is not None:
        check_min_tokens(fields.min_tokens or 0, max_tokens)
    if grammar is not None and fields.include_stop_str_in_output:
        message = f"'{FIELD}' would add text after the constrained answer; leave it out."
        raise InvalidRequest(message, param="include_stop_str_in_output", code="invalid_value")
    if fields.speculative and not model.drafts:
        message = f"'{FIELD}' is true, and this server makes no drafts: it was started without --speculative-config."
        raise InvalidRequest(message, param="speculative", code="unsupported_value")
    sampling = SamplingParams(
        temperature=temperature,
        top_k=max(top_k, 0),  # -1 is vLLM's "all", which is 0 here
        top_p=max(defaults.top_p if fields.top_p is None else fields.top_p, _SMALLEST_TOP_P),
        logprobs=logprobs,
        min_p=defaults.min_p if fields.min_p is None else fields.min_p,
        typical_p=typical_p(defaults.typical_p if fields.typical_p is None else fields.typical_p),
        repetition_penalty=(
            defaults.repetition_penalty if fields.repetition_penalty is None else fields.repetition_penalty
        ),
        presence_penalty=(
            defaults.presence_penalty if fields.presence_penalty is None else fields.presence_penalty
        ),
        frequency_penalty=(
            defaults.frequency_penalty if fields.frequency_penalty is None else fields.frequency_penalty
        ),
        logit_bias=logit_bias(fields),
        bad_words=bad_words(fields, model),
        allowed_token_ids=None if fields.allowed_token_ids is None else tuple(fields.allowed_token_ids),
        min_tokens=fields.min_tokens or 0,
    )
    if isinstance(context.story, CallStory):
        _tell(context.story, fields, model, prompts)
    seed = preset.seed if fields.sampling_seed is None else fields.sampling_seed
    width = model.info.logits_width
    own_stops = [one for one in preset.stop_token_ids if one < width] if fields.stop is None else []
    return TextRequest(
        context=context,
        adapter=model.adapter,
        speculative=fields.speculative is not False,
        continues_prompt=continues_prompt,
        prompts=prompts,
        n=fields.n or 1,
        max_tokens=max_tokens,
        sampling=sampling,
        default_tokens=preset.max_tokens if fields.min_tokens is None else None,
        seed=None if seed == -1 else seed,  # vLLM's and llama.cpp's word for none
        stop=preset.stop if fields.stop is None else fields.stops,
        stop_token_ids=(*(fields.stop_token_ids or ()), *own_stops),
        include_stop_str_in_output=bool(fields.include_stop_str_in_output),
        ignore_eos=bool(fields.ignore_eos),
        skip_special_tokens=fields.skip_special_tokens is not False,
        grammar=grammar,
        prompt_logprobs=prompt_logprobs,
        shown_special=shown_special,
        ends=ends,
    )


def _tell(
    story: CallStory, fields: GenerationFields, model: ServedModel, prompts: tuple[tuple[int, ...], ...]
) -> None:
    """Note what the client asked for."""
    values = {name: getattr(fields, name) for name in _STORY_FIELDS} | {"seed": fields.sampling_seed}
    story.parameters = {
        name: value for name, value in values.items() if value is not None and abs(value) < 2**63
    }
    if fields.output_limit is not None:
        story.parameters["max_tokens"] = fields.output_limit
    if model.log_prompts:
        story.prompt = model.tokenizer.decode(list(prompts[0][:_LOGGED_TOKENS]), False)
