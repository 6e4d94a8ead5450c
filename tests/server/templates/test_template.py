"""Chat templates: what transformers renders, in a sandbox, under a deadline."""

import asyncio
import time
from typing import Any

import pytest

from engine.errors import InvalidRequest
from executors.contract import ConfigError
from server.system.worker_threads import DeadlineExceeded, FencedThreads
from server.templates import template as template_module
from server.templates.template import ChatTemplate

USER = [{"role": "user", "content": "Hi"}]


def render(source: str, **extra: Any) -> str:
    return ChatTemplate(source, {"bos_token": "<s>"}).render(USER, extra=extra)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ bos_token }}{{ messages[0].content }}", "<s>Hi"),
        ("{% for m in messages %}\n  {% if true %}\n{{ m.role }}\n  {% endif %}\n{% endfor %}", "user\n"),
        ("{{ {'b': 1, 'a': '<é>'} | tojson }}", '{"b": 1, "a": "<é>"}'),
        ("{{ [1] | tojson(indent=2) }}", "[\n  1\n]"),
        ("{{ {'b': 1, 'a': 2} | tojson(sort_keys=true, separators=(',', ':')) }}", '{"a":2,"b":1}'),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{{ strftime_now('%Y') | length }}", "4"),
        ("{% generation %}x{% endgeneration %}", "x"),
        ("{{ tools is none }}{{ documents is none }}{{ add_generation_prompt }}", "TrueTrueTrue"),
        ("{{ missing is defined }}{{ missing }}", "False"),
        ("{{ '<b>' }}", "<b>"),
    ],
)
def test_rendering(source: str, expected: str) -> None:
    assert render(source) == expected


def test_equal_to_transformers() -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    source = (
        "{%- if tools %}\n{% for t in tools %}{{ t | tojson(indent=2) }}\n{% endfor %}{% endif %}\n"
        "{%- for m in messages %}\n    {%- if m.role == 'user' %}\n[{{ m.content | trim }}]\n    {%- endif %}\n"
        "{% endfor %}{{ messages | tojson }}{% set ns = namespace(x=1) %}{% set ns.x = 2 %}{{ ns.x }}"
    )
    tools = [
        {
            "type": "function",
            "function": {"name": "f", "description": "<é> & 'q'", "parameters": {"b": 1, "a": 2}},
        }
    ]
    messages = [{"role": "user", "content": " Hi <b> "}, {"role": "assistant", "content": "é"}]
    [expected], _ = render_jinja_template(
        [messages], tools=tools, chat_template=source, add_generation_prompt=True
    )
    assert ChatTemplate(source, {}).render(messages, tools) == expected


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.__class__.__base__.__subclasses__() }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ messages.append(1) }}",
        "{{ messages.clear() }}",
        "{{ range(99999999) | list }}",
        "{{ 1 / 0 }}",
        "{{ messages[5].content.x }}",
        "{{ raise_exception('no') }}",
        "{{ none.x.y }}",
        "{{ 'a' + 1 }}",
        "{% include '/etc/passwd' %}",
        "{{ strftime_now(5) }}",
    ],
)
def test_what_goes_wrong_inside_is_the_requests_error(source: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        render(source)
    assert caught.value.param == "messages"
    assert "\n" not in caught.value.message


def test_output_is_capped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_module, "MAX_OUTPUT", 1000)
    with pytest.raises(InvalidRequest, match="more than 1000 characters"):
        render("{% for i in range(99999) %}{{ i }}{% endfor %}")


def test_a_broken_template_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="here: not a valid Jinja template"):
        ChatTemplate("{% for %}", {}, "here")


LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


async def test_a_template_that_loops_is_stopped() -> None:
    threads = FencedThreads(1)
    looping = ChatTemplate(LOOP, {})
    begun = time.monotonic()
    with pytest.raises(DeadlineExceeded):
        await threads.run(lambda: looping.render(USER), 0.1)
    assert time.monotonic() - begun < 5
    # The thread is free again, and nothing is left planted in it.
    for _ in range(20):
        assert await threads.run(lambda: 5, 1.0) == 5
    threads.close()


async def test_work_in_the_queue_has_its_own_time() -> None:
    threads = FencedThreads(1)

    def nap() -> str:
        time.sleep(0.15)
        return "rested"

    naps = [threads.run(nap, 0.25) for _ in range(3)]
    assert await asyncio.gather(*naps) == ["rested"] * 3
    threads.close()


async def test_errors_of_the_work_come_through() -> None:
    threads = FencedThreads(1)

    def fail() -> None:
        raise LookupError("x")

    with pytest.raises(LookupError):
        await threads.run(fail, 1)
    threads.close()
