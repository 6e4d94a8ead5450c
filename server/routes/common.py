"""Steps that every route with a body shares."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec
from fastapi import Request
from starlette.responses import Response

from engine.core.admission import check_min_tokens
from engine.errors import InvalidRequest
from engine.text.generation import Generation, TextRequest
from executors.contract import SamplingParams
from server.arrival import ARRIVED, INLINE_BODY_BYTES, apart, arrives
from server.auth import TENANT
from server.media import check_media
from server.memory import collector_pause
from server.middleware import IGNORED
from server.schemas.base import Model, parse
from server.schemas.chat import TemplateVariables
from server.schemas.extras import MAX_TOLD, screen
from server.schemas.sampling import GenerationFields
from server.schemas.volume import check_volume
from server.state import ServedModel, ServerState
from server.token_settings import bad_words, check_do_sample, check_ids, logit_bias, typical_p

READ = ["GET", "HEAD"]
"""Methods of a route that only reads. FastAPI does not add HEAD to a GET by itself, and load balancers probe with it."""

_SMALLEST_TOP_P = 1e-6
"""OpenAI accepts top_p 0 and means the most likely token; a set whose probability "reaches 0" would be empty."""


def state_of(request: Request) -> ServerState:
    """The server's state, as a dependency."""
    state: ServerState = request.app.state.server
    return state


async def read(request: Request, model: type[Model]) -> Model:
    """The validated body; a large one is parsed on a thread. What it holds that has no effect is left in the scope, for the
    response's header. Raises InvalidRequest, also for keys that would have an effect and are not supported, and HTTPException
    for a body that is not JSON."""
    check_media(request.headers)
    body = await request.body()
    arrives(body)
    if len(body) <= INLINE_BODY_BYTES:
        parsed, request.scope[IGNORED] = _parse(model, body)
        return parsed
    with collector_pause():
        # It would go through millions of new objects again and again and find nothing: that is most of the time, and the
        # parser holds up every other thread meanwhile.
        parsed, request.scope[IGNORED] = await apart(
            state_of(request).threads, lambda: _parse_large(model, body)
        )
    return parsed


def tell_ignored(request: Request, names: Iterable[str]) -> None:
    """Add to what the response's header lists, where only the model that was asked for shows what has no effect."""
    request.scope[IGNORED] = [*request.scope.get(IGNORED, ()), *names][: MAX_TOLD + 1]


def template_variables(request: Request, model: ServedModel, body: TemplateVariables) -> dict[str, Any]:
    """The body's variables for the chat template. The names of those that it does not read are told."""
    read = frozenset[str]() if model.template is None else model.template.variables
    variables, unread = body.variables(read)
    tell_ignored(request, unread)
    return variables


def _parse(model: type[Model], body: bytes) -> tuple[Model, list[str]]:
    parsed = parse(model, body)
    return parsed, screen(parsed)


def _parse_large(model: type[Model], body: bytes) -> tuple[Model, list[str]]:
    check_volume(body)
    return _parse(model, body)


def json_response(data: Any, status: int = 200) -> Response:
    """Plain data as a JSON response."""
    return Response(msgspec.json.encode(data), status, media_type="application/json")


def new_id(prefix: str) -> str:
    """Minted here: a client's own id is never used as one."""
    return f"{prefix}-{secrets.token_hex(16)}"


def cache_salt(model: ServedModel, asked: str | None) -> str | None:
    """What the KV of a request's prefix is shared by: the salt that was asked for and, where keys are told apart, something
    of the key's hash. Behind a separator that no hash has, a client's salt cannot pass for another key."""
    return f"{TENANT.get()}/{asked or ''}" if model.salt_per_key else asked


@contextlib.asynccontextmanager
async def generation_of(
    model: ServedModel,
    asked: TextRequest,
    fields: GenerationFields,
    *,
    prompt: str = "prompt",
    grammar: str | None = None,
) -> AsyncIterator[Generation]:
    """The call, queued and in progress. Refusals of the engine, of which some come while it is computed, name fields in its own
    words: they are given the client's, of which `prompt` and `grammar` are two."""
    with named({"prompt": prompt, "grammar": grammar, "max_tokens": fields.output_limit_name}):
        async with model.engine.start(asked) as generation:
            yield generation


@contextlib.contextmanager
def named(names: Mapping[str, str | None]) -> Iterator[None]:
    """Give refusals of the engine the client's name of a field: `names` has it by the engine's. In messages "prompt" and
    "grammar" are words, which stay."""
    try:
        yield
    except InvalidRequest as error:
        if error.param is not None and error.param in names:
            theirs = names[error.param]
            if theirs is not None and error.param == "max_tokens":
                error.message = error.message.replace(error.param, theirs)
            error.param = theirs
        raise


def text_request(
    call_id: str,
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
    """The engine's form of a call. What the client left out comes from the model's defaults.

    Raises InvalidRequest for token ids the model does not have, for min_tokens above max_tokens, and for a `do_sample` that
    the temperature contradicts.
    """
    defaults = model.defaults
    top_k = defaults.top_k if fields.top_k is None else fields.top_k
    check_ids(fields, model.info.logits_width)
    temperature = defaults.temperature if fields.temperature is None else fields.temperature
    check_do_sample(fields, temperature)
    if max_tokens is not None:
        check_min_tokens(fields.min_tokens or 0, max_tokens)
    if grammar is not None and fields.include_stop_str_in_output:
        message = (
            "'include_stop_str_in_output' would put text behind what the answer has to follow; leave it out."
        )
        raise InvalidRequest(message, param="include_stop_str_in_output", code="invalid_value")
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
        presence_penalty=fields.presence_penalty or 0.0,
        frequency_penalty=fields.frequency_penalty or 0.0,
        logit_bias=logit_bias(fields),
        bad_words=bad_words(fields, model),
        allowed_token_ids=None if fields.allowed_token_ids is None else tuple(fields.allowed_token_ids),
        min_tokens=fields.min_tokens or 0,
    )
    return TextRequest(
        request_id=call_id,
        continues_prompt=continues_prompt,
        prompts=prompts,
        n=fields.n or 1,
        max_tokens=max_tokens,
        sampling=sampling,
        seed=None if fields.seed == -1 else fields.seed,  # vLLM's and llama.cpp's word for none
        stop=fields.stops,
        stop_token_ids=tuple(fields.stop_token_ids or ()),
        include_stop_str_in_output=bool(fields.include_stop_str_in_output),
        ignore_eos=bool(fields.ignore_eos),
        skip_special_tokens=fields.skip_special_tokens is not False,
        priority=fields.priority or 0,
        cache_salt=cache_salt(model, fields.cache_salt),
        tenant=TENANT.get(),
        deadline_ms=fields.deadline_ms,
        arrival_time=ARRIVED.get(),
        grammar=grammar,
        prompt_logprobs=prompt_logprobs,
        shown_special=shown_special,
        ends=ends,
    )
