"""Several runs side by side: what compare.json says, and the page."""

import copy
import json
import math

import pytest
from scipy import stats
from typer.testing import CliRunner

from caploc.cli import app
from caploc.comparison import compare
from caploc.errors import UserError

HOSTILE = "</script><script>alert(1)</script>\"'><img src=x onerror=alert(2)>\x00\u202e"


@pytest.fixture
def runs(tmp_path):
    """Write results as finished runs; the folder of them."""

    def write(**results):
        for name, result in results.items():
            folder = tmp_path / "runs" / name
            folder.mkdir(parents=True)
            (folder / "result.json").write_text(json.dumps(result))
        return tmp_path / "runs"

    return write


@pytest.fixture
def page(tmp_path, runs, read_page):
    """The page over runs of these results."""

    def shown(**results):
        compare([runs(**results)], tmp_path / "out")
        return read_page(tmp_path / "out" / "compare.html")

    return shown


def changed(result, task="demo/rhymes", top=("L0H1", "L1H0"), **fields):
    """The same result with another task, other heads, or other parts."""
    other = copy.deepcopy(result)
    other["task"]["name"], other["top"] = task, list(top)
    return other | fields


def other_model(result, **fields):
    """The same result in a model of one layer more."""
    return changed(
        result,
        "demo/addition",
        model={"name": "large", "fingerprint": "cd34"},
        grid={"layers": 3, "heads": [4, 4, 4], "group_sizes": [2, 2, 2]},
        **fields,
    )


def test_each_run_is_a_row_with_its_link(page, result):
    shown = page(addition=result, rhymes=changed(result))
    text = shown.text.replace("\u00a0", " ")
    for wanted in ("demo/addition", "demo/rhymes", "99 %", "12 %", "L0H1 L1H3", "10,712",
                   "NOT CHECKED"):  # fmt: skip
        assert wanted in text, wanted
    assert len(shown.having("a", href="./../runs/addition/report.html")) == 2
    columns = [word for word in text.split() if word in ("L0H1", "L1H0", "L1H3")]
    assert set(columns) == {"L0H1", "L1H0", "L1H3"}


def test_scores_are_those_of_held_out_examples(page, sure):
    assert "SPECIFIC, few examples, unstable L0H1 L1H3 100 % 22 % −78 (−86" in page(a=sure).text


def test_heads_that_tasks_share_stand_beside_exact_chance(tmp_path, runs, result):
    told = compare([runs(a=result, b=changed(result))], tmp_path)
    (model,) = told["models"]
    assert model["shared"][0]["heads"] == {"L0H1": ["demo/addition", "demo/rhymes"]}
    (pair,) = model["overlaps"]
    assert pair["heads"] == ["L0H1"]
    # Two of eight heads each: 2 * 2 / 8 in common, and none in C(6, 2) of C(8, 2) cases.
    assert pair["head_chance"]["expected"] == pytest.approx(0.5)
    assert pair["head_chance"]["p"] == pytest.approx(1 - math.comb(6, 2) / math.comb(8, 2))
    assert told["methods"] == told["across"] == []
    assert model["matrix"]["heads"] == ["L0H1", "L1H0", "L1H3"]
    assert model["matrix"]["rows"][0]["effects"] == [-0.41, 0.02, -0.19]


def test_headline_and_tables_hold_shared_heads_against_the_same_chance(
    tmp_path, runs, result, read_page
):
    """Heads of one layer: by layers they must meet; from the whole grid it would be a surprise."""
    same = {name: changed(result, f"demo/{name}", ["L0H1", "L0H3"]) for name in "abc"}
    told = compare([runs(**same)], tmp_path)
    (model,) = told["models"]
    for pair in model["overlaps"]:
        chance = pair["head_chance"]
        assert chance["p"] < chance["p_in_layers"] == pytest.approx(1 / 6)
        assert chance["p_of_pairs"] == pytest.approx(1 / 2)  # of three pairs
    text = read_page(tmp_path / "compare.html").text.replace("\u00a0", " ")
    first = model["shared"][0]["chance"]
    assert f"2 or more 2 {first['expected_in_layers']:.2g}" in text
    assert text.count("0.50") >= 3 and "corrected for the number of pairs (Holm)" in text


