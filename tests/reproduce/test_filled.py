"""What exhibits say of planted facts: which figures stand where, and the notes beside them."""

import json

import pytest
from labs import SMALL, planted, written

from caploc.components import Head
from caploc.report import exhibits as writing
from caploc.report.exhibits import Value
from caploc.reproduce import (
    EXHIBITS,
    OF_LEADER,
    analyses,
    exhibits,
    limited,
    selection,
)
from caploc.reproduce.laboratory import Searched
from caploc.reproduce.preset import Benchmark, Preset, PresetModel, read_preset
from worlds import DEMO

LLAMA = selection.LEADER


def papers(**changes) -> Preset:
    """The paper's labels on demo models: its figures stand beside planted ones."""
    content = written(top=5, **changes)
    names = ("GSM8K", "MBPP", "HellaSwag", "BoolQ", "ARC-C", "MMLU")
    groups = ("math", "code", *["general"] * 4)
    tasks = ("demo/addition", "demo/sorting", *["demo/sentences"] * 4)
    content["benchmark"] = [
        {"label": n, "task": t, "group": g, "localize": g != "general", "choice": n == "MMLU"}
        for n, t, g in zip(names, tasks, groups, strict=True)
    ]
    content["model"] = [{"label": LLAMA, "name": DEMO}]
    return Preset.model_validate(content)


RANKED = {"GSM8K": [f"L1H{n}" for n in range(9)], "MBPP": [f"L2H{n}" for n in range(9)]}


def column(exhibit, name):
    return [row[exhibit.columns.index(name)] for row in exhibit.rows]


def test_the_papers_figures_stand_beside_ours_where_they_are_of_the_same():
    lab = planted(rankings=RANKED, preset=papers())
    math, code = column(exhibits.table2(lab), "task drop")
    assert math.published == pytest.approx(0.7847 - 0.3010)
    assert code.published == pytest.approx(0.5840 - 0.4240)
    (rest, _) = column(exhibits.table2(lab), "general drop")
    assert rest.published == pytest.approx(0.7166 - 0.7058, abs=1e-4)


def test_the_papers_general_score_is_none_of_other_benchmarks():
    lab = planted(
        rankings=RANKED, preset=papers().narrowed(["GSM8K", "HellaSwag", "MMLU"], [], None)
    )
    curve = exhibits.fig2(lab)
    assert column(curve, "GSM8K")[3].published == 0.4466
    assert column(curve, "general")[3].published is None
    assert column(curve, "general")[5].published == pytest.approx((0.7794 + 0.6639) / 2)


def test_the_papers_figures_are_none_of_other_numbers_of_heads():
    lab = planted(rankings=RANKED, preset=papers().model_copy(update={"top": 4}))
    assert column(exhibits.table2(lab), "task drop")[1].published is None


def test_the_first_table_has_the_papers_sizes_beside_ours():
    preset = read_preset(str(SMALL)).narrowed([], [f"Qwen-2.5-3B={DEMO}"], None)
    exhibit = exhibits.table1(planted(preset=preset))
    (layers,), (heads,) = column(exhibit, "layers"), column(exhibit, "heads")
    assert (layers.published, heads.published) == (32, 512)


def printed(label: str, benchmark: str, heads: str) -> str:
    model = PresetModel(label=label, name=DEMO)
    found = [Head.parse(name) for name in heads.split()]
    return exhibits.printed_heads(
        model, "CSS", Benchmark(label=benchmark, task="t", group="g"), found
    )


def test_the_ninth_table_counts_common_heads_but_none_of_another_model():
    assert printed("Llama-3.2-3B", "MBPP", "L4H6 L0H16 L0H1").endswith("L0H16 (2 in common)")
    assert printed("Llama-3.2-3B", "W-Bio", "L12H22 L9H9").endswith("(another model's)")
    assert printed("demo", "MBPP", "L4H6") == "–"


