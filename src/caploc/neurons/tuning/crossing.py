"""Tune the neurons of one dataset with its examples: which other datasets get better?

    crossed = cross(loaded, sources, evaluation, Recipe())
    relate(crossed.located["metric"], kinds, overlaps)

The tables are of changes, row A (tuned) by column B (evaluated), for the located neurons of A and
for random ones with as many in each layer. What sums them up is our choice.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from caploc.commonality.agreement import Agreement, Cohesion, agreement, cohesion
from caploc.commonality.overlap import Matrix
from caploc.commonality.result import Result
from caploc.commonality.specificity import FEWEST
from caploc.engine.wording import Span
from caploc.errors import BadData, BadOption
from caploc.grid import Grid
from caploc.models.loading import CutModel
from caploc.neurons.grid import Chosen
from caploc.neurons.tuning.arms import LOCATED, arms
from caploc.neurons.tuning.enhancement import Enhancement, Evaluation, enhance
from caploc.neurons.tuning.training import Recipe
from caploc.progress import Progress

RANDOM = "random-layer-matched"
Changes = Float64[np.ndarray, "tuned evaluated"]


@dataclass(frozen=True)
class Source:
    """A dataset to tune with: its name among the tasks evaluated, its examples, its neurons."""

    name: str
    spans: tuple[Span, ...]
    located: Chosen


@dataclass(frozen=True)
class Crossing(Result):
    """Changes by measure, each a table of `tuned` by `evaluated`; NaN where nothing is known.

    `random` is the mean over draws; `p` the one-sided p of located against the draws, entry by
    entry. `runs` holds all there is to know about each row.
    """

    tuned: tuple[str, ...]
    evaluated: tuple[str, ...]
    located: dict[str, Changes]
    random: dict[str, Changes]
    p: dict[str, Changes]
    runs: tuple[Enhancement, ...]


@dataclass(frozen=True)
class Relation(Result):
    """What a square table of changes says.

    `kinds` has the mean change on the tuned dataset itself (`cohesion`), on others
    (`separability`), within a kind and across kinds; `overlap` how changes off the diagonal go
    with the overlap of the two datasets' neurons, None if no overlaps are given.
    """

    kinds: Cohesion
    overlap: Agreement | None


def cross(
    loaded: CutModel,
    sources: Sequence[Source],
    evaluation: Evaluation,
    recipe: Recipe,
    *,
    draws: int = FEWEST,
    progress: Progress | None = None,
) -> Crossing:
    """Tune every source's neurons with its own examples and evaluate on everything.

    Raises:
        BadOption: if a source has no neurons, draws are fewer than 5, or as `enhance`.
        BadData: if there is no source, two have one name, or as `enhance`.
        ModelRefused, RunFailed: as `enhance`.
    """
    names = [source.name for source in sources]
    if not names or len(set(names)) < len(names):
        raise BadData(
            f"Crossing needs one or more datasets of different names; got "
            f"{', '.join(names) or 'none'}."
        )
    grid: Grid = loaded.grid
    planned = [
        arms(source.located, grid, names=(LOCATED, RANDOM), draws=draws, seed=recipe.seed)
        for source in sources
    ]
    runs = tuple(
        enhance(loaded, source.spans, evaluation, each, recipe, progress=progress)
        for source, each in zip(sources, planned, strict=True)
    )
    keys = [(change.task, change.measure) for change in runs[0].arms[0].changes]
    evaluated = tuple(dict.fromkeys(task for task, _ in keys))
    tables = {
        what: {
            measure: np.array([_row(run, what, measure, evaluated) for run in runs])
            for measure in dict.fromkeys(measure for _, measure in keys)
        }
        for what in ("located", "mean", "p")
    }
    return Crossing(
        tuned=tuple(names),
        evaluated=evaluated,
        located=tables["located"],
        random=tables["mean"],
        p=tables["p"],
        runs=runs,
    )


def relate(
    changes: Changes,
    datasets: Sequence[str],
    kinds: Mapping[str, str],
    overlaps: Matrix | None = None,
    *,
    seed: int = 0,
) -> Relation:
    """Whether changes are larger within a kind, and where the neurons overlap more.

    Rows and columns are `datasets`, in one order; see `square`.

    Raises:
        BadOption: if the table is not square, or the overlaps are of other datasets.
        UnknownName: if a dataset has no kind.
    """
    return Relation(
        kinds=cohesion(changes, datasets, kinds, seed=seed),
        overlap=None if overlaps is None else agreement(changes, overlaps, seed=seed),
    )


def square(crossing: Crossing, changes: Changes) -> Matrix:
    """The columns of the datasets that were tuned, in the order of the rows.

    Raises:
        BadOption: if one of them was not evaluated.
    """
    missing = [name for name in crossing.tuned if name not in crossing.evaluated]
    if missing:
        raise BadOption(
            f"{', '.join(missing)} was tuned and not evaluated; evaluate it, too, to compare "
            "datasets with each other."
        )
    return changes[:, [crossing.evaluated.index(name) for name in crossing.tuned]]


def _row(run: Enhancement, what: str, measure: str, evaluated: Sequence[str]) -> list[float]:
    found = {
        control.task: getattr(control, what)
        for control in run.controls
        if control.measure == measure
    }
    values = (found.get(task) for task in evaluated)
    return [np.nan if value is None else float(value) for value in values]
