"""The demo's facts: true, known to the model, and varied where they should be."""

import pytest

from caploc.errors import BadOption, UnknownName
from papers.cnl.facts import FactPrompt
from papers.cnl.prompts import Encoder, FactAnswers, known_facts
from worlds.facts import DEMO_RELATIONS, demo_facts, demo_texts

pytestmark = pytest.mark.slow

TRUTH = {
    (name, subject): answer for name, pairs in DEMO_RELATIONS.items() for subject, answer in pairs
}


def offered(prompt: FactPrompt) -> dict[str, str]:
    """The options of a quiz by their letters."""
    lines = [line.rsplit(" ", 1) for line in prompt.text.splitlines()[1:-1]]
    return {letter: option for option, letter in lines}


@pytest.mark.parametrize("form", ["quiz", "statement"])
def test_every_prompt_is_true_and_every_other_answer_false(form):
    facts = demo_facts(form)
    assert {fact.name for fact in facts} == {" ".join(each) for each in TRUTH}
    for fact in facts:
        for prompt in (fact.prompt, *fact.rewrites, *fact.neighbours):
            named = offered(prompt) or {prompt.target: prompt.target, prompt.other: prompt.other}
            right = TRUTH[fact.relation, prompt.subject]
            assert named[prompt.target] == right != named[prompt.other]


def test_quizzes_of_a_fact_differ_and_move_the_letter():
    facts = demo_facts("quiz")
    assert all(len({p.text for p in (f.prompt, *f.rewrites)}) == 6 for f in facts)
    same = [p.target == f.prompt.target for f in facts for p in f.rewrites]
    assert 0.18 < sum(same) / len(same) < 0.32  # a quarter, up to chance


def test_statements_are_asked_again_and_offer_both_answers():
    for fact in demo_facts("statement"):
        *said, first, second, third = fact.rewrites
        assert all(each.text.lstrip(" \n") == fact.prompt.text for each in said)
        for each in (first, second, third):
            named = offered(each)
            assert (named[each.target], named[each.other]) == (
                fact.prompt.target,
                fact.prompt.other,
            )
        for each in fact.neighbours:
            assert each.subject != fact.prompt.subject
            assert each.target[0] != fact.prompt.other[0] == each.other[0]


def test_both_relations_come_by_turns_and_fewer_are_the_first_of_more():
    facts = demo_facts("quiz", 20, seed=3)
    assert [fact.relation for fact in facts[:4]] == ["capital of", "symbol of"] * 2
    assert facts[:7] == demo_facts("quiz", 7, seed=3)
    assert facts != demo_facts("quiz", 20, seed=4)


def test_the_model_knows_them(neurons):
    for form, least in (("quiz", 0.9), ("statement", 1.0)):
        _, counts = known_facts(FactAnswers(neurons), demo_facts(form, 30))
        assert counts["facts_known"] >= least * counts["facts"]


def test_what_is_kept_is_what_the_model_says(neurons):
    facts = demo_facts("statement", 12)
    asker = FactAnswers(neurons)
    kept, counts = known_facts(asker, facts)
    right = [[p for p in fact.rewrites if asker.right(p)] for fact in kept]
    assert [list(fact.rewrites) for fact in kept] == right
    assert counts["rewrites_known"] == sum(map(len, right)) < counts["rewrites"]
    assert counts["rewrites"] == 6 * len(facts)
    first, asked = known_facts(asker, facts, 2)  # no more are asked than it takes
    assert first == kept[:2] and asked["facts_known"] == 2
    assert asked["facts"] == 1 + [fact.name for fact in facts].index(kept[1].name)


def test_answers_do_not_depend_on_what_is_asked_beside_them(neurons):
    encoder = Encoder(neurons)
    facts = demo_facts("statement", 2)
    prompts = [each for f in facts for each in (f.prompt, *f.rewrites, *f.neighbours)]
    encoded = [encoder.encode(prompt) for prompt in prompts]
    asker = FactAnswers(neurons)
    together = asker.scores(encoded)
    for one, each in zip(encoded, together, strict=True):
        (alone,) = asker.scores([one])
        assert alone.logprob == pytest.approx(each.logprob, abs=1e-4 * len(one.answer))
        assert alone.greedy == each.greedy


def test_a_bare_number_or_form_that_is_none_is_refused():
    with pytest.raises(BadOption, match="ask for 1 to"):
        demo_facts("quiz", 0)
    with pytest.raises(UnknownName, match="statement"):
        demo_facts("statements")


def test_texts_are_drawn_from_the_whole_world():
    texts = demo_texts(200, seed=1)
    assert texts == demo_texts(200, seed=1) and len(texts) == 200
    for part in ("sort ", "capital of", "rhyme", "+", "def f"):
        assert any(part in text for text in texts)