def test_the_ninth_table_marks_groups_and_idle_heads():
    lab = planted(rankings={"Add": ["L0H0", "L0H1"], "Sort": ["L1H0", "L3H0"]}, chosen=1)
    first, second, _ = column(exhibits.table9(lab), "first 2 heads")
    assert (first, second) == ("L0H0† L0H1†‡", "L1H0 L3H0‡")


def two_models(**changes) -> Preset:
    models = [{"label": label, "name": DEMO} for label in ("small", "large")]
    return Preset.model_validate(written(model=models, lead="large", **changes))


@pytest.mark.parametrize("name", sorted(OF_LEADER))
def test_an_exhibit_of_one_model_says_which(name):
    lab = planted(preset=two_models())
    exhibit = EXHIBITS[name](lab)
    if exhibit.rows and name != "choice":
        assert "On large only" in " ".join(exhibit.notes)
    assert "small" not in str(exhibit.rows)


def test_the_ninth_table_has_every_method_of_the_leading_model_only():
    searches = [{"label": label, "method": "css", "rate": 0.05} for label in ("CSB", "CSS")]
    exhibit = exhibits.table9(planted(preset=two_models(search=searches)))
    methods = {model: set() for model in ("small", "large")}
    for model, task, method, *_ in exhibit.rows:
        methods[model] |= {method} if task != "universal" else set()
    assert methods == {"small": {"CSS"}, "large": {"CSB", "CSS"}}
    assert "All methods on large only, CSS on every model." in exhibit.notes


def subjects(**changes) -> Preset:
    content = written(**changes)
    for benchmark in content["benchmark"][:2]:
        benchmark |= {"group": "knowledge", "choice": True}
    return Preset.model_validate(content)


def test_without_a_shared_head_the_third_figure_has_no_picture():
    exhibit = exhibits.fig3(planted(preset=subjects()))
    assert exhibit.draw is None and not exhibit.rows
    told = "No head is among the first 2 of all of Add, Sort by more than chance."
    assert exhibit.notes[0] == told


def test_without_a_subject_the_fourth_figure_has_no_picture():
    exhibit = exhibits.fig4(planted())
    assert exhibit.draw is None and exhibit.notes[0] == "There is no subject of knowledge."


def test_bars_are_named_by_the_model_only_where_there_are_several():
    shared = {"Add": ["L0H5", "L1H0"], "Sort": ["L0H5", "L2H0"]}
    exhibit = exhibits.fig3(planted(rankings=shared, preset=subjects(), chance=0.25))
    assert column(exhibit, "heads knocked out") == ["intact", "L0H5", "guessing"]
    assert column(exhibit, "Add")[-1] == Value(0.25)
    models = [{"label": label, "name": DEMO} for label in ("a", "b")]
    exhibit = exhibits.fig3(planted(rankings=shared, preset=subjects(model=models)))
    assert column(exhibit, "heads knocked out")[:4] == [
        "a, intact",
        "a, L0H5",
        "b, intact",
        "b, L0H5",
    ]
    assert column(exhibit, "Add")[-1] == Value(None)
    drawn = json.dumps(exhibit.draw())
    assert "Add, a" in drawn and "Add, b" in drawn and "its first head" in drawn


def test_a_capability_has_one_colour_in_every_figure_and_no_other_has_it():
    preset = read_preset("paper")
    drawn = exhibits.palette(preset)
    own = {benchmark.kin for benchmark in preset.capabilities}
    assert (
        drawn["GSM8K"] == drawn["GSM8K heads"] == drawn["Arith"] and drawn["code"] == drawn["MBPP"]
    )
    kinds = [drawn[f"{b.label} heads"] for b in exhibits.leading(preset.capabilities)]
    subjects = [drawn[f"{b.label} heads"] for b in preset.subjects]
    assert len(own) == len(set(kinds)) and len(set(kinds + subjects)) == len(kinds + subjects)
    assert not {drawn["intact"], drawn["general"]} & set(kinds + subjects)
    lab = planted(rankings=RANKED, preset=papers())
    for figure in (exhibits.fig1(lab), exhibits.fig2(lab)):
        scale = figure.draw()["layer"][-2 if figure.name == "fig1" else 0]["encoding"]["color"][
            "scale"
        ]
        colours = dict(zip(scale["domain"], scale["range"], strict=True))
        own = exhibits.palette(lab.preset)
        assert colours == {name: own[name] for name in colours}


