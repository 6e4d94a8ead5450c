"""Chat templates, rendered as transformers renders them, but with a sandbox, a deadline and a limit on the output.

Templates come from the model's directory or from `--chat-template`, never from a request. They are still programs (a downloaded
model may contain any), so they run in Jinja's immutable sandbox (`server/templates/sandbox.py`), on a thread that
`server/system/worker_threads.py` stops when it takes too long.
"""

from __future__ import annotations

import copy
import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple, Protocol

import jinja2
import jinja2.meta
from jinja2 import nodes

from engine.errors import FIELD, InvalidRequest
from executors.contract import ConfigError
from server.system.worker_threads import DeadlineExceeded, MemoryExceeded, watched_memory
from server.templates.generic_tools import GenericTools, Written, calls_as_text
from server.templates.limits import MAX_OUTPUT
from server.templates.message_forms import TOOL, MessageForms, TookTooMuch
from server.templates.sandbox import chat_environment

DEFAULT, TOOL_USE = "default", "tool_use"
"""Names of templates with a meaning: the default, and the one used when tools are offered."""
_PROBE = "cohortprobe"
DEVELOPER = "developer"
"""OpenAI's newer word for the role "system"."""
_RESERVED = frozenset({"messages", "tools", "add_generation_prompt", "chat_template", "tokenize"})
_REASONING = ("reasoning_content", "thinking", "reasoning")
"""Names of an assistant's reasoning in templates; the first is the usual one."""

Message = Mapping[str, Any]


