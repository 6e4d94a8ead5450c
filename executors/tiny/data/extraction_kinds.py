"""Fields of `extraction_people`, `extraction_things` and `extraction_notices`: rows `slot|kind|keys`, lists of values."""

MORE_FIELDS = """
    son|person|son son son_name child child_name
    daughter|person|daughter daughter daughter_name child child_name
    kid|person|child child child_name kid name
    kidage|1-15|age age child_age kid_age how_old
    mother|person|mother mother mother_name mom
    father|person|father father father_name dad
    husband|person|husband husband husband_name spouse
    wife|person|wife wife wife_name spouse
    brother|person|brother brother brother_name
    sister|person|sister sister sister_name
    friend|person|friend friend friend_name
    boss|person|boss boss manager boss_name supervisor
    teacher|person|teacher teacher teacher_name
    coach|person|coach coach coach_name trainer
    doctor|doctor|doctor doctor doctor_name physician
    driver|person|driver driver driver_name name
    tenant|person|tenant tenant tenant_name name renter
    landlord|person|landlord landlord landlord_name
    agent|person|agent agent contact agent_name
    speaker|person|speaker speaker speaker_name name
    host|person|host host host_name
    winner|person|winner winner name champion winner_name
    captain|person|captain captain captain_name
    farmer|person|farmer farmer name farmer_name
    actor|person|actor actor star actor_name
    character|first|character character hero character_name name
    chef|person|chef chef cook chef_name
    mayor|person|mayor mayor mayor_name name
    painter|person|painter painter artist painter_name
    candidate|person|candidate candidate name candidate_name
    applicant|person|name name applicant candidate applicant_name
    experience|2-30|experience experience years years_of_experience
    weekly|10-45|hours hours hours_per_week weekly_hours
    vacation|10-35|vacation_days vacation_days days days_off
    sickdays|2-14|sick_days sick_days days days_absent
    wage|10-60|wage wage hourly_wage hourly_rate pay
    pupils|8-35|students students class_size number_of_students pupils
    class|class|class class class_name
    school|school|school school school_name
    symptom|symptom|symptom symptom complaint problem
    illness|illness|illness illness diagnosis disease
    bodypart|bodypart|body_part body_part injury
    medicine|medicine|medicine medicine drug medication
    dose|5-800|dose dose dose_mg mg dosage
    pills|2-60|pills pills tablets pill_count
    pulse|50-160|pulse pulse heart_rate
    days|2-30|days days duration number_of_days how_long
    babyage|2-11|months months age age_in_months
    interval|2-30|days days interval interval_days
    overtime|2-20|overtime overtime hours overtime_hours
    warranty|2-10|warranty warranty years warranty_years
    lived|2-30|years years duration how_long
    delay|5-90|delay delay minutes delay_minutes minutes_late
    jobs|10-5000|jobs jobs number_of_jobs job_count
    months|2-24|months months duration number_of_months how_long
    brand|brand|brand brand make manufacturer
    device|device|device device product item product_name
    storage|16-512|storage storage storage_gb gb memory
    battery|2-100|battery battery battery_level battery_percent
    screen|10-85|screen_size screen_size screen inches
    mileage|1000-250000|mileage mileage odometer car_mileage
    speed|15-300|speed speed velocity how_fast
    plate|plate|license_plate license_plate plate plate_number
    home|home|property property type property_type kind
    rooms|2-12|rooms rooms number_of_rooms room_count
    bedrooms|2-6|bedrooms bedrooms number_of_bedrooms bedroom_count
    bathrooms|2-4|bathrooms bathrooms number_of_bathrooms
    area|20-400|area area square_meters sqm size
    rent|300-3000|rent rent price monthly_rent cost
    ingredient|ingredient|ingredient ingredient item food
    grams|20-900|grams grams amount weight
    eggs|2-12|eggs eggs egg_count number_of_eggs
    spoons|2-9|spoons spoons spoon_count number_of_spoons
    servings|2-12|servings servings portions people serves
    calories|50-900|calories calories kcal
    oven|120-240|temperature temperature oven_temperature degrees temp
    stars|2-5|rating rating stars star_rating
    discount|5-75|discount discount percent discount_percent
    amount|5-9500|amount amount sum money
    balance|10-9500|balance balance account_balance
    bank|bank|bank bank bank_name
    purpose|purpose|purpose purpose reason
    problem|problem|problem problem issue defect
    courier|courier|courier courier carrier delivery_company
    tracking|tracking|tracking_number tracking_number tracking tracking_id
    parcels|2-20|parcels parcels packages number_of_parcels
    livestock|livestock|animal animal animals livestock
    herd|2-300|count count number quantity how_many
    crop|crop|crop crop plant
    hectares|2-900|hectares hectares area
    plant|plant|plant plant plant_name flower
    vegetable|vegetable|vegetable vegetable item product
    kilos|2-90|weight weight kg kilos weight_kg
    liters|2-90|liters liters litres volume
    shop|shop|shop shop store store_name shop_name
    breed|breed|breed breed dog_breed
    result|result|result result score final_score
    medal|medal|medal medal
    minute|2-90|minute minute goal_minute
    hteam|team|home_team home_team home team1
    ateam|team|away_team away_team away team2
    hgoals|0-9|home_goals home_goals home_score
    agoals|0-9|away_goals away_goals away_score
    wteam|team|winner winner winning_team
    lteam|team|loser loser losing_team
    fans|500-90000|attendance attendance fans spectators visitors
    seconds|5-90|seconds seconds time_in_seconds
    band|band|band band artist band_name group
    venue|venue|venue venue place location
    series|title|title title series show series_title
    seasons|2-12|seasons seasons number_of_seasons season_count
    episodes|4-60|episodes episodes number_of_episodes episode_count
    painting|title|title title painting painting_title
    game|game|game game title game_name
    players|2-8|players players number_of_players player_count
    coins|5-900|coins coins coin_count gold
    glevel|2-99|level level player_level
    weapon|weapon|weapon weapon item
    hotel|hotel|hotel hotel hotel_name
    bags|2-6|bags bags luggage number_of_bags
    adults|2-8|adults adults number_of_adults
    kids|2-6|children children kids number_of_children
    wind|5-120|wind wind wind_speed
    humidity|10-100|humidity humidity
    rain|2-90|rain rain rain_mm rainfall
    high|15-40|high high max high_temperature max_temperature
    low|1-14|low low min low_temperature min_temperature
    votes|100-90000|votes votes vote_count number_of_votes
    injured|2-60|injured injured injured_people number_of_injured
    prize|50-9000|prize prize prize_money
    street|street|street street road street_name
    mountain|mountain|mountain mountain peak mountain_name
    elevation|800-8800|height height elevation height_m
    floors|2-90|floors floors number_of_floors floor_count
    busno|2-300|bus bus bus_number bus_line line
    tramno|1-60|tram tram tram_number line
    trainno|2-990|train train train_number
    flightno|2-990|flight flight flight_number
    truckno|1-99|truck truck truck_number vehicle
    taxino|2-200|taxi taxi taxi_number cab
    tableno|1-40|table table table_number
    roomno|2-600|room room room_number
    taskno|1-40|exercise exercise exercise_number task
    pageno|2-600|page page page_number
    carno|1-99|car car car_number
    shirtno|1-99|number number shirt_number jersey
    houseno|1-199|house_number house_number number house
    lineno|1-12|line line line_number
    boxno|1-300|box box box_number
    chapterno|1-40|chapter chapter chapter_number lesson
    stopplace|stopplace|destination destination stop place
    second|person|loser loser second opponent
"""
"""Keys as in `extraction_values.FIELDS`: the first ones, repeated, are the usual ones."""

