"""Erasing neurons: what is lost without the located ones, and what without others as many.

The paper compares located with random neurons. Ours are 19 draws of random neurons, from the whole
model and, stricter, as many in each layer, and strictest, as active on the same texts besides;
those of the lowest scores; a curve over the share of located neurons erased; and what is lost on
other tasks, which tells a capability's neurons from those that everything needs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64

from caploc.declaration import Allowed
from caploc.folder import ERASURE
from caploc.measurement import Meter, Meters
from caploc.neurons.finding import TaskNeurons
from caploc.neurons.model import Chosen, NeuronModel
from caploc.neurons.options import (
    ACTIVE,
    BOTTOM,
    KNOWN_ARMS,
    LAYERS,
    LOCATED,
    OWN,
    RANDOM,
    Erasing,
)
from caploc.neurons.report import (
    NOTHING,
    Exhibit,
    Found,
    Reported,
    chart_curves,
    chart_points,
    join_draws,
    over_draws,
    points_of,
    report,
    tabulate_effects,
    write_interval,
    write_number,
)
from caploc.neurons.study import (
    NeuronSession,
    TaskSource,
    outcomes_of,
    read_located,
    reopen_study,
)
from caploc.progress import Progress
from caploc.result import Score
from caploc.stats import Interval, JsonRecord, mean_interval
from caploc.stats.chance import (
    Specificity,
    activity_matched,
    bottom,
    random_sets,
    specificity,
)
from caploc.stats.threshold import Scores
from caploc.wording import inline

ACTIVE_ON = 30  # examples that activity is measured on
CURVE_DRAWS = 3  # of random neurons at each point of the curve
MEASURES = ("metric", "logprob")
Outcomes = Float64[np.ndarray, " examples"]
Effects = Mapping[tuple[str, str], float | None]  # by the task whose neurons it is, and the judged
YES_NO = {True: "yes", False: "no", None: NOTHING}


@dataclass(frozen=True)
class ArmLoss(JsonRecord):
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
class Erased(JsonRecord):
    """One task's located neurons erased, and what one judging task loses.

    `metric` and `logprob` hold the located loss against that of random neurons of the same number
    in every layer, in standard deviations of draws; None where none were drawn.
    """

    judged: str
    examples: int
    intact: Score
    arms: list[ArmLoss]
    metric: Specificity | None
    logprob: Specificity | None

    @property
    def located(self) -> ArmLoss:
        return next(lost for lost in self.arms if lost.arm == LOCATED)

    def of_arm(self, arm: str) -> list[ArmLoss]:
        return [lost for lost in self.arms if lost.arm == arm]

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
            **{
                f"{name}_specificity": held and held.as_dict() | {"per_item": None}
                for name, held in (("metric", self.metric), ("logprob", self.logprob))
            },
            "beats_every_layer_matched_draw": self.beats(),
            "beats_every_uniform_draw": self.beats(RANDOM),
            "beats_every_draw_as_active": self.beats(ACTIVE),
        }


@dataclass(frozen=True)
class Eraser:
    """Erases the neurons found for one task.

    Without `activity` no arm is matched by it, without the neurons of `others` none is its own.
    """

    meters: Meters[NeuronModel]
    asked: Erasing
    found: TaskNeurons
    progress: Progress
    activity: Scores | None = None
    others: Chosen | None = None

    def arms(self) -> list[tuple[str, int, Chosen]]:
        """List name, number and neurons of every arm."""
        located, seed = self.found.located, self.asked.seed
        grid, moments = self.meters.grid, self.found.moments
        drawn = {
            RANDOM: random_sets(located, None, self.asked.draws, seed=seed),
            LAYERS: random_sets(located, grid, self.asked.draws, seed=seed),
        }
        if self.activity is not None:
            drawn[ACTIVE] = activity_matched(
                located, grid, self.activity, self.asked.draws, seed=seed
            )
        own = None if self.others is None else located & ~self.others
        return [
            (LOCATED, 0, located),
            *([] if own is None or not own.any() else [(OWN, 0, own)]),
            *((arm, n, chosen) for arm, sets in drawn.items() for n, chosen in enumerate(sets)),
            (BOTTOM, 0, bottom(moments.mean, located, absolute=moments.absolute)),
        ]

    def erase(self, source: TaskSource, arms: Sequence[str] = KNOWN_ARMS) -> Erased:
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
            score = self.score(meters, neurons, examples).score
            told.append(ArmLoss(arm, draw, score, *map(mean_interval, lost.values())))
        (located,), drawn = effects[LOCATED], effects[LAYERS]
        held = (
            specificity(located[m], np.stack([each[m] for each in drawn])) if drawn else None
            for m in MEASURES
        )
        intact_score = self.score(meters, nothing, examples)
        return Erased(source.name, len(examples), intact_score, told, *held)

    def doses(self, source: TaskSource) -> list[dict[str, Any]]:
        """Measure what the task loses as more of the located neurons go, highest scores first.

        `random` is what it loses without others as many in each layer, mean over some draws.
        """
        grid = self.meters.grid
        columns, meters = self.found.ordered, self.measures(source)
        likely = {"logprob": meters["logprob"]}
        examples = source.judge_on[: self.asked.limit]
        nothing = self.found.located & False
        intact = self.outcomes(meters, nothing, examples)
        curve = []
        for dose in self.asked.doses:
            count = max(1, round(dose * len(columns)))
            neurons = nothing.copy()
            neurons[columns[:count]] = True
            cut = self.outcomes(meters, neurons, examples)
            lost = {name: mean_interval(intact[name] - cut[name]).as_dict() for name in MEASURES}
            drawn = [
                intact["logprob"] - self.outcomes(likely, each, examples)["logprob"]
                for each in random_sets(neurons, grid, CURVE_DRAWS, seed=self.asked.seed)
            ]
            random = mean_interval(np.mean(drawn, axis=0)).as_dict()
            curve.append({"dose": dose, "neurons": count, **lost, "random": random})
        return curve

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


@dataclass(frozen=True)
class ErasedTask(JsonRecord):
    """What is lost without one task's neurons: by the task itself, and by others.

    `doses` is the task's loss as more of its neurons go.
    """

    task: str
    neurons: int
    own: Erased
    doses: list[dict[str, Any]]
    others: list[Erased] = field(default_factory=list)


def erase(
    folder: Path,
    asked: Erasing,
    progress: Progress | None = None,
    *,
    command: str = "",
    allowed: Allowed | None = None,
) -> Reported:
    """Erase the neurons of every task of a finished `locate`; write `erasure.json`."""
    with reopen_study(
        folder, progress, allowed, tasks=asked.tasks, others=asked.others, mode=asked.mode
    ) as session:
        if asked.neurons:  # a mistake in a name shows before the model is loaded
            read_located(folder).grid.mask(asked.neurons)
        model = session.study.model.name
        erased = erase_tasks(session, asked)
        results: dict[str, Any] = {
            "model": model,
            "mode": asked.mode,
            "neurons": list(asked.neurons) or None,
            "tasks": [each.as_dict() for each in erased],
            "cost": session.meters.cost.as_dict(),
        }
        line = (
            f"{'Named' if asked.neurons else 'Located'} neurons are erased ({asked.mode}); losses "
            "are on examples that no neuron was found on, in the task's own score and in nats of "
            "log-probability for each gold token."
        )
        shown, title = erasure_exhibits(results["tasks"]), f"Erasing neurons of {model}"
        return report(folder / ERASURE, results, shown, title, command, [line], "erasure")


def erase_tasks(session: NeuronSession, asked: Erasing) -> list[ErasedTask]:
    """Measure what located and judged tasks lose; raises UserError if no neuron is located."""
    arms = {*asked.arms, *asked.beside}
    done = []
    chosen = session.model.grid.mask(asked.neurons) if asked.neurons else None
    named = asked.tasks or session.study.tasks
    for task in session.with_neurons(asked.tasks, "erase") if chosen is None else named:
        found = session.found(task)
        if chosen is not None:
            found = replace(found, located=chosen)
        activity = session.activity(task, ACTIVE_ON) if ACTIVE in arms else None
        others = join_others(session, asked, task) if OWN in arms else None
        eraser = Eraser(session.meters, asked, found, session.progress, activity, others)
        own = eraser.erase(session.sources[task], asked.arms)
        beside = [
            eraser.erase(session.sources[other], asked.beside)
            for other in session.sources
            if other != task
        ]
        doses = eraser.doses(session.sources[task])
        done.append(ErasedTask(task, int(found.located.sum()), own, doses, beside))
    return done


def join_others(session: NeuronSession, asked: Erasing, task: str) -> Chosen:
    """Join the neurons of all tasks of other kinds."""
    kind = asked.kinds.get(task, task)
    sets = [session.found(t).located for t in session.study.tasks if asked.kinds.get(t, t) != kind]
    return np.any([session.found(task).located & False, *sets], axis=0)


def erasure_exhibits(tasks: Sequence[Found]) -> list[Exhibit]:
    """Show what tasks lose: by arm, by the share erased, and each without another's neurons."""
    title = "Log-probability that each task (column) loses without the neurons of another (row)"
    effects = list_losses(tasks), list_losses(tasks, LAYERS)
    doses = [tabulate_doses(tasks)] if tasks[0]["doses"] else []
    arms = tabulate_arms({task["task"]: task["own"] for task in tasks})
    return [arms, *doses, tabulate_effects(title, "erased", *effects, losses=True)]


