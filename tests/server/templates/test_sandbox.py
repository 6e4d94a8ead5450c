"""Templates that reach for more than a prompt needs: each ends as a refusal of the request, quickly and in little memory."""

from __future__ import annotations

import time
import tracemalloc
from pathlib import Path

import pytest

from engine.errors import InvalidRequest
from executors.contract import ConfigError
from server.templates.template import ChatTemplate, resolve_chat_template

USER = [{"role": "user", "content": "Hi"}]
HUGE = "9999999999"


def render(source: str) -> str:
    return ChatTemplate(source, {}).render(USER)


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a' * HUGE }}",
        "{{ HUGE * [1] }}",
        "{{ (1, 2) * HUGE }}",
        "{{ 9 ** 9 ** 9999 }}",
        "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set ns = namespace(x=3) %}{% for i in range(60) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
        "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x.replace('b', 'bbbb') %}{% endfor %}",
        "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x | replace('b', 'bbbb') %}{% endfor %}",
        "{% set x = 'a' * 4000000 %}{{ x.join(['a'] * 9999) }}",
        "{{ 'a'.ljust(HUGE) }}",
        "{{ 'a'.center(width=HUGE) if false else 'a'.rjust(HUGE) }}",
        "{{ '5'.zfill(HUGE) }}",
        "{{ '\\t'.expandtabs(HUGE) }}",
        "{{ 'a' | center(HUGE) }}",
        "{{ 'a\\nb' | indent(HUGE) }}",
        "{{ '%HUGEd' % 1 }}",
        "{{ '%*d' % (HUGE, 1) }}",
        "{{ '%HUGEd' | format(1) }}",
        "{{ '{:>HUGE}'.format('a') }}",
        "{{ '{:>{}}'.format('a', HUGE) }}",
        "{{ '{a:>{b}}'.format_map({'a': 1, 'b': HUGE}) }}",
        "{{ [1] | tojson(indent=HUGE) }}",
        "{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}",
        "{{ namespace(_x=1) }}",
        "{% set ns = namespace() %}{% set ns._x = 1 %}",
        "{{ dict.__class__ }}{{ dict.mro() }}",
        "{{ messages[0].nothing.at.all }}",
        "{{ messages | sum }}",
        "{{ (messages | first).pop('role') }}",
        "{{ raise_exception(5) }}",
        "{{ strftime_now('%Y', 1) }}",
    ],
)
def test_too_much(source: str) -> None:
    tracemalloc.start()
    begun = time.process_time()
    try:
        with pytest.raises(InvalidRequest) as caught:
            render(source.replace("HUGE", HUGE))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert caught.value.code == "chat_template_error" and caught.value.param == "messages"
    assert "\n" not in caught.value.message
    assert time.process_time() - begun < 10
    assert peak < 400 * 2**20


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ 'ab' * 2 ~ 1 ~ none }}", "abab1None"),
        ("{{ ('a' ~ '<b>' | e) ~ 'c' }}", "a&lt;b&gt;c"),
        ("{{ 2 ** 10 }} {{ 3 * 4 }} {{ 2 ** -1 }} {{ 7 % 4 }}", "1024 12 0.5 3"),
        ("{{ '%5.1f|%s|%%' % (1.25, 99999999999) }}", "  1.2|99999999999|%"),
        ("{{ '%d%%' | format(50000000) }}{{ '{:,}'.format(50000000) }}", "50000000%50,000,000"),
        ("{{ 'a'.ljust(3) }}|{{ 'a' | center(3) }}|{{ 'a\\nb' | indent(2) }}", "a  | a |a\n  b"),
        (
            "{{ ','.join(['a', 'b']) }}{{ 'aab' | replace('a', 'xx', 1) }}{{ 'aab'.replace('a', '') }}",
            "a,bxxabb",
        ),
        ("{{ dict.fromkeys(['a'], 1) }}{{ dict([('b', 2)]) }}", "{'a': 1}{'b': 2}"),
        ("{% set ns = namespace({'a': 1}, b=2) %}{% set ns.a = 3 %}{{ ns.a + ns.b }}", "5"),
        ("{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}", "21"),
    ],
)
def test_what_templates_do_every_day_is_untouched(source: str, expected: str) -> None:
    assert render(source) == expected


def test_template_option(tmp_path: Path) -> None:
    path = tmp_path / "mine.jinja"
    path.write_text("from a file")
    own = {"default": "d", "rag": "named"}
    assert resolve_chat_template(str(path)) == ("from a file", f"--chat-template {path}")
    assert resolve_chat_template("{{ 1 }}") == ("{{ 1 }}", "--chat-template")
    assert resolve_chat_template("rag", own) == ("named", "--chat-template rag")
    with pytest.raises(
        ConfigError, match="nothing: No such file or directory; the model's templates are default, rag"
    ):
        resolve_chat_template("nothing", own)
    with pytest.raises(ConfigError, match="No such file"):
        resolve_chat_template("rag", "only one")
    path.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="not readable as text"):
        resolve_chat_template(str(path))


def test_faults_of_named_templates_name_them() -> None:
    with pytest.raises(ConfigError, match="model: chat template 'rag': not a valid Jinja template"):
        ChatTemplate({"default": "", "rag": "{% for %}"}, {}, "model: chat template")
    with pytest.raises(ConfigError, match="nested too deeply"):
        ChatTemplate("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", {})
