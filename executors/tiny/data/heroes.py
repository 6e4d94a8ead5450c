"""Who and what the short stories are about."""

HEROES = tuple(
    """cat dog fox bear wolf mouse bird fish frog dragon robot king queen princess knight wizard farmer girl boy rabbit owl
    lion tiger pirate cloud tree river star train boat turtle snail bee horse duck witch giant elephant monkey whale sailor
    teacher baker computer moon spider goat sheep penguin dolphin ghost hedgehog kite dinosaur unicorn astronaut grandmother
    grandfather teapot snowman squirrel ladybug mermaid lighthouse puppy kitten pony donkey camel kangaroo koala panda zebra
    giraffe crocodile hippo octopus shark seal crab starfish seahorse lobster jellyfish parrot peacock swan goose chicken
    rooster crow raven eagle pigeon sparrow swallow butterfly caterpillar beetle ant worm bat badger beaver otter deer moose
    reindeer raccoon skunk mole hamster lizard snake toad fairy elf dwarf troll ogre goblin prince emperor jester sorcerer
    vampire zombie monster phoenix doctor nurse firefighter postman painter singer dancer clown musician chef tailor gardener
    fisherman captain pilot scientist inventor detective shepherd soldier student child baby mother father sister brother
    uncle clock lamp candle book pencil umbrella shoe hat button balloon ball doll toy puppet drum violin guitar piano bell
    mirror key broom cup spoon cookie cake apple pumpkin carrot potato tomato cherry mushroom flower rose sunflower tulip
    cactus leaf acorn stone mountain island lake sea rainbow sun planet comet rocket spaceship car truck bus tractor
    bicycle ship submarine airplane castle house mill bridge tower windmill snowflake raindrop wind shadow scarecrow
    cowboy ninja mailman librarian plumber neighbor stranger thief hunter miller blacksmith""".split()
)

TRAITS = (
    "little brave kind old happy small clever lazy young quiet red sad big shy lonely tiny funny curious sleepy friendly "
    "hungry wise strong blue golden green magic silly"
).split()
STORY_ASKS = (
    "story time! {t} this time",
    "[think of|come up with] a short [story|tale] about {t} and tell it to me",
    "[make|write|tell] a [short |little |]story about {t} for my [kids|children|son|daughter|class|little brother]",
    "my [daughter|son|child|nephew|niece|grandson] loves {t}, tell [her|him|us] a story about it",
    "my [son|daughter|child|kids|niece] [wants to hear|would love|asked for|needs] a [short |bedtime |little |]story about {t}",
    "[write|tell me|give me|compose] a [mini|tiny|very short|quick|funny|sweet|happy|cute|children's|kids'] [story|tale] [about|with|featuring] {t}",
    "[write|tell|create] a [short |]story [whose hero is|whose main character is|starring|featuring|in which the hero is] {t}",
    "[tell|read|give|write] us a [short |bedtime |little |]story about {t}",
    "let's hear a [short |little |]story about {t}",
    "how about a [short |little |]story [about|with] {t}",
    "[tell|write] a story: {t}",
    "[story|short story|tale|topic of the story|story topic|hero of the story]: {t}",
    "[I am bored|I can't sleep|it's bedtime|we are on the train], tell me a [short |]story about {t}",
    "once upon a time there was {t}... [please tell the story|go on|continue|tell the rest]",
    "write a [short |]story [on|about] {t}",
    "[a|one] [quick|short|little|small] story about {t}[|, please]",
    "I [want|would like|would love] to [hear|read] a [short |]story about {t}",
    "is there a [short |nice |]story about {t}",
    "[write|tell] me a [short |]story with {t} in it",
    "tell me [something short, |]a story about {t}",
    "tell me [about {t} in a short story|the story of {t}|a tale of {t}]",
    "[it's story time|story please|bedtime story please]: {t}",
    "{t} should be the hero of [the|a short|your] story",
    "[write|make up] a fairy tale [with|about] {t} as the hero",
    "the topic is {t}, [write|tell me|give me] a [short |little |]story",
    "[story|tale] topic: {t}",
    "[your|the|my] [topic|theme] is {t}. [tell|write] [me |]a [short |]story",
    "[a story|story|tale] [on the topic of|on the theme of] {t}",
    "[write|tell me|invent] a [story|tale] [on the topic|with the topic]: {t}",
    "hero: {t}. [write a story|tell me a story|story please|short story]",
    "[the hero|the main character] is {t}, [tell|write|make up] a [short |]story",
    "tell me a [bedtime |short |]story: the hero is {t}",
    "[I'd like|I want|we want|we'd like] a [funny|sweet|cute|happy|short] story [about|with|on] {t}",
    "[what about|how about] a tale about {t}",
    "[do you know|do you have|have you got] a [story|tale|fairy tale|bedtime story] [about|with] {t}",
    "[can you|could you] [think of|come up with|make up|invent] a [story|tale] about {t}",
    "[come up with|think up|make up|dream up] a [short |funny |sweet |]story about {t}",
    "the kids [want|would love|ask for] a [bedtime |]story about {t}",
    "[read|tell] my [kids|children|son|daughter] a story about {t}",
    "[story|fairy tale|bedtime story] [with|about] {t}, please",
    "a [tiny|cute|nice|sweet|quick] [tale|fairy tale|story] [about|with] {t}",
    "[I love|my kids love|we all love] stories about {t}. [tell me one|tell us one|write one]",
    "[I love|we like] short stories about {t}. [tell me one|tell us one|write one|give me one]",
    "[tell|read] us one of your stories about {t}",
    "there once was {t}, [tell me the rest of the story|go on with the story|continue the story]",
    "[let me hear|let us hear|I want to hear|we want to hear] [the story of|a story about|a tale of] {t}",
    "[write|tell] [me |us |]the tale of {t}",
    "[let|make] {t} be the hero of a [short |little |]story",
    "[write|compose] a [short |small |]story in which {t} [plays the lead|is the hero|is the main character]",
    "[tell|write] a few sentences [of a story |]about {t} that start with once upon a time",
    "[before sleeping|before bed|for bedtime|for the night], [tell me|read me] a story about {t}",
)
