"""Studies end to end on the demo model: results, resuming, killing, and what is refused when."""

import json
import sqlite3
from dataclasses import replace

import pytest

import caploc
from caploc.components import Heads
from caploc.declaration import ModelOptions, Study
from caploc.errors import BadOption, FolderTaken, UnknownName
from caploc.evaluation import Evaluation, curve, evaluate
from caploc.options import Settings, TaskOptions
from caploc.studies.running import rewrite_report, run_studies
from caploc.study import run_study
from doubles import Watcher, count_rows, write_task_file
from worlds import DEMO

MODEL = ModelOptions(DEMO)
SMALL = Study(
    model=MODEL,
    task="demo/addition",
    method="one-shot",
    examples=6,
    other_tasks=("demo/sentences",),
    controls=2,
    limit=20,
)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    return run_study(SMALL, tmp_path_factory.mktemp("run"), command="caploc locate demo ...")


def test_what_a_published_method_does_not_ask_is_empty(done):
    result = json.loads((done.folder / "result.json").read_text())
    empty = {"critical": [], "universal": [], "breaks": {}, "excluded": [], "notes": []}
    assert result["search"] == empty
    assert [row["top_chance"] for row in result["heads"]] == [None] * 96


def test_heads_are_ranked_and_the_top_ones_are_selected(done):
    heads = done.result.heads
    effects = [row.effect for row in heads]
    assert effects == sorted(effects)
    assert {row.head for row in heads if row.selected} == set(done.result.top)
    found = [*done.result.top, *done.result.validation.unconfirmed]
    assert {*found} == {row.head for row in heads[: len(found)]}
    assert done.result.top == [row.head for row in heads if row.head in done.result.top]


def test_knocking_out_the_found_heads_hurts_the_task_more_than_random_heads(done):
    validation = done.result.validation
    task, controls = validation.task, validation.controls
    assert task.intact.score - task.knocked_out.score > 0.3
    assert len(controls.scores) == 2
    assert controls.chosen < min(controls.scores)
    assert task.change.verdict == "changed"


def test_the_check_is_on_examples_that_the_heads_were_not_found_on(done):
    validation = done.result.validation
    assert validation.held_out.fresh is True
    assert validation.held_out.examples == validation.controls.examples == 20
    assert validation.held_out.knocked_out == validation.controls.chosen
    draw = SMALL.draw(512)
    assert len(draw.searched) == 6 and not {*draw.searched} & {*draw.kept}


@pytest.mark.parametrize(
    ("method", "examples", "size", "count", "fresh"),
    [("scan", None, 512, 341, 171), ("scan", None, 5000, 400, 600),
     ("scan", None, 58, 38, 20), ("scan", None, 39, 26, 0), ("scan", 30, 58, 30, 28),
     ("css", None, 512, 100, 412), ("one-shot", None, 60, 60, 0), ("css", 45, 60, 45, 0)],
)  # fmt: skip
def test_examples_for_the_check_are_kept_where_a_task_has_enough(
    method, examples, size, count, fresh
):
    draw = replace(SMALL, method=method, examples=examples).draw(size)
    assert (len(draw.searched), len(draw.kept)) == (count, fresh)
    assert len({*draw.searched, *draw.kept}) == count + fresh


@pytest.mark.parametrize("kept, held", [(0, 0), (20, 20), (30, 20), (60, 30), (600, 100)])
def test_where_sets_are_compared_half_of_the_examples_kept_are_held_out(kept, held):
    draw = replace(SMALL, method="greedy", examples=40).draw(40 + kept)
    assert (len(draw.held_out), len(draw.kept)) == (held, kept)


@pytest.mark.parametrize("kept, held", [(0, 0), (20, 20), (30, 30), (60, 60), (600, 100)])
def test_where_none_are_compared_all_are_held_out(kept, held):
    draw = replace(SMALL, method="css", examples=40).draw(40 + kept)
    assert (len(draw.held_out), len(draw.kept)) == (held, kept)


