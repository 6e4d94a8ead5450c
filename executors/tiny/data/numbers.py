"""Skills with numbers: counting within 0..99 and sums up to 99+99."""

from executors.tiny.data.lexicon import NAMES
from executors.tiny.data.phrasing import Draw, fill
from executors.tiny.data.sample import Turn
from executors.tiny.data.word_problems import PLACES, PROBLEMS, THINGS

MAX_ITEMS = 15

_COUNT_UP = (
    "count [from {a} to {b}|up from {a} to {b}|from {a} up to {b}|{a} to {b}|from {a} through {b}]",
    "count [upwards|up|forward|forwards] [from|starting at|beginning with|beginning at] {a} [to|until|till|up to] {b}",
    "count from {a} [until|till|upto] {b}",
    "[list|write|print|give me|say|show|show me|name|type|output|enumerate|recite] [the|all the|all] numbers from {a} to {b}",
    "[list|write|print|give me|say|show|type|output|write down] [the|all] [numbers|integers|whole numbers] between {a} and {b}[| inclusive]",
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
    "[what|which] [numbers|integers] [come|are|lie|do you find] between {a} and {b}[| inclusive|, inclusive| including both| (include both)]",
    "[numbers|integers|all numbers] between {a} and {b}[|, inclusive| with both ends]",
    "start [with|from] {a}, [end|stop|finish] [at|with] {b}[|, count]",
    "count for me[:|,|] from {a} to {b}",
    "{a} to {b}, [count|one by one|in order|counting up]",
    "[count|go] one by one from {a} [to|until] {b}",
    "[write|make] a list of [the |]numbers from {a} to {b}",
    "say the numbers {a} to {b} [in order|aloud|out loud]",
    "count in ones from {a} to {b}",
    "[list|say|write|numbers|range|print|give me|go through] {a}[-| - ]{b}",
    "{a}[-| - ]{b}[, count|: count|, list them|: list the numbers]",
    "count [numbers|all numbers|the numbers|up|the range|over] {a}[-| - ]{b}",
    "[start|begin] [from|at|with] {a}, [finish|end|stop|go on] [with|at|until|to] {b}",
    "[start|begin] [from|at|with] {a} and [finish|end] [with|at] {b}",
    "count together [with me |]from {a} to {b}",
    "[begin|start] [with|at] {a} and keep counting until [you reach |]{b}",
    "count from {a} to {b} for my [daughter|son|class|little brother]",
    "count starting at {a} and ending at {b}",
    "what are the numbers from {a} to {b}",
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
)
_COUNT_DOWN = (
    "count [down|backwards|backward|in reverse] from {a} to {b}",
    "count from {a} [down|back|backwards|backward] to {b}",
    "count from {a} to {b}[| backwards| in reverse| going down]",
    "[list|write|print|give me|say] the numbers from {a} [down|backwards] to {b}",
    "[do a countdown|give me a countdown|countdown] from {a} to {b}",
    "start at {a} and count [down|backwards] to {b}",
    "starting at {a}, count [down|backwards] [to|until] {b}",
    "numbers from {a} down to {b}",
    "[say|list|give me|write] the numbers from {a} to {b}[| backwards| in reverse| going down]",
    "[{a} down to {b}|{a} backwards to {b}|{a} down to {b}, one by one|{a} back to {b}]",
    "count down from {a} to {b}",
    "count backwards from {a} to {b}",
    "count [down|backwards]: {a} to {b}",
    "count {a} [down to|back to|backwards to] {b}",
    "[print|list|say|write|show] {a} [down |]to {b}, [counting down|backwards|in reverse|descending]",
    "[list|write|say|give me] the numbers [backwards|in reverse|in descending order] from {a} to {b}",
    "[rocket |]countdown from {a} [down |]to {b}",
    "[descending|reverse] [count|order|counting] from {a} to {b}",
    "start [at|with] {a} and go [down|backwards] [to|until] {b}",
    "[what are the|the] numbers from {a} [down|backwards] to {b}",
    "[starting|start|beginning] [at|from|with] {a}, [go|count] [back|backwards|down|backward] [to|until|till] {b}",
    "[go|count] [back|backwards|down|backward] [to|until] {b} [starting at|from|beginning at] {a}",
)
_COUNT_NEXT = (
    "count {n} numbers [starting at|starting from|beginning with|from] {a}",
    "[list|say|give me|write|print|show me] [the first |the next |]{n} [numbers|integers] [starting at|from|beginning at|beginning with|starting with] {a}",
    "starting [at|from|with] {a}, [count|list|say|give me|write] {n} numbers",
    "[start|begin] at {a} and [count|list|say] {n} numbers",
    "{n} numbers [starting at|from|starting with|beginning at] {a}",
    "from {a}, [count|list|say] {n} numbers",
    "[count|say] the [next |]{n} numbers from {a}[| on]",
    "the [first|next] {n} numbers [starting at|starting from|starting with|beginning with] {a}",
    "[give me|list|write|name|show me] {n} [consecutive numbers|numbers in a row|numbers in order] [starting at|from|starting with] {a}",
    "count {n} numbers [up |][starting at|beginning at] {a}, including {a}",
    "I [need|want] {n} numbers [starting at|starting from|beginning with] {a}",
    "[begin|start] with {a} and [give me|write|list|say] {n} numbers",
    "[list|say|give me|write] {n} numbers [starting at|starting with|starting from|beginning at] {a}",
)

