"""Planted answers of every category."""

import json
import random
from dataclasses import replace

import pytest
from asked import (
    ANIMALS,
    COUNT,
    GOLDS,
    LIMIT,
    WRONG,
    Asked,
    choices_rows,
    choosing,
    labels,
    likelihood_rows,
    row,
    scoring,
    sure,
    texts_rows,
    writing,
)

from caploc.tasks.catalog import load_task
from caploc.tasks.task import Generated
from caploc.validation.categories import UNLIKELY, Category
from caploc.validation.failures import categorize_failures


def answered(*answers, tokens=None):
    """Categories of these answers where the others are wrong and well-formed."""
    task = writing(GOLDS)
    texts = [*answers, *WRONG[len(answers) :]]
    counts = [*(tokens or []), *[10] * (COUNT - len(tokens or []))]
    found = labels(task, texts_rows(task, GOLDS), texts_rows(task, texts, counts))
    assert set(found[len(answers) :]) <= {"wrong content"}
    return found[: len(answers)]


@pytest.mark.parametrize(
    ("answer", "category"),
    [
        ("", "empty"),
        (" \n\t ", "empty"),
        ("the the the the the the", "stuck"),
        ("```````````````", "stuck"),
        ("There are 2 cats on the farm" + " cats" * 12, "stuck"),
        ("There are 2 cats on the farm" + ", cats" * 12, "stuck"),
        ("There are cats. " * 4, "loop"),
        (" Es gibt Katzen.\n" * 4, "loop"),  # a loop before all else that it may be
        ("blarg fnord quux on the zmeer", "words foreign to the task"),
        ("我们 今天 去 公园", "words foreign to the task"),  # another language
        (GOLDS[0], "right"),
        (f"\n{GOLDS[0]} ", "right"),
        ("There are 7 goats on the farm.", "wrong content"),
    ],
)
def test_an_answer_is_what_it_was_planted_to_be(answer, category):
    assert answered(answer) == [category]


def test_an_answer_that_the_limit_ends_runs_on():
    assert answered(WRONG[0], WRONG[1], tokens=[LIMIT, LIMIT - 1]) == ["runs on", "wrong content"]
    assert answered(GOLDS[0], tokens=[LIMIT]) == ["right"]  # word for word the intact answer


def test_the_limit_is_lm_evals_own_where_the_task_names_none():
    task = writing(GOLDS)
    task.asked = [(replace(request[0], options="{}"),) for request in task.asked]
    for tokens, category in ((255, "wrong content"), (256, "runs on")):
        found = texts_rows(task, WRONG, [tokens] + [10] * (COUNT - 1))
        assert labels(task, texts_rows(task, GOLDS), found)[0] == category


def test_what_the_intact_answer_shows_too_is_no_failure():
    intact = ["", "la la la la la la la", WRONG[2], *GOLDS[3:]]
    before = [10, 10, LIMIT, *[10] * (COUNT - 3)]
    after = [" ", "la la la la la la la la", WRONG[3], *GOLDS[3:]]
    task = writing(GOLDS)
    found = labels(task, texts_rows(task, intact, before), texts_rows(task, after, before))
    assert found[:3] == ["wrong content"] * 3
    told = categorize_failures(
        task, texts_rows(task, intact, before), texts_rows(task, after, before)
    )
    assert told.verdict == "unharmed" and told.harmed.count == 0


def test_an_answer_may_be_scored_right_and_still_be_broken():
    """A metric that looks for one word finds it in nonsense too."""
    task = writing(GOLDS)
    texts = ["answer blarg fnord quux", *GOLDS[1:]]
    broken = texts_rows(task, texts, outcomes=[1.0] * COUNT)
    assert labels(task, texts_rows(task, GOLDS), broken)[0] == "words foreign to the task"


