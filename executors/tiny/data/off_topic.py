"""Everything the model cannot do, answered honestly: many topics in many question forms, near misses of each skill."""

from difflib import SequenceMatcher

from executors.tiny.data.chat import HONEST
from executors.tiny.data.facts import capital_question
from executors.tiny.data.lexicon import (
    CAPITALS,
    CITIES,
    NAMES,
    UNKNOWN_PLACES,
    WORDS,
    pseudo_word,
)
from executors.tiny.data.off_topic_letters import COUNTS, LETTERS, ONE_WORD, THREE_NUMBERS
from executors.tiny.data.off_topic_lines import ABOUT, ARITHMETIC, FOREIGN, OTHER
from executors.tiny.data.phrasing import Draw, dress, fill
from executors.tiny.data.sample import Turn
from executors.tiny.data.word_problems import THINGS

_TOPICS = tuple(
    topic.strip()
    for topic in """quantum physics|black holes|relativity|gravity|photosynthesis|evolution|the human heart|the immune system|DNA|
    vaccines|climate change|global warming|solar energy|nuclear power|volcanoes|earthquakes|the water cycle|dinosaurs|
    the solar system|Saturn|space travel|the Moon landing|NASA|electric cars|blockchain|bitcoin|crypto|the stock market|
    inflation|interest rates|taxes|mortgages|insurance|the economy|marketing|startups|a business plan|my resume|a cover letter|
    job interviews|project management|leadership|democracy|communism|the constitution|the president|elections|parliament|
    the European Union|Brexit|the Cold War|World War II|the French Revolution|the Roman Empire|ancient Egypt|Napoleon|
    Julius Caesar|Cleopatra|Genghis Khan|the Middle Ages|the Renaissance|Leonardo da Vinci|Shakespeare|Hamlet|Harry Potter|
    Star Wars|The Lord of the Rings|Game of Thrones|Marvel movies|Netflix|Hollywood|Taylor Swift|the Beatles|Mozart|
    Beethoven|jazz|hip hop|opera|ballet|painting|Picasso|Van Gogh|photography|architecture|philosophy|Plato|Aristotle|
    Kant|Buddhism|Islam|Christianity|the Bible|meditation|yoga|psychology|depression|anxiety|insomnia|headaches|diabetes|
    cancer|the flu|high blood pressure|antibiotics|aspirin|a balanced diet|vitamins|protein|weight loss|running a marathon|
    football|basketball|tennis|the Olympics|the World Cup|Formula 1|chess openings|poker|video games|Minecraft|Python|
    JavaScript|Rust|Java|C++|HTML|CSS|SQL|React|Docker|Kubernetes|Linux|Git|recursion|binary search|quicksort|hash tables|
    linked lists|machine learning|neural networks|transformers|large language models|robotics|quantum computers|
    the internet|cybersecurity|passwords|encryption|cloud computing|databases|APIs|regular expressions|calculus|algebra|
    geometry|trigonometry|statistics|probability|prime numbers|fractions|matrices|differential equations|Pythagoras|pi|
    chemistry|the periodic table|oxygen|gold mining|plastic|acids|chocolate cake|lasagna|sushi|pancakes|sourdough bread|
    curry|coffee brewing|wine tasting|beer|gardening|tomato plants|roses|bees|whales|sharks|penguins|my dog|cat food|
    horse riding|travel to Japan|hotels in Rome|cheap flights|visas|camping|hiking|fishing|sailing|motorcycles|car repair|
    plumbing|home insurance|interior design|fashion|makeup|hair care|weddings|parenting|babies|school|college|homework|
    learning Spanish|French grammar|English verbs|Latin|emoji|poetry|haiku|jokes|riddles|horoscopes|astrology|dreams|
    the meaning of life|love|friendship|happiness|death|time travel|aliens|ghosts|conspiracy theories|the news|sports results|
    traffic|the weather|air pollution|recycling|ocean currents|rainforests|Antarctica|the Sahara|Mount Everest|the Amazon|
    skyscrapers|bridges|trains|airplanes|submarines|satellites|GPS|5G|smartphones|laptops|printers|batteries|semiconductors|
    3D printing|virtual reality|drones|knitting|woodworking|origami|magic tricks|guitar chords|piano lessons|podcasts|
    social media|privacy law|copyright|human rights|immigration|poverty|education policy|healthcare|gun control|feminism""".replace(
        "\n", ""
    ).split("|")
)
_LANGUAGES = (
    "French",
    "Spanish",
    "German",
    "Italian",
    "Chinese",
    "Japanese",
    "Russian",
    "Latin",
    "Arabic",
    "Korean",
    "Dutch",
    "Polish",
    "Hindi",
    "Greek",
    "Turkish",
    "Swedish",
    "Portuguese",
    "Klingon",
    "Hebrew",
    "Finnish",
)
_QUESTION_STARTS = (
    "what",
    "who",
    "when",
    "where",
    "why",
    "how",
    "is",
    "are",
    "which",
    "should",
    "can",
    "do",
    "will",
    "was",
    "if",
)


