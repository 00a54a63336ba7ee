"""Small runs on the demo model that several modules of tests start from, each made once."""

from contextlib import contextmanager
from shutil import copytree

import pytest

from caploc.declaration import ModelOptions
from caploc.neurons import locating
from caploc.neurons import study as studies
from caploc.neurons.enhancing import enhance_located
from caploc.neurons.options import Enhancing, NeuronStudy, Rule, TuningRecipe
from caploc.neurons.study import load_source
from worlds import DEMO

MODEL = ModelOptions(DEMO, device="cpu")
TASKS = ("demo/addition", "demo/elements")
STUDY = NeuronStudy(
    MODEL,
    TASKS,
    rule=Rule(share=0.01, normalised=False),
    examples=12,
    subsets=2,
    least=0.5,
    judged=0,
)
TUNED = Enhancing(
    TuningRecipe(steps=2, rates=(3e-3, 1e-2)),
    ("none", "located", "random"),
    draws=5,
    limit=2,
)
SOURCES, MADE = {}, {}


def remembered(*asked):
    """A task's examples; reading a task takes longer than most of what is asked of it here."""
    asked = asked[:5]  # whoever watches changes nothing
    if repr(asked) not in SOURCES:
        SOURCES[repr(asked)] = load_source(*asked)
    return SOURCES[repr(asked)]


def undrawn(*told):
    """No page: pages have tests of their own."""


@contextmanager
def quick():
    """Tasks are read once, and no page is written."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(studies, "load_source", remembered)
        patch.setattr("caploc.neurons.report.write_exhibits", undrawn)
        yield patch


def counted(patch, module, name):
    """Let a module's function count its calls; the arguments of each."""
    calls, inner = [], getattr(module, name)

    def outer(*told, **options):
        calls.append((told, options))
        return inner(*told, **options)

    patch.setattr(module, name, outer)
    return calls


def lasting(result):
    """What two runs of one command must have in common, as the file has it."""
    return without(result, {"command", "versions", "seconds", "cost"})


def without(told, names):
    """Nested dictionaries without some fields."""
    if isinstance(told, dict):
        return {key: without(value, names) for key, value in told.items() if key not in names}
    return [without(each, names) for each in told] if isinstance(told, list) else told


def located(factory):
    """Neurons of two tasks: the folder."""
    if "located" not in MADE:
        folder = factory.mktemp("located") / "run"
        with quick():
            locating.locate(STUDY, folder)
        MADE["located"] = folder
    return MADE["located"]


def tuned(factory):
    """The same with both tasks' neurons tuned: the folder, the result, the exhibits."""
    if "tuned" not in MADE:
        folder = copytree(located(factory), factory.mktemp("tuned") / "run")
        with quick():
            found, exhibits = enhance_located(folder, TUNED, command="caploc neurons enhance")
        MADE["tuned"] = folder, found, exhibits
    return MADE["tuned"]
