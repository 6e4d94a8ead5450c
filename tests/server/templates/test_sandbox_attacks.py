"""Templates whose work is done by single calls in C: each is refused before the call, or soon after it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from engine.errors import InvalidRequest
from server.system.worker_threads import FencedThreads
from server.templates.template import ChatTemplate

USER = [{"role": "user", "content": "Hi"}]
TOWER = "{% set ns = namespace(x=[1]) %}{% for i in range(25) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}"
DEEPER = TOWER.replace("25", "200")
TUPLES = TOWER.replace("[ns.x, ns.x]", "(ns.x, ns.x)").replace("x=[1]", "x=(1,)")
OTHER = TUPLES.replace("ns.x", "no.x").replace("set ns =", "set no =")
DOUBLED = "{% set ns = namespace(x='0123456789') %}{% for i in range(40) %}BODY{% endfor %}"
BIG = "{% set b = 'a' * 9000000 %}"

ATTACKS = [
    TOWER + "{{ ns.x | tojson | length }}",
    DEEPER + "{{ ns.x }}",
    DEEPER + "{{ ns.x ~ '' }}",
    DEEPER + "{{ ns }}",
    TOWER + "{{ ns.x | string | length }}",
    TOWER + "{{ '%s' % (ns.x,) }}",
    TOWER + "{{ '%s' | format(ns.x) }}",
    TOWER + "{{ '{}'.format(ns.x) }}",
    TOWER + "{{ '{0.x}'.format(ns) }}",
    TOWER + "{{ [ns.x] | join }}",
    TOWER + "{{ ns.x | pprint }}",
    TOWER + "{{ ns.x | replace('1', '2') | length }}",
    TOWER + "{{ ns.x | trim }}",
    TOWER + "{{ ns.x | upper }}",
    TOWER + "{{ ns.x | urlencode }}",
    TOWER + "{{ ns.x | e }}",
    TOWER + "{% autoescape true %}{{ ns.x }}{% endautoescape %}",
    TOWER + "{% set y %}{{ ns.x }}{% endset %}",
    TOWER + "{{ {'a': ns.x}.values() }}",
    TUPLES + OTHER + "{{ ns.x == no.x }}",
    TUPLES + OTHER + "{{ ns.x in [no.x] }}",
    TUPLES + OTHER + "{{ ns.x is eq(no.x) }}",
    TUPLES + OTHER + "{{ [ns.x, no.x] | sort }}",
    TUPLES + OTHER + "{{ [ns.x].index(no.x) }}",
    TUPLES + "{{ [ns.x] | unique | list }}",
    TUPLES + "{{ {}.get(ns.x) }}",
    DOUBLED.replace("BODY", "{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}"),
    DOUBLED.replace(
        "BODY", "{% set ns.x %}{% filter upper %}{{ ns.x }}{{ ns.x }}{% endfilter %}{% endset %}"
    ),
    "{% macro m(t) %}{{ t }}{{ t }}{% endmacro %}" + DOUBLED.replace("BODY", "{% set ns.x = m(ns.x) %}"),
    "{% macro m() %}{{ caller() }}{{ caller() }}{% endmacro %}"
    + DOUBLED.replace("BODY", "{% set ns.x %}{% call m() %}{{ ns.x }}{% endcall %}{% endset %}"),
    "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% else %}{{ 'a' * 9999 }}{% endif %}{% endmacro %}{{ m(12) }}",
    "{{ 'abc' | batch(1000000000, 'x') | list }}",
    "{{ [1] | batch(100000000, fill_with='a') | list }}",
    "{{ 'abc' | slice(1000000000, 'x') | list }}",
    "{{ range(99999) | map('string') | list | join('x' * 100000) }}",
    "{{ range(99999) | map('string') | join('x' * 100000) }}",
    "{{ ('x' * 100000).join(range(99999) | map('string')) }}",
    "{{ ('a ' * 400000) | wordwrap(1, wrapstring='x' * 100000) }}",
    "{{ ('a\n' * 400000) | indent(1000) }}",
    "{{ ('a\n' * 400000) | indent('x' * 1000) }}",
    BIG + "{{ b | replace('a', 'aaa') }}",
    BIG + "{{ b | list | length }}",
    BIG + "{{ b.replace('a', 'a,').split(',') }}",
    "{{ ('a ' * 4000000).split() | length }}",
    "{{ ('\n' * 4000000).splitlines() | length }}",
    BIG + "{{ b.strip('b' * 4000000 ~ 'a') | length }}",
    BIG + "{{ b.rfind('b' ~ 'a' * 400000) }}",
    BIG + "{{ b.translate({97: 'x' * 1000}) }}",
    BIG + "{{ b.encode().replace('a'.encode(), 'aaaa'.encode()) | length }}",
    BIG + "{{ '%s%s' | format(b, b) }}",
    BIG + "{{ '{0}{0}'.format(b) }}",
    BIG + "{{ b | wordcount }}",
    BIG + "{{ ('<' ~ b[:8000000]).replace('a', '<') | e | length }}",
    "{{ ('%999999d' * 1000) % ((1,) * 1000) }}",
    "{{ ('\t' * 100000).expandtabs(100000) }}",
    "{{ (1).to_bytes(9999999999, 'big') }}",
    "{{ 5 | round(-999999999) }}",
    "{{ [[1] * 1000] * 99999 | sum(start=[]) | length }}",
    "{{ ([[1] * 1000] * 99999) | sum(start=[]) | length }}",
    "{{ [1] * 9999999 }}",
    TOWER.replace("25", "900").replace("[ns.x, ns.x]", "[ns.x]") + "{{ ns.x | tojson(indent=99999) }}",
]

CHILD = """
import json, resource, sys, time, tracemalloc
sys.path.insert(0, sys.argv[1])
from engine.errors import InvalidRequest
from server.templates.template import ChatTemplate
user = [{"role": "user", "content": "Hi"}]
found = []
for source in json.load(sys.stdin):
    template = ChatTemplate(source, {})
    begun = time.process_time()
    try:
        template.render(user)
        answer = "rendered"
    except InvalidRequest as error:
        answer = error.message
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    found.append([answer, time.process_time() - begun, peak])
json.dump(found, sys.stdout)
"""


@pytest.mark.long
@pytest.mark.timeout(120)
def test_each_is_refused_in_little_time_and_memory() -> None:
    """In a process of its own, whose peak of resident memory is its own: all together stay below the bound."""
    root = str(Path(__file__).parents[3])
    ended = subprocess.run(
        [sys.executable, "-c", CHILD, root],
        input=json.dumps(["", *ATTACKS]),
        capture_output=True,
        text=True,
        check=True,
    )
    (plain, _, at_first), *found = json.loads(ended.stdout)
    assert plain == "rendered"
    seen = list(zip(ATTACKS, found, strict=True))
    assert [source for source, (answer, _, _) in seen if not answer.startswith("The chat template")] == []
    assert [(source, seconds) for source, (_, seconds, _) in seen if seconds > 2] == []
    assert [(source, peak) for source, (_, _, peak) in seen if peak - at_first > 300 * 2**20] == []


PILED = (
    "{% set ns = namespace(x='a' * 4000000, l=none) %}"
    "{% for i in range(99999) %}{% set ns.l = [ns.l, ns.x[1:]] %}{% endfor %}"
)


async def test_memory_piled_up_by_many_small_operations_is_refused() -> None:
    threads = FencedThreads(1)
    template = ChatTemplate(PILED, {})
    with pytest.raises(InvalidRequest, match="The chat template took too much memory"):
        await threads.run(lambda: template.render(USER), 60)
    assert await threads.run(lambda: ChatTemplate("{{ 1 }}", {}).render(USER), 5) == "1"
    threads.close()


async def test_the_loop_goes_on_while_a_template_is_refused() -> None:
    threads = FencedThreads(1)
    template = ChatTemplate(TOWER + "{{ ns.x | tojson | length }}", {})
    with pytest.raises(InvalidRequest):
        rendering = asyncio.ensure_future(threads.run(lambda: template.render(USER), 5))
        longest = 0.0
        while not rendering.done():
            begun = time.monotonic()
            await asyncio.sleep(0.001)
            longest = max(longest, time.monotonic() - begun)
        await rendering
    assert longest < 1  # 0.02 on an idle machine; 7.8 when the whole text was made in one call
    threads.close()


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ [1, 'a', none] }}{{ {'a': [1]} }}{{ none }}{{ true }}", "[1, 'a', None]{'a': [1]}NoneTrue"),
        ("{{ 'abc' | batch(2, 'x') | list }}", "[['a', 'b'], ['c', 'x']]"),
        ("{{ 'abc' | slice(2, 'x') | list }}", "[['a', 'b'], ['c', 'x']]"),
        ("{{ [1, 2] | join('-') }}{{ messages | join(attribute='role') }}", "1-2user"),
        ("{{ 'aa bb' | wordwrap(2, wrapstring='/') }}", "aa/bb"),
        (
            "{{ [3, 1] | sort }}{{ [1, 1] | unique | list }}{{ [1, 2] | max }}{{ [1, 2] | sum }}",
            "[1, 3][1]23",
        ),
        ("{{ [{'a': 1}, {'a': 2}] | sum(attribute='a') }}", "3"),
        (
            "{% set a = [[1], [2], [3]] %}{% set b = [0] %}{{ a | sum(start=b) }}{{ a }}{{ b }}{{ [] | sum(start=b) }}",
            "[0, 1, 2, 3][[1], [2], [3]][0][0]",
        ),
        ("{{ [{'a': 1}] | groupby('a') | map('first') | list }}", "[1]"),
        ("{{ ' a ' | trim }}{{ 'ab' | trim('b') }}{{ 2.345 | round(1) }}{{ '<' | e }}", "aa2.3&lt;"),
        ("{% autoescape true %}{{ '<' }}{{ '<' | safe }}{{ 1 }}{% endautoescape %}", "&lt;<1"),
        (
            "{{ 1 < 2 < 3 }}{{ 'a' in 'ab' }}{{ 1 not in [1] }}{{ [1] == [1] }}{{ 1 is in [1] }}",
            "TrueTrueFalseTrueTrue",
        ),
        ("{{ 'a,b'.split(',') }}{{ 'xax'.strip('x') }}{{ 'aba'.rfind('a') }}", "['a', 'b']a2"),
        (
            "{{ missing }}{{ missing ~ 'a' }}{{ missing | trim }}{{ messages | map(attribute='x') | join }}",
            "a",
        ),
        ("{{ 'a b' | title }}{{ 'a b' | wordcount }}{{ {'b': 1} | dictsort }}", "A B2[('b', 1)]"),
        ("{{ {'a': [1]} | tojson(indent=1) }}", '{\n "a": [\n  1\n ]\n}'),
        ("{{ '%s-%s' | format('a', 1) }}{{ '%(a)s' % {'a': 2} }}{{ '{a}'.format(a=3) }}", "a-123"),
    ],
)
def test_measured_operations_give_what_jinja_gives(source: str, expected: str) -> None:
    assert ChatTemplate(source, {}).render(USER) == expected
