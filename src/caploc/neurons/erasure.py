"""Erasing neurons: what is lost without the located ones, and what without others as many.

The paper compares located with random neurons. Ours are five or more draws of random neurons, from
the whole model and, stricter, as many in each layer; those of the lowest scores; a curve over the
share of located neurons erased; and what is lost on other tasks, which tells a capability's neurons
from those that everything needs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float64

from caploc.commonality import (
    Interval,
    Result,
    Specificity,
    bottom,
    layer_matched,
    mean_interval,
    paired_interval,
    specificity,
    uniform,
)
from caploc.errors import BadOption
from caploc.measurement import Meter, outcomes_by_example
from caploc.neurons.cutting import Mode
from caploc.neurons.examples import Source
from caploc.neurons.finding import Found
from caploc.neurons.sites import Chosen
from caploc.neurons.study import NeuronBench
from caploc.progress import Progress
from caploc.tasks.task import Score

LOCATED, UNIFORM, LAYERS, BOTTOM = "located", "random", "random in layers", "bottom"
DOSES = (0.1, 0.25, 0.5, 0.75, 1.0)
DRAWS = 5
MEASURES = ("metric", "logprob")
Outcomes = Float64[np.ndarray, " examples"]


@dataclass(frozen=True)
class Erasing:
    """How neurons are erased, and with what the loss is compared."""

    mode: Mode = field(default_factory=Mode)
    draws: int = DRAWS
    doses: tuple[float, ...] = DOSES
    limit: int | None = None
    seed: int = 0

    def check(self) -> "Erasing":
        """Refuse what means nothing.

        Raises:
            BadOption: for fewer than 5 draws, a dose out of range, or a limit below 2.
        """
        if self.draws < DRAWS:
            raise BadOption(f"--draws must be {DRAWS} or more; got {self.draws}.")
        for dose in self.doses:
            if not 0 < dose <= 1:
                raise BadOption(f"A dose must be above 0 and at most 1; got {dose:g}.")
        if self.limit is not None and self.limit < 2:
            raise BadOption(f"--limit must be 2 or more; got {self.limit}.")
        return self


@dataclass(frozen=True)
class Lost(Result):
    """What a task loses when an arm's neurons are erased, on the same examples.

    `score` is the task's own, with the neurons erased; `metric` and `logprob` are the mean over
    examples of outcome intact less outcome erased, and of log-probability (nats for each gold
    token) likewise: more is more lost.
    """

    arm: str
    draw: int
    score: float | None
    metric: Interval
    logprob: Interval


@dataclass(frozen=True)
class Erased:
    """One task's located neurons erased, and what one judging task loses.

    `metric` and `logprob` hold the located loss against that of random neurons of the same number
    in every layer, in standard deviations of draws.
    """

    judged: str
    examples: int
    intact: Score
    arms: list[Lost]
    metric: Specificity
    logprob: Specificity

    @property
    def located(self) -> Lost:
        return next(lost for lost in self.arms if lost.arm == LOCATED)

    def of_arm(self, arm: str) -> list[Lost]:
        return [lost for lost in self.arms if lost.arm == arm]

    def mean(self, arm: str) -> float | None:
        """Average an arm's loss of log-probability over its draws; None if it has none."""
        known = [x.logprob.mean for x in self.of_arm(arm) if np.isfinite(x.logprob.mean)]
        return float(np.mean(known)) if known else None

    def beats(self, arm: str = LAYERS) -> bool | None:
        """Ask whether the located neurons cost more log-probability than every draw of an arm.

        None if the arm was not measured.
        """
        own = self.located.logprob.mean
        drawn = [own > lost.logprob.mean for lost in self.of_arm(arm)]
        return all(drawn) if drawn else None

    def as_dict(self) -> dict[str, Any]:
        return {
            "judged": self.judged,
            "examples": self.examples,
            "intact": {"score": self.intact.score, "stderr": self.intact.stderr},
            "arms": [lost.as_dict() for lost in self.arms],
            "metric_specificity": self.metric.as_dict() | {"per_item": None},
            "logprob_specificity": self.logprob.as_dict() | {"per_item": None},
            "beats_every_layer_matched_draw": self.beats(),
            "beats_every_uniform_draw": self.beats(UNIFORM),
        }


