"""Every experiment of CNL, one after another, into one folder; what was measured is not again."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from caploc.errors import ModelRefused, raise_together
from caploc.exhibits import files
from caploc.exhibits.exhibit import Exhibit
from caploc.exhibits.page import write_exhibits
from caploc.neurons.comparing import (
    ScoreWay,
    compare_scores,
    controls_exhibit,
    points_exhibit,
    scores_exhibit,
)
from caploc.neurons.crossing import cross
from caploc.neurons.decoupling import measure_decoupling
from caploc.neurons.enhancing import beats_every_draw, enhance_located
from caploc.neurons.erasure import erase
from caploc.neurons.fact_study import measure_fidelity, measure_reliability
from caploc.neurons.finding import score_cache
from caploc.neurons.locating import locate
from caploc.neurons.study import NeuronLab, as_text, open_study, ranged
from caploc.neurons.weights import TrainableRows
from caploc.progress import Progress, Silent
from caploc.reproduce.cnl.checklist import checklist, ends
from caploc.reproduce.cnl.preset import CnlPreset

WORDS = (
    "Of the paper only the figures in the checklist are known to us, and none of its tables; what "
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
    results: dict[str, Any] = field(default_factory=lambda: {"told": {}})
    exhibits: list[Exhibit] = field(default_factory=list)

    @property
    def neurons(self) -> Path:
        """Where sets of equal size lie, which are erased, tuned and crossed."""
        return self.folder / "neurons"

    def keep(self, found: tuple[Any, list[Exhibit]], named: str = "") -> Any:
        """Take over exhibits, under a name that no other has; the result."""
        result, exhibits = found
        for exhibit in exhibits:
            name = f"{named}-{exhibit.name}" if named else exhibit.name
            title = f"{exhibit.title} ({named})" if named else exhibit.title
            self.exhibits.append(replace(exhibit, name=name, title=title))
        return result

    def located(self) -> None:
        """Neurons by the paper's threshold and by an equal share (rows 11 to 15 and 21)."""
        found = {}
        for rule, share in (("sigma", None), ("share", self.preset.share)):
            study = self.preset.study(share)
            place = self.neurons if rule == "share" else self.folder / "neurons-sigma"
            if rule == "share":  # the scores are the same whatever the rule
                score_cache(place).adopt(score_cache(self.folder / "neurons-sigma"))
            found[rule] = self.keep(
                locate(study, place, self.progress, kinds=self.preset.kinds, command=self.command),
                "6-sigma" if rule == "sigma" else "",
            )
        self.results["located"] = found

    def scored(self) -> None:
        """Other scores, points of the integral, controls, shares of weights (11, 12, 19, 22)."""
        asked = self.preset.scores
        tasks = asked.compared or self.preset.tasks
        with open_study(
            self.preset.study(None), self.folder / "neurons-sigma", self.progress, ""
        ) as lab:
            self.results["weights"] = [weights(lab, task) for task in self.preset.tasks]
        with open_study(
            self.preset.study(self.preset.share), self.neurons, self.progress, ""
        ) as lab:
            ways = compare_scores(lab, tasks, asked.others, self.preset.limit)
            points = points_exhibit(lab, tasks, asked.point_examples)
            controls = controls_exhibit(lab, tasks, self.preset.generic)
        self.keep((None, [scores_exhibit(ways), points, controls]))
        self.results["told"] |= {
            "scores": agreement_of_ways(ways, asked.method),
            "baselines": baselines(ways),
            "points": swept(points),
        }

    def erased(self) -> None:
        """Erasure (17), cross-data (18)."""
        preset, generic = self.preset, self.preset.generic
        self.results["erasure"] = self.keep(
            erase(
                self.neurons,
                preset.erasing(),
                [generic] if generic else [],
                self.progress,
                command=self.command,
            )
        )

    def tuned(self) -> None:
        """Enhancement (16) and, with the erasure, cross-data (18)."""
        asked = self.preset.enhancing()
        found = self.keep(enhance_located(self.neurons, asked, self.progress, command=self.command))
        self.results["enhancement_beats"] = {
            task: beats_every_draw(each, task) for task, each in found["tasks"].items()
        }
        crossing, command = self.preset.crossing(), self.command
        result, exhibits = cross(self.neurons, crossing, self.progress, command=command)
        self.results["crossing"] = self.keep((result, exhibits[:1]))

    def facts(self) -> None:
        """Fidelity and reliability of single facts (1 to 8, 20)."""
        for what, measure in (("fidelity", measure_fidelity), ("reliability", measure_reliability)):
            self.results[what] = {}
            for name in self.preset.facts.sets:
                study = self.preset.fact_study(name)
                place = self.folder / f"facts-{last_part(name)}"
                found = measure(study, place, self.progress, command=self.command)
                self.results[what][name] = self.keep(found, last_part(name))

    def decoupled(self) -> None:
        """Capability and content apart (9, 10)."""
        asked = self.preset.decoupling
        contrasts, effects = [], []
        for name in asked.sets:
            study = self.preset.decoupling_study(name)
            place = self.folder / f"decoupling-{last_part(name)}"
            found = self.keep(measure_decoupling(study, place, self.progress, command=self.command))
            first = next(iter(found["locators"].values()))
            effect = first["followed"][0]["effects"]
            contrasts.append(f"{name}: {first['right']} of {first['contrasts']} answered rightly")
            effects.append(
                f"{name}: commonality {ranged(effect['commonality'])}, individual "
                f"{ranged(effect['individual'])}"
            )
        self.results["told"] |= {
            "contrasts": "; ".join(contrasts),
            "decoupling": "; ".join(effects),
        }


