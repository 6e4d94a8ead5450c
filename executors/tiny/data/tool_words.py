"""Word lists that argument values of tool calls are made of."""

VERBS = tuple(
    """buy call clean fix pay water feed check send read write finish book order pick pack wash paint sell find bring
    cook bake visit meet ask help make take get move open close start stop print sign update review cancel return
    collect charge walk plan change build learn draw cut plant grow tie peel remove install draft test return""".split()
)
PEOPLE = tuple(
    "grandma grandpa mom dad my the_boss my_sister the_doctor the_dentist the_bank my_friend the_plumber my_wife".split()
)
WHENCE = ("in", "for", "of", "on", "from", "with", "at", "near", "to", "without", "about", "after")
LINES = tuple(
    """thank you|good morning|where is the station|how are you|see you later|I am late|good night|see you soon|the food
    is ready|I love you|happy birthday|on my way|call me back|I will be there soon|where are you|can we talk|the meeting
    is over|excuse me|how much is it|I would like a coffee|it is cold outside|do you have a room|dinner is ready|are you
    home|running late|what is your name|I do not understand|my train is late|good luck|no problem""".replace(
        "\n    ", " "
    ).split("|")
)
FIXED_TOPICS = tuple(
    """electric cars|climate change|artificial intelligence|the stock market|space travel|machine learning|solar energy|
    the election|football|tennis|the economy|world history|black holes|healthy food|cheap flights|running shoes|python tutorials|the olympics|renewable energy|video games|interest rates|chess|the French revolution|quantum physics|jazz|
    home gardening|used bikes|vegan recipes|the weather on Mars|cloud computing""".replace(
        "\n    ", ""
    ).split("|")
)
TITLES = tuple(
    """Team meeting|Quarterly report|Lunch plans|Dentist appointment|Project update|Birthday party|Sales review|Doctor
    visit|Budget review|Yoga class|Board meeting|Invoice|Job interview|Parent evening|Weekly sync|Piano lesson|Design
    review|Travel plans|Vacation|Status report|Meeting notes|Happy birthday|Stand-up|Monthly newsletter|Road trip""".replace(
        "\n    ", " "
    ).split("|")
)
TWO_WORD_CITIES = tuple(
    """San Diego|New York|Cape Town|Los Angeles|San Francisco|Las Vegas|Hong Kong|Tel Aviv|Rio de Janeiro|Salt Lake City|
    New Orleans|San Jose|Kuala Lumpur|Sao Paulo|Santa Fe|Fort Worth|St Louis|Kansas City|El Paso|Panama City|New Delhi|
    Abu Dhabi|Mexico City|Buenos Aires|Palo Alto|Baton Rouge""".replace("\n    ", "").split("|")
)
LANDMARKS = tuple(
    """Central Park|Times Square|the airport|the train station|Big Ben|Union Square|Hyde Park|the Eiffel Tower|City Hall|
    Penn Station|Brooklyn Bridge|the museum|Tower Bridge|Grand Central|the city center|Golden Gate Park|the library|Wall
    Street|the beach|Main Street|the hospital|the office|the zoo|Abbey Road|Sunset Boulevard|home|work""".replace(
        "\n    ", " "
    )
    .replace("| ", "|")
    .split("|")
)
PLACE_NOUNS = "Park Square Street Station Bridge Tower Hill Lake Avenue Road Plaza Mall Airport Museum Garden Market".split()
ARTISTS = tuple(
    """Daft Punk|Adele|The Beatles|Queen|Coldplay|Taylor Swift|Bob Dylan|Pink Floyd|David Bowie|Miles Davis|Nirvana|Beyonce|
    Mozart|Bach|Drake|Radiohead|Johnny Cash|Elvis Presley|Bob Marley|Madonna|Prince|The Rolling Stones|Ed Sheeran|ABBA|
    U2|Fleetwood Mac|Nina Simone|Metallica|Billie Eilish|Led Zeppelin""".replace("\n    ", "").split("|")
)
LANGUAGES = tuple(
    """French Spanish German Italian Dutch Polish Greek Turkish Swedish Latin Korean Danish Czech Japanese Chinese Russian
    Arabic Hindi Portuguese Finnish Norwegian Hungarian Romanian Ukrainian Hebrew Thai Vietnamese Croatian Swahili
    Irish Welsh Icelandic English Mandarin Persian Urdu Bengali""".split()
)
CUISINES = tuple(
    """Thai Italian Indian Chinese Mexican Japanese Greek French Turkish Korean Spanish Vietnamese Lebanese Ethiopian
    American vegan vegetarian sushi pizza seafood tapas ramen burger Moroccan Polish German Persian Cuban""".split()
)
CODES = (
    "USD EUR GBP JPY CHF CAD AUD SEK NOK DKK PLN CZK INR CNY BRL MXN ZAR NZD TRY KRW SGD HKD THB ILS".split()
)
MONEY = "dollars euros pounds yen francs rupees pesos crowns".split()
UNITS = tuple(
    """km miles meters feet inches cm mm yards kg pounds grams ounces liters gallons cups pints celsius fahrenheit kelvin
    hours minutes seconds days weeks kilometers centimeters kilograms stones acres hectares knots""".split()
)
ROOMS = tuple(
    """kitchen bedroom bathroom hallway garage living_room office basement garden attic dining_room kids_room guest_room
    hall study porch balcony cellar nursery lobby laundry_room terrace corridor entrance""".split()
)
DEVICES = tuple(
    """fan heater tv radio lamp coffee_machine oven printer air_conditioner vacuum dishwasher kettle sprinkler alarm
    speaker router camera humidifier washing_machine boiler projector""".split()
)
EXTENSIONS = "pdf txt csv json md py docx png jpg xlsx html log zip yaml mp3 sql".split()
WEEKDAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
TICKERS = "TSLA AAPL MSFT GOOG AMZN NVDA META NFLX IBM INTC AMD ORCL BA KO PEP DIS NKE SAP UBER SONY".split()
DISHES = "lasagna pizza pancakes paella tomato_soup chicken_curry apple_pie sushi risotto banana_bread goulash".split()
