"""The page of one run, as a reader and as a browser see it."""

import base64
import hashlib
import json
import re
import subprocess
import sys

import pytest
from shaping import shaped

from caploc.errors import UserError
from caploc.report.card import cells
from caploc.report.page import rewrite_page, write_report
from caploc.verdict import make_card
from doubles import Page

HOSTILE = "</script><script>alert(1)</script>\"'><img src=x onerror=alert(2)>\x00\x1b\u202e"
LOADING = {"src", "srcset", "data", "poster", "background", "action", "formaction"}


def test_the_numbers_of_the_result_are_on_the_page(tmp_path, sure):
    page = Page(write_report(tmp_path, shaped(sure)))
    assert page.source.startswith("<!doctype html>")
    text = page.text.replace("\u00a0", " ")
    for wanted in (sure["search"]["notes"][0], "100 % 22 % −78 (−86 to −70) lost", "What to know",
                   "98 % 97 % −1 (−4 to +2) open", "95 % −5 control", "−41 (−46 to −36)",
                   "10712", "ab12", "demo/sentences", sure["command"], "2.9", "47+38=",
                   "lost now: 1 of 2 answers: other answer 1."):  # fmt: skip
        assert wanted in text, wanted
    assert "None" not in text
    for row in make_card(shaped(sure)).rows:
        assert all(" ".join(cell.split()) in page.text for cell in cells(row))


def test_the_verdict_and_its_table_come_first(tmp_path, sure):
    page = Page(write_report(tmp_path, shaped(sure)))
    places = [page.text.index(word) for word in ("SPECIFIC", "control", "What was lost", "Where")]
    assert places == sorted(places)
    folded = page.text.index("Run it again")
    assert places[-1] < folded and len(page.having("details")) >= 2


ACTION = {
    "head": "L0H1", "prompt": "1+1=2\n47+38=", "of": 258, "rank": 3, "following": "8",
    "attends": [{"token": "47", "place": 4, "share": 0.62},
                {"token": "\n", "place": 3, "share": 0.2}],
    "promotes": ["9", "7", "8", HOSTILE, "x"],
}  # fmt: skip


def test_what_the_strongest_head_does_stands_below_what_was_lost(tmp_path, sure):
    sure["validation"]["action"] = ACTION
    page = Page(write_report(tmp_path, shaped(sure)))
    place = page.text.index("What L0H1 does there")
    assert page.text.index("What was lost") < place < page.text.index("Where the heads are")
    for wanted in ("47 token 5 62 %", "↵ token 4 20 %", ", is number 3 of 258."):
        assert wanted in " ".join(page.text[place:].split()), wanted
    assert len(page.having("script")) == 1


def test_a_page_without_heads_shows_intact_scores_and_no_loss(tmp_path, result):
    result["top"] = []
    page = Page(write_report(tmp_path, shaped(result)))
    assert "NOT FOUND" in page.text and "What to know" not in page.text
    assert "99 % –" in page.text and "were lost" not in page.text


def test_heads_together_are_told_with_what_is_beyond_doubt(tmp_path, result):
    def write():
        return Page(write_report(tmp_path, shaped(result))).text

    assert "act together" not in write()
    rescue = {"kind": "rescue", "first": ["L0H1"], "second": ["L1H3"], "effect": 0.39, "low": 0.3,
              "high": 0.48, "q": 0.001, "meaning": "rescue: its absence mends"}  # fmt: skip
    idle = rescue | {"second": ["L0H0"], "effect": 0.01, "q": 0.7, "meaning": "no interaction"}
    unknown = idle | {"effect": None, "low": None, "high": None, "q": None}
    told = {"schema": 1, "interactions": [rescue, idle, unknown]}
    (tmp_path / "interactions.json").write_text(json.dumps(told))
    for wanted in ("+39 (+30 to +48)", "rescue: its absence mends"):
        assert wanted in write().replace("\u00a0", " "), wanted
    assert "no interaction" not in write()
    (tmp_path / "interactions.json").write_text(json.dumps(told | {"interactions": [{}]}))
    with pytest.raises(UserError, match="interactions"):
        write()


