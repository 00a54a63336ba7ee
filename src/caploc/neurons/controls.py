"""Neurons found where there is no capability, held against a task's own; and other thresholds.

Averaged over enough examples any stable score finds the same neurons again, also those that are
high on all text. So neurons are located with each answer put to another question, on plain text and
by other scores, as many of each as the task has; what they share with the task's own and what
erasing them costs says how much of a located set is the task's. The comparison is ours.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from caploc.declaration import Allowed
from caploc.engine.encoding import Span
from caploc.errors import BadOption
from caploc.folder import CONTROLS
from caploc.naming import is_file
from caploc.neurons.erasure import Eraser
from caploc.neurons.finding import TaskNeurons
from caploc.neurons.model import Chosen
from caploc.neurons.options import LAYERS, LOCATED, Controlling, Erasing
from caploc.neurons.report import (
    Exhibit,
    Found,
    Reported,
    chart_points,
    join_draws,
    points_of,
    report,
    write_interval,
    write_number,
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
from caploc.stats.threshold import best
from caploc.tasks.task import Rolling

OWN, EXCHANGED, PLAIN = "its own", "answers exchanged", "plain text"
Row = dict[str, Any]


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

    def erase(self, task: str, found: TaskNeurons, chosen: Chosen) -> Row:
        """Measure what a task loses without some neurons, and without others as many in layers."""
        asked = self.asked
        erasing = Erasing(draws=asked.draws, limit=asked.limit, seed=asked.seed)
        eraser = Eraser(
            self.session.meters, erasing, replace(found, located=chosen), self.session.progress
        )
        erased = eraser.erase(self.session.sources[task], (LOCATED, LAYERS))
        own, drawn = erased.located, [lost.logprob.as_dict() for lost in erased.of_arm(LAYERS)]
        return {
            "logprob": own.logprob.as_dict(),
            "metric": own.metric.as_dict(),
            "at_random": join_draws(drawn),
        }

    def held_against(self, task: str) -> tuple[list[Row], Row]:
        """Hold every control's neurons, as many, against a task's; and what none of them has."""
        main = self.session.found(task)
        size = float(main.located.mean())
        rows: list[Row] = []
        left = main.located.copy()
        for name, found in self.found(task):
            chosen = main.located if name == OWN else best(found.moments.mean, size)
            sets = np.stack([best(part.mean, size) for part in found.parts])
            left &= (name == OWN) | ~chosen
            row = {
                "task": task,
                "control": name,
                "neurons": int(chosen.sum()),
                "shared": overlap_rates(main.located, chosen).reference,
                "spearman": rank_correlation(main.moments.mean, found.moments.mean),
                "within": within(sets).rates[COMPARED].as_dict(),
            }
            rows.append(row | self.erase(task, found, chosen))
        located, count = int(main.located.sum()), int(left.sum())
        share = count / located
        return rows, {"task": task, "located": located, "count": count, "share": share}

    def sweep(self) -> Iterator[Row]:
        """Choose at every sigma, and measure overlap within, across and what erasing costs."""
        study = self.session.study
        for sigma in self.asked.sigmas:
            rule = replace(study.rule, sigma=sigma, share=None, votes=None)
            grid = self.session.neurons.grid
            sets = {
                task: np.stack([rule.choose(part, grid) for part in self.session.found(task).parts])
                for task in study.tasks
            }
            for task in self.tasks:
                own, others = sets[task], {n: each for n, each in sets.items() if n != task}
                across = between(own, others, COMPARED).as_dict() if others else None
                chosen = commonality_set(own, study.least)
                row = {"task": task, "sigma": sigma, "neurons": int(chosen.sum())}
                row |= {"within": within(own).rates[COMPARED].as_dict(), "across": across}
                cost = self.erase(task, self.session.found(task), chosen) if chosen.any() else {}
                yield {"logprob": None, "metric": None, "at_random": None} | row | cost


def measure_controls(
    folder: Path,
    asked: Controlling,
    progress: Progress | None = None,
    *,
    command: str = "",
    allowed: Allowed | None = None,
) -> Reported:
    """Hold the neurons of a finished `locate` against controls; write `controls.json`."""
    plain = () if asked.plain is None or is_file(Path(asked.plain)) else (asked.plain,)
    with reopen_study(folder, progress, allowed, tasks=asked.tasks, others=plain) as session:
        work = ControlledRun(session, asked)
        rows: list[Row] = []
        left: list[Row] = []
        for task in work.tasks:
            found, own = work.held_against(task)
            rows, left = [*rows, *found], [*left, own]
        results = {
            "model": session.study.model.name,
            "generic": asked.plain,
            "judged": asked.limit or "all",
            "arms": rows,
            "specific": left,
            "sigmas": sorted(work.sweep(), key=lambda row: (row["task"], row["sigma"])),
            "cost": session.meters.cost.as_dict(),
        }
        title = f"Controls of the neurons of {session.study.model.name}"
        shown = controls_exhibits(results)
        return report(folder / CONTROLS, results, shown, title, command, page="controls")


def controls_exhibits(results: Found) -> list[Exhibit]:
    """Show what other neurons share with a task's and cost it, and other thresholds."""
    tables = []
    for title, name, head, notes in (
        (
            "What other neurons, as many, have in common with a task's and cost it",
            "arms",
            "control",
            [
                "Each control's neurons are the highest by its scores, as many as the task's own. "
                "Lost: without these neurons on held-out examples, in nats a gold token and in "
                "the task's own score, with 95 % intervals over examples. A control that shares "
                "most of the neurons, or costs the task as much, says that these are not the "
                "task's alone."
            ],
        ),
        ("Other thresholds, with what they cost", "sigmas", "sigma", []),
    ):
        rows, points = [], []
        for each in results[name]:
            cost = {
                "these neurons": each["logprob"],
                "random in layers": each["at_random"],
            }
            points += points_of(f"{each['task']}, {each[head]}", cost)
            rows.append(
                {
                    f"task, {head}": f"{each['task']}, {each[head]}",
                    "neurons": f"{each['neurons']:,}",
                    "of the task's own": write_number(each.get("shared")),
                    "rank correlation of scores": write_number(each.get("spearman")),
                    "overlap within": write_interval(each["within"]),
                    "overlap across": write_interval(each.get("across")),
                    "log-probability lost": write_interval(each["logprob"], 4),
                    "random in layers lose": write_interval(each["at_random"], 4),
                    "task's own score lost": write_interval(each["metric"]),
                }
            )
        chart = chart_points(points, "log-probability lost, nats a token")
        tables.append(Exhibit.of(title, rows, notes, chart))
    left = [
        {
            "task": each["task"],
            "neurons": f"{each['located']:,}",
            "left": f"{each['count']:,}",
            "share left": write_number(each["share"]),
        }
        for each in results["specific"]
    ]
    tables.insert(1, Exhibit.of("Neurons of a task that no control has", left))
    return tables
