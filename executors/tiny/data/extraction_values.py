"""Fields that can be extracted: the values each takes and the keys by which users ask for it."""

import random
from collections.abc import Callable
from typing import NamedTuple

from executors.tiny.data.lexicon import CAPITALS, CITIES, NAMES, SURNAMES, WORDS, pseudo_word


class Field(NamedTuple):
    """What may stand in a slot: `kind` of value (a list, a form or a range of integers) and the keys that mean it."""

    kind: str
    keys: tuple[str, ...]


def _table(text: str) -> dict[str, Field]:
    """Read lines `slot|kind|keys`."""
    rows = [line.split("|") for line in text.strip().splitlines()]
    return {slot.strip(): Field(kind, tuple(keys.split())) for slot, kind, keys in rows}


FIELDS = _table("""
    name|person|name name name name name person first_name full_name user customer who client person_name customer_name user_name person individual
    first|first|first_name first_name given_name first forename firstname
    last|last|last_name last_name surname family_name last lastname
    sender|person|sender sender from from_name sent_by author giver sender_name
    recipient|person|recipient recipient to receiver to_name addressee sent_to recipient_name
    buyer|person|buyer buyer customer purchaser client
    seller|person|seller seller vendor merchant
    companion|person|companion partner friend other_person second_person
    author|person|author author writer written_by creator book_author
    director|person|director director directed_by filmmaker maker
    artist|person|artist artist singer musician band performer
    age|1-99|age age age age years_old age_in_years person_age how_old
    city|city|city city city city location place town where city_name municipality
    country|country|country country nation country_name home_country land state
    from|city|from origin start from_city departure start_city source departure_city
    to|city|to destination end to_city arrival end_city target goal_city
    language|language|language language tongue spoken_language lang language_name
    nationality|nationality|nationality nationality citizenship origin
    job|job|job job profession occupation role job_title position work career title
    color|color|color color colour shade paint color_name
    item|items|item items product thing object item_name goods article what
    product|product|product item object product_name thing article item_name what
    clothing|clothing|clothing item garment product piece_of_clothing clothes
    fruit|fruit|fruit fruit fruit_name kind item food type
    food|food|food dish meal item food_name
    drink|drink|drink drink beverage item order product drink_name
    size|size|size size cup_size item_size
    sport|sport|sport sport game activity discipline favorite_sport hobby
    hobby|hobby|hobby hobby activity pastime interest likes leisure
    animal|animal|animal pet animal species kind pet_type animal_type creature
    petname|petname|pet_name pet_name name petname animal_name called pet
    car|car|car car vehicle brand make car_brand car_make model
    year|1900-2030|year year since release_year year_number in_year
    pages|20-900|pages pages page_count number_of_pages length
    title|title|title title name work title_name what
    genre|genre|genre genre kind category type
    email|email|email email mail e_mail email_address contact address
    phone|phone|phone phone phone_number telephone number tel mobile
    address|address|address address street street_address location home_address
    company|company|company company firm employer business company_name organization organisation workplace
    price|1-999|price price price cost amount total unit_price value dollars money
    salary|20000-99000|salary salary pay income wage earnings
    quantity|2-99|quantity quantity count amount number how_many qty total number_of_items
    count2|2-99|fruit_count number_of_fruits fruits_count
    date|date|date date day when due event_date full_date
    day|day|day day weekday date day_of_week when
    month|month|month month when month_name
    time|time|time time hour start start_time clock_time when at
    hour|1-12|hour time start start_hour when at
    hours|1-20|hours duration hours_needed length travel_time time_in_hours
    minutes|5-180|minutes duration length minutes_long
    years|2-30|years duration years_of_experience experience how_long
    event|event|event event title occasion event_name what
    guests|10-500|guests guests count people guest_count number_of_guests party_size
    department|department|department department division team unit dept
    subject|subject|subject subject course school_subject topic class field
    grade|grade|grade grade mark result score
    level|1-12|grade class level school_grade
    relation|relation|relation relation relative relationship family_member
    elder|elder|relation relation relative
    code|code|code code id number product_code identifier serial reference
    room|1-400|room room room_number number room_id
    floor|1-40|floor floor level floor_number
    platform|1-20|platform platform track platform_number
    gate|gate|gate gate gate_number departure_gate
    flight|flight|flight flight flight_number number flight_code flight_id
    airline|company|airline airline carrier company
    invoice|invoice|invoice invoice invoice_number number id invoice_id
    order|100-9999|order order_number order order_id number id order_no
    userid|1-999|id user_id id number
    employees|3-5000|employees employees staff people employee_count headcount size
    population|100-99999|population population people inhabitants residents
    temperature|1-40|temperature temperature temp degrees celsius heat
    weather|weather|weather weather condition sky forecast
    distance|1-900|distance distance km length far distance_km
    length|2-900|length length size long length_cm
    width|2-200|width width wide width_cm
    height|50-300|height height tall size height_cm
    weight|1-120|weight weight mass heavy kg
    score|1-120|score score points result total_points
    goals|1-9|goals goals score goal_count points number_of_goals
    rank|1-50|place rank position place ranking
    team|team|team team winner club side team_name
    opponent|team|opponent opponent rival other_team against
    instrument|instrument|instrument instrument musical_instrument plays
    material|material|material material made_of fabric
    building|building|building building structure what
    river|capital|river river river_name name
    website|website|website website url site web link
    value|word|value
""")


