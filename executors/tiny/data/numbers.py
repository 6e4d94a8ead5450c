"""Skills with numbers: counting within 0..99 and sums up to 99+99."""

import re

from executors.tiny.data.lexicon import NAMES
from executors.tiny.data.number_steps import PARITY, STEP_DOWN, STEP_UP, STEPS, spelled, step_slots
from executors.tiny.data.phrasing import Draw, fill
from executors.tiny.data.sample import Turn
from executors.tiny.data.sum_asks import SUM
from executors.tiny.data.word_problems import PLACES, PROBLEMS, THINGS

MAX_ITEMS = 15

_COUNT_UP = (
    "count [from {a} to {b}|up from {a} to {b}|from {a} up to {b}|{a} to {b}|from {a} through {b}]",
    "count [upwards|up|forward|forwards] [from|starting at|beginning with|beginning at] {a} [to|until|till|up to] {b}",
    "count from {a} [until|till|upto] {b}",
    "[list|write|print|give me|say|show|show me|name|type|output|enumerate|recite] [the|all the|all] numbers from {a} to {b}",
    "[list|write|print|give me|say|show|type|output|write down] [the|all] [numbers|integers|whole numbers] between {a} and {b}[, inclusive| inclusive|, both included]",
    "[list|write|say|give me] every [number|integer|whole number] from {a} [to|up to|through] {b}",
    "numbers from {a} to {b}",
    "counting from {a} to {b}",
    "start at {a} and count [up |][to|until] {b}",
    "start counting at {a} and stop at {b}",
    "begin at {a} and count [up |]to {b}",
    "begin with {a} and go up to {b}",
    "go from {a} to {b} [one by one|by ones|counting by one|in order]",
    "which numbers [come|are there] from {a} to {b}",
    "[do a count|give me a count|make a count] from {a} to {b}",
    "[the|a] sequence [from|of numbers from] {a} to {b}",
    "count: {a} to {b}",
    "count {a}-{b}",
    "count {a}..{b}",
    "count numbers {a} [to|-|through] {b}",
    "I want to hear you count from {a} to {b}",
    "from {a} count [up |]to {b}",
    "from {a} to {b}, count",
    "count the numbers [from|between] {a} [to|and] {b}",
    "[enumerate|list|give|say|print|write out] [the numbers|the integers|numbers|integers|] {a} [through|to|up to|thru] {b}",
    "I'd love [it if you counted|to hear you count|you to count] from {a} to {b}",
    "[show me how to|teach me to|help me|practice with me and|count with me, we] count from {a} to {b}",
    "[what|which] [numbers|integers] [come|are|lie|do you find] between {a} and {b}[ inclusive|, inclusive| including both| (include both)]",
    "[numbers|integers|all numbers] between {a} and {b}[, inclusive| with both ends|, including both]",
    "start [with|from] {a}, [end|stop|finish] [at|with] {b}[|, count]",
    "count for me[:|,|] from {a} to {b}",
    "{a} to {b}, [count|one by one|in order|counting up]",
    "[count|go] one by one from {a} [to|until] {b}",
    "[write|make] a list of [the |]numbers from {a} to {b}",
    "say the numbers {a} to {b} [in order|aloud|out loud]",
    "count in ones from {a} to {b}",
    "[numbers|list the numbers|number range|range of numbers|say the numbers|go through the numbers] {a}[-| - ]{b}",
    "{a}[-| - ]{b}[, count|: count|, list them|: list the numbers]",
    "count [numbers|all numbers|the numbers|up|the range] {a}[-| - ]{b}",
    "[start|begin] [from|at|with] {a}, [finish|end|stop|go on] [with|at|until|to] {b}",
    "[start|begin] [from|at|with] {a} and [finish|end] [with|at] {b}",
    "count together [with me |]from {a} to {b}",
    "[begin|start] [with|at] {a} and keep counting until [you reach |]{b}",
    "count from {a} to {b} for my [daughter|son|class|little brother]",
    "count starting at {a} and ending at {b}",
    "what are the numbers from {a} to {b}",
    "count over the range {a} to {b}",
    "count the range [from {a} to {b}|{a} to {b}|{a}-{b}]",
    "[give me|write|list|print] the [number range|range of numbers|range] [from {a} to {b}|{a} to {b}]",
    "[range|number range|numbers in the range]: {a} to {b}",
    "{a}, then the next number, and so on [up to|until] {b}",
    "count [slowly|quickly|aloud|out loud] from {a} to {b}",
    "by ones from {a} to {b}",
    "[count|go] by ones from {a} [to|up to|until] {b}",
    "[count|go] in steps of one from {a} to {b}",
    "[count up|counting up|counting|count upwards]: {a} to {b}",
    "[start|begin] counting [at|from|with] {a} [and go on to|up to|until|till] {b}",
    "keep counting from {a} until you [reach|get to|are at] {b}",
    "count from {a} and [stop|end|finish] [at|with] {b}",
    "[what|which] numbers [do I say|do you say|come] when [I|you] count from {a} to {b}",
    "how do you count from {a} to {b}",
    "how does one count from {a} to {b}",
    "[can|could|would] you count from {a} to {b}",
    "my [son|little brother] wants you to count from {a} to {b}",
    "[let me hear|I'd like to hear|I want to hear] the numbers from {a} to {b}",
    "I [need|want|would like] [the|all|all the] numbers from {a} to {b}",
    "I need a count from {a} to {b}",
    "my [daughter|son|class|kid] wants to hear the numbers from {a} to {b}",
    "[from {a} to {b}|{a} to {b}]: [count|list the numbers|all numbers|say the numbers]",
    "from {a} to {b}, [say|list|write|give me] [all the|all|the] numbers",
    "[begin|start] at {a}, [end|stop] at {b}: [count|list the numbers|count up]",
    "[all|the] [integers|whole numbers] from {a} [to|through|up to] {b}",
    "every [number|integer] from {a} to {b}",
    "list every number [starting at|beginning with] {a} and [ending|stopping] [at|with] {b}",
    "[print|show|write|output] the integers {a} [to|through] {b}",
    "[recite|read out|speak|go through] the numbers from {a} to {b}",
    "[recite|read] [the |]numbers {a} [to|through] {b}",
    "it would be [great|nice] if you counted from {a} to {b}",
    "I would [like|love] it if you counted from {a} to {b}",
    "[numbers|count|counting] [starting|beginning] at {a} and ending at {b}",
    "[count|number] sequence from {a} to {b}",
    "[make|write|print] a sequence of numbers from {a} to {b}",
    "count forward from {a} [to|until] {b}",
    "[continue|go on] counting from {a} [to|up to] {b}, {a} included",
    "[first number|first|start|from]: {a}, [last number|last|end|to]: {b}. [count|list the numbers|count up]",
    "count on your fingers from {a} to {b}",
    "count the [integers|whole numbers] from {a} to {b}",
    "list {a} [to|through|up to] {b}, one by one",
    "my [class|daughter|little sister] wants [to hear |]a count from {a} to {b}",
    "the [class|kid] wants to count from {a} to {b}",
    "[read|speak|recite] [every number|every integer|all numbers] from {a} [to|up to] {b}",
    "[read|speak] the numbers {a} to {b} [out loud|aloud]",
)
_COUNT_TO = (
    "count [up |]to {b}",
    "[count|count up] from [one|the start] to {b}",
    "[list|say|write|give me|print] [the|all] numbers up to {b}[| starting at 1| starting from 1| from 1]",
    "[list|say|write|give me|print] the first {b} numbers",
    "count [until|till] {b}",
    "count {b} numbers [from|starting at] 1",
    "how do you count to {b}",
    "let me hear you count to {b}",
    "would you mind counting to {b}",
    "would you mind counting [up |]to {b} for me",
    "[let's|let us] count to {b}[| together]",
    "my [daughter|son|class] wants you to count to {b}",
    "count [|all the way |slowly |]to {b}",
    "[can|could] you count [up |]to {b}",
    "[slowly|please slowly] count to {b}",
    "count slowly [up |]to {b}",
    "count [quickly|aloud|out loud] to {b}",
    "[let me hear|I want to hear|I'd like to hear|I'd love to hear] you count [up |]to {b}",
    "[let me hear|say|list] the numbers [up |]to {b} [starting with|starting at|from] one",
    "start at [one|1] and count [up |]to {b}",
    "[start|begin] with [one|1] and go up to {b}",
    "[one|1] to {b}, [count|please count|one by one]",
    "[numbers|all numbers|the numbers] from [one|1] to {b}",
    "the first {b} numbers[, starting with 1| starting with one| from one on]",
    "count all the way [up |]to {b}",
    "[teach me|show me how|help me] to count to {b}",
    "[I need you to|you should|please] count to {b}[| for me| for us]",
    "[what|which] are the first {b} numbers starting with 1",
    "counting to {b}",
    "[count|counting] from 1 [up to|until|till] {b}",
    "[I'd love to|I would love to] hear the numbers from 1 to {b}",
    "I would love it if you counted to {b}",
    "[help|teach] my [son|class|daughter] to count to {b}",
    "[help|show] us how to count to {b}",
    "[show|teach] me the numbers from 1 to {b}",
)
_COUNT_BACK = (
    "count [down|backwards|backward|back] from {a}",
    "count [down|backwards] starting [at|from|with] {a}",
    "[do a countdown|give me a countdown|countdown|a countdown|start a countdown] from {a}",
    "[can|could] you count [down|backwards] from {a}",
    "start at {a} and count [down|backwards]",
    "[count|counting] in reverse from {a}",
    "counting [down|backwards|in reverse] [from|starting from] {a}",
    "count in reverse starting [at|from|with] {a}",
    "[let me hear|I want to hear] you count [down|backwards] from {a}",
    "countdown: {a}",
    "from {a} [count down|count backwards|backwards|down]",
)
"""They end at 1."""
_COUNT_DOWN = (
    "count [down|backwards|backward|in reverse] from {a} to {b}",
    "count from {a} [down|back|backwards|backward] to {b}",
    "count from {a} to {b}[| backwards| counting down| going down]",
    "[list|write|print|give me|say] the numbers from {a} [down|backwards] to {b}",
    "[do a countdown|give me a countdown|countdown] from {a} to {b}",
    "start at {a} and count [down|backwards] to {b}",
    "starting at {a}, count [down|backwards] [to|until] {b}",
    "numbers from {a} down to {b}",
    "[say|list|give me|write] the numbers from {a} to {b}[| going down| counting down]",
    "[{a} down to {b}|{a} backwards to {b}|{a} down to {b}, one by one|{a} back to {b}]",
    "count down from {a} to {b}",
    "count backwards from {a} to {b}",
    "count [down|backwards]: {a} to {b}",
    "count {a} [down to|back to|backwards to] {b}",
    "[print|list|say|write|show] {a} [down |]to {b}, [counting down|counting backwards|descending]",
    "[list|write|say|give me] the numbers [backwards|in reverse|in descending order] from {a} to {b}",
    "[rocket |]countdown from {a} [down |]to {b}",
    "[descending|reverse] [count|order|counting] from {a} to {b}",
    "start [at|with] {a} and go [down|backwards] [to|until] {b}",
    "[what are the|the] numbers from {a} [down|backwards] to {b}",
    "[starting|start|beginning] [at|from|with] {a}, [go|count] [back|backwards|down|backward] [to|until|till] {b}",
    "[go|count] [back|backwards|down|backward] [to|until] {b} [starting at|from|beginning at] {a}",
    "countdown: {a} to {b}",
    "[countdown|count down|counting down|descending|backwards]: {a} [to|down to] {b}",
    "count [down|backwards] starting [at|with] {a} and [ending|stopping] [at|with] {b}",
    "count [slowly|aloud|out loud] [down|backwards] from {a} to {b}",
    "[let me hear|I want to hear|I'd like to hear] [a countdown|you count down|you count backwards] from {a} to {b}",
    "[make|write|start|begin] a countdown from {a} to {b}",
    "I [need|want] a countdown from {a} [down |]to {b}",
    "[the|all|all the] numbers from {a} [down|backwards|back] to {b}",
    "in steps of one from {a} down to {b}",
    "[numbers|integers|count] [descending|in descending order|going down|in reverse order] from {a} to {b}",
    "from {a} [down|back|backwards] to {b}[|, count|, one by one|: count down]",
    "from {a} count [down|backwards|back] [to|until] {b}",
    "[begin|start] [at|with] {a} and count [back|backwards|down] [to|till|until] {b}",
    "[can|could|would] you count [down|backwards] from {a} to {b}",
    "how do you count [backwards|down] from {a} to {b}",
    "[list|write|print|show] the [integers|whole numbers] from {a} down to {b}",
    "[recite|read|speak] the numbers from {a} [down|backwards] to {b}",
    "[rocket start|for the rocket|before the launch]: count down from {a} to {b}",
    "count in reverse from {a} [to|until] {b}",
    "[counting|count] in reverse order from {a} to {b}",
    "descending numbers from {a} to {b}",
    "a descending list of the numbers from {a} to {b}",
    "[reverse|backward] [count|counting|countdown] from {a} to {b}",
    "go down from {a} to {b} [one by one|by ones|in steps of one]",
    "count down by ones from {a} [to|until] {b}",
    "[go|count] [down|backwards] in steps of one from {a} to {b}",
    "[by ones|in steps of one], count [down|backwards] from {a} to {b}",
    "count down in [single steps|steps of one] from {a} to {b}",
    "[write|say|print] the numbers in steps of one from {a} down to {b}",
    "[decreasing|descending] count from {a} to {b}",
)
_COUNT_NEXT = (
    "count {n} numbers [starting at|starting from|beginning with|from] {a}",
    "[list|say|give me|write|print|show me] [the first |]{n} [numbers|integers] [starting at|beginning at|beginning with|starting with] {a}",
    "starting [at|from|with] {a}, [count|list|say|give me|write] {n} numbers",
    "[start|begin] at {a} and [count|list|say] {n} numbers",
    "{n} numbers [starting at|from|starting with|beginning at] {a}",
    "from {a}, [count|list|say] {n} numbers",
    "[count|say] the [first |]{n} numbers from {a} on",
    "the [first |]{n} numbers [starting at|starting from|starting with|beginning with] {a}",
    "[give me|list|write|name|show me] {n} [consecutive numbers|numbers in a row|numbers in order] [starting at|from|starting with] {a}",
    "count {n} numbers [up |][starting at|beginning at] {a}, including {a}",
    "I [need|want] {n} numbers [starting at|starting from|beginning with] {a}",
    "[begin|start] with {a} and [give me|write|list|say] {n} numbers",
    "[list|say|give me|write] {n} numbers [starting at|starting with|starting from|beginning at] {a}",
    "[the|my] first {n} numbers [starting at|starting with|beginning with] {a}",
    "[write|print|show|list|show me] the first {n} [numbers|integers] [starting at|starting with|beginning at] {a}",
    "[print|show|list] {n} [integers|whole numbers] [starting with|starting at|beginning with] {a}",
    "{n} [integers|whole numbers] [starting at|starting with|beginning with] {a}",
    "count {n} [integers|numbers|whole numbers], [starting with|beginning with] {a}",
    "first number {a}, {n} numbers in [all|total]",
    "start from {a} and [count|list|say|print] {n} numbers",
    "[say|print|write|give me] {n} numbers in a row [starting with|from|beginning with] {a}",
    "[a list|a sequence|a row] of {n} numbers [starting at|starting with|beginning with] {a}",
    "[make|write|print] a [list|sequence|row] of {n} numbers [starting at|starting with] {a}",
    "[which|what] are the [first |]{n} numbers starting [at|with] {a}",
    "with {a} as the first, [count|list|say] {n} numbers",
    "count from {a} until you have said {n} numbers",
    "[can|could] you count {n} numbers [starting at|starting with] {a}",
    "I want to hear {n} numbers [starting at|starting with] {a}",
    "beginning [at|with] {a}, [count|list|print|give me] {n} numbers",
    "{n} numbers in total, [the first is {a}|the first number is {a}|starting with {a}]",
    "a total of {n} numbers [starting at|starting with] {a}",
    "the first number is {a}, [count|list|say] {n} numbers",
)


