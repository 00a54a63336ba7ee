"""Facts that the demo model knows: capitals and elements, asked as quizzes or said as statements.

A quiz names its answer by a letter that changes from rewrite to rewrite, so that what the rewrites
of a fact have in common is the fact and not the token to come. Statements are for editing: they
name the answer itself.
"""

import random
from collections.abc import Callable, Sequence
from itertools import zip_longest

from papers.cnl.facts import NEIGHBOURS, Fact, FactPrompt, Pair
from worlds.tasks import data as texts
from worlds.tasks.data import LETTERS

DEMO_RELATIONS: dict[str, Sequence[Pair]] = {
    "capital of": texts.CAPITALS,
    "symbol of": texts.ELEMENTS,
}
REWRITES = 5
# What may stand before a statement without the demo model losing the fact (it was trained on
# statements at the start of a text); a third of what it forgets anyway is left to the filter.
LEADS = (" ", "  ", "\n")


def demo_facts(form: str = "quiz", count: int | None = None, *, seed: int = 0) -> tuple[Fact, ...]:
    """Make facts of both relations by turns, in random order; all of them, or the first `count`.

    In the form `quiz` the prompt and its rewrites are quizzes that differ in the wrong answers and
    in the place of the right one. In the form `statement` the prompt is `capital of France is `,
    the rewrites are three statements with another lead and three quizzes that offer both answers,
    and the neighbours are statements about other subjects.
    """
    build = DEMO_FORMS[form]
    rng = random.Random(seed)
    asked = [
        [(name, pair) for pair in rng.sample(pairs, len(pairs))]
        for name, pairs in DEMO_RELATIONS.items()
    ]
    turns = [each for pairs in zip_longest(*asked) for each in pairs if each]
    return tuple(build(rng, name, pair) for name, pair in turns[:count])


def demo_texts(count: int = 300, *, seed: int = 0) -> list[str]:
    """Draw texts of the demo model's world, of every kind, for statistics over any text."""
    rng = random.Random(seed)
    kinds = (*texts.HELD_OUT, texts.courtesy, texts.choose_named, texts.statement)
    drawn = [rng.choice(kinds)(rng) for _ in range(count)]
    return [example.prompt + example.answer for example in drawn]


def _quizzed(rng: random.Random, relation: str, pair: Pair) -> Fact:
    prompts: dict[str, FactPrompt] = {}
    while len(prompts) <= REWRITES:
        prompt = quiz(rng, relation, pair)
        prompts.setdefault(prompt.text, prompt)
    prompt, *rewrites = prompts.values()
    others = _others(rng, relation, pair, NEIGHBOURS)
    return Fact(
        name=f"{relation} {pair[0]}",
        relation=relation,
        prompt=prompt,
        rewrites=tuple(rewrites),
        neighbours=tuple(quiz(rng, relation, other) for other in others),
    )


def _stated(rng: random.Random, relation: str, pair: Pair) -> Fact:
    """State the fact, with a false answer of the same kind."""
    (_, other), *around = _others(rng, relation, pair, NEIGHBOURS + 1, apart=True)

    def said(subject: str, target: str, lead: str = "") -> FactPrompt:
        return FactPrompt(f"{lead}{relation} {subject} is ", subject, target, other)

    return Fact(
        name=f"{relation} {pair[0]}",
        relation=relation,
        prompt=said(*pair),
        rewrites=(
            *(said(*pair, lead) for lead in LEADS),
            *(quiz(rng, relation, pair, other) for _ in LEADS),
        ),
        neighbours=tuple(said(*each) for each in around),
    )


def quiz(rng: random.Random, relation: str, pair: Pair, offered: str | None = None) -> FactPrompt:
    """Ask a multiple-choice question, in the demo task's form, whose answer is a letter.

    `other` is the letter of the false answer `offered`, or of any.
    """
    subject, answer = pair
    wrong = rng.sample(
        sorted({each for _, each in DEMO_RELATIONS[relation]} - {answer, offered}), len(LETTERS) - 1
    )
    offered = offered or wrong[0]
    options = [answer, offered, *[each for each in wrong if each != offered][: len(LETTERS) - 2]]
    rng.shuffle(options)
    return FactPrompt(
        text=texts.word_quiz(relation, subject, options),
        subject=subject,
        target=LETTERS[options.index(answer)],
        other=LETTERS[options.index(offered)],
    )


def _others(
    rng: random.Random, relation: str, pair: Pair, count: int, *, apart: bool = False
) -> list[Pair]:
    """Other facts of the relation; with `apart`, the first answer begins like none of the others.

    Of answers that begin alike (H, He) the shorter is likelier whatever the model believes.
    """
    pool = [each for each in DEMO_RELATIONS[relation] if each != pair]
    first, *rest = rng.sample(pool, len(pool))
    while apart and first[1][0] == pair[1][0]:
        rest.append(first)
        first, *rest = rest
    if apart:
        rest = [each for each in rest if each[1][0] != first[1][0]]
    return [first, *rest][:count]


DEMO_FORMS: dict[str, Callable[[random.Random, str, Pair], Fact]] = {
    "quiz": _quizzed,
    "statement": _stated,
}


def demo_counterparts(prompt: FactPrompt) -> list[Pair]:
    """Take other countries or elements with their answers."""
    facts = next((facts for name, facts in DEMO_RELATIONS.items() if name in prompt.text), [])
    return [each for each in facts if each[0] != prompt.subject]