def _list(text: str) -> tuple[str, ...]:
    """Read a list of phrases separated by commas."""
    return tuple(" ".join(part.split()) for part in text.split(","))


_LISTS: dict[str, tuple[str, ...]] = {
    "job": _list(
        """teacher, doctor, nurse, farmer, baker, pilot, lawyer, engineer, painter, singer, actor, writer, chef, driver,
        plumber, waiter, dentist, judge, soldier, student, clerk, miner, tailor, barber, florist, librarian, mechanic,
        programmer, scientist, architect, carpenter, gardener, police officer, bus driver, data analyst, sales manager,
        firefighter, photographer, journalist, electrician, accountant, hairdresser, cashier, vet, butcher, surgeon,
        software developer, social worker, truck driver, web designer, receptionist, translator, musician, postman"""
    ),
    "color": _list(
        """red, blue, green, yellow, black, white, purple, pink, brown, gray, orange, silver, gold, beige, turquoise,
        violet, dark blue, light green, grey, crimson, navy, teal"""
    ),
    "items": _list(
        """apples, books, pens, chairs, lamps, shirts, shoes, bottles, phones, laptops, keyboards, tables, cups, plates,
        tickets, bikes, eggs, cookies, cakes, pizzas, candles, hats, bags, umbrellas, knives, mirrors, guitars, drums,
        cameras, watches, pillows, blankets, notebooks, pencils, towels, stamps, roses, balloons, socks, muffins, bricks,
        batteries, light bulbs, board games, paper cups, tulips, sandwiches, stickers, spoons, boxes, posters, envelopes"""
    ),
    "product": _list(
        """laptop, phone, chair, lamp, shirt, bottle, camera, watch, keyboard, table, cup, guitar, bike, tent, jacket, sofa,
        desk, printer, helmet, backpack, blender, toaster, drone, scooter, headset, monitor, book, mug, pillow, suitcase,
        bench, shelf, ladder, umbrella, mirror, carpet, rope, box, coffee machine, washing machine, bookshelf, fridge,
        kettle, vase, clock, wallet, tablet, rug, stool, bed, garden hose, key ring, necklace, mattress, wardrobe"""
    ),
    "clothing": _list(
        "dress, shirt, coat, jacket, hat, scarf, sweater, skirt, tie, T-shirt, cap, hoodie, suit, belt, raincoat, blouse"
    ),
    "fruit": _list(
        """apples, pears, bananas, oranges, lemons, cherries, grapes, peaches, mangoes, melons, plums, kiwis, figs, limes,
        strawberries, apricots, pineapples, coconuts, blueberries, dates"""
    ),
    "food": _list(
        """pizza, pasta, soup, salad, rice, sushi, bread, cheese, pancakes, lasagna, chicken, tomato soup, fried rice, curry,
        tacos, steak, noodles, chocolate, apple pie, fish and chips, ice cream, spaghetti, omelette, a sandwich, burgers"""
    ),
    "drink": _list(
        """coffee, tea, latte, espresso, cappuccino, lemonade, cola, orange juice, green tea, hot chocolate, milkshake, mocha,
        smoothie, iced tea, apple juice, beer, cider, black coffee, soda, mint tea, macchiato"""
    ),
    "size": _list("small, medium, large, big, tall, extra large, XL, tiny, regular, M, L, S, huge, double"),
    "sport": _list(
        """tennis, football, soccer, basketball, volleyball, hockey, golf, baseball, rugby, cricket, badminton, handball,
        table tennis, chess, squash, ice hockey, water polo, softball, darts, lacrosse, polo, beach volleyball"""
    ),
    "hobby": _list(
        """painting, cooking, reading, gardening, dancing, swimming, fishing, hiking, knitting, photography, singing, drawing,
        sewing, cycling, baking, camping, sailing, skiing, yoga, chess, pottery, bird watching, stamp collecting, climbing,
        playing cards, horse riding, origami, jogging, surfing, board games, traveling, woodworking, video games"""
    ),
    "animal": _list(
        """dog, cat, parrot, hamster, rabbit, horse, goldfish, turtle, pony, snake, lizard, goat, duck, guinea pig, mouse,
        ferret, canary, puppy, kitten, hedgehog, donkey, chicken, fox, owl, cow, sheep, bird, tortoise, iguana"""
    ),
    "car": _list(
        """Toyota, Ford, Honda, Volvo, Fiat, Audi, Tesla, Mazda, Kia, Skoda, Renault, Opel, Nissan, Porsche, Jeep, Volkswagen,
        Hyundai, Peugeot, BMW, Mini, Subaru, Lexus, Ford Focus, Fiat Panda, Honda Civic, Ferrari, Chevrolet, Seat, Suzuki"""
    ),
    "day": _list("Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday"),
    "month": _list(
        """January, February, March, April, May, June, July, August, September, October, November, December"""
    ),
    "country": (*sorted(CAPITALS), "Scotland", "Wales", "Jamaica", "Malta", "Cyprus", "New Zealand", "Bolivia", "Israel"),
    "language": _list(
        """English, French, German, Spanish, Italian, Russian, Japanese, Chinese, Arabic, Turkish, Polish, Dutch, Swedish,
        Greek, Korean, Hindi, Portuguese, Danish, Finnish, Czech, Hebrew, Thai, Swahili, Latin, Ukrainian, Hungarian, Welsh"""
    ),
    "nationality": _list(
        """French, German, Spanish, Italian, Russian, Japanese, Chinese, Turkish, Polish, Dutch, Swedish, Greek, Korean, Indian,
        Portuguese, Danish, Finnish, Czech, Canadian, Mexican, Brazilian, American, British, Irish, Egyptian, Kenyan, Swiss,
        Norwegian, Belgian, Austrian, Cuban, Peruvian, Thai, Australian, Nigerian, Moroccan, Ukrainian"""
    ),
    "event": _list(
        """concert, meeting, party, workshop, wedding, conference, festival, match, exam, lecture, book fair, race, picnic,
        jazz night, flea market, play, auction, seminar, art show, school trip, tournament, team lunch, opening, parade"""
    ),
    "department": _list(
        """sales, marketing, finance, IT, accounting, research, support, logistics, design, legal, purchasing, HR, security,
        production, customer service, human resources, quality control, engineering"""
    ),
    "subject": _list(
        """math, physics, history, biology, chemistry, geography, music, art, English, French, economics, medicine, law,
        philosophy, computer science, literature, Spanish, psychology, Latin, statistics, astronomy, engineering"""
    ),
    "instrument": _list(
        """piano, guitar, violin, drums, flute, trumpet, cello, harp, saxophone, clarinet, trombone, organ, banjo, ukulele,
        accordion, oboe, bass guitar, harmonica, viola"""
    ),
    "relation": _list(
        """brother, sister, son, daughter, uncle, aunt, cousin, friend, neighbor, father, mother, grandfather, grandmother,
        husband, wife, nephew, niece, best friend, boss, colleague, roommate, grandson"""
    ),
    "elder": _list("Grandma, Grandpa, Uncle, Aunt, Auntie, Grandmother, Grandfather, Cousin"),
    "genre": _list("comedy, horror, fantasy, crime, romance, drama, mystery, science fiction, western, war, romantic"),
    "weather": _list("sunny, rainy, cloudy, windy, foggy, snowy, stormy, cold, hot, partly cloudy, very warm, clear, icy"),
    "material": _list("wood, steel, leather, glass, plastic, cotton, stone, silver, bamboo, wool, oak, paper, brass, clay"),
    "building": _list("tower, church, bridge, castle, town hall, museum, school, station, library, lighthouse, temple, hotel"),
    "team": _list(
        """Arsenal, Barcelona, Chelsea, Ajax, Bayern, Liverpool, Celtic, Juventus, Porto, Real Madrid, Inter, Dortmund, Everton,
        the Lions, the Tigers, Red Stars, the Eagles, Lakers, Bulls, City United, Roma, Rangers, Sharks, Team Blue"""
    ),
    "company": _list(
        """Siemens, Google, Bosch, Apple, Nokia, Philips, Amazon, Ikea, Shell, Sony, Samsung, Microsoft, Intel, Nestle, Lego,
        Adidas, Netflix, Blue Lamp Ltd, Acme, Acme Corp, Globex, Initech, Oak & Sons, Sunrise Bakery, Tesla, Green Energy, Danone,
        Unilever, Delta Airlines, Lufthansa, North Bank, Hill Brothers, Spotify, Nike, Volvo, City Hospital"""
    ),
    "grade": _list("A, B, C, D, A+, B+, C+, A-, B-"),
}  # fmt: skip
_CAPITALISED = frozenset({"car", "country", "language", "nationality", "team", "company"})
_CLOSED = frozenset({"day", "month", "grade", "size", "elder", "relation", "weather"})
_STREETS = _list(
    """Oak Street, Main Street, Park Avenue, Hill Road, Lake Drive, Church Lane, High Street, Elm Street, River Road, Mill Lane,
    King Street, Station Road, Garden Avenue, Maple Drive, Bridge Street, Sunset Boulevard, Green Lane, Market Square"""
)


