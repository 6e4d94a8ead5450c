"""Parameters that are not fields of our schemas: refused if they would change the result, ignored if they cannot.

Harmless unknown keys are ignored, as vLLM does: wrappers around the OpenAI SDK send vendor fields of their own, and a drop-in
server that refused them would be useless. The response header `x-cohort-ignored` lists ignored keys. A key that *would* change
the answer is refused by name instead of dropped, and so is a key that looks like a misspelt parameter, because its sender
believes that it has an effect.

The same holds inside the body's objects. In those that are settings (`stream_options`) a misspelt key is refused as well;
in elements of lists (messages, parts, tools) it is not, since evaluation tools and SDKs put keys of their own there.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, get_args

import structlog
from pydantic import BaseModel

from engine.errors import InvalidRequest
from server.schemas.hints import fitted

log = structlog.get_logger("server")

Values = tuple[Any, ...]
Place = tuple[str | int, ...]

HARMLESS = frozenset(
    {
        # OpenAI
        "user", "store", "metadata", "service_tier", "prompt_cache_key", "prompt_cache_retention",
        "prompt_cache_options", "safety_identifier", "parallel_tool_calls", "prediction", "reasoning_effort", "verbosity",
        # vLLM, SGLang, llama.cpp, Ollama
        "request_id", "session_id", "spaces_between_special_tokens", "include_reasoning", "return_mm_kwargs",
        "stream_interval", "rid", "stream_reasoning", "cache_prompt", "id_slot", "keep_alive",
        "timings_per_token", "return_progress", "guided_decoding_backend",
    }
)  # fmt: skip
"""Parameters that are accepted and ignored: bookkeeping, hints, and names of things that do not exist here."""

UNSUPPORTED: dict[str, Values] = {
    # further samplers
    "repeat_penalty": (1,), "top_a": (0,), "tfs_z": (1,), "mirostat": (0,), "dry_multiplier": (0,), "xtc_probability": (0,),
    "top_n_sigma": (-1, 0), "dynatemp_range": (0,), "epsilon_cutoff": (0,), "eta_cutoff": (0,), "smoothing_factor": (0,),
    "samplers": (), "custom_logit_processor": (), "watermarking": (False,), "watermark": (False,),
    "use_beam_search": (False,), "length_penalty": (1,), "early_stopping": (False,), "logits_processors": ([],),
    "do_sample": (True, False), "num_beams": (1,), "no_repeat_ngram_size": (0,), "vllm_xargs": ({},), "custom_params": ({},),
    "encoder_repetition_penalty": (1,), "penalty_alpha": (0,), "guidance_scale": (1,), "negative_prompt": ("",),
    "mirostat_mode": (0,), "dynamic_temperature": (False,), "min_keep": (0, 1), "random_seed": (),
    "suppress_tokens": ([],), "bad_words_ids": ([],), "force_words_ids": ([],), "sequence_bias": ({}, []),
    "custom_token_bans": ("",),
    # constrained output
    "guided_json": (), "guided_regex": (), "guided_choice": (), "guided_grammar": (),
    "guided_whitespace_pattern": (), "guided_json_object": (False,), "structural_tag": (), "json_schema": (),
    "grammar": ("",), "regex": (), "ebnf": (), "stop_regex": ([],), "format": ("",),
    # reasoning by other names
    "separate_reasoning": (True,), "thinking_token_budget": (-1,), "thinking": (), "think": (), "enable_thinking": (),
    "reasoning": (), "thinking_budget": (-1,), "reasoning_budget": (-1,), "reasoning_format": ("auto",),
    # other outputs
    "logprob_token_ids": (), "return_prompt_text": (False,),
    "modalities": (["text"],), "audio": (), "web_search_options": (),
    "return_token_offsets": (False,), "routed_experts_prompt_start": (0,),
    "n_probs": (0,), "post_sampling_probs": (False,), "detokenize": (True,), "echo": (False,), "suffix": ("",),
    "return_hidden_states": (False,), "no_stop_trim": (False,), "moderation": (),
    # lengths and ends by other names
    "max_new_tokens": (), "max_output_tokens": (), "max_length": (), "min_length": (0,), "num_return_sequences": (1,),
    "stop_sequences": ([],), "stop_words": ([],), "stop_strings": ([],), "stop_str": ("", []), "eos_token_id": (),
    "ban_eos_token": (False,), "min_new_tokens": (0,), "max_tokens_to_sample": (), "n_cmpl": (1,),
    "n_predict": (), "n_keep": (0,), "t_max_predict_ms": (0, -1), "repetition_detection": (),
    # other inputs and routing
    "extra_body": ({},), "system": (), "instructions": (), "input": (), "inputs": (), "options": ({},),
    "functions": ([],), "function_call": ("none",), "documents": ([],), "chat_template": (), "mm_processor_kwargs": ({},),
    "media_io_kwargs": ({},), "prompt_embeds": (), "kv_transfer_params": (), "ec_transfer_params": (), "lora_path": (),
    "session_params": ({},), "images": ([],), "image_data": ([],), "input_ids": (), "lora": ([],), "prompt_truncate_len": (),
    "response_schema": ({},), "parse_tool_calls": (True,),
    # Mistral
    "safe_prompt": (False,), "prompt_mode": (), "guardrails": ([],), "top_prompt_logprobs": (),
}  # fmt: skip
"""Parameters that are known but not supported, each with the values (null always) at which it has no effect. `do_sample` is
checked together with the temperature (`server/prepare/token_settings.py`); `echo` and `suffix` are fields of completions."""

OF_TOKENIZE: dict[str, Values] = {
    name: UNSUPPORTED[name]
    for name in (
        "chat_template", "documents", "extra_body", "functions", "mm_processor_kwargs",
        "system", "inputs", "enable_thinking", "thinking", "return_token_offsets",
    )
}  # fmt: skip
"""Unsupported parameters that would change the ids of a text or chat; settings of generation do not."""

OF_EMBEDDINGS: dict[str, Values] = {
    name: UNSUPPORTED[name]
    for name in ("extra_body", "inputs", "mm_processor_kwargs", "prompt_embeds", "lora_path")
} | {
    "messages": (), "prompt": (), "chat_template": (), "chat_template_kwargs": ({},),
    "normalize": (True,), "embed_dtype": ("float32",), "embedding_type": ("float",), "output_dtype": ("float",),
    "endianness": ("native", "little"), "padding": ("do_not_pad",), "truncate": (False, "NONE"), "input_type": (),
    "output_dimension": (), "instruct": (), "task": ("embed",), "late_chunking": (False,), "modality": ("text",),
}  # fmt: skip
"""Unsupported parameters that would change vectors or their encoding, which is float32 here."""

OF_SCORES: dict[str, Values] = {
    name: UNSUPPORTED[name]
    for name in ("extra_body", "inputs", "input", "mm_processor_kwargs", "prompt_embeds", "lora_path", "chat_template")
} | {
    "messages": (), "prompt": (), "chat_template_kwargs": ({},), "padding": ("do_not_pad",), "texts": (), "passages": (),
    "instruct": (), "normalize": (True,), "activation": (True,), "raw_scores": (False,), "return_text": (), "top_k": (),
    "truncate": (False, "NONE"), "truncation": (False,), "max_tokens_per_doc": (), "max_chunks_per_doc": (),
    "rank_fields": ([],), "return_embeddings": (False,),
}  # fmt: skip
"""Unsupported parameters that would change scores, or which documents are answered with."""

_STRUCTURED_HINT = "use 'structured_outputs'"
_SYSTEM_HINT = "begin 'messages' with one of the system"
_TEMPLATE_HINT = "give what the model's template reads in 'chat_template_kwargs'"
HINTS = {
    "max_new_tokens": "use 'max_tokens'", "n_predict": "use 'max_tokens'", "min_length": "use 'min_tokens'",
    "max_output_tokens": "use 'max_tokens'",
    "max_length": "use 'max_tokens', which does not count the prompt", "num_return_sequences": "use 'n'",
    "guided_json": _STRUCTURED_HINT, "guided_regex": _STRUCTURED_HINT, "guided_choice": _STRUCTURED_HINT,
    "guided_grammar": _STRUCTURED_HINT, "guided_json_object": _STRUCTURED_HINT, "json_schema": _STRUCTURED_HINT,
    "guided_whitespace_pattern": _STRUCTURED_HINT,
    "grammar": _STRUCTURED_HINT, "regex": _STRUCTURED_HINT, "ebnf": _STRUCTURED_HINT, "format": "use 'response_format'",
    "stop_sequences": "use 'stop'", "repeat_penalty": "use 'repetition_penalty'",
    "stop_words": "use 'stop'", "stop_strings": "use 'stop'", "stop_str": "use 'stop'",
    "eos_token_id": "use 'stop_token_ids'", "ban_eos_token": "use 'ignore_eos'", "random_seed": "use 'seed'",
    "min_new_tokens": "use 'min_tokens'", "max_tokens_to_sample": "use 'max_tokens'", "n_cmpl": "use 'n'",
    "suppress_tokens": "use 'logit_bias'", "bad_words_ids": "use 'bad_words'", "custom_token_bans": "use 'logit_bias'",
    "prompt_truncate_len": "use 'truncate_prompt_tokens'", "response_schema": "use 'response_format'",
    "thinking_budget": _TEMPLATE_HINT, "parse_tool_calls": "start the server with --tool-call-parser none",
    "reasoning_format": "start the server with --reasoning-parser none",
    "extra_body": "it is an argument of the client library, and its keys belong into the body itself",
    "options": "its keys belong into the body itself",
    "echo": "it belongs to /v1/completions", "suffix": "a completion only goes on with its prompt",
    "functions": "use 'tools'", "function_call": "use 'tool_choice'", "system": _SYSTEM_HINT, "instructions": _SYSTEM_HINT,
    "input": "it belongs to /v1/embeddings", "messages": "give texts in 'input'",
    "prompt": "use 'input'", "normalize": "use 'use_activation'",
    "activation": "use 'use_activation'", "raw_scores": "use 'use_activation'", "return_text": "use 'return_documents'",
    "top_k": "use 'top_n'", "texts": "use 'documents'", "passages": "use 'documents'", "instruct": "use 'instruction'",
    "max_tokens_per_doc": "use 'truncate_prompt_tokens', which counts the whole prompt",
    "truncate": "use 'truncate_prompt_tokens'", "truncation": "use 'truncate_prompt_tokens'",
    "input_type": "use 'prompt_name'",
    "thinking": _TEMPLATE_HINT, "think": _TEMPLATE_HINT, "enable_thinking": _TEMPLATE_HINT,
    "separate_reasoning": "start the server with --reasoning-parser none",
    "context": "send the conversation to /api/chat",
    "template": "start the server with --chat-template",
    "safe_prompt": _SYSTEM_HINT, "prompt_mode": _SYSTEM_HINT,
    "top_prompt_logprobs": "use 'prompt_logprobs'", "output_dimension": "use 'dimensions'",
    "reasoning": "use 'reasoning_effort', or 'chat_template_kwargs'",
    "messages[].function_call": "use 'tool_calls'",
    "messages[].refusal": "give it in 'content', as a part with 'refusal'",
    "messages[].prefix": "use 'continue_final_message'",
}  # fmt: skip
"""Alternatives to unsupported parameters, for the error messages, in the names of a chat's fields (see `hints.fitted`)."""

