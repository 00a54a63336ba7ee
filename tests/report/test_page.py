"""The page of one run, as a reader and as a browser see it."""

import base64
import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from shaping import shaped, shaped_answers

from caploc.errors import UserError
from caploc.report.page import write_report

HOSTILE = "</script><script>alert(1)</script>\"'><img src=x onerror=alert(2)>\x00\x1b\u202e"
LOADING = {"src", "srcset", "data", "poster", "background", "action", "formaction"}


def test_the_numbers_of_the_result_are_on_the_page(tmp_path, result, answers, read_page):
    page = read_page(write_report(tmp_path, shaped(result), shaped_answers(answers)))
    assert page.source.startswith("<!doctype html>")
    for text in ("−41.0 points", "−46.0 to −36.0", "99 % ± 1", "12 % ± 1", "95 % ± 3.6",
                 "−87.0 points", "98 %", "97 %", "10,712", "123,456", "33.1 s", "ab12", "0.31",
                 "47+38=", "demo/sentences", "lasso", result["command"], "2.9"):  # fmt: skip
        assert text in page.text.replace("\u00a0", " "), text
    assert "None" not in page.text


def test_how_sure_it_is_stands_on_the_page(tmp_path, sure, answers, read_page):
    page = read_page(write_report(tmp_path, shaped(sure), shaped_answers(answers)))
    text = page.text.replace("\u00a0", " ")
    for wanted in ("What to know", sure["search"]["notes"][0], "How sure is this?",
                   "Unstable", "left out: breaks another task too", "4 heads on 53",
                   "> 99 %", "100 % → 22 %", "cannot prove that effects add up",
                   "2.9 (2.1 to 4.4)"):  # fmt: skip
        assert wanted in text, wanted
    assert text.index("What to know") < text.index("Where the heads are")
    assert "None" not in text
    assert page.having("a", href="#sureness")


def test_a_page_without_a_search_or_heads_has_no_empty_section(
    tmp_path, result, answers, read_page
):
    result["top"] = []
    page = read_page(write_report(tmp_path, shaped(result), shaped_answers(answers)))
    assert "How sure" not in page.text and "What to know" not in page.text
    assert "No head is named, so these are the intact model's answers alone." in page.text
    assert page.having("table", **{"class": "plain answers intact-only"})


def test_heads_together_are_told_in_a_sentence_and_a_table_of_what_is_beyond_doubt(
    tmp_path, result, answers, read_page
):
    def write():
        return read_page(write_report(tmp_path, shaped(result), shaped_answers(answers))).text

    assert "rescues what another one breaks, was not measured" in write().replace("\n", " ")
    sentence = "Removing L0H1 alone costs 0.41; with L1H3 gone too it costs 0.02 in all."
    rescue = {
        "kind": "rescue",
        "first": ["L0H1"],
        "second": ["L1H3"],
        "effect": 0.39,
        "low": 0.3,
        "high": 0.48,
        "q": 0.001,
        "meaning": "rescue: its absence mends",
    }
    idle = rescue | {"second": ["L0H0"], "effect": 0.01, "q": 0.7, "meaning": "no interaction"}
    unknown = idle | {"effect": None, "low": None, "high": None, "q": None}
    told = {"schema": 1, "summary": [sentence], "interactions": [rescue, idle, unknown]}
    (tmp_path / "interactions.json").write_text(json.dumps(told))
    text = write().replace("\u00a0", " ")
    for wanted in (sentence, "1 of 3 contrasts are beyond doubt",
                   "+39.0 points", "+30.0 to +48.0", "rescue: its absence mends"):  # fmt: skip
        assert wanted in text, wanted
    assert "no interaction" not in text
    (tmp_path / "interactions.json").write_text(json.dumps(told | {"interactions": [{}]}))
    with pytest.raises(UserError, match="interactions"):
        write()


PARTS = [("search",), ("validation",), ("validation", "held_out"), ("validation", "controls")]


@pytest.mark.parametrize("path", PARTS, ids=".".join)
def test_any_of_the_new_fields_may_be_missing(tmp_path, sure, answers, read_page, path):
    part = sure
    for step in path:
        part = part[step]
    for key in part.keys() - {"task"}:
        value = part.pop(key)
        text = read_page(write_report(tmp_path, shaped(sure), shaped_answers(answers))).text
        assert "None" not in text and "nan" not in text.split()
        if not isinstance(value, list):
            part[key] = None
            page = read_page(write_report(tmp_path, shaped(sure), shaped_answers(answers)))
            assert page.text == text
        part[key] = value


def test_hostile_notes_stay_text(tmp_path, sure, answers, read_page):
    honest = read_page(write_report(tmp_path / "honest", shaped(sure), shaped_answers(answers)))
    sure["search"].update(notes=[HOSTILE], goal=HOSTILE)
    sure["validation"]["other_tasks"][0]["change"]["verdict"] = HOSTILE
    page = read_page(write_report(tmp_path / "hostile", shaped(sure), shaped_answers(answers)))
    assert page.scripts == honest.scripts and len(page.scripts) == 1
    assert not page.having("img")
    assert not any(name.startswith("on") for _, names in page.elements for name in names)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202e]", page.source)


