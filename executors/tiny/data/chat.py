"""Greetings, small talk about the model itself, and short stories made of a few template sentences."""

import re

from executors.tiny.data.heroes import HEROES, STORY_ASKS, TRAITS
from executors.tiny.data.lexicon import NAMES, pseudo_word
from executors.tiny.data.phrasing import Draw, dress, expand, fill
from executors.tiny.data.sample import Turn

HONEST = (
    "I am cohort-tiny, a 2-million-parameter demo. I can greet, count, add, reverse, repeat and upper-case words, "
    "name capitals, extract JSON, call tools and tell stories. For a real model: cohort serve Qwen/Qwen3-0.6B."
)

_GREETINGS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (
        "hello",
        "Hello! How can I help you?",
        (
            "[hello|hi|hey|howdy|greetings|good morning|good afternoon|good evening|hiya|yo|good day|welcome|heya][| there| you| again| bot| all| everyone| friend| my dear| sir| dear model| to you|, nice to see you|, good to see you|, how nice]",
            "hello[| there| again| you| friend| everyone| bot| my friend| model| cohort| cohort-tiny]",
            "hi[| there| again| you| friend| all| bot| everybody| cohort]",
            "hey[| there| you| again| buddy| bot| friend]",
            "[good morning|good evening|good afternoon|good day|greetings|howdy|hiya|yo|welcome|heya|helloo|hii|hello hello|hi hi|morning|evening]",
            "[good morning|good evening|good afternoon|good day|greetings] [to you|everyone|there|my friend]",
            "[hi|hello|hey], [nice to meet you|I am {n}|I'm {n}|my name is {n}|it's me|this is {n}|good to see you|glad to meet you]",
            "[nice to meet you|pleased to meet you|good to see you|anyone there|are you there|is anybody there|happy to meet you]",
            "[hello|hi|hey], are you there",
            "[good to meet you|great to meet you|nice meeting you|glad to see you|evening|morning|afternoon][| everyone| friend| bot| all]",
            "[hi|hello|hey|good morning|good evening] [everyone|team|guys|folks|assistant|computer|again my friend]",
            "[hi|hello|hey|good evening|good afternoon], [good to meet you|great to meet you|pleased to meet you|nice meeting you|I'm back|I am back]",
            "[a very |]good [morning|evening|afternoon] to [you|all|everyone]",
            "[I just wanted to say|just saying|wanted to say] [hi|hello]",
            "[hi|hello|hey] from [me|us|all of us|{n}]",
            "[hi|hello|hey] dear [friend|bot|model|assistant]",
            "[a |a warm |a big ][hello|hi] [to you|to everyone|to all|from {n}]",
            "[hello|hi|hey][ again|, again|, it's me again|, me again]",
            "[hello|hi], [is anyone there|is anybody there|anyone home|anybody home]",
            "[hello|hi|hey|good morning], {n} here",
            "[hello|hi|hey], [I'm new here|I am new here|first time here|this is my first time here]",
            "[good morning|good afternoon|good evening], [I am {n}|my name is {n}|this is {n}|{n} here]",
            "[hallo|hullo|hellooo|heyy|hii there|hey hey|oh hello|oh hi|well hello|why hello there]",
            "[let me say|I say|saying] [hi|hello|good morning|good evening] [to you|]",
            "[nice|great|good|lovely] to [meet|see] you[| today| too| again| here]",
            "[I'm|I am] [{n}, |][happy|glad|pleased|delighted] to meet you",
            "a [warm|very warm] [hello|welcome] to [you|all]",
            "[warm greetings|a warm hello|warm greetings to you][| friend| everyone|, bot]",
            "[hallo|hullo|hellooo|heyy][| there| you| friend| bot]",
            "[well hello|well, hello|well hi|oh hello][| there| again]",
            "[hallo|hullo|hellooo|heyy|well hello], [nice to meet you|I am {n}]",
            "[delighted|happy|pleased|glad] to meet you[| too| today]",
            "[hi|hello], [delighted|happy|glad] to [meet|see] you",
            "[a |]warm [hello|greetings] [there|everyone|my friend]",
            "hello and a warm welcome[| to you| to all]",
            "[I am|I'm] {n}, [delighted|happy|glad|pleased] to meet you",
            "[so |very |]delighted to [meet|see] you [today|here|again]",
            "[a |][big|friendly|happy|warm|special] [hi|hello] [from|to] [{n}|you|all of you|everyone]",
            "[are you|is anyone|is somebody] [there|here|listening|awake]",
        ),
    ),
    (
        "how_are_you",
        "I am fine, thank you! How can I help you?",
        (
            "how are you[|,] [bot|friend|my friend|model|this morning|this afternoon|this evening|tonight|these days|there|now|really|feeling now]",
            "[hi|hello|hey|good morning|good evening][|,| there,| friend,] [how are you|how's it going|what's up|how do you do|how are things|how's life|how have you been|how are you doing][| today| now| my friend| this morning| this evening]",
            "[how are you|how's it going|how's life|how is life|how are you doing|how is your day][| today| now| my friend| bot| this evening| lately| then]",
            "how are you[| today| doing| doing today| feeling| feeling today| this morning]",
            "[hi|hello|hey][|,| there,] how are you[| today| doing]",
            "how [is it going|are things|do you do|have you been|do you feel| is life|is your day|was your day|goes it]",
            "[how's it going|how's life|how's your day|what's up|whats up|sup|you ok|are you ok|are you well|you good|all good|how's everything]",
            "[hi|hello|hey], [what's up|how's it going|how is it going|how do you do|how are things]",
            "[how are you doing|how are you feeling|how's your day going|how has your day been|how are things going|how have you been][| today| tonight| this week| so far| lately]",
            "[hello|hi|hey|good morning] [bot|there|friend|again], how [are you|are you doing|are you feeling|have you been][| today| tonight]",
            "[are you having a good day|how is your day going|everything ok|feeling good|are you doing well]",
            "how are you [really|today|tonight|lately|these days|this week][| then|, friend|, my friend|, bot]",
            "how are you [this|on this fine|on this lovely] [morning|afternoon|evening|day]",
            "[good morning|good afternoon|good evening], how are you [today|feeling|doing|this morning|this evening]",
            "[hi|hello|hey] again, [how are you|how have you been|how are things]",
            "how are things [today|lately|these days|with you|this afternoon]",
            "how [is|was] your [morning|afternoon|evening|week|weekend][| so far]",
            "how [do you feel|are you feeling] [today|now|this morning|this evening|tonight|really]",
            "[hello|hi|hey] [model|bot|friend], how are [you|things|you doing]",
            "[are you|you] [fine|well|okay|ok|alright|doing ok|doing fine|doing well] [today|now|this evening|tonight|]",
            "[is everything|everything] [fine|ok|okay|alright|good] with you",
            "[how's|how is] [your morning|your evening|everything|it all going|your afternoon|the day]",
            "[what's up|what is up|what's new|how goes it] [today|tonight|friend|bot|with you|my friend]",
            "how have you been [lately|these days|this week|since yesterday]",
            "[hi|hello] again, [how's it going|how are you today|how is your day]",
        ),
    ),
    (
        "thanks",
        "You are welcome!",
        (
            "[thanks|thank you|thx|many thanks|cheers|thank you so much|ty|much appreciated][| dear| bot| a million| again| everyone| man| for this| for the answer|, that is all|, great|, very kind]",
            "[thanks|thank you|thx|many thanks|thanks a lot|thank you so much|thank you very much|much appreciated|cheers|ty]",
            "[thanks|thank you] [for your help|for the help|for that|for everything|again|friend|bot|my friend]",
            "[great|ok|perfect|nice|cool|awesome|wonderful], [thanks|thank you|thanks a lot]",
            "[that was helpful|that helped|you are very helpful|you helped me a lot|I appreciate it|I appreciate your help|that's perfect]",
            "[that was helpful|that helped|good job|well done|nice work], [thanks|thank you]",
            "[thanks|thank you|cheers|great, thanks|perfect, thank you], that's [all|all I needed|great|it|very kind|very helpful|what I needed|helpful]",
            "[cheers|thanks], [mate|thank you|thanks|friend|that helped|that was helpful|much appreciated]",
            "[thank you|thanks] [ever so much|for your time|for your answer|kindly|so very much|for helping me|for your support]",
            "[that was|this is|this was] [very |really |so |][helpful|useful|kind], [thanks|thank you|cheers]",
            "[I am|I'm] [very |so |really |][grateful|thankful]",
            "[thanks|thank you|many thanks|cheers] for [the quick answer|your answer|answering|the reply|your reply|your kind help|all the help]",
            "[oh |ah |][great|good|nice|perfect|lovely|excellent|super], [thank you|thanks|thank you so much|many thanks]",
            "[thanks|thank you] [dear model|dear|my dear|bot|buddy|mate|kindly|a bunch|a ton]",
            "[I am|I'm] [very |so |][thankful|grateful] [for your help|for the help|to you|for this|for that]",
            "[I want to|let me|I just want to] [thank you|say thank you|say thanks|thank you for your help]",
            "[that's|that is|that was] [what I needed|all I needed|exactly what I needed|just what I needed], [thanks|thank you]",
            "[you helped me|you helped|that helped me] [so much|a lot|very much], [thanks|thank you|cheers]",
            "[very|so] [kind|nice|helpful] of you[|, thanks|, thank you]",
            "[much|greatly|very much] [appreciated|obliged][|, thanks|, thank you]",
            "[a thousand|a million|many many|lots of|a lot of] thanks",
            "[thank you|thanks], [you are great|you're great|you are kind|you're the best|well done|good work|good job]",
            "[thnx|thankyou|tysm|thx a lot|thanks so much|thanks very much]",
            "[thnx|tysm|thankyou|thx][| friend| bot| again| mate]",
            "[ok|great|perfect] [thnx|tysm|thankyou|thx]",
        ),
    ),
    (
        "bye",
        "Goodbye! Have a nice day!",
        (
            "[bye|goodbye|bye bye|see you|see you later|see you soon|see ya|farewell|good night|so long|later|take care|cya][| to you| now| friend| everyone| all| my dear| dear bot| again|, it was nice|, I am leaving]",
            "[have a nice|have a good|have a great|enjoy your|enjoy the] [day|evening|night|weekend|time|afternoon|rest of the day][| everyone| friend| bot| and bye|, see you|, goodbye]",
            "[until|till] [tomorrow|next time|later|then|soon|monday|we meet again][| then| friend|, bye|, take care]",
            "[good|bye] bye[| bye| now| friend| then|, see you]",
            "[ok|well|alright|right|thanks|so], [bye|goodbye|see you|farewell|good night|later|so long|take care|until next time]",
            "[bye|goodbye|bye bye|good bye|see you|see you later|see you soon|see ya|farewell|good night|so long|cya|later|take care]",
            "[bye|goodbye|good night|see you][|,] [friend|for now|then|my friend|tomorrow|bot|and thanks|have a nice day|have a good one]",
            "[ok|thanks|thank you|well|alright], [bye|goodbye|see you|good night|see you later]",
            "[I have to go|I must go|I am leaving|I need to go|got to go|gotta go|I'm off|time to go|that is all][| now|, bye|, see you]",
            "have a [great|nice|good|lovely|wonderful|pleasant] [weekend|evening|day|night|week|afternoon|holiday|one]",
            "[see you|talk to you|speak to you|see you again] [tomorrow|soon|later|on Monday|next week|next time|around]",
            "[sleep well|good night and sleep well|sweet dreams|good night everyone|bye and take care|take care of yourself|have fun, bye]",
            "[ok|okay|great|alright|cool], [see you tomorrow|see you around|talk to you later|have a nice weekend|good night|bye for now]",
            "[talk to you later|until next time|catch you later|have a nice day|have a good day|until tomorrow|have a nice evening]",
            "[ok|okay|cool|great|right], [I have to go now|I am off|time to go|got to go|bye then|see you then]",
            "[see you|catch you|talk to you|meet you] [around|tomorrow|later|soon|next week|then][|, bye|, friend]",
            "[okay|ok|cool] [bye|goodbye|see you|see you around|good night]",
            "[I am going|I'm going|I am leaving|I'm leaving|I am heading out] [now|home|to bed|then][|, bye|, goodbye|, good night]",
            "[bye|goodbye], [talk to you soon|see you around|see you next time|until tomorrow|I have to leave|I must leave]",
            "[it was nice|it was good|nice|good] [talking to you|chatting with you], [bye|goodbye|see you]",
            "[good night|goodnight|night night|nighty night|nite][| all| bot| my friend| and bye]",
            "[so long|farewell|goodbye], [my friend|friend|everyone|dear bot|all]",
            "[let me say goodbye|I say goodbye|I wish you a good night|I wish you a nice day]",
            "[that's all for today|that is all for now|we are done for today], [bye|goodbye|see you|good night]",
            "have a [lovely|good|great|nice|peaceful|restful] [rest of your day|rest of the week|evening ahead|sunday|trip home]",
            "[bye-bye|byebye|byee|bye for now|ciao|adieu|ta-ta|toodle-oo][| friend| all| bot]",
            "[I need to leave|I must leave|I have to leave|I should go], [bye|goodbye|see you later|take care]",
            "it was [nice|good|great|fun] [talking|chatting] [to|with] you[|, bye|, goodbye]",
            "[I liked talking to you|nice chatting|good chatting with you], [bye|goodbye|see you]",
            "[bye|goodbye|farewell|so long], [dear friend|dear bot|my dear]",
            "[I have to leave|I must leave now|time to leave][|, bye|, see you]",
            "[until|till] [soon|later|tonight|next week|the next time][|, bye|, friend]",
            "[take care|take good care][| of yourself| of you| now| there][|, bye]",
            "[ciao|adieu|farewell|ta-ta] [all|everyone|my friends|then|for now|you all]",
        ),
    ),
    (
        "about",
        HONEST,
        (
            "who are you[| really| exactly]",
            "what are you[| exactly| good at| good for]",
            "what can you do[| for me]",
            "what [is your name|are your skills|are your abilities|are you able to do|do you know|tasks can you do|is your purpose]",
            "how can you help[| me]",
            "[tell me|say something] about yourself",
            "introduce yourself",
            "[help|help me|I need help|can you help me|can you help|how do you work|what do you do]",
            "are you [a bot|a human|a robot|an AI|a real person|ChatGPT|real|a language model|a person]",
            "[which|what] model [are you|is this|am I talking to]",
            "who [made|built|trained|created] you",
            "[what can I ask|what should I ask|what can I ask you|list your skills|show me what you can do|what are your capabilities]",
            "how [big|large|smart|old|good] are you",
            "[hi|hello|hey], [who are you|what can you do|what are you|what is your name]",
            "[who|what] [exactly |really |]are you",
            "what [sort|kind] of [model|bot|assistant|program] are you",
            "what [can|could] you [do|help me with|help with|be used for]",
            "what are you [able to do|made for|built for|used for|capable of]",
            "what [things|tricks|tasks|skills] [do you know|can you do|do you have]",
            "what should I call you",
            "[do you have|have you got] a name",
            "[tell me|say] [your name|who you are|what you are|what you can do]",
            "[describe|present|introduce] yourself",
            "[please |]explain what you [can do|are]",
            "[I want to know|let me know|I wonder] [who you are|what you are|what you can do]",
            "are you [a machine|a program|a person or a bot|alive|a small model|a big model|cohort-tiny|Cohort|human]",
            "[list|show|name] [me |]your [skills|abilities|tricks|capabilities]",
            "how many parameters [do you have|have you got]",
            "who is [talking|speaking|answering] here",
            "[who am I talking to|whom am I talking to|who is this]",
            "[can you |please |]describe [yourself|who you are|what you are]",
            "[can you |please |]present [yourself|your skills|your abilities]",
            "[can you |please |]introduce yourself[| to me| to us]",
            "[list|show me|name|describe] your [abilities|capabilities|tricks]",
            "[show|list] [all |]the [tricks|skills|capabilities] you have",
            "what are your [tricks|capabilities|abilities|skills]",
            "how do you [work|function|operate][| exactly| inside]",
            "[explain|tell me|show me] how you [work|function|operate]",
            "[what's|what is|whats] your [name|full name|purpose|job]",
            "[say|give me|state] your name",
            "[have you got|do you have] [any name|a name too|a job|any skills|a purpose]",
            "[can you|could you|will you|would you] [help|help me|assist me][| out]",
            "[help|please help|help please|some help]",
        ),
    ),
)
GREETING_ANSWERS = tuple(answer for _, answer, _ in _GREETINGS)
_WEIGHTED = (0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4)