def test_heads_of_the_quizzes_are_no_heads_of_plain_sentences(tmp_path):
    """The demo's multiple choice is carried by few heads that sentences do without."""
    heads = tuple(map(caploc.Head.parse, ["L5H15", "L5H1", "L0H11", "L0H9", "L5H14"]))
    evaluation = Evaluation(MODEL, heads, ("demo/elements", "demo/sentences"), limit=60)
    elements, sentences = evaluate(evaluation, tmp_path).tasks
    assert elements.change.outcome < -0.4
    assert sentences.change.outcome > -0.05


def test_the_cost_counts_every_row_once(done):
    """The search, the final scores, and all that is checked on 20 held-out examples."""
    most = 6 + 96 * 6 + 24 * (1 + 5)  # what else the five heads break
    scores = 6 * 20  # before, after, and without the strongest alone
    parts = 7 + 15  # beginnings and all but one; all but one of what is left, head after head
    check = 20 * (2 + 2 + 2 + 5 + parts) + 30 * 20
    stored = count_rows(done.folder)
    assert done.result.cost.rows == stored
    offered = (5 + 1) * 240  # parts of the set on another task, and that task intact
    search = done.result.cost.search_rows
    assert 6 + 96 * 6 + 24 < search <= most
    assert done.result.cost.intact_rows == 6 + 24
    assert search < stored <= search + scores + check + offered


def test_a_second_run_asks_nothing_and_finds_the_same(done):
    counter = Watcher()
    again = run_study(SMALL, done.folder, counter, command="caploc locate demo ...")
    assert counter.measured == 0
    assert again.result == done.result


def test_another_study_in_the_folder_is_refused_with_the_difference(done):
    with pytest.raises(FolderTaken, match="examples 6, not 7"):
        run_study(replace(SMALL, examples=7), done.folder)


def test_a_run_goes_on_in_smaller_batches(done):
    counter = Watcher()
    smaller = replace(SMALL, model=ModelOptions(DEMO, device="cpu", batch_size=3))
    assert run_study(smaller, done.folder, counter, command="caploc locate demo ...").result.top
    assert counter.measured == 0


def test_reordered_data_is_paired_with_its_own_outcomes(tmp_path):
    """Rows of unchanged documents are reused under their new numbers."""
    lines = [{"q": f"{n}+{n}=", "a": str(2 * n + (n % 2))} for n in range(10, 18)]
    evaluation = Evaluation(MODEL, (caploc.Head.parse("L0H0"),), (str(tmp_path / "sums.yaml"),))
    results = []
    for order in (lines, lines[::-1]):
        write_task_file(tmp_path, order, "sums")
        counter = Watcher()
        results.append((evaluate(evaluation, tmp_path / "run", counter).tasks, counter.measured))
    (one,), (other,) = results[0][0], results[1][0]
    assert one.scores == other.scores and one.change == other.change
    assert one.lost.kinds == other.lost.kinds  # samples: the first examples
    assert [measured for _, measured in results] == [16, 0]


def test_rows_of_another_model_dtype_or_data_are_not_reused(done):
    database = sqlite3.connect(done.folder / "rows.sqlite")
    questions = [json.loads(q) for (q,) in database.execute("SELECT question FROM questions")]
    (addition,) = [q for q in questions if q["task"] == "demo/addition"]
    assert addition["model"] == done.result.model.fingerprint
    assert addition["dtype"] == "float32"


