"""What a run says beforehand of its rows is kept, and what it says as it goes."""

import json
import re
from dataclasses import asdict, replace

import pytest

from caploc.errors import FolderTaken
from caploc.folder import RESULT, RUN
from caploc.options import Settings
from caploc.study import run_study
from doubles import QUICKEST as CSS
from doubles import Watcher

SCAN = replace(CSS, method="scan", settings=Settings(top=2, budget=400), examples=60)


def test_a_run_says_beforehand_what_it_asks_at_most_and_again_when_its_search_ends(tmp_path):
    watched = Watcher()
    found = run_study(CSS, tmp_path, watched)
    (before, whole), (searched, checks) = watched.expected
    assert re.fullmatch(
        r"demo/recall in demo: a search among 96 heads, up to 25 rows; its checks, up to [\d,]+ "
        r"more\. Asked as .+ \+ .+\.",
        watched.told[0],
    )
    assert before == 0 and searched == 5 + 4 * 5 and checks <= whole - searched
    assert found.result.cost.rows == watched.rows == watched.measured <= searched + checks
    again = Watcher()
    run_study(CSS, tmp_path, again)
    assert (again.rows, again.measured) == (watched.rows, 0)  # stored rows count as done


GOALS = {
    "heads": SCAN,
    "set": replace(SCAN, settings=Settings(top=3, budget=2000, goal="set"), controls=3),
    "specific": replace(
        SCAN,
        settings=Settings(top=3, budget=2000, goal="specific"),
        spare=("demo/code", "demo/prose"),
    ),
    "one-shot": replace(CSS, method="one-shot", other_tasks=("demo/code",), limit=40),
    "greedy": replace(CSS, method="greedy"),
    "css-search": replace(
        CSS, method="css-search", settings=Settings(mask_counts=(4, 8), rates=(0.05, 0.1))
    ),
    "bought": replace(
        CSS,
        method="css-search",
        settings=Settings(mask_counts=(4, 8), rates=(0.05, 0.1), budget=200),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", GOALS)
def test_no_study_asks_more_rows_than_it_said(tmp_path, name):
    watched = Watcher()
    found = run_study(GOALS[name], tmp_path, watched)
    (_, whole), (searched, checks) = watched.expected
    bound = re.search(r"up to ([\d,]+) rows", watched.told[0])
    assert searched <= int(bound[1].replace(",", ""))
    assert found.result.cost.rows == watched.rows <= min(whole, searched + checks)


def test_a_folder_of_another_study_is_refused_before_anything_is_promised(tmp_path):
    (tmp_path / RUN).write_text(json.dumps({"study": asdict(replace(CSS, method="csb"))}))
    (tmp_path / RESULT).write_text("{}")  # a run that has not begun leaves its folder to the next
    watched = Watcher()
    with pytest.raises(FolderTaken, match="belongs to another run"):
        run_study(CSS, tmp_path, watched)
    assert not watched.told