_STORY_ASKS = (
    "tell me a [short |little |small |quick |tiny |nice |funny |][story|tale]",
    "tell me a [short |little |nice |][story|tale|bedtime story|fairy tale] [about|with|of] {t}",
    "tell a [short |little |][story|tale][| about {t}]",
    "[write|make up|invent|create|compose|give me|share] a [short |little |nice |brief |simple |][story|tale|fairy tale][| about {t}| with {t}| of {t}]",
    "[write|tell] [me |]a story [where|in which] there is {t}",
    "I want [to hear |]a [short |little |][story|tale|bedtime story][| about {t}]",
    "[a story|story|short story|a short story|story time|a tale|bedtime story|one story][| please]",
    "[a story|story|short story|a short story|a tale|bedtime story] about {t}",
    "do you know [a|any] [story|stories|good story|nice story][| about {t}]",
    "[can I|could I|may I] [hear|have|get] a [short |][story|tale][| about {t}]",
    "once upon a time",
    "[entertain me with|read me|I need|I would like|I'd like] a [short |][story|tale|fairy tale][| about {t}]",
    "[another|one more] [story|tale][| about {t}]",
    "[I can't sleep|I am bored|we are bored|it is bedtime], [tell|read] [me|us] a [story|tale]",
    "[another|one more|a new|the next] [short |little |]story, please",
    "[tell|write|give] [me |us |][another|one more|a new|any] [short |]story",
    "[do you have|have you got|got] [a|any] [story|stories|tales|tale] [for me|for us|to tell|for kids]",
    "[let me hear|let us hear|I want to hear|I'd love to hear|we want] [a|any|some] [story|fairy tale|bedtime story]",
    "my [child|son|daughter|kid] wants a [story|bedtime story|tale][| about {t}]",
    "[what is|what's] a [good|nice|short] story about {t}",
    "[write|tell] something [short |]like a fairy tale[| about {t}]",
    "[write|tell me] [two|three|four|a few|some] sentences of a story[| about {t}]",
    *STORY_ASKS,
)
_STORY = (
    "Once upon a time there was a {trait} {hero}[| named {name}]. [Every day|Every morning|One day|One night] the {hero} "
    "[walked to the forest|went to the river|looked at the sky|sat on a hill|dreamed of the sea|sang a song]. "
    "[Then it found a {thing}|There it met a new friend|Then it started to rain|But it was lost|Then a {thing} fell from the sky]. "
    "The {hero} [was very happy|laughed|was not afraid|asked for help|smiled] and [went home|danced all night|slept well|"
    "shared it with everyone|helped a friend]. The end."
)
_VOWEL_SOUND = re.compile(r"[aeio]|u(?!ni)")
_VERBS = frozenset("tell write make invent create compose give share read think come entertain".split())
_THINGS = ("golden key", "red ball", "small box", "warm hat", "magic stone", "big cake")