def value(rng: random.Random, slot: str) -> str | int:
    """Return a value for `slot`: a bare number is an integer, everything else text."""
    kind = FIELDS[slot].kind
    low, dash, high = kind.partition("-")
    if dash:
        return rng.randint(int(low), int(high))
    if kind in _FORMS:
        return _FORMS[kind](rng)
    if kind in _CLOSED or rng.random() < 0.82:
        return rng.choice(_LISTS[kind])
    word = _word(rng)
    if kind in ("product", "event", "hobby", "company") and rng.random() < 0.3:
        word = f"{word} {_word(rng)}"
    return word.title() if kind in _CAPITALISED else word


def _word(rng: random.Random) -> str:
    """Return any word, known or made up."""
    return rng.choice(WORDS) if rng.random() < 0.45 else pseudo_word(rng)


def _capital(rng: random.Random) -> str:
    """Return any word, capitalised."""
    return _word(rng).capitalize()


def _first(rng: random.Random) -> str:
    """Return a first name."""
    return rng.choice(NAMES) if rng.random() < 0.7 else pseudo_word(rng).capitalize()


def _last(rng: random.Random) -> str:
    """Return a family name."""
    return rng.choice(SURNAMES) if rng.random() < 0.6 else pseudo_word(rng).capitalize()


