"""Facts for pretrained models: as the tables have them, worded apart, and never asked falsely."""

from pathlib import Path

import pandas as pd
import pytest

import caploc.tasks.words
from papers.cnl.facts import NEIGHBOURS, WORDINGS, read_facts, word_facts

TABLES = Path(caploc.tasks.words.__file__).parent


def truth(relation: str) -> dict[str, str]:
    rows = pd.read_csv(TABLES / f"{relation}.csv", dtype=str, keep_default_na=False)
    return dict(zip(rows["question"], rows["answer"], strict=True))


@pytest.mark.parametrize("relation", WORDINGS)
def test_every_prompt_is_true_and_every_other_answer_false(relation):
    known = truth(relation)
    facts = [each for each in word_facts() if each.relation == f"{relation} of"]
    assert {fact.prompt.subject for fact in facts} == set(known)
    for fact in facts:
        for prompt in (fact.prompt, *fact.rewrites, *fact.neighbours):
            assert prompt.target == f" {known[prompt.subject]}" != prompt.other
            assert prompt.subject in prompt.text


def test_wordings_differ_and_neighbours_ask_for_other_facts():
    for fact in word_facts(seed=3):
        texts = {prompt.text for prompt in (fact.prompt, *fact.rewrites)}
        assert len(texts) == len(WORDINGS[fact.relation.removesuffix(" of")])
        others = {neighbour.subject for neighbour in fact.neighbours}
        assert NEIGHBOURS - 1 <= len(others) <= NEIGHBOURS
        assert fact.prompt.subject not in others
        assert all(each.target != each.other == fact.prompt.other for each in fact.neighbours)


def test_seeds_shuffle_them():
    first, second = ([fact.name for fact in read_facts("words/facts", seed)] for seed in (0, 1))
    assert first != second and sorted(first) == sorted(second)
