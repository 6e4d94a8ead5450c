"""Inputs of completions, embeddings and /tokenize, which are texts or lists of token ids: they become token ids, cut to the
requested length, off the event loop if it may take long."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from engine.errors import FIELD, ContextLengthExceeded, InvalidRequest
from server.prepare.chat_prompt import DEADLINE, INLINE_CHARACTERS, check_token_ids, encode_text
from server.schemas.sampling import TruncationFields
from server.state.server_state import ServedModel, ServerState
from server.system.worker_threads import DeadlineExceeded

Input = str | Sequence[int]
Place = Callable[[int], str]
"""The path, in the body, of an input with this number."""
Result = TypeVar("Result")
_INLINE_TEXTS = 32
"""Number of texts above which tokenizing, even of short ones, takes longer than waking a thread."""
_INLINE_IDS = 2**16
"""Number of ids that are checked in a millisecond."""


@dataclass(frozen=True, slots=True)
class Truncation:
    """Truncation of each input to at most `length` tokens: the last ones, or with `from_right` the first ones."""

    length: int
    from_right: bool = False

    def cut(self, ids: Sequence[int], around: tuple[int, int] = (0, 0)) -> Sequence[int]:
        """The ids that are kept. `around`: numbers of special tokens that the tokenizer added before and after the text. Only
        the text is cut, as the tokenizer itself would do, unless nothing of the text would be left."""
        if len(ids) <= self.length:
            return ids
        before, behind = around if self.length > sum(around) else (0, 0)
        room, end = self.length - before - behind, len(ids) - behind
        text = ids[before : before + room] if self.from_right else ids[end - room : end]
        return [*ids[:before], *text, *ids[end:]]


def truncation_of(fields: TruncationFields, model: ServedModel, reserved: int) -> Truncation | None:
    """The truncation that `truncate_prompt_tokens` requests; -1 means the context without `reserved` tokens of output.

    Raises InvalidRequest for more than the context, ContextLengthExceeded if no token is left.
    """
    length = fields.truncate_prompt_tokens
    if length is None:
        return None
    if length > model.max_model_len:
        message = f"'{FIELD}' is {length}, more than this model's context of {model.max_model_len} tokens."
        raise InvalidRequest(message, param="truncate_prompt_tokens", code="invalid_value")
    if length < 0 and (length := model.max_model_len - reserved) < 1:
        message = (
            f"'{FIELD}' is {reserved}, and this model's context has {model.max_model_len} tokens: none is left for "
            "the prompt."
        )
        raise ContextLengthExceeded(message, param="max_tokens")
    return Truncation(length, fields.truncation_side == "right")


def place_in(param: str, value: object) -> Place:
    """The path of each input of the field `param`, whose value is `value`: with its position if that is a list of inputs."""
    several = isinstance(value, list) and not (value and isinstance(value[0], int))
    return lambda number: f"{param}.{number}" if several else param


async def input_ids(
    state: ServerState,
    model: ServedModel,
    inputs: Sequence[Input],
    param: str,
    *,
    place: Place | None = None,
    add_special_tokens: bool = True,
    truncation: Truncation | None = None,
    longest: int | None = None,
    may_be_empty: bool = False,
) -> tuple[tuple[int, ...], ...]:
    """The token ids of each input, empty only if that is allowed. A list of ids has at most `longest` ids (default: one less
    than the context); texts that cannot fit are refused by the engine, or earlier by their number of characters.

    Raises InvalidRequest naming `param`, or the input at fault if `place` tells its path.
    """
    longest = model.max_model_len - 1 if longest is None else longest

    def ids_of(number: int, one: Input) -> tuple[int, ...]:
        where = param if place is None else place(number)
        if not isinstance(one, str):
            ids = one if truncation is None else truncation.cut(one)
            _check_length(model, len(ids), where, longest)
            check_token_ids(model, one, where)
        else:
            ids = encode_text(model, one, add_special_tokens, where, bounded=truncation is None)
            if truncation is not None:
                ids = truncation.cut(ids, _around(model) if add_special_tokens else (0, 0))
        if not ids and not may_be_empty:
            raise InvalidRequest(f"'{FIELD}' is empty.", param=where, code="invalid_value")
        return tuple(ids)

    def work() -> tuple[tuple[int, ...], ...]:
        return tuple(ids_of(number, one) for number, one in enumerate(inputs))

    texts = [one for one in inputs if isinstance(one, str)]
    few = len(texts) <= _INLINE_TEXTS and total_length(texts) <= INLINE_CHARACTERS
    if few and total_length(inputs) <= _INLINE_IDS:
        return work()
    return await fenced(state, work, param, "to tokenize")


async def fenced(state: ServerState, work: Callable[[], Result], param: str, what: str) -> Result:
    """The result of `work`, done on a thread. Raises InvalidRequest if it takes too long."""
    try:
        return await state.threads.run(work, DEADLINE)
    except DeadlineExceeded:
        message = f"'{FIELD}' took more than {DEADLINE:g} s {what}."
        raise InvalidRequest(message, param=param, code="invalid_value") from None


def added_ids(model: ServedModel) -> tuple[list[int], list[int]]:
    """The numbers of special tokens that the tokenizer adds before and after a text."""
    bare, whole = model.tokenizer.encode("a", False), model.tokenizer.encode("a", True)
    for before in range(len(whole) - len(bare) + 1):
        if whole[before : before + len(bare)] == bare:
            return whole[:before], whole[before + len(bare) :]
    return [], []


def text_span(ids: Sequence[int], around: tuple[Sequence[int], Sequence[int]]) -> tuple[int, int]:
    """The indices where the text's own ids begin and end, between the special tokens `around` them."""
    before, behind = map(tuple, around)
    begin = len(before) if tuple(ids[: len(before)]) == before else 0
    end = len(ids) - len(behind)
    return begin, end if end >= begin and tuple(ids[end:]) == behind else len(ids)


def _around(model: ServedModel) -> tuple[int, int]:
    before, behind = added_ids(model)
    return len(before), len(behind)


def _check_length(model: ServedModel, length: int, param: str, longest: int) -> None:
    if length <= longest:
        return
    room = ": no room is left for output" if longest < model.max_model_len else ""
    message = f"This model's maximum context length is {model.max_model_len} tokens, and '{FIELD}' has {length}{room}."
    raise ContextLengthExceeded(message, param=param)


def total_length(inputs: Iterable[Input]) -> int:
    """Total number of tokens or characters."""
    return sum(map(len, inputs))