def _person(rng: random.Random) -> str:
    """Return a name of one or two words."""
    return f"{_first(rng)} {_last(rng)}" if rng.random() < 0.27 else _first(rng)


def _city(rng: random.Random) -> str:
    """Return a city, real or not."""
    roll = rng.random()
    if roll < 0.7:
        return rng.choice(CITIES)
    if roll < 0.8:
        return rng.choice(
            ("New York", "San Diego", "Cape Town", "Hong Kong", "Los Angeles", "San Jose", "Rio Grande")
        )
    return _capital(rng) if roll < 0.96 else f"{rng.choice(('New', 'Port', 'Saint', 'Bad'))} {_capital(rng)}"


def _title(rng: random.Random) -> str:
    """Return a title of one to three words, with an article now and then."""
    words = [_capital(rng) for _ in range(rng.choice((1, 1, 2, 2, 3)))]
    return " ".join(["The", *words[:2]] if rng.random() < 0.2 else words)


def _email(rng: random.Random) -> str:
    """Return an address such as "anna.berg@mail.com"."""
    user = rng.choice((_first, _last, _word))(rng).lower()
    if rng.random() < 0.35:
        user += rng.choice((".", "_", "")) + rng.choice((_last(rng).lower(), str(rng.randint(1, 99))))
    host = rng.choice(("mail", "example", "gmail", "post", "web", "outlook", _word(rng)))
    return f"{user}@{host}.{rng.choice(('com', 'com', 'org', 'net', 'de', 'io', 'co.uk'))}"


