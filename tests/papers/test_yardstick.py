"""Sets of one fact, of one capability and of two are told apart: planted scores here."""

from pathlib import Path
from zlib import crc32

import numpy as np
import pytest

from caploc.neurons.options import Attribution
from papers.cnl.facts import Fact, FactPrompt
from papers.cnl.yardstick import (
    RULES,
    Asked,
    PromptScorer,
    agree,
    compare_all,
    compare_facts,
    compare_tasks,
    compare_texts,
    exchanged,
    pool,
    sentences,
    single,
    wordings_of,
)

NEURONS = 2000  # of which the best .15 % are three
(BEST, SIGMA) = RULES


class Planted:
    """Scores three neurons a prompt: its capability's, its fact's, and its own."""

    def score(self, asked):
        found = np.zeros((len(asked), NEURONS), np.float32)
        for row, each in zip(found, asked, strict=True):
            for place, name in enumerate((each.capability, each.fact, each.prompt.text)):
                row[place * 600 + crc32(name.encode()) % 600] = 1
        return found


def asked(capability, fact, words):
    text = f"{words} {fact}"
    return Asked(FactPrompt(text, text, " x"), capability, fact)


def side(words):
    return [asked(c, f"{c}{n}", words) for c in ("one", "two") for n in range(3)]


@pytest.mark.parametrize("by_capability", [False, True])
def test_sets_share_what_their_prompts_have_alike(by_capability):
    found = agree(
        Planted(), single(side("a")), single(side("b")), BEST, by_capability=by_capability
    )
    means = [found[name]["mean"] for name in ("fact", "capability", "apart")]
    assert means == pytest.approx([2 / 3, 1 / 3, 0])
    margins = [found[f"{name}_margin"]["mean"] for name in ("fact", "capability")]
    assert margins == pytest.approx([1 / 3, 1 / 3])
    assert (found["size"], found["capability"]["items"]) == (3, 2 if by_capability else 6)


def test_a_prompt_is_not_held_against_itself_and_sigma_may_choose_nothing():
    found = agree(Planted(), single(side("a")), single(side("a")), SIGMA, by_capability=False)
    assert found["fact"]["mean"] is None or np.isnan(found["fact"]["mean"])
    assert found["capability"]["mean"] == pytest.approx(1 / 3)


def facts():
    def worded(relation, subject):
        prompts = [FactPrompt(f"{lead} {relation} {subject} is", subject, f" {subject}ville")
                   for lead in ("The", "A", "Some", "Any")]  # fmt: skip
        return Fact(f"{relation} {subject}", relation, prompts[0], tuple(prompts[1:]))

    return [worded(relation, subject) for relation in "rs" for subject in "abcdef"]


def test_facts_are_compared_alone_and_by_as_many_prompts_after_other_demonstrations():
    found = list(compare_facts(facts(), contexts=2, drawn=3))
    kinds = [(t["of"], t["prompts"], t["words"], t["demonstrations"]) for t, *_ in found]
    assert kinds[:3] == [
        ("facts", 1, "others", "none"), ("facts", 1, "the same", "none"),
        ("facts", 2, "others", "none"),
    ]  # fmt: skip
    _, first, second = found[3]
    assert len(first) == 6 and {len(group) for group in (*first, *second)} == {2}
    prompt = first[0][0].prompt
    assert prompt.text.count("\n\n") == 3 and prompt.text.endswith(prompt.subject)
    assert "ville" in prompt.text and prompt.target not in prompt.text  # it is not told
    assert compare_all(Planted(), found)


def test_tasks_are_compared_with_the_same_and_with_other_demonstrations():
    tasks = {}
    for name in ("one", "two"):
        own = [asked(name, f"{name}{n}", "own") for n in range(10)]
        tasks[name] = own, [asked(name, f"twin {name}{n}", "twin") for n in range(10)]
    found = {(t["words"], t["demonstrations"], t["prompts"]): sides
             for t, *sides in compare_tasks(tasks, 2)}  # fmt: skip
    same, others = (found["the same", shown, 2] for shown in ("the same", "others"))
    before = [group[0].prompt.text.rpartition("\n\n")[0] for group in (same[0][0], same[1][0])]
    assert before[0] == before[1] and same[0] == others[0]
    assert others[1][0][0].prompt.text.rpartition("\n\n")[0] != before[0]
    with pytest.raises(ValueError, match="too few"):
        list(compare_tasks(tasks, 3))


def test_sentences_are_asked_for_the_word_that_stands_next():
    found = sentences()
    assert len(found) > 100 and len({each.fact for each in found}) == len(found)
    for each in found:
        assert len(each.prompt.text.split()) == 12 and len(each.prompt.target.split()) == 1
    told, first, second = list(compare_texts(side("a"), 3))[1]
    assert (told["of"], told["prompts"], len(first)) == ("texts", 3, 2)
    assert [group[0].capability for group in second] == ["text", "text", "one", "two"]
    (row, _) = compare_all(Planted(), [(told, first, second)])
    assert row["capability"]["mean"] >= 1 / 3 > row["apart"]["mean"] == 0


def test_answers_are_exchanged_and_prompts_pooled_within_a_capability():
    some = [
        Asked(FactPrompt(t, t, a), "one", t) for t, a in (("p", " 1"), ("q", " 1"), ("r", " 2"))
    ]
    assert [each.prompt.target for each in exchanged(some)] == [" 2", " 2", " 1"]
    assert [len(group) for group in pool(side("a"), 2)] == [2, 2]


def test_the_questions_positions_are_part_of_all_and_scores_are_kept(neurons, tmp_path):
    (words, *_) = (wordings_of(fact) for fact in facts())
    shown = [words[0].after(words[1:3]), words[0]]
    scorer = PromptScorer(neurons, Path(tmp_path), Attribution("gradient"))
    of_question = PromptScorer(neurons, Path(tmp_path), Attribution("gradient"), question=True)
    every, question = scorer.score(shown), of_question.score(shown)
    assert np.abs(every).sum(axis=1) == pytest.approx(1)
    after, alone = (np.corrcoef(every[n], question[n])[0, 1] for n in range(2))
    assert after < alone  # a question alone has no other positions but the text's first token
    kept = sorted(tmp_path.iterdir())
    assert np.array_equal(scorer.score(shown), every) and sorted(tmp_path.iterdir()) == kept