def test_methods_are_held_against_each_other(tmp_path, runs, result, read_page):
    greedy = changed(result, "demo/addition", ["L0H1", "L0H0"])
    greedy["method"] = {"name": "greedy"}
    greedy["validation"]["task"]["knocked_out"]["score"] = 0.05
    for head in greedy["heads"][:4]:
        head["effect"] = -head["effect"]
    told = compare([runs(a=result, b=greedy)], tmp_path)
    (question,) = told["methods"]
    (pair,) = question["pairs"]
    assert (pair["first"], pair["second"], pair["heads"], pair["of"]) == ("a", "b", ["L0H1"], 2)
    first, second = ([h["effect"] for h in r["heads"][:5]] for r in (result, greedy))
    assert pair["rank_correlation"] == pytest.approx(stats.spearmanr(first, second).statistic)
    assert [run["damage"] for run in told["runs"]] == pytest.approx([0.87, 0.94])
    text = read_page(tmp_path / "compare.html").text.replace("\u00a0", " ")
    in_layers = pair["chance"]["expected_in_layers"]
    assert f"a, b 1 of 2: L0H1 {in_layers:.2f}" in text


def test_models_are_compared_by_depth_and_share_no_matrix(tmp_path, runs, result, read_page):
    told = compare([runs(small=result, large=other_model(result, seed=1))], tmp_path)
    (task,) = told["across"]
    depths = {each["run"]: each["depths"] for each in task["models"]}
    assert depths == {"small": {"L0H1": 0, "L1H3": 1}, "large": {"L0H1": 0, "L1H0": 0.5}}
    assert [each["share"] for each in task["models"]] == [2 / 12, 2 / 8]
    page = read_page(tmp_path / "compare.html")
    assert len(page.having("table", **{"class": "map matrix"})) == 2
    assert "demo/addition, model by model" in page.text and "3 x 4" in page.text


def test_universal_heads_are_those_that_were_tried(tmp_path, runs, sure, read_page):
    folder = runs(a=sure, b=changed(sure))
    tried = tmp_path / "tried"
    tried.mkdir()
    (tried / "universal.json").write_text(json.dumps({"model": "demo", "universal": ["L0H1"]}))
    told = compare([folder, tried], tmp_path / "out")
    assert told["models"][0]["universal"] == [
        {"head": "L1H0", "found_by": ["a", "b"]}, {"head": "L0H1", "found_by": ["tried"]},
    ]  # fmt: skip
    text = read_page(tmp_path / "out" / "compare.html").text
    assert "L0H1 demo/addition and demo/rhymes tried" in text


def test_a_run_named_twice_counts_once_and_like_names_are_told_apart(tmp_path, runs, result):
    folder = runs(a=result)
    twin = tmp_path / "others" / "a"
    twin.mkdir(parents=True)
    (twin / "result.json").write_text(json.dumps(changed(result)))
    told = compare([folder, folder / "a", twin], tmp_path / "out")
    assert [run["name"] for run in told["runs"]] == ["runs/a", "others/a"]


def test_what_is_not_finished_is_refused_in_a_sentence(tmp_path, runs, result):
    unfinished = tmp_path / "unfinished"
    unfinished.mkdir()
    for folders in ([unfinished], [runs(a=result), unfinished], [tmp_path / "nowhere"]):
        with pytest.raises(UserError, match=r"(no result.json|no folder).*; name the folder of"):
            compare(folders, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_missing_parts_are_said_and_not_counted_as_zero(page, result):
    nothing = {"task": {"name": "demo/addition"}, "other_tasks": []}
    bare = {"validation": nothing, "intact": {}, "cost": {}, "heads": []}
    text = page(a=changed(result, top=[], **bare), b=result, c=other_model(result)).text
    assert "NOT FOUND none – –" in text
    assert "None" not in text and "nan" not in text.split()


def test_hostile_names_stay_text(tmp_path, runs, result, read_page):
    one, other = changed(result), changed(result, HOSTILE)
    one["model"]["name"] = other["model"]["name"] = HOSTILE
    other["method"]["name"] = HOSTILE
    third = changed(result, HOSTILE, model={"name": "b" + HOSTILE, "fingerprint": HOSTILE})
    folder = runs(**{"javascript:alert(1)": one, "b": other, "c": third, "d": changed(other)})
    compare([folder], tmp_path / "out", command=HOSTILE)
    page = read_page(tmp_path / "out" / "compare.html")
    assert len(page.scripts) == 1 and "alert" not in page.scripts[0]
    assert not page.having("img") and "\u202e" not in page.source
    assert not any(name.startswith("on") for _, names in page.elements for name in names)
    links = [names["href"] for names in page.having("a")]
    assert all(link.startswith(("#", "./../runs/")) for link in links)


def test_a_comparison_without_a_folder_goes_into_one_named_after_its_runs(
    tmp_path, runs, result, monkeypatch
):
    runs(addition=result, code=changed(result))
    monkeypatch.chdir(tmp_path)
    told = CliRunner().invoke(app, ["view", "runs/addition", "runs/code"])
    assert told.exit_code == 0, told.output
    where = "runs/compare-addition-code/compare.html"
    assert told.output.endswith(f"Report: {where}\n")
    assert (tmp_path / where).is_file()
    assert json.loads((tmp_path / where).with_suffix(".json").read_text())["runs"]
