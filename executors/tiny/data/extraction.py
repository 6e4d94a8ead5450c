"""Flat JSON extraction: at most three fields, strings or integers, from a sentence; the answer is a bare object."""

import json

from executors.tiny.data.lexicon import CAPITALS, CITIES, NAMES, SURNAMES, TEMPLATE_WORDS, WORDS, pseudo_word
from executors.tiny.data.phrasing import Draw, expand, fill
from executors.tiny.data.sample import Turn

_JOBS = (
    "teacher doctor nurse farmer baker pilot lawyer engineer painter singer actor writer chef driver plumber waiter dentist "
    "judge soldier student clerk miner tailor barber florist librarian mechanic programmer scientist architect"
).split()
_COLORS = "red blue green yellow black white purple pink brown gray orange silver gold".split()
_ITEMS = (
    "apples books pens chairs lamps shirts shoes bottles phones laptops keyboards tables cups plates tickets bikes eggs "
    "cookies cakes pizzas candles hats bags umbrellas knives mirrors guitars drums cameras watches"
).split()
_PRODUCTS = (
    "laptop phone chair lamp shirt bottle camera watch keyboard table cup guitar bike tent jacket sofa desk printer helmet "
    "backpack blender toaster drone scooter headset monitor"
).split()
_ANIMALS = "dog cat parrot hamster rabbit horse goldfish turtle pony snake lizard goat duck".split()
_DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
_MONTHS = "January February March April May June July August September October November December".split()

