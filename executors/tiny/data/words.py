"""Skills with words: reversing their order, repeating them, writing them in capitals."""

import re

from executors.tiny.data.lexicon import CITIES, FUNCTION_WORDS, NAMES, TEMPLATE_WORDS, WORDS, pseudo_word
from executors.tiny.data.phrasing import Draw, fill
from executors.tiny.data.sample import Turn

_REVERSE = (
    "reverse the [order of the words|word order|words|order of words|order of these words] [in|of] {q}",
    "reverse the [order of the words|word order|words|order of words|order of these words]: {q}",
    "reverse [this phrase|the phrase|this sentence|the sentence|these words|this text|the following|the following words|the following phrase|word order]: {q}",
    "reverse {q} [word by word|by words|by word|by word order]",
    "reverse: {q}",
    "reverse the phrase {q}",
    "reverse the sentence {q}",
    "reverse the words {q}",
    "[write|say|put|print|give me|list|return|output|type] [the words of|the words in|these words:|the words] {q} in [reverse|reversed|backward|backwards|opposite|the opposite|the reverse] order",
    "[write|say|put|print|read] [this|the following|the phrase|the sentence|it] [backwards|in reverse order|in reversed order|in reverse|from last to first] [word by word|by words]: {q}",
    "[write|say|put|give me] the words [backwards|in reverse|from last to first|last to first|in reverse order|from the end to the start]: {q}",
    "[flip|swap|invert|turn around|turn] the [order of the words|word order|words|order of words] [in|of] {q}",
    "[flip|invert|turn around] the [word order|words|order of the words]: {q}",
    "what is {q} with [the|its] words [reversed|in reverse order|in reverse|backwards]",
    "[what do you get|what is it] when you reverse the words [in|of] {q}",
    "{q} - [reverse|reverse the words|reverse the word order|words in reverse order]",
    "{q} [in reverse word order|with the words reversed|reversed word by word|backwards word by word]",
    "[rewrite|rearrange|repeat] {q} with the [last word first|words reversed|words in reverse order|word order reversed]",
    "start with the last word and end with the first: {q}",
    "words [in reverse|in reverse order|reversed|backwards]: {q}",
    "[reversed|reverse|backward|opposite] [word order|order of words|order]: {q}",
    "how [do you say|would it read|does it read] {q} with the words [backwards|reversed|in reverse order]",
    "read {q} [from the last word to the first|backwards word by word]",
    "change the word order of {q} to the [reverse|opposite]",
    "order the words of {q} from last to first",
    "make the last word the first: {q}",
    "[turn|switch|flip|change] the [order|sequence] of the words {q}[| around| to the reverse| to the opposite]",
    "[change|turn|reverse] the order of words in {q} to the [opposite|reverse|reversed order]",
    "[give|tell|show] me {q} with [its|the] words [in reverse|reversed|backwards|in the opposite order]",
    "[put|arrange|place|sort|return] [these words|the words|the following words|this|them] in [reverse|reversed|backward|the opposite|opposite] order: {p}",
    "[say|write|give] [the words|the sentence|this] backwards: {p}",
    "[word reversal|reverse words|reverse word order|reverse order]: {p}",
    "[write|say|give me] {q} [backwards|in reverse|the other way round|in the opposite word order] [word by word|by words]",
    "[reverse|flip|turn around] the [order|sequence] of [words|the words] in [the sentence|the phrase|] {q}",
    "[the words|the phrase|the sentence] {q} [reversed|in reverse|in reverse order|backwards]",
    "[swap the words around|turn it around|flip it]: {p}",
    "[reverse|flip|invert|turn around] the words [here|below|of this sentence|of this phrase|in this text|in the phrase]: {p}",
    "[reverse|flip] the [phrase|sentence|text|words] [word by word|by words|by word]: {p}",
    "{q} with the words [the other way round|the other way around|from back to front|back to front]",
    "[I want|I need|I would like|let me see] {q} [with the words reversed|backwards word by word|in reverse word order]",
    "[reverse|invert] the order in which these words [appear|come|stand]: {p}",
    "[what is|what would be|how does] the reversed [word order|order of the words] [of|for] {q}",
    "[last word first|last word first, first word last|first to last, last to first]: {p}",
    "[say|write|read] [the phrase |the sentence |]{q} [from end to start|from the end|from back to front|starting with the last word]",
    "[mirror|flip] the order of [the words|words] in {q}",
    "[take|given] [the phrase|the sentence|the words|] {q} and [reverse|flip|invert] [the word order|its words|the order of the words]",
)
_REPEAT = (
    "repeat [after me|the word|the words|this|this word|the following|exactly|the following word|the phrase|what I say|back]: {p}",
    "repeat [the word|the words|this word|after me|] {q}",
    "repeat: {p}",
    "repeat [exactly |]{q} [back to me|to me|once|exactly|back|]",
    "say [the word|this|this word|the following|after me|exactly|this word]: {p}",
    "say {q}",
    "say [the word|the words|only|just|only the word] {q}",
    "say: {p}",
    "echo [this|the word|this word|back|the following]: {p}",
    "echo [the word|] {q}",
    "echo: {p}",
    "[write|print|type|output|copy|return|respond with|reply with|answer with] [only |just |exactly |][the word|this word|the words|] {q}",
    "[write|print|type|copy|write down] [this|the following|the word|it again]: {p}",
    "copy [the word|this text|what I write|the following text|after me]: {p}",
    "[say|repeat] {q} [again|back|one time|after me]",
    "just [say|repeat|echo] {q}",
    "parrot [this|back]: {p}",
    "I say {q}, you repeat [it|]",
    "I say {q}, you say",
    "say after me: {p}",
    "repeat the same [word|words|thing|text]: {p}",
    "the word is {q}. [repeat it|say it|say it again|echo it]",
    "give me {q} back",
    "send back [the word|] {q}",
    "[say|write] exactly this: {p}",
    "[can you say|could you say|would you say|please say|say] the [word|words] {q} [for me|back to me|again|to me|]",
    "[just |simply |only |][write|print|type|output|say] the word {q}",
    "[repeat|echo|copy] [this word|these words|the text|the next word|my words|the input] [exactly|word for word|]: {p}",
    "[what did I say|what is this word|which word is this]: {p}",
    "[mirror|mimic|duplicate|recite] [this|the word|]: {p}",
    "[now |then |]say {q}",
    "[say|repeat|write|echo|type] the following [words|phrase|text|line|sentence]: {p}",
    "[can I hear|I want to hear|let me hear|let's hear] {q}",
    "[tell me|give me] [exactly |]the [word|words] {q}",
    "[answer|reply|respond] [only |just |simply |]with: {p}",
    "[your answer must be|your reply should be|the answer should be|you must say]: {p}",
    "[please |][copy|repeat] what [comes next|follows|I wrote]: {p}",
)
_UPPER = (
    "[write|put|print|spell|say|type|give me|show|return|output] {q} in [upper case|uppercase|capital letters|capitals|all caps|caps|upper-case letters|uppercase letters|block letters|big letters|all capitals|all upper case]",
    "[write|put|print|type|give me] [this|the word|this word|the following|the following word|these words] in [upper case|uppercase|capital letters|capitals|all caps|caps]: {p}",
    "[uppercase|upper-case|upper case|capitalize|capitalise] [this|the word|this word|the following|it]: {p}",
    "[uppercase|upper-case|upper case] [the word |the text |]{q}",
    "[capitalize|capitalise] [all letters of|every letter of|all the letters in|every letter in|all of|the whole word] {q}",
    "[convert|change|turn|transform|set|make|switch] {q} [to|into] [upper case|uppercase|capital letters|capitals|all caps|caps|uppercase letters]",
    "[convert|change|turn|transform] [this|the word|the following|this word|the text] [to|into] [upper case|uppercase|capital letters|capitals|all caps]: {p}",
    "make {q} [upper case|uppercase|all caps|all uppercase|upper-case]",
    "[upper case|uppercase|capital letters|in capitals|in capital letters|in upper case|all caps|to upper case|to uppercase|in caps]: {p}",
    "what is {q} in [upper case|uppercase|capital letters|capitals|all caps|caps]",
    "how [do you write|is|does one write|would you write] {q} [written |]in [capital letters|capitals|upper case|uppercase|all caps]",
    "{q} in [upper case|uppercase|capital letters|capitals|all caps|caps]",
    "{q} [to|as] [upper case|uppercase|capitals|all caps]",
    "{q} but in [capital letters|upper case|all caps|uppercase]",
    "shout {q}",
    "shout [this|the word|it]: {p}",
    "the uppercase [version|form|spelling] of {q}",
    "give me the [uppercase|upper case|capitalized] [version|form] of {q}",
    "use [capital letters|upper case|all caps|only capitals] for {q}",
    "[repeat|say|write] {q} with [capital letters|all caps|only capital letters|big letters]",
    "I need {q} in [capital letters|all caps|upper case|uppercase]",
    "upper: {p}",
    "all letters big: {p}",
    "shout the [word|words] {q} [in capitals|in all caps|]",
    "[write|type|spell|put] the [word|words] {q} [in|with|using] [capital letters|all caps|upper case|uppercase letters|capitals]",
    "[change|turn|convert|make|transform] the [word|words|text] {q} [to|into|] [uppercase|upper case|all caps|capitals]",
    "[show|tell] me the word {q} in [capitals|upper case|uppercase|all caps]",
    "[caps|caps lock|uppercase please|in capitals please]: {p}",
    "[upper|upper case|upper-case|uppercase] [the word |]{q} [for me|]",
    "[type|write|spell|print] {q} [using|with|in] [only |nothing but |just |][capital letters|capitals|uppercase letters|big letters]",
    "[can I have|could I get|I'd like|I want|I would like|let me see|I need] {q} [written |spelled |][in all caps|in capital letters|in uppercase|in capitals|in upper case]",
    "[make|turn] [these words|this word|the following|this phrase|it|the words|this] [uppercase|upper case|all caps|into capitals|to uppercase]: {p}",
    "[all caps|uppercase|upper case|capitals] [version |form |]of {q}",
    "[what does|how does] {q} look [like |]in [all caps|capitals|uppercase|capital letters|upper case]",
    "[yell|scream|shout] [it|this] [in capital letters|in all caps|in caps]: {p}",
    "[change|convert|turn] the letters of {q} [to|into] [capitals|uppercase|upper case|capital letters]",
    "[the word|the words|the phrase] {q} in [capital letters|all caps|uppercase|capitals|upper case]",
)