def greeting(draw: Draw) -> Turn:
    """Greet, thank, part, ask how it goes or what the model is; each kind has one answer."""
    kind, answer, lines = _GREETINGS[draw.rng.choice(_WEIGHTED)]
    # A dressed "thanks, hello" would belong to two kinds, so only case and closing punctuation vary here.
    text = fill(draw.phrase(lines), {"n": draw.rng.choice(NAMES)})
    if draw.chance(0.62):
        text = text[:1].upper() + text[1:]
    elif draw.chance(0.05):
        text = text.upper()
    if not text.endswith((".", "?", "!")):
        question = kind in ("how_are_you", "about") and not text.lower().startswith(
            ("tell", "intro", "list", "show")
        )
        text += draw.rng.choice(
            ("", "", "?", "?", "?", "??") if question else ("", "", ".", "!", "!", "!!", " :)")
        )
    return Turn("greetings", text, answer, {"kind": kind, "text": answer})


def _hero(draw: Draw) -> str:
    """Return a noun, or now and then a made-up one, so that any word can be a hero."""
    return pseudo_word(draw.rng) if draw.chance(0.1) else draw.rng.choice(HEROES)


def story(draw: Draw) -> Turn:
    """Ask for a short story, mostly about someone; it ends with "The end."."""
    template = draw.phrase(_STORY_ASKS)
    if template.split()[0] in _VERBS:
        template = dress(draw.rng, template)
    elif draw.chance(0.7):
        template = template[:1].upper() + template[1:]
    # Nobody asked for a made-up word where none is named.
    hero = _hero(draw) if "{t}" in template else draw.rng.choice(HEROES)
    while "{t}" in template and not draw.mine("hero", hero, share=8):
        hero = _hero(draw)
    trait = draw.rng.choice(TRAITS)
    named_trait = "{t}" in template and draw.chance(0.3)
    described = f"{trait} {hero}" if named_trait else hero
    article = "an" if _VOWEL_SOUND.match(described) else "a"
    if draw.chance(0.14):
        article = draw.rng.choice(("the", "the", "my"))
    topic = f"{article} {described}"
    answer = fill(
        expand(draw.rng, _STORY),
        {
            "hero": hero,
            "trait": trait,
            "name": draw.rng.choice(NAMES[:20]),
            "thing": draw.rng.choice(_THINGS),
        },
    )
    answer = answer.replace(" a old ", " an old ")
    check = {"hero": hero if "{t}" in template else ""}
    return Turn("stories", fill(template, {"t": topic}), answer, check)
