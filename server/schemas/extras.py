"""Parameters that are not fields of our schemas: refused when they would change the result, ignored when they cannot.

Unknown keys that are harmless are ignored, as vLLM does: wrappers around the OpenAI SDK send vendor fields of their own,
and refusing them would make a drop-in server of no use. What *would* change the answer is refused by name instead of
dropped, and so is a key that looks like a misspelt parameter, because its sender believes it has an effect.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import structlog

from engine.errors import InvalidRequest

log = structlog.get_logger("server")

HARMLESS = frozenset(
    {
        "user", "store", "metadata", "service_tier", "prompt_cache_key", "prompt_cache_retention",
        "prompt_cache_options", "safety_identifier", "parallel_tool_calls", "prediction", "request_id",
        "cache_prompt", "spaces_between_special_tokens", "include_reasoning", "separate_reasoning",
    }
)  # fmt: skip
"""Accepted and ignored: bookkeeping, hints, and names of things that do not exist here."""

_NEUTRAL: dict[str, tuple[Any, ...]] = {
    # further samplers
    "repeat_penalty": (1,), "top_a": (0,), "tfs_z": (1,), "mirostat": (0,), "dry_multiplier": (0,), "xtc_probability": (0,),
    "use_beam_search": (False,), "length_penalty": (1,), "early_stopping": (False,), "logits_processors": ([],),
    "do_sample": (True, False), "num_beams": (1,), "no_repeat_ngram_size": (0,), "vllm_xargs": ({},), "custom_params": ({},),
    "thinking_token_budget": (),
    # constrained output
    "guided_json": (), "guided_regex": (), "guided_choice": (), "guided_grammar": (), "structured_outputs": (),
    "guided_decoding_backend": (), "guided_whitespace_pattern": (), "structural_tag": (), "json_schema": (),
    "grammar": ("",), "regex": (), "ebnf": (), "response_format": ({"type": "text"},), "stop_regex": ([],),
    # other outputs
    "prompt_logprobs": (), "logprob_token_ids": (), "return_tokens_as_token_ids": (False,),
    "modalities": (["text"],), "audio": (), "web_search_options": (), "truncate_prompt_tokens": (),
    "n_probs": (0,), "detokenize": (True,), "echo": (False,), "suffix": ("",),
    "verbosity": ("medium",), "return_hidden_states": (False,),
    # lengths and ends by other names
    "max_new_tokens": (), "max_length": (), "min_length": (0,), "num_return_sequences": (1,), "stop_sequences": ([],),
    # other inputs and routing
    "extra_body": ({},),
    "functions": ([],), "function_call": ("none",), "documents": ([],), "chat_template": (), "mm_processor_kwargs": ({},),
    "prompt_embeds": (), "kv_transfer_params": (),
    "lora_path": (), "n_predict": (), "repetition_detection": (),
}  # fmt: skip
"""Known but not supported, each with the values (null always) at which it does nothing. `do_sample` is judged beside the
temperature (`server/token_settings.py`); `echo` and `suffix` are fields of completions."""

OF_TOKENIZE: dict[str, tuple[Any, ...]] = {
    name: _NEUTRAL[name]
    for name in ("chat_template", "documents", "extra_body", "functions", "mm_processor_kwargs", "truncate_prompt_tokens")
} | {"reasoning_effort": ()}  # fmt: skip
"""What would change the ids of a text or chat; a setting of generation changes none."""

_HINTS = {
    "max_new_tokens": "use 'max_tokens'", "n_predict": "use 'max_tokens'", "min_length": "use 'min_tokens'",
    "max_length": "use 'max_tokens', which does not count the prompt", "num_return_sequences": "use 'n'",
    "stop_sequences": "use 'stop'", "repeat_penalty": "use 'repetition_penalty'",
    "extra_body": "it is an argument of the client library, and its keys belong into the body itself",
    "echo": "it belongs to /v1/completions", "suffix": "a completion only goes on with its prompt",
}  # fmt: skip
"""What the sender of an unsupported parameter may do instead."""


MAX_UNKNOWN = 64
"""Unknown keys of one request. Each is compared with every name there is, which takes about 0.1 ms."""
_MAX_FUZZY_LENGTH = 40
"""No parameter's name is as long, and the comparison takes the square of it."""


def judge(
    extra: Mapping[str, Any] | None,
    known: Iterable[str],
    *,
    also_refused: Mapping[str, str] = MappingProxyType({}),
    unsupported: Mapping[str, tuple[Any, ...]] = _NEUTRAL,
) -> None:
    """Refuse what would change the result. `also_refused` maps names to the reason, for one endpoint's own cases;
    `unsupported` has the names that matter there, with the values at which they do nothing.

    Raises InvalidRequest naming the parameter.
    """
    if not extra:
        return
    unknown = sum(
        name not in HARMLESS and name not in unsupported and name not in also_refused for name in extra
    )
    if unknown > MAX_UNKNOWN:
        message = f"{unknown} parameters are unknown; at most {MAX_UNKNOWN} are ignored."
        raise InvalidRequest(message, code="unknown_parameter")
    ignored = []
    for name, value in extra.items():
        if value is None or name in HARMLESS:
            continue
        if name in also_refused:
            raise InvalidRequest(also_refused[name], param=name, code="unsupported_parameter")
        if name in unsupported:
            if not _is_neutral(value, unsupported[name]):
                message = f"'{name}' is not supported{': ' + _HINTS[name] if name in _HINTS else ' by this server'}."
                raise InvalidRequest(message, param=name, code="unsupported_parameter")
            continue
        short = len(name) <= _MAX_FUZZY_LENGTH
        if short and (near := difflib.get_close_matches(name, [*known, *unsupported], n=1, cutoff=0.85)):
            message = f"Unknown parameter '{name}'. Did you mean '{near[0]}'?"
            raise InvalidRequest(message, param=name, code="unknown_parameter")
        ignored.append(name[:100])
    if ignored:
        log.info("ignored unknown parameters", names=sorted(ignored)[:20])


def _is_neutral(value: Any, neutral: tuple[Any, ...]) -> bool:
    """Equal in value and kind: `False` is no neutral number, an empty list no empty object."""
    return any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in neutral)