# Each domain: its sentences, whose slots are the fields that can be asked for.
_SENTENCES = (
    "{name} is {age} years old[| and lives in {city}].",
    "{name} is {age} and [lives in|comes from|works in|is from] {city}.",
    "{name} lives in {city}[| and is {age} years old| and works as a {job}].",
    "{name} is a {age}-year-old {job}[| from {city}| living in {city}].",
    "{name} is a {job}[| in {city}| from {city}| who lives in {city}].",
    "{name} works as a {job}[| in {city}] and is {age}[| years old].",
    "[My name is|I am|I'm|Hi, I'm|This is] {name}[|, I am {age} years old|, {age}|, aged {age}][| and I live in {city}| from {city}].",
    "[My name is|I am] {name} and I am {age} years old.",
    "[My name is|I am] {name}, I [live in|come from] {city} and [I work as a|I am a] {job}.",
    "{name}, {age}, [lives in|is from|moved to|works in] {city}.",
    "{name} ({age}) [lives in|is from|works in] {city}.",
    "{name} from {city} is {age} years old.",
    "[Our|My|The] {job} {name} is {age} years old.",
    "{name} [was born|is from|grew up] in {city}[| and works as a {job}| and is now {age}].",
    "{name} was born in {year}[| in {city}].",
    "{name} [likes|loves] the color {color}[| and is {age} years old].",
    "{name}'s favorite color is {color}.",
    "{name} [bought|ordered|sold|has|wants|needs] {quantity} {item}[| for {price} dollars| in {city}].",
    "{quantity} {item} [were ordered|were bought] by {name}.",
    "[I bought|We ordered|She sold|They have] {quantity} {item} for {price} [dollars|euros].",
    "The {product} costs {price} [dollars|euros|pounds].",
    "[A|The] {color} {product} [costs|is sold for|is] {price} [dollars|euros].",
    "The {product} is {color} and costs {price} [dollars|euros].",
    "{name} bought a {product} for {price} [dollars|euros].",
    "{name} has a {animal} [named|called] {pet}[| who is {age} years old].",
    "The {animal} {pet} is {age} years old.",
    "{pet} is a {color} {animal}.",
    "The {event} [is|takes place|happens] in {city} on {day}.",
    "The {event} [starts at|is at|begins at] {hour} on {day}.",
    "The {event} on {day} [has|expects|had] {guests} guests.",
    "[Meet|Call|Visit] {name} on {day} at {hour}.",
    "{name} [flies|travels|drives|goes] [from {from} to {to}|to {to} from {from}][| on {day}].",
    "The [train|bus|flight] from {from} to {to} [takes {hours} hours|leaves at {hour}|leaves on {day}].",
    "{title} is a book by {author}[| from {year}| published in {year}].",
    "{author} wrote {title}[| in {year}].",
    "The book {title} has {pages} pages.",
    "{city} is in {country}[| and has {population} people].",
    "{city} has {population} [people|inhabitants].",
    "The temperature in {city} is {temperature} degrees[| on {day}].",
    "It is {temperature} degrees in {city}.",
    "{team} scored {score} points[| in {city}| on {day}].",
    "The company {company} [has|employs] {employees} [people|employees][| in {city}].",
    "{name} works at {company}[| as a {job}| in {city}].",
    "Room {room} is [booked|reserved] for {name}[| on {day}].",
    "Order {order} [is for|was placed by|belongs to] {name}[| from {city}].",
    "{name} [plays|studied] {subject}[| for {years} years].",
    "{name} was hired in {month} [|of ]{year}.",
    "{name}, a {job} from {city}, is {age} years old.",
    "{name}, who is {age}, [lives in|works in|was born in] {city}.",
    "At {age}, {name} [moved to|lives in|works in] {city}.",
    "In {year}, {name} moved to {city}.",
    "[Yesterday|Last week|Today] {name} [bought|sold|ordered] {quantity} {item}[| in {city}].",
    "[Please send|Send|Ship] {quantity} {item} to {name} in {city}.",
    "{name} paid {price} [dollars|euros] for {quantity} {item}.",
    "[This|That|My|Our] {product} is {color}[| and cost {price} dollars].",
    "{product}, {color}, {price} [dollars|euros]",
    "There are {quantity} {item} [in the box|on the table|in {city}].",
    "[The|Our] {animal} is {age} years old and [its name is|is called] {pet}.",
    "My {animal} {pet} is {color}.",
    "[I|We] will [meet|see|visit] {name} in {city} on {day}.",
    "The {event} in {city} [has|had|expects] {guests} guests.",
    "[Join us|See you] at the {event} on {day} at {hour}.",
    "{name} has an appointment on {day} at {hour}.",
    "The [bus|train|flight] [goes|runs] from {from} to {to} and costs {price} [dollars|euros].",
    "{name} scored {score} points[| on {day}| in {city}].",
    "{team} won with {score} points[| in {city}].",
    "[I am reading|I read] {title} by {author}[|, it has {pages} pages].",
    "{title} ([{year}|{pages} pages]) was written by {author}.",
    "[It was|Today it is|The weather is] {temperature} degrees in {city} on {day}.",
    "{company} was founded in {year}[| in {city}].",
    "{company} [sells|makes] {item} in {city}.",
    "The [boss|owner] of {company} is {name}.",
    "{name} is our new {job}[| at {company}|, hired in {year}].",
    "{country} has {population} [people|inhabitants].",
    "{name} speaks with {quantity} [people|friends] in {city}.",
    "User {name} with id {room} [logged in|signed up] on {day}.",
    "name={name} age={age}[| city={city}]",
    "{name} / {age} / {city}",
    "name: {name}, age: {age}[|, city: {city}|, job: {job}]",
    "Name: {name}\nAge: {age}[|\nCity: {city}|\nJob: {job}]",
    "{name}; {age}; {city}",
    "product: {product}, price: {price}[|, color: {color}]",
    "[The|A] {k1} [is|was|equals] {v1} and the {k2} [is|was] {v2}.",
    "{k1}: {v1}, {k2}: {v2}[|, {k3}: {v3}]",
    "{k1} = {v1}, {k2} = {v2}[|, {k3} = {v3}]",
    "The {k1} is {v1}, the {k2} is {v2} and the {k3} is {v3}.",
)
_ALIASES = {
    "name": ("name", "name", "name", "name", "person", "first_name", "user", "customer"),
    "city": ("city", "city", "city", "city", "location", "place", "town"),
    "job": ("job", "job", "job", "profession", "occupation", "role"),
    "quantity": ("quantity", "quantity", "count", "amount", "number"),
    "item": ("item", "item", "product", "items"),
    "product": ("product", "product", "item", "object"),
    "price": ("price", "price", "price", "cost"),
    "animal": ("animal", "animal", "species", "kind"),
    "pet": ("pet", "name", "pet_name"),
    "event": ("event", "event", "title"),
    "hour": ("hour", "time", "start"),
    "guests": ("guests", "count"),
    "title": ("title", "title", "book"),
    "team": ("team", "team", "winner", "club"),
    "company": ("company", "company", "firm", "employer"),
    "color": ("color", "color", "colour"),
    "day": ("day", "day", "date"),
    "country": ("country", "country", "nation"),
    "room": ("room", "number", "id"),
    "employees": ("employees", "staff", "people"),
    "year": ("year", "year", "since"),
    "author": ("author", "author", "writer"),
    "population": ("population", "people"),
    "temperature": ("temperature", "temperature", "temp", "degrees"),
    "score": ("score", "points"),
    "from": ("from", "origin", "start"),
    "to": ("to", "destination", "end"),
}
_ASKS = (
    "[extract|get|pull out|find|take|parse|read|return|give me|list] {f} [as JSON|in JSON|as a JSON object|in JSON format|as json]: {s}",
    "[extract|get|pull out|find|parse|return|give me] {f} [as JSON|in JSON|as a JSON object|in JSON format|as json] from[|:| this text:| the text:| this sentence:| this:| the following:] {s}",
    "[extract|get|pull out|find|take|parse|read] {f} from [this|the text|this text|this sentence|the following text|the sentence|the following]: {s}",
    "[extract|get|find|pull] {f}: {s}",
    "[extract|get] {f} from {s}",
    "[return|give me|write|make|create|output|build|produce|generate] [a|one] [JSON object|JSON|json object|flat JSON object] with [|the fields |the keys |keys |fields ]{f} [for|from|for this text|from this text|from the text|about]: {s}",
    "[return|output|answer with|respond with|reply with] [only |]JSON with [the keys |keys |fields |]{f}: {s}",
    "[convert|turn|transform] [this|the text|this sentence|the following|this text] [to|into] JSON with [the keys |keys |fields |the fields |]{f}: {s}",
    "[convert|turn|transform] [this|the text|the following] [to|into] JSON ([fields|keys]: {f}): {s}",
    "[text|sentence|input]: {s}\n[extract|return|give me|give|output|get] {f} as JSON",
    "{s}\n[extract|return|give me|give|output|get|find] {f} [as JSON|in JSON|as a JSON object|as json]",
    "{s} [extract|return|give me|put|get] {f} [as JSON|in JSON|into JSON|as a JSON object]",
    "{s}\nJSON with {f}",
    "{s}\n[what are|what is] {f} [as JSON|in JSON]",
    "JSON with {f}: {s}",
    "JSON {f}: {s}",
    "[fields|keys]: {f}. [text|sentence|input]: {s}",
    "from [the text|this text|the sentence|this sentence] [extract|get|take] {f} as JSON: {s}",
    "[from|in] {s} [extract|find|get] {f} as JSON",
    "[information extraction|extraction|extract json|extract JSON|to JSON|data extraction]. [fields|keys]: {f}. [text|input]: {s}",
    "[fill|fill in|complete] {j} [from|using|with|based on][| the text| this]: {s}",
    "[extract|answer|return|reply] [in the form|in the format|as|like] {j}: {s}",
    "[use the schema|schema|format|JSON schema]: {j}. [text|input|sentence]: {s}",
    "[parse|read] [this|the following|this text]: {s}\n[return|output] {f} as JSON",
    "I need {f} as [JSON|a JSON object] from: {s}",
    "[extract|get|find|take] [the fields |]{f} [as JSON|in JSON|as a JSON object]. {s}",
    "[parse|put|turn|convert] [this |it |]into JSON ({f}): {s}",
    "[parse|put|turn|convert] [this |it |]into JSON with {f}: {s}",
    "[what are|what is|give me] {f} [as|in] JSON? {s}",
    "[text|input|sentence|note]: {s} [give me JSON|return JSON|output JSON|JSON please|answer in JSON] with {f}",
    "[from|in|given] the [sentence|text|note] {s} [extract|get|find|return] {f} [in JSON|as JSON]",
    "[read|look at|here is] [the text|this text|a sentence|this sentence]: {s} [now give|then return|return|give me] {f} as JSON",
    "[create|make|build|return] a [flat |]JSON [object |]([fields|keys|with]: {f}) from this [text|sentence]: {s}",
    "{s} [-> JSON|as JSON|JSON]: {f}",
)
_PLAIN_ASKS = (
    "[convert|turn|transform|change|put] [this|the following|these fields|this data|it] [to|into] [JSON|a JSON object|json]: {s}",
    "[as JSON|to JSON|in JSON|JSON|make JSON]: {s}",
    "[write|give me|format] [this|the following|these values] as [JSON|a JSON object|json]: {s}",
    "{s}\n[as JSON|to JSON|convert to JSON|write it as JSON|in JSON]",
)