def _range(draw: Draw, down: bool) -> tuple[int, int]:
    """Return the ends of a count on this side of the split; countdowns often end at the start of the numbers."""
    while True:
        items = draw.rng.randint(2, MAX_ITEMS)
        first = draw.rng.randint(0, 100 - items)
        if draw.chance(0.25):
            first = draw.rng.randint(0, min(12, 100 - items))
        if down and draw.chance(0.3):
            first = draw.rng.choice((0, 1, 1))
            items = draw.rng.choice((items, 10 if first else 11))
        if draw.mine("count", first, first + items - 1):
            return first, first + items - 1


_STEP_SHARE, _STEPS_LEARNED = 0.22, 0.3
"""Counts in steps, as they are asked and as they are learned."""
_SPELLED, _SPELLED_SUMS, _SPELLED_COUNTS = 0.05, 0.4, 0.15
"""Prompts whose numbers are written as words: as they are asked, and as they are learned (a twentieth is too few to learn them from)."""


def _written(draw: Draw, slots: dict[str, int], learned: float, never: bool = False) -> dict[str, object]:
    """Return `slots`, now and then with their numbers as words: in a share of `learned` of what is learned."""
    share = _SPELLED if draw.held_out else learned
    if not draw.chance(0.0 if never else share):
        return dict(slots)
    dash = draw.rng.choice(("-", "-", " "))
    return {name: spelled(number, dash) for name, number in slots.items()}