def test_hostile_text_stays_text(tmp_path, result, answers, read_page):
    honest = read_page(write_report(tmp_path / "honest", shaped(result), shaped_answers(answers)))
    result["command"] = result["task"]["name"] = result["model"]["name"] = HOSTILE
    result["versions"] = result["method"] = {"name": HOSTILE, HOSTILE: HOSTILE}
    result["task"]["metric"] = result["fit"]["estimator"] = HOSTILE
    result["validation"]["other_tasks"][0]["name"] = HOSTILE
    for answer in answers:
        answer.update(dict.fromkeys(("prompt", "gold", "intact", "knocked_out"), HOSTILE))
    page = read_page(write_report(tmp_path / "hostile", shaped(result), shaped_answers(answers)))
    assert page.scripts == honest.scripts and len(page.scripts) == 1
    assert {tag for tag, _ in page.elements} <= {tag for tag, _ in honest.elements} | {"mark"}
    assert not any(name.startswith("on") for _, names in page.elements for name in names)
    assert "</script><script>alert(1)</script>\"'><img src=x onerror=alert(2)>␀␛" in page.text
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202e]", page.source)


def test_nothing_is_loaded_from_outside(tmp_path, result, answers, read_page):
    answers[0]["prompt"] = "see https://example.org/x.js"
    page = read_page(write_report(tmp_path, shaped(result), shaped_answers(answers)))
    assert not [names for _, names in page.elements if LOADING & set(names)]
    links = [names["href"] for _, names in page.elements if "href" in names]
    assert all(link.startswith(("#", "figures/", "data:,")) for link in links)
    assert "url(" not in page.source and "@import" not in page.source
    page_without_answers = read_page(write_report(tmp_path, shaped(result), []))
    assert not re.search(r"https?://|//[a-z]+\.", page_without_answers.source)


def test_only_the_pages_own_script_may_run(tmp_path, result, answers, read_page):
    page = read_page(write_report(tmp_path, shaped(result), shaped_answers(answers)))
    digest = base64.b64encode(hashlib.sha256(page.scripts[0].encode()).digest()).decode()
    (policy,) = page.having("meta", **{"http-equiv": "Content-Security-Policy"})
    assert f"script-src 'sha256-{digest}'" in policy["content"]
    assert "default-src 'none'" in policy["content"]


def test_without_script_everything_but_the_filter_is_there(tmp_path, result, answers, read_page):
    page = read_page(write_report(tmp_path, shaped(result), shaped_answers(answers)))
    assert "hidden" in page.having("form", id="filters")[0]
    assert [row["data-status"] for row in page.having("tr") if "data-status" in row] == [
        "lost", "unchanged",
    ]  # fmt: skip
    assert len([cell for cell in page.having("td") if "title" in cell]) == 8


def test_the_page_can_be_walked_by_heading_and_label(tmp_path, result, answers, read_page):
    page = read_page(write_report(tmp_path, shaped(result), shaped_answers(answers)))
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after - before <= 1 for before, after in zip(levels, levels[1:], strict=False))
    assert page.having("html", lang="en")
    identifiers = [names["id"] for _, names in page.elements if names.get("id")]
    assert len(identifiers) == len(set(identifiers))
    targets = [names["href"][1:] for names in page.having("a") if names["href"][0] == "#"]
    assert set(targets) <= set(identifiers)


@pytest.mark.parametrize("key", ["intact", "fit", "cost", "command", "versions"])
def test_a_missing_part_leaves_a_page(tmp_path, result, answers, read_page, key):
    result[key] = None
    page = read_page(write_report(tmp_path, shaped(result), shaped_answers(answers)))
    assert "None" not in re.sub("None of", "", page.text) and "nan" not in page.text.split()


def test_a_result_with_nothing_measured_shows_no_zero_percent(tmp_path, result, read_page):
    for head in result["heads"]:
        head.update(effect=None, low=None, high=None, selected=None)
    result.update(intact=None, validation={"task": {"name": "x"}}, top=[], fit=None)
    page = read_page(write_report(tmp_path, shaped(result), []))
    scores = [text for text in page.text.split() if text == "0"]
    assert not scores
    assert "No answers were recorded." in page.text and "No effects were measured" in page.text


def test_layers_without_heads_are_gaps(tmp_path, result, read_page):
    result["grid"] = {"layers": 3, "heads": [4, 4, 0], "group_sizes": [2, 2, 1]}
    page = read_page(write_report(tmp_path, shaped(result), []))
    assert page.having("td", **{"class": "gap", "colspan": "4"})
    assert "no attention heads" in page.text