def _phone(rng: random.Random) -> str | int:
    """Return a number as digits alone, an integer, or in groups, which is text."""
    if rng.random() < 0.5:
        return rng.randint(10**5, 10**8 - 1)
    head, tail = rng.randint(100, 999), rng.randint(1000, 9999)
    return rng.choice(
        (f"{head}-{tail}", f"{head} {tail}", f"{head}-0{tail % 1000:03d}", f"+{head % 90 + 10} {tail}")
    )


def _date(rng: random.Random) -> str:
    """Return a date in one of the usual forms."""
    month, day, year = rng.randint(1, 12), rng.randint(1, 28), rng.randint(1950, 2030)
    name = _LISTS["month"][month - 1]
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


def _code(rng: random.Random) -> str:
    """Return a code of letters and digits."""
    letters, digits = _letters(rng, rng.choice((1, 1, 2, 3))), rng.randint(1, 9999)
    return rng.choice(
        (f"{letters}{digits}", f"{letters}{digits}", f"{letters}-{digits}", f"{digits}{letters[0]}")
    )


_FORMS: dict[str, Callable[[random.Random], str | int]] = {
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
    "capital": _capital,
    "petname": lambda rng: rng.choice((_first, _capital))(rng),
    "address": lambda rng: (
        f"{rng.randint(1, 250)} {rng.choice((rng.choice(_STREETS), _capital(rng) + ' Street'))}"
    ),
    "flight": lambda rng: f"{_letters(rng, 2)}{rng.randint(10, 9999)}",
    "gate": lambda rng: f"{_letters(rng, 1)}{rng.randint(1, 60)}",
    "invoice": lambda rng: rng.choice((rng.randint(100, 99999), f"INV-{rng.randint(1, 9999)}", _code(rng))),
    "website": lambda rng: f"{rng.choice(('www.', ''))}{_word(rng)}.{rng.choice(('com', 'org', 'net'))}",
    "word": _word,
}
