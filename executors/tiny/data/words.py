"""Skills with words: reversing their order, repeating them, writing them in capitals."""

import re

from executors.tiny.data.lexicon import (
    CITIES,
    FREQUENT_WORDS,
    FUNCTION_WORDS,
    NAMES,
    TEMPLATE_WORDS,
    WORDS,
    pseudo_word,
)
from executors.tiny.data.phrasing import Draw, fill
from executors.tiny.data.sample import Turn
from executors.tiny.data.word_asks import REPEAT, REVERSE, UPPER

_BEFORE = (
    (": ", ":\n", " - ", " for me: ", ", please: ", "? ", " -> ", " = "),
    (70, 12, 5, 4, 3, 3, 1, 1),
)
"""What may stand between a request and its operand, with weights."""
_SINGLE_TOKENS = FUNCTION_WORDS + TEMPLATE_WORDS
_DRILLED = tuple(sorted({*_SINGLE_TOKENS, *FREQUENT_WORDS}))
_OPERAND = re.compile(r"\{[pqkPQK]\}")
_SINGULAR = re.compile(
    r"\b(?:the|this|next|following|same|my|a|whole|only) word\b(?! order| by| for| reversal)"
)
_SEVERAL = re.compile(r"\b(?:the|these|next|following|same|my|some) (?:words|phrase|sentence|line)\b")
"""Wordings for one word, and for several."""
_FOLLOWING = (
    *(
        " in ",
        " to ",
        " into ",
        " as ",
        " but ",
        " with ",
        " using ",
        " - ",
        " -> ",
        " from ",
        " backwards",
        " word by word",
    ),
    *(" back", " again", " for me"),
)
"""What may follow an operand without quotes."""
_WORDING = frozenset(re.findall(r"[a-z]+", " ".join((*REVERSE, *REPEAT, *UPPER)).lower()))
"""Words of the requests themselves."""
_COURTESIES = frozenset("please thanks thank quickly now ok okay kindly right if me can".split())
"""Last words of a phrase that could as well be politeness around it."""
_VERBS = frozenset("say repeat echo parrot shout reverse uppercase".split())
"""A phrase may follow these directly and without quotes, unless it starts with a word of `_TAKEN`."""
_TAKEN = frozenset(
    """only just exactly exact back after again the this that these following word words letter letters phrase sentence text
    order it something someone what story stories tale joke poem song music news weather time date capital capitals me my
    you your out all one simply by in to with for upper case uppercase caps goodbye thanks thank please now""".split()
)


def _word(draw: Draw, share: int = 10, function: float = 0.75) -> str:
    """
    Return a word of this side of the split: listed, made up, or a frequent one that is a token of its own.

    `function` is the share of `FUNCTION_WORDS` among the last.
    """
    while True:
        roll = draw.rng.random()
        if roll < 0.44:
            word = draw.rng.choice(WORDS)
        elif roll < 0.74:
            word = pseudo_word(draw.rng)
        elif roll < 0.90:
            return draw.rng.choice(FUNCTION_WORDS if draw.chance(function) else TEMPLATE_WORDS)
        elif roll < 0.96:
            word = draw.rng.choice(NAMES + CITIES)
        else:
            word = "".join(
                draw.rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(draw.rng.randint(2, 8))
            )
        if draw.mine("word", word, share=share):
            return word


_OPENERS = frozenset(
    "the a an my your our his her i we he she they you it is are one two three four five no not very".split()
)
"""Words that a phrase without quotes may begin with, if a word follows that no request has."""
_STRANGE = _WORDING | _TAKEN | _COURTESIES | frozenset(FUNCTION_WORDS)
"""What a phrase without quotes neither begins nor ends with where it could be taken for the request's."""
_CLOSERS = frozenset("you him us them up down one two three four five day days".split())
"""Words that a phrase without quotes may end with, although requests have them."""
_NATURAL = (
    "the N of the N", "the N is N", "the N is in the N", "a N and a N", "this is not a N", "my N is N and N",
    "we N to the N", "do not N the N", "N and N", "you are my N", "I am not N", "he has a N", "where is the N",
    "the N N N", "N the N", "the N and the N", "I N my N", "she N in the N", "the N N over the N", "a N of N",
    "it is a N N", "there is no N here", "N is not N", "my N has a N", "we are N", "the N on my N", "I have two N",
    "they N the N", "N me the N", "all N are N", "no N and no N", "to N or not to N", "the N with the N", "I am a N",
    "I will N you", "have a N N", "one N two N", "the N I N", "you N me", "N on the N", "our N is the N", "the old N",
    "let us N", "N at N", "it was a N", "he is the N of the N", "is it N", "what a N", "the N in the N is N", "N is the N",
    "the first N", "in the N", "N by N", "a N in the N", "the N was N", "we can N it", "I want a N", "keep the N N",
)  # fmt: skip
"""Shapes of phrases as people write them: short words, some of them twice, and words of any sort."""


