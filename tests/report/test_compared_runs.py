"""Several runs side by side: compare.json, and the page."""

import copy
import json

import pytest
from typer.testing import CliRunner

from caploc.cli import app
from caploc.comparison import compare
from caploc.errors import UserError
from doubles import Page

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
def page(tmp_path, runs):
    """The page over runs of these results."""

    def shown(**results):
        compare([runs(**results)], tmp_path / "out")
        return Page(tmp_path / "out" / "compare.html")

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
    assert len(shown.having("a", href="./../runs/addition/report.html")) == 1
    columns = [word for word in text.split() if word in ("L0H1", "L1H0", "L1H3")]
    assert set(columns) == {"L0H1", "L1H0", "L1H3"}


def test_scores_are_those_of_held_out_examples(page, sure):
    assert "SPECIFIC, few examples, unstable L0H1 L1H3 100 % 22 % −78 (−86" in page(a=sure).text


def test_runs_of_several_models_share_no_table_of_heads(tmp_path, runs, result):
    compare([runs(small=result, large=other_model(result, seed=1))], tmp_path)
    page = Page(tmp_path / "compare.html")
    assert len(page.having("table", **{"class": "map matrix"})) == 2


def test_a_run_named_twice_counts_once_and_like_names_are_told_apart(tmp_path, runs, result):
    folder = runs(a=result)
    twin = tmp_path / "others" / "a"
    twin.mkdir(parents=True)
    (twin / "result.json").write_text(json.dumps(changed(result)))
    told = compare([folder, folder / "a", twin], tmp_path / "out")
    assert [run.name for run in told] == ["runs/a", "others/a"]


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


def test_hostile_names_stay_text(tmp_path, runs, result):
    one, other = changed(result), changed(result, HOSTILE)
    one["model"]["name"] = other["model"]["name"] = HOSTILE
    other["method"]["name"] = HOSTILE
    third = changed(result, HOSTILE, model={"name": "b" + HOSTILE, "fingerprint": HOSTILE})
    folder = runs(**{"javascript:alert(1)": one, "b": other, "c": third, "d": changed(other)})
    compare([folder], tmp_path / "out", command=HOSTILE)
    page = Page(tmp_path / "out" / "compare.html")
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
    told = json.loads((tmp_path / where).with_suffix(".json").read_text())["runs"]
    assert [(run["name"], run["heads"]) for run in told] == [
        ("addition", ["L0H1", "L1H3"]), ("code", ["L0H1", "L1H0"]),
    ]  # fmt: skip
