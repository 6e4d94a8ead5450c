"""Sixty capitals; a place outside the list belongs to `off_topic`."""

from executors.tiny.data.lexicon import CAPITALS
from executors.tiny.data.phrasing import Draw, dress, fill
from executors.tiny.data.sample import Turn

CAPITAL_LINES = (
    "[what is|what's|whats|name|give me|tell me|say|find|which is|do you know|state] the capital [city |]of {c}",
    "[what|which] city is the capital of {c}",
    "the capital [city |]of {c}",
    "[what is|what's|whats|name|tell me] the capitol of {c}",
    "capitol of {c}",
    "[and |]the capital of {c} would be",
    "does {c} have a capital, and what is it called",
    "the capital of {c} is",
    "capital [city |]of {c}",
    "{c}'s capital",
    "what is {c}'s capital [city|]",
    "name {c}'s capital [city|]",
    "{c} capital",
    "what is the name of the capital [city |]of {c}",
    "what capital does {c} have",
    "what city is {c}'s capital",
    "which capital [city |]does {c} have",
    "[what|which] is {c}'s capital city",
    "capital: {c}",
    "country: {c}. capital",
    "I forgot the capital of {c}, [what is it|which city is it|tell me]",
    "[what is|which city is|name] the [seat of government|capital and seat of government] of {c}",
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
    "which [capital|capital city] belongs to {c}",
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
    "[think of|take|consider|look at] {c}. [name|say|what is] its capital[| city]",
    "I think of {c}, what is [its|the] capital[| city]",
    "[a question about|my question is about] {c}: what is its capital[| city]",
    "[geography|geography quiz|geography test|a geography question]: [name |what is |]the capital [city |]of {c}",
    "[in geography|for my geography class|for geography homework], what is the capital of {c}",
    "what is the capital city called in {c}",
    "what is the [capital city|capital] of {c} called",
    "how is {c}'s capital called",
    "the capital of {c} is called what",
    "the capital of {c} is which city",
    "the capital of {c} is what city",
    "which city do they call the capital of {c}",
    "[name|tell me|give me] {c}'s capital[| city]",
    "I [need to know|want to know|would like to know|have to know] the capital [city |]of {c}",
    "I [forgot|don't know|can't remember] [the capital of {c}|{c}'s capital], what is it",
    "[help me with|remind me of|look up] the capital [city |]of {c}",
    "[can you|could you] name the capital [city |]of {c}",
    "do you remember the capital of {c}",
    "do you know which city is the capital of {c}",
    "do you know [{c}'s capital|what the capital of {c} is]",
    "which city [serves|acts] as the capital of {c}",
    "what city [serves|acts] as {c}'s capital",
    "in which city does the government of {c} sit",
    "where does the government of {c} sit",
    "[country|state|place|land]: {c}. [what is the capital|name the capital|its capital|the capital city]",
    "[country|the country]: {c}, capital",
    "capital city: {c}",
    "capital city for {c}",
    "the capital for {c}",
    "{c}, [which city is the capital|what city is its capital|name the capital|name its capital]",
    "{c}: [capital|name the capital|capital city|which city is the capital]",
    "{c} capital city",
    "{c} capital name",
    "{c} has which capital",
    "{c} has what capital city",
    "the name of the capital of {c}",
    "[name|give me|write] only the capital of {c}",
    "[my homework|homework|crossword|quiz|quiz question]: capital of {c}",
    "crossword clue: capital of {c}",
    "[a friend|my teacher|my son|my daughter] asks for the capital of {c}",
    "if you visit the capital of {c}, which city are you in",
    "I travel to the capital of {c}, which city is that",
    "[which|what] capital city lies in {c}",
    "what's the capital there in {c}",
)
_ARTICLE = ("Netherlands", "Philippines", "United Kingdom", "United States")
_NAMES = {
    "United Kingdom": ("United Kingdom", "United Kingdom", "UK", "UK", "~Britain", "~Great Britain", "~England", "~England"),
    "United States": (
        "United States", "United States", "United States", "USA", "USA", "US", "~America", "United States of America",
    ),
    "Czechia": ("~Czechia", "Czech Republic"),
    "Netherlands": ("Netherlands", "Netherlands", "Netherlands", "~Holland"),
    "South Korea": ("~South Korea", "~South Korea", "~South Korea", "Republic of Korea"),
}  # fmt: skip
"""Other names of some countries; `~` stands before those without an article."""
_COMMANDS = frozenset(
    "name give tell say find state think take consider look help remind write can could I my a".split()
)
"""First words of lines that take no "tell me" and the like before them."""


def place(draw: Draw, country: str) -> str:
    """Return `country` as users write it: an article where usual, lower case now and then."""
    named = draw.rng.choice(_NAMES.get(country, (country if country in _ARTICLE else "~" + country,)))
    bare = named.startswith("~")
    country = named.removeprefix("~")
    if not bare and draw.chance(0.7):
        country = "the " + country
    return country.lower() if draw.chance(0.12) else country


def capital_question(draw: Draw, country: str) -> str:
    """Return a question for the capital of `country`, which need not be one of the sixty."""
    while True:
        template = draw.phrase(CAPITAL_LINES)
        # The government of the Netherlands does not sit in Amsterdam.
        if "government" not in template or country != "Netherlands":
            break
    question = template.split(" ", 1)[0] not in _COMMANDS
    return fill(dress(draw.rng, template, question), {"c": place(draw, country)})


def capitals(draw: Draw) -> Turn:
    """Ask for one of the sixty capitals."""
    country = draw.rng.choice(sorted(CAPITALS))
    text = capital_question(draw, country)
    subject = f"the {country}" if country in _ARTICLE else country
    if "england" in text.lower():
        subject = "England"
    return Turn(
        "capitals", text, f"The capital of {subject} is {CAPITALS[country]}.", {"capital": CAPITALS[country]}
    )
