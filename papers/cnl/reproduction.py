"""Every experiment of CNL, one after another, into one folder; what was measured is not again.

Sets that are found again say little if neurons that are high on all text would be found again too,
or if they hang on how neurons are scored: `caploc.neurons.controls` holds them against others, and
the number of points of the integral varies here.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from caploc.errors import raise_together
from caploc.neurons.attribution import Attribution
from caploc.neurons.controls import measure_controls
from caploc.neurons.enhancing import beats_every_draw, enhance_located, list_gains
from caploc.neurons.erasure import erase, list_losses
from caploc.neurons.finding import score_cache
from caploc.neurons.locating import check_kinds, locate
from caploc.neurons.sets import (
    COMPARED,
    cohesion,
    correlate_matrices,
    overlap_rates,
    rank_correlation,
)
from caploc.neurons.study import NeuronLab, NeuronStudy, open_study, write_result
from caploc.progress import Progress, Silent
from caploc.stats.threshold import best
from papers.cnl.decoupling import measure_decoupling
from papers.cnl.fact_study import FIDELITY, RELIABILITY, measure_facts
from papers.cnl.preset import CnlPreset
from papers.cnl.verdicts import show_crossing, verdicts
from papers.exhibits import Exhibit, Value, write_all

Effects = Mapping[tuple[str, str], float | None]  # by whose neurons, and the task judged
SHARE = 0.01  # of all neurons, at which scores are compared whatever their spread
POINTS = (5, 10, 19, 40)
JUDGED = ("main", "erasure", "enhancement", "runs_planned", "fidelity", "reliability")


def points_exhibit(lab: NeuronLab, tasks: Sequence[str], examples: int) -> Exhibit:
    """Show how the neurons of integrated gradients depend on the number of points."""
    rows = []
    for task in tasks:
        spans = lab.spans(task)[:examples]
        asked = {
            f"S = {steps}": replace(lab.study.attribution, method="integrated", steps=steps)
            for steps in POINTS
        } | {"gradient": Attribution("gradient")}
        scores = {name: lab.finder(each).stretch(task, spans).mean for name, each in asked.items()}
        most = scores[f"S = {max(POINTS)}"]
        for name, mean in scores.items():
            same = overlap_rates(best(most, SHARE), best(mean, SHARE)).largest
            row = {"task": task, "points": name, "best 1 % shared": Value(same)}
            most_points = f"rank correlation with S = {max(POINTS)}"
            rows.append(row | {most_points: Value(rank_correlation(most, mean))})
    note = f"On {examples} examples. The paper's S is 19; gradient takes the last point alone."
    return Exhibit.of("points", "Points of the integral (S)", rows, [note])


WORDS = (
    "Of the paper only the figures in docs/cnl.md are known to us, and none of its tables; what "
    "stands here is measured, by recipes that are ours where none is published, and reproduces no "
    "number of the paper. Brackets are 95 % intervals. A dash is something that was not measured, "
    "or is not defined."
)


@dataclass
class Reproduction:
    """A preset, the folder it fills, and what was found so far."""

    preset: CnlPreset
    folder: Path
    progress: Progress
    command: str
    results: dict[str, Any] = field(default_factory=dict)
    exhibits: list[Exhibit] = field(default_factory=list)

    @property
    def neurons(self) -> Path:
        """Where the sets lie that are erased, tuned and crossed."""
        return self.folder / ("neurons-sigma" if self.preset.share is None else "neurons")

    def measure(self, command: Callable[..., Any], *asked: Any) -> Any:
        """Run a command, which writes a page of its own into its folder; return its result."""
        return command(*asked, self.progress, command=self.command)[0]

    def located(self) -> None:
        """Neurons by the paper's threshold and by an equal share (rows 11 to 15 and 21)."""
        sigma, found = self.folder / "neurons-sigma", {}
        found["sigma"] = self.locate(self.preset.study(None), sigma)
        if self.preset.share is not None:  # the scores are the same whatever the rule
            score_cache(self.neurons).adopt(score_cache(sigma))
            found["share"] = self.locate(self.preset.study(self.preset.share), self.neurons)
        self.results |= {"located": found, "main": found.get("share", found["sigma"])}

    def locate(self, study: NeuronStudy, place: Path) -> Any:
        """Locate the neurons of a study, in a folder of its own; the results."""
        kinds = {task: kind for task, kind in self.preset.kinds.items() if task in study.tasks}
        return self.measure(partial(locate, kinds=kinds), study, place)

    def scored(self) -> None:
        """Other scores, points of the integral, controls (11, 19, 22)."""
        asked = self.preset.scores
        tasks = asked.compared or self.preset.tasks
        study = self.preset.study(self.preset.share)
        with open_study(study, self.neurons, self.progress, "") as lab:
            points = points_exhibit(lab, tasks, asked.point_examples)
        self.measure(measure_controls, self.neurons, self.preset.controlling())
        self.exhibits.append(points)

    def erased(self) -> None:
        """Erasure (17), cross-data (18)."""
        others = [self.preset.generic] if self.preset.generic else []
        self.results["erasure"] = self.measure(erase, self.neurons, self.preset.cuts(), others)
        self.cross("erase", list_losses(self.results["erasure"]["tasks"]), self.results["main"])

    def tuned(self) -> None:
        """Enhancement (16) and, with the erasure, cross-data (18)."""
        preset = self.preset
        if preset.tuning.fewshot is None:
            place, located = self.neurons, self.results["main"]
        else:
            place = self.folder / "neurons-start"
            located = self.locate(preset.start, place)
        seeds, asked_for = preset.tuning.seeds, preset.tuning.tasks or preset.tasks
        some = {each["task"] for each in located["tasks"] if each["neurons"]}
        tasks = [task for task in asked_for if task in some]
        self.results |= {"enhancement": {}, "runs_planned": len(seeds) * len(tasks)}
        for seed in seeds:
            asked = preset.enhancing(seed)
            for task in tasks:
                one = replace(asked, tasks=(task,))
                found, _ = enhance_located(place, one, self.progress, command=self.command)
                self.results["enhancement"].setdefault(seed, {})[task] = found["tasks"][task]
                self.write()  # one run takes minutes to hours
            self.measure(enhance_located, place, asked)
        self.results["enhancement_beats"] = [
            beats_every_draw(each, task)
            for tasks_of_seed in self.results["enhancement"].values()
            for task, each in tasks_of_seed.items()
        ]
        self.cross("tune", list_gains(next(iter(self.results["enhancement"].values()))), located)

    def cross(self, how: str, effects: Effects, located: Any) -> None:
        """Sum up what one task's neurons do to other tasks, within a kind and across."""
        if located["overlaps"]:
            crossed = cross(how, effects, located["overlaps"], self.preset.kinds)
            self.results.setdefault("crossing", []).append(crossed)

    def write(self) -> list[Exhibit]:
        """Write what was found so far: verdicts and what they rest on, on a page.

        `verdicts.json` holds the results that the verdicts rest on.
        """
        exhibits = [
            *verdicts(self.results, self.preset.kinds),
            *self.exhibits,
            *show_crossing(self.results.get("crossing", [])),
        ]
        kept = {name: self.results[name] for name in JUDGED if name in self.results}
        kept["model"] = {"name": self.preset.model}
        write_result(self.folder / "verdicts.json", kept, self.command)
        write_all(exhibits, self.folder, self.preset.about, f"    {self.command}\n\n{WORDS}")
        return exhibits

    def facts(self) -> None:
        """Fidelity and reliability of single facts (1 to 8, 20)."""
        for question in (FIDELITY, RELIABILITY):
            self.results[question] = {}
            for name in self.preset.facts.sets:
                place = self.folder / f"facts-{Path(name).stem}"
                study, measure = self.preset.fact_study(name), partial(measure_facts, question)
                self.results[question][name] = self.measure(measure, study, place)
                self.write()  # each takes half an hour

    def decoupled(self) -> None:
        """Capability and content apart (9, 10)."""
        for name in self.preset.decoupling.sets:
            place = self.folder / f"decoupling-{Path(name).stem}"
            study = self.preset.decoupling_study(name)
            _, exhibits = measure_decoupling(study, place, self.progress, command=self.command)
            self.exhibits += exhibits


