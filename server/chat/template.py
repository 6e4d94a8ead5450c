"""Chat templates, rendered as transformers renders them, but fenced in: a sandbox, a deadline and an output cap.

Templates come from the model's directory or from `--chat-template`, never from a request. They are programs all the same
(a downloaded model may carry any), so they run in Jinja's immutable sandbox, on a thread that `server/chat/fence.py` stops
when it takes too long.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.meta
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.errors import InvalidRequest
from executors.contract import ConfigError

MAX_OUTPUT = 16 * 1024 * 1024
"""Characters. A body may hold as many; a template that makes more is looping."""
_RESERVED = frozenset(
    {"messages", "tools", "add_generation_prompt", "documents", "chat_template", "tokenize"}
)


class ChatTemplate:
    """A compiled chat template. Raises ConfigError when the source is no valid template.

    `special_tokens` (bos_token, eos_token, ...) are visible to the template by name.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str], origin: str = "chat template") -> None:
        environment = _environment()
        try:
            self._template = environment.from_string(source)
            self.variables = frozenset(jinja2.meta.find_undeclared_variables(environment.parse(source)))
        except jinja2.TemplateError as error:
            raise ConfigError(f"{origin}: not a valid Jinja template: {_one_line(error)}") from error
        self._special_tokens = dict(special_tokens)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        extra: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt. Blocks, and may loop: `server/chat/prompt.py` calls it behind a fence.

        `extra` are the request's `chat_template_kwargs`. Raises InvalidRequest with the template's own message when it
        refuses the conversation or makes too much.
        """
        for name in extra or ():
            if name in _RESERVED:
                param = f"chat_template_kwargs.{name}"
                raise InvalidRequest(f"'{name}' cannot be set here.", param=param, code="invalid_value")
        variables = {
            **self._special_tokens,
            **(extra or {}),
            "messages": messages,
            "tools": tools or None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return self._collect(variables)
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError,
                RecursionError, MemoryError) as error:  # fmt: skip
            message = f"The chat template refused these messages: {_one_line(error)}"
            raise InvalidRequest(message, param="messages", code="chat_template_error") from None

    def _collect(self, variables: Mapping[str, Any]) -> str:
        pieces: list[str] = []
        length = 0
        for piece in self._template.generate(variables):
            length += len(piece)
            if length > MAX_OUTPUT:
                message = f"The chat template made more than {MAX_OUTPUT} characters."
                raise InvalidRequest(message, param="messages", code="chat_template_error")
            pieces.append(piece)
        return "".join(pieces)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_Generation, jinja2.ext.loopcontrols],
        autoescape=False,  # prompts are no HTML
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


class _Generation(jinja2.ext.Extension):
    """`{% generation %}...{% endgeneration %}` marks the assistant's text for training; here it is its content."""

    tags = {"generation"}

    def parse(self, parser: Any) -> Any:
        """Return the block's body as it is."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As transformers has it: Jinja's own filter escapes characters for HTML and sorts keys."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(format_: str) -> str:
    return datetime.now().strftime(format_)


def _one_line(error: BaseException) -> str:
    text = str(error) or type(error).__name__
    return " ".join(text.split())[:500]