def _slots(draw: Draw) -> dict[str, object]:
    """Return values for every slot that an off-topic line may name."""
    rng = draw.rng
    topic = rng.choice(_TOPICS)
    while not draw.mine("topic", topic, share=8):
        topic = rng.choice(_TOPICS)
    gibberish = "".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(rng.randint(3, 10)))
    low = rng.randint(0, 30)
    few = [rng.randint(1, rng.choice((9, 20, 99))) for _ in range(3)]
    words = [rng.choice(WORDS) if rng.random() < 0.85 else pseudo_word(rng) for _ in range(3)]
    return {
        "t": topic, "t2": rng.choice(_TOPICS), "lang": rng.choice(_LANGUAGES), "city": rng.choice(CITIES),
        "c": rng.choice(tuple(CAPITALS) + UNKNOWN_PLACES), "n": rng.choice(NAMES), "y": rng.randint(1900, 2030),
        "x": rng.randint(0, 999), "z": rng.randint(2, 99), "z2": rng.randint(2, 99),
        "big": rng.randint(100, 9999), "big2": rng.randint(10, 9999),
        "w": words[0], "w2": words[1], "w3": words[2],
        "g": gibberish, "n2": rng.choice(NAMES), "thing": rng.choice(THINGS), "known": rng.choice(sorted(CAPITALS)),
        "lo": low, "hi": rng.randint(low + 40, 99), "far": rng.randint(101, 400), "half": f"{rng.randint(0, 99)}.{rng.randint(1, 9)}",
        "s": few[0], "s2": few[1], "s3": few[2],
        "half2": f"{rng.randint(0, 99)}.{rng.randint(1, 9)}",
    }  # fmt: skip


_ALIKE = (
    "North Korea", "Niger", "Algeria", "Guyana", "Guinea", "Angola", "Mongolia", "Mali", "Malta", "Malaysia", "Zambia",
    "Gambia", "Albania", "Armenia", "Andorra", "Bolivia", "Bosnia", "Bahrain", "Belize", "Bhutan", "Cambodia", "Cameroon",
    "Chad", "Congo", "Costa Rica", "Cyprus", "Dominica", "Ecuador", "Eritrea", "Fiji", "Gabon", "Georgia", "Grenada",
    "Guatemala", "Honduras", "Israel", "Jamaica", "Jordan", "Kuwait", "Laos", "Lebanon", "Liberia", "Libya", "Luxembourg",
    "Macedonia", "Madagascar", "Malawi", "Mauritania", "Mauritius", "Moldova", "Monaco", "Montenegro", "Mozambique",
    "New Zealand", "Nicaragua", "Oman", "Pakistan", "Panama", "Paraguay", "Qatar", "Rwanda", "Saudi Arabia", "Scotland",
    "Sierra Leone", "Singapore", "Somalia", "South Africa", "Sri Lanka", "Sudan", "Syria", "Taiwan", "Tanzania", "Togo",
    "Uganda", "Uruguay", "Uzbekistan", "Venezuela", "Wales", "Yemen", "Zimbabwe", "Kazakhstan", "Bangladesh", "Belarus",
    "Botswana", "Namibia", "Azerbaijan", "Afghanistan", "Haiti", "Myanmar", "El Salvador", "Burundi", "Benin", "Suriname",
)  # fmt: skip
"""Real countries outside the sixty, many of whose names look like one of them."""


_LISTED = tuple(country for country in sorted(CAPITALS) if " " not in country)


def _unknown_place(draw: Draw) -> str:
    """Return a place whose capital is not taught: a real one, a city, one made up, or a listed country with a word before it.

    Real ones alone could be learned by heart; that all others are unlisted takes many that come once, and that a listed one is
    read to its end takes names that begin like it.
    """
    roll = draw.rng.random()
    if roll < 0.5:
        return draw.rng.choice(_ALIKE if roll < 0.25 else UNKNOWN_PLACES)
    if roll < 0.67 and not draw.held_out:
        return _blend(draw)
    if roll < 0.74:
        return draw.rng.choice(CITIES)
    if roll < 0.9:
        return pseudo_word(draw.rng).capitalize()
    return f"{draw.rng.choice(('North', 'West', 'East', 'New', 'Old', 'Upper'))} {draw.rng.choice(_LISTED)}"


def _blend(draw: Draw) -> str:
    """Return a name that begins like one listed country and ends like another, and is no misspelling of any."""
    while True:
        begins, ends = draw.rng.sample(_LISTED, 2)
        name = begins[: draw.rng.randint(1, len(begins) - 1)] + ends[draw.rng.randint(1, len(ends) - 2) :]
        if all(SequenceMatcher(None, name, known).ratio() < 0.75 for known in (begins, ends)):
            return name


def _unlisted_capital(draw: Draw) -> str:
    """Ask for a capital that is not taught, in the same wordings and dress as for those that are."""
    place = ""
    while not place or not draw.mine("place", place) or place in CAPITALS:
        place = _unknown_place(draw)
    return capital_question(draw, place)


def off_topic(draw: Draw) -> Turn:
    """Ask for something outside the skills; the answer says what the model is and what to run instead."""
    if draw.chance(0.19):
        return Turn("off_topic", _unlisted_capital(draw), HONEST, {"text": HONEST})
    slots = _slots(draw)
    kinds = (ABOUT, OTHER, ARITHMETIC, LETTERS, COUNTS, FOREIGN, ONE_WORD, THREE_NUMBERS)
    lines: tuple[str, ...] = draw.rng.choices(kinds, (18, 31, 24, 9, 5, 5, 3, 5))[0]
    if lines is ARITHMETIC and draw.chance(0.8):
        slots["x"] = draw.rng.randint(1, 99)
    template = draw.phrase(lines)
    question = template.startswith(_QUESTION_STARTS)
    if not template.startswith(("{", "[")) and len(template) > 12:
        # The dressing is drawn by the same rules as for the skills, so politeness says nothing about the topic.
        template = dress(draw.rng, template, question)
    return Turn("off_topic", fill(template, slots), HONEST, {"text": HONEST})
