"""The ledger: every answer is measured once, and outlives the process."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caploc.errors import StoreFailed
from caploc.files import digest
from caploc.neurons.ledger import Cache

QUESTION = {"model": "m", "heads": ["L0H1"], "limit": None}


def never():
    pytest.fail("measured again")


def test_an_answer_is_measured_once_and_read_again(tmp_path):
    ledger = Cache(tmp_path / "l.jsonl")
    assert ledger.recall(QUESTION, lambda: {"score": 0.1, "of": (1, 2)}) == {
        "score": 0.1,
        "of": [1, 2],
    }
    assert ledger.recall(QUESTION, never)["score"] == 0.1
    assert Cache(tmp_path / "l.jsonl").recall(QUESTION, never) == {"score": 0.1, "of": [1, 2]}


def test_a_failed_measurement_leaves_nothing(tmp_path):
    ledger = Cache(tmp_path / "l.jsonl")
    with pytest.raises(ZeroDivisionError):
        ledger.recall(QUESTION, lambda: 1 / 0)
    assert ledger.recall(QUESTION, lambda: 5) == 5


@pytest.mark.parametrize("left", [1, 10, 40, -1])
def test_a_line_that_was_torn_is_measured_again_and_spoils_no_other(tmp_path, left):
    path = tmp_path / "l.jsonl"
    ledger = Cache(path)
    ledger.recall(QUESTION, lambda: 1)
    ledger.recall({"other": 1}, lambda: 2)
    first, second = path.read_text().splitlines()
    path.write_text(f"{first}\n{second[:left]}")
    resumed = Cache(path)
    assert resumed.recall(QUESTION, never) == 1
    assert resumed.recall({"other": 1}, lambda: 3) == 3
    assert resumed.recall({"third": 1}, lambda: 4) == 4
    again = Cache(path)
    assert [again.recall(q, never) for q in (QUESTION, {"other": 1}, {"third": 1})] == [1, 3, 4]


def test_what_is_no_number_is_not_written(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        Cache(tmp_path / "l.jsonl").recall(QUESTION, lambda: float("nan"))
    assert not (tmp_path / "l.jsonl").exists()


def test_a_file_that_cannot_be_written_is_one_sentence(tmp_path):
    ledger = Cache(tmp_path / "l.jsonl")
    (tmp_path / "l.jsonl").mkdir()
    with pytest.raises(StoreFailed, match="could not be written .*run the same command again."):
        ledger.recall(QUESTION, lambda: 1)


KEYS = st.dictionaries(st.text(max_size=5), st.none() | st.integers() | st.text(max_size=5))


@given(KEYS, KEYS)
def test_questions_have_the_same_digest_only_if_they_are_the_same(one, other):
    assert (digest(one) == digest(other)) == (json.loads(json.dumps(one)) == other)


@given(KEYS)
def test_the_order_of_keys_does_not_matter(question):
    assert digest(dict(reversed(question.items()))) == digest(question)