def reproduce_cnl(
    preset: CnlPreset, folder: Path, progress: Progress | None = None, *, command: str = ""
) -> list[Exhibit]:
    """Measure everything that a preset asks for; write every table, figure and an index.

    Raises UserError for a mistake, before a model is loaded where possible; RunFailed if the
    machine gives up, and then what was measured is kept.
    """
    check_cnl_options(preset)
    work = Reproduction(preset, folder, progress or Silent(), command)
    shown: list[Exhibit] = []
    for step in preset.steps:
        getattr(work, step)()
        shown = work.write()  # after every step: a killed run leaves what it found
    return shown


def check_cnl_options(preset: CnlPreset) -> None:
    """Refuse every mistake that can be seen before weights are loaded, by one UserError."""
    study = preset.study(preset.share)
    preset_checks: list[Callable[[], object]] = [
        preset.check_names,
        preset.study(None).check,
        study.check,
        study.rule.check,
        study.attribution.check,
        *(replace(study.attribution, method=method).check for method in preset.scores.others),
        preset.cuts().check,
        preset.start.check,
        *(partial(preset.enhancing(n).check, preset.start.tasks) for n in preset.tuning.seeds),
        partial(check_kinds, preset.kinds, preset.tasks, "the run", "they are"),
        *(preset.fact_study(name).check for name in preset.facts.sets),
        *(preset.decoupling_study(name).check for name in preset.decoupling.sets),
    ]
    raise_together(preset_checks)


def cross(
    how: str,
    effects: Effects,
    overlaps: dict[str, Any],
    kinds: dict[str, str],
) -> dict[str, Any]:
    """Sum up effects of one task's neurons on others: within a kind, across, and by overlap.

    The paper's claim is that a dataset's neurons serve other datasets of the same capability; the
    summary is ours. Effects are in nats of log-probability for each gold token, by the task whose
    neurons are cut or tuned and the task judged.
    """
    tasks = [task for task in overlaps["datasets"] if (task, task) in effects]
    table = np.array([[effects.get((a, b), np.nan) for b in tasks] for a in tasks], dtype=float)
    places = [overlaps["datasets"].index(task) for task in tasks]
    shared = np.array(overlaps["rates"][COMPARED], dtype=float)[np.ix_(places, places)]
    found = cohesion(table, tasks, {task: kinds.get(task, task) for task in tasks})
    together = correlate_matrices(table, shared).spearman if len(tasks) > 2 else None
    told = together.as_dict() if together else None
    return {"how": how, "tasks": tasks, "kinds": found.as_dict(), "overlap": told}