_SUM = (
    "[what is|what's|whats|how much is|calculate|compute|work out|solve|evaluate|find|do|tell me] {a} [+|plus] {b}",
    "[what is|what's|whats|how much is|calculate|compute|] {a}+{b}",
    "{a} [+|plus] {b}",
    "{a}+{b}",
    "{a} [+|plus] {b} [=|equals|is|makes|gives]",
    "{a}+{b}[=|=?| = ?]",
    "{a} + {b} = ?",
    "[what is|what's|calculate|compute|find|give me|work out|tell me|how much is] the [sum|total] of {a} and {b}",
    "[the |]sum of {a} and {b}",
    "add {a} and {b}",
    "add {a} [to|plus|with|+] {b}",
    "add [the numbers|these numbers|together|up] {a} and {b}",
    "add {a} and {b} [together|up]",
    "sum {a} and {b}",
    "sum up {a} and {b}",
    "[what|how much] do you get [if|when] you add {a} [and|to] {b}",
    "[what|how much] [is|does] {a} added to {b}",
    "what does {a} [plus|+] {b} [equal|make|give|come to]",
    "what do {a} and {b} [make|add up to|make together|sum to|add to|total|come to]",
    "how much [are|do|is] {a} and {b} [together|make|in total|combined]",
    "{a} and {b} [together|in total|make how much|added together|summed]",
    "if I add {a} [and|to] {b}, what [do I get|is the result|is it|is the sum]",
    "what is the result of [adding {a} and {b}|{a} + {b}|{a} plus {b}]",
    "[result|answer|sum|total]: {a} + {b}",
    "put {a} and {b} together",
    "what is {a} more than {b}",
    "what number is {a} more than {b}",
    "increase {a} by {b}",
    "what is {a} increased by {b}",
    "take {a} and add {b}",
    "start with {a} and add {b}",
    "math: {a} + {b}",
    "a simple sum: {a} + {b}",
    "can you add {a} and {b}",
    "do you know what {a} + {b} is",
    "[solve|do] this [sum|addition|problem]: {a} + {b}",
    "the addition of {a} and {b}",
    "what is the total [when you combine|of|if you combine|when adding] {a} and {b}",
    "[combine|total up|tally] {a} and {b}",
    "[my homework|homework|exercise|task|exam question|quiz]: {a}[+| + | plus ]{b}[| =|=]",
    "[work out|figure out|help me with] {a} [plus|+|and] {b}[| for me]",
    "what [will|would|does] {a} [and|plus|+] {b} [be|give|make|give you]",
    "what's [the answer to|the result of|the value of] {a}[+| + | plus ]{b}",
    "[sum|add|total]: {a}, {b}",
    "[sum|add|total|plus|addition] [of |these: |them: |this: ]{a}, {b}",
    "[sum|add|total|plus|addition] ({a}, {b})",
    "{a}, {b}: [sum|total|add them|sum them|add these two]",
    "[numbers|values]: {a}, {b}. [sum|total|add them|what is the sum]",
    "[total|count together|add] [up |]{a} [and|with|plus] {b}[| in total]",
    "[sum|addition|adding]: {a} [and|plus] {b}",
    "[sum|add|plus] {a} {b}",
    "{a} [with|and] {b} [added|more] [is|makes|gives]",
    "what [do|would] I get [adding|by adding|if I add] {a} [and|to] {b}",
    "[I|Tom|Anna|Sam|she|he|we|they] had {a} {thing}[ and|. Then| and then|,] [I|he|she|they|] [got|bought|found|received|was given] {b} [more|others|additional {thing}]. how many [{thing} |][now|in all|in total|are there now]",
    "I have {a} {thing} and [get|buy|find|receive] {b} more. how many [{thing} |][do I have|are there] [now|in total|altogether]",
    "I have {a} {thing} and you give me {b} more. how many do I have",
    "[Tom|Anna|Sam|she|he|a man|a girl] has {a} {thing} and [gets|buys|finds] {b} more. how many {thing} is that",
    "there are {a} {thing} [here|in a box|on the table] and {b} {thing} [there|in a bag|on the floor]. how many [in total|altogether|are there]",
    "{a} {thing} and {b} {thing}, how many [together|in total|is that]",
    "if you have {a} {thing} and add {b} [more|{thing}], how many [do you have|is that]",
    "{a} [plus|+|and] {b} [equals|makes|is|gives] what",
    "what's {a} and {b}",
    "[quick math|math question|quick sum|easy one|my question]: [what is |]{a} [plus|+] {b}",
    "[please |]add {a} to {b}",
    "{a} added to {b} [is what|makes what|gives]",
    "how much do {a} and {b} [add up to|make together|come to]",
    "what number is {a} [+|plus] {b}",
    "[I need|I need to know|give me|find] [the sum of {a} and {b}|the result of {a} + {b}|what {a} plus {b} is]",
    "what is {a} and {b} [added together|put together|combined|together|added up]",
    "add up {a} and {b}",
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


def counting(draw: Draw) -> Turn:
    """Count up (mostly) or down between two numbers of 0..99; the answer is the bare list."""
    roll = draw.rng.random()
    down, following = (0.14, 0.05) if draw.held_out else (0.22, 0.12)
    first, last = _range(draw, roll < down)
    numbers = list(range(first, last + 1))
    slots = {"a": first, "b": last, "n": len(numbers)}
    if roll < down:
        numbers.reverse()
        slots = {"a": last, "b": first}
        text = draw.ask(_COUNT_DOWN)
    elif roll < down + following and len(numbers) > 2:
        text = draw.ask(_COUNT_NEXT)
    elif first == 1 and draw.chance(0.7):
        text = draw.ask(_COUNT_TO)
    else:
        text = draw.ask(_COUNT_UP)
    return Turn("counting", fill(text, slots), ", ".join(map(str, numbers)), {"numbers": numbers})


def sums(draw: Draw) -> Turn:
    """Add two numbers of 0..99; the answer is the bare sum."""
    while True:
        roll = draw.rng.random()
        a = draw.rng.randint(0, 99) if roll < 0.75 else draw.rng.randint(0, 20)
        b = draw.rng.randint(0, 99) if roll < 0.85 else draw.rng.randint(0, 20)
        if draw.mine("sum", a, b):
            break
    text = draw.phrase(PROBLEMS) if draw.chance(0.25) else draw.ask(_SUM, question=True)
    thing, other = draw.rng.sample(THINGS, 2)
    name, friend = draw.rng.sample(NAMES, 2)
    slots = {"thing": thing, "other": other, "name": name, "friend": friend, "place": draw.rng.choice(PLACES)}
    return Turn("sums", fill(text, {"a": a, "b": b, **slots}), str(a + b), {"sum": a + b})