def tabulate_arms(erased: Mapping[str, Found]) -> Exhibit:
    """Show what each task loses without its located neurons, beside others as many."""
    rows, points = [], []
    for task, own in erased.items():
        arms: dict[str, list[Found]] = {}
        for each in own["arms"]:
            arms.setdefault(each["arm"], []).append(each)
        intact, held = own["intact"], own["logprob_specificity"]
        lost = {arm: join_draws([each["logprob"] for each in of]) for arm, of in arms.items()}
        scores = {
            arm: write_interval(over_draws(each["score"] for each in arms.get(arm, ())))
            for arm in (OWN, ACTIVE, LAYERS, RANDOM, BOTTOM)
        }
        points += points_of(task, lost)
        rows.append(
            {
                "task": task,
                "intact": f"{write_number(intact['score'])} ± {write_number(intact['stderr'])}",
                "located erased": write_number(arms[LOCATED][0]["score"]),
                **scores,
                "log-probability lost": write_interval(lost[LOCATED]),
                "more than in the same layers": write_interval(held and held["excess"]),
                "beats every draw": YES_NO[own["beats_every_layer_matched_draw"]],
                "beats every one as active": YES_NO[own["beats_every_draw_as_active"]],
            }
        )
    note = (
        "Scores without the neurons; of draws the mean, the lowest and the highest. Draws as "
        "active match layer and activity of the located neurons one by one. Log-probability is in "
        "nats for each gold token, with 95 % intervals over examples."
    )
    title = "Located neurons erased, against others as many"
    return Exhibit.of(title, rows, [note], chart_points(points, "log-probability lost, nats"))