def _value(draw: Draw, field: str) -> str | int:
    """Return a value for `field`; whether it is text or an integer follows from the field."""
    rng = draw.rng
    ranges = {
        "age": (1, 99),
        "year": (1900, 2030),
        "quantity": (2, 99),
        "price": (1, 999),
        "hour": (1, 12),
        "guests": (10, 500),
        "hours": (1, 20),
        "pages": (20, 900),
        "population": (100, 99999),
        "temperature": (1, 40),
        "score": (1, 120),
        "employees": (3, 5000),
        "room": (1, 400),
        "order": (100, 9999),
        "years": (2, 30),
    }
    if field in ranges:
        return rng.randint(*ranges[field])
    lists = {
        "job": _JOBS,
        "color": _COLORS,
        "item": _ITEMS,
        "product": _PRODUCTS,
        "animal": _ANIMALS,
        "day": _DAYS,
        "month": _MONTHS,
        "country": tuple(sorted(CAPITALS)),
        "event": (
            "concert",
            "meeting",
            "party",
            "workshop",
            "wedding",
            "conference",
            "festival",
            "match",
            "exam",
            "lecture",
        ),
        "subject": (
            "piano",
            "chess",
            "guitar",
            "tennis",
            "physics",
            "history",
            "music",
            "violin",
            "drums",
            "football",
        ),
    }
    if field in lists and rng.random() < 0.9:
        return rng.choice(lists[field])
    if field == "name" or field == "author":
        first = rng.choice(NAMES) if rng.random() < 0.75 else pseudo_word(rng).capitalize()
        surname = rng.choice(SURNAMES) if rng.random() < 0.7 else pseudo_word(rng).capitalize()
        return f"{first} {surname}" if rng.random() < (0.25 if field == "name" else 0.7) else first
    if field in ("city", "from", "to") and rng.random() < 0.75:
        return rng.choice(CITIES)
    if field == "title":
        return " ".join(rng.choice(WORDS).capitalize() for _ in range(rng.choice((1, 2, 2, 3))))
    word = rng.choice(WORDS) if rng.random() < 0.5 else pseudo_word(rng)
    return word.lower() if field in lists or field.startswith("v") else word.capitalize()