_BEFORE = (
    (": ", ":\n", " - ", " for me: ", ", please: ", "? ", " -> ", " = "),
    (70, 12, 5, 4, 3, 3, 1, 1),
)
"""What may stand between a request and its operand, with weights."""
_SINGLE_TOKENS = FUNCTION_WORDS + TEMPLATE_WORDS


def _word(draw: Draw, share: int = 10) -> str:
    """Return a word of this side of the split: listed, made up, or a frequent one that is a token of its own."""
    while True:
        roll = draw.rng.random()
        if roll < 0.44:
            word = draw.rng.choice(WORDS)
        elif roll < 0.74:
            word = pseudo_word(draw.rng)
        elif roll < 0.90:
            return draw.rng.choice(FUNCTION_WORDS if draw.chance(0.75) else TEMPLATE_WORDS)
        elif roll < 0.96:
            word = draw.rng.choice(NAMES + CITIES)
        else:
            word = "".join(
                draw.rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(draw.rng.randint(2, 8))
            )
        if draw.mine("word", word, share=share):
            return word


def _quoted(draw: Draw, text: str, quote: bool) -> str:
    """Return `text`, in some kind of quotes if `quote`."""
    if not quote:
        return text
    mark = draw.rng.choice(('"', '"', '"', "'", "'", "`", "\u201c"))
    return f"\u201c{text}\u201d" if mark == "\u201c" else f"{mark}{text}{mark}"


