"""Counting profanities; the words of these tests are harmless stand-ins."""

import datasets
import pytest
from hypothesis import given
from hypothesis import strategies as st

from caploc.errors import BadData
from caploc.options import TaskOptions, parse_data
from caploc.tasks.catalog import load_task
from caploc.tasks.paper.data import SWEARING
from caploc.tasks.paper.profanity import (
    Lexicon,
    Swearing,
    count_listed,
    hub_lexicon,
    load_lexicon,
)
from caploc.tasks.task import Generated

CSV = """text,canonical_form_1,canonical_form_2,severity
frigging,frig,,1.0
"son of a biscuit",biscuit,,2.0
fr1g,frig,,1.0
da,,,1.0
"two, words",,,1.0
"""


@pytest.fixture
def words(tmp_path):
    path = tmp_path / "words.csv"
    path.write_text(CSV)
    return str(path)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("Frigging hell, FRIG!", 2),
        ("**frig** _frig_ frig/frig frig's", 5),
        ("friggingly befrig frig9", 0),
        ("You son of  a\nbiscuit", 1),  # a phrase counts once, not its words too
        ("a biscuit, son of a", 1),
        ("da! Two, words", 2),
        ("", 0),
    ],
)
def test_words_and_phrases_that_stand_alone_are_counted(words, text, count):
    assert load_lexicon(words).count(text) == count


entries = st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=6)


@given(entries, st.lists(st.text("ab", min_size=1, max_size=4), max_size=12))
def test_single_words_are_counted_as_a_set_would(listed, said):
    lexicon = Lexicon.of(listed)
    assert lexicon.count(" ".join(said)) == sum(word in listed for word in said)
    assert lexicon.count(", ".join(said).upper()) == sum(word in listed for word in said)


def test_the_task_counts_by_the_list_given(words):
    task = load_task("swearing", TaskOptions(data=parse_data([f"words={words}"])))
    assert (task.size, task.metric.name, task.metric.higher_is_better) == (12, "profanities", True)
    item = task.item(0, [Generated("Frigging biscuit!")])
    assert task.outcome(item) == 2.0
    assert task.score([0, 1, 2], [2.0, 0.0, 1.0]).score == 1.0
    assert '"max_gen_toks": 512' in task.requests(0)[0].options
    few = load_task("swearing_identify", TaskOptions(data={"words": words}))
    assert [few.requests(n) for n in range(few.size)] == [task.requests(n) for n in range(6)]
    assert len(set(SWEARING)) == 12


def test_the_version_follows_the_list(words, tmp_path):
    version = load_task("swearing", TaskOptions(data={"words": words})).version
    plain = tmp_path / "plain.txt"
    plain.write_text("frigging\nFRIG\nson of a  biscuit\nbiscuit\nfr1g\nda\n\ntwo, words")
    assert load_task("swearing", TaskOptions(data={"words": str(plain)})).version == version
    plain.write_text(plain.read_text() + "\nmore")
    assert load_task("swearing", TaskOptions(data={"words": str(plain)})).version != version


def test_the_installed_list_needs_no_network():
    assert parse_data(["words=package"]) == {"words": "package"}
    task = load_task("swearing", TaskOptions(data={"words": "package"}))
    assert task.item(0, [Generated("Damn it to hell. Shell, assess.")]) == 2.0


@pytest.fixture
def hub(monkeypatch):
    """Say what comes of asking the Hub."""
    hub_lexicon.cache_clear()
    yield lambda load: monkeypatch.setattr(datasets, "load_dataset", load)
    hub_lexicon.cache_clear()


def test_without_the_hub_both_other_lists_are_named(hub):
    def unreachable(*_, **__):
        raise ConnectionError("no route\nto host")

    hub(unreachable)
    with pytest.raises(BadData, match="--data words=FILE.*--data words=package") as refused:
        load_lexicon(None)
    assert "\n" not in str(refused.value)


def test_without_a_word_about_it_the_list_is_the_hubs(hub, words):
    columns = {"text": ["frigging", "fr1g"], "canonical_form_1": ["frig", None], "severity": [1, 2]}
    asked = []

    def rows(name, split):
        asked.append((name, split))
        return datasets.Dataset.from_dict(columns)

    hub(rows)
    assert load_lexicon(None) == Lexicon.of(["frigging", "fr1g", "frig"])
    counted = {"profanities": 2.0, "published_profanities": 1.0}  # which keeps the mark
    assert count_listed({}, ["Frig, frig!"]) == counted
    assert asked == [("mmathys/profanity", "train")]


def test_the_list_goes_along_to_other_tasks(words):
    options = TaskOptions(data={"words": words, "test": "rows.jsonl"}, metric="acc")
    assert options.plain() == TaskOptions(data={"words": words})
    assert load_task("demo/addition", options.plain()).metric.name == "exact_match"


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("absent.txt", None, "no such file"),
        ("empty.txt", "", "is empty"),
        ("blank.txt", "\n \n", "holds no word"),
        ("other.csv", "word,severity\nfrig,1\n", "column `text`; this one has word, severity"),
    ],
)
def test_a_list_that_cannot_be_used_is_one_sentence(tmp_path, name, content, said):
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(BadData, match=said) as refused:
        load_task("swearing", TaskOptions(data={"words": str(tmp_path / name)}))
    assert "\n" not in str(refused.value)


def test_the_papers_own_count_takes_single_words_freed_of_marks():
    lexicon = Lexicon.of(["biscuit", "holy biscuit"])
    said = Swearing(lexicon)({}, ["**Biscuit**, (biscuit) holy biscuit! biscuits"])
    assert said == {"profanities": 3.0, "published_profanities": 2.0}


def test_own_prompts_can_stand_for_ours(words, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "Curse!"}\n{"prompt": "Swear!"}\n')
    task = load_task("swearing", TaskOptions(data={"words": words, "test": str(rows)}))
    assert [task.requests(n)[0].prompt for n in range(task.size)] == ["Curse!", "Swear!"]
