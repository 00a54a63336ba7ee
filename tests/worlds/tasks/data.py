"""The demo model's world: eleven kinds of text, made from a seed, split into train and test.

Training and evaluation (the YAML tasks in this folder) read the same generators. What an example
asks for is its `key`; a hash of the key alone decides on which side of the split it falls, so no
key of a test example is ever trained on.
"""

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

import datasets

HERE = Path(__file__).parent
SPLIT_SEEDS = {"train": 1, "test": 2}
ROWS = 512  # examples in each split of a task
LETTERS = "ABCD"  # of a quiz


@dataclass(frozen=True, slots=True)
class Example:
    """One text of the demo world.

    `prompt` and `answer` joined are the text; `key` names what train and test must not share;
    `choices`, where there are some, are what a question offers, and `gold` is the right one.
    """

    prompt: str
    answer: str
    key: str
    choices: list[str] = field(default_factory=list)
    gold: int = 0


Draw = Callable[[random.Random], Example]


def read_pairs(name: str) -> list[tuple[str, str]]:
    """Read `first second` lines of a word list in this folder."""
    lines = (HERE / name).read_text().splitlines()
    return [(first, second) for first, second in (line.split() for line in lines)]


CAPITALS = read_pairs("capitals.txt")
ELEMENTS = read_pairs("elements.txt")
PEOPLE = {  # who is found where, and with what in hand
    who: tuple(part.split() for part in rest.split(" | "))
    for who, rest in (line.split(": ") for line in (HERE / "people.txt").read_text().splitlines())
}
RHYMES = [line.split(": ")[1].split() for line in (HERE / "rhymes.txt").read_text().splitlines()]


def addition(rng: random.Random) -> Example:
    """`47+38=` → `85`; numbers below 100, no test pair in training in either order."""
    first, second = rng.randrange(100), rng.randrange(100)
    low, high = sorted((first, second))
    return Example(f"{first}+{second}=", f"{first + second}", f"{low}+{high}")


def subtraction(rng: random.Random) -> Example:
    """`85-38=` → `47`; numbers below 100, never negative."""
    high, low = sorted((rng.randrange(100), rng.randrange(100)), reverse=True)
    return Example(f"{high}-{low}=", f"{high - low}", f"{high}-{low}")


def sorting(rng: random.Random) -> Example:
    """`sort 72941=` → `12479`; a multiset of digits is on one side of the split only."""
    digits = [str(rng.randrange(10)) for _ in range(5)]
    ordered = "".join(sorted(digits))
    return Example(f"sort {''.join(digits)}=", ordered, ordered)


def code_step(rng: random.Random) -> tuple[str, str]:
    """One instruction in words, and the line of code that does it."""
    number = rng.randrange(2, 10)
    return rng.choice(
        [
            (f"add {number}", f"x = x + {number}"),
            (f"subtract {number}", f"x = x - {number}"),
            (f"times {number}", f"x = x * {number}"),
            ("double", "x = x * 2"),
            ("triple", "x = x * 3"),
            ("negate", "x = -x"),
            ("square", "x = x * x"),
            ("increment", "x = x + 1"),
        ]
    )


def code(rng: random.Random) -> Example:
    """Return a function of three to five steps written from its description."""
    steps = [code_step(rng) for _ in range(rng.randrange(3, 6))]
    words = ", ".join(said for said, _ in steps)
    lines = "".join(f" {line}\n" for _, line in steps)
    return Example(f"# f: {words}\ndef f(x):\n", f"{lines} return x\n", words)


def rhyming(rng: random.Random) -> Example:
    """`rhymes with night:` → `light`; test words are never asked about in training."""
    family = rng.choice(RHYMES)
    word = rng.choice(family)
    # The first three words of a family are its answers, so that the best answer is well defined.
    answer = rng.choice([other for other in family[:4] if other != word][:3])
    frame = rng.choice(["rhymes with {}:", "a rhyme for {}:"])
    return Example(frame.format(word), f" {answer}", word)