def _drill(draw: Draw, most: int) -> list[str]:
    """Return words that are single tokens, for training only.

    Each such token has to be learned as something to copy, to spell in capitals and to move; in ordinary phrases one
    of the hundreds comes up far too rarely.
    """
    words = [draw.rng.choice(_SINGLE_TOKENS) for _ in range(draw.rng.randint(2, most))]
    return [word.capitalize() if draw.chance(0.1) else word for word in words]


def _sentence(draw: Draw, length: int) -> list[str]:
    """Return `length` words that alternate between listed and function words as they do in real phrases."""
    words, listed = [], draw.chance(0.4)
    for _ in range(length):
        word = draw.rng.choice(FUNCTION_WORDS)
        while listed and not draw.mine("word", word := draw.rng.choice(WORDS)):
            pass
        words.append("I" if word == "i" else word)
        listed = not listed if draw.chance(0.8) else listed
    return words


def _one_or_two(draw: Draw, most: int) -> str:
    """Return one short word, sometimes two or three; in training now and then a drill of up to `most`."""
    if not draw.held_out and draw.chance(0.2):
        return " ".join(_drill(draw, most))
    if draw.chance(0.15):
        return " ".join(_sentence(draw, draw.rng.randint(2, min(most, 4))))
    words = [_word(draw) for _ in range(draw.rng.choice((1, 1, 1, 1, 2, 2, 3)))]
    if draw.chance(0.08):
        words[0] = words[0].capitalize()
    if len(words) == 1 and draw.chance(0.04):
        words[0] += str(draw.rng.randint(0, 99))
    return " ".join(words)