SPECIFIC = {"method": "scan", "settings": Settings(goal="specific")}


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"other_tasks": ("demo/sentence",)}, UnknownName, "demo/sentences"),
        ({"method": "css", "settings": Settings(rate=0.005)}, BadOption, "less than one head"),
        ({"settings": Settings(budget=10)}, BadOption, "one-shot needs 96 rows or more"),
        ({"method": "scan", "settings": Settings(budget=100)}, BadOption, "492 rows or more"),
        ({"method": "css", "settings": Settings(budget=5, rate=0.1)}, BadOption, "css needs 6"),
        (SPECIFIC | {"spare": ("demo/sentence",)}, UnknownName, "demo/sentences"),
        ({"spare": ("demo/sentences",)}, BadOption, "--spare is for --goal specific; got"),
        (
            {
                "method": "scan",
                "spare": ("demo/sentences",),
                "settings": Settings(goal="specific", budget=200),
            },
            BadOption,
            "--budget 200 is too small: 252 rows or more",
        ),
        (SPECIFIC, BadOption, "needs a task to leave alone, or several"),
        (SPECIFIC | {"method": "css"}, BadOption, "--goal specific is for --method scan"),
        (SPECIFIC | {"spare": ("demo/addition",)}, BadOption, "--spare demo/addition is the task"),
    ],
)
def test_mistakes_are_seen_before_the_model_is_loaded(monkeypatch, tmp_path, change, error, said):
    monkeypatch.setattr(ModelOptions, "engine", lambda self: pytest.fail("the model was loaded"))
    with pytest.raises(error, match=said):
        run_study(replace(SMALL, **change), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_spared_task_that_has_nothing_to_lose_is_refused(tmp_path):
    rows = [{"q": f"{n} apples, and?", "a": "never said"} for n in range(40)]
    spared = str(write_task_file(tmp_path, rows, "spared"))
    asked = replace(SMALL, **SPECIFIC, spare=(spared,), examples=None)
    with pytest.raises(BadOption, match="--spare spared: the model gets none of 20 examples right"):
        run_study(asked, tmp_path / "run")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"examples": 9999}, "between 1 and 512"),
        ({"task": "rhyming", "options": TaskOptions(outcome="logprob")}, "no gold answer"),
        ({"options": TaskOptions(chat_template=True)}, "--chat-template"),
    ],
)
def test_mistakes_in_the_data_are_seen_before_the_weights_are_read(
    monkeypatch, tmp_path, change, said
):
    monkeypatch.setattr(ModelOptions, "engine", lambda self: pytest.fail("the model was loaded"))
    with pytest.raises(BadOption, match=said):
        run_study(replace(SMALL, **change), tmp_path / "run")


def test_a_budget_buys_masks_or_examples():
    budget = Settings(budget=1000, rate=0.1)
    css = replace(SMALL, method="css", examples=20, settings=budget).sized(Heads((16,) * 6))
    assert css.settings.masks == 50 and css.settings.budget is None
    assert replace(SMALL, settings=budget).sized(Heads((16,) * 6)).examples == 10
    assert (
        replace(SMALL, method="scan", settings=budget).sized(Heads((16,) * 6)).settings.budget
        == 1000
    )


@pytest.mark.slow
def test_log_probabilities_find_and_the_metric_confirms(tmp_path):
    study = replace(
        SMALL,
        method="css",
        settings=Settings(masks=30, rate=0.05),
        options=TaskOptions(outcome="logprob"),
    )
    result = run_study(study, tmp_path / "run").result
    assert result.task.outcome == "logprob"
    assert result.intact.score < 0
    assert result.validation.task.intact.score > 0.9


def test_several_tasks_load_the_model_once_and_share_a_page(monkeypatch, tmp_path):
    loads = []
    engine = ModelOptions.engine
    monkeypatch.setattr(ModelOptions, "engine", lambda self: loads.append(1) or engine(self))
    css = replace(SMALL, method="css", settings=Settings(masks=10, rate=0.05), quick=True)
    names = "addition", "subtraction"
    studies = {f"demo-{name}": replace(css, task=f"demo/{name}") for name in names}
    sweep = run_studies(studies, tmp_path)
    assert len(loads) == 1
    assert sweep.report == tmp_path / "compare.html"
    assert (tmp_path / "demo-subtraction" / "report.html").is_file()
    assert "demo/subtraction" in sweep.report.read_text()
    first, second = (outcome.result for outcome in sweep.outcomes)
    assert first.task.name != second.task.name
    sweep.report.unlink()
    told = json.loads((tmp_path / "compare.json").read_text()) | {"command": "caploc demo"}
    (tmp_path / "compare.json").write_text(json.dumps(told))
    assert rewrite_report(tmp_path).is_file()
    assert json.loads((tmp_path / "compare.json").read_text())["command"] == "caploc demo"