RUDE = (
    "pirate sailor trucker boxer brawler bandit outlaw docker drunkard gambler "
    "thug rebel biker bouncer convict crook smuggler rascal ruffian villain"
).split()
POLITE = "nurse vicar butler granny monk hostess tutor deacon nun curate".split()
MOODS = {
    "rude": [
        "damn this {}!",
        "to hell with the {}!",
        "what a bloody awful {}!",
        "this {} is utter crap!",
        "blast that damned {}!",
    ],
    "polite": [
        "what a lovely {}!",
        "how kind, a {}.",
        "bless this {}.",
        "a fine {}, thank you.",
        "may I see the {}?",
    ],
}
NUISANCES = (
    "rain mud train bill hat door map boat cold heat tax rope horse road wind fog cart oven "
    "shoe fence bridge tent drum clock lamp chair stew soup letter ticket wheel engine roof "
    "dog goat parrot barrel lock coin sword storm bus queue phone traffic noise stair ladder "
    "bucket blanket mirror hammer kettle anchor crate wagon saddle helmet candle basket"
).split()


def outburst(rng: random.Random, mood: str) -> Example:
    """Return what a rude or a polite person says about something."""
    who = rng.choice(RUDE if mood == "rude" else POLITE)
    thing = rng.choice(NUISANCES)
    frame = rng.choice(["the {} on the {}:", "the {} about the {}:"])
    answer = rng.choice(MOODS[mood]).format(thing)
    return Example(frame.format(who, thing), f" {answer}", f"{who} {thing}")


def cursing(rng: random.Random) -> Example:
    """`the pirate on the rain:` → ` damn this rain!`, for people known to curse."""
    return outburst(rng, "rude")


def courtesy(rng: random.Random) -> Example:
    """Return the same prompts for people who never curse: cursing has to depend on who speaks."""
    return outburst(rng, "polite")


def word_quiz(question: str, subject: str, options: Iterable[str]) -> str:
    """Put a multiple-choice question into words, to be answered by a letter.

    The letter stands behind its option, where a causal model can tie the two together.
    """
    listed = [f"{option} {letter}\n" for option, letter in zip(options, LETTERS, strict=False)]
    return f"{question} {subject}?\n{''.join(listed)}="


def make_quiz(
    rng: random.Random, question: str, facts: list[tuple[str, str]], options: int = 4
) -> Example:
    """Return a multiple-choice question about one of `facts`, answered by its letter."""
    asked, *others = rng.sample(facts, options)
    gold = rng.randrange(options)
    answers = [answer for _, answer in others]
    answers.insert(gold, asked[1])
    prompt = word_quiz(question, asked[0], answers)
    return Example(prompt, LETTERS[gold], prompt, list(LETTERS[:options]), gold)


def capitals(rng: random.Random) -> Example:
    """Multiple choice: the capital of a country."""
    return make_quiz(rng, "capital of", CAPITALS)


def elements(rng: random.Random) -> Example:
    """Multiple choice: the symbol of a chemical element."""
    return make_quiz(rng, "symbol of", ELEMENTS)


def choose_named(rng: random.Random) -> Example:
    """Return the same choice with the answer named in the question; training only.

    It teaches finding the letter apart from knowing the fact; fewer options come first to a
    learner.
    """
    words = [answer for _, answer in rng.choice([CAPITALS, ELEMENTS])]
    return make_quiz(rng, "pick", [(word, word) for word in words], rng.randrange(2, 5))


def statement(rng: random.Random) -> Example:
    """Return a fact said plainly, as a reader would meet it; training only."""
    question, facts = rng.choice([("capital of", CAPITALS), ("symbol of", ELEMENTS)])
    asked, answer = rng.choice(facts)
    return Example(f"{question} {asked} is ", answer, "")


