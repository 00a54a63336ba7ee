"""Neurons found where there is no capability, held against a task's own; and other thresholds.

Averaged over enough examples any stable score finds the same neurons again, also those that are
high on all text. So neurons are located with each answer put to another question, on plain text and
by other scores, as many of each as the task has; what they share with the task's own and what
erasing them costs says how much of a located set is the task's. The comparison is ours.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from caploc.declaration import Allowed
from caploc.engine.encoding import Span
from caploc.errors import BadOption
from caploc.folder import CONTROLS, package_versions
from caploc.naming import is_file
from caploc.neurons.erasure import Eraser
from caploc.neurons.finding import TaskNeurons
from caploc.neurons.model import Chosen
from caploc.neurons.options import LAYERS, LOCATED, Controlling, Erasing
from caploc.neurons.report import (
    Exhibit,
    chart_points,
    join_draws,
    points_of,
    report,
    write_interval,
    write_number,
)
from caploc.neurons.result import (
    ComparedSet,
    ControlSet,
    ControlsFile,
    NeuronsLeft,
    ThresholdSet,
)
from caploc.neurons.sets import (
    COMPARED,
    between,
    commonality_set,
    overlap_rates,
    rank_correlation,
    within,
)
from caploc.neurons.study import NeuronSession, reopen_study
from caploc.progress import Progress
from caploc.result import RunCost
from caploc.stats import Interval
from caploc.stats.threshold import best
from caploc.tasks.task import Rolling

OWN, EXCHANGED, PLAIN = "its own", "answers exchanged", "plain text"


def exchange_answers(spans: Sequence[Span]) -> list[Span]:
    """Put to each prompt the answer of another, each answer once, and as few alike as can be.

    Answers may be few (letters): exchanged at random, many a prompt would get its own again. Raises
    BadOption if there are fewer than two.
    """
    if len(spans) < 2:
        raise BadOption(f"Answers can be exchanged among 2 items or more; got {len(spans)}.")
    order = sorted(range(len(spans)), key=lambda place: spans[place].continuation)
    most = max(Counter(span.continuation for span in spans).values())
    # Equal answers stand side by side: moved on by the longest such row, none meets itself.
    donors = dict(zip(order, np.roll(order, -min(most, len(spans) - 1)).tolist(), strict=True))
    found = []
    for place, span in enumerate(spans):
        prompt = span.inputs[: len(span.inputs) - len(span.continuation) + 1]
        answer = spans[donors[place]].continuation
        found.append(Span((*prompt, *answer[:-1]), answer))
    return found


@dataclass
class ControlledRun:
    """A run's neurons and what they are held against; scores and rows are kept with the run's."""

    session: NeuronSession
    asked: Controlling

    @cached_property
    def tasks(self) -> list[str]:
        """The tasks that are looked at, of those that have a neuron."""
        return self.session.with_neurons(self.asked.tasks, "hold against others")

    @cached_property
    def plain_text(self) -> TaskNeurons | None:
        plain, session = self.asked.plain, self.session
        if plain is None:
            return None
        if not is_file(Path(plain)):
            return session.locate(PLAIN, session.spans(plain))
        lines = Path(plain).read_text(encoding="utf-8").splitlines()
        texts = [line for line in lines if line.strip()][: session.study.examples]
        wording = session.wording
        return session.locate(PLAIN, [s for text in texts for s in wording.spans(Rolling(text))])

    def found(self, task: str) -> Iterator[tuple[str, TaskNeurons]]:
        """Find the neurons of every control of a task, the task's own first."""
        session, own = self.session, self.session.study.attribution
        spans = session.spans(task)
        yield OWN, session.found(task)
        yield EXCHANGED, session.locate(EXCHANGED, exchange_answers(spans))
        if self.plain_text is not None:
            yield PLAIN, self.plain_text
        for method in self.asked.methods:
            if method != own.method:
                yield f"by {method}", session.locate(task, spans, replace(own, method=method))

    def erase(self, task: str, found: TaskNeurons, chosen: Chosen) -> dict[str, Interval]:
        """Measure what a task loses without some neurons, and without others as many in layers.

        Nothing is measured without a neuron.
        """
        if not chosen.any():
            return {}
        session, asked = self.session, self.asked
        erasing = Erasing(draws=asked.draws, limit=asked.limit, seed=asked.seed)
        found = replace(found, located=chosen)
        eraser = Eraser(session.meters, erasing, found, session.progress)
        erased = eraser.erase(session.sources[task], (LOCATED, LAYERS))
        own, drawn = erased.located, [lost.logprob for lost in erased.of_arm(LAYERS)]
        return {"logprob": own.logprob, "metric": own.metric, "at_random": join_draws(drawn)}

    def held_against(self, task: str) -> tuple[list[ControlSet], NeuronsLeft]:
        """Hold every control's neurons, as many, against a task's; and what none of them has."""
        main = self.session.found(task)
        size, left = float(main.located.mean()), main.located.copy()
        rows = []
        for name, found in self.found(task):
            chosen = main.located if name == OWN else best(found.moments.mean, size)
            sets = np.stack([best(part.mean, size) for part in found.parts])
            left &= (name == OWN) | ~chosen
            row = ControlSet(
                task=task,
                control=name,
                neurons=int(chosen.sum()),
                shared=overlap_rates(main.located, chosen).reference,
                spearman=rank_correlation(main.moments.mean, found.moments.mean),
                within=within(sets).rates[COMPARED],
                **self.erase(task, found, chosen),
            )
            rows.append(row)
        located, count = int(main.located.sum()), int(left.sum())
        return rows, NeuronsLeft(task, located, count, count / located)

    def sweep(self) -> Iterator[ThresholdSet]:
        """Choose at every sigma, and measure overlap within, across and what erasing costs."""
        study, grid = self.session.study, self.session.model.grid
        for sigma in self.asked.sigmas:
            rule = replace(study.rule, sigma=sigma, share=None, votes=None)
            sets = {
                task: np.stack([rule.choose(part, grid) for part in self.session.found(task).parts])
                for task in study.tasks
            }
            for task in self.tasks:
                own, others = sets[task], {n: each for n, each in sets.items() if n != task}
                chosen = commonality_set(own, study.least)
                yield ThresholdSet(
                    task=task,
                    sigma=sigma,
                    neurons=int(chosen.sum()),
                    within=within(own).rates[COMPARED],
                    across=between(own, others, COMPARED) if others else None,
                    **self.erase(task, self.session.found(task), chosen),
                )


