"""Answers that change by rounding alone: how often, and what is then not named."""

import sqlite3
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

from caploc.declaration import ModelOptions, Study
from caploc.options import Settings
from caploc.recovery import Estimate, Measurements
from caploc.result import Noise
from caploc.search import Found
from caploc.store import Question
from caploc.study import run_study
from caploc.validation import REPEATED, above_noise
from worlds import DEMO

SMALL = Study(
    model=ModelOptions(DEMO, dtype="bfloat16"),
    task="demo/addition",
    method="one-shot",
    examples=8,
    controls=0,
    limit=20,
    quick=True,
)


def found_with(effects, chosen):
    effect = np.array(effects)
    estimate = Estimate("paired", effect, effect - 0.1, effect + 0.1, effect * 0)
    return Found(chosen, chosen, estimate, Measurements.none(len(effects)), notes=["before"])


def test_heads_that_do_no_more_than_rounding_are_not_named():
    found = found_with([-0.3, -0.02, -0.5, 0.0], [2, 0, 1])
    kept = above_noise(found, Noise(rows=50, changed=1, floor=0.02))
    assert kept.chosen == [2, 0]
    assert kept.notes[0].startswith("One head is not named")
    assert "1 of 50" in kept.notes[0] and kept.notes[1:] == ["before"]
    assert above_noise(found, Noise(rows=50, changed=0, floor=0.0)) is found
    assert above_noise(found, None) is found


def test_rows_that_are_asked_again_have_a_question_of_their_own():
    question = Question("print", "float32", "task", "1", "metric")
    assert replace(question, repeat=1).digest() != question.digest()


def test_a_run_in_half_precision_asks_intact_rows_twice(tmp_path):
    found = run_study(SMALL, tmp_path / "run")
    noise = found.result.noise
    with closing(sqlite3.connect(tmp_path / "run" / "rows.sqlite")) as database:
        query = (
            "SELECT outcome, example FROM rows JOIN questions ON questions.id = rows.question "
            "WHERE json_extract(questions.question, '$.repeat') = ? AND hex(mask) = ?"
        )
        nothing = "00" * 12
        first = {example: o for o, example in database.execute(query, (0, nothing))}
        again = {example: o for o, example in database.execute(query, (1, nothing))}
    assert len(again) == noise.rows == min(SMALL.examples, REPEATED)
    change = [abs(first[example] - outcome) for example, outcome in again.items()]
    assert noise.changed == sum(each > 0 for each in change)
    assert noise.floor == pytest.approx(np.mean(change))


def test_a_run_in_single_precision_asks_nothing_twice(tmp_path):
    exact = replace(SMALL, model=ModelOptions(DEMO))
    assert run_study(exact, tmp_path / "run").result.noise is None


@pytest.mark.slow
def test_findings_of_other_batch_sizes_agree_within_the_noise(tmp_path):
    settings = Settings(top=3, budget=800)
    study = replace(SMALL, method="scan", examples=None, settings=settings)
    results = [
        run_study(
            replace(study, model=replace(study.model, batch_size=size)), tmp_path / str(size)
        ).result
        for size in (7, 32, 200)
    ]
    effects = [{entry.head: entry.effect for entry in result.heads} for result in results]
    floor = max(result.noise.floor for result in results)
    for result, effect in zip(results, effects, strict=True):
        for head in results[0].top:
            assert head in result.top or abs(effect[head] - effects[0][head]) <= floor
