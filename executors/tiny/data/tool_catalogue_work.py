"""Tools of work and knowledge: mail, search, translation, orders, files, databases, arithmetic."""

from executors.tiny.data.tool_kind import read_kinds

WORK = read_kinds("""
message: send_email email send_mail mail_send
Send an email[ to someone|][.|]; [Sends|Write] an email
to/recipient/address/email:email subject/title:title
send [an email|a mail|mail] to {0} with [the |]subject {1}; email {0} about {1}; write [an email|a mail] to {0} about {1}; mail {0} with subject {1}; email {0}, subject {1}; ~I need to email {0} with the subject {1}
~email to {0}, subject: {1}; [write|draft|send] {0} an email [with the subject|titled|about] {1}; send an email with the subject {1} to {0}; ~mail to {0}: {1}; [shoot|send] {0} an email about {1}; email {0} with {1} as [the |]subject

message: send_email email send_mail compose_email
Send an email[.|]; Write an email
to/recipient/address:email subject/title:title body/content/message/text:message
send an email to {0} with [the |]subject {1} and [the |]body {2}; email {0}, subject {1}, body {2}; write to {0} with subject {1}: {2}; email {0} about {1} and [say|write] {2}; ~mail to {0}, subject {1}, text {2}; send {0} a mail titled {1} saying {2}

message: send_email email mail
Send an email[.|]; Email someone
to/recipient/email:email body/message/content/text:message
email {0} [saying|that] {1}; write to {0}: {1}; send {1} to {0}; ~email to {0}: {1}; send an email to {0} [that says|saying] {1}; let {0} know by email: {1}; mail {0} the text {1}

message: send_message message send_sms text_message send_text
Send a [text |]message to [a contact|a person|someone][.|]; Sends [a message|an SMS]
to/recipient/contact/name:person text/message/body/content:message
[send|text] {0} the message {1}; send a message to {0} saying {1}; tell {0}: {1}; text {0} that {1}; message {0}: {1}; let {0} know[: | that ]{1}; write [to |]{0} that {1}
[send|write] {0} a [text|message]: {1}; tell {0} that {1}; ~message for {0}: {1}; text {0}: {1}; send {1} to {0}; [drop|send] {0} a line: {1}; ~I want to tell {0} that {1}

message: post_message send_slack_message slack post_to_channel
Post [a message |]to a channel[.|]; Send a [Slack |chat ]message
channel/channel_name:word text/message:message
post {1} [in|to] the {0} channel; send {1} to the channel {0}; write in {0} [channel|chat]: {1}; ~to the {0} channel: {1}; [post|share|put] the message {1} in the {0} channel; tell the {0} channel: {1}

message: post_tweet tweet create_post post_status
[Post|Publish] a [tweet|status|post][.|]; Social media post
text/content/message:message
[post|publish|share] the status {0}; tweet {0}; post this: {0}; ~new post: {0}; ~tweet: {0}; post on my [page|account|profile]: {0}; tweet that {0}; publish a [tweet|post] saying {0}

mailbox: get_emails check_email read_emails list_emails
[Get|List] [new |unread |]emails[.|]; Check the inbox
-
[check|read|show|open] my [email|emails|inbox|mail]; do I have [any |]new [emails|mail]; any new [mail|emails]; ~my inbox; what is in my inbox; [show|list] [me |]unread emails; is there new mail

search: search_web web_search search google internet_search
Search the [web|internet][ for a query|][.|]; [Web|Internet|Online] search
query/q/search_term/search_query:query
search [the web |the internet |online |]for {0}; google {0}; look up {0}[| online| on the web]; find [information|pages|results] [about|on] {0}; ~web search: {0}; search [the web|online]: {0}; what does the internet say about {0}
~I want to search for {0}; look online for {0}; [do|run] a web search for {0}; search {0}[| online| on the web| on google]; can you google {0}; find {0} [online|on the web|on the internet]; ~google: {0}; what comes up [online |]for {0}

search: search_wikipedia wikipedia wiki_lookup get_article
[Search|Look up] [an article in |]Wikipedia[.|]; Get a Wikipedia article
title/topic/query/article:topic
[search|open|read|look up] {0} [on|in] Wikipedia; what does Wikipedia say about {0}; ~wikipedia article about {0}; ~wiki {0}; find the Wikipedia [page|article] on {0}; show [me |]the [Wikipedia|wiki] page [of|for|about] {0}

search: search_images image_search find_images find_pictures
[Search|Find] [images|pictures][.|]; Image search
query/q/subject:topic
[find|show|search|get] [me |][images|pictures|photos] of {0}; ~pictures of {0}; what does {0} look like; ~I want to see [pictures|photos|images] of {0}; ~image search: {0}; any [pictures|photos] of {0}

search: search_videos find_video youtube_search
[Search|Find] videos[.|]; Video search
query/q/topic:query
[find|show|search|get] [me |]videos [of|about|on] {0}; ~videos about {0}; are there [any |]videos on {0}; ~I want to see videos about {0}; ~video search: {0}; search for videos on {0}

news: get_news news latest_news news_search headlines
Get the [latest |]news [about a topic|on a topic|][.|]; [News|Headlines]
topic/subject/category/query:topic
[what is|show me|get|read|tell me] the [latest |]news [about|on] {0}; ~news about {0}; any news [on|about] {0}; ~headlines about {0}; what is new in {0}; what's happening with {0}
~latest on {0}; is there [any |anything ]new[s|] about {0}; [give|read] me the headlines on {0}; what do the papers say about {0}; ~{0} news; ~I want to read news about {0}; what's the latest on {0}

translate: translate translate_text translation translator
Translate [a text|text|a word] [to|into] [a|another] language[.|]; [Language |]translation
text/phrase/sentence/input:text target_language/language/target/to:language
translate {0} [to|into] {1}; how do you say {0} in {1}; what is {0} in {1}; say {0} in {1}; ~{0} in {1}; give me the {1} [word|translation] for {0}; ~the {1} translation of {0}
how do I say {0} in {1}; how would [I|you] say {0} in {1}; ~{0} to {1}; put {0} into {1}; what does {0} mean in {1}; ~I need {0} in {1}; ~translation of {0} into {1}; what's the {1} for {0}; write {0} in {1}

translate: translate translate_text
Translate text between languages[.|]; Translation
text/input/phrase:text source/from/source_language:language target/to/target_language:language
translate {0} from {1} [to|into] {2}; [put|turn] the {1} text {0} into {2}; what is the {1} sentence {0} in {2}; ~{1} to {2}: {0}; how do you say the {1} phrase {0} in {2}; ~from {1} to {2}: {0}

define: define_word dictionary lookup_word get_definition define
[Define|Look up] a word[.|]; Dictionary[ lookup|]
word/term:word
[define|what is the meaning of|look up the word|explain the word] {0}; what does [the word |]{0} mean; ~definition of {0}; ~meaning of {0}; ~dictionary: {0}; what's the definition of {0}; what is [meant by|the definition of] {0}

define: get_synonyms synonyms thesaurus find_synonym
[Get|Find] synonyms of a word[.|]; Thesaurus
word/term:word
[what is|give me|find] [another word|a synonym] for {0}; ~synonyms [of|for] {0}; which words mean the same as {0}; what are [other words|synonyms] for {0}; [find|list] synonyms of {0}; how else can I say {0}

define: check_spelling spell_check spellcheck
Check the spelling of a word[.|]; Spell check
word/text:word
[check the spelling of|spell check] {0}; is {0} spelled [right|correctly]; how [do you|do I] spell {0}; ~spelling of {0}; did I spell {0} right; is {0} a word

math: calculate calculator evaluate compute eval_expression
[Calculate|Evaluate|Compute] [a math expression|an expression|a formula][.|]; [Calculator|Does math]; Evaluate an arithmetic expression
expression/formula/input/expr:expression
[what is|what's|calculate|compute|evaluate|how much is|work out] {0}; use the calculator for {0}; ~the result of {0}; solve {0}; ~{0} = ?; what [do I get for|is the result of] {0}; what does {0} equal; ~I need the [result|value] of {0}

math: add_numbers add sum addition
Add two numbers[.|]; [Sum|Addition] of two numbers
a/x/first/num1:number b/y/second/num2:number
add {0} and {1}; what is {0} + {1}; what is {0} plus {1}; ~sum [of |]{0} and {1}; ~{0} + {1}; use the tool to add {0} and {1}; how much is {0} plus {1}

math: multiply multiply_numbers product
Multiply two numbers[.|]; Product of two numbers
a/x/first/num1:number b/y/second/num2:number
multiply {0} [by|and|with] {1}; what is {0} times {1}; what is {0} * {1}; ~{0} x {1}; ~product of {0} and {1}; how much is {0} times {1}

math: divide divide_numbers division
Divide two numbers[.|]; Division
a/x/dividend/numerator:number b/y/divisor/denominator:number
divide {0} by {1}; what is {0} divided by {1}; what is {0} / {1}; ~{0} / {1}; how much is {0} [over|divided by] {1}; split {0} by {1}

math: subtract subtract_numbers minus
Subtract two numbers[.|]; Difference of two numbers
a/x/first:number b/y/second:number
what is {0} minus {1}; what is {0} - {1}; ~{0} - {1}; ~{0} minus {1}; how much is {0} minus {1}; take {0} minus {1}

math: calculate_percentage percentage percent_of
Calculate a percentage[.|]; Percent of a number
percent/percentage/rate:percent value/number/total/of:number
what is {0} percent of {1}; what's {0}% of {1}; calculate {0} percent of {1}; ~{0}% of {1}; how much is {0} percent of {1}; ~{0} percent of {1}

math: square_root sqrt get_square_root
[Get|Calculate] [the |a ]square root[.|]; Square root
number/x/value:number
what is the square root of {0}; ~square root of {0}; [calculate|find|get] the square root of {0}; ~root of {0}; take the square root of {0}; ~sqrt {0}

random: random_number get_random random generate_random_number
[Get|Generate|Pick] a random number[.|]; Random number[s|]
min/low/from/start:number max/high/to/end:number
[give me|pick|generate|choose] a random number [between|from] {0} [and|to] {1}; ~random number {0} to {1}; ~random between {0} and {1}; ~I need a random number from {0} to {1}; think of a number between {0} and {1}; [draw|roll] a number from {0} to {1}

password: generate_password password create_password new_password
[Generate|Create] a [random |]password[.|]; Password generator
length/size/characters:small
[generate|create|make|give me] a [password|random password] [of|with] {0} [characters|letters]; ~I need a password with {0} characters; ~password of length {0}; [generate|create] a {0} character password; ~new password, {0} characters; [make|give] me a {0} character password

user: get_user find_user lookup_user user_info get_user_by_id
[Get|Find|Look up] a user[ by id|][.|]; User [information|data]
user_id/id/uid:id
[get|find|show|look up|fetch] [me |][the |]user {0}; who is user {0}; ~[user|information about user] {0}; [show|find|look up] [me |]the user with [the |]id {0}; ~user number {0}; [get|fetch|pull up] the [account|profile|data] of user {0}; ~I need the [details|data] of user {0}

user: get_customer find_customer customer_info lookup_customer
[Get|Find] a customer[.|]; Customer [data|lookup]
customer_id/id/customer:id
[get|find|show|look up] [the |]customer {0}; who is customer {0}; ~customer number {0}; [show|pull up] [me |]the customer with [the |]id {0}; ~details of customer {0}; [open|get] the record of customer {0}

user: find_person search_employee find_employee search_users
[Find|Search] [a person|an employee|users] by name[.|]; Staff directory
name/full_name/query:person
[find|look up|search for] [the |][employee|user|colleague] [named |called |]{0}; who is {0}; ~employee {0}; which [team|office|department] is {0} in; do we have [an employee|a user] called {0}; ~staff record of {0}

user: create_user add_user register_user new_user
[Create|Add|Register] a user[.|]; New user
name/username/full_name:person email/mail/email_address:email
[create|add|register] [a |the |a new ]user {0} with [the |]email {1}; ~new user {0}, {1}; sign up {0} with {1}; add {0} as a user, email {1}; register {0} ({1}); ~new account for {0}, email {1}

user: delete_user remove_user deactivate_user
[Delete|Remove] a user[.|]; Delete an account
user_id/id/user:id
[delete|remove|deactivate] [the |]user {0}; delete the account of user {0}; ~user {0} must go; remove the user with [the |]id {0}; get rid of user {0}; ~user {0} has left, delete the account

product: get_product product_info find_product lookup_product
[Get|Find] a product[ by id|][.|]; Product [data|details]
product_id/id/sku:id
[get|show|find|look up] [me |][the |]product {0}; what is product {0}; ~product {0}; [show|give] me [the |]details of product {0}; ~info on product number {0}; find the product with [the |]id {0}

product: search_products find_products product_search shop_search
Search [for |][products|the shop][.|]; Product search
query/name/keyword/product:product max_price/price_limit:number?
[find|search|show me] [the product|products called] {0}; do you [have|sell] {0}; is {0} in stock; ~I want to buy {0}, do you have it; ~search the [shop|store] for {0}; find {0} [under|below|for less than] {1} [dollars|euros]; what kinds of {0} do you sell

order: get_order order_status track_order check_order get_order_status
[Get|Check|Track] [the status of |]an order[.|]; Order status
order_id/id/number/order_number:id
[where is|track|check|show] [my |]order {0}; [what is |what's |]the status of [my |]order {0}; ~order {0} status; has [my |]order {0} [arrived|shipped|been sent]; when does [my |]order {0} arrive; when will [my |]order {0} [arrive|be here|get here]
where's [my |]order {0}; ~status of order {0}; how is [my |]order {0} [doing|coming along]; ~I'm waiting for order {0}; look up [my |]order {0}; is [my |]order {0} on its way; ~my order number is {0}, where is it

order: track_package track_shipment package_status get_delivery
Track a [package|shipment|delivery][.|]; [Package|Delivery] status
tracking_number/package_id/tracking_id:code
[track|find|check] [my |the |]package {0}; where is [my |the |]package {0}; ~tracking number {0}; when [does|will] [my |]package {0} arrive; has [my |the |]package {0} [arrived|shipped]; ~status of [package|shipment|delivery] {0}

order: cancel_order order_cancel
Cancel an order[.|]; Cancels [an order|a purchase]
order_id/id/number:id
cancel [my |the |]order [number |]{0}; ~I want to cancel order {0}; stop order {0}; ~I do not want order {0} any more; ~order {0} was a mistake, cancel it; can I cancel order {0}

order: refund_order refund request_refund return_order
Refund an order[.|]; Request a refund
order_id/id/order:id
[refund|return] [my |the |]order {0}; ~I want [a refund|my money back] for order {0}; ~refund for order {0}; ~order {0} is broken, I want my money back; can I [return|get a refund for] order {0}; send back order {0}

invoice: create_invoice send_invoice make_invoice
[Create|Make] an invoice[.|]; Invoices
customer/client/name:person amount/total:amount
[create|make|write] an invoice [for|to] {0} over {1}[| dollars| euros]; bill {0} {1} [dollars|euros]; ~invoice for {0}: {1}; invoice {0} for {1}[| dollars| euros]; ~new invoice, {0}, {1}; charge {0} {1} [dollars|euros]

ticket: create_ticket open_ticket new_ticket create_issue report_bug
[Create|Open] a [ticket|support ticket|issue][.|]; [New|Report an] issue
title/subject/summary:title priority/severity:priority?
[open|create|file|make] a [ticket|support ticket|new ticket] [called|titled|for|about] {0}; ~new ticket: {0}; report [an issue|a bug|a problem]: {0}; [open|create] a {1} priority ticket: {0}; file a bug [called|titled|about] {0}; create a ticket {0} with priority {1}; ~ticket: {0}

ticket: get_ticket ticket_status show_ticket
[Get|Show] [the status of |]a ticket[.|]; Ticket status
ticket_id/id/number:id
[what is|show|check] the status of ticket {0}; [show|open|get] [me |]ticket {0}; ~ticket {0}; is ticket {0} [closed|solved|open|done]; ~status of ticket {0}; what happened to ticket {0}

ticket: close_ticket resolve_ticket close_issue
Close a ticket[.|]; Resolve an issue
ticket_id/id/number:id
[close|resolve] [the |]ticket {0}; ~ticket {0} is [done|solved], close it; mark ticket {0} as [closed|solved]; set ticket {0} to [closed|resolved]; ~ticket {0} can be closed; [finish|end] ticket {0}

ticket: assign_ticket assign_task assign_issue
Assign a [ticket|task] to someone[.|]; Assign work
ticket_id/id/issue:id assignee/user/name:person
assign ticket {0} to {1}; give ticket {0} to {1}; ~ticket {0} is for {1}; {1} should [do|take] ticket {0}; make {1} responsible for ticket {0}; let {1} [work on|handle] ticket {0}

file: read_file open_file load_file cat_file
[Read|Open] a file[.|]; Returns the [text|content] of a file
path/filename/file/file_path:file
[read|open|show|load] [me |][the file |]{0}; what is in [the file |]{0}; show me the [content|contents|text] of [the file |]{0}; print [the file |]{0}; ~contents of {0}; what does [the file |]{0} say; display {0}

file: delete_file remove_file rm
[Delete|Remove] a file[.|]; Deletes [a|one] file
path/filename/file/file_path:file
[delete|remove|erase] the file {0}; delete [file |]{0}; get rid of [the file |]{0}; ~I do not need the file {0} any more; ~{0} can be deleted; [remove|erase] {0}; throw away {0}

file: copy_file cp duplicate_file
Copy a file[.|]; File copy
source/from/src:file destination/to/dest/target:file
copy [the file |]{0} to {1}; make a copy of {0} [called|named|as] {1}; duplicate {0} as {1}; ~copy of {0} to {1}; [save|put] a copy of {0} [as|under] {1}; back up {0} to {1}

file: rename_file move_file mv
[Rename|Move] a file[.|]; File renaming
old_name/source/from/path:file new_name/destination/to:file
rename [the file |]{0} to {1}; [move|rename] {0} to {1}; change the name of {0} to {1}; ~{0} should be called {1}; give {0} the [new |]name {1}; call the file {0} {1} from now on

file: create_file write_file save_file
[Create|Write] a file[.|]; Writes text to a file
path/filename/file:file content/text/data:message
[create|write|make] a file {0} with [the |]content {1}; write {1} [to|into] [the file |]{0}; save {1} [in|to|as] {0}; ~new file {0}: {1}; put the text {1} into {0}; create {0} containing {1}

file: list_files ls list_directory show_files
[List|Show] [the |]files in a folder[.|]; Directory listing
path/directory/folder/dir:word
[list|show] [me |]the files in [the folder |]{0}; what is in the folder {0}; which files are in [the folder |]{0}; ~files in {0}; list the {0} [folder|directory]; what files does the {0} [folder|directory] have

file: search_files find_file find_files
[Search|Find] files[.|]; File search
query/pattern/name/keyword:word
[find|search for] [a file|files] [named|called|with the name] {0}; where is the file [named|called] {0}; ~files named {0}; search my files for {0}; which files [contain|mention] {0}; look for {0} in my files

shell: run_command execute_command shell bash
[Run|Execute] a [shell |]command[.|]; Shell
command/cmd:word
[run|execute] the command {0}; run {0} in the [shell|terminal]; type {0} in the terminal; ~command: {0}; [execute|start] {0} on the command line; use the shell to run {0}

database: run_query sql_query query_database get_rows
[Run|Execute] a [database query|query][.|]; Query [the |a ]database
table/table_name:word limit/rows/count:small
[show|get|select|read] {1} rows [from|of] [the table |table |]{0}; query the table {0} with limit {1}; ~first {1} rows of {0}; give me {1} rows [from|of] the {0} table; select from {0} limit {1}; ~table {0}, {1} rows

database: count_rows count_records table_size
Count [the |]rows of a table[.|]; Number of records
table/table_name:word
how many [rows|records|entries] [are|are there] in [the table |]{0}; count the [rows|records] [of|in] [the table |]{0}; ~row count of {0}; how big is the table {0}; ~number of rows in {0}; count [everything in|all of] the {0} table

file: open_website open_url browse fetch_url visit_page
[Open|Fetch] a [website|web page|URL][.|]; Browser
url/address/website/link:url
[open|visit|load|fetch] {0}; go to {0}; show [me |]the [website|page] {0}; ~I want to [see|visit] {0}; what is on {0}; [open|browse to] the [page|website|link] {0}; take a look at {0}

website: check_website ping site_status is_up
Check [whether|if] a [site|host] is up[.|]; Ping a host
host/url/domain/website:url
is {0} [up|down|online|working]; check [if|whether] {0} is [up|down|online]; ping {0}; ~status of {0}; does {0} respond; can {0} be reached; why is {0} [down|slow]

app: open_app launch_app start_app run_app
[Open|Launch|Start] an app[.|]; [App launcher|Starts an app]
app/name/app_name:word
[open|launch|start|run] the app {0}; [open|launch|start] the {0} app; [open|launch] {0}; ~I want to use the {0} app; bring up the {0} app; ~app: {0}

server: restart_server restart_service reboot restart
Restart a [server|service][.|]; Service restart
name/service/server/service_name:word
[restart|reboot] the [server|service] {0}; [restart|reboot] {0}; ~the {0} [server|service] hangs, restart it; turn the {0} [server|service] off and on again; bounce the {0} service; ~restart of the service {0}

server: get_logs show_logs read_logs fetch_logs
[Get|Show] [the |]logs of a service[.|]; Service logs
service/name/app:word lines/limit/count:small?
[show|get|fetch|read] [me |]the logs of {0}; what do the logs of {0} say; ~logs of {0}; [show|give] me the last {1} [log |]lines of {0}; ~{0} logs; what happened in the {0} service; print the logs [of|for] {0}

summary: summarize summarize_file summarize_document
Summarize a [document|file][.|]; Document summary
file/document/path:file
summarize [the document |the file |]{0}; give me a summary of {0}; ~summary of {0}; what is {0} about[| in short]; sum up {0}; [write|make] a short summary of {0}

book: find_book search_books book_search get_book
[Find|Search] [a book|books][.|]; Book search
title/book/name:title
[find|search|look for] the book {0}; do you have the book {0}; who wrote [the book |]{0}; ~book: {0}; ~I want to read [the book |]{0}; ~I am looking for the book {0}; is there a book called {0}

vacation: request_vacation book_leave request_time_off
Request [vacation|leave|time off][.|]; Vacation request
start_date/from/start:date end_date/to/until:date
request [vacation|leave|time off] from {0} to {1}; ~I want [vacation|time off|leave] from {0} to {1}; book [my |]leave from {0} until {1}; ~vacation from {0} to {1}; [ask for|request] days off from {0} to {1}; ~I'm away from {0} until {1}, request leave

sports: get_score game_score sports_score match_result
Get the [score|result] of a [team|game][.|]; Sports scores
team/club/team_name:artist
[what is|get|show] the score of [the |]{0}[ game| match|]; did {0} win[| today| last night]; how did {0} play[| yesterday]; ~score of {0}; who won the {0} game; ~{0} result; what was the result of the {0} match
""")
