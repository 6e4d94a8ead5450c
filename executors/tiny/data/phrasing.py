"""Phrasing grammar: one line of template stands for many wordings, split between training and held-out.

A template line is text with choices in square brackets, `[what is|what's] {a} [+|plus] {b}`, which nest, and with
slots in braces that the skill fills. Noise (politeness, case, punctuation, typos) is applied to the template before its
slots are filled, so operands are never altered.
"""

import random
import re
import zlib
from collections.abc import Mapping, Sequence
from functools import cache

_CHOICE = re.compile(r"\[([^\[\]]*)\]")
_SLOT = re.compile(r"\{(\w+)\}")
_SPACES = re.compile(r" {2,}")
_WORD = re.compile(r"[a-z]{4,}")

_PREFIXES = (
    "please ",
    "please, ",
    "hey, ",
    "hi, ",
    "ok, ",
    "okay, ",
    "now ",
    "now, ",
    "hello, ",
    "so, ",
    "next: ",
    "and now ",
    "quick question: ",
    "I need help: ",
    "one more: ",
    "then ",
    "well, ",
    "great. ",
    "thanks. ",
    "cool, ",
    "alright, ",
)
_ASKS = (
    "can you ",
    "could you ",
    "can you please ",
    "could you please ",
    "would you ",
    "will you ",
    "I want you to ",
    "I'd like you to ",
    "I need you to ",
    "please ",
    "kindly ",
    "your task is to ",
    "try to ",
    "help me: ",
    "let's ",
    "could you kindly ",
    "go ahead and ",
    "I would like you to ",
    "you should ",
    "would you please ",
    "would you mind: ",
)
_TELLS = (
    "tell me, ",
    "can you tell me ",
    "could you tell me ",
    "please tell me ",
    "do you know ",
    "I want to know ",
    "I wonder ",
    "tell me ",
    "I'd like to know ",
    "any idea ",
    "just tell me ",
    "answer this: ",
    "question: ",
    "let me know ",
    "quickly, ",
    "do you happen to know ",
    "can you say ",
    "please answer: ",
    "could you please tell me ",
)
_SUFFIXES = (
    " please",
    ", please",
    " for me",
    " thanks",
    ", thanks",
    ", thank you",
    " for me please",
    ", ok",
    " now",
    " if you can",
    " right now",
    " quickly",
)


_IMPERATIVES = frozenset(
    """add analyse analyze answer arrange begin build calculate capitalise capitalize change combine complete compute
    convert copy count create do duplicate echo enumerate evaluate extract figure fill find flip format generate get give
    go increase invert just list look make mimic mirror name only output parrot parse pick place print produce pull put
    read rearrange recite repeat reply represent respond return reverse rewrite say scan send set shout show solve sort
    spell start state sum swap switch take tally tell think total transform turn type use work write yell""".split()
)
"""First words that "can you" and "your task is to" may stand before."""


def digest(*parts: object) -> int:
    """Return a hash of `parts` that is the same in every process and on every platform."""
    return zlib.crc32("\x1f".join(map(str, parts)).encode("utf-8"))


class Draw:
    """A seeded source of samples for one side of the split.

    `held_out` draws only what training never sees: whole template lines kept back, unseen combinations of the
    remaining lines, and operands whose digest is kept back.
    """

    def __init__(self, seed: int, held_out: bool = False) -> None:
        self.rng = random.Random(seed)
        self.held_out = held_out

    def chance(self, probability: float) -> bool:
        """Return True with `probability`."""
        return self.rng.random() < probability

    def mine(self, *operands: object, share: int = 10) -> bool:
        """Tell whether `operands` belong to this side; one in `share` is held out."""
        return (digest("operand", *operands) % share == 0) == self.held_out

    def phrase(self, lines: Sequence[str]) -> str:
        """Return one expanded wording of `lines` with its slots still open."""
        kept_back, common = _sides(tuple(lines))
        if self.held_out and kept_back and self.chance(0.5):
            return expand(self.rng, self.rng.choice(kept_back))
        text = ""
        for _ in range(50):
            text = expand(self.rng, self.rng.choice(common))
            if (digest("text", text) % 8 == 0) == self.held_out:
                return text
        return expand(self.rng, self.rng.choice(kept_back)) if self.held_out and kept_back else text

    def ask(self, lines: Sequence[str], question: bool = False) -> str:
        """Return a wording of `lines` dressed as users write: politeness, case, punctuation, a rare typo."""
        return dress(self.rng, self.phrase(lines), question)


@cache
def _sides(lines: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """Return those of `lines` that are held out, and the others."""
    kept_back = [line for line in lines if digest("line", line) % 8 == 0]
    return kept_back, [line for line in lines if digest("line", line) % 8 != 0]


def expand(rng: random.Random, line: str) -> str:
    """Replace each innermost `[a|b]` by one of its choices until none is left."""
    while (match := _CHOICE.search(line)) is not None:
        line = line[: match.start()] + rng.choice(match.group(1).split("|")) + line[match.end() :]
    return _SPACES.sub(" ", line).strip(" ")


def fill(template: str, slots: Mapping[str, object]) -> str:
    """Put `slots` into `template`; a brace pair that names no slot stays as it is."""
    return _SLOT.sub(lambda match: str(slots.get(match.group(1), match.group(0))), template)


def dress(rng: random.Random, text: str, question: bool = False) -> str:
    """Vary a wording as users do. `question` says that `text` is a question, which takes "tell me" and not "can you"."""
    roll = rng.random()
    asked = question
    if roll < 0.14:
        text = rng.choice(_PREFIXES) + text
    elif roll < 0.32 and (question or text.split(" ", 1)[0].rstrip(":,").lower() in _IMPERATIVES):
        text = rng.choice(_TELLS if question else _ASKS) + text
        asked = True
    if rng.random() < 0.14:
        text += rng.choice(_SUFFIXES)
    if rng.random() < 0.05:
        text = _typo(rng, text)
    roll = rng.random()
    if roll < 0.62:
        text = text[:1].upper() + text[1:]
    elif roll < 0.63:
        text = _SLOT.sub(lambda match: match.group(0).lower(), text.upper())
    return text + _ending(rng, text, asked)


def _ending(rng: random.Random, text: str, asked: bool) -> str:
    """Return closing punctuation, often none; nothing may follow an operand that could be taken for a part of it."""
    if text[-1:] in ".!?:\"'`":
        return ""
    roll = rng.random()
    if roll < 0.35:
        return ""
    if asked:
        return "?" if roll < 0.93 else rng.choice((".", "??", " ?", "!"))
    return "." if roll < 0.85 else rng.choice(("!", "...", "?", " :)", "!!"))


def _typo(rng: random.Random, text: str) -> str:
    """Swap, drop or double one letter of one template word of at least four letters."""
    words = [match for match in _WORD.finditer(text) if text[match.start() - 1 : match.start()] != "{"]
    if not words:
        return text
    match = rng.choice(words)
    word = match.group(0)
    at = rng.randrange(1, len(word) - 1)
    changed = rng.choice(
        (
            word[:at] + word[at + 1] + word[at] + word[at + 2 :],
            word[:at] + word[at + 1 :],
            word[:at] + word[at] + word[at:],
        )
    )
    return text[: match.start()] + changed + text[match.end() :]
