"""Tools of the day and the home: time, reminders, lists, lights, music, food."""

from executors.tiny.data.tool_kind import read_kinds

DAILY = read_kinds("""
timer: set_timer timer start_timer create_timer countdown
[Set|Start] a [countdown |]timer[.|]; Countdown timer; Starts a timer for some minutes
minutes/duration/duration_minutes:small
[set|start|create] a timer for {0} minutes; ~timer {0} minutes; [set|start] a {0} minute timer; ~countdown of {0} minutes; [set|give] me a timer [of|for] {0} min
~{0} minutes[ on the clock| timer|], [go|starting now]; time {0} minutes[ for the pasta| for the eggs|]; ~I need a {0} minute timer; [ping|tell|alert] me when {0} minutes are up; [count down|wait] {0} minutes

timer: set_timer start_timer timer countdown
[Set|Start] a timer[ in seconds|][.|]; Countdown in seconds
seconds/duration/duration_seconds:number
[set|start|create] a timer for {0} seconds; ~timer {0} seconds; [set|start] a {0} second timer; count down {0} seconds; ~I need a timer for {0} seconds; ~{0} second countdown

timer: set_alarm alarm create_alarm add_alarm
[Set|Create] an alarm[.|]; Alarm clock; [Set|Adds] an alarm at a time
time/at/alarm_time:time label/name:title?
[set|create] an alarm [for|at] {0}; wake me [up |]at {0}; ~alarm at {0}; ~I [must|have to|need to] [get up|be up|wake up] at {0}; [can you |]wake me at {0}; ~alarm {0}
set [my|the] alarm [clock |][for|to] {0}; [set|create] an alarm [for|at] {0} [called|named|with label] {1}; let me sleep until {0}; ring at {0} [to wake me|for me]

calendar: add_reminder create_reminder set_reminder remind remind_me
[Add|Create|Set] a reminder[.|]; Remind the user of something; Create a reminder for a time
task/text/title/message/what:task time/at/when:time
remind me to {0} at {1}; ~I need a reminder at {1} to {0}; [set|add|create] a reminder to {0} at {1}; at {1}[,|] remind me to {0}; [don't|do not] let me forget to {0} at {1}
~reminder at {1}: {0}; ~{1} reminder: {0}; remind me at {1} [to|that I have to|that I need to] {0}; ~I have to {0} at {1}, remind me; [set|create] a reminder for {1}: {0}

calendar: add_reminder create_reminder set_reminder remind
[Add|Create|Set] a reminder[ for a day|][.|]; Reminders
text/title/task/subject:topic date/day/when:date
remind me [of|about] {0} on {1}; [set|add|create] a reminder [for|about] {0} on {1}; on {1} remind me of {0}; ~I need a reminder about {0} on {1}; ~reminder on {1}: {0}; [don't|do not] let me forget {0} on {1}

calendar: create_reminder add_reminder new_reminder
Create a reminder[.|]; Remember to do something
task/text/content:task
remind me to {0}; [don't|do not] let me forget to {0}; [set|add|create] a reminder to {0}; ~I need a reminder to {0}; ~reminder: {0}; ~I must not forget to {0}; make sure I remember to {0}

calendar: create_event add_event calendar_add schedule_event add_calendar_event
[Create|Add|Schedule] [a calendar event|an event][.|]; Add [an event |]to [the |]calendar
title/name/event/summary:title date/day/when:date
[create|add|schedule|make] [an|a calendar|a new] event [called|named|titled] {0} on {1}; put {0} in my calendar [on|for] {1}; schedule {0} [for|on] {1}; add {0} to [my|the] calendar [on|for] {1}; ~I have {0} on {1}, [add it to|put it in|save it in] my calendar
~new event: {0} on {1}; ~calendar: {0}, {1}; [mark|block|save] {1} [in my calendar |]for {0}; on {1} I have {0}, [please add that|add it to the calendar]; plan {0} on {1}

calendar: schedule_meeting create_meeting book_meeting create_event
[Schedule|Book] a meeting[.|]; [New|Add a] meeting
title/subject/topic:title date/day:date time/start_time/start:time
schedule [a meeting called |the meeting |]{0} on {1} at {2}; [set up|book|plan|create] a meeting [called|named|titled] {0} on {1} at {2}; add {0} to my calendar on {1} at {2}; ~meeting {0}, {1}, {2}; put {0} on {1} at {2} in the calendar; ~I have {0} on {1} at {2}, please add it

calendar: schedule_meeting meet_with book_meeting arrange_meeting
[Schedule|Arrange] a meeting with [someone|a person][.|]; Meet a person
person/attendee/with/name:person time/at:time
[schedule|arrange|book|set up] a meeting with {0} at {1}; ~I want to meet {0} at {1}; ~meeting with {0} at {1}; let {0} and me meet at {1}; plan a call with {0} at {1}; [can I|when I] meet {0}, it should be at {1}

calendar: get_events list_events show_calendar check_calendar
[Get|List] [the |]events of a day[.|]; Show the calendar
date/day:date
what [do I have|is on my calendar|is planned] on {0}; show [me |]my [calendar|events|schedule] [for|on] {0}; am I free on {0}; do I have [anything|meetings|appointments] on {0}; which [meetings|events|appointments] do I have on {0}; ~my schedule for {0}

list: add_todo create_task add_task todo add_todo_item
Add [a task|an item] to the [todo|to-do] list[.|]; [Todo|To-do] list; [Create|New] task
title/task/item/text:thing
add {0} to my [todo list|to-do list|tasks|list]; put {0} on my [to-do|todo|task] list; ~new task: {0}; create a task: {0}; ~todo: {0}; ~I [need|have] to {0}, add it to my [list|todos]
[note|write|save] {0} on the [to-do|todo] list; [can {0} go|please have {0} put] on my [todo|to-do] list; make a [todo|task] [called|named] {0}; ~to do: {0}; [append|include] {0} in my [task|todo] list

list: add_todo create_task add_task new_task
Add a task with a priority[.|]; New task
task/title/item:task priority:priority
add [the task |]{0} [to my list |to my todos |]with {1} priority; create a {1} priority task: {0}; ~new task {0}, priority {1}; ~{1} priority todo: {0}; put {0} on my list with priority {1}; add a task to {0}, {1} priority

list: add_to_shopping_list shopping_list add_grocery add_item
Add [an item|something] to the shopping list[.|]; Shopping list
item/product/name:product quantity/count:small?
add {0} to [my|the] [shopping|grocery] list; put {0} on the [shopping|grocery] list; ~we [need|are out of] {0}, [add it to|put it on] the shopping list; ~shopping list: {0}; get {0} on the [shopping|grocery] list; [add|put] {1} {0} [to|on] the shopping list

list: complete_task finish_task mark_done complete_todo
Mark a task as done[.|]; Complete a todo
task/title/item:task
mark {0} as [done|finished|complete]; ~I have finished {0}, mark it as done; tick off {0}; check off {0}[| on my list]; complete the task {0}; ~{0} is done, update my list; set {0} to done

list: list_todos get_tasks show_todos list_tasks
[List|Show] [all |the |]todos[.|]; Get the to-do list
-
[show|list|read|give] me my [todos|tasks|to-do list|todo list]; what is on my [to-do|todo|task] list; what do I [have|need] to do[| today]; ~my tasks; [list|show] all [open |my |]tasks; which [todos|tasks] are [left|open]; ~todo list

note: create_note add_note save_note take_note
[Create|Save|Take|Write] a note[.|]; Note [taking|pad]
text/content/note/body:message
[take|make|create|save|write|add] a note: {0}; ~note[ to self|]: {0}; [save|write down|keep] the note {0}; add a note [saying|that says] {0}; write this down: {0}; [jot|note] down [that |]{0}; [can you |]note that {0}

note: create_note new_note save_note
Create a note with a title[.|]; New note
title/name:title content/body/text:message
create a note [called|titled|named] {0} [saying|with the text] {1}; ~new note {0}: {1}; make a note with the title {0} and the text {1}; save {1} [as|in] a note called {0}; write {1} in [a|the] note {0}; add a note titled {0}, it should say {1}

note: search_notes find_note find_notes
[Search|Find] notes[.|]; Look through the notes
query/text/keyword:topic
[search|look through] my notes for {0}; find [my|the] note[s|] [about|on] {0}; where is my note about {0}; which notes mention {0}; what did I write [down |]about {0}; show [me |]my notes on {0}

light: turn_on_light light_on switch_on_light lights_on turn_on_lights
[Turn|Switch] on the light[s|] in a room[.|]; Light switch
room/location/area:room
[turn|switch|put] on the light[s|] in the {0}; [turn|switch] the {0} light[s|] on; make it bright in the {0}; ~light[s|] on in the {0}; ~it[ is|'s] [too |very |]dark in the {0}[|, I need light]; ~it[ is|'s] dark, [switch|turn] on the {0} light
~lights on, {0}; I need [some |]light in the {0}; light up the {0}; ~{0} light on; [switch|turn] on the {0} light[s|]; illuminate the {0}

light: set_light control_light light_control toggle_light switch_light
[Control|Set|Switch] [a|the] light[.|]; Lights on or off
room/location:room state/status/action:switch
turn {1} the light[s|] in the {0}; [turn|switch] the {0} light[s|] {1}; switch {1} the {0} light[s|]; ~{0} light[s|] {1}; ~lights {1} in the {0}; ~I want the {0} light[s|] {1}; set the {0} light to {1}

light: turn_off_light light_off switch_off_light lights_off
[Turn|Switch] off the light[s|] in a room[.|]; Lights off
room/location/area:room
[turn|switch] off the light[s|] in the {0}; [turn|switch] the {0} light[s|] off; ~it[ is|'s] too bright in the {0}; ~lights off in the {0}; ~nobody is in the {0}, turn off the light; make the {0} dark; kill the lights in the {0}

light: dim_light set_brightness dim_lights
[Dim|Set] the [brightness of a |]light[s|][.|]; Brightness control
room/location:room brightness/level/percent:percent
[dim|set] the {0} light[s|] to {1}[| percent|%]; set the brightness in the {0} to {1}; ~{0} light at {1} percent; make the {0} lights {1} percent bright; [lower|raise] the light in the {0} to {1}; ~brightness {1} in the {0}

device: control_device switch_device set_device toggle_device smart_plug
[Control|Switch|Turn] a device [on or off|][.|]; Smart [home |]plug
device/name/device_name:device state/action/status:switch
[turn|switch] {1} the {0}; [turn|switch] the {0} {1}; ~the {0} should be {1}; ~{0} {1}; set the {0} to {1}; ~I want the {0} {1}[| now]

heat: set_temperature set_thermostat thermostat heating
Set the [temperature|thermostat|heating][.|]; [Thermostat|Heating] control; Set the target temperature
degrees/temperature/value/target:small room/zone:room?
set the [temperature|thermostat|heating] to {0}[| degrees]; make it {0} degrees[| in here]; [heat|cool] the [room|house|place] to {0} degrees; ~{0} degrees please; change the temperature to {0}; set the [temperature|heating] in the {1} to {0}[| degrees]
~it[ is|'s] [cold|freezing], set the heating to {0}; ~I want {0} degrees in here; [turn|put] the [heating|heat|thermostat] [up |down |]to {0}; ~thermostat {0}; can we have {0} degrees in here

lock: lock_door lock door_lock
Lock a door[.|]; Door lock
door/name/room:room
lock the {0}[| door]; [make sure|check that] the {0} door is locked; close and lock the {0} door; ~{0} door lock; please lock up the {0}; is the {0} locked, if not lock it

music: play_music play_artist music play_songs
Play [songs|music] by an artist[.|]; [Music player|Plays an artist]
artist/band/singer/artist_name:artist
play [some |]music by {0}; play [something|songs|a song] by {0}; ~I want to [hear|listen to] [some |]{0}; put on [some |]{0}; play [some |me |]{0}; ~I'm in the mood for {0}[|, play something]
~some {0}, please; let me [hear|listen to] {0}; can [I|we] [hear|listen to] {0}; [start|shuffle] [songs|music] [by|of|from] {0}; ~music by {0}; how about some {0}

music: play_song play_music start_song play_track
Play a song[.|]; [Start a song|Music player]
song/title/track/song_name:song
play [the song |]{0}; [put on|start] the song {0}; ~I want to [hear|listen to] the song {0}; play {0} [please|for me|now]; ~song: {0}; can I hear [the song |]{0}; play the track [called |named |]{0}

music: play_song play_track play
Play a song by an artist[.|]; Plays [a track|a song]
song/title/track:song artist/by/singer:artist
play {0} by {1}; play the [song|track] {0} by {1}; ~I want to hear {0} by {1}; put on {0} by {1}; play {1}'s song {0}; ~song {0}, artist {1}

music: play_playlist start_playlist playlist
[Play|Start] a playlist[.|]; Playlists
name/playlist/playlist_name:title
[play|start|shuffle] [my|the] playlist {0}; [play|start|put on] my {0} playlist; ~playlist {0}; ~I want to hear my {0} playlist; open the playlist {0}; play [the list|the playlist] [called|named] {0}

music: pause_music stop_music pause stop_playback
[Pause|Stop] the music[.|]; Pause playback
-
[pause|stop] the [music|song|playback]; stop playing; ~music off; ~silence[, please|]; [pause|stop] [this|that] song; turn off the music; ~no more music

volume: set_volume volume change_volume
Set the [volume|sound level][.|]; [Volume|Sound] control
level/volume/percent:percent
set the volume to {0}[| percent|%]; [turn|change] the volume to {0}[| percent]; ~volume {0}; make the sound {0} percent; ~[sound|volume] at {0}; turn [it|the sound] [up|down] to {0}; ~it's too [loud|quiet], make it {0}

video: play_video watch_video play_movie watch
Play a [video|movie|film][.|]; Video player
title/video/name:title
[play|start|show] the [video|movie|film] {0}; ~I want to [watch|see] {0}; put on the movie {0}; watch {0}; let me watch {0}; play {0} on [the TV|the big screen]; ~movie night: {0}

movie: get_movie_info movie_info movie find_movie
[Get|Find] [information on|details of] a movie[.|]; Movie [database|details]
title/movie/name:title
[tell me about|give me info on|find] the [movie|film] {0}; who [directed|stars in|plays in] {0}; is [the movie |]{0} [any good|a good movie|worth watching]; when did [the movie |]{0} come out; ~movie info for {0}; what is [the movie |]{0} about; ~details on the film {0}

food: get_recipe find_recipe recipe search_recipes
[Get|Find] a recipe[ for a dish|][.|]; [Cooking recipes|Recipe search]
dish/food/name/query:dish
[find|show|give] [me |]a recipe for {0}; how do I [cook|make|prepare] {0}; ~recipe [for|of] {0}; ~I want to cook {0}[|, any recipe]; how to cook {0}; what do I need to [make|cook] {0}; ~{0} recipe; any [good |]recipes for {0}

food: order_pizza pizza order_a_pizza
Order a pizza[.|]; Pizza delivery
size:size topping/toppings/kind:word
order [me |]a {0} pizza with {1}; ~I want a {0} pizza with {1}; get [me |us |]a {0} {1} pizza; ~a {0} pizza with {1}, please; ~one {0} {1} pizza; can I [get|have] a {0} pizza with {1}

food: order_food order_item buy_item order place_order
[Order|Buy] [food|something|an item|a product][.|]; Place an order
item/product/name:product quantity/count/amount:small
order {1} {0}; buy {1} {0}; ~I [want|'d like|would like] to order {1} {0}; [get|order] me {1} {0}; ~I would like {1} {0}; place an order for {1} {0}; purchase {1} [of |]{0}; can I [get|have|order] {1} {0}

food: get_calories calories nutrition food_info
Get the calories of a food[.|]; Nutrition [data|facts]
food/item/name:product
how many calories [are|are there] in {0}; [what are|show|get] the calories of {0}; ~calories in {0}; is {0} healthy; ~nutrition facts for {0}; what does {0} contain

fitness: log_workout track_run log_exercise fitness
Log a [workout|training|sport][.|]; [Fitness|Sport] log
activity/sport/type/exercise:word minutes/duration:small
log {1} minutes of {0}; ~I did {1} minutes of {0}; track my {0}, {1} minutes; save {1} minutes of {0}; ~I just finished {1} minutes of {0}, log it; add a {1} minute {0} workout; ~workout: {0}, {1} minutes

fitness: log_water track_water drink_water
Log [water|drinks][.|]; Water tracker
glasses/amount/cups:small
log {0} glasses of water; ~I drank {0} glasses of water; track {0} glasses of water; add {0} cups of water to my log; ~water: {0} glasses; ~I have had {0} glasses of water[ today|]

horoscope: get_horoscope horoscope daily_horoscope
Get [the|a] horoscope[ for a sign|][.|]; Daily horoscope
sign/zodiac/zodiac_sign:word
[what is|read|get|show] [me |]the horoscope for {0}; ~horoscope {0}; ~I am a {0}, what is my horoscope; ~my sign is {0}, read my horoscope; what do the stars say for {0}; ~today's horoscope for {0}

joke: tell_joke get_joke joke random_joke
[Tell|Get] a joke[.|]; Random joke; Jokes
-
tell [me |us |]a [good |new |funny |]joke; ~[I need|I want] a joke; make me laugh; do you know a joke; ~joke; any [good |]jokes; [give|get] me a joke; say something funny

dice: roll_dice dice throw_dice roll_die
[Roll|Throw] [dice|a die][.|]; Dice [roller|game]
sides/faces:number
[roll|throw] a [die|dice] with {0} sides; roll a {0} sided [die|dice]; roll the dice, {0} sides; ~dice with {0} faces; ~I need a roll of a {0}-sided die; roll a d{0}

coin: flip_coin coin_flip toss_coin
[Flip|Toss] a coin[.|]; Heads or tails
-
[flip|toss|throw] a coin; ~heads or tails; do a coin [flip|toss]; ~coin flip; let a coin decide; ~I need a coin [flip|toss]

pet: feed_pet pet_feeder feed
Feed a pet[.|]; Pet feeder
pet/animal/name:person
feed {0}; give {0} [some |]food; ~{0} is hungry; ~feeding time for {0}; ~{0} needs [food|to eat]; fill the bowl of {0}; has {0} eaten, if not give food

call: call_contact make_call phone call start_call
[Call|Phone] a [contact|person][.|]; Make a phone call
name/contact/person/recipient:person
call {0}[| now| on the phone]; [phone|ring|dial] {0}; make a [phone |]call to {0}; ~I [want|need] to [talk to|speak with|call] {0}; give {0} a call; get {0} on the [phone|line]; start a [video |]call with {0}

contact: add_contact create_contact save_contact new_contact
[Add|Save|Create] a contact[.|]; New contact
name/contact:person phone/number/phone_number:phone
[add|save|create] [a |the |]contact {0} with [phone |the |]number {1}; save {0} with the number {1}; ~new contact {0}, {1}; add {0} to [my|the] contacts, number {1}; ~{0}'s number is {1}, save it; store {1} as the number of {0}

contact: get_contact find_contact lookup_contact get_phone_number
[Find|Get] [a contact|a phone number][.|]; Look up a contact
name/contact/person:person
what is {0}'s [phone |]number; [find|show|get] [me |]the [phone |]number of {0}; look up {0} in my contacts; how [can|do] I reach {0}; ~contact details of {0}; do I have {0}'s number; ~{0}'s phone number

date: get_current_date current_date get_date today
Get [today's|the current] date[.|]; Current date
-
what is [the date|today's date]; what day is it[| today]; which day is [it|today]; ~today's date; [tell|give|show] me [the date|today's date]; what's the date[| today]

sleep: log_sleep track_sleep sleep_tracker
Log [hours of |]sleep[.|]; Sleep tracker
hours/duration:small
log {0} hours of sleep; ~I slept {0} hours[| last night]; track {0} hours of sleep; ~sleep: {0} hours; ~I got {0} hours of sleep[, save it|]; record that I slept {0} hours
""")