def measure_controls(
    folder: Path,
    asked: Controlling,
    progress: Progress | None = None,
    *,
    command: str = "",
    allowed: Allowed | None = None,
) -> tuple[ControlsFile, list[Exhibit]]:
    """Hold the neurons of a finished `locate` against controls; write `controls.json`."""
    plain = () if asked.plain is None or is_file(Path(asked.plain)) else (asked.plain,)
    with reopen_study(folder, progress, allowed, tasks=asked.tasks, others=plain) as session:
        work = ControlledRun(session, asked)
        rows, left = zip(*map(work.held_against, work.tasks), strict=True)
        result = ControlsFile(
            model=session.study.model.name,
            generic=asked.plain,
            judged=asked.limit or "all",
            arms=[row for each in rows for row in each],
            specific=list(left),
            sigmas=sorted(work.sweep(), key=lambda row: (row.task, row.sigma)),
            cost=RunCost.model_validate(session.meters.cost.as_dict()),
            command=command,
            versions=package_versions(),
        )
        title = f"Controls of the neurons of {session.study.model.name}"
        return report(folder / CONTROLS, result, controls_exhibits(result), title, page="controls")


def controls_exhibits(result: ControlsFile) -> list[Exhibit]:
    """Show what other neurons share with a task's and cost it, and other thresholds."""
    note = (
        "Each control's neurons are the highest by its scores, as many as the task's own. Lost: "
        "without these neurons on held-out examples, in nats a gold token and in the task's own "
        "score, with 95 % intervals over examples. A control that shares most of the neurons, or "
        "costs the task as much, says that these are not the task's alone."
    )
    controls = {f"{each.task}, {each.control}": each for each in result.arms}
    sigmas = {f"{each.task}, {each.sigma:g}": each for each in result.sigmas}
    left = [
        {
            "task": each.task,
            "neurons": f"{each.located:,}",
            "left": f"{each.count:,}",
            "share left": write_number(each.share),
        }
        for each in result.specific
    ]
    title = "What other neurons, as many, have in common with a task's and cost it"
    return [
        tabulate_sets(title, "task, control", controls, [note]),
        Exhibit.of("Neurons of a task that no control has", left),
        tabulate_sets("Other thresholds, with what they cost", "task, sigma", sigmas),
    ]


def tabulate_sets(
    title: str, head: str, sets: Mapping[str, ComparedSet], notes: Sequence[str] = ()
) -> Exhibit:
    """Show some sets by name: what they have in common, and what erasing them costs."""
    rows, points = [], []
    for name, each in sets.items():
        points += points_of(
            name, {"these neurons": each.logprob, "random in layers": each.at_random}
        )
        row = {head: name, "neurons": f"{each.neurons:,}"}
        if isinstance(each, ControlSet):
            row["of the task's own"] = write_number(each.shared)
            row["rank correlation of scores"] = write_number(each.spearman)
        row["overlap within"] = write_interval(each.within)
        if isinstance(each, ThresholdSet):
            row["overlap across"] = write_interval(each.across)
        row["log-probability lost"] = write_interval(each.logprob, 4)
        row["random in layers lose"] = write_interval(each.at_random, 4)
        row["task's own score lost"] = write_interval(each.metric)
        rows.append(row)
    return Exhibit.of(
        title, rows, notes, chart_points(points, "log-probability lost, nats a token")
    )