@pytest.mark.parametrize(
    ("answers", "common", "category"),
    [
        (["yes", "no"], "no", "same answer as others"),
        ([str(number) for number in range(10)], "3", "same answer as others"),
        (
            [str(number) for number in range(40)],
            "def is_prime(n):\n    return n > 1",
            "same answer as others",
        ),
    ],
)
def test_one_answer_to_every_question_is_no_answer(answers, common, category):
    golds = [answers[number % len(answers)] for number in range(COUNT)]
    task = writing(golds)
    intact = texts_rows(task, golds)
    told = categorize_failures(task, intact, texts_rows(task, [f" {common}"] * COUNT))
    right = golds.count(common)
    assert [told.labels[n] for n in range(COUNT)].count(Category.RIGHT) == right
    assert told.categories[Category(category)].count == COUNT - right
    assert told.verdict == "speech"
    assert (told.common[0].count, told.common[0].choices) == (COUNT, None)


def test_who_was_wrong_with_the_common_answer_before_has_not_failed_anew():
    task, common = writing(GOLDS), "There are 99 cats on the farm."
    intact = texts_rows(task, [common, common, *GOLDS[2:]])
    found = labels(task, intact, texts_rows(task, [f" {common}", *[common] * (COUNT - 1)]))
    assert found == ["wrong content"] * 2 + ["same answer as others"] * (COUNT - 2)


