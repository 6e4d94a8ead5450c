"""From the body of a chat to the engine's request and the parsing of its answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from engine.errors import InvalidRequest
from engine.text.generation import TextRequest
from server.answer.choice import Reading
from server.answer.notation import ModelNotation
from server.answer.reasoning import Place, continued_text
from server.grammar.compose import alone
from server.grammar.forms import Constraint, constraint_of
from server.http.call import Call
from server.http.large_body import run_off_loop_if_large
from server.prepare import structured_output as structured
from server.prepare.cache_points import Prompt
from server.prepare.chat_grammar import chat_grammar, writes_calls
from server.prepare.chat_prompt import Marked, chat_prompt
from server.prepare.engine_request import request_context, text_request
from server.prepare.field_names import FieldNames
from server.prepare.prompts import truncation_of
from server.schemas.chat import ChatRequest
from server.schemas.tool_choice import ToolChoice
from server.state.server_state import ServedModel, ServerState

FIELD_NAMES = FieldNames({"prompt": "messages", "max_tokens": "{limit}"})
"""Names of a chat's fields by their roles. `limit`: of the two names of the limit on output tokens, the one that was sent."""


@dataclass(frozen=True, slots=True)
class PreparedChat:
    """A prepared chat: the engine's request, the way to parse its answer, the role of the field that requires the grammar, if
    there is one, and the names of fields without effect on this answer. `num_kept`: tokens of the prompt up to the last part that
    the client has marked, as far as they are kept."""

    request: TextRequest
    reading: Reading
    grammar_param: str | None
    ignored: tuple[str, ...] = ()
    num_kept: int = 0


async def prepare_chat(
    state: ServerState,
    call: Call,
    model: ServedModel,
    body: ChatRequest,
    variables: Mapping[str, Any],
    prefix: str = "chatcmpl-",
    marked: Sequence[ChatRequest] = (),
) -> PreparedChat:
    """Render the template with these variables, tokenize, and validate the grammar. The answer's id begins with `prefix`.
    `marked`: the chat with a mark behind a part that is to be kept for later prompts, once for each such part. Raises
    InvalidRequest, Overloaded or Unavailable."""
    choice = body.choice
    notation = model.notation.for_calls(choice.forced)
    if notation.single_calls and notation.tools is not None:
        choice = replace(choice, several=False)
    text_form = await run_off_loop_if_large(call, state.threads, lambda: constraint_of(body))
    constraint, ignored = text_form, tuple[str, ...]()
    if choice.forced and text_form is not None:  # it describes a text, and the answer is calls
        constraint, ignored = None, (text_form.param.partition(".")[0],)
    whole = await chat_prompt_of(state, call, model, body, variables, marked)
    prompt = whole.ids
    body.check_prompt_logprobs(len(prompt), body.prompt_logprobs, "prompt_logprobs")
    place = _place(model, body, prompt)
    reading = _reading(model, notation, body, choice, place)
    grammar = None
    if grammar_and_param := await run_off_loop_if_large(
        call, state.threads, lambda: chat_grammar(choice, constraint, notation, place)
    ):
        grammar = await _prepared(state, call, model, grammar_and_param, choice, constraint)
    ends_itself = reading.one_call or (notation.is_harmony and not body.ignore_eos)
    request = text_request(
        request_context(call, prefix, body, model),
        body,
        model,
        (prompt,),
        body.num_logprobs,
        body.output_limit,
        continues_prompt=bool(body.continue_final_message),
        grammar=None if grammar is None else grammar.text,
        prompt_logprobs=body.prompt_logprobs,
        shown_special=frozenset() if notation.marks else notation.special_ids(reading.literals),
        ends=reading.end_of_answer if ends_itself else None,
    )
    request = replace(
        request, marks=notation.marks, stop_scope=reading.stop_scope, cache_points=whole.cache_points
    )
    # Where a schema of a call stands beside it, either may be what the answer could not follow any further.
    either = constraint is not None and any(function.strict for function in choice.functions)
    param = None if grammar is None or either else grammar.param
    return PreparedChat(request, reading, param, ignored, model.prefixes.kept(max(whole.marked, default=0)))


async def chat_prompt_of(
    state: ServerState,
    call: Call,
    model: ServedModel,
    body: ChatRequest,
    variables: Mapping[str, Any],
    marked: Sequence[ChatRequest] = (),
) -> Prompt:
    """The prompt. `marked` as for `prepare_chat`. Raises InvalidRequest."""
    truncation = truncation_of(body, model, body.output_limit or 1)

    def variants() -> list[Marked]:
        return [(one.messages, one.offered_tools()) for one in marked]

    prompt = await chat_prompt(
        state,
        model,
        body.messages,
        await run_off_loop_if_large(call, state.threads, body.offered_tools),
        add_generation_prompt=body.begins_answer,
        continue_final_message=bool(body.continue_final_message),
        add_special_tokens=bool(body.add_special_tokens),
        extra=variables,
        bounded=truncation is None,
        marked=await run_off_loop_if_large(call, state.threads, variants) if marked else (),
    )
    return prompt if truncation is None else Prompt(tuple(truncation.cut(prompt.ids)))


def _place(model: ServedModel, body: ChatRequest, prompt: tuple[int, ...]) -> Place:
    reasoning = model.notation.reasoning
    if reasoning is None:
        return Place.AFTER
    continued = continued_text(body.messages[-1].content) if body.continue_final_message else None
    return reasoning.place(lambda ids: model.tokenizer.decode(ids, False), prompt, continued)


def _reading(
    model: ServedModel, notation: ModelNotation, body: ChatRequest, choice: ToolChoice, place: Place
) -> Reading:
    shows_special = body.skip_special_tokens is False
    hidden = frozenset() if shows_special else notation.special
    include_reasoning = body.include_reasoning is not False
    return Reading(notation, choice, place, _token_bytes(model, shows_special), hidden, include_reasoning)


def _token_bytes(model: ServedModel, shows_special: bool) -> Callable[[int], bytes]:
    tokenizer, visible = model.tokenizer, frozenset(model.notation.tokens.values())

    def token_bytes(token_id: int) -> bytes:
        skipped = not shows_special and token_id not in visible and tokenizer.is_special(token_id)
        return b"" if skipped else tokenizer.token_bytes(token_id)

    return token_bytes


async def _prepared(
    state: ServerState,
    call: Call,
    model: ServedModel,
    grammar_and_param: tuple[str, str],
    choice: ToolChoice,
    constraint: Constraint | None,
) -> structured.ValidGrammar:
    """The validated grammar. A refusal names the field that required it: with a constraint beside calls, the one at fault."""
    grammar, param = grammar_and_param
    try:
        return await structured.prepared(state, call, model, grammar, param)
    except InvalidRequest as error:
        asked_by = param
        if error.code == "unsupported_parameter":  # nothing of the kind can be kept
            if constraint is None:
                place = next((one.place for one in choice.functions if one.strict), 0)
                asked_by = "tool_choice" if choice.forced else f"tools.{place}.function.strict"
        elif constraint is not None and writes_calls(choice, constraint, model.notation):
            await structured.prepared(state, call, model, alone(constraint), param)
            asked_by = "tools"
        error.rename(asked_by)
        raise
