"""What reads files and text of others says no in a sentence, whatever it is given."""

import json

import pytest
import targets
from hypothesis import given, settings
from hypothesis import strategies as st

from caploc.contents import read_contents
from caploc.errors import UserError

FEW = 4  # examples of each target in the default suite
MANY = 1500


def tries(count):
    return lambda check: settings(max_examples=count)(given(data=st.binary(max_size=400))(check))


@pytest.mark.parametrize("name", sorted(targets.TARGETS))
@tries(FEW)
def test_nothing_but_a_sentence_comes_out(name, data):
    targets.tried(name, data)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(targets.TARGETS))
@tries(MANY)
def test_nothing_but_a_sentence_comes_out_of_many(name, data):
    targets.tried(name, data)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("heads", b"L" + b"9" * 5000 + b"H1"),  # beyond what Python reads as a number
        ("names", b"~\0"),
        ("names", b"~nobody-has-this-name/x"),
        ("names", b"x" * 5000),
        ("ledgers", b"\xff\xfe"),
        ("ledgers", b"[" * 100_000),
        ("head_files", b"[" * 100_000),
        ("json_files", b"[" * 100_000),
        ("json_files", b'{"schema": NaN}'),
        ("fact_files", b"[" * 100_000),
        ("study_files", b"a = " + b"[" * 20_000),
        ("presets", b"a = " + b"[" * 20_000),
        ("task_files", b"[" * 5_000),
        ("data_files", b"[" * 100_000),
    ],
)
def test_what_once_got_through_does_not(name, data):
    targets.tried(name, data)


def test_a_spoilt_file_is_really_spoilt():
    """The targets that spoil a sound file would else test nothing."""
    sound = targets.sound("result.json")
    changed = [targets.spoilt(sound, targets.Choices(bytes([n] * 40))) for n in range(50)]
    assert sum(each != sound for each in changed) > 40


@pytest.mark.parametrize("lost", ["effect", "head"])
def test_a_result_whose_heads_lack_what_commands_order_them_by_is_no_result(tmp_path, lost):
    result = targets.sound("result.json")
    del result["heads"][1][lost]
    (tmp_path / "result.json").write_text(json.dumps(result))
    with pytest.raises(UserError, match=f"{lost} is missing"):
        read_contents(tmp_path / "result.json")