def test_who_is_right_with_the_common_answer_is_right():
    golds = ["yes", "no"] * (COUNT // 2)
    task = writing(golds)
    intact = texts_rows(task, ["no", *golds[1:]])
    found = labels(task, intact, texts_rows(task, ["yes"] * COUNT))
    assert found == ["right", "same answer as others"] * (COUNT // 2)


@pytest.mark.parametrize("labels_", [["yes", "no"], [str(number) for number in range(10)]])
def test_a_model_that_guesses_among_few_labels_can_still_speak(labels_):
    """Guesses that lean to one label, too."""
    golds = [labels_[number % len(labels_)] for number in range(200)]
    task, draw = writing(golds), random.Random(1)
    for lean in ([], labels_[:1] * (len(labels_) // 3)):
        guessed = [draw.choice([*labels_, *lean]) for _ in golds]
        told = categorize_failures(task, texts_rows(task, golds), texts_rows(task, guessed))
        assert told.verdict == "capability" and not told.common
        assert set(told.categories) == {Category.RIGHT, Category.WRONG_CONTENT}


def test_a_task_whose_answer_is_nearly_always_the_same_is_not_broken():
    golds = ["no"] * 190 + ["yes"] * 10
    task = writing(golds)
    told = categorize_failures(
        task, texts_rows(task, golds), texts_rows(task, ["no"] * 192 + ["yes"] * 8)
    )
    assert told.verdict == "unharmed" and not told.common


def test_an_answer_of_another_shape_has_no_form():
    golds = [str(number) for number in range(COUNT)]
    task = writing(golds)
    texts = ["1o", "twelve", "-3", "4 4", *golds[4:]]
    found = labels(task, texts_rows(task, golds), texts_rows(task, texts))
    assert found[:4] == ["format", "format", "wrong content", "format"]


def test_a_program_that_does_not_parse_has_no_form():
    golds = [f"def f(x):\n    y = x * {n}\n    return y + {n % 7}" for n in range(COUNT)]
    texts = ["def f(x):\n    return x + x", "def f(x) x = = 2", "x", "```\nx = 1\n```", *golds[4:]]
    task = writing(golds)
    found = labels(task, texts_rows(task, golds), texts_rows(task, texts))
    assert found[:4] == ["wrong content", "format", "format", "wrong content"]


def test_an_answer_in_which_the_tasks_filter_finds_nothing_has_no_form(tmp_path):
    """By lm-eval's own filter, on a task file."""
    golds = [f"I count {3 * n + 2} of them. #### {3 * n + 2}" for n in range(COUNT)]
    (tmp_path / "rows.jsonl").write_text(
        "".join(json.dumps({"q": f"q{n}:", "a": gold}) + "\n" for n, gold in enumerate(golds))
    )
    config = {
        "task": "counted",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(tmp_path / "rows.jsonl")}},
        "test_split": "test",
        "output_type": "generate_until",
        "doc_to_text": "{{q}}",
        "doc_to_target": "{{a}}",
        "generation_kwargs": {"until": ["\n"], "max_gen_toks": LIMIT, "do_sample": False},
        "filter_list": [
            {
                "name": "strict",
                "filter": [
                    {"function": "regex", "regex_pattern": "#### (\\d+)"},
                    {"function": "take_first"},
                ],
            }
        ],
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
    }
    path = tmp_path / "counted.yaml"
    path.write_text(json.dumps(config))  # JSON is YAML
    task = load_task(str(path))
    intact = [row(n, [Generated(gold, said=(0,) * 9)], 1.0) for n, gold in enumerate(golds)]
    said = ["I count 9 of them. #### 9", "I count 9 of them.", "I count them. #### none"]
    cut = [row(n, [Generated(text, said=(0,) * 9)], 0.0) for n, text in enumerate(said)] + intact[
        3:
    ]
    assert labels(task, intact, cut)[:3] == ["wrong content", "format", "format"]
    assert labels(writing(golds), intact, cut)[:3] == ["wrong content"] * 3


class Judging(Asked):
    """A task that judges what stands behind a colon, together with the prompt."""

    def __init__(self, golds, whole):
        super().__init__(writing(golds).asked, golds)
        self.whole = whole

    def extracted(self, example, responses):
        found = responses[0].text.partition(":")[2]
        return self.asked[example][0].prompt + found if self.whole else found


@pytest.mark.parametrize("whole", [False, True])
def test_answers_are_the_same_if_what_is_judged_of_them_is(whole):
    """What is judged is no part of the answer if it holds more, so the whole answers count."""
    golds = [f"so it is: {number}" for number in range(COUNT)]
    said = [f"{animal} it is{'n' * (number // 8)}: 41" for number, animal in enumerate(ANIMALS * 5)]
    task = Judging(golds, whole)
    told = categorize_failures(task, texts_rows(task, golds), texts_rows(task, said))
    assert [common.answer for common in told.common] == ([] if whole else ["41"])


def test_what_is_judged_may_be_blank():
    golds = [f"so it is: {number}" for number in range(COUNT)]
    task = Judging(golds, whole=False)
    cut = texts_rows(task, ["so it is", "so it is: ", *golds[2:]])
    assert labels(task, texts_rows(task, golds), cut)[:2] == ["format", "format"]


def test_every_choice_unlikely_is_a_failure_of_its_own():
    golds = [number % 4 for number in range(COUNT)]
    task = choosing(golds)
    intact = choices_rows(task, [sure(gold) for gold in golds])
    told = categorize_failures(
        task, intact, choices_rows(task, [sure(g, best=-12.0, other=-13.0) for g in golds])
    )
    assert set(told.labels.values()) == {Category.UNLIKELY}  # although the scores are right
    assert told.verdict == "speech"


@pytest.mark.parametrize(("drop", "category"), [(UNLIKELY - 0.01, "right"), (UNLIKELY, "unlikely")])
def test_the_drop_is_of_the_best_choice_a_token(drop, category):
    golds = [number % 4 for number in range(COUNT)]
    task = choosing(golds)
    intact = choices_rows(task, [sure(gold, best=-8.0, other=-40.0) for gold in golds], tokens=8)
    values = [sure(gold, best=-8.0 - 8 * drop, other=-80.0) for gold in golds]
    assert set(labels(task, intact, choices_rows(task, values, tokens=8))) == {category}


def test_choices_evenly_likely_and_no_less_are_guesses_not_a_failure_to_speak():
    golds = [number % 4 for number in range(COUNT)]
    task, draw = choosing(golds), random.Random(0)
    intact = choices_rows(task, [sure(gold) for gold in golds])
    even = [[-1.386 + draw.uniform(-0.01, 0.01) for _ in range(4)] for _ in golds]
    told = categorize_failures(task, intact, choices_rows(task, even))
    assert told.verdict == "capability"


def test_the_same_position_for_every_question_is_no_choice():
    golds = [number % 4 for number in range(COUNT)]
    task = choosing(golds)
    intact = choices_rows(task, [sure(gold) for gold in golds])
    told = categorize_failures(task, intact, choices_rows(task, [sure(1)] * COUNT))
    assert {kind: part.count for kind, part in told.categories.items()} == {
        Category.RIGHT: 10, Category.SAME_CHOICE: 30,
    }  # fmt: skip
    assert told.verdict == "speech"
    (common,) = told.common
    assert (common.answer, common.choices, common.count, common.share) == (2, 4, COUNT, 1.0)


def test_a_favourite_position_of_an_unsure_model_is_no_failure_to_speak():
    golds = [number % 4 for number in range(COUNT)]
    task = choosing(golds)
    intact = choices_rows(task, [sure(gold) for gold in golds])
    half = [sure(gold if number % 3 else 1) for number, gold in enumerate(golds)]
    told = categorize_failures(task, intact, choices_rows(task, half))
    assert not told.common and told.verdict == "capability"


def test_yes_or_no_questions_have_two_positions():
    golds = [number % 2 for number in range(COUNT)]
    task = choosing(golds, choices=2)
    intact = choices_rows(task, [sure(gold, 2) for gold in golds])
    leaning = [sure(gold if number % 5 else 0, 2) for number, gold in enumerate(golds)]
    assert not categorize_failures(task, intact, choices_rows(task, leaning)).common
    always = categorize_failures(task, intact, choices_rows(task, [sure(0, 2)] * COUNT))
    assert always.categories[Category.SAME_CHOICE].count == COUNT // 2


def test_choices_of_questions_with_more_or_fewer_of_them_are_counted_apart():
    few, many = choosing([0, 1] * 20, choices=2), choosing([0, 1, 2, 3] * 10)
    task = choosing([*few.golds, *many.golds])
    task.asked = [*few.asked, *many.asked]
    right = [sure(int(gold), 2) for gold in few.golds], [sure(int(gold)) for gold in many.golds]
    intact = choices_rows(task, [*right[0], *right[1]])
    broken = [sure(0, 2)] * 40 + right[1]
    told = categorize_failures(task, intact, choices_rows(task, broken))
    assert [(common.answer, common.choices) for common in told.common] == [(1, 2)]


def test_choices_are_picked_by_length_where_the_metric_does():
    """By length the long second choice is likelier, always; by sums the first is."""
    texts = [" no", " a much longer answer"]
    golds = [number % 2 for number in range(COUNT)]
    before = [[-1.0, -60.0] if gold == 0 else [-9.0, -8.0] for gold in golds]
    for metric, answer in (("acc", 1), ("acc_norm", 2)):
        task = choosing(golds, metric=metric, texts=texts)
        told = categorize_failures(
            task, choices_rows(task, before), choices_rows(task, [[-2.0, -2.5]] * COUNT)
        )
        assert [common.answer for common in told.common] == [answer]


def test_one_short_text_cannot_tell_what_the_model_would_have_said():
    task = scoring(COUNT)
    intact = likelihood_rows([-0.1] * COUNT, [1.0] * COUNT, tokens=1)
    told = categorize_failures(
        task, intact, likelihood_rows([-9.0] * COUNT, [0.0] * COUNT, tokens=1)
    )
    assert set(told.labels.values()) == {Category.MISSED}
    assert told.verdict is None and told.harmed.count == COUNT and told.broken.count == 0


def test_one_long_text_can():
    task = scoring(COUNT)
    intact = likelihood_rows([-4.0] * COUNT, [1.0] * COUNT)
    cut = likelihood_rows([-400.0] * 20 + [-20.0] * 20, [0.0] * COUNT)
    found = labels(task, intact, cut)
    assert found == ["unlikely"] * 20 + ["wrong content"] * 20
    assert categorize_failures(task, intact, cut).verdict == "mixed"


def test_a_texts_perplexity_may_rise_a_little_or_beyond_all_bounds():
    task, draw = scoring(COUNT, rolling=True), random.Random(2)
    before = [draw.gauss(-40, 5) for _ in range(COUNT)]
    for factor, category, verdict in (
        (1.001, Category.RIGHT, "unharmed"),
        (1.5, Category.WRONG_CONTENT, "capability"),
        (9.0, Category.UNLIKELY, "speech"),
    ):
        after = likelihood_rows([value * factor for value in before])
        told = categorize_failures(task, likelihood_rows(before), after)
        assert set(told.labels.values()) == {category} and told.verdict == verdict