class History(Protocol):
    """Brings conversations into a form that a template can show. Modifies nothing."""

    def messages(self, messages: Sequence[Message]) -> Sequence[Message]:
        """The messages."""

    def tools(self, tools: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """The tools on offer."""

    def variables(self, variables: Mapping[str, Any]) -> Mapping[str, Any]:
        """The variables of a request."""


class CompiledSource(NamedTuple):
    """`variables`: names that the source reads without setting them. `names_developer`: whether it knows the role.
    `reads_tools_key`: whether it reads "tools" as a key of a value."""

    code: CodeType
    variables: frozenset[str]
    names_developer: bool
    reads_tools_key: bool


def compiled_source(text: str) -> CompiledSource:
    """The code of a template, for any `chat_environment`, and what its text tells. Raises jinja2.TemplateError, or RecursionError
    where it is nested too deeply."""
    environment = chat_environment()
    code, tree = environment.compile(text), environment.parse(text)
    names_developer = any(one.value == DEVELOPER for one in tree.find_all(nodes.Const))
    reads_tools_key = _reads_key(tree, "tools")
    variables = frozenset(jinja2.meta.find_undeclared_variables(tree))  # modifies the tree
    return CompiledSource(code, variables, names_developer, reads_tools_key)


class ChatTemplate:
    """One compiled chat template, or several by name. Raises ConfigError if a source is not a valid template.

    `special_tokens` (bos_token, eos_token, ...) are visible to the template by name.
    """

    def __init__(
        self,
        source: str | Mapping[str, str],
        special_tokens: Mapping[str, str],
        origin: str = "chat template",
    ) -> None:
        self._special_tokens = dict(special_tokens)
        environment = chat_environment()
        self._templates: dict[str, jinja2.Template] = {}
        self.variables: frozenset[str] = frozenset()
        """Names that the templates read without setting them."""
        self._names_developer: set[str] = set()
        """Names of the templates that know the role."""
        self._tools_in_system: set[str] = set()
        """Names of the templates that read tools as a key of the system message, such as Phi-4-mini's."""
        sources = {DEFAULT: source} if isinstance(source, str) else source
        self.sources = dict(sources)
        """Source texts of the templates by name."""
        for name, text in sources.items():
            where = origin if name == DEFAULT else f"{origin} '{name}'"
            try:
                compiled = compiled_source(text)
            except jinja2.TemplateError as error:
                raise ConfigError(f"{where}: not a valid Jinja template: {_one_line(error)}") from error
            except RecursionError:
                raise ConfigError(f"{where}: not a valid Jinja template: nested too deeply") from None
            self._templates[name] = environment.template_class.from_code(
                environment, compiled.code, environment.make_globals(None)
            )
            self.variables |= compiled.variables
            if compiled.names_developer:
                self._names_developer.add(name)
            if compiled.reads_tools_key and "tools" not in compiled.variables:
                self._tools_in_system.add(name)
        self.generic_tools: GenericTools | None = None
        """The prompt for tools if the templates show none. Set once, by model_notation, before anything is served."""
        self.writes_calls: Written | None = None
        """What writes the calls of earlier messages, if the templates show tools and no calls. Set like `generic_tools`."""
        self.history: History | None = None
        """What brings conversations into a form of their own before anything else. Set like `generic_tools`."""
        self._defaults: Mapping[str, Any] = {}
        """Variables of prompts that give none of their own by these names."""
        self._reads_system: dict[str, bool] = {}
        self._forms = {
            name: MessageForms(self._renderer(name, None), self._renderer(name, [TOOL]))
            for name in self._templates
        }

    def with_variables(self, defaults: Mapping[str, Any]) -> ChatTemplate:
        """The same template, whose prompts have these variables unless a request gives others. Raises ConfigError for one that
        the template does not read, or that no request could give."""
        for name in defaults:
            if name in _RESERVED or name not in self.variables:
                raise ConfigError(f"the model's chat template reads no variable {name!r}")
        other = copy.copy(self)
        other._defaults = {**self._defaults, **defaults}
        return other

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        extra: Mapping[str, Any] | None = None,
        continue_final_message: bool = False,
    ) -> str:
        """The prompt for messages in the template's form; a key that is null counts as omitted. Blocks, and may loop: call it on
        a fenced thread.

        `extra` are the request's `chat_template_kwargs`. With `continue_final_message` the prompt ends with the text of
        the last message, so that the model continues it. Raises InvalidRequest with the template's own message if it
        refuses the conversation or produces too much.
        """
        cleaned = [{key: value for key, value in one.items() if value is not None} for one in messages]
        return self._rendered(cleaned, tools, add_generation_prompt, extra, continue_final_message)

    def _rendered(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        extra: Mapping[str, Any] | None,
        continue_final_message: bool,
    ) -> str:
        _check_extra(extra or {})
        name = self._choose(bool(tools))
        prepared = [_prepared(message) for message in messages]
        rest = {"tools": tools or None, "documents": None, "add_generation_prompt": add_generation_prompt}
        variables = {**self._special_tokens, **rest, **(extra or {})}
        if not continue_final_message:
            return self._render(name, {**variables, "messages": prepared})
        final, tag = _open_end(prepared)
        text = self._render(name, {**variables, "messages": prepared})
        return _cut_at(text, tag, final)

    def prompt(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        extra: Mapping[str, Any] | None = None,
        continue_final_message: bool = False,
    ) -> str:
        """`render` for messages in any form: contents as text, as parts or none, arguments as objects or as JSON. They are
        converted to the form that the template reads, which is found once by rendering small conversations. A developer's
        message becomes the system's if the template does not know the role."""
        name, extra = self._choose(bool(tools)), {**self._defaults, **(extra or {})}
        if self.history is not None:
            messages, extra = self.history.messages(messages), self.history.variables(extra)
            tools = self.history.tools(tools) if tools else tools
        if name not in self._names_developer:
            messages = [{**one, "role": "system"} if one["role"] == DEVELOPER else one for one in messages]
        if tools and name in self._tools_in_system:
            messages = _with_tools(messages, tools)
        if self.generic_tools is not None and not self.shows_tools:
            messages = self.generic_tools.applied(messages, tools, not tools or self._shows_system(name))
            tools = None
        elif self.writes_calls is not None:
            messages = calls_as_text(messages, self.writes_calls)
        adapted = self._forms[name].adapt(messages)
        return self._rendered(adapted, tools, add_generation_prompt, extra, continue_final_message)

    @property
    def shows_tools(self) -> bool:
        """True if the templates themselves show tools."""
        return "tools" in self.variables or bool(self._tools_in_system)

    @property
    def reads_tools(self) -> bool:
        """True if a prompt can show tools: the template does, or the generic prompt."""
        return self.shows_tools or self.generic_tools is not None

    def _shows_system(self, name: str) -> bool:
        """Whether a system message appears in the prompt; found once by a render."""
        if name not in self._reads_system:
            system, user = (
                {"role": role, "content": text} for role, text in (("system", _PROBE), ("user", "Hi"))
            )
            try:
                is_shown = _PROBE in self._renderer(name, None)(self._forms[name].adapt([system, user]))
            except TookTooMuch:
                raise
            except InvalidRequest:
                is_shown = False
            self._reads_system[name] = is_shown
        return self._reads_system[name]

    def _choose(self, with_tools: bool) -> str:
        if with_tools and TOOL_USE in self._templates:
            return TOOL_USE
        if DEFAULT in self._templates:
            return DEFAULT
        raise InvalidRequest(self.lack or "", param="messages", code="no_chat_template")

    @property
    def lack(self) -> str | None:
        """Why chats without tools are refused, with the cure; None if there is a default template."""
        if DEFAULT in self._templates:
            return None
        names = ", ".join(sorted(self._templates))
        return f"This model has no default chat template, only {names}: the server's --chat-template can name one."

    def _renderer(self, name: str, tools: Sequence[Mapping[str, Any]] | None) -> Any:
        def render(messages: Sequence[Message]) -> str:
            variables = {"tools": tools, "documents": None, "add_generation_prompt": False}
            prepared = [_prepared(message) for message in messages]
            return self._render(name, {**self._special_tokens, **variables, "messages": prepared})

        return render

    def _render(self, name: str, variables: Mapping[str, Any]) -> str:
        try:
            with watched_memory():
                return self._collect(self._templates[name].generate(variables))
        except MemoryExceeded:
            message = "The chat template took too much memory."
            raise TookTooMuch(message, param="messages", code="chat_template_error") from None
        except (InvalidRequest, DeadlineExceeded):
            raise
        except Exception as error:  # whatever a template raises is the template's refusal of this request
            message = f"The chat template refused these messages: {_one_line(error)}"
            raise InvalidRequest(message, param="messages", code="chat_template_error") from None

    def _collect(self, output: Iterable[str]) -> str:
        pieces: list[str] = []
        length = 0
        for piece in output:
            length += len(piece)
            if length > MAX_OUTPUT:
                message = f"The chat template made more than {MAX_OUTPUT} characters."
                raise InvalidRequest(message, param="messages", code="chat_template_error")
            pieces.append(piece)
        return "".join(pieces)