def reproduce_cnl(
    preset: CnlPreset, folder: Path, progress: Progress | None = None, *, command: str = ""
) -> list[Exhibit]:
    """Measure everything that a preset asks for; write every table, figure and an index.

    Raises:
        UserError: for a mistake, before a model is loaded where possible.
        RunFailed: if the machine gives up; what was measured is kept.
    """
    check_cnl_options(preset)
    work = Reproduction(preset, folder, progress or Silent(), command)
    for step in (
        work.located,
        work.scored,
        work.erased,
        work.tuned,
        work.facts,
        work.decoupled,
    ):
        step()
    exhibits = [checklist(work.results), *work.exhibits]
    for exhibit in exhibits:
        files.write(exhibit, folder)
    files.write_index(folder, preset.about, WORDS, exhibits, command)
    write_exhibits(folder, preset.about, preset.about, [WORDS], exhibits, command)
    return exhibits


def check_cnl_options(preset: CnlPreset) -> None:
    """Refuse every mistake that can be seen before weights are loaded, all at once.

    Raises:
        UserError: naming each.
    """
    preset_checks: list[Callable[[], object]] = [
        preset.check_names,
        preset.study(None).check,
        preset.study(preset.share).check,
        preset.study(preset.share).rule.check,
        preset.study(preset.share).attribution.check,
        *(preset.other_score(method).check for method in preset.scores.others),
        preset.erasing().check,
        partial(preset.enhancing().check, preset.tasks),
        partial(preset.crossing().check, preset.tasks),
        *(preset.fact_study(name).check for name in preset.facts.sets),
        *(preset.decoupling_study(name).check for name in preset.decoupling.sets),
    ]
    raise_together(preset_checks)


def last_part(name: str) -> str:
    """Take the last part of a name."""
    return Path(name).stem


def weights(lab: NeuronLab, task: str) -> float:
    """Compute the share of the model's weights that belong to a task's neurons, in %."""
    model, chosen = lab.bench.neurons.model, lab.found(task).located
    if not chosen.any():
        return 0.0
    whole = sum(parameter.numel() for parameter in model.parameters())
    try:
        with TrainableRows(model, chosen) as rows:
            own = sum(parameter.numel() for parameter in rows.parameters())
    except ModelRefused:  # experts, whose weights are not taken apart
        return float("nan")
    return 100 * own / whole


def of_method(ways: Sequence[ScoreWay], wanted: str) -> Iterator[ScoreWay]:
    """Yield the ways of one method."""
    return (way for way in ways if way.method == wanted)


def agreement_of_ways(ways: Sequence[ScoreWay], main: str) -> str:
    """Say how other scores agree with the study's own."""
    parts = []
    for method in dict.fromkeys(way.method for way in ways):
        if method == main:
            continue
        same = [way.same_best for way in of_method(ways, method) if way.same_best is not None]
        rank = [way.spearman for way in of_method(ways, method) if way.spearman is not None]
        parts.append(f"{method}: rank correlation {ends(rank)}, best 1 % shared {ends(same)}")
    return f"{main} against {'; '.join(parts)}"


def baselines(ways: Sequence[ScoreWay]) -> str:
    """Say what the task loses without the best neurons of each score."""
    parts = []
    for method in dict.fromkeys(way.method for way in ways):
        lost = [way.lost for way in of_method(ways, method) if way.lost is not None]
        parts.append(f"{method} {ends(lost, 3)}")
    drawn = [way.lost_at_random for way in ways if way.lost_at_random is not None]
    return f"log-probability lost without the best 1 %: {', '.join(parts)}; random {ends(drawn, 3)}"


def swept(points: Exhibit) -> str:
    """Say how the best neurons depend on the number of points."""
    found: dict[str, list[float]] = {}
    for name, _, same in points.rows:
        number = getattr(same, "number", None)
        if number is not None:
            found.setdefault(str(name).rpartition(", ")[2], []).append(number)
    parts = [f"{name} {as_text(sum(each) / len(each))}" for name, each in found.items()]
    return f"best 1 % shared with the most points: {', '.join(parts)}; sigma: see thresholds"
