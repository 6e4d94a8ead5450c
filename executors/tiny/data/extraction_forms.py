"""Values to extract that are made, not listed: names, places, numbers in groups, dates, times and codes."""

import random
from collections.abc import Callable

from executors.tiny.data.lexicon import CITIES, NAMES, SURNAMES, TEMPLATE_WORDS, WORDS, pseudo_word

_MORE_NAMES = tuple(
    """Adam Agnes Amy Andrea Anita Ben Beth Brian Camila Cecilia Chris Clara Claire Dana Derek Dora Edgar Edith Eli Ella Eric
    Fiona Flora Gabriel Gloria Greta Harry Hassan Heidi Ian Irene Isaac Isabel Jacob Jake Janet Jasmine Jason Joan Joe Jorge
    Joseph Josh Julian Karen Katie Kim Leila Leon Lena Logan Louise Luis Luke Magda Marco Marie Martin Matteo Mateo Maya
    Megan Mina Miguel Nathan Nancy Natalie Nicole Noor Owen Pamela Patrick Pedro Petra Philip Rachel Ravi Rebecca Ruth Ryan
    Sally Sandra Sean Silvia Stella Stephen Susan Tanya Theo Thomas Tim Tobias Valerie Vanessa Vincent Wei Yasmin Zainab""".split()
)
_MORE_SURNAMES = tuple(
    """Anderson Becker Bauer Bennett Bianchi Cohen Cook Cooper Cruz Diaz Dubois Evans Fernandez Fisher Foster Gomez Gray Gupta
    Harris Hoffman Hughes Ivanov Jackson Jensen Johnson Keller Klein Koch Kumar Laurent Lehmann Martin Martinez Morales Morgan
    Moreau Morris Nguyen Olsen Ortiz Park Parker Patel Perez Petrov Price Ramirez Reed Richter Ross Russo Sanchez Santos
    Schneider Schulz Stewart Suzuki Tanaka Thompson Torres Tran Turner Vogel Wagner Walker Ward Watson White Wood Yilmaz""".split()
)
_MORE_CITIES = tuple(
    " ".join(city.split())
    for city in """New York, San Diego, Cape Town, Hong Kong, Los Angeles, San Jose, Mexico City, New Delhi, Tel Aviv, Kuala Lumpur, Las Vegas,
    San Francisco, Rio de Janeiro, Buenos Aires, Helsinki, Stockholm, Copenhagen, Brussels, Amsterdam, Budapest, Moscow, Basel,
    Graz, Salzburg, Leipzig, Dresden, Bremen, Hanover, Stuttgart, Frankfurt, Florence, Venice, Palermo, Bologna, Granada,
    Valencia, Bilbao, Toulouse, Lille, Nantes, Strasbourg, Krakow, Gdansk, Brno, Ljubljana, Tallinn, Reykjavik, Edinburgh,
    Liverpool, Manchester, York, Nottingham, Ottawa, Vancouver, Calgary, Orlando, Tampa, Cleveland, Nashville, Perth, Brisbane,
    Adelaide, Auckland, Wellington, Singapore, Bangkok, Pune, Chennai, Marrakesh, Casablanca, Kampala, Durban, Sao Paulo""".split(
        ","
    )
)
_PET_NAMES = tuple(
    """Rex Luna Max Bella Milo Charlie Coco Rocky Daisy Buddy Simba Nala Lucky Shadow Ginger Snowy Tiger Oreo Pepper Biscuit Teddy
    Ruby Molly Toby Oscar Felix Bruno Spot Fluffy Whiskers Cookie Honey Ziggy Pip Loki Rosie Sammy Mittens Smokey Bonnie""".split()
)
_TITLE_WORDS = tuple(
    """River Moon Garden House Shadow Night Storm Island Secret Winter Summer Dream Forest Mountain Star Fire Bridge Letter Road
    Ocean Sky Train Key Door Window Light Song Rain Snow Dance Heart Stone King Queen Wolf Rose Lake Silence Return Journey""".split()
)
_TITLE_FIRST = tuple(
    "Dark Blue Silent Golden Last First Lost Secret Red Broken Long Little Wild Old Hidden Lonely White Cold Empty Strange".split()
)
_STREETS = tuple(
    " ".join(street.split())
    for street in """Oak Street, Main Street, Park Avenue, Hill Road, Lake Drive, Church Lane, High Street, Elm Street, River Road, Mill Lane,
    King Street, Station Road, Garden Avenue, Maple Drive, Bridge Street, Sunset Boulevard, Green Lane, Market Square""".split(
        ","
    )
)


def word(rng: random.Random) -> str:
    """Return any word, known or made up."""
    return rng.choice(WORDS) if rng.random() < 0.65 else pseudo_word(rng)