def test_every_set_that_was_tried_stands_with_its_costs(tmp_path, result):
    effect = {"effect": -0.25, "low": -0.375, "high": -0.125}
    other = {"task": "demo/sentences", "effect": effect | {"effect": -0.1}}
    one = {"heads": ["L0H1"], "damage": effect, "spared": [other], "within": True}
    result["validation"]["frontier"] = {"price": 0.03, "sets": [one]}
    page = Page(write_report(tmp_path, shaped(result)))
    assert "−25 (−38 to −12) demo/sentences −10" in page.text
    assert "spares the others" in page.text


PARTS = [(), ("search",), ("validation",), ("validation", "held_out"), ("validation", "controls")]
NEEDED = {
    "schema", "model", "task", "method", "grid", "estimand", "heads", "top", "validation",
}  # fmt: skip


@pytest.mark.parametrize("path", PARTS, ids=".".join)
def test_what_a_result_need_not_have_may_be_missing(tmp_path, sure, path):
    part = sure
    for step in path:
        part = part[step]
    for key in part.keys() - NEEDED:
        value = part.pop(key)
        text = Page(write_report(tmp_path, shaped(sure))).text
        assert "None" not in text and "nan" not in text.split()
        if not isinstance(value, list):
            part[key] = None
            page = Page(write_report(tmp_path, shaped(sure)))
            assert page.text == text
        part[key] = value


def test_hostile_text_stays_text(tmp_path, sure):
    honest = Page(write_report(tmp_path / "honest", shaped(sure)))
    sure["command"] = sure["task"]["name"] = sure["model"]["name"] = HOSTILE
    sure["versions"] = sure["method"] = {"name": HOSTILE, HOSTILE: HOSTILE}
    sure["task"]["metric"] = sure["fit"]["estimator"] = HOSTILE
    sure["validation"]["other_tasks"][0]["name"] = HOSTILE
    sure["search"].update(notes=[HOSTILE], goal=HOSTILE)
    texts = dict.fromkeys(("prompt", "gold", "intact", "knocked_out", "kind"), HOSTILE)
    sure["validation"]["task"]["lost"] |= {"kinds": {HOSTILE: 1}, "samples": [texts]}
    page = Page(write_report(tmp_path / "hostile", shaped(sure)))
    assert page.scripts == honest.scripts and len(page.scripts) == 1
    assert {tag for tag, _ in page.elements} <= {tag for tag, _ in honest.elements} | {"mark"}
    assert not any(name.startswith("on") for _, names in page.elements for name in names)
    assert "</script><script>alert(1)</script>\"'><img src=x onerror=alert(2)>␀␛" in page.text
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202e]", page.source)


def test_nothing_is_loaded_from_outside(tmp_path, result):
    (lost,) = result["validation"]["task"]["lost"]["samples"]
    lost["prompt"] = "see https://example.org/x.js"
    page = Page(write_report(tmp_path, shaped(result)))
    assert not [names for _, names in page.elements if LOADING & set(names)]
    links = [names["href"] for _, names in page.elements if "href" in names]
    assert all(link.startswith(("#", "figures/", "data:,")) for link in links)
    assert "url(" not in page.source and "@import" not in page.source
    lost["prompt"] = "see"
    page = Page(write_report(tmp_path, shaped(result)))
    assert not re.search(r"https?://|//[a-z]+\.", page.source)


def test_only_the_pages_own_script_may_run(tmp_path, result):
    page = Page(write_report(tmp_path, shaped(result)))
    digest = base64.b64encode(hashlib.sha256(page.scripts[0].encode()).digest()).decode()
    (policy,) = page.having("meta", **{"http-equiv": "Content-Security-Policy"})
    assert f"script-src 'sha256-{digest}'" in policy["content"]
    assert "default-src 'none'" in policy["content"]


