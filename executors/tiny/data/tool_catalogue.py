"""Tools as people offer them: names, descriptions, parameters and requests, each in several wordings."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ToolKind:
    """One purpose of a tool. `parameters` are (names separated by "/", kind of value); `{0}`, `{1}` in `asks` stand for them.

    Two tools of one `group` are never offered together, since their requests could be taken for each other.
    """

    names: tuple[str, ...]
    descriptions: tuple[str, ...]
    parameters: tuple[tuple[str, str], ...]
    asks: tuple[str, ...]
    group: str = ""


def _kind(names: str, descriptions: str, parameters: str, asks: str, group: str = "") -> ToolKind:
    """Read one compact line: names and asks separated by "; ", parameters as `name/alias:kind`."""
    return ToolKind(
        tuple(names.split()),
        tuple(descriptions.split("; ")),
        tuple((part.split(":")[0], part.split(":")[1]) for part in parameters.split()),
        tuple(asks.split("; ")),
        group,
    )


CATALOGUE = (
    _kind(
        "get_weather weather get_current_weather weather_lookup fetch_weather",
        "Get the [current |]weather [in|for] a [city|location][.|]; Returns the weather for a [city|place]; [Current|Today's] weather[ of a city|]",
        "city/location/place/city_name:city",
        "[what is|what's|how is|tell me|check|get|show me] the weather [|like ]in {0}[| today| now| right now]; is it [raining|sunny|cold|warm|hot|snowing] in {0}; weather in {0}; weather [for|of] {0}[| please]; [do I need|should I take] an umbrella in {0}; how [hot|cold|warm] is it in {0}[| today]; what will the weather be [|like ]in {0}",
        "weather",
    ),
    _kind(
        "get_forecast weather_forecast forecast",
        "Get the weather forecast for [a city on a day|a day][.|]; Weather forecast",
        "city/location:city day/date:day",
        "[what is|give me|show|get] the [weather |]forecast for {0} on {1}; will it [rain|snow] in {0} on {1}; weather in {0} on {1}; forecast for {0}, {1}",
        "weather",
    ),
    _kind(
        "get_time current_time get_current_time time_in_city clock",
        "Get the [current |local |]time in a [city|place|timezone][.|]; [Returns|Tells] the time in a city",
        "city/location/timezone/place:city",
        "what time is it in {0}[| now]; [what is|tell me|check|get] the [current |local |]time in {0}; time in {0}; how late is it in {0}; current time in {0}",
    ),
    _kind(
        "send_email email send_mail mail_send",
        "Send an email[ to a person|][.|]; [Sends|Write] [an email|a mail] [to someone|with a subject]",
        "to/recipient/address:email subject/title:word",
        "send [an email|a mail|mail] to {0} with [the |]subject {1}; email {0} about {1}; write [an email|a mail] to {0} about {1}; mail {0} with subject {1}",
        "message",
    ),
    _kind(
        "send_message message send_sms text_message",
        "Send a [text |]message to [a contact|a person|someone][.|]; Sends [a message|an SMS]",
        "to/recipient/contact/name:name text/message/body/content:phrase",
        "[send|text] {0} the message {1}; send a message to {0} saying {1}; tell {0}: {1}; text {0} that {1}; message {0}: {1}; let {0} know: {1}",
        "message",
    ),
    _kind(
        "call_contact make_call phone call",
        "[Call|Phone] a [contact|person][.|]; Make a phone call",
        "name/contact/person:name",
        "call {0}[| now| on the phone]; [phone|ring|dial] {0}; make a [phone |]call to {0}; I want to [talk to|speak with|call] {0}; give {0} a call",
    ),
    _kind(
        "set_timer timer start_timer create_timer",
        "[Set|Start] a timer[ for some minutes|][.|]; Countdown timer",
        "minutes/duration/duration_minutes:number",
        "[set|start|create] a timer for {0} minutes; timer {0} minutes; [set|start] a {0} minute timer; wake me in {0} minutes; countdown of {0} minutes; remind me in {0} minutes",
        "alarm",
    ),
    _kind(
        "set_alarm alarm create_alarm",
        "[Set|Create] an alarm [at an hour|clock][.|]; Alarm clock",
        "hour/time:number",
        "[set|create] an alarm [for|at] {0}[| o'clock]; wake me [up |]at {0}; alarm at {0}; I must get up at {0}",
        "alarm",
    ),
    _kind(
        "add_reminder create_reminder set_reminder remind",
        "[Add|Create|Set] a reminder[ for a day|][.|]; Remind the user of something",
        "text/title/task:phrase day/date:day",
        "remind me [of|about] {0} on {1}; [set|add|create] a reminder [for|about] {0} on {1}; on {1} remind me of {0}",
        "calendar",
    ),
    _kind(
        "create_event add_event calendar_add schedule_event schedule_meeting",
        "[Create|Add|Schedule] [a calendar event|an event|a meeting][.|]; Add to [the |]calendar",
        "title/name/event:word day/date:day",
        "[create|add|schedule] an event [called|named] {0} on {1}; put {0} in my calendar on {1}; schedule {0} for {1}; add {0} to [my|the] calendar on {1}; plan a meeting about {0} on {1}",
        "calendar",
    ),
    _kind(
        "search_web web_search search google internet_search",
        "Search the [web|internet][ for a query|][.|]; [Web|Internet|Online] search",
        "query/q/search_term:phrase",
        "search [the web |the internet |online |]for {0}; google {0}; look up {0}[| online| on the web]; find [information|pages|results] about {0}; web search: {0}; search {0}; what does the internet say about {0}",
        "search",
    ),
    _kind(
        "search_wikipedia wikipedia wiki_lookup",
        "[Search|Look up] [an article in |]Wikipedia[.|]; Get a Wikipedia article",
        "title/topic/query:word",
        "[search|open|read|look up] {0} [on|in] Wikipedia; what does Wikipedia say about {0}; wikipedia article about {0}; wiki {0}; find the Wikipedia [page|article] on {0}",
        "search",
    ),
    _kind(
        "translate translate_text translation translator",
        "Translate [a text|text|a word] [to|into] [a|another] language[.|]; [Language |]translation",
        "text/word/phrase:word language/target/target_language:language",
        "translate {0} [to|into] {1}; how do you say {0} in {1}; what is {0} in {1}; say {0} in {1}; {0} in {1}; give me the {1} word for {0}; the {1} translation of {0}",
    ),
    _kind(
        "get_stock_price stock_price stock get_stock quote",
        "Get the [current |]price of a stock[.|]; Stock [market |]price[ by symbol|]",
        "symbol/ticker/stock:symbol",
        "[what is|get|show|check|tell me] the [stock |share |]price of {0}; [stock|share] price [of |for |]{0}; how is {0} stock doing; quote for {0}; how much is [a share of |]{0}[| stock]; price of {0} stock",
    ),
    _kind(
        "convert_currency currency_converter exchange_money convert_money",
        "Convert [an amount of |]money [to|into] [a|another] currency[.|]; Currency conversion",
        "amount/value:number currency/target/to/to_currency:currency",
        "convert {0} [|dollars |euros ][to|into] {1}; how much is {0} in {1}; exchange {0} [to|into|for] {1}; change {0} [to|into] {1}",
    ),
    _kind(
        "calculate calculator evaluate compute",
        "[Calculate|Evaluate|Compute] [a math expression|an expression|a formula][.|]; [Calculator|Does math]",
        "expression/formula/input:expression",
        "[what is|calculate|compute|evaluate|how much is|work out] {0}; use the calculator for {0}; the result of {0}; solve {0}",
        "math",
    ),
    _kind(
        "add_numbers add sum",
        "Add two numbers[.|]; [Sum|Addition] of two numbers",
        "a/x/first:number b/y/second:number",
        "add {0} and {1}; what is {0} + {1}; what is {0} plus {1}; sum [of |]{0} and {1}; {0} + {1}; use the tool to add {0} and {1}",
        "math",
    ),
    _kind(
        "multiply multiply_numbers product",
        "Multiply two numbers[.|]; Product of two numbers",
        "a/x/first:number b/y/second:number",
        "multiply {0} [by|and|with] {1}; what is {0} times {1}; what is {0} * {1}; {0} x {1}; product of {0} and {1}",
        "math",
    ),
    _kind(
        "play_music play_song music play",
        "Play [a song|music][.|]; [Music player|Start a song]",
        "title/song/track:word",
        "play [the song |]{0}; [put on|start] the song {0}; I want to [hear|listen to] {0}; play {0} [please|for me|now]; music: {0}",
    ),
    _kind(
        "turn_on_light light_on switch_on_light lights_on",
        "[Turn|Switch] on the light[s|] in a room[.|]; Light switch",
        "room/location:word",
        "[turn|switch|put] on the light[s|] in the {0}; [turn|switch] the {0} light[s|] on; make it bright in the {0}; light on in the {0}; it is dark in the {0}",
    ),
    _kind(
        "set_temperature thermostat set_thermostat heating",
        "Set the [temperature|thermostat|heating][.|]; [Thermostat|Heating] control",
        "degrees/temperature/value:number",
        "set the [temperature|thermostat|heating] to {0}[| degrees]; make it {0} degrees[| in here]; [heat|cool] the room to {0} degrees; {0} degrees please; change the temperature to {0}",
    ),
    _kind(
        "book_flight flight_booking reserve_flight",
        "Book a flight[ to a city|][.|]; Flight [booking|tickets]",
        "to/destination/city:city day/date:day",
        "book a flight to {0} [on|for] {1}; I want to fly to {0} on {1}; [get|buy] [me |]a [plane |flight |]ticket to {0} for {1}; fly me to {0} on {1}; flight to {0} on {1}",
        "travel",
    ),
    _kind(
        "book_hotel hotel_booking reserve_room find_hotel",
        "[Book|Reserve|Find] a hotel [room |][in a city|][.|]; Hotel [booking|search]",
        "city/location:city nights:number",
        "[book|reserve|find] a hotel in {0} for {1} nights; I need a [room|hotel] in {0} for {1} nights; hotel in {0}, {1} nights; stay in {0} for {1} nights",
        "travel",
    ),
    _kind(
        "find_train train_search trains train_schedule",
        "[Find|Search] [a train|trains][ between cities|][.|]; Train [schedule|times]",
        "from/origin/start:city to/destination/end:city",
        "[find|show|search] [me |][a train|trains] from {0} to {1}; [train|trains] from {0} to {1}; when does the train from {0} to {1} leave; I need to go from {0} to {1} by train",
        "route",
    ),
    _kind(
        "get_directions directions route navigate",
        "Get [directions|a route|the way] [from one place to another|to a place][.|]; Navigation",
        "from/origin/start:city to/destination/end:city",
        "[directions|route|the way] from {0} to {1}; how do I get from {0} to {1}; navigate from {0} to {1}; [show|find] [me |]the [way|route] from {0} to {1}; how far is it from {0} to {1}",
        "route",
    ),
    _kind(
        "find_restaurant restaurant_search restaurants",
        "[Find|Search] [a restaurant|restaurants][ in a city|][.|]; Restaurant [finder|search]",
        "city/location:city",
        "[find|show|search] [me |]a [good |nice |]restaurant in {0}; where can I eat in {0}; restaurants in {0}; I am hungry in {0}; a good place to eat in {0}",
    ),
    _kind(
        "order_food order_item buy_item order place_order",
        "[Order|Buy] [food|something|an item|a product][.|]; Place an order",
        "item/product/name:word quantity/count/amount:number",
        "order {1} {0}; buy {1} {0}; I want to order {1} {0}; [get|order] me {1} {0}; I would like {1} {0}; place an order for {1} {0}; purchase {1} of {0}",
    ),
    _kind(
        "create_note add_note save_note take_note",
        "[Create|Save|Take|Write] a note[.|]; Note [taking|pad]",
        "text/content/note:phrase",
        "[take|make|create|save|write] a note: {0}; note [down |]{0}; [save|write down|keep] the note {0}; add a note saying {0}; write this down: {0}",
    ),
    _kind(
        "add_todo create_task add_task todo",
        "Add [a task|an item] to the [todo list|list of tasks][.|]; Todo list",
        "title/task/item:word priority/level:number",
        "add {0} to my [todo list|tasks|list] with priority {1}; new task {0}, priority {1}; create a task {0} with priority {1}; todo: {0}, priority {1}",
    ),
    _kind(
        "get_user find_user lookup_user user_info",
        "[Get|Find|Look up] a user[ by id|][.|]; User [information|data]",
        "user_id/id:number",
        "[get|find|show|look up] [the |]user {0}; who is user {0}; [user|information about user] {0}; show [me |]the user with id {0}; user number {0}",
    ),
    _kind(
        "get_order order_status track_order track_package",
        "[Get|Check|Track] [the status of |]an order[.|]; Order status",
        "order_id/id/number:number",
        "[where is|track|check|show] [my |]order {0}; [what is |]the status of order {0}; order {0} status; has order {0} arrived; when does order {0} arrive",
    ),
    _kind(
        "cancel_order order_cancel",
        "Cancel an order[.|]; Cancels [an order|a purchase]",
        "order_id/id/number:number",
        "cancel [my |the |]order [number |]{0}; I want to cancel order {0}; stop order {0}; I do not want order {0} any more",
    ),
    _kind(
        "read_file open_file load_file cat_file",
        "[Read|Open] a file[.|]; Returns the [text|content] of a file",
        "path/filename/file/name:word",
        "[read|open|show|load] the file {0}; what is in the file {0}; show me the [content|text] of [the file |]{0}; print file {0}",
        "file",
    ),
    _kind(
        "delete_file remove_file",
        "[Delete|Remove] a file[.|]; Deletes [a|one] file",
        "path/filename/file/name:word",
        "[delete|remove|erase] the file {0}; delete [file |]{0}; get rid of the file {0}; I do not need the file {0} any more",
    ),
    _kind(
        "run_query sql_query query_database database",
        "[Run|Execute] a [database query|query][.|]; Query [the |a ]database",
        "table/name:word limit/rows/count:number",
        "[show|get|select|read] {1} rows [from|of] [the table |table |]{0}; query the table {0} with limit {1}; first {1} rows of {0}",
    ),
    _kind(
        "get_news news latest_news news_search",
        "Get the [latest |]news [about a topic|][.|]; [News|Headlines]",
        "topic/subject/category:word",
        "[what is|show me|get|read|tell me] the [latest |]news [about|on] {0}; news about {0}; any news on {0}; headlines about {0}; what is new in {0}",
    ),
    _kind(
        "get_recipe find_recipe recipe recipes",
        "[Get|Find] a recipe[ for a dish|][.|]; [Cooking recipes|Recipe search]",
        "dish/food/name:word",
        "[find|show|give] [me |]a recipe for {0}; how do I [cook|make|prepare] {0}; recipe [for|of] {0}; I want to cook {0}; how to cook {0}",
    ),
    _kind(
        "define_word dictionary lookup_word get_definition",
        "[Define|Look up] a word[.|]; Dictionary[ lookup|]",
        "word/term:word",
        "[define|what is the meaning of|look up the word|explain the word] {0}; what does {0} mean; definition of {0}; meaning of {0}; dictionary: {0}",
    ),
    _kind(
        "roll_dice dice throw_dice",
        "[Roll|Throw] [dice|a die][.|]; Dice [roller|game]",
        "sides/faces:number",
        "[roll|throw] a [die|dice] with {0} sides; roll a {0} sided [die|dice]; roll the dice, {0} sides; dice with {0} faces",
    ),
    _kind(
        "random_number get_random random",
        "[Get|Generate|Pick] a random number[.|]; Random number[s|]",
        "min/low/from:number max/high/to:number",
        "[give me|pick|generate|choose] a random number [between|from] {0} [and|to] {1}; random number {0} to {1}; random between {0} and {1}",
    ),
    _kind(
        "book_table reserve_table restaurant_booking make_reservation",
        "[Book|Reserve] a table[ in a restaurant|][.|]; Table [booking|reservation]",
        "restaurant/name/place:name people/guests/party_size:number",
        "[book|reserve] a table [at|in] {0} for {1}[| people]; table for {1} at {0}; I need a table at {0} for {1} people; make a reservation at {0} for {1}",
    ),
    _kind(
        "get_population population city_population",
        "Get the population of a [city|place|country][.|]; [Number of people|Population] in a city",
        "city/place/country:city",
        "[what is|tell me|get] the population of {0}; how many people live in {0}; population of {0}; how big is the population in {0}",
    ),
    _kind(
        "set_volume volume change_volume",
        "Set the [volume|sound level][.|]; [Volume|Sound] control",
        "level/volume/percent:number",
        "set the volume to {0}; [turn|change] the volume to {0}[| percent]; volume {0}; make the sound {0}[| percent]; [sound|volume] at {0}",
    ),
    _kind(
        "open_app launch_app start_app",
        "[Open|Launch|Start] an app[.|]; [App launcher|Starts an app]",
        "app/name/app_name:word",
        "[open|launch|start|run] the app {0}; [open|launch|start] the {0} app; [open|launch] {0}",
    ),
    _kind(
        "send_money transfer_money pay transfer",
        "[Send|Transfer] money to [a person|someone][.|]; Money transfer",
        "to/recipient/name:name amount/value:number",
        "[send|transfer|pay] {1} [dollars |euros |]to {0}; pay {0} {1}[| dollars| euros]; [give|send] {0} {1} [dollars|euros]; transfer {1} to {0}",
    ),
    _kind(
        "add_contact create_contact save_contact",
        "[Add|Save|Create] a contact[.|]; New contact[ in the phone book|]",
        "name/contact:name phone/number:number",
        "[add|save|create] [a |the |]contact {0} with [phone |]number {1}; save {0} with the number {1}; new contact {0}, {1}; add {0} to [my|the] contacts, number {1}",
    ),
    _kind(
        "log_workout track_run log_run fitness",
        "Log a [workout|run|training][.|]; [Fitness|Sport] log",
        "sport/activity/type:word minutes/duration:number",
        "log {1} minutes of {0}; I did {1} minutes of {0}; track my {0}, {1} minutes; save {1} minutes of {0}",
    ),
    _kind(
        "get_horoscope horoscope",
        "Get [the|a] horoscope[ for a sign|][.|]; Daily horoscope",
        "sign/zodiac:word",
        "[what is|read|get|show] [me |]the horoscope for {0}; horoscope {0}; I am a {0}, what is my horoscope; my sign is {0}, read my horoscope",
    ),
)
