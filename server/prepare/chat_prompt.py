"""From a client's messages or text to prompt token ids, off the event loop if it may take long."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from engine.errors import FIELD, ContextLengthExceeded, InvalidRequest
from engine.text.tokenizer import PairEncoding
from server.prepare.billing_header import without_billing_header
from server.prepare.cache_points import Prompt, ends_in, num_tokens, opening_of
from server.prepare.unread_parts import placeholder
from server.schemas.chat import TEXTS, THOUGHTS, ChatMessage, ToolCall
from server.schemas.volume import check_texts
from server.state.server_state import ServedModel, ServerState
from server.system.worker_threads import DeadlineExceeded
from server.templates.message_forms import THINKING, TookTooMuch, arguments_object

DEADLINE = 5.0
"""Time limit to render and tokenize, in seconds. The largest prompts that fit a body take about one."""
INLINE_IDS = 512
"""Number of ids below which decoding is faster than waking a thread."""
INLINE_CHARACTERS = 2048
"""Length in characters below which tokenizing is faster than waking a thread."""
MAX_CHARACTERS_PER_TOKEN = 256
"""Most characters per token: a text with more than this times the context cannot fit, since the longest tokens in use (runs
of blanks) have 128."""
PLAUSIBLE_CHARACTERS_PER_TOKEN = 8
"""Characters per token above those of prose or code in any tokenizer: a longer text is first checked in pieces."""
PIECE = 2**16
"""Characters."""
MOST_CUT_CHARACTERS = 2**20
"""Most characters read of a prompt that is to be truncated; more if the context is long."""


Result = TypeVar("Result")
Marked = tuple[Sequence[ChatMessage], Sequence[Mapping[str, Any]]]
"""Messages and tools."""


async def chat_prompt(
    state: ServerState,
    model: ServedModel,
    messages: Sequence[ChatMessage],
    tools: Sequence[Mapping[str, Any]],
    *,
    add_generation_prompt: bool = True,
    add_special_tokens: bool = False,
    extra: Mapping[str, Any] | None = None,
    continue_final_message: bool = False,
    bounded: bool = True,
    marked: Sequence[Marked] = (),
) -> Prompt:
    """The prompt of a conversation. `bounded` as for `encode_text`. `marked`: the conversation with a mark behind a part of it,
    once for each position that is to be known.

    The template writes the special tokens, so the tokenizer adds none unless requested. With `continue_final_message` the
    prompt ends inside the last message, and `add_generation_prompt` must be False. Raises InvalidRequest.
    """
    if continue_final_message and add_generation_prompt:
        message = (
            f"'{FIELD}' and 'add_generation_prompt' cannot both be true: one goes on with the last "
            "message, the other begins a new one."
        )
        raise InvalidRequest(message, param="continue_final_message", code="invalid_value")
    template = model.template
    if template is None:
        raise InvalidRequest(model.template_lack or "", param="messages", code="no_chat_template")
    if tools and not template.reads_tools:
        message = f"'{FIELD}' are not supported by this model: its chat template does not show them to it."
        raise InvalidRequest(message, param="tools", code="unsupported_parameter")

    def plainly(conversation: Sequence[ChatMessage]) -> list[dict[str, Any]]:
        return [_plain_message(index, one, state.unread_parts) for index, one in enumerate(conversation)]

    def render(conversation: Sequence[Mapping[str, Any]], offered: Sequence[Mapping[str, Any]]) -> str:
        return template.prompt(conversation, offered, add_generation_prompt, extra, continue_final_message)

    def work() -> Prompt:
        _check_arguments(messages)
        plain = plainly(messages)
        try:
            whole = model.preset.before(plain)
            text = render(whole, tools)
        except TookTooMuch:
            raise
        except InvalidRequest as refusal:
            raise _naming_arguments(refusal, plain) from None
        variants = [(model.preset.before(plainly(one)), offered) for one, offered in marked]
        opening = opening_of(whole) if model.prefixes.at_points and not continue_final_message else None
        if opening is not None and (len(opening) > 1 or tools):
            variants = [(opening, tools), *variants]
        else:
            opening = None
        if not variants:
            return Prompt(tuple(encode_text(model, text, add_special_tokens, "messages", bounded)))
        ids, token_ends = _encoded(
            model,
            text,
            "messages",
            bounded,
            lambda: model.tokenizer.encode_with_ends(text, add_special_tokens),
        )
        points = [num_tokens(token_ends, end) for end in ends_in(text, variants, render)]
        return Prompt(tuple(ids), 0 if opening is None else points.pop(0), tuple(points))

    try:
        return await state.threads.run(work, DEADLINE)
    except DeadlineExceeded:
        message = f"These messages took more than {DEADLINE:g} s to turn into a prompt."
        raise InvalidRequest(message, param="messages", code="chat_template_error") from None


async def decoded(
    state: ServerState, model: ServedModel, lists: Sequence[list[int]], skip_special_tokens: bool, param: str
) -> list[str]:
    """Texts of lists of token ids. Raises InvalidRequest."""

    def work() -> list[str]:
        return [model.tokenizer.decode(ids, skip_special_tokens) for ids in lists]

    if sum(map(len, lists)) <= INLINE_IDS:
        return work()
    try:
        return await state.threads.run(work, DEADLINE)
    except DeadlineExceeded:
        message = f"'{FIELD}' took more than {DEADLINE:g} s to turn into text."
        raise InvalidRequest(message, param=param, code="invalid_value") from None


async def token_texts(state: ServerState, model: ServedModel, ids: Sequence[int]) -> list[str]:
    """The text of each id by itself. Raises InvalidRequest."""

    def work() -> list[str]:
        return [model.tokenizer.token_text(id_) for id_ in ids]

    if len(ids) <= INLINE_IDS:
        return work()
    try:
        return await state.threads.run(work, DEADLINE)
    except DeadlineExceeded:
        message = f"'{FIELD}' took more than {DEADLINE:g} s for {len(ids)} tokens."
        raise InvalidRequest(message, param="return_token_strs", code="invalid_value") from None


def check_token_ids(model: ServedModel, ids: Sequence[int], param: str) -> None:
    """Raises InvalidRequest for an id beyond the model's logits: it would read another row's memory."""
    largest = max(ids, default=0)
    if largest >= model.info.logits_width:
        message = (
            f"'{FIELD}' holds token id {largest}, but this model's ids end at {model.info.logits_width - 1}."
        )
        raise InvalidRequest(message, param=param, code="invalid_value")


def encode_text(
    model: ServedModel, text: str, add_special_tokens: bool, param: str, bounded: bool = True
) -> list[int]:
    """Token ids of a text. `bounded`: a text that cannot fit is refused before it is tokenized; otherwise the text will be cut
    and may be longer. A tokenizer takes some 350 bytes a token while it works, and cannot be stopped. Raises InvalidRequest."""
    return _encoded(model, text, param, bounded, lambda: model.tokenizer.encode(text, add_special_tokens))


def encode_pair(
    model: ServedModel, texts: tuple[str, str], params: tuple[str, str], bounded: bool = True
) -> PairEncoding:
    """Two texts as the tokenizer joins them, named by `params`; `bounded` as for `encode_text`. Raises InvalidRequest."""
    first, second = texts

    def both() -> PairEncoding:
        first.encode()  # half of a surrogate pair in it is this text's fault
        return _encoded(model, second, params[1], bounded, lambda: model.tokenizer.encode_pair(first, second))

    return _encoded(model, first, params[0], bounded, both)


def _encoded(
    model: ServedModel, text: str, param: str, bounded: bool, encode: Callable[[], Result]
) -> Result:
    """What `encode` makes of the text, if its length allows that."""
    context = model.max_model_len
    try:
        if len(text) > max(PLAUSIBLE_CHARACTERS_PER_TOKEN * context, PIECE):
            if bounded and _cannot_fit(model, text):
                message = (
                    f"This model's maximum context length is {context} tokens, and '{FIELD}' has {len(text)} characters, "
                    "more than fit."
                )
                raise ContextLengthExceeded(message, param=param)
            most = max(PLAUSIBLE_CHARACTERS_PER_TOKEN * context, MOST_CUT_CHARACTERS)
            if not bounded and len(text) > most:
                message = f"'{FIELD}' has {len(text)} characters: of a prompt that is to be truncated at most {most} are read."
                raise ContextLengthExceeded(message, param=param)
        return encode()
    except UnicodeEncodeError:
        message = f"'{FIELD}' holds half of a surrogate pair, which is not a character."
        raise InvalidRequest(message, param=param, code="invalid_value") from None


def _naming_arguments(refusal: InvalidRequest, messages: Sequence[Mapping[str, Any]]) -> InvalidRequest:
    """The template's refusal, with the name of the first arguments that are no JSON object, if any: a call that was cut off
    has such arguments, and many templates iterate over the members of an object."""
    if refusal.param != "messages":
        return refusal
    for index, message in enumerate(messages):
        for number, call in enumerate(message.get("tool_calls", ())):
            arguments = call["function"]["arguments"]
            if arguments and not isinstance(arguments_object(arguments), dict):
                param = f"messages.{index}.tool_calls.{number}.function.arguments"
                advice = f"{refusal} ('{FIELD}' is no JSON object, which a template may need)"
                return InvalidRequest(advice, param=param, code=refusal.code)
    return refusal


def _check_arguments(messages: Sequence[ChatMessage]) -> None:
    """Raises InvalidRequest if the arguments of earlier calls, which are JSON in strings, are too large to decode."""
    written = {
        f"messages.{index}.tool_calls.{number}.function.arguments": call.function.arguments
        for index, message in enumerate(messages)
        for number, call in enumerate(message.tool_calls or ())
        if isinstance(call.function.arguments, str)
    }
    check_texts(written)


def _cannot_fit(model: ServedModel, text: str) -> bool:
    """Whether a text has many more tokens than the context, counted piece by piece. Cutting words adds a few tokens."""
    if len(text) > MAX_CHARACTERS_PER_TOKEN * model.max_model_len:
        return True
    room = 2 * model.max_model_len
    for begin in range(0, len(text), PIECE):
        room -= len(model.tokenizer.encode(text[begin : begin + PIECE], False))
        if room < 0:
            return True
    return False


def _plain_message(index: int, message: ChatMessage, unread_parts: str) -> dict[str, Any]:
    """A message as plain data, for `ChatTemplate.prompt`, without keys that the client omitted or sent as null; the content is
    null if the client sent null. `unread_parts`: the value of `--unread-parts`."""
    param = f"messages.{index}"
    plain: dict[str, Any] = {"role": message.role}
    if message.content is not None:
        plain["content"] = _content(param, message, unread_parts)
    elif message.role != "assistant":
        text = f"Invalid value for '{FIELD}': it is required for role '{message.role}'."
        raise InvalidRequest(text, param=f"{param}.content", code="missing_required_parameter")
    elif "content" in message.model_fields_set:
        plain["content"] = None
    for name in ("name", "tool_call_id", "reasoning_content"):
        if (value := getattr(message, name)) is not None:
            plain[name] = value
    if message.reasoning is not None:
        plain.setdefault("reasoning_content", message.reasoning)
    if message.tool_calls:
        plain["tool_calls"] = [_plain_call(call) for call in message.tool_calls]
    return plain


def _content(param: str, message: ChatMessage, unread_parts: str) -> str | list[dict[str, str]]:
    """Text, or parts of text (always with `type` "text") and of an assistant's reasoning ("thinking")."""
    content = message.content
    to_system = message.role in ("system", "developer")
    if content is None or isinstance(content, str):
        return without_billing_header(content or "") if to_system else content or ""
    parts = []
    for number, part in enumerate(content):
        where = f"{param}.content.{number}"
        if part.type in THOUGHTS and message.role == "assistant":
            if reasoning := part.thought:
                parts.append({"type": THINKING, THINKING: reasoning})
            continue
        text_of_part = part.refusal if part.type == "refusal" else part.text
        if (unread := placeholder(part.type, unread_parts)) is not None:
            parts.append({"type": "text", "text": unread})
            continue
        if part.type not in TEXTS:
            text = f"Content parts of type '{part.type[:50]}' are not supported: this model reads text only."
            raise InvalidRequest(text, param=f"{where}.type", code="unsupported_value")
        if text_of_part is None:
            text = f"Invalid value for '{FIELD}': it is required."
            raise InvalidRequest(text, param=f"{where}.text", code="missing_required_parameter")
        visible_text = without_billing_header(text_of_part) if to_system else text_of_part
        if visible_text or not text_of_part:
            parts.append({"type": "text", "text": visible_text})
    return parts


def _plain_call(call: ToolCall) -> dict[str, Any]:
    """A call as plain data, its arguments as they were sent."""
    function = {"name": call.function.name, "arguments": call.function.arguments}
    plain = {"type": "function", "function": function}
    return plain if call.id is None else {"id": call.id, **plain}