UNSUPPORTED_INSIDE: dict[str, Values] = {
    "messages[].function_call": (),
    "messages[].audio": (),
    "messages[].refusal": ("",),
    "messages[].prefix": (False,),
}  # fmt: skip
"""Unsupported keys inside objects: additional contents of a message would be missing from the prompt."""

HARMLESS_INSIDE = {
    "stream_options.include_obfuscation": "Nothing is padded here.",
    "messages[].type": "Evaluation tools send it.",
    "messages[].annotations": "SDKs send answers back with all their keys.",
    "messages[].tool_calls[].index": "The SDKs' accumulated deltas have it.",
    "messages[].content[].cache_control": "The prefix cache finds what is common by itself.",
    "messages[].content[].prompt_cache_breakpoint": "The prefix cache finds what is common by itself.",
}
"""Examples of ignored keys of objects, for the documentation: every unknown key is ignored."""

MAX_UNKNOWN = 64
"""Most unknown keys of one request. Each is compared with every known name, which takes about 0.1 ms."""
MAX_TOLD = 32
"""Most ignored names that are reported; a body of megabytes may have any number."""
_MAX_FUZZY_LENGTH = 40
"""Greatest length of a key that is compared with known names, in characters. All names are shorter, and the comparison takes
quadratic time."""
_NOTHING: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Rules:
    """Rules of one body for keys that are not fields. `refused` maps names to the reason, for an endpoint's own cases;
    `unsupported` has the names that matter there, with the values at which they have no effect. `handed_on`: the object
    goes to the chat template with all its keys, so none of them is ignored. `tolerant`: any other key is ignored, also one that
    looks like a misspelt parameter."""

    refused: Mapping[str, str] = field(default_factory=dict)
    unsupported: Mapping[str, Values] = field(default_factory=lambda: UNSUPPORTED)
    handed_on: bool = False
    tolerant: bool = False