def tabulate_doses(tasks: Sequence[Found]) -> Exhibit:
    """Show what is lost as more of the located neurons go."""
    rows, points = [], []
    for task in tasks:
        cells = {}
        for each in task["doses"]:
            share = 100 * each["dose"]
            lost = write_number(each["logprob"]["mean"])
            cells[f"{share:g} %"] = f"{lost} ({each['neurons']})"
            for kind, found in (("", each["logprob"]), (", random", each["random"])):
                series = f"{inline(task['task'])}{kind}"
                points.append({"series": series, "x": share, "y": found["mean"]})
        rows.append({"task": task["task"], **cells})
    note = (
        "The highest scores go first; in brackets the number of neurons. The curves beside are of "
        f"random neurons, as many in each layer: the mean of {CURVE_DRAWS} draws."
    )
    return Exhibit.of(
        "Log-probability lost by the share of located neurons erased",
        rows,
        [note],
        chart_curves(points, "located neurons erased, %", "log-probability lost, nats a token"),
    )


def list_losses(tasks: Sequence[Found], arm: str = LOCATED) -> Effects:
    """List what each judged task loses of log-probability without each task's neurons of an arm.

    `tasks` are those of the file; of draws it is the mean.
    """
    return {
        (task["task"], one["judged"]): over_draws(
            each["logprob"]["mean"] for each in one["arms"] if each["arm"] == arm
        )["mean"]
        for task in tasks
        for one in (task["own"], *task["others"])
    }