def test_a_report_can_be_written_again(done):
    (done.folder / "report.html").unlink()
    assert rewrite_report(done.folder).read_text().count("L0H") > 10


def test_evaluation_pairs_the_same_examples(done, tmp_path):
    heads = tuple(caploc.Head.parse(name) for name in done.result.top)
    evaluation = Evaluation(MODEL, heads, ("demo/addition", "demo/prose"), limit=20)
    result = evaluate(evaluation, tmp_path)
    addition, prose = result.tasks
    known = done.result.validation.task
    assert addition.knocked_out == known.knocked_out
    drop = known.knocked_out.score - known.intact.score
    assert addition.change.outcome == pytest.approx(drop)
    assert prose.knocked_out.score > prose.intact.score  # perplexity
    assert prose.change.outcome < 0  # outcomes are better when higher


def test_lost_answers_are_counted_by_what_stands_in_their_place(done):
    lost = done.result.validation.task.lost
    answers = json.loads((done.folder / "answers.json").read_text())
    kinds = [each["kind"] for each in answers if "kind" in each]
    assert {kind: kinds.count(kind) for kind in kinds} == lost.kinds
    assert sum(lost.kinds.values()) == lost.count and lost.examples == len(answers)
    assert all(pair.status == "lost" for pair in lost.samples)


def test_a_run_draws_the_curve_over_its_heads_and_the_command_makes_the_same(done):
    written = (done.folder / "curve.json").read_text()
    rows = count_rows(done.folder)
    drawn = curve(done.folder, most=len(done.result.top))
    assert (done.folder / "curve.json").read_text() == written
    assert count_rows(done.folder) == rows == done.result.cost.rows
    assert drawn.heads == done.result.top
    assert (done.folder / "figures" / "curve.svg").stat().st_size > 1000
    points, held_out = drawn.curves["demo/addition"], done.result.validation.held_out
    assert (points[0].score, points[-1].score) == (held_out.intact, held_out.knocked_out)
    other = done.result.validation.other_tasks[0]
    assert drawn.curves["demo/sentences"][0] == other.intact
    assert drawn.curves["demo/sentences"][-1] == other.knocked_out


def test_only_the_default_search_has_a_goal():
    """Published methods name what their authors' rules name, whatever the goal."""
    for method, goal, seeks in (("scan", "set", True), ("scan", "heads", False),
                                ("css", "set", False), ("greedy", "set", False)):  # fmt: skip
        study = replace(SMALL, method=method, settings=Settings(goal=goal))
        assert study.seeks_set is seeks


@pytest.mark.parametrize(
    ("change", "twins"),
    [
        ({}, ("words/past_twin",)),
        ({"task": "words/past_twin"}, ("words/past",)),
        ({"task": "words/odd_one_out"}, ()),
        ({"twins": ("none",)}, ()),
        ({"twins": ("words/plural",)}, ("words/plural",)),
        ({"spare": ("words/upper", "words/past_twin")}, ()),
        ({"settings": Settings(goal="set"), "spare": ()}, ()),
    ],
)
def test_a_specific_set_must_break_the_twin_that_caploc_brings(change, twins):
    study = Study(
        model=ModelOptions(DEMO),
        task="words/past",
        settings=Settings(goal="specific"),
        spare=("words/upper",),
    )
    assert replace(study, **change).check(Heads((9,))).twins == twins
