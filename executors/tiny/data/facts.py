"""Sixty capitals; a place outside the list belongs to `off_topic`."""

from executors.tiny.data.lexicon import CAPITALS
from executors.tiny.data.phrasing import Draw, fill
from executors.tiny.data.sample import Turn

CAPITAL_LINES = (
    "[what is|what's|whats|name|give me|tell me|say|find|which is|do you know|state] the capital [city |]of {c}",
    "[what|which] city is the capital of {c}",
    "the capital [city |]of {c}",
    "the capital of {c} is",
    "capital [city |]of {c}",
    "{c}'s capital",
    "what is {c}'s capital [city|]",
    "name {c}'s capital [city|]",
    "{c} capital",
    "what is the name of the capital [city |]of {c}",
    "what capital does {c} have",
    "what city is {c}'s capital",
    "which capital [belongs to|does] {c} [have|]",
    "[what|which] is {c}'s capital city",
    "capital: {c}",
    "country: {c}. capital",
    "I forgot the capital of {c}",
    "[what is|tell me] the [seat of government|main city] [of|in] {c}",
    "where is the government of {c}",
    "[what|which] city is the seat of government of {c}",
    "what do they call the capital of {c}",
    "do you know the capital of {c}",
    "I need the capital of {c}",
    "for {c}, what is the capital",
    "in {c}, what is the capital [city|]",
    "what is the capital of the country {c}",
    "{c}: what is [the|its] capital [city|]",
    "{c}. [what is|what's|name|tell me] [the|its] capital[| city]",
    "{c} - [the|its|] capital[| city]",
    "{c}, [capital|capital city|what is the capital|and its capital|the capital is]",
    "the country is {c}, [what is|name|tell me] [its|the] capital[| city]",
    "[I am going to|I live in|I visit|my friend is from] {c}, what is [its|the] capital[| city]",
    "[name|say|give me|write] the city that is the capital of {c}",
    "[quiz|geography question|trivia]: [what is |]the capital [city |]of {c}",
    "the [capital|capital city] of {c}, [what is it|do you know it|tell me]",
    "{c}; [what is|name|tell me] its capital[| city]",
    "[about|for|regarding|consider|take|in] {c}[:|,] [what is|name|tell me|say] its capital[| city]",
    "{c} is a country. what is its capital[| city]",
    "[I like|I know|think of] {c}. [what is|tell me] its capital[| city]",
    "geography: the capital of {c}",
    "how is the capital of {c} called",
    "what's the capital called in {c}",
)
_ARTICLE = ("Netherlands", "Philippines")


def place(draw: Draw, country: str) -> str:
    """Return `country` as users write it: an article where usual, lower case now and then."""
    if country in _ARTICLE and draw.chance(0.7):
        country = "the " + country
    return country.lower() if draw.chance(0.12) else country


def capitals(draw: Draw) -> Turn:
    """Ask for one of the sixty capitals."""
    country = draw.rng.choice(sorted(CAPITALS))
    text = fill(draw.ask(CAPITAL_LINES, question=True), {"c": place(draw, country)})
    subject = f"the {country}" if country in _ARTICLE else country
    return Turn(
        "capitals", text, f"The capital of {subject} is {CAPITALS[country]}.", {"capital": CAPITALS[country]}
    )
