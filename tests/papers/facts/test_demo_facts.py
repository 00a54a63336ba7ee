"""The demo's facts: true, known to the model, and varied where they should be."""

import pytest

from papers.cnl.facts import FactPrompt
from papers.cnl.prompts import Encoder, FactAnswers, known_facts
from worlds.facts import DEMO_RELATIONS, demo_facts

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
