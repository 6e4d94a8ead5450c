"""POST /tokenize and /detokenize, in vLLM's shape."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from server.chat.prompt import chat_prompt, check_token_ids, decoded, text_prompt, token_texts
from server.routes.common import body_schema, json_response, read, state_of
from server.schemas.tokens import DetokenizeRequest, TokenizeRequest

router = APIRouter()


@router.post("/tokenize", openapi_extra=body_schema(TokenizeRequest))
async def tokenize(request: Request) -> Response:
    """Token ids of a text, or of a conversation as the model would see it."""
    state = state_of(request)
    body = await read(request, TokenizeRequest)
    body.check()
    model, _ = state.require(body.model)
    if body.messages is not None:
        ids = await chat_prompt(
            state,
            model,
            body.messages,
            [tool.model_dump(exclude_unset=True) for tool in body.tools or ()],
            add_generation_prompt=body.begins_answer,
            add_special_tokens=bool(body.add_special_tokens),
            extra=body.chat_template_kwargs,
            continue_final_message=bool(body.continue_final_message),
        )
    else:
        ids = await text_prompt(state, model, body.prompt or "", body.add_special_tokens is not False)
    answer: dict[str, Any] = {"count": len(ids), "max_model_len": model.max_model_len, "tokens": ids}
    answer["token_strs"] = await token_texts(state, model, ids) if body.return_token_strs else None
    return json_response(answer)


@router.post("/detokenize", openapi_extra=body_schema(DetokenizeRequest))
async def detokenize(request: Request) -> Response:
    """Text of token ids, special tokens included unless asked otherwise."""
    state = state_of(request)
    body = await read(request, DetokenizeRequest)
    body.check()
    model, _ = state.require(body.model)
    check_token_ids(model, body.tokens, "tokens")
    [text] = await decoded(state, model, [body.tokens], bool(body.skip_special_tokens), "tokens")
    return json_response({"prompt": text})