def screen(body: BaseModel) -> list[str]:
    """The names of all keys of a body that have no effect, those of inner objects by their path: `messages[].type`.
    Each is listed once. A list longer than MAX_TOLD by one means that there are more.

    Raises InvalidRequest, naming the parameter, for a key that would change the result, or looks as if it should.
    """
    rules: Rules = getattr(body, "rules")  # noqa: B009  # every WireModel's
    fields = type(body).model_fields
    ignored = judge(
        body.model_extra,
        fields,
        type(body),
        also_refused=rules.refused,
        unsupported=rules.unsupported,
        tolerant=rules.tolerant,
    )
    names = dict.fromkeys(ignored)
    for path, place, inner in _inner(body):
        for name in _judge_inside(inner, path, place, type(body)):
            if len(names) <= MAX_TOLD:
                names[name] = None
    if names:
        log.debug("ignored parameters", names=[name[:100] for name in names])
    return list(names)[: MAX_TOLD + 1]


def judge(
    extra: Mapping[str, Any] | None,
    names_known: Iterable[str],
    model: type[BaseModel],
    *,
    also_refused: Mapping[str, str] = _NOTHING,
    unsupported: Mapping[str, Values] = UNSUPPORTED,
    tolerant: bool = False,
) -> list[str]:
    """The keys of a body that are ignored. Hints are in the names of `model`. Raises InvalidRequest naming the parameter."""
    if not extra:
        return []
    unknown = sum(
        name not in HARMLESS and name not in unsupported and name not in also_refused for name in extra
    )
    if unknown > MAX_UNKNOWN and not tolerant:
        message = f"{unknown} parameters are unknown; at most {MAX_UNKNOWN} are ignored."
        raise InvalidRequest(message, code="unknown_parameter")
    ignored = []
    for name, value in extra.items():
        if value is None:
            continue
        if name in also_refused:
            raise InvalidRequest(also_refused[name], param=name, code="unsupported_parameter")
        if name in unsupported:
            _refuse_unless_neutral(name, name, value, unsupported[name], model)
        else:
            if name not in HARMLESS and not tolerant:
                # Without unsupported names: a suggestion that is refused as well does not help.
                _refuse_misspelt(name, name, names_known)
            ignored.append(name)
    return ignored


