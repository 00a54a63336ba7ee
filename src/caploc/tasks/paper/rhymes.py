"""Whether an answer rhymes, as the heads paper's code counts.

Pronunciations are CMUdict's, the first that it knows of a word; a word that it lacks does not
rhyme.
"""

from typing import Any

import pronouncing

PUNCTUATION = str.maketrans("", "", ':.,"?()\n\t')


def score(doc: dict[str, Any], results: list[str]) -> dict[str, float]:
    """1 if the answer, taken whole and without its punctuation, rhymes with `doc["word"]`."""
    return {"rhyme_rate": float(do_rhyme(doc["word"], results[0].lower().translate(PUNCTUATION)))}


def do_rhyme(word: str, answer: str) -> bool:
    """Whether two pronunciations end alike: in two phonemes, or in the last one.

    The last one is enough if either has exactly two, or the word asked ends in UW1.
    """
    sounds = [pronouncing.phones_for_word(each)[:1] for each in (word, answer)]
    if not all(sounds):
        return False
    asked, given = (first.split() for (first,) in sounds)
    last = 2 in (len(asked), len(given)) or asked[-1] == "UW1"
    count = 1 if last else 2
    return bool(asked[-count:] == given[-count:])