def test_the_page_can_be_walked_by_heading_and_label(tmp_path, result):
    page = Page(write_report(tmp_path, shaped(result)))
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after - before <= 1 for before, after in zip(levels, levels[1:], strict=False))
    assert page.having("html", lang="en")
    identifiers = [names["id"] for _, names in page.elements if names.get("id")]
    assert len(identifiers) == len(set(identifiers))
    targets = [names["href"][1:] for names in page.having("a") if names["href"][0] == "#"]
    assert set(targets) <= set(identifiers)


def test_a_result_with_nothing_measured_shows_no_zero_percent(tmp_path, result):
    for head in result["heads"]:
        head.update(effect=None, low=None, high=None, selected=None)
    result.update(intact=None, validation={"task": {"name": "x"}}, top=[], fit=None)
    page = Page(write_report(tmp_path, shaped(result)))
    scores = [text for text in page.text.split() if text == "0"]
    assert not scores
    assert "NOT FOUND" in page.text


def test_layers_without_heads_are_gaps(tmp_path, result):
    result["grid"] = {"layers": 3, "heads": [4, 4, 0], "group_sizes": [2, 2, 1]}
    page = Page(write_report(tmp_path, shaped(result)))
    assert page.having("td", **{"class": "gap", "colspan": "4"})
    assert "no attention heads" in page.text


@pytest.mark.slow
def test_a_large_run_stays_a_small_page(tmp_path, result):
    result["grid"] = {"layers": 80, "heads": [64] * 80, "group_sizes": [8] * 80}
    result["heads"] = [
        {**result["heads"][0], "head": f"L{layer}H{index}", "layer": layer, "index": index}
        for layer in range(80)
        for index in range(64)
    ]
    long = {"prompt": "q " * 3000, "intact": "word " * 500, "knocked_out": "drow " * 500}
    result["validation"]["task"]["lost"]["samples"] = [long] * 3
    page = write_report(tmp_path, shaped(result))
    assert page.stat().st_size < 5_000_000


def test_the_same_result_gives_the_same_page(tmp_path, result):
    first, second = (write_report(tmp_path, shaped(result)).read_bytes() for _ in "ab")
    assert first == second


def test_commands_on_a_page_name_its_folder_as_a_shell_takes_it(tmp_path, result):
    page = Page(write_report(tmp_path / "my runs", shaped(result)))
    assert f"caploc view '{tmp_path}/my runs'" in page.text and " DIR" not in page.text


def test_commands_and_the_report_wait_for_no_large_library():
    loaded = "bool({'torch', 'matplotlib', 'lm_eval'} & set(sys.modules))"
    check = f"import caploc.cli, caploc.report, caploc.playground.view, sys; sys.exit({loaded})"
    subprocess.run([sys.executable, "-c", check], check=True)


def test_the_curve_is_on_the_page_once_it_was_measured(tmp_path, result):
    page = Page(write_report(tmp_path, shaped(result)))
    assert "How many heads" not in page.text
    points = [{"score": 0.99, "stderr": 0.01}, {"score": 0.4, "stderr": 0.05}]
    curve = {"heads": ["L0H1"], "curves": {"demo/addition": points}}
    (tmp_path / "curve.json").write_text(json.dumps(curve))
    page = Page(write_report(tmp_path, shaped(result)))
    assert "1 L0H1 40" in page.text


def test_figures_of_a_finished_run_are_written_again(tmp_path, sure):
    (tmp_path / "result.json").write_text(json.dumps(sure))
    rewrite_page(tmp_path)
    assert [path.name for path in (tmp_path / "figures").iterdir()] == ["scores.svg"]
    text = (tmp_path / "figures" / "scores.svg").read_text()
    assert "demo/sentences" in text and "var(--" not in text


def test_the_words_of_a_page_can_be_read_in_minutes(tmp_path, sure):
    page = Page(write_report(tmp_path, shaped(sure)))
    assert len(page.text.split()) <= 1200
