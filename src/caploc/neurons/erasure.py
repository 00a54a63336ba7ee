"""Erasing neurons: what is lost without the located ones, and what without others as many.

The paper compares located with random neurons. Ours are 19 draws of random neurons, from the whole
model and, stricter, as many in each layer; and what is lost on other tasks, which tells a
capability's neurons from those that everything needs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from jaxtyping import Float64

from caploc.declaration import Allowed
from caploc.folder import ERASURE, package_versions
from caploc.measurement import Meter, Meters
from caploc.neurons.chance import Excess, random_sets
from caploc.neurons.finding import TaskNeurons
from caploc.neurons.model import Chosen, NeuronModel
from caploc.neurons.options import ARMS, LAYERS, LOCATED, RANDOM, Erasing
from caploc.neurons.report import (
    NOTHING,
    Exhibit,
    chart_points,
    join_draws,
    over_draws,
    points_of,
    report,
    tabulate_effects,
    write_interval,
    write_number,
)
from caploc.neurons.result import ArmLoss, Erased, ErasedTask, ErasureFile
from caploc.neurons.stats import mean_interval
from caploc.neurons.study import (
    NeuronSession,
    TaskSource,
    find_tasks,
    outcomes_of,
    read_located,
    reopen_study,
)
from caploc.progress import Progress
from caploc.result import RunCost, Score

MEASURES = ("metric", "logprob")
Outcomes = Float64[np.ndarray, " examples"]
Effects = Mapping[tuple[str, str], float]  # by the task whose neurons it is, and the judged
YES_NO = {True: "yes", False: "no", None: NOTHING}


@dataclass(frozen=True)
class Eraser:
    """Erases the neurons found for one task."""

    meters: Meters[NeuronModel]
    asked: Erasing
    found: TaskNeurons
    progress: Progress

    def arms(self) -> list[tuple[str, int, Chosen]]:
        """List name, number and neurons of every arm."""
        located, seed = self.found.located, self.asked.seed
        drawn = {
            RANDOM: random_sets(located, None, self.asked.draws, seed=seed),
            LAYERS: random_sets(located, self.meters.grid, self.asked.draws, seed=seed),
        }
        return [
            (LOCATED, 0, located),
            *((arm, n, chosen) for arm, sets in drawn.items() for n, chosen in enumerate(sets)),
        ]

    def erase(self, source: TaskSource, arms: Sequence[str] = ARMS) -> Erased:
        """Measure what a judging task loses under some arms."""
        meters, examples = self.measures(source), source.judge_on[: self.asked.limit]
        nothing = self.found.located & False
        intact = self.outcomes(meters, nothing, examples)
        told = []
        effects: dict[str, list[dict[str, Outcomes]]] = {LOCATED: [], LAYERS: []}
        for arm, draw, neurons in self.arms():
            if arm not in arms:
                continue
            cut = self.outcomes(meters, neurons, examples)
            lost = {name: intact[name] - cut[name] for name in MEASURES}
            effects.setdefault(arm, []).append(lost)
            left = self.score(meters, neurons, examples).score
            told.append(ArmLoss(arm, draw, left, *map(mean_interval, lost.values())))
        (located,), drawn = effects[LOCATED], effects[LAYERS]

        def excess(measure: str) -> Excess | None:
            if not drawn:
                return None
            return Excess.of(located[measure], np.stack([each[measure] for each in drawn]))

        score, held = self.score(meters, nothing, examples), (excess("metric"), excess("logprob"))
        return Erased.of(source.name, len(examples), score, told, held)

    def measures(self, source: TaskSource) -> dict[str, Meter]:
        """Meter the judging task by its own metric, and by the gold answer's probability."""
        tasks = {"metric": source.judging, "logprob": source.gold}
        return {name: self.meters.meter(task) for name, task in tasks.items()}

    def outcomes(
        self, meters: dict[str, Meter], neurons: Chosen, examples: Sequence[int]
    ) -> dict[str, Outcomes]:
        """Measure each example's outcomes with some neurons erased; NaN where there is none."""
        return {
            name: outcomes_of(
                meter.under(neurons, examples, self.progress, f"{meter.task.name}, erased")
            )
            for name, meter in meters.items()
        }

    def score(self, meters: dict[str, Meter], neurons: Chosen, examples: Sequence[int]) -> Score:
        """Score the task with some neurons erased, from rows already there."""
        meter = meters["metric"]
        return meter.score(meter.under(neurons, examples, self.progress, meter.task.name))