@dataclass(frozen=True)
class Eraser:
    """Erases the neurons found for one task."""

    bench: NeuronBench
    asked: Erasing
    found: Found
    progress: Progress

    def arms(self) -> list[tuple[str, int, Chosen]]:
        """List name, number and neurons of every arm.

        Raises:
            BadOption: if nothing was located.
        """
        located, seed = self.found.located, self.asked.seed
        if not located.any():
            raise BadOption(
                f"No neuron was located for {self.found.task}, so there is none to erase; take a "
                "lower --sigma, a --share, or more examples."
            )
        grid, moments = self.bench.neurons.grid, self.found.moments
        drawn = {
            UNIFORM: uniform(located, self.asked.draws, seed=seed),
            LAYERS: layer_matched(located, grid, self.asked.draws, seed=seed),
        }
        return [
            (LOCATED, 0, located),
            *((arm, n, chosen) for arm, sets in drawn.items() for n, chosen in enumerate(sets)),
            (BOTTOM, 0, bottom(moments.mean, located, absolute=moments.absolute)),
        ]

    def erase(self, source: Source, arms: Sequence[str] | None = None) -> Erased:
        """Measure what a judging task loses under every arm (those named, or all)."""
        meters, examples = self.meters(source), source.judged(self.asked.limit)
        nothing = self.found.located & False
        intact = self.outcomes(meters, nothing, examples)
        told, random = [], []
        for arm, draw, neurons in self.arms():
            if arms is not None and arm not in arms:
                continue
            cut = self.outcomes(meters, neurons, examples)
            if arm in (LOCATED, LAYERS):
                random.append({name: intact[name] - cut[name] for name in MEASURES})
            score = self.score(meters["metric"], neurons, examples).score
            lost = (paired_interval(intact[name], cut[name]) for name in MEASURES)
            told.append(Lost(arm, draw, score, *lost))
        located, *drawn = random
        return Erased(
            source.name,
            len(examples),
            self.score(meters["metric"], nothing, examples),
            told,
            *(specificity(located[m], np.stack([each[m] for each in drawn])) for m in MEASURES),
        )

    def doses(self, source: Source) -> list[dict[str, Any]]:
        """Measure what the task loses as more of the located neurons go, highest scores first."""
        columns, meters = self.found.ordered, self.meters(source)
        examples = source.judged(self.asked.limit)
        nothing = self.found.located & False
        intact = self.outcomes(meters, nothing, examples)
        curve = []
        for dose in self.asked.doses:
            count = max(1, round(dose * len(columns)))
            neurons = nothing.copy()
            neurons[columns[:count]] = True
            cut = self.outcomes(meters, neurons, examples)
            lost = {name: mean_interval(intact[name] - cut[name]).as_dict() for name in MEASURES}
            curve.append({"dose": dose, "neurons": count, **lost})
        return curve

    def meters(self, source: Source) -> dict[str, Meter]:
        """Meter the judging task by its own metric, and by the gold answer's probability."""
        mode = self.asked.mode
        reference = source.spans(self.bench.wording) if mode.needs_reference else []
        tasks = (source.judging, source.gold)
        return {
            name: self.bench.meter(task, mode, reference, self.asked.seed)
            for name, task in zip(MEASURES, tasks, strict=True)
        }

    def outcomes(
        self, meters: dict[str, Meter], neurons: Chosen, examples: Sequence[int]
    ) -> dict[str, Outcomes]:
        """Measure each example's outcomes with some neurons erased; NaN where there is none."""
        found = {}
        for name, meter in meters.items():
            rows = meter.under(neurons, examples, self.progress, f"{meter.task.name}, erased")
            known = outcomes_by_example(rows)
            found[name] = np.array([known.get(example, np.nan) for example in examples])
        return found

    def score(self, meter: Meter, neurons: Chosen, examples: Sequence[int]) -> Score:
        """Score the task with some neurons erased, from rows already there."""
        return meter.score(meter.under(neurons, examples, self.progress, meter.task.name))
