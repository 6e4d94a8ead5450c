"""Word lists. Operands are spelled a character per token, but for `TEMPLATE_WORDS` and `FREQUENT_WORDS`."""

import random

WORDS = tuple(
    """apple banana orange lemon cherry grape peach mango melon berry tomato potato carrot onion garlic bread butter cheese
    honey sugar pepper coffee water river ocean lake sea beach island mountain valley forest tree flower rose garden
    grass leaf stone rock sand snow rain cloud storm wind thunder fire smoke light shadow sun moon star planet sky night
    morning evening summer winter spring autumn cat dog horse cow sheep goat pig chicken duck goose eagle owl crow
    sparrow fish shark whale dolphin turtle frog snake lizard spider ant bee butterfly tiger lion bear wolf fox rabbit
    mouse rat monkey elephant giraffe zebra camel panda kangaroo penguin house home door window wall roof floor room
    kitchen table chair bed lamp mirror clock book page pencil paper letter window bottle glass cup plate spoon fork
    knife bag box key lock coin money shirt shoe hat coat dress ring crown sword shield castle tower bridge road street
    city village town country school teacher student doctor nurse farmer baker king queen prince princess knight wizard
    dragon giant robot pirate sailor captain friend mother father sister brother baby child family car bus train plane
    boat ship bike truck wheel engine rocket music song dance guitar piano drum violin paint color red blue green yellow
    purple pink brown black white gray silver gold big small tall short long wide deep high low fast slow hot cold warm
    cool dry wet hard soft loud quiet happy sad angry brave clever kind gentle lazy busy tired hungry thirsty young old
    new early late bright dark clean dirty empty full heavy strong weak rich poor sweet sour bitter fresh sharp smooth
    run walk jump swim fly sing sleep eat drink read write speak listen look see hear think dream laugh cry play work
    build break open close push pull throw catch climb fall rise grow learn teach help give take bring carry send find
    lose win love hate hope wish want need like quick lucky magic secret simple strange sudden silent golden wooden
    winter pocket puzzle rabbit saddle tunnel velvet window yogurt zipper anchor basket candle desert enigma falcon
    galaxy hammer igloo jacket kettle ladder magnet needle orchid parrot quartz ribbon salmon temple umbrella violet
    walnut xylophone zebra alpha bravo delta echo foxtrot hotel india juliet kilo lima metro november oscar papa quebec
    romeo sierra tango uniform victor whiskey yankee zulu python server model token batch cache kernel cohort tiny
    hello world good morning every today tomorrow yesterday never always maybe people world time day year life hand
    eye face head heart mind body voice word name story game party gift cake cookie candy pizza pasta soup salad rice
    bean corn egg milk juice tea wine beer salt wonderful beautiful computer keyboard monitor internet science history
    nature animal machine chocolate pineapple strawberry sunflower rainbow football baseball birthday afternoon""".split()
)
FUNCTION_WORDS = tuple(
    """the a an i you he she we they it is are was in on at to of and or but not my your his her our this that these
    very so too with from for by up down over under near here there all some one two three four five can will do what
    who how when where why if as has have had me him us them be go no yes""".split()
)
TEMPLATE_WORDS = tuple(
    """about accurate act activity add added addition afraid after again age ahead alarm alright altogether am amount
    another answer answers app apples arguments around article asked assistant author back backward backwards balls
    bedtime beginning belongs better between booking books bot bought brief briefly bring calculate calendar call
    called cancel cancels candies capital capitalise capitalize capitals caps cards carefully cars case category
    chairs chat check chef city classroom clearly close cohort coins combined come company compute concise contact
    content context control conversion convert converter cookies cooking copy correctly costs could count countdown
    counting create cups currency current customer customers danced database date day definition degrees delete
    deletes demo developer dice dictionary difference directions does dollars don dreamed duration else email
    employees end english equals euros event everyone everything exact exactly exchange expert expression extract
    extraction faces fairy false fell fields file filename find finds fine first flight flowers follow following
    food forecast forgot form format formula found friday friendly function geography get ghost girl give good
    goodbye government great greet guests guidelines happen hello help helped helper helpful hey honest honestly
    horoscope hour hours idea inclusive increase increased input integer into item job json just keep keys kindly
    know language last laughed lawyer let letters level like likes line list little live lives load location look
    looked lookup lost mail make many marbles march math message met million minutes model monday month more
    morning move much multiply must name named navigate navigation need needed new news next nights note nothing
    now number numbers obey object occupation ok okay old once only open opinion opposite oranges order ordered
    origin out output pages parameter parameters path percent person pet phone phrase place play please plus poet
    points policy polite politely population possible pretend price print priority problem product profession
    professor properties put quantity query question questions quickly qwen random rate read real recipe recipes
    recipient remind reminder remove repeat reply required reserve respond restaurant result results return returns
    reverse reversed right role rules same sang sat saturday save say scan schedule search seat second send sends
    sentence sentences sequence serve set share shared short shortly should shout show sides slept smiled someone
    something specialist species spelling sport stamps start started starting status stay step stock stones stop
    stories story strict string studied subject sum sunday support switch symbol sync system take tale target task
    team tell term test text than thank thanks then thermostat through thursday ticker till time timer timezone
    tiny title todo together tool tools topic total track transfer transform translate translator trees true try
    tuesday turn type until update upon upper uppercase use user users using value version volume walked want wants
    weather wednesday welcome well went were which whole wikipedia witch wonder word words works world would write
    year years yourself zodiac""".split()
)
"""Words of the wordings that are tokens of their own, so their spelling has to be learned word by word."""
FREQUENT_WORDS = tuple(
    """add all and animal are at body book bring build call can city clock close cohort coin color computer country do door
    down every find floor for friend from game get give good have hear hello help here high home hotel how in is it
    know letter light like lock long look make me model money morning music my name near need nice night number of on
    open out over page people pizza play read room school send server set short sleep some song speak story table take
    tell that the there these they think this time tiny to today train under up very want water what when where will
    window with word work world write year you your""".split()
)
"""Operands that the wordings, those of tools most of all, use several times as often: tokens of their own wherever they stand."""
NAMES = tuple(
    """Anna Tom Maria John Peter Lisa Sara David Emma Noah Liam Olivia Ava Mia Lucas Ethan Sofia Leo Max Paul Jane Kate
    Mark Lucy Alice Bob Carol Dan Eve Frank Grace Henry Ivan Julia Karl Laura Mike Nina Oscar Paula Quinn Rita Steve Tina
    Uma Victor Wendy Xavier Yuki Zoe Aisha Bruno Chloe Diego Elena Felix Gina Hugo Ines Jonas Kira Lars Mona Nils Olga
    Pablo Rosa Simon Tara Ulrich Vera Walter Yara Zack Ahmed Bella Carlos Diana Erik Fatima George Hannah Igor Jack
    Kevin Linda Mohamed Nadia Oliver Priya Raj Sven Tessa Umar Viktor William Xenia Yusuf Zara James Robert Sarah Daniel
    Michael Emily Sophie Charlotte Amelia Benjamin Alexander Samuel""".split()
)
SURNAMES = tuple(
    """Smith Jones Brown Miller Davis Wilson Moore Taylor Lopez Garcia Khan Singh Chen Wang Kim Lee Novak Kowalski Rossi
    Silva Costa Meyer Schmidt Weber Fischer Larsen Hansen Berg Lind Murphy Kelly Walsh Clark Lewis Young Hall Allen King
    Wright Scott Green Baker Adams Nelson Hill Rivera Campbell Mitchell Carter Roberts""".split()
)
CITIES = tuple(
    """Paris London Berlin Madrid Rome Oslo Vienna Prague Dublin Lisbon Athens Warsaw Tokyo Seoul Cairo Lima Delhi Mumbai
    Chicago Boston Denver Seattle Austin Dallas Houston Miami Toronto Montreal Sydney Melbourne Zurich Geneva Munich
    Hamburg Cologne Milan Naples Turin Barcelona Seville Porto Lyon Nice Marseille Bordeaux Antwerp Ghent Utrecht
    Rotterdam Bergen Malmo Aarhus Tampere Riga Vilnius Kyiv Minsk Sofia Bucharest Zagreb Split Sarajevo Tirana Ankara
    Izmir Tunis Lagos Accra Nairobi Harare Dakar Havana Bogota Quito Caracas Santiago Mendoza Cordoba Recife Manila
    Jakarta Hanoi Osaka Kyoto Nagoya Busan Shanghai Beijing Taipei Karachi Lahore Dhaka Kabul Tehran Baghdad Doha Dubai
    Leeds Bristol Oxford Cambridge Glasgow Cardiff Belfast Cork Galway Phoenix Portland Atlanta Detroit Memphis""".split()
)
CAPITALS = dict(
    pair.split(":")
    for pair in """France:Paris|Germany:Berlin|Italy:Rome|Spain:Madrid|Portugal:Lisbon|Ireland:Dublin|United Kingdom:London
    Austria:Vienna|Switzerland:Bern|Belgium:Brussels|Netherlands:Amsterdam|Denmark:Copenhagen|Norway:Oslo
    Sweden:Stockholm|Finland:Helsinki|Iceland:Reykjavik|Poland:Warsaw|Czechia:Prague|Hungary:Budapest|Greece:Athens
    Turkey:Ankara|Russia:Moscow|Ukraine:Kyiv|Romania:Bucharest|Bulgaria:Sofia|Serbia:Belgrade|Croatia:Zagreb
    Slovenia:Ljubljana|Slovakia:Bratislava|Estonia:Tallinn|Latvia:Riga|Lithuania:Vilnius|Egypt:Cairo|Morocco:Rabat
    Kenya:Nairobi|Nigeria:Abuja|Ghana:Accra|Ethiopia:Addis Ababa|Tunisia:Tunis|Japan:Tokyo|China:Beijing
    India:New Delhi|South Korea:Seoul|Thailand:Bangkok|Vietnam:Hanoi|Indonesia:Jakarta|Philippines:Manila
    Nepal:Kathmandu|Iran:Tehran|Iraq:Baghdad|Canada:Ottawa|United States:Washington|Mexico:Mexico City|Cuba:Havana|Brazil:Brasilia
    Argentina:Buenos Aires|Chile:Santiago|Peru:Lima|Colombia:Bogota|Australia:Canberra""".replace(
        "\n", "|"
    ).split("|")
    for pair in [pair.strip()]
)
UNKNOWN_PLACES = (
    *"""Senegal Wakanda Atlantis Narnia Mordor Gondor Texas California Florida Ohio Bavaria Scotland Wales Quebec Ontario Mongolia
    Bolivia Paraguay Uruguay Ecuador Venezuela Panama Haiti Jamaica Honduras Guatemala Albania Kosovo Moldova Belarus
    Armenia Georgia Azerbaijan Kazakhstan Uzbekistan Pakistan Bangladesh Myanmar Laos Cambodia Malaysia Singapore Taiwan
    Fiji Samoa Tonga Libya Algeria Sudan Somalia Uganda Rwanda Tanzania Zambia Zimbabwe Angola Namibia Botswana Mali
    Niger Chad Togo Benin Gabon Cameroon Mars Jupiter Europe Africa Asia Malta Cyprus Luxembourg Monaco Andorra Israel
    Jordan Syria Lebanon Yemen Oman Qatar Kuwait Afghanistan Tibet Hawaii Alaska Sicily Westeros Antigua Bahamas Bahrain
    Barbados Belize Bhutan Bosnia Brunei Burundi Comoros Congo Djibouti Dominica Emirates Eritrea Eswatini Gambia
    Grenada Guinea Guyana Kiribati Kyrgyzstan Lesotho Liberia Liechtenstein Madagascar Malawi Maldives Mauritania
    Mauritius Micronesia Montenegro Mozambique Nauru Nicaragua Palau Palestine Seychelles Suriname Tajikistan Timor
    Trinidad Turkmenistan Tuvalu Vanuatu Greenland Catalonia Andalusia Tuscany Sardinia Corsica
    Brittany Normandy Flanders Saxony Hesse Tyrol Lapland Siberia Crimea Chechnya Dagestan Kurdistan Kashmir Punjab
    Kerala Gujarat Bengal Bali Java Sumatra Borneo Okinawa Hokkaido Bermuda Aruba Guam Gibraltar Zanzibar Somaliland
    Transylvania Bohemia Moravia Galicia Colorado Nevada Utah Arizona Oregon Montana Idaho Kansas Nebraska Iowa Illinois
    Indiana Michigan Wisconsin Minnesota Missouri Arkansas Louisiana Alabama Tennessee Kentucky Virginia Maryland
    Delaware Pennsylvania Connecticut Vermont Maine Massachusetts Oklahoma Wyoming Manitoba Alberta Saskatchewan Yukon
    Tasmania Queensland Victoria Antarctica Oceania Saturn Venus Neptune Hogwarts Rohan Asgard Genovia""".split(),
    "Burkina Faso",
    "Cape Verde",
    "Costa Rica",
    "Dominican Republic",
    "El Salvador",
    "East Timor",
    "Equatorial Guinea",
    "Ivory Coast",
    "Central African Republic",
    "Saint Kitts",
    "Sao Tome",
    "Marshall Islands",
    "New Zealand",
    "North Korea",
    "North Macedonia",
    "Papua New Guinea",
    "San Marino",
    "Saudi Arabia",
    "Sierra Leone",
    "Solomon Islands",
    "South Africa",
    "South Sudan",
    "Sri Lanka",
    "Vatican City",
    "Northern Ireland",
    "Saint Lucia",
    "Saint Vincent",
    "Guinea-Bissau",
    "Puerto Rico",
    "Hong Kong",
    "New Jersey",
    "New Mexico",
    "North Dakota",
    "South Carolina",
    "West Virginia",
    "British Columbia",
    "Nova Scotia",
    "New Caledonia",
    "French Guiana",
    "South America",
    "Middle Earth",
)
_ONSETS = "b c d f g h j k l m n p r s t v w z br cr dr fl gr pl sh st tr th ch sk sl".split()
_VOWELS = "a e i o u a e i o ai ea oo".split()
_CODAS = ["", "", "n", "r", "s", "t", "l", "m", "nd", "st", "ck", "x", "p", "g", "d"]


def pseudo_word(rng: random.Random) -> str:
    """Return a made-up pronounceable word of one to three syllables, such as "dorvin"."""
    syllables = rng.choice((1, 2, 2, 3))
    word = "".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS) for _ in range(syllables))
    return word[:10]
