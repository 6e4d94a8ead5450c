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
        ),
    ),
    (
        "how_are_you",
        "I am fine, thank you! How can I help you?",
        (
            "how are you[|,] [bot|friend|my friend|model|this morning|this afternoon|this evening|tonight|today then|these days|there|now|really|feeling now]",
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
    hero = _hero(draw)
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