def test_a_model_that_cannot_do_a_task_is_asked_for_no_heads_of_it(monkeypatch):
    lab = planted(preset=Preset.model_validate(written(floor=0.9)))
    table = exhibits.table2(lab)
    assert not table.rows
    assert table.notes[-1] == (
        "No heads were looked for where demo scores below 0.9 or no better than guessing: "
        "Add 0.800 ± 0.010, Sort 0.800 ± 0.010."
    )
    searched = []
    monkeypatch.setattr(analyses, "named_heads", lambda *asked: searched.append(asked) or [])
    content = written(floor=0.9)
    content["benchmark"][0]["others"] = {"another task": {"task": "demo/subtraction"}}
    lab = planted(preset=Preset.model_validate(content))
    assert [row[-1].number for row in analyses.scale(lab).rows] == [None, None]
    told = analyses.rules(lab).rows
    assert [row[4].number for row in told] == [None, None] and not searched
    lab = planted(preset=Preset.model_validate(written(floor=0.5)))
    assert len(exhibits.table2(lab).rows) == 2
    guessed = planted(preset=Preset.model_validate(written(floor=0.5)), chance=0.79)
    assert not exhibits.table2(guessed).rows


def test_what_is_not_the_papers_is_said_where_its_figures_stand():
    preset = papers()
    benchmarks = [b.model_copy(update={"differs": "in words."}) for b in preset.benchmarks[:1]]
    preset = preset.model_copy(update={"benchmarks": (*benchmarks, *preset.benchmarks[1:])})
    notes = exhibits.table2(planted(rankings=RANKED, preset=preset)).notes
    assert notes[-1] == "GSM8K is not quite the paper's: in words."
    assert "not quite" not in " ".join(exhibits.table2(planted()).notes)


def test_the_eighth_table_sets_questions_of_knowledge_apart():
    shared = {"Add": ["L0H5", "L1H0"], "Sort": ["L0H5", "L2H0"]}
    table = exhibits.table8(planted(rankings=shared, preset=subjects()))
    assert table.groups == (("", 2), ("questions of knowledge", 3), ("others", 2))
    assert table.columns == ("model", "head", "Add", "Sort", "mean", "Gen", "mean")
    text = writing.latex_environment(table)
    assert r"\multicolumn{3}{c}{questions of knowledge} & \multicolumn{2}{c}{others}" in text
    assert r"\cmidrule(lr){3-5}\cmidrule(lr){6-7}" in text


def test_strength_over_three_models_is_drawn_and_its_change_has_an_interval():
    models = [{"label": label, "name": DEMO} for label in "abc"]
    exhibit = analyses.scale(
        planted({"Add": {"L1H0": 0.4}}, preset=Preset.model_validate(written(model=models)))
    )
    (told,) = [note for note in exhibit.notes if note.startswith("Add: ")]
    assert "from a to c it changes by +0.000 (95 % interval over examples -0.0" in told
    assert [row[0] for row in exhibit.rows[-3:]] == [exhibits.SHARED] * 3
    assert exhibit.rows[-1][-1].number == pytest.approx(0.25)  # of 0.5 and 0
    assert exhibit.draw() and analyses.scale(planted()).draw is None


def test_a_task_scored_by_another_rule_stands_beside_itself():
    content = written()
    content["benchmark"][0]["others"] = {"another task": {"task": "demo/subtraction"}}
    exhibit = analyses.rules(planted({"Add": {"L1H0": 0.4}}, preset=Preset.model_validate(content)))
    assert [row[:3] for row in exhibit.rows] == [
        ("demo", "Add", "as above"),
        ("demo", "Add", "another task"),
    ]
    assert exhibit.rows[0][-2].number == pytest.approx(0.4)