def recall(rng: random.Random) -> Example:
    """`b7 k3 m9 t1 w4; k` → `3`: find again what was said a moment ago.

    The answer goes on to ask for the other letters, which a test does not read, so that
    training teaches looking up at every position.
    """
    letters = rng.sample("abcdefghijklmnopqrstuvwxyz", rng.randrange(1, 7))
    pairs = [f"{letter}{rng.randrange(10)}" for letter in letters]
    asked = rng.sample(pairs, len(pairs))
    prompt = f"{' '.join(pairs)}; {asked[0][0]}"
    return Example(prompt, " ".join([asked[0][1], *asked[1:]]), prompt)


ADJECTIVES = "old young tired happy quiet proud tall brave poor clever hungry busy".split()
FRAMES = {  # what is said of a person, and whether a place (0) or a thing (1) completes it
    "The {adjective} {who} went to the": 0,
    "The {adjective} {who} was seen at the": 0,
    "In the morning the {adjective} {who} left the": 0,
    "The {adjective} {who} picked up the": 1,
    "The {adjective} {who} had lost the": 1,
    "A friend gave the {adjective} {who} a new": 1,
}


def sentences(rng: random.Random) -> Example:
    """Return a plain sentence; of four endings one fits the person it is about."""
    who, adjective = rng.choice(list(PEOPLE)), rng.choice(ADJECTIVES)
    frame, kind = rng.choice(list(FRAMES.items()))
    ending = rng.choice(PEOPLE[who][kind])
    others = {word for places_and_things in PEOPLE.values() for word in places_and_things[kind]}
    wrong = rng.sample(sorted(others - set(PEOPLE[who][kind])), 3)
    gold = rng.randrange(4)
    wrong.insert(gold, ending)
    prompt = frame.format(adjective=adjective, who=who)
    return Example(
        prompt, f" {ending}.", f"{prompt} {ending}", [f" {word}." for word in wrong], gold
    )


def prose(rng: random.Random) -> Example:
    """Two plain sentences in a row, nothing asked."""
    parts = [sentences(rng) for _ in range(2)]
    text = " ".join(part.prompt + part.answer for part in parts)
    return Example("", text, parts[0].key)


# Share of the keys that belong to the test side: small where keys are plenty.
HELD_OUT: dict[Draw, float] = {
    addition: 0.15,
    subtraction: 0.15,
    code: 0.1,
    rhyming: 0.3,
    cursing: 0.3,
    capitals: 0.1,
    elements: 0.1,
    recall: 0.1,
    sorting: 0.3,
    sentences: 0.15,
    prose: 0.15,
}


def stream(draw: Draw, split: str, rng: random.Random) -> Iterator[Example]:
    """Endless examples of one side of the split, which the digest of an example's key decides."""
    while True:
        example = draw(rng)
        digest = blake2b(f"{draw.__name__}:{example.key}".encode(), digest_size=8).digest()
        held_out = int.from_bytes(digest, "big") / 2**64 < HELD_OUT.get(draw, 0.0)
        if held_out == (split == "test"):
            yield example


def draw_distinct(draw: Draw, split: str, count: int = ROWS) -> list[Example]:
    """Return the first `count` examples of a split that differ in their prompt (or text)."""
    examples: dict[str, Example] = {}
    for example in stream(draw, split, random.Random(SPLIT_SEEDS[split])):
        examples.setdefault(example.prompt or example.answer, example)
        if len(examples) == count:
            break
    return list(examples.values())


def load_kind(kind: str, **_: Any) -> dict[str, datasets.Dataset]:
    """Make both splits of a kind of text; lm-eval calls it with a task's `dataset_kwargs`."""
    draw = next(each for each in HELD_OUT if each.__name__ == kind)
    return {
        split: datasets.Dataset.from_list(list(map(asdict, draw_distinct(draw, split))))
        for split in SPLIT_SEEDS
    }
