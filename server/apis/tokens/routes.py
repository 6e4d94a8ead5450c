"""POST /tokenize and /detokenize, and GET /tokenizer_info, in vLLM's shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from server.apis.base.common import READ, find_model, json_response, read, state_of, template_variables
from server.apis.tokens.answers import Detokenized, Tokenized
from server.apis.tokens.schema import DetokenizeRequest, TokenizeRequest
from server.http.call import call_of
from server.http.large_body import run_off_loop_if_large
from server.prepare.chat_prompt import chat_prompt, check_token_ids, decoded, token_texts
from server.prepare.prompts import input_ids, truncation_of
from server.state.server_state import ServedModel
from server.templates.template import DEFAULT, ChatTemplate

router = APIRouter()

_OF_CHATS = (
    "tools",
    "chat_template_kwargs",
    "reasoning_effort",
    "verbosity",
    "add_generation_prompt",
    "continue_final_message",
)
"""Parameters that have no effect on a plain text."""


@router.post("/tokenize")
async def tokenize(request: Request) -> Response:
    """Token ids of a text, or of a conversation rendered for the model."""
    state, call = state_of(request), call_of(request.scope)
    body = await read(request, TokenizeRequest)
    body.check()
    state, model, _ = await find_model(request, body.model)
    truncation = truncation_of(body, model, 0)
    if body.messages is not None:
        variables = template_variables(call, model, body)
        offered = body.tools or ()
        tools = await run_off_loop_if_large(
            call, state.threads, lambda: [tool.model_dump(exclude_unset=True) for tool in offered]
        )
        prompt = await chat_prompt(
            state,
            model,
            body.messages,
            tools,
            add_generation_prompt=body.begins_answer,
            add_special_tokens=bool(body.add_special_tokens),
            extra=variables,
            continue_final_message=bool(body.continue_final_message),
            bounded=truncation is None,
        )
        ids = prompt.ids if truncation is None else tuple(truncation.cut(prompt.ids))
    else:
        call.ignore([name for name in _OF_CHATS if getattr(body, name) is not None])
        [ids] = await input_ids(
            state,
            model,
            [body.prompt or ""],
            "prompt",
            add_special_tokens=body.add_special_tokens is not False,
            truncation=truncation,
            may_be_empty=True,
        )
    answer: Tokenized = {
        "count": len(ids),
        "max_model_len": model.max_model_len,
        "tokens": ids,
        "token_strs": await token_texts(state, model, ids) if body.return_token_strs else None,
    }
    return json_response(answer)


@router.post("/detokenize")
async def detokenize(request: Request) -> Response:
    """Text of token ids, special tokens included unless asked otherwise."""
    state = state_of(request)
    body = await read(request, DetokenizeRequest)
    state, model, _ = await find_model(request, body.model)
    check_token_ids(model, body.tokens, "tokens")
    [text] = await decoded(state, model, [body.tokens], bool(body.skip_special_tokens), "tokens")
    answer: Detokenized = {"prompt": text}
    return json_response(answer)


@router.api_route("/tokenizer_info", methods=READ)
async def tokenizer_info(request: Request) -> Response:
    """The data a client needs to tokenize itself: tokenizer_config.json with the special tokens as texts, and the chat template
    in use. Evaluation tools render the template. Of several models the query names one."""
    _, model, _ = await find_model(request, request.query_params.get("model"))
    return json_response(_tokenizer_info(model))


_PATHS = frozenset(
    {"name_or_path", "vocab_file", "merges_file", "tokenizer_file", "special_tokens_map_file", "cache_dir"}
)
"""Keys with paths of the machine that saved the tokenizer: useless to clients and private."""
_ROLES = ("bos_token", "eos_token", "unk_token", "pad_token")


def _tokenizer_info(model: ServedModel) -> dict[str, Any]:
    tokenizer = model.tokenizer
    config = {name: _texts(value) for name, value in tokenizer.config.items() if name not in _PATHS}
    return {
        **config,
        **dict.fromkeys(_ROLES),
        **tokenizer.special_tokens,
        "tokenizer_class": config.get("tokenizer_class") or "PreTrainedTokenizerFast",
        "added_tokens_decoder": {str(id_): text for text, id_ in tokenizer.added_tokens.items()},
        "vocab_size": tokenizer.vocab_size,
        "model_max_length": model.max_model_len,
        "chat_template": None if model.template is None else _main_source(model.template),
    }


def _texts(value: Any) -> Any:
    """The configuration with every token as its text, where the file has an object for it."""
    if isinstance(value, Mapping):
        return value["content"] if "content" in value else {name: _texts(one) for name, one in value.items()}
    return [_texts(one) for one in value] if isinstance(value, list) else value


def _main_source(template: ChatTemplate) -> str:
    """The source of the template: if there are several, that for conversations without tools, or else the first one."""
    return template.sources.get(DEFAULT) or next(iter(template.sources.values()))
