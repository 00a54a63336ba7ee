"""The default method end to end, on transformers whose weights say which heads are needed."""

from dataclasses import replace

import pytest

from caploc.contents import Curve, read_file
from caploc.declaration import CURVED
from caploc.options import Settings
from caploc.study import run_study
from doubles import METRIC, WRITTEN, Watcher, count_rows, planted_study, steady, write_task_file
from worlds.planted import Planted, write_planted

pytestmark = pytest.mark.slow  # whole studies

PLAN = Planted(needed=3, universal=1, strengths=(0.3, 0.24, 0.18), seed=3)
BACKED = Planted(needed=2, backups=2, strengths=(0.3, 0.2), seed=2)
IDLE = Planted(needed=1, strengths=(0.01,), seed=1)


class Written:
    """A planted model on disk, and a study of it."""

    def __init__(self, folder, plan):
        self.folder, self.truth = folder, write_planted(folder, plan)

    def study(self, others=("other",), limit=100, **settings):
        return planted_study(self.folder, *others, settings=Settings(**settings), limit=limit)

    def alone(self, **settings):
        """Without another task and with a small check, which is quick."""
        return replace(self.study((), 20, **settings), controls=0)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    made = {}

    def write(plan):
        if plan not in made:
            made[plan] = Written(tmp_path_factory.mktemp("planted") / "model", plan)
        return made[plan]

    return write


@pytest.fixture(scope="module")
def done(written, tmp_path_factory):
    return run_study(written(PLAN).study(top=3), tmp_path_factory.mktemp("run"))


def names(heads):
    return {str(head) for head in heads}


def test_exactly_the_planted_heads_are_named(written, done):
    assert set(done.result.top) == names(written(PLAN).truth.needed)


def test_the_universal_head_is_found_by_the_other_task_and_left_out(written, done):
    (universal,) = names(written(PLAN).truth.universal)
    search = done.result.search
    assert search.universal == search.critical == list(search.breaks) == [universal]
    rows = {row.head: row for row in done.result.heads}
    assert rows[universal].universal is True and rows[universal].selected is False
    tested = {name: row.universal for name, row in rows.items() if name != universal}
    assert {name for name, is_one in tested.items() if is_one is False} == {*done.result.top}
    assert search.breaks[universal] == "other"


def test_intervals_contain_the_true_costs_of_most_heads(written, done):
    truth = written(PLAN).truth
    covered = [
        row.low - 1e-9 <= truth.accuracy([row.head]) - truth.accuracy() <= row.high + 1e-9
        for row in done.result.heads
        if row.low is not None
    ]
    assert len(covered) == done.result.search.tried_on / 100 * len(done.result.search.tried) == 9
    assert sum(covered) >= 8


def test_the_result_says_what_both_stages_asked(done):
    search = done.result.search
    rows = {row.head: row for row in done.result.heads}
    assert {row.scanned for row in rows.values()} == {4}
    assert search.rows == 4 * len(rows) + search.tried_on * len(search.tried)
    assert all(rows[head].top_chance > 0.9 and head in search.tried for head in done.result.top)
    assert search.stability > 0.8


def test_the_drop_holds_on_examples_that_the_screen_never_used(written, done):
    truth, held_out = written(PLAN).truth, done.result.validation.held_out
    drop = truth.accuracy(done.result.top) - truth.accuracy()
    assert held_out.fresh is True and held_out.examples == 100
    assert held_out.change.low <= drop <= held_out.change.high
    assert held_out.change.verdict == "changed"
    assert done.result.validation.other_tasks[0].change.verdict == "unchanged"


def test_the_report_says_what_was_found_and_how_sure_it_is(done):
    page = done.report.read_text()
    for wanted in ("SPECIFIC", "held out", "left out: breaks another task too"):
        assert wanted in page


def test_a_run_that_was_stopped_ends_like_one_that_was_not(written, done, tmp_path):
    study = written(PLAN).study(top=3)
    with pytest.raises(KeyboardInterrupt):
        run_study(study, tmp_path, Watcher(700))
    counter = Watcher()
    stopped = run_study(study, tmp_path, counter).result
    assert steady(stopped) == steady(done.result)
    # none was asked or counted twice
    assert count_rows(tmp_path) == stopped.cost.rows > counter.measured