def erase(
    folder: Path,
    asked: Erasing,
    progress: Progress | None = None,
    *,
    command: str = "",
    allowed: Allowed | None = None,
) -> tuple[ErasureFile, list[Exhibit]]:
    """Erase the neurons of every task of a finished `locate`; write `erasure.json`."""
    with reopen_study(folder, progress, allowed, tasks=asked.tasks, others=asked.others) as session:
        if asked.neurons:  # a mistake in a name shows before the model is loaded
            read_located(folder).grid.mask(asked.neurons)
        model = session.study.model.name
        erased = erase_tasks(session, asked)
        result = ErasureFile(
            model=model,
            neurons=list(asked.neurons) or None,
            tasks=erased,
            cost=RunCost.model_validate(session.meters.cost.as_dict()),
            command=command,
            versions=package_versions(),
        )
        line = (
            f"{'Named' if asked.neurons else 'Located'} neurons are erased; losses "
            "are on examples that no neuron was found on, in the task's own score and in nats of "
            "log-probability for each gold token."
        )
        shown = erasure_exhibits(erased, own=not asked.neurons)
        title = f"Erasing neurons of {model}"
        return report(folder / ERASURE, result, shown, title, [line], "erasure")


def erase_tasks(session: NeuronSession, asked: Erasing) -> list[ErasedTask]:
    """Measure what located and judged tasks lose; raises UserError if no neuron is located."""
    done = []
    chosen = session.model.grid.mask(asked.neurons) if asked.neurons else None
    named = find_tasks(session.study.tasks, asked.tasks)
    for task in session.with_neurons(asked.tasks, "erase") if chosen is None else named:
        found = session.found(task)
        if chosen is not None:
            found = replace(found, located=chosen)
        eraser = Eraser(session.meters, asked, found, session.progress)
        own = eraser.erase(session.sources[task])
        beside = [
            eraser.erase(session.sources[other], (LOCATED, LAYERS))
            for other in session.sources
            if other != task
        ]
        done.append(ErasedTask(task, int(found.located.sum()), own, beside))
    return done


def erasure_exhibits(tasks: Sequence[ErasedTask], *, own: bool = True) -> list[Exhibit]:
    """Show what tasks lose: by arm, and, of neurons of their `own`, each without another's."""
    title = "Log-probability that each task (column) loses without the neurons of another (row)"
    effects = list_losses(tasks), list_losses(tasks, LAYERS)
    arms = tabulate_arms({task.task: task.own for task in tasks})
    across = [tabulate_effects(title, "erased", *effects, losses=True)] if own else []
    return [arms, *across]


def tabulate_arms(erased: Mapping[str, Erased]) -> Exhibit:
    """Show what each task loses without its located neurons, beside others as many."""
    rows, points = [], []
    for task, own in erased.items():
        arms = list(dict.fromkeys(lost.arm for lost in own.arms))
        lost = {arm: join_draws([each.logprob for each in own.of_arm(arm)]) for arm in arms}
        scores = {
            arm: write_interval(over_draws(each.score for each in own.of_arm(arm)))
            for arm in (LAYERS, RANDOM)
        }
        points += points_of(task, lost)
        held = own.logprob_specificity
        rows.append(
            {
                "task": task,
                "intact": f"{write_number(own.intact.score)} ± {write_number(own.intact.stderr)}",
                "erased": write_number(own.located.score),
                **scores,
                "log-probability lost": write_interval(lost[LOCATED]),
                "more than in the same layers": write_interval(held.excess if held else None),
                "beats every draw": YES_NO[own.beats_every_layer_matched_draw],
            }
        )
    note = (
        "Scores without the neurons; of draws the mean, the lowest and the highest. "
        "Log-probability is in nats for each gold token, with 95 % intervals over examples."
    )
    title = "Neurons erased, against others as many"
    return Exhibit.of(title, rows, [note], chart_points(points, "log-probability lost, nats"))


def list_losses(tasks: Sequence[ErasedTask], arm: str = LOCATED) -> Effects:
    """List what each judged task loses of log-probability without each task's neurons of an arm.

    Of draws it is the mean; NaN where the arm was not measured.
    """
    return {
        (task.task, one.judged): over_draws(each.logprob.mean for each in one.of_arm(arm)).mean
        for task in tasks
        for one in (task.own, *task.others)
    }
