"""What the process that leads does after an answer that did not end."""

from types import SimpleNamespace

import pytest

from caploc.errors import RunFailed, UserError
from caploc.workers import Conversation


@pytest.fixture
def team(monkeypatch):
    monkeypatch.setattr(Conversation, "broken", False)
    return SimpleNamespace(waiting=True)


def test_after_a_pass_that_was_left_nothing_more_is_asked(team):
    with pytest.raises(RuntimeError), Conversation.open(team):
        raise RuntimeError  # the others are still inside it
    with pytest.raises(RunFailed, match="lost step.*same command again"), Conversation.open(team):
        pytest.fail("the others would hear it in the middle of their pass")
    assert Conversation.broken


def test_after_what_all_refuse_alike_the_next_question_is_asked(team):
    with pytest.raises(UserError), Conversation.open(team):
        raise UserError("all of them say so")
    with Conversation.open(team):
        assert not team.waiting
    assert team.waiting and not Conversation.broken
