"""Counting in steps, and numbers written as words.

Slots of the wordings: `{a}` and `{b}` are the ends, `{n}` the number of items, `{k}` the step ("2" or "two"), `{ks}` its plural
("twos"), `{th}` its ordinal ("second").
"""

import random

_UNITS = tuple(
    """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen
    nineteen""".split()
)
_TENS = tuple("twenty thirty forty fifty sixty seventy eighty ninety".split())
STEPS = (2, 2, 2, 2, 2, 2, 3, 3, 4, 5, 5, 5, 5, 10, 10, 10, 10, 20)
"""Steps that people count in, the usual ones several times."""
_PLURALS = {2: "twos", 3: "threes", 4: "fours", 5: "fives", 10: "tens", 20: "twenties"}
_ORDINALS = {2: "second", 3: "third", 4: "fourth", 5: "fifth", 10: "tenth", 20: "twentieth"}


def spelled(number: int, dash: str = "-") -> str:
    """Return the English words of `number`, 0..99."""
    if number < 20:
        return _UNITS[number]
    tens, unit = divmod(number, 10)
    return _TENS[tens - 2] + (dash + _UNITS[unit] if unit else "")


def step_slots(rng: random.Random, step: int) -> dict[str, object]:
    """Return the slots that name `step`, one of `STEPS`."""
    return {
        "k": spelled(step) if rng.random() < 0.4 else step,
        "ks": _PLURALS[step] if rng.random() < 0.8 else f"{step}s",
        "th": _ORDINALS[step],
    }


STEP_UP = (
    "count by {ks} from {a} to {b}",
    "count by {k} from {a} to {b}",
    "count [up |]in {ks} from {a} to {b}",
    "count [up |]from {a} to {b} by {ks}",
    "count [up |]from {a} to {b} in steps of {k}",
    "count in steps of {k} from {a} [to|up to|until] {b}",
    "[go|count up|count upwards] from {a} to {b} in steps of {k}",
    "count from {a} to {b} [with a step of|with step|step] {k}",
    "count from {a} to {b}, {k} at a time",
    "[go|count] from {a} [up |]to {b}, {k} at a time",
    "{ks} from {a} to {b}",
    "by {ks} from {a} to {b}",
    "count by {ks}, [starting at|starting with|from] {a}, [up |]to {b}",
    "count by {ks}: [start|begin] [at|with] {a} and [stop|end] [at|with] {b}",
    "[start|begin] [at|with] {a} and count by {ks} [to|up to|until] {b}",
    "start at {a}, add {k} each time, [and |]stop at {b}",
    "every {th} number from {a} to {b}",
    "[list|say|write|give me|print] every {th} number from {a} to {b}",
    "[list|say|write|give me|print|show] the numbers from {a} to {b} in steps of {k}",
    "[list|say|write|give me] the numbers from {a} to {b}, {k} at a time",
    "skip count by {ks} from {a} to {b}",
    "[can|could] you count by {ks} from {a} [to|up to] {b}",
    "[can|could] you count in {ks} from {a} to {b} for my [son|daughter|class|kid]",
    "[help|teach] my [son|daughter|class|kid] [to |]count by {ks} from {a} to {b}",
    "I [want|need] you to count by {ks} from {a} to {b}",
    "[let me hear|I'd like to hear] you count by {ks} from {a} to {b}",
    "{a} to {b} by {ks}",
    "{a} to {b} in steps of {k}",
    "from {a} to {b} by {ks}",
    "from {a} to {b} [in|with] steps of {k}[, please count|]",
    "count up by {ks} from {a} [until|to] {b}",
    "counting by {ks}[,|:] {a} to {b}",
    "count [the numbers |]{a} to {b} in jumps of {k}",
    "[go|jump] from {a} to {b} in jumps of {k}",
    "numbers from {a} to {b}, step {k}",
    "[range|sequence] from {a} to {b}[,| with] step {k}",
    "keep adding {k}: start at {a} and stop at {b}",
    "count {n} numbers by {ks}, starting [at|with] {a}",
    "[count|list|write] {n} numbers in steps of {k} starting [at|with] {a}",
    "{n} numbers starting at {a}, in steps of {k}",
    "counting in steps of {k}, [begin|start] at {a} and [end|stop] at {b}",
    "what do I get if I count by {ks} from {a} to {b}",
    "[count |]upwards by {ks} from {a} to {b}",
    "I want to hear you count in {ks} from {a} to {b}",
    "[the |]range from {a} to {b} in steps of {k}",
    "[a|the] sequence from {a} to {b} with [a |]step of {k}",
    "the numbers in the range {a} to {b} by {ks}",
    "let me hear the {ks} from {a} to {b}",
    "a sequence of {n} numbers by {ks}, starting at {a}",
)
"""Upwards; only `{a}` less than `{b}`."""
STEP_DOWN = (
    "count [down|backwards] by {ks} from {a} to {b}",
    "count [down|backwards] by {k} from {a} to {b}",
    "count [down|backwards] from {a} to {b} by {ks}",
    "count [down|backwards|back] from {a} to {b} in steps of {k}",
    "count [down|backwards] in {ks} from {a} to {b}",
    "count from {a} down to {b}, {k} at a time",
    "count from {a} down to {b} by {ks}",
    "[start|begin] at {a} and count [down|back|backwards] by {ks} to {b}",
    "start at {a} and [subtract|take away] {k} each time until {b}",
    "[go|count] from {a} down to {b} in steps of {k}",
    "[list|say|write|give me] every {th} number from {a} down to {b}",
    "[list|say|write|give me] the numbers from {a} down to {b} in steps of {k}",
    "{a} down to {b} by {ks}",
    "{a} down to {b} in steps of {k}",
    "from {a} [down|back] to {b}, {k} at a time",
    "[do a |]countdown from {a} to {b} [by|in] {ks}",
    "countdown by {ks} from {a} [down |]to {b}",
    "count backwards, {k} at a time, from {a} to {b}",
    "[can|could] you count [down|backwards] by {ks} from {a} to {b}",
    "in steps of {k}, count [down|backwards] from {a} to {b}",
)
"""Downwards."""
PARITY = (
    "[list|say|write|give me|print|show|show me|name] [all |][the |]{parity} numbers from {a} to {b}",
    "[list|say|write|give me|print|name] [all |][the |]{parity} numbers between {a} and {b}[| inclusive|, inclusive]",
    "count the {parity} numbers from {a} to {b}",
    "count [only |]{parity} numbers from {a} to {b}",
    "{parity} numbers from {a} to {b}",
    "{parity} numbers between {a} and {b}",
    "[what|which] are the {parity} numbers from {a} to {b}",
    "[what|which] {parity} numbers are [there |]between {a} and {b}",
    "all [the |]{parity} numbers from {a} up to {b}",
    "count from {a} to {b} using only {parity} numbers",
    "count from {a} to {b}, only the {parity} numbers",
    "[only|just] the {parity} numbers from {a} to {b}",
    "every {parity} number from {a} to {b}",
    "[list|write|give me] every {parity} number between {a} and {b}",
    "I [need|want] the {parity} numbers from {a} to {b}",
    "[can|could] you [list|say|count] the {parity} numbers from {a} to {b}",
    "the first {n} {parity} numbers starting [at|with] {a}",
    "[list|write|say] {n} {parity} numbers starting [at|with] {a}",
)
"""Even or odd ones; `{a}` and `{b}` are of that kind."""