def _judge_inside(inner: BaseModel, path: str, place: Place, model: type[BaseModel]) -> Iterator[str]:
    """The paths of an inner object's keys that are ignored. Raises InvalidRequest."""
    rules: Rules = getattr(inner, "rules")  # noqa: B009  # every WireModel's
    if not inner.model_extra or rules.handed_on:
        return
    unknown = 0
    for name, value in inner.model_extra.items():
        if value is None:
            continue
        full = f"{path}.{name}"
        if rules.tolerant:
            yield full
            continue
        param = ".".join(map(str, (*place, name)))
        if full in UNSUPPORTED_INSIDE:
            _refuse_unless_neutral(full, param, value, UNSUPPORTED_INSIDE[full], model)
            continue
        if "[]" not in path and full not in HARMLESS_INSIDE:
            if (unknown := unknown + 1) > MAX_UNKNOWN:
                message = f"'{path}' has more than {MAX_UNKNOWN} unknown keys."
                raise InvalidRequest(message, param=path, code="unknown_parameter")
            _refuse_misspelt(
                name, param, [one.alias or name_known for name_known, one in type(inner).model_fields.items()]
            )
        yield full


def _inner(body: BaseModel) -> Iterator[tuple[str, Place, BaseModel]]:
    """Every object below a body that has unknown keys: its path, its place (the path with positions) and itself. A body may have
    a million parts: those without such keys or objects are skipped."""
    waiting: list[tuple[str, Place, BaseModel]] = [("", (), body)]
    while waiting:
        path, place, model = waiting.pop()
        if path and model.model_extra:
            yield path, place, model
        for name in _nesting(type(model)):
            value = getattr(model, name)
            here = f"{path}.{name}" if path else name
            if isinstance(value, BaseModel):
                waiting.append((here, (*place, name), value))
            elif isinstance(value, list):
                here += "[]"
                for number, one in enumerate(value):
                    if isinstance(one, BaseModel) and (one.__pydantic_extra__ or _nesting(type(one))):
                        waiting.append((here, (*place, name, number), one))