def _asked(draw: Draw, lines: tuple[str, ...], text: str, quote: float) -> str:
    """Return a user message about `text`.

    `{q}` stands inside a sentence, `{p}` follows a colon. An operand without quotes at the end takes no "please" and no
    exclamation after it, since those could be meant as part of it.
    """
    quoted = draw.chance(quote)
    while True:
        template = draw.ask(lines)
        tail = re.split(r"\{[pq]\}", template)[-1]
        bare_end = re.search(r"\{[pq]\}[^\w ]*( [a-z, ]+)?[^\w]*$", template) is not None
        if (
            quoted
            or not bare_end
            or tail in ("", ".", "?")
            or tail.startswith((" in ", " to ", " as ", " but ", " with "))
        ):
            break
    # Inside a sentence, a phrase or a word like "with" would run into the words around it.
    inside = re.search(r"[a-z]", tail) is not None
    quoted = quoted or (inside and (" " in text or text in FUNCTION_WORDS))
    if "{p}" in template:
        template = template.replace(": {p}", draw.rng.choices(*_BEFORE)[0] + "{p}")
    operand = _quoted(draw, text, quoted)
    return fill(template, {"p": operand, "q": operand})


def reversal(draw: Draw) -> Turn:
    """Reverse the word order of a phrase of two to six words."""
    count = draw.rng.choice((2, 3, 3, 4, 4, 5, 6) if draw.held_out else (2, 3, 3, 4, 4, 5, 5, 6, 6))
    words = _sentence(draw, count) if draw.chance(0.3) else [_word(draw) for _ in range(count)]
    if not draw.held_out and draw.chance(0.15):
        words = _drill(draw, 6)
    if draw.chance(0.25):
        words[0] = words[0].capitalize()
    phrase = " ".join(words)
    answer = " ".join(reversed(words))
    return Turn("reversal", _asked(draw, _REVERSE, phrase, 0.4), answer, {"text": answer})


def repetition(draw: Draw) -> Turn:
    """Repeat one to three short words exactly."""
    text = _one_or_two(draw, 6)
    return Turn("repetition", _asked(draw, _REPEAT, text, 0.45), text, {"text": text})


def upper_casing(draw: Draw) -> Turn:
    """Write one to three short words in capitals."""
    text = _one_or_two(draw, 3)
    return Turn("upper_casing", _asked(draw, _UPPER, text, 0.45), text.upper(), {"text": text.upper()})
