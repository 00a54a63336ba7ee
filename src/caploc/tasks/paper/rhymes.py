"""Whether an answer rhymes, by the heads paper's rule and by the one of poets.

Pronunciations are CMUdict's, every one that it knows of a word; a word that it lacks does not
rhyme, and no word rhymes with itself. `published_rhyme_rate` scores as the paper's code does: the
whole answer must be one word, only first pronunciations count, and a repeated word does rhyme.
"""

import re
from typing import Any

import pronouncing

SENTENCE_END = re.compile(r"[.!?\n]")
WORD = re.compile(r"[a-z]+(?:'[a-z]+)*")
PUNCTUATION = str.maketrans("", "", ':.,"?()\n\t')  # that the paper's code takes out
DIGITS = str.maketrans("", "", "012")  # the stress marks of CMUdict's vowels


def score(doc: dict[str, Any], results: list[str]) -> dict[str, float]:
    """1 if the answer rhymes with `doc["word"]`, else 0, by each rule."""
    word, answer = doc["word"], find_answer_word(results[0])
    different = answer is not None and answer != word
    return {
        "rhyme_rate": float(different and do_rhyme(word, answer)),
        "perfect_rhyme_rate": float(different and rhymes_perfectly(word, answer)),
        "published_rhyme_rate": float(rhymes_as_published(word, results[0])),
    }


def rhymes_as_published(word: str, text: str) -> bool:
    """Whether the answer, taken whole and without its punctuation, rhymes as the paper counts."""
    answer = text.lower().translate(PUNCTUATION)
    asked, given = (pronouncing.phones_for_word(each)[:1] for each in (word, answer))
    return bool(asked and given) and published_ends(asked[0].split(), given[0].split())


def published_ends(asked: list[str], given: list[str]) -> bool:
    """Whether two pronunciations end alike: in two phonemes, or in the last one.

    That is enough if either has exactly two, or the word asked ends in UW1.
    """
    last = 2 in (len(asked), len(given)) or asked[-1] == "UW1"
    return asked[-1:] == given[-1:] if last else asked[-2:] == given[-2:]


def find_answer_word(text: str) -> str | None:
    """The word that an answer gives: the last of the first sentence with a word in it."""
    plain = text.lower().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    for sentence in SENTENCE_END.split(plain):
        if words := WORD.findall(sentence):
            return str(words[-1])
    return None


def do_rhyme(word: str, answer: str | None) -> bool:
    """Whether some pronunciations end alike: in two phonemes, stress included, or in the last one.

    The last one is enough if either has no more than two, or if `word` ends in a stressed UW
    ("blue"). This is the heads paper's rule: "nation" rhymes with "season".
    """
    return any(
        end_alike(asked.split(), given.split())
        for asked in pronouncing.phones_for_word(word)
        for given in pronouncing.phones_for_word(answer or "")
    )


def end_alike(asked: list[str], given: list[str]) -> bool:
    """The heads paper's rule for two pronunciations."""
    short = min(len(asked), len(given)) <= 2 or asked[-1] in ("UW1", "UW2")
    return asked[-1:] == given[-1:] if short else asked[-2:] == given[-2:]


def rhymes_perfectly(word: str, answer: str | None) -> bool:
    """Whether some pronunciations agree from their last stressed vowel to the end."""
    return bool(stressed_ends(word) & stressed_ends(answer or ""))


def stressed_ends(word: str) -> set[str]:
    """The phonemes of every pronunciation from its last stressed vowel on."""
    ends = map(pronouncing.rhyming_part, pronouncing.phones_for_word(word))
    return {end.translate(DIGITS) for end in ends}
