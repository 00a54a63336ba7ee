"""What most wrong answers of the intact model have in common is said, with the likely cause."""

from unittest.mock import create_autospec

import pytest

from caploc.store import Row
from caploc.tasks.task import Generated, LogLikelihood, Scored, Task, responses_json
from caploc.validation.intact import describe_trouble

TASK = create_autospec(Task, instance=True)
TASK.name = "own"
TASK.requests.return_value = (LogLikelihood("It is", "Rome"),)
WRONG = {
    "empty": (Generated("", said=(0,), end="\n"),),
    "cut off": (Generated("so the answer must be that", said=(0,) * 8),),
    "repeating one piece of text": (Generated("so it is " * 20, said=(0,) * 60),),
    "choices that the model would not say": (Scored(-12.0, False, 1), Scored(-11.0, False, 1)),
    "begun with a space": (Scored(-9.0, False, 1, " Rome"),),
}
OTHER = (Generated("Paris", said=(0,) * 2, end="\n"),)


def row(number, outcome, responses):
    return Row(
        b"", "", number=number, outcome=outcome, item=None, responses=responses,
        tokens=1.0, plain_tokens=1, seconds=0.0,
    )  # fmt: skip


def rows(*groups):
    return [
        row(n, outcome, responses_json(responses))
        for n, (outcome, responses) in enumerate(
            each for outcome, responses, count in groups for each in [(outcome, responses)] * count
        )
    ]


@pytest.mark.parametrize("kind", WRONG)
def test_the_kind_of_most_wrong_answers_is_said_with_its_cause(kind):
    told = describe_trouble(TASK, rows((0.0, WRONG[kind], 8), (0.0, OTHER, 4), (1.0, OTHER, 8)))
    assert told.startswith("own: the intact model gets 12 of 20 examples wrong, and 8 of these")
    assert kind in told and "Probably" in told


@pytest.mark.parametrize("kind", WRONG)
def test_nothing_is_said_of_a_model_that_is_mostly_right_or_wrong_in_other_ways(kind):
    assert describe_trouble(TASK, rows((0.0, WRONG[kind], 8), (1.0, OTHER, 12))) is None
    assert describe_trouble(TASK, rows((0.0, WRONG[kind], 5), (0.0, OTHER, 12))) is None
    assert describe_trouble(TASK, rows((0.0, WRONG[kind], 4))) is None