@functools.cache
def _nesting(model: type[BaseModel]) -> tuple[str, ...]:
    """The fields that may hold objects with a schema."""
    return tuple(name for name, field_ in model.model_fields.items() if _has_model(field_.annotation))


def _has_model(annotation: Any) -> bool:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return True
    return any(map(_has_model, get_args(annotation)))


def hint(name: str, model: type[BaseModel]) -> str | None:
    """What to use in place of an unsupported parameter of `model`; None if there is nothing."""
    return fitted(HINTS[name], model, "[]" in name) if name in HINTS else None


def _refuse_unless_neutral(
    name: str, param: str, value: Any, neutral: Values, model: type[BaseModel]
) -> None:
    if not _is_neutral(value, neutral):
        instead = hint(name, model)
        message = f"'{param}' is not supported{' by this server' if instead is None else ': ' + instead}."
        raise InvalidRequest(message, param=param, code="unsupported_parameter")


def _plain(name: str) -> str:
    """The name in a normal form: `maxTokens`, `max-tokens` and `MAX_TOKENS` become `max_tokens`."""
    return name.lower().replace("_", "").replace("-", "")


def _refuse_misspelt(name: str, param: str, names_known: Iterable[str]) -> None:
    if len(name) > _MAX_FUZZY_LENGTH:
        return
    names = list(names_known)
    near = [one for one in names if _plain(one) == _plain(name)]
    if near := near or difflib.get_close_matches(name, names, n=1, cutoff=0.85):
        message = f"Unknown parameter '{param}'. Did you mean '{near[0]}'?"
        raise InvalidRequest(message, param=param, code="unknown_parameter")


def _is_neutral(value: Any, neutral: Values) -> bool:
    """Whether a value equals a neutral one in value and kind: `False` is not a neutral number, an empty list not an object."""
    return any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in neutral)