def _first(rng: random.Random) -> str:
    """Return a first name, a made-up one now and then."""
    roll = rng.random()
    return rng.choice(NAMES if roll < 0.5 else _MORE_NAMES) if roll < 0.86 else pseudo_word(rng).capitalize()


def _last(rng: random.Random) -> str:
    """Return a family name, a made-up one now and then."""
    roll = rng.random()
    return (
        rng.choice(SURNAMES if roll < 0.45 else _MORE_SURNAMES)
        if roll < 0.86
        else pseudo_word(rng).capitalize()
    )


def _person(rng: random.Random) -> str:
    """Return a name of one or two words."""
    return f"{_first(rng)} {_last(rng)}" if rng.random() < 0.3 else _first(rng)


def _city(rng: random.Random) -> str:
    """Return a city, seldom one that does not exist."""
    roll = rng.random()
    if roll < 0.88:
        return rng.choice(CITIES if roll < 0.48 else _MORE_CITIES)
    name = pseudo_word(rng).capitalize()
    return name if roll < 0.97 else f"{rng.choice(('New', 'Port', 'Saint', 'Bad'))} {name}"


def _title(rng: random.Random) -> str:
    """Return a title of one to four words, each with a capital letter."""
    noun, other = rng.sample(_TITLE_WORDS, 2)
    shape = rng.randrange(8)
    if shape < 2:
        return f"The {rng.choice(_TITLE_FIRST)} {noun}"
    if shape < 4:
        return f"{rng.choice(_TITLE_FIRST)} {noun}"
    if shape < 6:
        return f"The {noun}" if rng.random() < 0.5 else f"{noun} of {other}"
    return noun if rng.random() < 0.5 else word(rng).capitalize()


def _email(rng: random.Random) -> str:
    """Return an address such as "anna.berg@mail.com"."""
    user = rng.choice((_first, _first, _last, word))(rng).lower()
    if rng.random() < 0.4:
        user += rng.choice((".", "_", "")) + rng.choice((_last(rng).lower(), str(rng.randint(1, 99))))
    host = rng.choice(("mail", "example", "gmail", "post", "web", "outlook", word(rng)))
    return f"{user}@{host}.{rng.choice(('com', 'com', 'org', 'net', 'de', 'io', 'co.uk'))}"


def _digits(rng: random.Random, fewest: int, most: int) -> int:
    """Return a number of `fewest` to `most` digits, each length as likely."""
    count = rng.randint(fewest, most)
    return rng.randint(10 ** (count - 1), 10**count - 1)


def _phone(rng: random.Random) -> str | int:
    """Return a number as digits alone, an integer, or in groups, which is text."""
    if rng.random() < 0.5:
        return _digits(rng, 5, 9)
    head, middle, tail = rng.randint(100, 999), rng.randint(100, 999), rng.randint(1000, 9999)
    return rng.choice(
        (
            f"{head}-{tail}",
            f"{head} {tail}",
            f"{head}-0{tail % 1000:03d}",
            f"+{head % 90 + 10} {tail}",
            f"+{head % 90 + 10} {middle} {tail}",
            f"{head}-{middle}-{tail}",
            f"{head} {middle} {tail}",
            f"0{head} {tail}{middle}",
        )
    )


def _date(rng: random.Random) -> str:
    """Return a date in one of the usual forms."""
    month, day, year = rng.randint(1, 12), rng.randint(1, 28), rng.randint(1950, 2030)
    name = _MONTHS[month - 1]
    forms = (
        f"{name} {day}",
        f"{name} {day}",
        f"{day} {name}",
        f"{year}-{month:02d}-{day:02d}",
        f"{day}.{month}.{year}",
    )
    return rng.choice((*forms, f"{name} {day}, {year}", f"{month}/{day}/{year}", f"{day} {name} {year}"))


def _time(rng: random.Random) -> str:
    """Return a time of the day that is more than a number."""
    hour, minute = rng.randint(1, 12), rng.choice((0, 15, 30, 45, rng.randint(1, 59)))
    half = rng.choice(("am", "pm"))
    forms = (
        f"{hour}{half}",
        f"{hour}{half}",
        f"{hour} {half}",
        f"{hour}:{minute:02d}",
        f"{hour + 11}:{minute:02d}",
    )
    return rng.choice(
        (*forms, f"{hour}:{minute:02d} {half}", f"{hour}:{minute:02d}", "noon", "midnight", f"{hour} o'clock")
    )


def _letters(rng: random.Random, count: int) -> str:
    """Return `count` capital letters."""
    return "".join(rng.choice("ABCDEFGHJKLMNPQRSTUVWXYZ") for _ in range(count))


def _code(rng: random.Random) -> str | int:
    """Return a code of letters and digits, or of digits alone, which is an integer."""
    if rng.random() < 0.4:
        return _digits(rng, 2, 6)
    letters, digits = _letters(rng, rng.choice((1, 1, 2, 3))), rng.randint(1, 9999)
    return rng.choice(
        (
            f"{letters}{digits}",
            f"{letters}-{digits}",
            f"{digits}{letters[0]}",
            f"{digits}-{letters}",
            f"{digits}-{rng.randint(1, 99)}",
        )
    )