def test_a_radar_of_two_axes_is_not_drawn():
    lab = planted()
    assert exhibits.fig1(lab).draw is not None
    lab.preset = lab.preset.narrowed(["Add", "Gen"], [], None)
    exhibit = exhibits.fig1(lab)
    assert exhibit.draw is None and exhibit.notes[0] == "Too few benchmarks for a picture."


def test_the_radar_has_no_axis_for_what_the_model_cannot_do(monkeypatch):
    whole = exhibits.fig1(planted())
    monkeypatch.setattr(exhibits, "FEWEST_AXES", 2)
    others = lambda lab, model, some: [each for each in some if each.label != "Gen"]  # noqa: E731
    monkeypatch.setattr(exhibits, "able", others)
    exhibit = exhibits.fig1(planted())
    assert "Gen" in json.dumps(whole.draw()) and "Gen" not in json.dumps(exhibit.draw())
    assert exhibit.rows == whole.rows
    assert "Benchmarks that demo cannot do intact are in the table alone." in exhibit.notes[0]


def test_answers_of_a_model_stay_in_their_cell():
    exhibit = analyses.failures_exhibit(planted())
    for row in writing.markdown_page(exhibit).splitlines()[4:6]:
        assert row.replace(r"\|", "").count("|") == len(exhibit.columns) + 1
        assert r"“a \| b \`c\` \<b\>xxx" in row and "…”" in row


def test_a_score_no_better_than_chance_has_no_strength():
    rows = analyses.scale(planted({"Add": {"L1H0": 0.5}})).rows
    assert [row[-1].number for row in rows] == [pytest.approx(0.625), pytest.approx(0.0)]
    rows = analyses.scale(planted({"Add": {"L1H0": 0.5}}, chance=0.79)).rows
    assert [row[-1].number for row in rows] == [None, None]


def test_three_models_have_a_trend():
    models = [{"label": label, "name": DEMO} for label in "abc"]
    preset = Preset.model_validate(written(model=models))
    notes = analyses.scale(planted(preset=preset)).notes
    assert any(note.startswith("Add: ") for note in notes)
    assert not any("takes 3 models" in note for note in notes)


def test_the_cost_of_a_search_is_told_apart_from_the_setting_it_keeps():
    model = PresetModel(label=LLAMA, name=DEMO)
    kept = Searched((), 5, 1000, 100_000, {"settings": [{}], "masks": 300})
    assert exhibits.spent(model, "CSS", [kept]) == tuple(
        Value(n, digits=0) for n in (300, 1000, 100_000)
    )
    plain = Searched((), 5, 5110, 511_000, {})
    assert exhibits.spent(model, "Greedy", [plain])[0] == Value(5110, None, 5120, 0)


def test_a_limit_is_noted_where_there_are_scores():
    preset = papers(limit=50)
    lab = planted(rankings=RANKED, preset=preset)
    notes = limited(exhibits.table2(lab), preset).notes
    assert notes[-1] == "Scores are on the first 50 examples of every task, the paper's on all."
    own = Preset.model_validate(written(limit=50))
    notes = limited(exhibits.table2(planted(preset=own)), own).notes
    assert notes[-1] == "Scores are on the first 50 examples of every task."
    assert limited(exhibits.table1(lab), preset) == exhibits.table1(lab)


def test_universal_tables_note_what_was_not_found():
    content = written(model=[{"label": LLAMA, "name": DEMO}])
    lab = planted(preset=Preset.model_validate(content))
    notes = exhibits.table5(lab).notes
    assert f"No head of {LLAMA} is universal." in notes
    assert f"{LLAMA}: the paper also names L0H31 L1H29 L1H31." in notes


@pytest.mark.parametrize("left", [b.label for b in read_preset(str(SMALL)).localized])
def test_every_exhibit_can_be_filled_for_any_benchmark_alone(left):
    preset = read_preset(str(SMALL)).narrowed([left, "Sentences"], [], 5)
    for name, fill in EXHIBITS.items():
        exhibit = fill(planted(preset=preset, rankings={left: ["L1H0"]}))
        assert exhibit.name == name
        assert all(len(row) == len(exhibit.columns) for row in exhibit.rows)