_SALUTES = (
    "hello", "hello", "hi", "hey", "howdy", "hello world", "hello world", "hello there", "hi there", "hello N", "hi N", "hey N",
    "good morning", "good night", "good evening N", "welcome", "welcome N", "hello my friend", "happy birthday", "well done",
    "hello again", "hi everyone", "thank you N", "bye", "bye N", "goodbye", "goodbye N", "happy new year", "hello hello", "cheese",
    "thank you", "see you N", "how are you", "I am fine", "nice to meet you", "good luck", "good luck N", "have a nice day",
)  # fmt: skip
"""What is said to people, here as words like any others. N is a name."""


def _salute(draw: Draw, most: int) -> str:
    """Return a greeting or a wish of at most `most` words."""
    while True:
        text = draw.rng.choice(_SALUTES)
        name = draw.rng.choice(NAMES)
        if len(text.split()) <= most and ("N" not in text.split() or draw.mine("word", name)):
            return text.replace("N", name)


def _phrase(draw: Draw, most: int) -> list[str]:
    """Return the words of a phrase of two to `most` words, some of which stand there twice as in real ones."""
    shape: list[str] = []
    while not 2 <= len(shape) <= most:
        shape = draw.rng.choice(_NATURAL).split()
    return [_word(draw, function=0.1) if word == "N" else word for word in shape]


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
    words = [draw.rng.choice(_DRILLED) for _ in range(draw.rng.randint(2, most))]
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
    if not draw.held_out and draw.chance(0.3):
        return " ".join(_drill(draw, most))
    if draw.chance(0.06):
        text = _salute(draw, most)
        return text[:1].upper() + text[1:] if draw.chance(0.2) else text
    if draw.chance(0.2):
        longest = min(most, 4)
        natural = draw.chance(0.6)
        return " ".join(_phrase(draw, longest) if natural else _sentence(draw, draw.rng.randint(2, longest)))
    words = [_word(draw) for _ in range(draw.rng.choice((1, 1, 1, 1, 2, 2, 3)))]
    if draw.chance(0.08):
        words[0] = words[0].capitalize()
    if len(words) == 1 and draw.chance(0.04):
        words[0] += str(draw.rng.randint(0, 99))
    return " ".join(words)


def _clear(template: str, text: str) -> bool:
    """Tell whether `text` may stand in `template` without quotes: no word of one could be taken for one of the other."""
    head, tail = _OPERAND.split(template)
    words = text.lower().split()
    closed = any(char.isalpha() for char in tail)
    if closed and words[-1] in _STRANGE and not (len(words) > 1 and words[-1] in _CLOSERS):
        return False
    if len(words) > 1 and words[-1] in _COURTESIES:
        return False
    if not head or head.rstrip().endswith((":", "-", ">", "=", "?")):
        return True
    before = re.findall(r"\w+", head.lower())
    if before[-1:] == ["word"] and len(words) == 1:
        return True
    if len(words) > 1 and words[0] in _OPENERS and words[1] not in _STRANGE:
        return True
    return words[0] not in (_TAKEN if before[-1:] and before[-1] in _VERBS and not closed else _STRANGE)


def _asked(draw: Draw, lines: tuple[str, ...], text: str, quote: float) -> str:
    """Return a user message about `text`.

    `{q}` stands inside a sentence, `{p}` follows a colon, `{k}` is always in quotes. An operand without quotes at the
    end takes no "please" and no exclamation after it, since those could be meant as part of it.
    """
    quoted = draw.chance(quote)
    loud = draw.chance(0.03)
    while True:
        template = draw.ask(lines)
        if loud:
            template = _OPERAND.sub(lambda match: match.group(0).lower(), template.upper())
        if (_SEVERAL if " " not in text else _SINGULAR).search(template.lower()):
            continue
        tail = _OPERAND.split(template)[-1].lower()
        if quoted or "{k}" in template or tail in ("", ".", "?") or tail.startswith(_FOLLOWING):
            break
    if "{p}" in template:
        template = template.replace(": {p}", draw.rng.choices(*_BEFORE)[0] + "{p}")
    quoted = quoted or "{k}" in template or not _clear(template, text)
    operand = _quoted(draw, text, quoted)
    return fill(template, {"p": operand, "q": operand, "k": operand})


def reversal(draw: Draw) -> Turn:
    """Reverse the word order of a phrase of two to six words."""
    count = draw.rng.choice((2, 3, 3, 4, 4, 5, 6) if draw.held_out else (2, 3, 3, 4, 4, 5, 5, 6, 6))
    words = _sentence(draw, count) if draw.chance(0.2) else [_word(draw) for _ in range(count)]
    if draw.chance(0.25):
        words = _phrase(draw, 7)
    if not draw.held_out and draw.chance(0.15):
        words = _drill(draw, 6)
    if draw.chance(0.25):
        words[0] = words[0].capitalize()
    phrase = " ".join(words)
    answer = " ".join(reversed(words))
    return Turn("reversal", _asked(draw, REVERSE, phrase, 0.4), answer, {"text": answer})


def repetition(draw: Draw) -> Turn:
    """Repeat one to three short words exactly."""
    text = _one_or_two(draw, 6)
    return Turn("repetition", _asked(draw, REPEAT, text, 0.45), text, {"text": text})


def upper_casing(draw: Draw) -> Turn:
    """Write one to three short words in capitals."""
    text = _one_or_two(draw, 3)
    return Turn("upper_casing", _asked(draw, UPPER, text, 0.45), text.upper(), {"text": text.upper()})
