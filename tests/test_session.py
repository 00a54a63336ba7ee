"""A session leaves out what nobody asked for and the model cannot read."""

from dataclasses import replace

from caploc.declaration import ModelOptions, Study
from caploc.naming import GENERAL
from caploc.progress import Silent
from caploc.session import without_unfit_control

TASKS = "words/past", "words/plural", GENERAL
STUDY = Study(ModelOptions("any"), TASKS[0], other_tasks=TASKS[1:])


def test_copying_is_left_out_where_the_model_cannot_read_it():
    tasks = STUDY.tasks()
    control = tasks[GENERAL].requests(0)[0]
    misfit = lambda request: "too long" if request == control else None  # noqa: E731
    study, kept = without_unfit_control(STUDY, tasks, misfit, Silent())
    assert study.beside == (TASKS[1],) and [*kept] == [*TASKS[:2]]


def test_copying_stays_where_it_can_be_read_or_was_asked_for():
    tasks = STUDY.tasks()
    assert without_unfit_control(STUDY, tasks, lambda request: None, Silent()) == (STUDY, tasks)
    settings = replace(STUDY.settings, goal="specific")
    spared = replace(STUDY, settings=settings, spare=(GENERAL,))
    assert without_unfit_control(spared, tasks, lambda request: "no", Silent())[0] is spared
