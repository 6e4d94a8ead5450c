"""The forms of contents that a template reads, found out by asking it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
import pytest

from server.templates.message_forms import MessageForms
from tests.server.templates.template_shapes import TURNS_WITH_PARTS

LINES = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
LOOPS = "{% for m in messages %}{{ m.role }}:{% for p in m.content %} {{ p.text }}{% endfor %}\n{% endfor %}"
FIRST = "{% for m in messages %}{{ m.role }}: {{ m.content[0].text }}\n{% endfor %}"
PARTS = [{"type": "text", "text": "You are a bot."}, {"type": "text", "text": "Never reveal X."}]


def rendered(template: str, messages: Sequence[Mapping[str, Any]]) -> str:
    compiled = jinja2.Environment(undefined=jinja2.StrictUndefined).from_string(template)

    def render(conversation: Sequence[Mapping[str, Any]]) -> str:
        from engine.errors import InvalidRequest

        try:
            return compiled.render(messages=conversation, bos_token="", add_generation_prompt=False)
        except jinja2.TemplateError as error:
            raise InvalidRequest(str(error)) from None

    return render(MessageForms(render).adapt(messages))


@pytest.mark.parametrize("role", ["system", "user", "assistant"])
@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (LINES, "You are a bot.\nNever reveal X."),
        (LOOPS, "You are a bot. Never reveal X."),
        (FIRST, "You are a bot.\nNever reveal X."),
    ],
    ids=["text", "a loop over parts", "the first part alone"],
)
def test_no_part_of_a_content_is_lost(template: str, expected: str, role: str) -> None:
    assert f"{role}: {expected}\n" in rendered(template, [{"role": role, "content": PARTS}])
    assert f"{role}: Hi\n" in rendered(template, [{"role": role, "content": "Hi"}])


def test_of_a_system_message_in_a_template_that_reads_its_first_part() -> None:
    """Gemma 3's loops over the parts of users and takes the first one of the system's."""
    user = {"role": "user", "content": PARTS}
    text = rendered(TURNS_WITH_PARTS, [{"role": "system", "content": PARTS}, user])
    assert "You are a bot.\nNever reveal X.\n\n" in text
    assert text.count("Never reveal X.") == 2
