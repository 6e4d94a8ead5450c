"""Tools of words and numbers: mail, messages, search, news, translation, dictionary, arithmetic."""

from executors.tiny.data.tool_kind import read_kinds

WORK = read_kinds("""
message: send_email email send_mail mail_send
Send an email[ to someone|][.|]; [Sends|Write] an email; [Write and send|Send] a mail with a subject; Email someone about a subject; Draft an email[ titled as given|]
to/recipient/address/email:email subject/title:title
send [an email|a mail|mail] to {0} with [the |]subject {1}; email {0} about {1}; write [an email|a mail] to {0} about {1}; mail {0} with subject {1}; email {0}, subject {1}; ~I need to email {0} with the subject {1}
~email to {0}, subject: {1}; [write|draft|send] {0} an email [with the subject|titled|about] {1}; send an email with the subject {1} to {0}; ~mail to {0}: {1}; [shoot|send] {0} an email about {1}; email {0} with {1} as [the |]subject
~I want to [write|send] an email to {0} about {1}; ~I need to mail {0} about {1}; [compose|start|draft] an email to {0} [titled|with the title|about] {1}; send {0} [a mail|an email] with the title {1}; [shoot|drop] {0} a mail [about|with the subject] {1}
write to {0} by email, subject {1}; ~new [email|mail] to {0}, title {1}; ~an email to {0} about {1}, please; [compose|start] a mail to {0}, subject: {1}; use {1} as the subject of an email to {0}; send an email about {1} to {0}; mail {0} about {1}; ~email {0} re: {1}; ~mail to {0} re: {1}; [drop|shoot] a mail to {0} about {1}

message: send_email email send_mail compose_email
Send an email[.|]; Write an email; Send a mail with subject and [body|text]; [Compose|Write] an email with a title and a message; Email someone
to/recipient/address:email subject/title:title body/content/message/text:message
send an email to {0} with [the |]subject {1} and [the |]body {2}; email {0}, subject {1}, body {2}; write to {0} with subject {1}: {2}; email {0} about {1} and [say|write] {2}; ~mail to {0}, subject {1}, text {2}; send {0} a mail titled {1} saying {2}
email {0} with [the |]subject {1} and [the |]body {2}; [write|compose|draft] an email to {0}, subject {1}, [text|body|message] {2}; send {0} an email [titled|called|with the title] {1} [saying|that says] {2}; mail {0} about {1}: {2}; ~email to {0}, subject: {1}, body: {2}
send an email to {0} about {1} saying {2}; email {0} about {1} and say that {2}; ~I want to email {0} about {1} and say {2}; mail {0} with the title {1} and the text {2}; [compose|write] a mail titled {1} to {0} with the text {2}; ~to {0}, subject {1}: {2}; send a mail to {0}, title {1}, message {2}

message: send_email email mail
Send an email[.|]; Email someone; Send a [text|message] by email; Write a mail to someone; Let someone know by email
to/recipient/email:email body/message/content/text:message
email {0} [saying|that] {1}; write to {0}: {1}; send {1} to {0}; ~email to {0}: {1}; send an email to {0} [that says|saying] {1}; let {0} know by email: {1}; mail {0} the text {1}
email {0} that {1}; email {0}: {1}; mail {0} that {1}; write {0} an email [that says|saying] {1}; send {0} an email saying {1}; tell {0} by email that {1}; send {1} to {0} by email; ~I want to email {0} that {1}; let {0} know by email that {1}; inform {0} by [email|mail] that {1}
email {0} to say that {1}; email {0} and [say|write] that {1}; [write|send] {0} a mail: {1}; [email|mail] the text {1} to {0}; ~a mail to {0} saying {1}; ~I need to tell {0} by email that {1}; [write|send] an email to {0}: {1}; [drop|shoot] {0} an email saying {1}; write to {0} that {1}; [drop|shoot] {0} a mail that says {1}; ~I need to inform {0} that {1}; mail {0} and say {1}; ~mail for {0}: {1}
[drop|shoot] {0} a mail: {1}; shoot an email to {0} saying {1}; drop {0} an email that {1}

message: send_message message send_sms text_message send_text
Send a [text |]message to [a contact|a person|someone][.|]; Sends [a message|an SMS]; Text [someone|a person]; Write [a message|an SMS] to [someone|a contact]; Tell someone something by message
to/recipient/contact/name:person text/message/body/content:message
[send|text] {0} the message {1}; send a message to {0} saying {1}; tell {0}: {1}; text {0} that {1}; message {0}: {1}; let {0} know[: | that ]{1}; write [to |]{0} that {1}
[send|write] {0} a [text|message]: {1}; tell {0} that {1}; ~message for {0}: {1}; text {0}: {1}; send {1} to {0}; [drop|send] {0} a line: {1}; ~I want to tell {0} that {1}
message {0} that {1}; send {0} a [text|message] [saying|that says] {1}; [shoot|send] {0} a message: {1}; ~text to {0}: {1}; send a text to {0}: {1}; write to {0}: {1}; write a message to {0} [saying|that says] {1}; inform {0} that {1}; ~I need to text {0} that {1}; ~I want to let {0} know that {1}; text the words {1} to {0}
send [an SMS|a text message] to {0}: {1}; ~sms to {0}: {1}; give {0} the message that {1}; ~{0} should know that {1}; ~I need to tell {0} that {1}; send {0} an sms saying {1}; [drop|shoot] {0} a text that {1}; message {0} to say that {1}; text {0} to say {1}; send the message {1} to {0}; pass the message {1} on to {0}; pass on to {0} that {1}; [drop|write] {0} a line saying {1}; ~please inform {0} that {1}; ~{0} must know that {1}; send the words {1} to {0}
~I want to inform {0} that {1}; inform {0}: {1}

message: post_message send_slack_message slack post_to_channel
Post [a message |]to a channel[.|]; Send a [Slack |chat ]message; Write in a [chat|channel]; Put a message in a [Slack|chat] channel
channel/channel_name:word text/message:message
post {1} [in|to] the {0} channel; send {1} to the channel {0}; write in {0} [channel|chat]: {1}; ~to the {0} channel: {1}; [post|share|put] the message {1} in the {0} channel; tell the {0} channel: {1}
write [in|to] the {0} channel: {1}; tell the {0} channel that {1}; let the {0} [channel|chat] know that {1}; [post|send] a message to the channel {0}: {1}; post in the {0} chat: {1}; [share|put] {1} in the channel {0}; slack the {0} channel: {1}; ~message for the {0} channel: {1}
send a message to the {0} [channel|chat] saying {1}; [write|post] {1} in the {0} [channel|chat]; ~slack message to {0}: {1}; ~I want to post {1} in the {0} channel; ~chat message to {0}: {1}; send the {0} channel the message {1}; let the channel {0} know that {1}; share {1} with the {0} channel

message: post_tweet tweet create_post post_status
[Post|Publish] a [tweet|status|post][.|]; Social media post; Share a post with followers; Tweet something; Update the status on a profile
text/content/message:message
[post|publish|share] the status {0}; tweet {0}; post this: {0}; ~new post: {0}; ~tweet: {0}; post on my [page|account|profile]: {0}; tweet that {0}; publish a [tweet|post] saying {0}
tweet this: {0}; [post|publish|send] a tweet: {0}; [post|publish] on my [page|account|profile] that {0}; share this on my [page|profile|account]: {0}; ~status update: {0}; set my status to {0}; update my status: {0}; let my followers know that {0}; ~new tweet: {0}
[write|make|create] a [post|tweet] [saying|that says] {0}; tell my followers that {0}; share with my followers that {0}; ~new status: {0}; publish this: {0}; put {0} on my [profile|page]; ~I want to [tweet|post] that {0}; ~social media post: {0}; post to social media: {0}; write a new post: {0}; send out a tweet saying {0}; send a post to my followers: {0}; send this tweet: {0}

mailbox: get_emails check_email read_emails list_emails
[Get|List] [new |unread |]emails[.|]; Check the inbox; Read [the |]mail in the inbox; Show new mail
-
[check|read|show|open] my [email|emails|inbox|mail]; do I have [any |]new [emails|mail]; any new [mail|emails]; ~my inbox; what is in my inbox; [show|list] [me |]unread emails; is there new mail
did I get [any |][mail|emails|an email]; have I got [any |new ][mail|emails]; what's in my [inbox|mailbox]; [get|fetch|load] my [new |unread |][mail|emails]; ~unread [mail|emails]; ~check [mail|email|inbox]; [show|list|give] me my [latest|new|last] emails; has anyone [emailed|written to] me; who [emailed|wrote to] me; are there [any |]unread [mails|emails]
look into my [inbox|mailbox]; ~I want to [see|read] my [mail|emails]; is there anything [new |]in my [inbox|mailbox]; did anyone [email|write to] me; did I get [new|any] mail today; ~my mail; ~any emails; ~my [latest|last] emails; who has written to me; [see|look] if I have new mail; look at my mail; ~new emails; do I have [mail|emails]; do I have anything unread; [show|read] me today's [mail|emails]; is there any mail today; any mail today; do you see any new emails

search: search_web web_search search google internet_search
Search the [web|internet][ for a query|][.|]; [Web|Internet|Online] search; Look something up online; Find [information|pages|results] on the [web|internet]; Google search
query/q/search_term/search_query:query
search [the web |the internet |online |]for {0}; google {0}; look up {0}[| online| on the web]; find [information|pages|results] [about|on] {0}; ~web search: {0}; search [the web|online]: {0}; what does the internet say about {0}
~I want to search for {0}; look online for {0}; [do|run] a web search for {0}; search {0}[| online| on the web| on google]; can you google {0}; find {0} [online|on the web|on the internet]; ~google: {0}; what comes up [online |]for {0}
search for {0} [online|on the web|on the internet|on google]; look {0} up [online|on the web|on google]; [type|put|enter] {0} into [google|a search engine|the search engine]; ~{0}, [google it|search the web|look it up online|search online]; [check|search|browse] the [web|internet] for {0}; what can you find [online |on the web |on the internet ]about {0}
~I need [information|search results|pages] [on|about] {0}; ~search: {0}; ~online search: {0}; ~internet search for {0}; what comes up when you [google|search for] {0}; use [google|the web|the internet|a search engine] to find {0}; find out about {0} [online|on the internet]; look on the [web|internet] for {0}; [show|get|give] me [search |web ]results [for|about] {0}
run {0} through [google|a search engine]; ~google search: {0}; what does google [say|find|show] [for|about] {0}; what is there [online|on the web|on the internet] about {0}; [see|look] what the web says about {0}; do an [online|internet] search for {0}; can you look {0} up online; can you search the [web|internet] for {0}; ~results for {0} from the web; which pages come up for {0} on google; browse for {0} online; enter {0} in a search engine; type {0} into the search
what comes up on the web for {0}; what comes up on google for {0}; see what comes up for {0} online

search: search_wikipedia wikipedia wiki_lookup get_article
[Search|Look up] [an article in |]Wikipedia[.|]; Get a Wikipedia article; Read the wiki page [of|about] a topic; Find a Wikipedia entry
title/topic/query/article:topic
[search|open|read|look up] {0} [on|in] Wikipedia; what does Wikipedia say about {0}; ~wikipedia article about {0}; ~wiki {0}; find the Wikipedia [page|article] on {0}; show [me |]the [Wikipedia|wiki] page [of|for|about] {0}
[search|check] Wikipedia for {0}; look {0} up [on|in] Wikipedia; [get|open|read] the [Wikipedia|wiki] [article|page|entry] [on|about|for] {0}; ~wikipedia: {0}; ~wiki page on {0}; ~{0} on wikipedia; ~{0} wikipedia; is there a [Wikipedia|wiki] [article|page|entry] [on|about] {0}; what is in the Wikipedia article about {0}
~I want to read the Wikipedia article on {0}; does Wikipedia have [a page|an article|an entry] on {0}; use Wikipedia to look up {0}; ~the wiki entry for {0}; find {0} [in|on] Wikipedia; what can Wikipedia tell me about {0}; can Wikipedia say something about {0}; does wiki say anything about {0}

search: search_images image_search find_images find_pictures
[Search|Find] [images|pictures][.|]; Image search; Show [photos|pictures] of something; Look for images
query/q/subject:topic
[find|show|search|get] [me |][images|pictures|photos] of {0}; ~pictures of {0}; what does {0} look like; ~I want to see [pictures|photos|images] of {0}; ~image search: {0}; any [pictures|photos] of {0}
~photos of {0}; ~images of {0}; [search|look] for [images|pictures|photos] of {0}; [show|find|get] me [a picture|a photo|an image] of {0}; do an image search for {0}; are there [any |][images|pictures|photos] of {0}; ~{0} [pictures|photos|images]; ~I need [a picture|a photo|an image] of {0}
what do [pictures|photos] of {0} look like; let me see [a picture|a photo|pictures|photos] of {0}; can I see [a photo|a picture|images] of {0}; ~picture search: {0}; ~a photo of {0}, please; can you show me what {0} looks like; search images for {0}; run an image search for {0}; ~I wonder what {0} looks like, show me a picture; show me what {0} looks like; ~a picture of what {0} looks like; run a picture search for {0}; run a search for photos of {0}

search: search_videos find_video youtube_search
[Search|Find] videos[.|]; Video search; Look for [videos|clips] about a topic; Search YouTube
query/q/topic:query
[find|show|search|get] [me |]videos [of|about|on] {0}; ~videos about {0}; are there [any |]videos on {0}; ~I want to see videos about {0}; ~video search: {0}; search for videos on {0}
search youtube for {0}; ~youtube: {0}; look for [videos|clips|a video|a clip] [on|about] {0}; [find|show|get] me [a video|a clip|clips] [about|on] {0}; ~clips about {0}; find {0} on youtube; ~I need a video [on|about] {0}; is there a [video|clip] [on|about] {0}; which videos are there [on|about] {0}
do a video search for {0}; search {0} on youtube; what videos can you find [on|about] {0}; ~I want to watch clips about {0}; look {0} up on youtube; let me see a video about {0}; let me watch videos on {0}; any [videos|clips] [on|about] {0}; ~youtube videos on {0}; can I watch a clip on {0}; get me a video on {0}; show me a clip of {0}; get [some |]clips about {0}; is there any video [on|about] {0}; is there something on youtube about {0}

news: get_news news latest_news news_search headlines
Get the [latest |]news [about a topic|on a topic|][.|]; [News|Headlines]; Read [the |]headlines; News search; Latest news stories
topic/subject/category/query:topic
[what is|show me|get|read|tell me] the [latest |]news [about|on] {0}; ~news about {0}; any news [on|about] {0}; ~headlines about {0}; what is new in {0}; what's happening with {0}
~latest on {0}; is there [any |anything ]new[s|] about {0}; [give|read] me the headlines on {0}; what do the papers say about {0}; ~{0} news; ~I want to read news about {0}; what's the latest on {0}
~news: {0}; ~{0} headlines; ~news on {0}; [search|check|find] [the |]news [for|about|on] {0}; what is in the news about {0}; what do the [headlines|papers|news] say about {0}; is {0} in the news[ today|]; [find|show|get] me [news|headlines|stories|articles] [on|about] {0}; what's new [with|in|about] {0}
what is happening in {0}; ~I want the latest [news |]on {0}; ~today's [news|headlines] [on|about] {0}; [update|brief] me on the {0} news; has there been any news [on|about] {0}; what's in the papers about {0}; ~any [headlines|stories] about {0}; what are the [latest |]headlines on {0}; what has been happening with {0}; ~latest {0} news; are there [news|new] stories about {0}; ~news stories on {0}; is something new happening with {0}; brief me on the latest news about {0}; ~update on {0} from the news, please
find [the latest |]headlines [on|about] {0}; [show|find] news articles about {0}; ~news articles on {0}; read me articles about {0} from the news; is there something new about {0}; has something new happened with {0}

translate: translate translate_text translation translator
Translate [a text|text|a word] [to|into] [a|another] language[.|]; [Language |]translation; Say [a word|something|a sentence] in another language; Translates [words|phrases|sentences]; Translator
text/phrase/sentence/input:text target_language/language/target/to:language
translate {0} [to|into] {1}; how do you say {0} in {1}; what is {0} in {1}; say {0} in {1}; ~{0} in {1}; give me the {1} [word|translation] for {0}; ~the {1} translation of {0}
how do I say {0} in {1}; how would [I|you] say {0} in {1}; ~{0} to {1}; put {0} into {1}; what does {0} mean in {1}; ~I need {0} in {1}; ~translation of {0} into {1}; what's the {1} for {0}; write {0} in {1}
how would one say {0} in {1}; how can I say {0} in {1}; how does one say {0} in {1}; how to say {0} in {1}; how is {0} said in {1}; what would {0} be in {1}; what's {0} in {1}; ~{0}, in {1} please; ~{0}, how do you say that in {1}; translate to {1}: {0}; translate into {1}: {0}; say in {1}: {0}; ~in {1}: {0}; turn {0} into {1}
~I want to say {0} in {1}; ~I need to say {0} in {1}, how do I do it; ~I'd like to say {0} in {1}; ~I have to write {0} in {1}; how do you write {0} in {1}; how do I write {0} in {1}; what do you say in {1} for {0}; what is the {1} [word|phrase|translation] for {0}; tell me how to say {0} in {1}; tell me what {0} is in {1}
[give|get|show] me {0} in {1}; [give|get|show] me the {1} [version|translation] of {0}; what is the {1} [version|translation] of {0}; ~{1} for {0}; ~{0} translated [to|into] {1}; ~{1} translation: {0}; ~I need the {1} [word|phrase|translation] for {0}; can you say {0} in {1}; can you translate {0} [to|into] {1}; ~I need a translation of {0} [to|into] {1}; what does one say in {1} for {0}; please [translate|put] {0} into {1}; turn the [word|phrase|text] {0} into {1}; translate the [word|phrase|text|sentence] {0} [to|into] {1}
how do they say {0} in {1}; what do they say for {0} in {1}; how would {0} be said in {1}; how would you translate {0} [to|into] {1}; how do you translate {0} [to|into] {1}; how does {0} sound in {1}; ~I wonder how to say {0} in {1}; is there a {1} [word|phrase] for {0}; teach me to say {0} in {1}; teach me {0} in {1}; ~{1}, please: {0}; render {0} in {1}; render the [text|sentence] {0} in {1}; what would be the {1} [word|phrase] for {0}
how would one write {0} in {1}; how can one say {0} in {1}; what's the {1} translation of {0}; what would {0} be [if you say it|translated] in {1}; how does the [word|phrase] {0} sound in {1}; what does {0} sound like in {1}; how is {0} written in {1}; how would the [word|phrase] {0} be written in {1}; what is said for {0} in {1}; how can {0} be said in {1}

translate: translate translate_text
Translate text between languages[.|]; Translation; Translate a [text|sentence|phrase] from one language [to|into] another; Language translator
text/input/phrase:text source/from/source_language:language target/to/target_language:language
translate {0} from {1} [to|into] {2}; [put|turn] the {1} text {0} into {2}; what is the {1} sentence {0} in {2}; ~{1} to {2}: {0}; how do you say the {1} phrase {0} in {2}; ~from {1} to {2}: {0}
translate from {1} [to|into] {2}: {0}; translate the {1} [text|phrase|sentence] {0} [to|into] {2}; ~{0}, from {1} to {2}; ~{0}, translate it from {1} [to|into] {2}; [put|turn] {0} from {1} into {2}; how would I say the {1} [phrase|sentence] {0} in {2}; what does the {1} [phrase|sentence|text] {0} mean in {2}
can you translate {0} from {1} to {2}; ~I need {0} translated from {1} [to|into] {2}; ~translation from {1} to {2}: {0}; ~{1} to {2} translation of {0}; how do I say the {1} sentence {0} in {2}; ~I have the {1} text {0} and need it in {2}; [give|get] me the {1} phrase {0} in {2}; what would the {1} phrase {0} be in {2}; ~{0} is {1}, what is it in {2}; ~{0} is {1}, translate it to {2}

define: define_word dictionary lookup_word get_definition define
[Define|Look up] a word[.|]; Dictionary[ lookup|]; Get the [definition|meaning] of a word; Explain what a word means
word/term:word
[define|what is the meaning of|look up the word|explain the word] {0}; what does [the word |]{0} mean; ~definition of {0}; ~meaning of {0}; ~dictionary: {0}; what's the definition of {0}; what is [meant by|the definition of] {0}
define the [word|term] {0}; ~define: {0}; what does the term {0} mean; what do [people|they] mean by {0}; explain the [word|term] {0}; explain what {0} means; look {0} up in the dictionary; [check|search] the dictionary for {0}; [give|show|get] me the [definition|meaning] of {0}; ~{0} [meaning|definition]; what is the dictionary [definition|meaning] of {0}
~I don't know the word {0}; what's the meaning of {0}; tell me what {0} means; ~the word {0}, what does it mean; what does the dictionary say about {0}; how is the word {0} defined; ~I need [the|a] definition of {0}; how would you define {0}; how do you define the term {0}; what is the term {0} defined as; ~I don't know what {0} means; what do we mean by {0}
what does it mean when people say {0}; ~{0}, what does it mean; ~{0}, what is the meaning of it

define: get_synonyms synonyms thesaurus find_synonym
[Get|Find] synonyms of a word[.|]; Thesaurus; Find [other words|another word] for a word; Words that mean the same
word/term:word
[what is|give me|find] [another word|a synonym] for {0}; ~synonyms [of|for] {0}; which words mean the same as {0}; what are [other words|synonyms] for {0}; [find|list] synonyms of {0}; how else can I say {0}
~synonym of {0}; ~another word for {0}; ~other words for {0}; ~thesaurus: {0}; [look up|check] {0} in the thesaurus; what can I say instead of {0}; [list|show|get] me [some |]synonyms for {0}; is there [a synonym|another word] for {0}; ~{0} synonyms; what word means the same as {0}; ~I need [a synonym|another word] for {0}
what else can I say for {0}; which word can I use instead of {0}; what other word is there for {0}; any [synonyms|other words] for {0}; use the thesaurus for {0}; how else could I say {0}; what does the thesaurus list for {0}; what other word means {0}; which word means the same thing as {0}; is there a word that means the same as {0}

define: check_spelling spell_check spellcheck
Check the spelling of a word[.|]; Spell check; See whether a word is spelled [right|correctly]; How to spell a word
word/text:word
[check the spelling of|spell check] {0}; is {0} spelled [right|correctly]; how [do you|do I] spell {0}; ~spelling of {0}; did I spell {0} right; is {0} a word
is the spelling of {0} [right|correct]; have I spelled {0} [right|correctly]; check [if|whether] {0} is spelled [right|correctly]; ~spell check: {0}; ~spelling check for {0}; how is {0} spelled; is {0} the [right|correct] spelling; is {0} a real word; [run|do] a [spell|spelling] check on {0}
is {0} spelled wrong; did I spell {0} correctly; did I get the spelling of {0} [right|wrong]; ~{0}, is that spelled right; what is the [right|correct] spelling of {0}; is {0} written correctly; have I written {0} [right|correctly]; ~correct spelling of {0}; spell {0} correctly; check my spelling of {0}; is it spelled {0}

math: calculate calculator evaluate compute eval_expression
[Calculate|Evaluate|Compute] [a math expression|an expression|a formula][.|]; [Calculator|Does math]; Evaluate an arithmetic expression; Work out [a sum|a calculation]; Solve a math problem
expression/formula/input/expr:expression
[what is|what's|calculate|compute|evaluate|how much is|work out] {0}; use the calculator for {0}; ~the result of {0}; solve {0}; ~{0} = ?; what [do I get for|is the result of] {0}; what does {0} equal; ~I need the [result|value] of {0}
what is {0}; calculate {0}; how much is {0}; ~{0}?; ~calc {0}; ~{0} is what; compute {0}; work out {0}; solve this: {0}; calculate this: {0}; work this out: {0}; ~calculator: {0}; ~math: {0}; what does {0} come to; what is the [value|answer] of {0}; what's the [result|answer] of {0}; evaluate [the expression |]{0}; ~result of {0}
do the math: {0}; do the [math|calculation] for {0}; what would {0} be; [figure|find] out [what |how much ]{0} is; ~I need to [calculate|compute|solve|work out] {0}; use [a|the] calculator: {0}; use the calculator to [work out|solve|compute] {0}; [give|get|show|tell] me the [result|answer|value] of {0}; type {0} into the calculator; put {0} into [the|a] calculator; what do you get for {0}; what do I get if I [calculate|compute|work out] {0}
how much does {0} make; what does {0} make; ~the answer to {0}, please; ~{0}, how much is that; ~{0}, what is the [result|answer]; how much would {0} be; how much does {0} come to; what's the answer to {0}; find the [value|result|answer] of {0}; what does the calculator say for {0}; can you [calculate|work out|solve|compute] {0}; type in {0}, what is the result; calculate the [expression|value of] {0}; figure out the [answer|result] of {0}; ~calculation: {0}; do this calculation: {0}; solve the expression {0}; ~I have to calculate {0}
~I don't know what {0} would be; show me the [value|result] of {0}; give me {0}; get me the [answer|result] of {0}; show me what {0} makes; type {0} in; type in {0} and calculate it; figure out {0}; can you figure out {0}; how do I figure out {0}

math: add_numbers add sum addition
Add two numbers[.|]; [Sum|Addition] of two numbers; Add one number to another; Adds up two numbers
a/x/first/num1:number b/y/second/num2:number
add {0} and {1}; what is {0} + {1}; what is {0} plus {1}; ~sum [of |]{0} and {1}; ~{0} + {1}; use the tool to add {0} and {1}; how much is {0} plus {1}
add {0} to {1}; add up {0} and {1}; add the numbers {0} and {1}; ~{0} plus {1}; what is the sum of {0} and {1}; [calculate|compute|find] the sum of {0} and {1}; what do {0} and {1} [make|add up to]; ~{0} and {1}, added up; how much is {0} + {1}; calculate {0} + {1}; what's {0} + {1}; what's {0} plus {1}
sum [up |]{0} and {1}; what do I get if I add {0} and {1}; how much do {0} and {1} make [together|in total]; ~{0} + {1} = ?; ~the total of {0} and {1}; what is the total of {0} and {1}; calculate {0} plus {1}; what are {0} and {1} together; ~addition: {0} + {1}; ~I need the sum of {0} and {1}; put {0} and {1} together, what is the [sum|total]; ~add {0}, {1}
what's the sum of {0} and {1}; what's the total of {0} and {1}

math: multiply multiply_numbers product
Multiply two numbers[.|]; Product of two numbers; Multiply one number by another; One number times another
a/x/first/num1:number b/y/second/num2:number
multiply {0} [by|and|with] {1}; what is {0} times {1}; what is {0} * {1}; ~{0} x {1}; ~product of {0} and {1}; how much is {0} times {1}
~{0} times {1}; ~{0} * {1}; what's {0} times {1}; what is {0} x {1}; how much is {0} * {1}; what is the product of {0} and {1}; what do I get if I multiply {0} by {1}; [calculate|compute|work out] {0} times {1}; calculate {0} * {1}; what is {0} multiplied by {1}; ~{0} multiplied by {1}
[find|get|compute] the product of {0} and {1}; ~multiply: {0}, {1}; multiply the numbers {0} and {1}; ~{0} * {1} = ?; ~I need {0} times {1}; how much is {0} multiplied by {1}; ~I need the product of {0} and {1}; what does {0} times {1} make; what do {0} times {1} make

math: divide divide_numbers division
Divide two numbers[.|]; Division; Divide one number by another; One number divided by another
a/x/dividend/numerator:number b/y/divisor/denominator:number
divide {0} by {1}; what is {0} divided by {1}; what is {0} / {1}; ~{0} / {1}; how much is {0} [over|divided by] {1}; split {0} by {1}
~{0} divided by {1}; ~{0} over {1}; what's {0} / {1}; what's {0} divided by {1}; how much is {0} / {1}; [calculate|compute|work out] {0} divided by {1}; calculate {0} / {1}; what do I get if I divide {0} by {1}; what is {0} over {1}; ~divide: {0} by {1}
~{0} / {1} = ?; ~I need {0} divided by {1}; split {0} into {1} parts; divide {0} into {1} parts; ~division: {0} / {1}; divide the number {0} by {1}; do the division {0} / {1}; what does {0} divided by {1} make; work out {0} / {1}; what do I get for {0} divided by {1}; how much do I get if I divide {0} by {1}; do a division of {0} by {1}; what if I divide {0} by {1}
what do you get for {0} divided by {1}; get me {0} divided by {1}

math: subtract subtract_numbers minus
Subtract two numbers[.|]; Difference of two numbers; Subtract one number from another; One number minus another
a/x/first:number b/y/second:number
what is {0} minus {1}; what is {0} - {1}; ~{0} - {1}; ~{0} minus {1}; how much is {0} minus {1}; take {0} minus {1}
subtract {1} from {0}; take {1} away from {0}; what's {0} minus {1}; how much is {0} - {1}; [calculate|compute|work out] {0} minus {1}; calculate {0} - {1}; what do I get if I subtract {1} from {0}; what is the difference of {0} and {1}; what is left if I take {1} from {0}; ~difference of {0} and {1}; what is {0} take away {1}
~{0} - {1} = ?; ~subtract: {0} minus {1}; ~I need {0} minus {1}; subtract the number {1} from {0}; ~{0} take away {1}; [find|get] the difference of {0} and {1}; how much is left if I take {1} from {0}; ~{0} less {1}; what is {0} less {1}; how much is {0} less {1}; work out {0} - {1}; compute {0} - {1}; calculate the difference of {0} and {1}; compute the difference of {0} and {1}; work out the difference of {0} and {1}
compute {0} minus {1}; compute what {0} minus {1} is; compute: {0} - {1}

math: calculate_percentage percentage percent_of
Calculate a percentage[.|]; Percent of a number; Work out the percentage of [a number|a total]; What percent of a number is
percent/percentage/rate:percent value/number/total/of:number
what is {0} percent of {1}; what's {0}% of {1}; calculate {0} percent of {1}; ~{0}% of {1}; how much is {0} percent of {1}; ~{0} percent of {1}
what's {0} percent of {1}; what is {0}% of {1}; how much is {0}% of {1}; [calculate|compute|work out] {0}% of {1}; give me {0}% of {1}; take {0} percent of {1}; ~I need {0} percent of {1}; find {0}% of {1}; ~{0}% of {1} = ?
[compute|work out|find] {0} percent of {1}; how much do I get if I take {0}% of {1}; [give|get] me {0} percent of {1}; what do I get for {0}% of {1}; ~percentage: {0}% of {1}; ~I need {0}% of {1}; ~{0} pct of {1}; what is {0} pct of {1}; how much is {0} pct of {1}; what's {0} pct of {1}; find {0} percent of {1}; find out how much {0} percent of {1} is; find out what {0}% of {1} is

math: square_root sqrt get_square_root
[Get|Calculate] [the |a ]square root[.|]; Square root; Find the square root of a number; Root of a number
number/x/value:number
what is the square root of {0}; ~square root of {0}; [calculate|find|get] the square root of {0}; ~root of {0}; take the square root of {0}; ~sqrt {0}
what's the square root of {0}; what is the root of {0}; [give|show|tell] me the square root of {0}; ~sqrt of {0}; what is sqrt({0}); what's sqrt {0}; [compute|work out|find] the square root of {0}; calculate the root of {0}; how much is the square root of {0}; ~square root: {0}; ~sqrt({0}); find the root of {0}
~I need the square root of {0}; ~the square root of {0}, please; get me the root of {0}; take the root of {0}; ~{0}, square root; what do I get for the square root of {0}; compute sqrt({0}); which number squared is {0}; what number squared gives {0}; what's the root of {0}; what's the square root of the number {0}; take the root of the number {0}; take sqrt {0}

random: random_number get_random random generate_random_number
[Get|Generate|Pick] a random number[.|]; Random number[s|]; Choose a number between two numbers; Draw a number at random
min/low/from/start:number max/high/to/end:number
[give me|pick|generate|choose] a random number [between {0} and|from {0} to] {1}; ~random number {0} to {1}; ~random between {0} and {1}; ~I need a random number from {0} to {1}; think of a number between {0} and {1}; [draw|roll] a number from {0} to {1}
pick a number between {0} and {1}; [pick|choose|draw] any number from {0} to {1}; [give|get] me a number between {0} and {1}; ~a random number between {0} and {1}, please; ~random, {0} to {1}; [generate|make|draw] a random number between {0} and {1}; ~any number between {0} and {1}; choose a number from {0} to {1}; ~number between {0} and {1}
think of a random number from {0} to {1}; [pick|draw|choose] a number at random, {0} to {1}; ~I need any number between {0} and {1}; ~I want a random number between {0} and {1}; roll a random number between {0} and {1}; what is a random number between {0} and {1}; say a random number between {0} and {1}; ~rand {0} {1}; ~rand from {0} to {1}; ~rand({0}, {1})

password: generate_password password create_password new_password
[Generate|Create] a [random |]password[.|]; Password generator; Make a new password; Generates a secure password of a length
length/size/characters:small
[generate|create|make|give me] a [password|random password] [of|with] {0} [characters|letters]; ~I need a password with {0} characters; ~password of length {0}; [generate|create] a {0} character password; ~new password, {0} characters; [make|give] me a {0} character password
~password, {0} [characters|letters|chars]; ~a new password with {0} [letters|characters]; [generate|create|make] a [new|random|secure|strong] password with {0} [characters|letters]; [make|create] a password that is {0} [characters|letters] long; ~I want a [strong|secure|random] password of {0} characters; ~{0} character password; ~I need a {0} letter password; make up a password of {0} letters
[give|get] me a [strong|secure|new] password, {0} characters long; ~password with length {0}; set the password length to {0} and [make|generate] one; what is a [good|strong] password with {0} characters; think of a password with {0} letters; think up a {0} character password; ~random password, length {0}; ~I want a good password, {0} characters; ~{0} chars password; can I have a [password|new password] of {0} characters; can I get a {0} letter password
is there a good password that is {0} characters long; make it a long password: {0} characters; ~a password, {0} letters long; ~I want a password that is {0} letters long
""")