MORE_LISTS = {
    "stopplace": """airport, station, harbor, market, stadium, museum, hospital, beach, zoo, old town, city center, town hall,
        main square, library, theater, fair""",
    "symptom": """headache, cough, fever, sore throat, toothache, back pain, rash, stomach ache, earache, runny nose, chest
        pain""",
    "illness": "flu, cold, asthma, diabetes, measles, bronchitis, allergy, pneumonia, food poisoning, migraine",
    "bodypart": "arm, leg, knee, ankle, wrist, shoulder, finger, toe, nose, elbow, foot, hand, left arm, right knee",
    "medicine": """aspirin, ibuprofen, paracetamol, insulin, penicillin, antibiotics, cough syrup, vitamin C, vitamin D, eye
        drops""",
    "brand": """Samsung, Apple, Sony, LG, Dell, HP, Lenovo, Bosch, Canon, Nikon, Philips, Asus, Nokia, Huawei, Xiaomi,
        Miele, Acer, Nintendo""",
    "device": """laptop, phone, tablet, printer, camera, TV, monitor, router, headphones, smartphone, speaker, console,
        smartwatch, e-reader, vacuum cleaner, dishwasher, freezer, microwave, projector, hard drive, mouse,
        keyboard, air fryer""",
    "home": """apartment, house, studio, flat, villa, cottage, cabin, loft, bungalow, farmhouse, townhouse, garage,
        shop, office""",
    "ingredient": """flour, sugar, butter, rice, chocolate, cheese, oats, ham, bacon, chicken, beef, almonds, spinach,
        mushrooms, cream, pasta, yogurt, raisins, salmon, minced meat, lentils, brown sugar""",
    "bank": """North Bank, City Bank, Barclays, HSBC, Santander, Chase, Deutsche Bank, ING, Revolut, First National,
        Wells Fargo""",
    "purpose": """rent, dinner, groceries, a new bike, school fees, the trip, electricity, books, insurance, a gift,
        concert tickets, gas""",
    "problem": """broken screen, flat tire, dead battery, water damage, loose cable, cracked lens, paper jam, strange
        noise, oil leak, broken handle, missing button, bad smell, slow internet, broken zipper""",
    "courier": "DHL, UPS, FedEx, Hermes, DPD, GLS, TNT, Royal Mail, USPS",
    "livestock": """cows, goats, sheep, hens, pigs, horses, ducks, geese, turkeys, rabbits, donkeys, ponies, bees, llamas,
        chickens""",
    "crop": """wheat, corn, barley, potatoes, rye, soybeans, cotton, sunflowers, sugar beets, grapes, olives, pumpkins,
        rice, oats""",
    "plant": """rose, cactus, orchid, fern, palm, tulip, ivy, lavender, basil, mint, sunflower, bonsai, oak, lemon tree,
        tomato plant""",
    "vegetable": "potatoes, carrots, onions, tomatoes, cucumbers, peppers, beans, mushrooms, pumpkins, leeks, beets, turnips",
    "shop": """Lidl, Aldi, Tesco, Walmart, Target, Ikea, Carrefour, Costco, Zara, Decathlon, Media World, Spar, Macy's,
        Book Corner""",
    "breed": """beagle, poodle, labrador, husky, pug, terrier, dachshund, boxer, collie, bulldog, dalmatian, golden
        retriever, greyhound""",
    "medal": "gold, silver, bronze",
    "game": """Tetris, Minecraft, Monopoly, Scrabble, Catan, Uno, Zelda, Mario Kart, Risk, Jenga, Pac-Man, Fortnite,
        Cluedo, Roblox, Battleship, Stardew Valley, Ticket to Ride""",
    "weapon": "sword, bow, axe, magic wand, spear, dagger, hammer, shield, iron sword, long bow, staff, sling, crossbow",
    "mountain": """Everest, Mont Blanc, Kilimanjaro, Matterhorn, Fuji, Olympus, Etna, Ararat, Elbrus, Denali, Ben Nevis,
        Eiger, Snowdon""",
}  # fmt: skip
"""Phrases separated by commas."""
