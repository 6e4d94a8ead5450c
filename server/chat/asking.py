"""From the body of a chat to what the engine is asked, and how its answer is to be read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from engine.errors import InvalidRequest
from engine.text.generation import TextRequest
from server.chat.answer import Reading
from server.chat.grammar import chat_grammar
from server.chat.prompt import chat_prompt
from server.chat.reasoning import Place, continued_text
from server.chat.tools.choice import ToolChoice
from server.prompts import truncation_of
from server.routes.common import new_id, text_request
from server.schemas.chat import ChatRequest
from server.state import ServedModel, ServerState
from server.structured import service as structured
from server.structured.forms import constraint_of


async def ask(state: ServerState, model: ServedModel, body: ChatRequest) -> tuple[TextRequest, Reading]:
    """Render, tokenize, have the grammar judged. Raises InvalidRequest, Overloaded or Unavailable."""
    choice = body.choice
    if model.notation.single_calls and model.notation.tools is not None:
        choice = replace(choice, several=False)
    _check_template_reads_tools(model, choice)
    constraint = constraint_of(body)
    prompt = await _prompt(state, model, body, choice)
    body.check_prompt_logprobs(len(prompt), body.prompt_logprobs, "prompt_logprobs")
    place = _place(model, body, prompt)
    reading = _reading(model, body, choice, place)
    grammar = None
    if found := chat_grammar(choice, constraint, model.notation, place):
        grammar = await _prepared(state, model, found, choice)
    asked = text_request(
        new_id("chatcmpl"),
        body,
        model,
        (prompt,),
        body.num_logprobs,
        body.output_limit,
        continues_prompt=bool(body.continue_final_message),
        grammar=grammar,
        prompt_logprobs=body.prompt_logprobs,
        shown_special=model.notation.special_ids(reading.literals),
        ends=reading.end_of_first_call if reading.ends_itself else None,
    )
    return asked, reading


async def _prompt(
    state: ServerState, model: ServedModel, body: ChatRequest, choice: ToolChoice
) -> tuple[int, ...]:
    extra = dict(body.chat_template_kwargs or {})
    if body.reasoning_effort is not None:
        if model.template is not None and "reasoning_effort" not in model.template.variables:
            message = "'reasoning_effort' is not supported by this model."
            raise InvalidRequest(message, param="reasoning_effort", code="unsupported_parameter")
        extra["reasoning_effort"] = body.reasoning_effort
    truncation = truncation_of(body, model, body.output_limit or 1, body.output_limit_name)
    ids = await chat_prompt(
        state,
        model,
        body.messages,
        body.offered_tools(choice),
        add_generation_prompt=body.begins_answer,
        continue_final_message=bool(body.continue_final_message),
        add_special_tokens=bool(body.add_special_tokens),
        extra=extra,
        bounded=truncation is None,
    )
    return ids if truncation is None else tuple(truncation.cut(ids))


def _check_template_reads_tools(model: ServedModel, choice: ToolChoice) -> None:
    if choice.mode != "none" and model.template is not None and not model.template.reads_tools:
        message = "'tools' are not supported by this model: its chat template does not show them to it."
        raise InvalidRequest(message, param="tools", code="unsupported_parameter")


def _place(model: ServedModel, body: ChatRequest, prompt: tuple[int, ...]) -> Place:
    reasoning = model.notation.reasoning
    if reasoning is None:
        return Place.AFTER
    continued = continued_text(body.messages[-1].content) if body.continue_final_message else None
    return reasoning.place(lambda ids: model.tokenizer.decode(ids, False), prompt, continued)


def _reading(model: ServedModel, body: ChatRequest, choice: ToolChoice, place: Place) -> Reading:
    notation, shows_special = model.notation, body.skip_special_tokens is False
    hidden = frozenset() if shows_special else notation.special
    include_reasoning = body.include_reasoning is not False
    return Reading(notation, choice, place, _token_bytes(model, shows_special), hidden, include_reasoning)


def _token_bytes(model: ServedModel, shows_special: bool) -> Callable[[int], bytes]:
    tokenizer, shown = model.tokenizer, frozenset(model.notation.tokens.values())

    def token_bytes(token_id: int) -> bytes:
        skipped = not shows_special and token_id not in shown and tokenizer.is_special(token_id)
        return b"" if skipped else tokenizer.token_bytes(token_id)

    return token_bytes


async def _prepared(
    state: ServerState, model: ServedModel, found: tuple[str, str], choice: ToolChoice
) -> str:
    """The grammar, judged. What an executor without grammars cannot do is named by what asked for it."""
    grammar, param = found
    try:
        return await structured.prepared(state, model, grammar, param)
    except InvalidRequest as error:
        if error.code != "unsupported_parameter" or param != "tools":
            raise
        place = next((one.place for one in choice.functions if one.strict), 0)
        asked_by = "tool_choice" if choice.forced else f"tools.{place}.function.strict"
        raise InvalidRequest(
            error.message.replace("'tools'", f"'{asked_by}'"), asked_by, error.code
        ) from None