def test_a_quick_run_draws_no_curve_and_asks_only_what_it_did_before(written, done, tmp_path):
    quick = run_study(replace(written(PLAN).study(top=3), quick=True), tmp_path)
    assert not (tmp_path / "curve.json").exists()
    assert "How many heads it takes" not in quick.report.read_text()
    # of three heads the other task lacks the first two, since the strongest is scored alone; the
    # set's own parts, each beginning among them, are on the task's examples already
    assert done.result.cost.rows == quick.result.cost.rows + CURVED


def test_one_head_is_on_a_curve_for_nothing(written, tmp_path):
    study = written(PLAN).study(top=1)
    found = run_study(study, tmp_path / "run")
    quick = run_study(replace(study, quick=True), tmp_path / "quick")
    assert found.result.cost.rows == quick.result.cost.rows and len(found.result.top) == 1
    drawn = read_file(tmp_path / "run" / "curve.json", Curve)
    assert [len(points) for points in drawn.curves.values()] == [2, 2]


def test_a_run_killed_in_its_curve_goes_on_there(written, done, tmp_path):
    study, counter = written(PLAN).study(top=3), Watcher()
    with pytest.raises(KeyboardInterrupt):
        run_study(study, tmp_path, Watcher(done.result.cost.rows - 2 * CURVED))  # the other task's
    assert not (tmp_path / "result.json").exists()
    run_study(study, tmp_path, counter)
    assert 0 < counter.measured <= 2 * CURVED
    content = [read_file(each / "curve.json", Curve) for each in (tmp_path, done.folder)]
    assert content[0].curves == content[1].curves


def test_a_head_that_breaks_a_twin_too_is_no_universal_head_for_that(written, tmp_path):
    study = written(PLAN).study(())
    twin = study.task.replace("planted.yaml", "other.yaml")
    result = run_study(replace(study, twins=(twin,)), tmp_path / "run").result
    (universal,) = names(written(PLAN).truth.universal)
    assert universal in result.top and result.search.universal == []
    assert [each.twin for each in result.validation.other_tasks] == [True]


def test_without_another_task_a_critical_head_may_be_universal_or_not(written, tmp_path):
    result = run_study(written(PLAN).alone(top=4), tmp_path).result
    truth = written(PLAN).truth
    assert result.top == list(names(truth.universal))  # which leaves no answer to the others
    assert {*result.validation.unconfirmed} == names(truth.needed)
    assert result.search.critical == list(names(truth.universal))
    assert result.search.universal == []
    assert {row.universal for row in result.heads} == {None}
    assert result.validation.controls is None


def test_a_task_without_fresh_examples_says_so(written, tmp_path):
    study = replace(written(PLAN).alone(top=3), examples=590)
    findings = run_study(study, tmp_path)
    assert findings.result.validation.held_out.fresh is False
    assert "seen in the search" in findings.report.read_text()


def test_a_model_without_a_head_that_matters_has_none_named(written, tmp_path):
    findings = run_study(written(IDLE).alone(), tmp_path)
    result = findings.result
    assert result.top == [] and not any(row.selected for row in result.heads)
    assert result.search.notes[0].startswith("No head is needed beyond doubt")
    assert result.validation.controls is None
    assert not (tmp_path / "curve.json").exists()
    assert "NOT FOUND" in findings.report.read_text()


CHOICES = {
    "output_type": "multiple_choice",
    "doc_to_choice": ["red", "green"],
    "metric_list": [METRIC | {"metric": "acc"}],
}
WORDS = {"generation_kwargs": WRITTEN | {"max_gen_toks": 1}}


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (CHOICES, "no better than guessing (50%)"),
        (WORDS, "too few (10 are needed) for a knockout to take anything"),
    ],
    ids=["choices", "words"],
)
def test_a_task_that_the_model_cannot_do_names_no_head(written, tmp_path, kind, reason):
    """The right answer to what is red is said to be green."""
    rows = [{"q": f"colour ruby item{number}", "a": "green"} for number in range(60)]
    task = write_task_file(tmp_path, rows, "guess", **kind)
    study = replace(written(PLAN).alone(), task=str(task))
    result = run_study(study, tmp_path / "run").result
    assert result.top == [] and {row.effect for row in result.heads} == {None}
    assert any(reason in note for note in result.search.notes), result.search.notes
    assert (tmp_path / "run" / "report.html").is_file()


def test_a_set_holds_the_backups_that_single_heads_do_not_show(written, tmp_path):
    truth = written(BACKED).truth
    study = replace(written(BACKED).alone(top=4, goal="set", budget=4000), limit=60)
    findings = run_study(study, tmp_path)
    result = findings.result
    assert set(result.top) == names([*truth.needed, *truth.backups])
    assert result.search.goal == result.method.goal == "set"
