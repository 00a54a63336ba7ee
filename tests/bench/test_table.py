from pathlib import Path

import pytest

from table import Results, caption, rows

DOCS = Path(__file__).parents[2] / "docs" / "bench"

SETTING = {
    "machine": "a machine",
    "threads": 1,
    "memory_kept": True,
    "torch": "2",
    "transformers": "5",
    "date": "2026-01-01",
}


def found(*wall):
    """An entry of one contender with these seconds."""
    timing = {"wall": list(wall), "cpu": list(wall), "answer_tokens": 0, "scaled": ""}
    return {
        "title": "texts",
        "masks": 2,
        "examples": 3,
        "rows": 6,
        "answers": {"mean_tokens": None},
        "contenders": {"rows": timing | {"agreement": None}},
        "setting": SETTING,
    }


def test_the_page_says_what_is_stored():
    kept = Results(DOCS)
    assert kept.file.with_suffix(".md").read_text() == kept.markdown()


@pytest.mark.parametrize(
    ("wall", "cell", "said"),
    [
        ((60.27,), "| 60.3 (one run) |", "; one run."),
        ((3.0, 1.0, 2.0), "| 2.0 (1.0-3.0) |", "; 3 repeats."),
    ],
)
def test_a_range_is_told_of_repeats_only(wall, cell, said):
    (line,) = rows("a", found(*wall))
    assert cell in line
    assert said in caption("a", found(*wall))