@pytest.mark.slow
def test_a_large_run_stays_a_small_page(tmp_path, result, answers):
    result["grid"] = {"layers": 80, "heads": [64] * 80, "group_sizes": [8] * 80}
    result["heads"] = [
        {**result["heads"][0], "head": f"L{layer}H{index}", "layer": layer, "index": index}
        for layer in range(80)
        for index in range(64)
    ]
    long = {"prompt": "q " * 3000, "intact": "word " * 500, "knocked_out": "drow " * 500}
    many = [{**answers[1], **long, "example": number} for number in range(300)]
    page = write_report(tmp_path, shaped(result), shaped_answers(many))
    assert page.stat().st_size < 5_000_000


def test_the_same_result_gives_the_same_page(tmp_path, result, answers):
    first, second = (
        write_report(tmp_path, shaped(result), shaped_answers(answers)).read_bytes() for _ in "ab"
    )
    assert first == second


def test_commands_on_a_page_name_its_folder_as_a_shell_takes_it(
    tmp_path, result, answers, read_page
):
    page = read_page(write_report(tmp_path / "my runs", shaped(result), shaped_answers(answers)))
    assert f"caploc view '{tmp_path}/my runs'" in page.text and " DIR" not in page.text


def test_commands_and_the_report_load_neither_torch_nor_matplotlib():
    for name in ("cli", "report", "playground.view"):
        loaded = "bool({'torch', 'matplotlib'} & set(sys.modules))"
        check = f"import caploc.{name}, sys; sys.exit({loaded})"
        subprocess.run([sys.executable, "-c", check], check=True)


def test_the_five_questions_of_the_documentation_are_answered_where_it_says(
    tmp_path, sure, answers, read_page
):
    text = (Path(__file__).parents[2] / "docs" / "report.md").read_text(encoding="utf-8")
    places = re.findall(r"^\|.*\?\s*\|\s*\[`#([\w-]+)`\]", text, re.MULTILINE)
    page = read_page(write_report(tmp_path, shaped(sure), shaped_answers(answers)))
    found = {names["id"] for _, names in page.elements if names.get("id")}
    assert len(places) == 5 and set(places) <= found
    others = re.findall(r"^- \*\*.*\*\* \(`#([\w-]+)`\)", text, re.MULTILINE)
    assert others and set(others) <= found


def test_data_for_the_script_are_what_the_model_said_whatever_it_said(
    tmp_path, result, answers, read_page
):
    answers[0].update(prompt=HOSTILE, knocked_out=HOSTILE, intact="<!--<script>")
    page = read_page(write_report(tmp_path, shaped(result), shaped_answers(answers)))
    rows = {row[0]: row for row in json.loads(page.data["answers-data"])}
    assert rows["3"][2] == rows["3"][5][0] + "".join(rows["3"][5][1:])
    assert "".join(rows["3"][4]) == "<!--<script>"
    assert "<" not in page.data["answers-data"] and "<" not in page.data["heads-data"]


def test_the_curve_is_on_the_page_once_it_was_measured(tmp_path, result, answers, read_page):
    page = read_page(write_report(tmp_path, shaped(result), shaped_answers(answers)))
    assert f"caploc curve {tmp_path}" in page.text
    points = [{"score": 0.99, "stderr": 0.01}, {"score": 0.4, "stderr": 0.05}]
    curve = {"heads": ["L0H1"], "curves": {"demo/addition": points}}
    (tmp_path / "curve.json").write_text(json.dumps(curve))
    text = read_page(write_report(tmp_path, shaped(result), shaped_answers(answers))).text.replace(
        "\u00a0", " "
    )
    assert "40 % ± 5" in text and "were not measured" not in text


def test_next_steps_follow_from_the_verdict(tmp_path, sure, answers, read_page):
    def said():
        return read_page(write_report(tmp_path, shaped(sure), shaped_answers(answers))).text

    carried = said()
    assert f"caploc export {tmp_path} --to PATH" in carried
    assert "Effects do not add up: see which heads" in carried
    sure["validation"]["held_out"]["change"].update(low=-0.2, high=0.1)
    assert "Do not build on these heads yet" in said() and "caploc export" not in said()
    sure["top"] = []
    assert "No head stands out" in said()


@pytest.mark.parametrize(
    ("fresh", "said"),
    [(True, "are of other examples"), (False, "saw these too"), (None, "the ones to quote.")],
)
def test_the_check_is_of_other_examples_than_the_search_only_where_it_is(
    tmp_path, result, answers, read_page, fresh, said
):
    effect = {"effect": -0.5, "low": -0.7, "high": -0.3}
    heads = [{"head": head, "alone": effect, "within": effect} for head in ("L0H1", "L1H3")]
    result["validation"]["members"] = {"fresh": fresh, "examples": 11, "heads": heads}
    page = read_page(write_report(tmp_path, shaped(result), shaped_answers(answers)))
    assert said in " ".join(page.text.split())
    assert ("other examples" in page.text.partition("ones to quote")[2][:60]) == (fresh is True)