def _marked(rng: random.Random, mark: str, fewest: int, most: int) -> str | int:
    """Return a number: digits alone mostly, else with a `mark`, a letter or another group of digits."""
    digits = _digits(rng, fewest, most)
    if rng.random() < 0.55:
        return digits
    return rng.choice(
        (f"{mark}-{digits}", f"{mark[0]}{digits}", f"{digits}-{rng.randint(1, 99)}", _code(rng))
    )


def _password(rng: random.Random) -> str | int:
    """Return a password: a word, a word and digits, letters and digits, or digits alone, which are an integer."""
    roll = rng.random()
    if roll < 0.25:
        return _digits(rng, 4, 6)
    text = word(rng)
    return _code(rng) if roll < 0.4 else f"{text}{rng.randint(1, 99)}" if roll < 0.75 else text


def _room(rng: random.Random) -> str | int:
    """Return a room: a number mostly, else with a letter."""
    number = rng.randint(1, 400)
    return (
        number
        if rng.random() < 0.7
        else rng.choice((f"{number}{_letters(rng, 1)}", f"{_letters(rng, 1)}{number}"))
    )


def _hotel(rng: random.Random) -> str:
    """Return a hotel such as "Hotel Roma" or "Lake Inn"."""
    if rng.random() < 0.5:
        return (
            f"{rng.choice(('Hotel', 'Hotel', 'Hostel', 'Villa'))} {rng.choice((_city, _last, _first))(rng)}"
        )
    return f"{rng.choice((*_TITLE_WORDS, 'Grand', 'Royal', 'Park'))} {rng.choice(('Hotel', 'Hotel', 'Inn', 'Resort'))}"


def _venue(rng: random.Random) -> str:
    """Return a place to go out to, such as "City Hall" or "Blue Club"."""
    first = rng.choice((*_TITLE_FIRST, *_TITLE_WORDS, "City", "Town", "Central", "Royal", "Grand"))
    return f"{first} {rng.choice(('Hall', 'Arena', 'Club', 'Theater', 'Park', 'Stadium', 'Cafe', 'Museum'))}"


_MONTHS = tuple(
    "January February March April May June July August September October November December".split()
)

FORMS: dict[str, Callable[[random.Random], str | int]] = {
    "person": _person,
    "first": _first,
    "last": _last,
    "city": _city,
    "title": _title,
    "email": _email,
    "phone": _phone,
    "date": _date,
    "time": _time,
    "code": _code,
    "password": _password,
    "room": _room,
    "petname": lambda rng: rng.choice(_PET_NAMES) if rng.random() < 0.85 else pseudo_word(rng).capitalize(),
    "address": lambda rng: f"{rng.randint(1, 250)} {rng.choice(_STREETS)}",
    "flight": lambda rng: f"{_letters(rng, 2)}{rng.randint(10, 9999)}",
    "gate": lambda rng: f"{_letters(rng, 1)}{rng.randint(1, 60)}",
    "seat": lambda rng: f"{rng.randint(1, 40)}{rng.choice('ABCDEF')}",
    "invoice": lambda rng: _marked(rng, "INV", 3, 6),
    "order": lambda rng: _marked(rng, "ORD", 3, 6),
    "userid": lambda rng: _marked(rng, "U", 1, 5),
    "website": lambda rng: f"{rng.choice(('www.', ''))}{word(rng)}.{rng.choice(('com', 'org', 'net'))}",
    "doctor": lambda rng: f"{rng.choice(('Dr.', 'Dr.', 'Dr', 'Doctor'))} {_last(rng)}",
    "school": lambda rng: (
        f"{rng.choice((_last, _city))(rng)} {rng.choice(('School', 'High School', 'College', 'High'))}"
    ),
    "class": lambda rng: f"{rng.randint(1, 12)}{rng.choice('ABCabc')}",
    "hotel": _hotel,
    "venue": _venue,
    "band": lambda rng: f"The {rng.choice(_TITLE_WORDS)}s" if rng.random() < 0.5 else _title(rng),
    "street": lambda rng: rng.choice(_STREETS),
    "result": lambda rng: f"{rng.randint(1, 9)}{rng.choice(':::--')}{rng.randint(0, 9)}",
    "plate": lambda rng: f"{_letters(rng, 2)}{rng.choice(('-', ' ', ''))}{rng.randint(10, 9999)}",
    "tracking": lambda rng: _marked(rng, "TRK", 4, 7),
    "word": lambda rng: rng.choice(TEMPLATE_WORDS) if rng.random() < 0.2 else word(rng),
}
"""Makers of values; a number that is digits alone is an integer, anything else is text."""