def _facts(draw: Draw) -> tuple[str, dict[str, str | int]]:
    """Return a sentence and the fields in it, in the order in which they appear."""
    # Sentences are not split: their values and the wording of the request are.
    template = expand(draw.rng, draw.rng.choice(_SENTENCES))
    fields = [part.split("}")[0] for part in template.split("{")[1:]]
    if "k1" not in fields:
        values = {field: _value(draw, field) for field in fields}
        return fill(template, values), values
    pairs: dict[str, str | int] = {}
    slots: dict[str, object] = {}
    for index in range(1, 1 + len(fields) // 2):
        key = (
            draw.rng.choice(draw.rng.choice((WORDS, TEMPLATE_WORDS)))
            if draw.chance(0.8)
            else pseudo_word(draw.rng)
        )
        value = draw.rng.randint(0, 999) if draw.chance(0.5) else _value(draw, "value")
        pairs[key] = value
        slots |= {f"k{index}": key, f"v{index}": value}
    return (fill(template, slots), pairs) if len(pairs) == len(fields) // 2 else _facts(draw)


def _field_list(draw: Draw, keys: list[str]) -> str:
    """Return the names of the fields as users list them."""
    quote = draw.rng.choice(("", "", "", "", '"', '"', "'", "`"))
    names = [f"{quote}{key}{quote}" for key in keys]
    the = "the " if not quote and draw.chance(0.35) else ""
    if len(names) == 1:
        return the + names[0]
    joint = draw.rng.choice((" and ", " and ", ", ", ", and " if len(names) > 2 else " and "))
    if the and draw.chance(0.2):
        return the + ", ".join(names[:-1]) + joint + the + names[-1]
    return the + ", ".join(names[:-1]) + joint + names[-1]


def _schema(draw: Draw, found: dict[str, str | int]) -> str:
    """Return the wanted object with types in place of values, in one of the ways users write it."""
    types = {key: "integer" if isinstance(value, int) else "string" for key, value in found.items()}
    shape = draw.rng.choice(("types", "blank", "bare"))
    if shape == "types":
        return json.dumps(types)
    if shape == "blank":
        return json.dumps({key: 0 if kind == "integer" else "" for key, kind in types.items()})
    return "{" + ", ".join(f'"{key}": {kind}' for key, kind in types.items()) + "}"


def extraction(draw: Draw) -> Turn:
    """Extract one to three named fields of a sentence as a JSON object."""
    while True:
        sentence, values = _facts(draw)
        if draw.mine("extract", *values.values()):
            break
    keys = list(values)
    if len(keys) > 1 and draw.chance(0.25):
        keys = draw.rng.sample(keys, draw.rng.randint(1, len(keys)))
    elif draw.chance(0.15):
        draw.rng.shuffle(keys)
    keys = keys[:3]
    plain = len(values) == len(keys) and (": " in sentence or " = " in sentence) and keys == list(values)
    if not plain or draw.chance(0.6):
        names = [draw.rng.choice(_ALIASES.get(key, (key,))) if draw.chance(0.5) else key for key in keys]
        if len(set(names)) == len(names):
            found = {name: values[key] for name, key in zip(names, keys, strict=True)}
        else:
            found = {key: values[key] for key in keys}
        template = draw.ask(_ASKS)
    else:
        separator = ": " if ": " in sentence else " = "
        found = {
            part.split(separator)[0]: values[key]
            for key, part in zip(keys, sentence.replace("\n", ", ").split(", "), strict=True)
        }
        template = draw.ask(_PLAIN_ASKS)
    template = _safe_end(template)
    if draw.chance(0.2):
        sentence = f'"{sentence}"'
    slots = {"f": _field_list(draw, list(found)), "s": sentence, "j": _schema(draw, found)}
    return Turn("extraction", fill(template, slots), json.dumps(found), {"object": found})


def _safe_end(template: str) -> str:
    """Cut what follows a sentence at the end of the message: it has its own punctuation."""
    head, slot, tail = template.rpartition("{s}")
    return head + slot if slot and len(tail) < 12 and "\n" not in tail else head + slot + tail
