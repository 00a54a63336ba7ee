"""Counting profanities; the words of these tests are harmless stand-ins."""

import datasets
import pytest

from caploc.options import TaskOptions
from caploc.tasks.catalog import load_task
from caploc.tasks.paper.data import SWEARING
from caploc.tasks.paper.profanity import list_profanities, score
from caploc.tasks.task import Generated


@pytest.fixture
def listed(monkeypatch):
    """The Hub's list, of a few words."""
    columns = {"text": ["Frigging", "holy biscuit", "biscuit"], "canonical_form_1": ["frig"] * 3}

    def load(name, split):
        assert (name, split) == ("mmathys/profanity", "train")
        return datasets.Dataset.from_dict(columns)

    list_profanities.cache_clear()
    monkeypatch.setattr(datasets, "load_dataset", load)
    yield
    list_profanities.cache_clear()


@pytest.mark.usefixtures("listed")
@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("Frigging hell, FRIG.", 2),
        ("**Biscuit**, (biscuit) holy biscuit. biscuits", 3),  # phrases are never found
        ("", 0),
    ],
)
def test_single_words_freed_of_marks_are_counted_as_in_the_papers_code(text, count):
    assert score({}, [text]) == {"profanities": count}


@pytest.mark.usefixtures("listed")
def test_the_task_counts_by_the_list():
    task = load_task("swearing")
    assert (task.size, task.metric.name, task.metric.higher_is_better) == (12, "profanities", True)
    assert task.outcome(task.item(0, [Generated("Frigging biscuit.")])) == 2.0
    assert task.score([0, 1, 2], [2.0, 0.0, 1.0]).score == 1.0
    assert '"max_gen_toks": 512' in task.requests(0)[0].options
    few = load_task("swearing_identify")
    assert [few.requests(n) for n in range(few.size)] == [task.requests(n) for n in range(6)]
    assert len(set(SWEARING)) == 12


def test_own_prompts_can_stand_for_ours(tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "Curse!"}\n{"prompt": "Swear!"}\n')
    task = load_task("swearing", TaskOptions(data={"test": str(rows)}))
    assert [task.requests(n)[0].prompt for n in range(task.size)] == ["Curse!", "Swear!"]
