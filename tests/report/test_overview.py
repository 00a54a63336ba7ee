"""The page over several runs."""

import copy

from caploc.report import write_overview

HOSTILE = "</script><script>alert(1)</script>\"'><img src=x onerror=alert(2)>"


def test_each_run_is_a_row_with_its_link(tmp_path, result, read_page):
    other = copy.deepcopy(result)
    other["task"]["name"] = "demo/rhymes"
    other["top"] = ["L0H1", "L1H0"]
    page = read_page(write_overview(tmp_path, [("addition", result), ("rhymes", other)]))
    text = page.text.replace("\u00a0", " ")
    for wanted in ("demo/addition", "demo/rhymes", "99 %", "12 %", "demo/sentences: 98 % → 97 %",
                   "L0H1 and L1H3", "10,712", "carried by these heads"):  # fmt: skip
        assert wanted in text, wanted
    assert len(page.having("a", href="./addition/report.html")) == 2
    columns = [word for word in text.split() if word in ("L0H1", "L1H0", "L1H3")]
    assert set(columns) == {"L0H1", "L1H0", "L1H3"}


def test_scores_are_those_of_held_out_examples_and_say_so(tmp_path, sure, read_page):
    text = read_page(write_overview(tmp_path, [("a", sure)])).text.replace("\u00a0", " ")
    assert "100 % 22 % carried by these heads" in text
    assert "on held-out examples, wherever a run has any" in text


def test_runs_of_two_models_share_no_matrix(tmp_path, result, read_page):
    other = copy.deepcopy(result)
    other["model"]["fingerprint"] = "another"
    page = read_page(write_overview(tmp_path, [("a", result), ("b", other)]))
    assert len(page.having("table", **{"class": "map matrix"})) == 2


def test_missing_parts_are_said_and_not_counted_as_zero(tmp_path, result, read_page):
    result.update(validation=None, intact=None, cost=None, top=[], heads=[], fit=None)
    text = read_page(write_overview(tmp_path, [("a", result)])).text
    assert "not measured" in text and "not recorded" in text and "No run chose a head." in text
    assert "None" not in text


def test_no_runs_still_give_a_page(tmp_path, read_page):
    assert "There are no runs here yet." in read_page(write_overview(tmp_path, [])).text


def test_hostile_names_stay_text(tmp_path, result, read_page):
    result["task"]["name"] = result["model"]["name"] = result["method"]["name"] = HOSTILE
    page = read_page(write_overview(tmp_path, [("javascript:alert(1)//" + HOSTILE, result)]))
    assert len(page.scripts) == 1 and "alert" not in page.scripts[0]
    assert not page.having("img")
    links = [names["href"] for names in page.having("a")]
    assert all(link.startswith(("#", "./javascript%3Aalert")) for link in links)
