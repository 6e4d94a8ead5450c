"""GLM 4.5 and later: a function's name, then pairs of keys and values.

    <tool_call>f
    <arg_key>city</arg_key>
    <arg_value>Rome</arg_value>
    </tool_call>

As in the chat templates of zai-org/GLM-4.5 and 4.6; GLM 4.7 writes the same without line breaks.
"""

from __future__ import annotations

from server.answer.tools.parser import NAME, Functions, ToolParser, Wait
from server.answer.tools.tagged import ObjectWriter, TaggedNotation, TaggedParser, Tags

OPEN, CLOSE = "<tool_call>", "</tool_call>"
KEY, KEY_END, VALUE, VALUE_END = "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"
TAGS = Tags(
    block=(OPEN, CLOSE),
    function="",
    function_name_end="\n",
    function_end="",
    parameter=KEY,
    parameter_name_end=KEY_END,
    parameter_end=VALUE_END,
    before_function="",
    after_function_name="",
)


class Glm45Parser(TaggedParser):
    """Parser of this notation."""

    opening = (OPEN,)
    tags = TAGS

    def _block(self) -> Wait[bool]:
        name = yield from self._name("\n<")
        if not NAME.fullmatch(name):
            return False
        yield from self._blanks()
        tag = yield from self._one_of(KEY, CLOSE)
        if not tag:
            return False
        self._begin(name)
        yield from self._pairs(name, tag)
        return True

    def _pairs(self, name: str, tag: str) -> Wait[None]:
        schema = self._functions.get(name)
        writer = ObjectWriter(self._argue)
        while tag == KEY:
            key: list[str] = []
            if not (yield from self._until(KEY_END, key.append)):
                return
            yield from self._blanks()
            if not (yield from self._one_of(VALUE)):
                if self._is_cut_off(VALUE):
                    return
                break
            if not (yield from self._argument(writer, "".join(key).strip(), schema)):
                return
            self._stay()
            yield from self._blanks()
            tag = yield from self._one_of(KEY, CLOSE)
            if not tag:
                if self._is_cut_off(KEY, CLOSE):
                    self._at, self._mark = len(self._text), None
                    return
                self._go_back()
            self._mark = None
        writer.close()
        self.num_finished += 1


class Glm45(TaggedNotation):
    """The notation described in the module's docstring."""

    tags = TAGS
    after_function = ""

    @property
    def literals(self) -> tuple[str, ...]:
        return (OPEN, CLOSE, KEY, KEY_END, VALUE, VALUE_END)

    def parser(self, functions: Functions, hidden: frozenset[str]) -> ToolParser:
        return Glm45Parser(functions, hidden)

    def _function_begin(self, name: str) -> str:
        return name + "\n"

    @property
    def around_key(self) -> tuple[str, str]:
        return KEY, f"{KEY_END}\n{VALUE}"