def _in_steps(draw: Draw) -> Turn:
    """Count in steps of more than one, or the even or odd numbers of a range."""
    while True:
        step = draw.rng.choice(STEPS)
        items = draw.rng.randint(3, min(MAX_ITEMS, 99 // step + 1))
        first = draw.rng.randint(0, 99 - (items - 1) * step)
        # People begin where multiples do, seldom somewhere between.
        roll = draw.rng.random()
        if roll < 0.45:
            first -= first % step
        elif roll < 0.8:
            first = min(first, draw.rng.choice((0, step, step, 1, draw.rng.randint(0, 12))))
        numbers = list(range(first, first + (items - 1) * step + 1, step))
        if draw.mine("steps", numbers[0], numbers[-1], step):
            break
    lines: tuple[str, ...] = STEP_UP
    more = step_slots(draw.rng, step)
    roll = draw.rng.random()
    if step == 2 and roll < 0.5:
        lines = PARITY
        more["parity"] = "odd" if first % 2 else "even"
    elif roll < 0.25:
        numbers.reverse()
        lines = STEP_DOWN
    slots = {"a": numbers[0], "b": numbers[-1], "n": items}
    text = draw.ask(lines)
    written = _written(draw, slots, _SPELLED_COUNTS)
    text = fill(text, {**written, **more})
    return Turn("counting", text, ", ".join(map(str, numbers)), {"numbers": numbers})


def counting(draw: Draw) -> Turn:
    """Count up (mostly) or down between two numbers of 0..99, now and then in steps; the answer is the bare list."""
    if draw.chance(_STEP_SHARE if draw.held_out else _STEPS_LEARNED):
        return _in_steps(draw)
    roll = draw.rng.random()
    down, following = (0.14, 0.05) if draw.held_out else (0.22, 0.12)
    first, last = _range(draw, roll < down)
    numbers = list(range(first, last + 1))
    slots = {"a": first, "b": last, "n": len(numbers)}
    if roll < down:
        numbers.reverse()
        slots = {"a": last, "b": first}
        text = draw.ask(_COUNT_BACK if first == 1 and draw.chance(0.4) else _COUNT_DOWN)
    elif roll < down + following and len(numbers) > 2:
        text = draw.ask(_COUNT_NEXT)
    elif first == 1 and draw.chance(0.7):
        text = draw.ask(_COUNT_TO)
    else:
        text = draw.ask(_COUNT_UP)
    text = fill(text, _written(draw, slots, _SPELLED_COUNTS))
    return Turn("counting", text, ", ".join(map(str, numbers)), {"numbers": numbers})


def sums(draw: Draw) -> Turn:
    """Add two numbers of 0..99; the answer is the bare sum."""
    while True:
        roll = draw.rng.random()
        a = draw.rng.randint(0, 99) if roll < 0.75 else draw.rng.randint(0, 20)
        b = draw.rng.randint(0, 99) if roll < 0.85 else draw.rng.randint(0, 20)
        if draw.mine("sum", a, b):
            break
    text = draw.phrase(PROBLEMS) if draw.chance(0.3) else draw.ask(SUM, question=True)
    thing, other = draw.rng.sample(THINGS, 2)
    name, friend = draw.rng.sample(NAMES, 2)
    slots = {"thing": thing, "other": other, "name": name, "friend": friend, "place": draw.rng.choice(PLACES)}
    # Nobody writes "twelve+seven".
    compact = re.search(r"\}[+,(]|[(]\{", text) is not None
    written = _written(draw, {"a": a, "b": b}, _SPELLED_SUMS, never=compact)
    return Turn("sums", fill(text, {**written, **slots}), str(a + b), {"sum": a + b})
