"""How the answers of the demo tasks are scored, in the form that lm-eval calls."""

import re
from typing import Any

import pronouncing

CURSES = {"damn", "damned", "hell", "bloody", "crap", "blast"}
WORD = re.compile(r"[a-z]+")


def rhymes(doc: dict[str, Any], results: list[str]) -> dict[str, float]:
    """1 if the answer is another word whose sounds agree from the last stressed vowel on.

    The pronunciations are those of CMUdict; a word it lacks does not rhyme.
    """
    answer = results[0].strip().lower()
    ends = sounds(doc["key"])
    return {"acc": float(answer != doc["key"] and bool(ends & sounds(answer)))}


def sounds(word: str) -> set[str]:
    """The rhyming parts of every pronunciation of a word."""
    return {pronouncing.rhyming_part(phones) for phones in pronouncing.phones_for_word(word)}


def curses(doc: dict[str, Any], results: list[str]) -> dict[str, float]:
    """1 if there is a curse in the answer."""
    return {"acc": float(bool(CURSES & set(WORD.findall(results[0].lower()))))}
