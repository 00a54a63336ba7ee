"""What `neurons locate` does unless told otherwise, and what it warns of."""

import inspect

import numpy as np
import pytest
from planted_models import TWO, Planter

from caploc.cli.neurons import controls
from caploc.cli.neurons import erase as erase_command
from caploc.cli.neurons import locate as locate_command
from caploc.neurons.attribution import Attribution
from caploc.neurons.controls import Controlling
from caploc.neurons.erasure import DRAWS, Erasing
from caploc.neurons.finding import TaskNeurons
from caploc.neurons.locating import LocatedNeurons, describe_task, locate
from caploc.neurons.model import NeuronGrid
from caploc.neurons.options import Enhancing
from caploc.neurons.study import NeuronStudy
from caploc.stats.threshold import Moments, Rule
from caploc.workbench import ModelOptions
from worlds import DEMO

SKIPPED = {NeuronStudy: {"model", "rule"}, Attribution: set(), Rule: set()}
EVEN, FEW = np.ones(20), np.array([100.0, 90.0, *[0.1] * 18])


def defaults(command):
    return {name: each.default for name, each in inspect.signature(command).parameters.items()}


def test_the_command_and_the_study_have_the_same_defaults():
    typed, study = defaults(locate_command), NeuronStudy(ModelOptions(DEMO), ("demo/code",))
    for part in (study, study.attribution, study.rule):
        shared = [
            name for name in vars_of(part) if name in typed and name not in SKIPPED[type(part)]
        ]
        assert shared and {n: typed[n] for n in shared} == {n: getattr(part, n) for n in shared}


def vars_of(part):
    return part.__dataclass_fields__


def test_commands_have_the_defaults_of_their_settings():
    typed, asked = defaults(erase_command), Erasing()
    assert (typed["draws"], typed["limit"], typed["seed"]) == (DRAWS, asked.limit, asked.seed)
    # with fewer nothing can be beaten with p = .05
    settings = {erase_command: asked, controls: Controlling()}
    for command, each in settings.items():
        assert defaults(command)["draws"] == each.draws == Enhancing().draws == DRAWS == 19
    assert tuple(map(float, typed["doses"].split(","))) == asked.doses


def scored(sizes, **settings):
    """Figures of examples with one pattern of scores in many sizes, of which some neurons."""
    rows = np.outer(sizes, np.linspace(-1, 1, 30))
    moments = Moments.empty(30, **settings).added(rows[:7]).merged(
        Moments.empty(30, **settings).added(rows[7:])
    )  # fmt: skip
    chosen = np.arange(30) > 27
    return TaskNeurons("one", len(sizes), chosen, np.stack([chosen] * 5), moments)


@pytest.mark.parametrize(
    ("sizes", "settings", "effective"),
    [
        (EVEN, {}, 20),
        (FEW, {}, FEW.sum() ** 2 / (FEW**2).sum()),
        (FEW, {"normalised": True}, 20),
        (np.zeros(20), {}, None),
    ],
)
def test_a_score_that_few_examples_carry_is_warned_of(sizes, settings, effective):
    found = scored(sizes, **settings)
    located = LocatedNeurons(NeuronGrid((15, 15)), Rule(), {"one": found}, {})
    (told,) = located.as_dict()["tasks"]
    expected = effective if effective is None else pytest.approx(effective)
    assert told["effective_examples"] == expected
    warned = effective is not None and effective < 4
    assert describe_task(told)["examples"] == ("20, weighing as 2" if warned else "20")


def test_figures_on_disk_keep_the_sizes():
    moments = scored(FEW).moments
    again = Moments.from_arrays(moments.as_arrays())
    assert again.effective_items == moments.effective_items < 3


@pytest.mark.slow
def test_locating_tells_what_erasing_costs(tmp_path_factory, tmp_path):
    model = Planter(tmp_path_factory)(TWO)
    study = NeuronStudy(model.options, model.tasks, Attribution("gradient"), examples=40, judged=20)
    result, exhibits = locate(study, tmp_path)
    for task in result["tasks"]:
        arms = [arm["arm"] for arm in task["erased"]["arms"]]
        assert arms == ["located", *["random in layers"] * DRAWS]
        assert task["erased"]["beats_every_layer_matched_draw"] is True
        assert task["within"]["rates"]["largest"]["low"] == 1
    erasure = exhibits[1]
    assert len(erasure.rows) == 2 and erasure.chart.to_dict()["layer"]
    assert erasure.title in (tmp_path / "report.html").read_text()
