"""A check without a model: outcomes are what a function of mask and example says."""

from types import SimpleNamespace

import numpy as np
import pytest

from caploc.components import Heads
from caploc.engine.api import Answer
from caploc.measurement import Cost, Meter
from caploc.progress import Silent
from caploc.recovery import Estimate, Measurements
from caploc.search import Found
from caploc.store import Question, Store
from caploc.tasks.task import Generated
from caploc.validation import Check
from doubles import NumberTask

GRID = Heads((8, 8))


class Said:
    """An engine that answers what `outcome(mask, example)` gives, and notes every mask."""

    def __init__(self, grid, outcome):
        self.grid, self.outcome, self.masks = grid, outcome, set()

    def answer(self, asks):
        asks = list(asks)
        self.masks |= {tuple(np.flatnonzero(ask.knocked_out).tolist()) for ask in asks}
        yield [
            Answer(ask.key, Generated(self.text(ask), said=(0,)), seconds=0.0, forward_tokens=1.0,
                   plain_tokens=1)
            for ask in asks
        ]  # fmt: skip

    def text(self, ask):
        value = self.outcome(ask.knocked_out, int(ask.request.prompt))
        return "nan" if value is None else repr(float(value))


@pytest.fixture
def checking(tmp_path):
    """Build a check of outcomes; `.engine.masks` are the masks that it asked for."""
    stores = []

    def build(outcome, *, grid=GRID, examples=60, draws=20, fresh=True):
        engine = Said(grid, outcome)
        stores.append(Store(tmp_path / str(len(stores)) / "rows.sqlite"))
        question = Question("model", "float32", "numbers", "1", "metric")
        meter = Meter(engine, stores[-1], NumberTask(), question, Cost())
        check = Check(meter, grid, list(range(examples)), fresh, draws, 7, Silent())
        return SimpleNamespace(check=check, engine=engine)

    yield build
    for store in stores:
        store.close()


@pytest.fixture
def found():
    """Build what a search found: its chosen columns, and effects of any columns."""

    def build(chosen, effects=None, heads=16, critical=()):
        effect = np.zeros(heads)
        for column, value in (effects or dict.fromkeys(chosen, -0.1)).items():
            effect[column] = value
        unknown = np.full(heads, np.nan)
        estimate = Estimate("test", effect, unknown, unknown, unknown)
        return Found(
            list(chosen), estimate.order(), estimate, Measurements.none(heads), list(critical)
        )

    return build