def resolve_chat_template(value: str, own: str | Mapping[str, str] | None = None) -> tuple[str, str]:
    """The source and the origin (for messages) of the template that `--chat-template` selects.

    The value is a template text (it has a brace-percent or double-brace tag, or several lines), else the path of a file, else
    the name of one of the model's `own` templates. Raises ConfigError.
    """
    if "{{" in value or "{%" in value or "\n" in value:
        return value, "--chat-template"
    origin = f"--chat-template {value}"
    try:
        return Path(value).read_text("utf-8"), origin
    except (OSError, ValueError) as error:
        if isinstance(own, Mapping) and value in own:
            return own[value], origin
        reason = getattr(error, "strerror", None) or "not readable as text"
        alternatives = (
            f"; the model's templates are {', '.join(sorted(own))}" if isinstance(own, Mapping) else ""
        )
        raise ConfigError(f"{origin}: {reason}{alternatives}") from None


def _check_extra(extra: Mapping[str, Any]) -> None:
    for name in extra:
        if name in _RESERVED:
            param = f"chat_template_kwargs.{name}"
            raise InvalidRequest(f"'{name}' cannot be set here.", param=param, code="invalid_value")
    documents = extra.get("documents")
    if documents is not None and not (
        isinstance(documents, list) and all(isinstance(one, dict) for one in documents)
    ):
        param = "chat_template_kwargs.documents"
        raise InvalidRequest("'documents' is a list of objects.", param=param, code="invalid_value")


def _prepared(message: Message) -> dict[str, Any]:
    """A message without null keys, except its content, and with its reasoning under each name that templates use."""
    plain = {name: value for name, value in message.items() if value is not None or name == "content"}
    reasoning = next((plain[name] for name in _REASONING if name in plain), None)
    if reasoning is not None:
        plain = {"thinking": reasoning, **plain, "reasoning_content": reasoning}
    return plain


def _reads_key(tree: nodes.Template, key: str) -> bool:
    """Whether the template reads this key, of messages or other objects."""
    if any(one.attr == key for one in tree.find_all(nodes.Getattr)):
        return True
    keys = (one.arg for one in tree.find_all(nodes.Getitem))
    return any(isinstance(one, nodes.Const) and one.value == key for one in keys)


def _with_tools(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[Message]:
    """The messages with the functions as JSON in the first one, the system's, as in Phi-4-mini's model card."""
    written = json.dumps([tool["function"] for tool in tools], ensure_ascii=False)
    first, rest = {"role": "system", "content": ""}, list(messages)
    if rest and rest[0]["role"] == "system":
        first, rest = dict(rest[0]), rest[1:]
    return [{**first, "tools": written}, *rest]


def _open_end(messages: list[dict[str, Any]]) -> tuple[str, str]:
    """Mark the end of the last message's text; returns that text and the mark. Modifies the last message.

    The mark ends in a space, which shows whether the template trims its input.
    """
    tag = f"END-OF-FINAL-MESSAGE-{secrets.token_hex(8)} "
    content: Any = messages[-1].get("content") if messages else None
    if isinstance(content, str):
        messages[-1]["content"] = content + tag
        return content, tag
    parts = [*content] if isinstance(content, list) else []
    for number in reversed(range(len(parts))):
        text = parts[number].get("text")
        if isinstance(text, str):
            parts[number] = {**parts[number], "text": text + tag}
            messages[-1]["content"] = parts
            return text, tag
    message = f"'{FIELD}' needs a last message with text."
    raise InvalidRequest(message, param="continue_final_message", code="invalid_value")


def _cut_at(text: str, tag: str, final: str) -> str:
    at = text.rfind(tag.strip())
    if at < 0 or final.strip() not in text:
        message = (
            "This model's chat template does not show the last message as it is, so it cannot be continued."
        )
        raise InvalidRequest(message, param="continue_final_message", code="chat_template_error")
    return text[:at] if text.startswith(tag, at) else text[:at].rstrip()


def _one_line(error: BaseException) -> str:
    text = str(error) or type(error).__name__
    return " ".join(text.split())[:500]
