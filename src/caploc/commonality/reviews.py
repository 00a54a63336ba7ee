"""Contrasts of language: a review's attitude is the commonality, what it is of is the content.

    contrasts = sentiment(1000, seed=0)

A wording is a frame and a pair of opposite words of one length; a rewording changes both. All five
prompts of a contrast are equally long, and so are the two answers.
"""

import random
from collections import defaultdict
from itertools import product

from caploc.commonality.contrasts import ITEMS, ContrastSet, Item, distinct

ATTITUDES = ("positive", "negative")
FRAMES = {
    "plain": "Review: The {subject} was {word}. Sentiment:",
    "told": "I thought the {subject} was {word}. Opinion:",
    "heard": '"A {word} {subject}," she told us. Attitude:',
    "rated": "My word on the {subject}: {word}. Judgement:",
}
OPPOSITES = [  # as an attitude of each kind has it, equally long
    tuple(pair.split("/"))
    for pair in (
        "good/poor fine/weak great/awful super/lousy superb/dismal lovely/boring "
        "perfect/useless amazing/hateful pleasing/dreadful splendid/terrible "
        "excellent/appalling brilliant/atrocious wonderful/miserable"
    ).split()
]
SUBJECTS = (
    "film book play song meal game show tour menu shop "
    "hotel novel album movie diner drama phone radio wine "
    "series museum camera laptop burger guitar jacket ticket bakery "
    "concert musical theatre teacher account lecture holiday pudding "
    "keyboard sandwich computer festival campsite magazine painting workshop"
).split()
Wording = tuple[str, int]  # a frame, and the place of a pair of opposites


def sentiment(items: int = ITEMS, *, seed: int = 0) -> list[ContrastSet]:
    """Draw contrasts of reviews, positive and negative.

    Raises:
        BadOption: if `items` is below 1, or there are not so many.
    """
    subjects = by_length(SUBJECTS)
    pairs = by_length([first for first, _ in OPPOSITES])
    wordings = list(product(FRAMES, range(len(OPPOSITES))))

    def draw(rng: random.Random) -> ContrastSet | None:
        same, other = rng.sample(ATTITUDES, 2)
        subject = rng.choice(SUBJECTS)
        frame, place = rng.choice(wordings)
        alike = [each for each in pairs[len(OPPOSITES[place][0])] if each != place]
        partners = [each for each in subjects[len(subject)] if SUBJECTS[each] != subject]
        rewording = rng.choice([each for each in FRAMES if each != frame]), rng.choice(alike)
        partner = SUBJECTS[rng.choice(partners)]
        return ContrastSet(
            base=item(same, subject, (frame, place)),
            reworded=item(same, subject, rewording),
            same_commonality=item(same, partner, (frame, place)),
            same_content=item(other, subject, (frame, place)),
            different=item(other, partner, (frame, place)),
        )

    return distinct(draw, items, seed)


def item(attitude: str, subject: str, wording: Wording) -> Item:
    """Write one review."""
    frame, place = wording
    word = OPPOSITES[place][ATTITUDES.index(attitude)]
    return Item(
        commonality=attitude,
        content=subject,
        wording=f"{frame}: {'/'.join(OPPOSITES[place])}",
        prompt=FRAMES[frame].format(subject=subject, word=word),
        answer=f" {attitude}",
    )


def by_length(words: list[str]) -> dict[int, list[int]]:
    """List the places of the words of each length."""
    places: dict[int, list[int]] = defaultdict(list)
    for place, word in enumerate(words):
        places[len(word)].append(place)
    return places
