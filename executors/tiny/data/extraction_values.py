"""Fields that can be extracted: the values each takes and the keys by which users ask for it."""

import random
from typing import NamedTuple

from executors.tiny.data.extraction_forms import FORMS
from executors.tiny.data.extraction_kinds import MORE_FIELDS, MORE_LISTS
from executors.tiny.data.lexicon import CAPITALS, pseudo_word


class Field(NamedTuple):
    """What may stand in a slot: `kind` of value (a list, a form or a range of integers) and the keys that mean it."""

    kind: str
    keys: tuple[str, ...]


def _table(text: str) -> dict[str, Field]:
    """Read lines `slot|kind|keys`."""
    rows = [line.split("|") for line in text.strip().splitlines()]
    return {slot.strip(): Field(kind, tuple(keys.split())) for slot, kind, keys in rows}


FIELDS = _table(MORE_FIELDS) | _table("""
    name|person|name name name name name name person first_name full_name who person_name
    customer|person|name name customer customer customer_name client person who
    employee|person|name name employee employee employee_name person worker who
    student|person|name name student student student_name person who
    player|person|name name player player player_name person athlete
    guest|person|name name guest guest guest_name person visitor
    passenger|person|name name passenger passenger passenger_name person traveler
    patient|person|name name patient patient patient_name person
    owner|person|owner owner name name owner_name person
    user|person|name name user user user_name username person
    first|first|first_name first_name given_name first forename firstname
    last|last|last_name last_name surname family_name last lastname
    sender|person|sender sender from from_name sent_by sender_name
    recipient|person|recipient recipient to receiver to_name addressee recipient_name
    buyer|person|buyer buyer customer client buyer_name
    seller|person|seller seller vendor seller_name
    companion|person|name name companion friend person who
    author|person|author author writer written_by author_name
    director|person|director director directed_by director_name
    artist|person|artist artist singer musician performer artist_name
    age|5-95|age age age age years_old person_age how_old
    petage|1-18|age age pet_age how_old years_old
    city|city|city city city city city location place town where city_name
    country|country|country country country nation country_name land
    from|city|from origin start_city from_city departure_city
    to|city|to destination destination to_city arrival_city
    language|language|language language language_name lang
    nationality|nationality|nationality nationality citizenship
    job|job|job job profession occupation role job_title position
    color|color|color color colour shade color_name
    item|items|item item items product article goods item_name what
    product|product|product product item object product_name thing article item_name what
    goods|goods|product item goods food what product_name
    clothing|clothing|clothing item garment product clothes
    fit|fit|size size clothing_size size_code
    fruit|fruit|fruit fruit fruit_name item food
    food|food|food food dish meal food_name
    drink|drink|drink drink beverage drink_name
    size|size|size size
    sport|sport|sport sport game sport_name
    hobby|hobby|hobby hobby activity pastime interest
    animal|animal|animal animal species pet_type animal_type kind_of_animal
    petname|petname|pet_name pet_name name petname animal_name
    car|car|car car brand make car_brand car_make
    year|1900-2030|year year year which_year
    released|1950-2026|year year release_year released year_of_release
    pages|20-900|pages pages page_count number_of_pages
    book|title|title title book book_title
    movie|title|title title movie film movie_title
    song|title|title title song song_title
    genre|genre|genre genre kind category type
    email|email|email email mail e_mail email_address
    phone|phone|phone phone phone phone_number telephone number tel mobile
    address|address|address address street street_address
    zip|10000-99999|zip zip zip_code postal_code postcode
    company|company|company company firm business company_name organization
    price|1-999|price price price cost amount total money
    salary|20000-99000|salary salary pay income
    quantity|2-99|quantity quantity count amount number how_many qty
    count2|2-99|fruit_count fruit_count number_of_fruits fruit_quantity
    itemcount|2-99|item_count item_count number_of_items item_quantity
    kin|2-9|count number how_many count
    date|date|date date date when full_date
    day|day|day day weekday day_of_week when
    month|month|month month when month_name
    time|time|time time time clock_time when at
    start|time|time start start_time starts_at begin
    opens|time|time opens opening_time open_from opens_at
    hour|1-12|hour time when at
    hours|1-20|hours duration hours_needed
    minutes|5-180|minutes duration length
    nights|2-14|nights nights number_of_nights duration
    years|2-30|years duration years_of_experience how_long
    event|event|event event occasion event_name
    guests|10-500|guests guests count guest_count number_of_guests
    party|2-20|guests people party_size number_of_people count
    department|department|department department division unit dept
    subject|subject|subject subject course school_subject
    grade|grade|grade grade mark result
    level|1-12|grade class level school_grade
    relation|relation|relation relation relative relationship family_member
    elder|elder|relation relation relative
    code|code|code code id number product_code reference
    password|password|password password passcode secret
    seat|seat|seat seat seat_number
    room|room|room room room_number number room_id
    floor|1-40|floor floor level floor_number
    platform|1-20|platform platform track platform_number
    gate|gate|gate gate gate_number departure_gate
    flight|flight|flight flight flight_number flight_code flight_id
    airline|airline|airline airline carrier airline_name
    invoice|invoice|invoice invoice invoice_number number id invoice_id
    order|order|order order_number order order_id number id order_no
    userid|userid|id id user_id number
    employees|3-5000|employees employees staff employee_count headcount
    population|100-99999|population population people inhabitants
    temperature|1-40|temperature temperature temp degrees
    weather|weather|weather weather condition
    distance|1-900|distance distance length how_far
    length|2-900|length length long length_cm
    width|2-200|width width wide width_cm
    height|120-210|height height height_cm how_tall
    meters|5-400|height height height_m how_high
    rlength|50-6900|length length km river_length
    weight|1-120|weight weight mass weight_kg
    score|1-120|score score points
    goals|1-9|goals goals score goal_count number_of_goals
    rank|1-50|place rank position ranking
    team|team|team team club team_name
    opponent|team|opponent opponent rival other_team
    instrument|instrument|instrument instrument musical_instrument
    material|material|material material made_of
    building|building|building building structure
    river|river|river river river_name name
    website|website|website website url site link
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
        tacos, steak, noodles, chocolate, apple pie, fish and chips, ice cream, spaghetti, omelette, burgers, risotto, goulash, paella, falafel, dumplings, pea soup, porridge, ramen, meatballs"""
    ),
    "drink": _list(
        """coffee, tea, latte, espresso, cappuccino, lemonade, cola, orange juice, green tea, hot chocolate, milkshake, mocha,
        smoothie, iced tea, apple juice, beer, cider, black coffee, soda, mint tea, macchiato"""
    ),
    "size": _list("small, small, medium, medium, large, large, big, regular, extra large, double, tiny"),
    "fit": _list("S, M, L, XL, XXL, small, medium, large, extra large"),
    "goods": _list(
        """rice, flour, sugar, potatoes, cement, sand, salt, coffee, beans, onions, carrots, corn, dog food, cat food, apples,
        soil, gravel, wheat, oats, lentils, cheese, nuts, tomatoes, bird seed, washing powder, coal"""
    ),
    "airline": _list("Lufthansa, Ryanair, Delta, Emirates, KLM, Iberia, Air France, British Airways, Swiss, Qantas, easyJet, Finnair, United"),
    "river": _list("Rhine, Danube, Nile, Thames, Seine, Volga, Amazon, Elbe, Tiber, Loire, Congo, Ganges, Oder, Niger, Po, Ebro, Mekong"),
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
    "country": (*sorted(set(CAPITALS) - {"Netherlands", "Philippines", "United Kingdom", "United States"}), "Scotland", "Wales", "Jamaica", "Malta", "Cyprus", "New Zealand", "Bolivia", "Israel"),
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
        """sales, marketing, finance, IT, accounting, research, support, training, planning, logistics, design, legal, purchasing, HR, security,
        production, customer service, human resources, quality control, engineering"""
    ),
    "subject": _list(
        """math, physics, history, biology, chemistry, geography, music, art, English, French, economics, medicine, law,
        philosophy, computer science, literature, Spanish, psychology, Latin, statistics, astronomy, engineering"""
    ),
    "instrument": _list(
        """piano, guitar, violin, flute, trumpet, cello, harp, saxophone, clarinet, trombone, organ, banjo, ukulele,
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
    "building": _list("tower, church, bridge, castle, town hall, museum, school, station, library, lighthouse, temple, hotel, palace, theater"),
    "team": _list(
        """Arsenal, Barcelona, Chelsea, Ajax, Bayern, Liverpool, Celtic, Juventus, Porto, Real Madrid, Inter, Dortmund, Everton,
        Valencia, Benfica, Galatasaray, Manchester United, Lakers, Bulls, City United, Roma, Rangers, Sharks, Boston Celtics, Napoli, Sevilla, Warriors"""
    ),
    "company": _list(
        """Siemens, Google, Bosch, Apple, Nokia, Philips, Amazon, Ikea, Shell, Sony, Samsung, Microsoft, Intel, Nestle, Lego,
        Adidas, Netflix, Blue Lamp Ltd, Acme, Acme Corp, Globex, Initech, Oak & Sons, Sunrise Bakery, Tesla, Green Energy, Danone,
        Unilever, Delta Airlines, Lufthansa, North Bank, Hill Brothers, Spotify, Nike, Volvo, City Hospital"""
    ),
    "grade": _list("A, B, C, D, A+, B+, C+, A-, B-"),
    **{kind: _list(text) for kind, text in MORE_LISTS.items()},
}  # fmt: skip
_CAPITALISED = frozenset({"car", "team", "company", "airline", "river"})
_OPEN = frozenset(
    {
        "car",
        "team",
        "company",
        "food",
        "drink",
        "product",
        "items",
        "event",
        "hobby",
        "job",
        "airline",
        "river",
    }
)
"""Lists to which a made-up word is added now and then; beside the others it would leave doubt what it belongs to."""


def value(rng: random.Random, slot: str) -> str | int:
    """Return a value for `slot`: a bare number is an integer, everything else text."""
    kind = FIELDS[slot].kind
    low, dash, high = kind.partition("-")
    if dash:
        return rng.randint(int(low), int(high))
    if kind in FORMS:
        return FORMS[kind](rng)
    if kind not in _OPEN or rng.random() < 0.88:
        return rng.choice(_LISTS[kind])
    made_up = pseudo_word(rng) + ("s" if kind == "items" else "")
    return made_up.title() if kind in _CAPITALISED else made_up
