"""Tools of the day: time, reminders, calendar, lists, notes, contacts, fitness, games."""

from executors.tiny.data.tool_kind import read_kinds

DAILY = read_kinds("""
timer: set_timer timer start_timer create_timer countdown
[Set|Start] a [countdown |]timer[.|]; Countdown timer; Starts a timer for some minutes; Count down a number of minutes; [Timer|Clock] that rings when the minutes are up
minutes/duration/duration_minutes:small
[set|start|create] a timer for {0} minutes; ~timer {0} minutes; [set|start] a {0} minute timer; ~countdown of {0} minutes; [set|give] me a timer [of|for] {0} min; ~{0} minutes on the clock, [go|starting now]
time {0} minutes[ for the pasta| for the eggs|]; ~I need a {0} minute timer; [ping|tell|alert] me when {0} minutes are up; count down {0} minutes; put {0} minutes on the clock; ~timer for {0} minutes, starting now; ~timer: {0} min
start the clock, {0} minutes; start a {0} minute countdown; ~a {0} minute timer for the [eggs|pasta|tea], please; let a timer run for {0} minutes; ~[can|could] you [set|start] a timer for {0} minutes; [tell|ping|alert] me when {0} minutes have passed; ~{0} min timer
~the [pasta|tea] needs {0} minutes, [set|start] a timer; ~the eggs take {0} minutes, time them; ring when {0} minutes are [up|over]; [set|put] the timer to {0} minutes; ~countdown, {0} minutes, go; begin a countdown of {0} minutes; ~timer on, {0} minutes; ~alert after {0} minutes, [starting|beginning] now
put a timer on for {0} minutes; [set|put] a {0} minute timer on

timer: set_timer start_timer timer countdown
[Set|Start] a timer[ in seconds|][.|]; Countdown in seconds; Count down some seconds; Timer [for|of] a number of seconds
seconds/duration/duration_seconds:number
[set|start|create] a timer for {0} seconds; ~timer {0} seconds; [set|start] a {0} second timer; count down {0} seconds; ~I need a timer for {0} seconds; ~{0} second countdown; ~timer: {0} sec
~{0} seconds on the clock, go; put {0} seconds on the clock; [tell|alert|ping] me when {0} seconds are [up|over]; [tell|alert|ping] me when {0} seconds have passed; time {0} seconds; let a timer run for {0} seconds; ~countdown of {0} seconds
start a countdown of {0} seconds; give me {0} seconds on the timer; ~[can|could] you [set|start] a {0} second timer; ~{0} seconds, starting now; start the clock, {0} seconds

timer: set_alarm alarm create_alarm add_alarm
[Set|Create] an alarm[.|]; Alarm clock; [Set|Adds] an alarm at a time; [Wakes|Wake] the user up at a time; [Wake-up|Morning] alarm
time/at/alarm_time:time label/name:title?
[set|create] an alarm [for|at] {0}; wake me [up |]at {0}; ~alarm at {0}; ~I [must|have to|need to] [get up|be up|wake up] at {0}; ~can you wake me [up |]at {0}; ~alarm {0}; set [my|the] alarm [clock |][for|to] {0}
[set|create] an alarm [for|at] {0} [called|named|with label] {1}; let me sleep until {0}; ring at {0} to wake me; ~alarm for {0}, please; get me up at {0}; ~wake-up alarm for {0}; ~I want to [sleep until|be woken at] {0}; ~I have to get up at {0}, set [an|the] alarm
let the alarm [ring|go off] at {0}; ~the alarm [must|should] ring at {0}; use the alarm clock to wake me at {0}; do not let me sleep past {0}; ~I must not sleep past {0}, wake me; ~new alarm, {0}; make sure I wake up at {0}; ~don't let me oversleep, alarm at {0}; ~time to get up is {0}, set the alarm
~alarm at {0}, label {1}; ~new alarm {1} at {0}; set an alarm at {0} and call it {1}; [make|create] an alarm named {1} for {0}; ~alarm called {1} at {0}; [set|add] the alarm {1} for {0}; set an alarm labelled {1} at {0}; ~alarm for {0}, name it {1}; add an alarm with the label {1} at {0}
make a new alarm for {0}; set a new alarm at {0}; never let me sleep past {0}; wake me before it is past {0}

calendar: add_reminder create_reminder set_reminder remind remind_me
[Add|Create|Set] a reminder[.|]; Remind the user of something; Create a reminder for a time; Reminds [me|the user] at a time not to forget a task; Reminder with text and time
task/text/title/message/what:task time/at/when:time
remind me to {0} at {1}; ~I need a reminder at {1} to {0}; [set|add|create] a reminder to {0} at {1}; at {1}[,|] remind me to {0}; [don't|do not] let me forget to {0} at {1}; ~reminder to {0} at {1}
~reminder at {1}: {0}; ~{1} reminder: {0}; remind me at {1} [to|that I have to|that I need to] {0}; ~I have to {0} at {1}, remind me; [set|create|add] a reminder for {1}: {0}; ~at {1} I have to {0}, [please |]remind me; give me a reminder to {0} at {1}
~[can|could|would] you remind me to {0} at {1}; ~can you remind me at {1} to {0}; ~I must not forget to {0} at {1}, [remind me|set a reminder]; ~I [need|want] to {0} at {1}, set a reminder; make a reminder for {1} to {0}; ~when it is {1}, remind me to {0}
~{0} at {1}, set a reminder; ~{0}, remind me at {1}; put a reminder at {1}: {0}; ~I will forget to {0} at {1}, so remind me; make sure I do not forget to {0} at {1}; ~remind me: {0} at {1}; add a reminder at {1} that I have to {0}; ~new reminder, {1}: {0}; [set|put] up a reminder for {1} to {0}; ~reminder for {1}: {0}
put up a reminder to {0} at {1}; put in a reminder for {1} to {0}; put a reminder for me at {1} to {0}

calendar: add_reminder create_reminder set_reminder remind
[Add|Create|Set] a reminder[ for a day|][.|]; Reminders; Remind me [of|about] something on a date; Reminder with a topic and a day
text/title/task/subject:topic date/day/when:date
remind me [of|about] {0} on {1}; [set|add|create] a reminder [for|about] {0} on {1}; on {1} remind me of {0}; ~I need a reminder about {0} on {1}; ~reminder on {1}: {0}; [don't|do not] let me forget {0} on {1}; ~reminder about {0} on {1}
on {1} remind me about {0}; ~[can|could] you remind me [of|about] {0} on {1}; ~I must not forget {0} on {1}, remind me; ~I will forget {0} on {1}, set a reminder; put a reminder about {0} on {1}; ~new reminder on {1}: {0}; create a reminder on {1} for {0}
~{1}: reminder about {0}; make a reminder on {1} about {0}; ~I want a reminder of {0} on {1}; ~{0} on {1}, set a reminder; give me a reminder of {0} on {1}; ~{0} is on {1}, remind me

calendar: create_reminder add_reminder new_reminder
Create a reminder[.|]; Remember to do something; Reminder of a task; Remind the user to do something and not to forget it
task/text/content:task
remind me to {0}; [don't|do not] let me forget to {0}; [set|add|create] a reminder to {0}; ~I need a reminder to {0}; ~reminder: {0}; ~I must not forget to {0}, remind me; make sure I remember to {0}
remind me that I [have|need] to {0}; ~remind me: {0}; help me remember to {0}; ~a reminder please: {0}; ~[can|could] you remind me to {0}; ~I must remember to {0}, set a reminder; ~I always forget to {0}, remind me; never let me forget to {0}
~I [have|need] to {0}, [set|create] a reminder; make a reminder to {0}; make a reminder that I must {0}; ~new reminder: {0}; ~I should {0}, make sure I don't forget; give me a reminder to {0}; ~I have to remember to {0}, add a reminder; put up a reminder: {0}
set up a reminder that I have to {0}; create a reminder that says {0}; create a reminder for me to {0}; put in a reminder to {0}; put a reminder up to {0}; ~I always forget things, remind me to {0}; always remind me to {0}; set me a reminder to {0}
~I forget things, always remind me to {0}; ~I forget so many things, remind me to {0}

calendar: create_event add_event calendar_add schedule_event add_calendar_event
[Create|Add|Schedule] [a calendar event|an event][.|]; Add [an event |]to [the |]calendar; Put [an event|something] in the calendar on a day; Plan an event and save the date
title/name/event/summary:title date/day/when:date
[create|add|schedule|make] [an|a calendar|a new] event [called|named|titled] {0} on {1}; put {0} in my calendar [on|for] {1}; schedule {0} [for|on] {1}; add {0} to [my|the] calendar [on|for] {1}; ~I have {0} on {1}, [add it to|put it in|save it in] my calendar
~new event: {0} on {1}; ~calendar: {0}, {1}; [mark|block|save] {1} in my calendar for {0}; ~on {1} I have {0}, add it to the calendar; plan {0} for {1} in my calendar; plan [an|the] event {0} on {1}; block {1} for {0}; block my calendar on {1} for {0}
enter {0} in [my|the] calendar [on|for] {1}; save the date, {0} on {1}; ~event: {0}, {1}; ~event {0} on {1}; create a calendar entry {0} [on|for] {1}; make an entry for {0} on {1} in my calendar; ~new calendar entry, {0}, {1}
~[can|could] you put {0} in my calendar [on|for] {1}; ~can you add {0} to [my|the] calendar on {1}; ~I am planning {0} on {1}, mark it in my calendar; ~{0} is on {1}, put it in the calendar; ~{0} is planned for {1}, schedule it; save {0} in my calendar for {1}; mark {0} in the calendar on {1}
on {1} put {0} in my calendar; for {1}, schedule {0}; ~{1}: {0}, add it to my calendar; add [an|a new] event on {1} called {0}; create an event on {1} with the title {0}; schedule an event for {1}: {0}; enter [an|a new] event named {0} for {1}; ~new event on {1}: {0}
put an event called {0} in my calendar on {1}; ~an event called {0} on {1}, add it to my calendar

calendar: schedule_meeting create_meeting book_meeting create_event
[Schedule|Book] a meeting[.|]; [New|Add a] meeting; Plan a meeting on a day at a time; Set up a meeting with title, date and time in the calendar
title/subject/topic:title date/day:date time/start_time/start:time
schedule [a meeting called |the meeting |]{0} on {1} at {2}; [set up|book|plan|create] a meeting [called|named|titled] {0} on {1} at {2}; add {0} to my calendar on {1} at {2}; ~meeting {0}, {1}, {2}; put {0} on {1} at {2} in the calendar; ~I have {0} on {1} at {2}, please add it to my calendar
~new meeting: {0}, {1} at {2}; ~meeting: {0} on {1} at {2}; schedule {0} for {1} at {2}; [book|set up] the meeting {0} for {1} at {2}; put the meeting {0} in my calendar on {1} at {2}; add the meeting {0} on {1} at {2}; ~[can|could] you schedule a meeting [called|named] {0} on {1} at {2}
~the meeting {0} is on {1} at {2}, put it in my calendar; ~we have {0} on {1} at {2}, schedule it; on {1} at {2} schedule {0}; set up a meeting on {1} at {2} called {0}; create a meeting on {1} at {2} with the title {0}; plan {0} on {1}, [start|starting] at {2}; ~{0} on {1} at {2}, book it in my calendar
~meeting on {1} at {2}: {0}; schedule a meeting for {1}, {2}, titled {0}; make a meeting {0} on {1}, start at {2}; ~I need a meeting {0} on {1} at {2}; ~{1} at {2}: {0}, plan it; ~new meeting on {1}, {2}: {0}; ~the {0} meeting [starts|should start] on {1} at {2}, add it to the calendar

calendar: schedule_meeting meet_with book_meeting arrange_meeting
[Schedule|Arrange] a meeting with [someone|a person][.|]; Meet a person; Plan a meeting or call with a person at a time; Set up a time to meet [someone|somebody]
person/attendee/with/name:person time/at:time
[schedule|arrange|book|set up] a meeting with {0} at {1}; ~I want to meet {0} at {1}; ~meeting with {0} at {1}; let {0} and me meet at {1}; plan a call with {0} at {1}; ~I have to meet {0} at {1}, schedule it
~meeting at {1} with {0}; arrange for me to meet {0} at {1}; ~{0} and I want to meet at {1}, arrange it; put a meeting with {0} at {1} in my calendar; ~[can|could] you [arrange|schedule|set up] a meeting with {0} at {1}; ~at {1} I meet {0}, put it in my calendar
schedule a call with {0} at {1}; set up a call with {0} for {1}; ~meeting: {0}, {1}; invite {0} to a meeting at {1}; plan a meeting with {0} for {1}; ~I would like to meet with {0} at {1}; ~I need a meeting with {0} at {1}; schedule {0} for {1}
at {1}, set up a meeting with {0}; ~new meeting with {0}, {1}; ~{0} wants to meet me at {1}, book it; book {0} for a call at {1}; add a meeting at {1} with {0} to my calendar; invite {0} to meet me at {1}
plan for me to meet {0} at {1}; plan a meeting at {1} with {0}

calendar: get_events list_events show_calendar check_calendar
[Get|List] [the |]events of a day[.|]; Show the calendar; What is [planned|scheduled] on a day; Check the schedule and appointments of a date; See the meetings of a day
date/day:date
what [do I have|is on my calendar|is planned] on {0}; show [me |]my [calendar|events|schedule] [for|on] {0}; am I free on {0}; do I have [anything|meetings|appointments] on {0}; which [meetings|events|appointments] do I have on {0}; ~my schedule for {0}; list my [appointments|events|meetings] on {0}
what is in my calendar [for|on] {0}; what does my [calendar|schedule|day] look like on {0}; are there any [meetings|events|appointments] on {0}; ~calendar for {0}; ~meetings on {0}; ~events on {0}; ~my appointments on {0}; is anything planned on {0}; is [anything|something] in my calendar on {0}
am I busy on {0}; do I have time on {0}; check [my|the] [calendar|schedule] [for|on] {0}; [read|give] me my schedule for {0}; ~[can|could] you check whether I am [free|busy] on {0}; how [busy|full] is my calendar on {0}; what have I planned for {0}; what is scheduled for {0}; is {0} free in my calendar
is there anything on my schedule on {0}; how many [meetings|appointments] do I have on {0}; look at my calendar for {0}; ~I want to see my [meetings|calendar] for {0}; when am I free on {0}; do I have any events scheduled on {0}
what do I have scheduled for {0}; is anything scheduled on {0}; which events are scheduled for {0}; do I have any appointments on {0}; are any events planned for {0}

list: add_todo create_task add_task todo add_todo_item
Add [a task|an item] to the [todo|to-do] list[.|]; [Todo|To-do] list; [Create|New] task; Put something on the list of tasks; Save a new todo
title/task/item/text:thing
add {0} to my [todo list|to-do list|tasks|list]; put {0} on my [to-do|todo|task] list; ~new task: {0}; create a task: {0}; ~todo: {0}; ~I [need|have] to do this: {0}, add it to my [list|todos]; create a [todo|task] for {0}
[note|write|save] {0} on the [to-do|todo] list; ~[can {0} go|please have {0} put] on my [todo|to-do] list; make a [todo|task] [called|named] {0}; ~to do: {0}; [append|include] {0} in my [task|todo] list; ~todo list: {0}; ~new todo: {0}
add a task: {0}; add the task {0} to my list; add a todo: {0}; add {0} to the list of tasks; put this on my [todo|task] list: {0}; add this to my [todos|tasks]: {0}; ~on my [todo|to-do] list: {0}; write {0} on my list of todos; [append|add] {0} to the [tasks|todos]
~[can|could] you add {0} to my [todo|to-do] list; ~can you put {0} on my list; ~I want {0} on my [to-do|todo] list; ~{0}, put it on my [todo|to-do] list; ~{0} should be on my task list; include {0} in my todos; save a new task called {0}; make a new todo: {0}; save the task {0}
include {0} on my list of tasks; include the task {0} in my todo list

list: add_todo create_task add_task new_task
Add a task with a priority[.|]; New task; Create a todo with low, medium or high priority; Put a task with its priority on the list
task/title/item:task priority:priority
add [the task |]{0} [to my list |to my todos |]with {1} priority; create a {1} priority task: {0}; ~new task {0}, priority {1}; ~{1} priority todo: {0}; put {0} on my list with priority {1}; add a task to {0}, {1} priority
add {0} to my [list|todo list] with priority {1}; put {0} on my [list|todo list] with {1} priority; put the task {0} on my list, priority {1}; create a task to {0} with {1} priority; create a todo to {0} with priority {1}; ~new task with {1} priority: {0}; ~new todo: {0}, priority {1}
add a {1} priority task to {0}; add a {1} priority todo: {0}; ~todo: {0}, {1} priority; ~task: {0}, priority: {1}; ~task {0} with priority {1}; make a task {0} and give it {1} priority; add the todo {0} and set its priority to {1}; ~I have to {0}, add it to my list with {1} priority
~I need to {0}, put it on my list, priority {1}; ~{0} goes on my list with {1} priority; ~[can|could] you add {0} to my list with {1} priority; ~can you put {0} on my todo list with priority {1}; with {1} priority, add {0} to my todos; make {0} a {1} priority task; ~priority {1}, task: {0}; save the task {0} with priority {1}

list: add_to_shopping_list shopping_list add_grocery add_item
Add [an item|something] to the shopping list[.|]; Shopping list; Put a product on the [grocery|shopping] list; List of groceries to buy
item/product/name:product quantity/count:small?
add {0} to [my|the] [shopping|grocery] list; put {0} on the [shopping|grocery] list; ~we [need|are out of] {0}, [add it to|put it on] the shopping list; ~shopping list: {0}; get {0} on the [shopping|grocery] list; [add|put] {1} {0} [to|on] the shopping list
~grocery list: {0}; write {0} on [my|the|our] [shopping|grocery] list; ~[can|could] you [add|put] {0} [to|on] [my|the] shopping list; ~{0} should go on the grocery list; ~there is no {0} left, put it on the shopping list; note {0} on the shopping list; add {0} to the list of groceries; put {0} on our list of groceries
~I need to buy {0}, write it on the [shopping|grocery] list; ~we have no more {0}, add it to the grocery list; ~{0} for the shopping list, please; ~for the grocery list: {0}; save {0} on my shopping list; ~I want {0} on the shopping list; ~{0}, put it on the grocery list
add {1} {0} to my grocery list; write {1} {0} on the shopping list; ~shopping list: {1} {0}; ~we need {1} {0}, put them on the shopping list; ~grocery list: {1} {0}; ~can you put {1} {0} on my shopping list; note {1} {0} on the grocery list; ~{1} {0} for the shopping list; get {1} {0} on the list of groceries
get {0} on our shopping list; get {0} onto the grocery list

list: complete_task finish_task mark_done complete_todo
Mark a task as done[.|]; Complete a todo; Tick off a finished task; Check [a task|an item] off the list
task/title/item:task
mark {0} as [done|finished|complete]; ~I have finished {0}, mark it as done; tick off {0}; check off {0}[| on my list]; complete the task {0}; ~{0} is done, update my list; set {0} to done; ~{0} is finished, tick it off
mark the task {0} as [done|finished|complete]; tick {0} off my [list|todo list]; check {0} off my [list|todos]; cross {0} off my [list|todo list]; cross off {0}; ~the task {0} is [done|complete], check it off; set the task {0} to finished; ~done: {0}; finish the task {0}; ~done with {0}, update my todo list
~[can|could] you mark {0} as [done|complete]; ~can you tick off {0}; ~I am done with {0}, check it off; ~{0} can be crossed off my list; ~{0} can be ticked off; set the todo {0} to complete; complete the todo {0}; ~finished: {0}; put a tick next to {0} on my list; ~I already did {0}, cross it off
finish {0} on my list; finish the todo {0}; let the task {0} be finished

list: list_todos get_tasks show_todos list_tasks
[List|Show] [all |the |]todos[.|]; Get the to-do list; Read the open tasks; See what is left to do
-
[show|list|read|give] me my [todos|tasks|to-do list|todo list]; what is on my [to-do|todo|task] list; what do I [have|need] to do; ~my tasks; [list|show] all [open |my |]tasks; which [todos|tasks] are [left|open]; ~todo list; ~list todos
what are my [open |]tasks; what are my [open |]todos; how many [tasks|todos] [are left|are open|do I have]; is anything left on my [todo|task] list; is there anything on my to-do list; read [me |]the [todo|to-do] list; read out my tasks; which tasks do I have; what tasks are still open
show the open todos; ~all my todos, please; ~my todo list, please; ~open tasks; ~[can|could] you [show|read] me my [to-do|todo] list; ~I want to see my [tasks|todos]; what still has to be done on my list; do I have any [open tasks|todos left]; [get|open] my todo list; [get|pull up] my tasks; what else is on my todo list; look at my to-do list; ~todos
what do I still have to do; which todos are still left; what is still on my list of tasks

note: create_note add_note save_note take_note
[Create|Save|Take|Write] a note[.|]; Note [taking|pad]; Write something down; Jot down a text and keep it as a note
text/content/note/body:message
[take|make|create|save|write|add] a note: {0}; ~note[ to self|]: {0}; [save|write down|keep] the note {0}; add a note [saying|that says] {0}; write this down: {0}; [jot|note] down [that |]{0}; ~[can you |]note that {0}
jot this down: {0}; note this: {0}; note down: {0}; write down that {0}; write down: {0}; take this down: {0}; take a note that {0}; make a note that {0}; make a note saying {0}; create a note that says {0}; ~new note: {0}; ~quick note: {0}; ~a note for me: {0}
save this as a note: {0}; keep this as a note: {0}; keep this in my notes: {0}; put this in my notes: {0}; add this to my notes: {0}; write a note that says {0}; write in my notes: {0}; write into my notes that {0}; save a new note: {0}; ~in my notes: {0}; keep a note that {0}
~[can|could] you [take|make] a note that {0}; ~can you write down that {0}; ~can you jot down {0}; ~I want to write this down: {0}; ~I want to save a note: {0}; ~I need a note that says {0}; put down in my notes that {0}; save {0} as a note; save {0} in my notes; put {0} in my notes; store the note {0}; store this note: {0}

note: create_note new_note save_note
Create a note with a title[.|]; New note; Save a note with [a title|a name] and [a text|its content]; Write a text in a note called by its title
title/name:title content/body/text:message
create a note [called|titled|named] {0} [saying|with the text] {1}; ~new note {0}: {1}; make a note with the title {0} and the text {1}; save {1} [as|in] a note called {0}; write {1} in [a|the] note {0}; add a note titled {0}, it should say {1}
create a note called {0} with the text {1}; create a note named {0} with the content {1}; create a note titled {0} that says {1}; create a note {0} with the text {1}; make a note called {0} saying {1}; make a note named {0} with the text {1}; make a note titled {0}: {1}; add a note called {0} with the text {1}
add a note named {0} saying {1}; add a note with the title {0} and the content {1}; save a note called {0} with the content {1}; save a note titled {0} with the text {1}; save a note {0} saying {1}; write a note called {0} that says {1}; write a note named {0}: {1}; write a note with the title {0} and the text {1}
~new note called {0}: {1}; ~new note, title {0}, text {1}; ~new note titled {0} with the text {1}; ~note {0}: {1}; ~note with the title {0}: {1}; ~note called {0} with the content {1}; ~title of the note: {0}, text: {1}; ~a note named {0}, it should say {1}
~I need a note called {0} saying {1}; ~I want a note titled {0} that says {1}; ~I need a note with the title {0} and the text {1}; ~[can|could] you create a note called {0} with the text {1}; ~can you make a note titled {0} saying {1}; ~[can|could] you save a note named {0} that says {1}; start a note called {0} and write {1}; start a new note {0} with the text {1}
save {1} in a note named {0}; save {1} as a note titled {0}; save the text {1} in a note called {0}; write {1} in a note called {0}; write {1} into a new note titled {0}; put {1} in a note called {0}; put {1} in a note with the title {0}; put the text {1} into the note {0}; make a note saying {1} and call it {0}; make a note with the text {1} and the title {0}
start a note titled {0} with the text {1}; start a note {0} that says {1}; make a note called {0}, it should say {1}; let the note {0} say {1}

note: search_notes find_note find_notes
[Search|Find] notes[.|]; Look through the notes; Find the notes about a topic; Search what was written down in notes
query/text/keyword:topic
[search|look through] my notes for {0}; find [my|the] note[s|] [about|on] {0}; where is my note about {0}; which notes mention {0}; what did I write [down |]about {0} in my notes; show [me |]my notes on {0}; which of my notes are about {0}
~my notes about {0}; ~my notes on {0}; ~notes about {0}; ~search notes: {0}; show [me |]the notes about {0}; do my notes mention {0}; is {0} mentioned in my notes; do I have [a note|notes] [about|on] {0}; is there a note [about|on] {0}; where did I write about {0} in my notes; look for {0} in my notes
~[can|could] you [search|look through] my notes for {0}; ~can you find my note about {0}; ~I am looking for my note [about|on] {0}; ~I wrote a note about {0}, find it; ~I made a note about {0}, where is it; what do my notes say [about|on] {0}; look in my notes for {0}; find notes that mention {0}; search the notes for {0}; find {0} in my notes; what have I written in my notes about {0}; where in my notes have I written about {0}
do I mention {0} in my notes; look for notes that mention {0}; where did I mention {0} in my notes; what did I note down about {0}; find what I wrote down about {0}; find what is written about {0} in my notes; where is {0} written down in my notes; ~looking for my notes on {0}; ~I'm looking for a note about {0}; did I write a note about {0}; did I write [anything|something] down about {0} in my notes

fitness: log_workout track_run log_exercise fitness
Log a [workout|training|sport][.|]; [Fitness|Sport] log; Track an exercise and its minutes; Record [a workout|an activity] and how long it took
activity/sport/type/exercise:word minutes/duration:small
log {1} minutes of {0}; ~I did {1} minutes of {0}; track my {0}, {1} minutes; save {1} minutes of {0}; ~I just finished {1} minutes of {0}, log it; add a {1} minute {0} workout; ~workout: {0}, {1} minutes; ~I finished {1} minutes of {0}, track it
log a {1} minute {0} workout; log a workout of {0}, {1} minutes; log {0} for {1} minutes; ~{1} minutes of {0} done, log it; ~{1} minutes of {0} for my training log; track {1} minutes of {0}; record {1} minutes of {0}; record a {0} workout of {1} minutes; add {1} minutes of {0} to my workouts; ~I just did {1} minutes of {0}
~training: {0}, {1} minutes; ~exercise: {0}, {1} minutes; ~today's workout was {1} minutes of {0}; ~my training today: {1} minutes of {0}; save a {1} minute {0} workout; save my {0} workout, {1} minutes; ~[can|could] you log {1} minutes of {0}; ~I trained {0} for {1} minutes, [log|save] it; ~I did {0} for {1} minutes, [track|record] it; add {0} to my training, {1} minutes; ~{0} workout, {1} minutes
~today I did {1} minutes of {0}; ~{1} minutes of {0} today, log it; log today's {0}, {1} minutes; log today's workout, {0} for {1} minutes; ~finished {1} minutes of {0}; ~finished my {0} workout, {1} minutes; ~I just finished training {0} for {1} minutes

fitness: log_water track_water drink_water
Log [water|drinks][.|]; Water tracker; Track the glasses of water I drink; Record how much water the user drank
glasses/amount/cups:small
log {0} glasses of water; ~I drank {0} glasses of water; track {0} glasses of water; add {0} cups of water to my log; ~water: {0} glasses; ~I have had {0} glasses of water[ today|]; log {0} cups of water; ~I had {0} cups of water
~I just drank {0} cups of water; ~{0} glasses of water, log it; ~{0} more glasses of water for my log; record {0} glasses of water; record that I drank {0} cups of water; save {0} glasses of water; ~[can|could] you log {0} glasses of water; ~water log: {0} cups; ~today I drank {0} glasses of water; ~I drank water, {0} glasses, track it; add {0} glasses of water; ~{0} cups of water today; put {0} glasses of water in my log
track {0} cups of water; track that I drank {0} glasses of water

fitness: log_sleep track_sleep sleep_tracker
Log [hours of |]sleep[.|]; Sleep tracker; Record how many hours the user slept; Track the hours of sleep of a night
hours/duration:small
log {0} hours of sleep; ~I slept {0} hours[| last night]; track {0} hours of sleep; ~sleep: {0} hours; ~I got {0} hours of sleep[, save it|]; record that I slept {0} hours; save {0} hours of sleep; ~I slept for {0} hours, log it
~{0} hours of sleep last night; ~I only got {0} hours of sleep last night; ~I only slept {0} hours; ~last night I slept {0} hours; ~last night's sleep: {0} hours; record {0} hours of sleep; add {0} hours of sleep to my log; put {0} hours of sleep in my tracker; ~[can|could] you log {0} hours of sleep; ~sleep log: {0} hours; ~sleep tracker: {0} hours; ~I was asleep for {0} hours, track it; ~my night had {0} hours of sleep, record it; add a night of {0} hours to my sleep log; ~asleep for {0} hours last night
save that I slept {0} hours; save my sleep, {0} hours; add {0} hours of sleep; add {0} hours to my sleep log; track that I slept {0} hours; track my sleep, {0} hours; ~I was asleep {0} hours; ~I have been asleep for {0} hours, log it; ~{0} hours asleep, save it

horoscope: get_horoscope horoscope daily_horoscope
Get [the|a] horoscope[ for a sign|][.|]; Daily horoscope; What the stars say for a zodiac sign; Read today's horoscope
sign/zodiac/zodiac_sign:word
[what is|read|get|show] [me |]the horoscope for {0}; ~horoscope {0}; ~I am a {0}, what is my horoscope; ~my sign is {0}, read my horoscope; what do the stars say for {0}; ~today's horoscope for {0}; ~horoscope for {0}, please
~{0} horoscope; give me [the|today's] horoscope for {0}; give me the daily horoscope for {0}; [tell|show] me the horoscope of {0}; what does the horoscope say for {0}; what do the stars have for the sign {0}; what is today's horoscope for the sign {0}; ~the stars for {0}, please; ~daily horoscope {0}; ~horoscope of the day for {0}; ~[can|could] you read the horoscope for {0}; ~I want the horoscope for {0}; ~my zodiac sign is {0}, what do the stars say; check the horoscope for the zodiac sign {0}; read the stars for {0}; ~as a {0}, what is my horoscope today; how does the horoscope look for {0}; ~zodiac sign {0}, horoscope please
check the stars for {0}; check today's horoscope for {0}; check my horoscope, I am a {0}

joke: tell_joke get_joke joke random_joke
[Tell|Get] a joke[.|]; Random joke; Jokes; Something funny to make people laugh; [Says|Tells] something funny
-
tell [me |us |]a [good |new |funny |]joke; ~[I need|I want] a joke; make me laugh; do you know a joke; ~joke; any [good |]jokes; [give|get] me a joke; say something funny; tell me something funny; tell me another joke; ~another joke, please
~one joke, please; ~a good joke, please; ~a funny joke please; ~I want to laugh, tell me a joke; ~I need a good laugh; ~I want to hear a joke; let me hear a joke; let me hear something funny; do you have a [good |new |]joke; do you know any [good |funny ]jokes; what is your best joke; what's a good joke; tell me your [best|funniest] joke; give me your best joke; give us a [good|random] joke; tell a random joke; ~random joke; ~joke time; ~time for a joke; ~[can|could] you tell me a joke; ~can you make us laugh; ~cheer me up with a joke; cheer us up, tell a joke; have you got a joke; have you got any jokes; ~I'm bored, tell me a joke; ~I am sad, make me laugh; ~we are bored, tell us something funny
let us hear a joke; let me laugh; let us laugh, tell a joke; ~I'd like to hear a good joke

dice: roll_dice dice throw_dice roll_die
[Roll|Throw] [dice|a die][.|]; Dice [roller|game]; Roll a die with a number of sides; Throw a die that has some faces
sides/faces:number
[roll|throw] a [die|dice] with {0} sides; roll a {0} sided [die|dice]; roll the dice, {0} sides; ~dice with {0} faces; ~I need a roll of a {0}-sided die; roll a d{0}; ~d{0} roll; roll a die with {0} faces; throw a die with {0} faces
throw a {0} sided [die|dice]; throw the die with {0} sides; throw a d{0}; ~die with {0} sides; ~{0}-sided dice, roll it; ~{0} sided die, please; ~dice: {0} sides; ~a die with {0} faces, throw it; ~[can|could] you roll a {0}-sided die; ~can you throw a die with {0} sides; roll one {0}-sided die; let me roll a {0} sided die; let me throw a dice with {0} sides; ~I need a throw of a {0}-sided die; ~I want to roll a d{0}; ~one roll of the {0}-sided die; use a die with {0} faces and roll it

coin: flip_coin coin_flip toss_coin
[Flip|Toss] a coin[.|]; Heads or tails; Throw a coin, heads or tails; Let a coin decide
-
[flip|toss|throw] a coin; ~heads or tails; ~do a coin [flip|toss]; ~coin flip; let a coin decide; ~I need a coin [flip|toss]; ~coin toss; [flip|toss] the coin; flip a coin and tell me heads or tails; toss a coin for [me|us]; throw the coin
~heads or tails, flip a coin; ~heads or tails, you throw; is it heads or tails; ~[can|could] you [flip|toss] a coin; ~can you throw a coin for us; let the coin decide; let us flip a coin; let's toss a coin; ~I can't decide, flip a coin; ~we can't decide, toss a coin; ~a coin should decide; ~one coin toss, please; ~one coin flip, please; give me a coin flip; make a coin toss; give me heads or tails; ~I need heads or tails; flip one coin; ~coin: heads or tails

pet: feed_pet pet_feeder feed
Feed a pet[.|]; Pet feeder; Give food to a hungry [pet|animal]; Fill the bowl of a pet
pet/animal/name:person
feed {0}; give {0} [some |]food; ~{0} is hungry; ~feeding time for {0}; ~{0} needs [food|to eat]; fill the bowl of {0}; ~{0} has not eaten, give some food; feed my pet {0}; feed [the|our] pet {0}
~my pet {0} is hungry; ~{0} looks hungry, give some food; ~{0} has not eaten yet, fill the bowl; ~{0} wants to eat; ~{0} wants food; ~time to feed {0}; ~it is feeding time for {0}; ~it is time to feed {0}; let {0} eat; let {0} have some food; let the feeder give {0} food; start the pet feeder for {0}; use the feeder for {0}; ~the bowl of {0} is empty; ~{0} has an empty bowl, fill it; ~[can|could] you feed {0}; ~can you give {0} some food; ~[can|could] you fill the bowl of {0}; ~food for {0}, please; ~I forgot to feed {0}, please do it; put food in the bowl of {0}; make sure {0} gets food; ~{0} should eat now
~feeding time, give {0} food; ~is it feeding time? Feed {0}; ~{0}'s bowl is empty; ~the food bowl is empty, feed {0}; start feeding {0}
start the feeder for {0}; start the food for {0}

call: call_contact make_call phone call start_call
[Call|Phone] a [contact|person][.|]; Make a phone call; Dial the phone of a person; [Ring|Call] someone on the phone, also by video
name/contact/person/recipient:person
call {0}[| now| on the phone]; [phone|ring|dial] {0}; make a [phone |]call to {0}; ~I [want|need] to [talk to|speak with|call] {0}; give {0} a call; get {0} on the [phone|line]; start a [video |]call with {0}; call {0} on the phone
call my contact {0}; call up {0}; phone {0} now; ring up {0}; dial {0} on the phone; place a call to {0}; place a phone call to {0}; ~phone call to {0}; ~call to {0}, please; ~video call with {0}; make a video call to {0}; start a phone call with {0}; give {0} a ring; give {0} a phone call
connect me with {0} on the phone; connect me to {0} by phone; put me through to {0}; put {0} on the line; get me {0} on the phone; let me talk to {0} on the phone; let me speak to {0}; ~[can|could] you call {0}; ~can you ring {0}; ~[can|could] you get {0} on the line; ~I have to call {0}; ~I need to phone {0}; ~I want to ring {0}; ~I would like to speak to {0} on the phone; ~I must talk to {0} on the phone; ~{0} on the phone, please; ~I want a video call with {0}
let me call {0}; let me have a call with {0}; start a call to {0}; start calling {0}

contact: add_contact create_contact save_contact new_contact
[Add|Save|Create] a contact[.|]; New contact; Store the phone number of a person; Save a name and a number in the contacts
name/contact:person phone/number/phone_number:phone
[add|save|create] [a |the |]contact {0} with [phone |the |]number {1}; save {0} with the number {1}; ~new contact {0}, {1}; add {0} to [my|the] contacts, number {1}; ~{0}'s number is {1}, save it; store {1} as the number of {0}
add {0} to my contacts with the number {1}; add {0} to the contacts, phone {1}; add {0} with the phone number {1} to my contacts; save {0} in my contacts with the number {1}; save {0} in the contacts, number {1}; save the number {1} for {0}; save the number {1} as {0}; store the phone number {1} for {0}; store {0} with the number {1} in my contacts
save {1} as {0}'s number; store {1} as {0}'s phone number; put {0} in my contacts, number {1}; put {0} in my contacts with the phone number {1}; create a contact named {0} with the number {1}; create a new contact: {0}, {1}; make a contact for {0} with the number {1}; make {0} a contact, number {1}; ~contact: {0}, {1}; ~new contact: {0}, phone {1}; ~new contact named {0}, number {1}
~{0} has the number {1}, save it in my contacts; ~{0} has a new number, {1}, store it; ~the number of {0} is {1}, save it; ~the phone number of {0} is {1}, store it; ~{1} is {0}'s number, save the contact; ~{1} is the number of {0}, add it to my contacts; ~[can|could] you save {0} with the number {1}; ~can you add {0} to my contacts, number {1}; ~I want to save the number {1} for {0}; ~name {0}, number {1}, save the contact
~new contact, name {0}, number {1}; add a contact with the name {0} and the number {1}; save the name {0} with the number {1}; create a contact, name {0}, phone {1}

contact: get_contact find_contact lookup_contact get_phone_number
[Find|Get] [a contact|a phone number][.|]; Look up a contact; Number and details of a person in the contacts; How to reach a person by phone
name/contact/person:person
what is {0}'s [phone |]number; [find|show|get] [me |]the [phone |]number of {0}; look up {0} in my contacts; what number can I reach {0} [at|under]; ~contact details of {0}; do I have {0}'s number; ~{0}'s phone number; what is the [phone |]number of {0}
~phone number of {0}; ~number of {0}, please; ~{0}'s number, please; ~{0}'s contact details; ~contact {0}, which number; find {0} in my contacts; find {0}'s [phone |]number; look up {0}'s [phone |]number; look up the number of {0}; look in my contacts for {0}; search my contacts for {0}; search the contacts for {0}'s number; show me {0}'s contact details; show me the contact {0}; get the contact details of {0}; get {0}'s phone number
is {0} in my contacts; is there a number for {0} in my contacts; do I have the phone number of {0}; do my contacts have a number for {0}; which number does {0} have; which phone number does {0} have; under which number can I reach {0}; how can I reach {0}, what is the number; give me {0}'s number; give me the phone number of {0}; tell me {0}'s phone number; ~[can|could] you look up {0}'s number; ~can you find the number of {0}; ~I need {0}'s [phone |]number; ~I need the contact details of {0}; ~I forgot {0}'s number, look it up; ~I want to reach {0}, find the number
~I forgot the number of {0}; ~I have forgotten {0}'s phone number; ~I forgot how to reach {0}, look up the number; get the number for {0}; get me {0}'s number
~I forgot what {0}'s number is; ~I forgot the phone number of {0}, find it

date: get_current_date current_date get_date today
Get [today's|the current] date[.|]; Current date; What day it is today; Tells the day, month and year
-
what is [the date|today's date]; what day is it[| today]; which day is [it|today]; ~today's date; [tell|give|show] me [the date|today's date]; what's the date[| today]; what is the date today; what is the current date; what's today's date; ~current date
~the date, please; ~today's date, please; ~date today; ~what day is today; what day of the week is it; which day of the week is it today; which date is it today; what date do we have today; what day do we have; which day do we have today; what month is it; which month is it now; what year is it; which year do we have; ~[can|could] you tell me the date; ~can you tell me what day it is; ~I need today's date; ~I need to know the date; ~I forgot what day it is; ~I forgot the date; do you know today's date; do you know what day it is; is today Monday or Tuesday; is it Friday today; ~day and month, please; ~day, month and year, please; check the date; check what day it is; ~I don't know what day it is; tell me what day it is today; say the current date; get the date of today
""")
