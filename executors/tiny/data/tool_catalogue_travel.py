"""Tools of places and money: weather, routes, trips, restaurants, prices, conversions."""

from executors.tiny.data.tool_kind import read_kinds

TRAVEL = read_kinds("""
weather: get_weather weather get_current_weather weather_lookup fetch_weather check_weather
Get the [current |]weather [in|for] a [city|location][.|]; Returns the weather for a [city|place]; [Current|Today's] weather[ of a city|]; Current weather
city/location/place/city_name:city
[what is|what's|how is|how's] the weather [|like |today |now ]in {0}[| today| now| right now]; [tell me|check|get|show me] the weather [in|for] {0}; is it [raining|sunny|cold|warm|hot|snowing|windy] in {0}[| today| now| right now]; ~weather in {0}[| today| now]; ~weather [for|of] {0}[| please]; [do I need|should I take|should I bring] an umbrella in {0}
how [hot|cold|warm] is it in {0}[| today]; what will the weather be [|like ]in {0}; does it rain in {0}[| today]; ~{0} weather; what is it like outside in {0}; what are the temperatures in {0}; ~I am going to {0}, how is the weather; do I need a [coat|jacket|sweater] in {0}

weather: get_forecast weather_forecast forecast get_weather_forecast
Get the weather forecast for [a city on a day|a day][.|]; Weather forecast; Forecast for a place on a day
city/location/place:city day/date/when:date
[what is|give me|show|get] the [weather |]forecast for {0} on {1}; will it [rain|snow|be sunny|be cold|be warm] in {0} on {1}; ~weather in {0} on {1}; ~forecast for {0}, {1}; what will the weather be [like |]in {0} on {1}; how will the weather be in {0} on {1}
what is the weather [like |]in {0} on {1}; is it going to [rain|snow|be nice] in {0} on {1}; will I need an umbrella on {1} in {0}; how [warm|cold|hot] will it be in {0} on {1}; ~I'm in {0} on {1}, what will the weather be like

weather: get_forecast weather_forecast daily_forecast
Weather forecast for [some|a number of] days[.|]; Get the forecast
city/location:city days/num_days:small
[give me|show me|get|what is] the {1} day forecast for {0}; ~{0} weather for the next {1} days; how will the weather be in {0} [over|in|for] the next {1} days; ~forecast for {0}, {1} days; [show|give] me the weather in {0} for {1} days; what will the next {1} days be like in {0}

weather: get_air_quality air_quality pollution
Get the air quality [in|of] a city[.|]; Air quality
city/location:city
[what is|how is|check|show me] the air quality in {0}; is the air [clean|good|bad] in {0}; ~air quality {0}; how [clean|bad|polluted] is the air in {0}; ~pollution in {0}; can I [breathe|run] outside in {0}

time: get_time current_time get_current_time time_in_city clock
Get the [current |local |]time in a [city|place|timezone][.|]; [Returns|Tells] the time in a city
city/location/timezone/place:city
what time is it in {0}[| now| right now]; [what is|what's|tell me|check|get] the [current |local |]time in {0}; ~time in {0}; how late is it in {0}; ~current time in {0}; is it [late|early|night|morning] in {0}[ now|]; ~{0} time; what's the time in {0}; do you have the time in {0}

flight: search_flights find_flights flight_search get_flights find_flight
[Find|Search] flights[ between two cities|][.|]; Flight search
origin/from/from_city/departure:city destination/to/to_city/arrival:city date/departure_date:date?
[find|show|search|get] [me |][a flight|flights] from {0} to {1}; ~I want to fly from {0} to {1}[. Any flights?|]; ~flights from {0} to {1}; are there [any |]flights from {0} to {1}; which flights go from {0} to {1}; [find|show] [me |]flights from {0} to {1} on {2}
~flights {0} to {1}; ~I need [a flight|to fly] from {0} to {1}; ~I'm flying from {0} to {1} on {2}; how can I fly from {0} to {1}; ~I need to get to {1} from {0}, what flights are there; is there a flight from {0} to {1} on {2}; [look|search] for flights to {1} from {0}; any [cheap |]flights [between|from] {0} [and|to] {1}

flight: book_flight flight_booking reserve_flight buy_ticket
Book a flight[ to a city|][.|]; Flight [booking|tickets]
to/destination/city:city day/date:date
book [me |]a flight to {0} [on|for] {1}; ~I want to fly to {0} on {1}; [get|buy|book] [me |]a [plane |flight |]ticket to {0} for {1}; fly me to {0} on {1}; ~flight to {0} on {1}; ~I need to be in {0} on {1}, book a flight; reserve a seat on a flight to {0} on {1}

flight: flight_status get_flight_status track_flight check_flight
[Get|Check] [the status of a flight|flight status][.|]; Flight status
flight_number/flight/number:code
[what is|check|show] the status of flight {0}; is flight {0} [on time|late|delayed]; [track|check] flight {0}; ~flight {0} status; when does flight {0} [land|arrive|leave]; has flight {0} [landed|left]; ~status of {0}

hotel: find_hotels search_hotels hotel_search get_hotels list_hotels
[Find|Search|List] hotels in a city[.|]; Hotel search
city/location/place/destination:city
which hotels are there in {0}; [find|show|search|list] [me |][hotels|a hotel|some hotels] in {0}; ~hotels in {0}; ~I need a [place to stay|hotel|room] in {0}; where can I [stay|sleep] in {0}; what hotels [does {0} have|are in {0}]; any [good |cheap |nice ]hotels in {0}; ~I'm looking for a hotel in {0}

hotel: book_hotel hotel_booking reserve_room reserve_hotel
[Book|Reserve] a hotel [room |][in a city|][.|]; Hotel booking
city/location:city nights/num_nights/duration:small
[book|reserve|find] [me |]a hotel [room |]in {0} for {1} nights; ~I need a [room|hotel] in {0} for {1} nights; ~hotel in {0}, {1} nights; ~I [want to stay|am staying] in {0} for {1} nights; get [me |us |]a room in {0} for {1} nights; book {1} nights in {0}; ~{1} nights in {0}, please book a hotel

hotel: book_hotel search_hotels hotel_booking
[Book|Find] a hotel[ for a date|][.|]; Hotels
city/location/destination:city check_in/date/check_in_date:date guests/people:small?
[book|reserve|find] [me |]a hotel in {0} [from|for] {1}; ~I need a hotel in {0} on {1}; ~hotel in {0}, {1}; find a room in {0} on {1} for {2} people; ~I arrive in {0} on {1} and need a hotel; [book|find] a hotel in {0} on {1} for {2} guests; where can I stay in {0} on {1}

train: find_train search_trains trains train_schedule get_trains
[Find|Search] [a train|trains][ between cities|][.|]; Train [schedule|times]
from/origin/start/from_station:city to/destination/end/to_station:city
[find|show|search] [me |][a train|trains] from {0} to {1}; ~[train|trains] from {0} to {1}; when does the [next |]train from {0} to {1} leave; ~I need to go from {0} to {1} by train; is there a train from {0} to {1}; which trains go from {0} to {1}; ~next train from {0} to {1}

train: next_bus bus_times bus_schedule get_bus
[Get|Find] the next bus[.|]; Bus times
stop/station/bus_stop:place line/bus/route:number?
when does the next bus leave [from|at] {0}; ~next bus from {0}; when is the next bus at {0}; [show|get|check] the bus times [for|at] {0}; when does bus {1} leave from {0}; ~bus times {0}; which buses stop at {0}

route: get_directions directions route navigate get_route
Get [directions|a route|the way] [from one place to another|][.|]; Navigation; Directions between two places
from/origin/start/start_location:place to/destination/end/end_location:place
~[directions|route|the way] from {0} to {1}; how do I get from {0} to {1}; navigate from {0} to {1}; [show|find|tell] [me |]the [way|route|best route] from {0} to {1}; [give|get] me directions from {0} to {1}; ~I'm at {0} and want to go to {1}
how do I [drive|walk] from {0} to {1}; what is the [best|fastest|shortest] way from {0} to {1}; ~I need to get to {1} from {0}; take me from {0} to {1}; which way is it from {0} to {1}; ~I need directions to {1} from {0}

route: get_distance distance calculate_distance distance_between
[Get|Calculate] the distance between [places|cities][.|]; Distance
from/origin/start/city1:city to/destination/end/city2:city
how far is it from {0} to {1}; what is the distance [between|from] {0} [and|to] {1}; ~distance from {0} to {1}; how far [away |]is {1} from {0}; how many [km|miles|kilometers] [is it|are there] from {0} to {1}; ~{0} to {1} distance

route: navigate_to get_directions navigate directions_to
[Navigate|Get directions] to a place[.|]; Navigation
destination/to/place/address:place
navigate to {0}; take me to {0}; how do I get to {0}; ~I want to go to {0}; [show|tell|give] me the way to {0}; ~directions to {0}; where is {0}; [drive|bring] me to {0}

taxi: book_taxi call_taxi order_taxi get_ride request_ride
[Book|Call|Order] a [taxi|cab|ride][.|]; Taxi
pickup/from/pickup_location:place destination/to/dropoff:place
[book|call|order|get] [me |]a [taxi|cab|ride] from {0} to {1}; ~I need a [taxi|cab|ride] from {0} to {1}; ~taxi from {0} to {1}; pick me up at {0} and take me to {1}; can I get a [taxi|cab|ride] from {0} to {1}; ~cab, {0} to {1}

parking: find_parking parking search_parking
Find [a |]parking[ space| spot|][.|]; Parking search
location/place/near/city:place
[find|show|get] [me |]parking [near|at|around] {0}; where can I park [near|at|around] {0}; ~parking near {0}; ~I need [a parking spot|to park] near {0}; is there [any |]parking [near|at] {0}; ~I'm looking for a parking space near {0}

rental: rent_car car_rental book_car
Rent a car[ in a city|][.|]; Car rental
city/location:city days/duration:small
rent [me |]a car in {0} for {1} days; ~I need a [rental |]car in {0} for {1} days; ~car rental in {0}, {1} days; [book|get] [me |]a [rental |]car in {0} for {1} days; can I rent a car in {0} for {1} days; ~{1} days with a rental car in {0}

restaurant: find_restaurant restaurant_search restaurants find_restaurants
[Find|Search] [a restaurant|restaurants][ in a city|][.|]; Restaurant [finder|search]
city/location/place:city
[find|show|search] [me |]a [good |nice |]restaurant in {0}; where can I eat in {0}; ~restaurants in {0}; ~I am hungry in {0}; ~a good place to eat in {0}; where should [I|we] [eat|have dinner|have lunch] in {0}; any good restaurants in {0}; ~I'm in {0} and need [food|something to eat]

restaurant: find_restaurant restaurant_search search_restaurants find_restaurants
Find restaurants [by cuisine|][.|]; Restaurant search; [Find|Search] a restaurant
cuisine/food/type/food_type:cuisine city/location/place:city
[find|show] [me |]a[ good| nice|] {0} restaurant in {1}; ~I'm hungry, find a {0} restaurant in {1}; ~{0} restaurants in {1}; where can I [eat|find|get] {0} food in {1}; ~I want [to eat |]{0} food in {1}; any [good |]{0} [restaurants|places] in {1}
~I'd like {0} food in {1}; is there a {0} [restaurant|place] in {1}; which {0} restaurants are [there |]in {1}; ~{0} food, {1}; ~I'm in {1} and want {0} food; [look|search] for {0} restaurants in {1}; where's the best {0} [place|restaurant] in {1}

restaurant: book_table reserve_table restaurant_booking make_reservation
[Book|Reserve] a table[ in a restaurant|][.|]; Table [booking|reservation]
restaurant/name/place:artist people/guests/party_size:small time/at:time?
[book|reserve] a table [at|in] {0} for {1}[| people]; ~table for {1} at {0}; ~I need a table at {0} for {1} people; make a reservation at {0} for {1}[| people]; [book|reserve] a table for {1} people at {0} at {2}; ~we are {1} people and want to eat at {0}; can I [get|have|book] a table for {1} at {0}

nearby: find_nearby nearby_places find_places places_nearby
Find places near[by| a location][.|]; Nearby search
type/category/kind:word location/near/city:place
[find|show me] [a|the nearest] {0} near {1}; ~{0} near {1}; is there a {0} near {1}; where is the [nearest|closest] {0} to {1}; ~I need a {0} near {1}; any {0} around {1}

population: get_population population city_population
Get the population of a [city|place|country][.|]; [Number of people|Population] in a city
city/place/country/location:country
[what is|what's|tell me|get] the population of {0}; how many people live in {0}; ~population of {0}; how big is the population [in|of] {0}; how many [inhabitants|residents] does {0} have; ~number of people in {0}

country: get_country_info country_info country
[Get|Look up] information [on|about] a country[.|]; Country facts
country/name:country
[tell me|give me|show me] facts about {0}; which [language|currency|flag] does {0} [use|have]; ~country info {0}; ~information about the country {0}; what currency is used in {0}; what language do they speak in {0}; ~facts about {0}

tourism: get_attractions find_attractions things_to_do tourist_attractions
[Find|Get] [attractions|things to do] in a city[.|]; Tourist attractions
city/location/place:city
what can I [do|see|visit] in {0}; ~things to do in {0}; what are the [best |]sights [in|of] {0}; [show|find|list] [me |][attractions|sights|museums] in {0}; ~I'm visiting {0}, what should I see; ~sights in {0}; which [museums|sights] are in {0}

currency: convert_currency currency_converter exchange_money convert_money
Convert [an amount of |]money [between currencies|][.|]; Currency conversion
amount/value:amount from_currency/from/source:currency to_currency/to/target:currency
convert {0} {1} [to|into|in] {2}; how much is {0} {1} in {2}; exchange {0} {1} [to|into|for] {2}; change {0} {1} [to|into] {2}; what is {0} {1} in {2}; what are {0} {1} worth in {2}
~{0} {1} to {2}; ~{0} {1} in {2}; ~I have {0} {1}, how much is that in {2}; how many {2} [are|is|do I get for] {0} {1}; give me {0} {1} in {2}; ~I need {0} {1} in {2}

currency: get_exchange_rate exchange_rate currency_rate
Get the exchange rate[ of two currencies|][.|]; Exchange rate
from_currency/base/from/source:currency to_currency/target/to/quote:currency
[what is|get|show|check] the exchange rate [from|of] {0} to {1}; ~exchange rate {0} to {1}; how many {1} [do I get for|are in] one {0}; what is the rate [from|between] {0} [and|to] {1}; ~{0} to {1} rate; how is the {0} to {1} rate today

currency: convert_units unit_converter convert_unit unit_conversion convert
Convert [a value |]between units[.|]; Unit conversion
value/amount/quantity:amount from_unit/from/source_unit:unit to_unit/to/target_unit:unit
convert {0} {1} [to|into] {2}; how many {2} [are|is] {0} {1}; what is {0} {1} in {2}; ~{0} {1} in {2}; ~{0} {1} to {2}; how much is {0} {1} in {2}; change {0} {1} to {2}; give me {0} {1} in {2}

stock: get_stock_price stock_price stock get_stock quote get_quote
Get the [current |latest |]price of a stock[.|]; Stock [market |]price[ by symbol|]
symbol/ticker/stock:symbol
[what is|what's|get|show|check|tell me] the [stock |share |]price of {0}; ~[stock|share] price [of |for |]{0}; how is {0} [stock |]doing[| today]; how is {0} trading[| today]; ~quote for {0}; how much is [a share of |]{0}[| stock]; ~price of {0} stock
what does [a share of|one] {0} [cost|trade at]; ~{0} stock price; is {0} [up|down][ today|]; how much does {0} cost [per share|on the stock market]; ~{0} quote; where is {0} trading; what is {0} worth [on the market|per share]

stock: buy_stock buy_shares order_stock
Buy [shares of |]a stock[.|]; Stock trading
symbol/ticker/stock:symbol shares/quantity/amount:number
buy {1} shares of {0}; ~I want to buy {1} {0} shares; purchase {1} {0}[ shares|]; [get|order] me {1} shares of {0}; ~{1} shares of {0}, please; invest in {1} shares of {0}

crypto: get_crypto_price crypto_price coin_price
Get the price of a [crypto |]coin[.|]; Crypto prices
coin/currency/crypto:word
[what is|get|show] the [current |]price of the [coin|crypto] {0}; how much is one {0} coin; ~crypto price {0}; ~{0} coin price; what does a {0} coin cost; how is the coin {0} doing; what is the coin {0} worth

pay: send_money transfer_money pay transfer make_payment
[Send|Transfer] money to [a person|someone][.|]; Money transfer
to/recipient/name/payee:person amount/value:amount
[send|transfer|pay] {1} [dollars |euros |]to {0}; pay {0} {1}[| dollars| euros]; [give|send] {0} {1} [dollars|euros]; transfer {1} [dollars |euros |]to {0}; ~I owe {0} {1} [dollars|euros], pay it; ~payment to {0}: {1}; ~{1} [dollars|euros] for {0}, send it

pay: get_balance check_balance account_balance
[Get|Check] the [account |]balance[.|]; Account balance
-
[what is|check|show|get] my [account |bank |]balance; how much money do I have; ~my balance; ~account balance; what is left [on|in] my account; how much is [on|in] my [bank |]account

tip: calculate_tip tip tip_calculator
Calculate [a|the] tip[.|]; Tip calculator
bill/amount/total:amount percent/percentage/tip_percent:percent
calculate a {1} percent tip on {0}; what is a {1}% tip on {0}; ~{1} percent tip for a bill of {0}; ~the bill is {0}, add a {1} percent tip; how much is a {1} percent tip on {0}; ~tip for {0} at {1} percent

expense: add_expense log_expense track_expense
[Add|Log] an expense[.|]; Expense [tracker|log]
amount/cost/value:amount category/item/description:product
[add|log|track] an expense of {0} [dollars |euros |]for {1}; ~I spent {0} [dollars|euros] on {1}; ~expense: {0} for {1}; record {0} [dollars |euros |]for {1}; ~I paid {0} [dollars|euros] for {1}, log it; save an expense: {0} for {1}
""")
