"""Every experiment of CNL, one after another, into one folder; what was measured is not again.

Sets that are found again say little if neurons that are high on all text would be found again too,
or if they hang on how neurons are scored: `caploc.neurons.controls` holds them against others, and
the number of points of the integral varies here.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from caploc.errors import BadData, BadOption, ModelRefused, raise_together
from caploc.neurons.attribution import Attribution
from caploc.neurons.controls import Controlling, measure_controls
from caploc.neurons.decoupling import DecouplingStudy, measure_decoupling
from caploc.neurons.enhancing import Enhancing, beats_every_draw, enhance_located, gain_matrix
from caploc.neurons.erasure import Erasing, erase
from caploc.neurons.fact_study import FactStudy, measure_fidelity, measure_reliability
from caploc.neurons.finding import Rule, score_cache
from caploc.neurons.locating import check_kinds, locate
from caploc.neurons.sites import ErasureMode
from caploc.neurons.study import NeuronLab, NeuronStudy, Row, open_study
from caploc.neurons.training import TuningRecipe
from caploc.neurons.weights import TrainableRows
from caploc.progress import Progress, Silent
from caploc.report import exhibits as files
from caploc.report.exhibits import Exhibit, Value, write_exhibits
from caploc.report.tabulation import as_text, ranged
from caploc.reproduce.checklist import checklist, ends
from caploc.reproduce.crossing import cross, crossing_exhibit, losses
from caploc.reproduce.neuron_plan import ModelShape
from caploc.reproduce.preset import preset_file
from caploc.stats.sets import overlap_rates, rank_correlation
from caploc.stats.threshold import best
from caploc.tasks.catalog import TaskOptions, check_task_name
from caploc.workbench import ModelOptions

SHARE = 0.01  # of all neurons, at which scores are compared whatever their spread
POINTS = (5, 10, 19, 40)


def points_exhibit(lab: NeuronLab, tasks: Sequence[str], examples: int) -> Exhibit:
    """Show how the neurons of integrated gradients depend on the number of points."""
    rows: list[Row] = []
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
            rows.append((f"{task}, {name}", Value(rank_correlation(most, mean)), Value(same)))
    return Exhibit(
        "points",
        "Points of the integral (S)",
        ("task, points", f"rank correlation with S = {max(POINTS)}", "best 1 % shared"),
        rows,
        [f"On {examples} examples. The paper's S is 19; gradient takes the last point alone."],
    )


CNL_PRESETS = Path(__file__).parent / "presets" / "cnl"


class CnlPresetPart(BaseModel):
    """A table of the file; unknown keys are mistakes."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ScoresPreset(CnlPresetPart):
    """How neurons are scored, and what that is compared with on the tasks `compared`."""

    method: str = "integrated"
    target: str = "logprob"
    positions: str = "all"
    steps: int = 19
    others: tuple[str, ...] = ("gradient", "activation", "logit")
    compared: tuple[str, ...] = ()
    point_examples: int = Field(default=40, ge=2)


class Tuning(CnlPresetPart):
    """What is tuned, from which start."""

    tasks: tuple[str, ...] = ()
    steps: int = 60
    rates: tuple[float, ...] = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
    noise: float = 0.0


class Facts(CnlPresetPart):
    """Which single facts are located."""

    sets: tuple[str, ...] = ()
    form: str = "lines"
    count: int = 30
    share: float = 0.05
    draws: int = 20


class DecouplingPreset(CnlPresetPart):
    """Which contrasts are asked, and how neurons of single items are scored."""

    sets: tuple[str, ...] = ("arithmetic", "sentiment")
    items: int = Field(default=1000, ge=2)
    methods: tuple[str, ...] = ("integrated",)


class CnlPreset(CnlPresetPart):
    """A whole reproduction."""

    about: str
    model: str
    dtype: str = "auto"
    tasks: tuple[str, ...] = Field(min_length=2)
    kinds: dict[str, str] = Field(default_factory=dict)
    data: dict[str, str] = Field(default_factory=dict)
    generic: str | None = None
    examples: int = 400
    subsets: int = 5
    least: float = 0.6
    share: float = 0.01
    normalised: bool = False
    limit: int | None = None
    draws: int = Field(default=5, ge=5)
    seed: int = 0
    scores: ScoresPreset = ScoresPreset()
    tuning: Tuning = Tuning()
    facts: Facts = Facts()
    decoupling: DecouplingPreset = DecouplingPreset()
    shape: ModelShape | None = None

    @property
    def options(self) -> ModelOptions:
        """How the model is loaded."""
        return ModelOptions(self.model, dtype=self.dtype)

    def study(self, share: float | None) -> NeuronStudy:
        """Neurons by the paper's 6 sigma, or a share of all."""
        scores = self.scores
        return NeuronStudy(
            self.options,
            self.tasks,
            Attribution(scores.method, scores.target, scores.positions, scores.steps),
            Rule(share=share, normalised=self.normalised),
            TaskOptions(data=self.data),
            examples=self.examples,
            subsets=self.subsets,
            least=self.least,
            seed=self.seed,
            judged=0,  # what erasing costs has a step of its own
        )

    def erasing(self) -> Erasing:
        """Say what is erased."""
        return Erasing(ErasureMode(), self.draws, limit=self.limit, seed=self.seed)

    def controlling(self) -> Controlling:
        """Say what located neurons are held against."""
        return Controlling(
            self.scores.others,
            self.generic,
            draws=self.draws,
            limit=self.limit,
            seed=self.seed,
            tasks=self.scores.compared,
        )

    def enhancing(self) -> Enhancing:
        """Say what is tuned."""
        tuning = self.tuning
        recipe = TuningRecipe(steps=tuning.steps, rates=tuning.rates, seed=self.seed)
        return Enhancing(
            recipe, draws=self.draws, noise=tuning.noise, limit=self.limit, tasks=tuning.tasks
        )

    def decoupling_study(self, contrasts: str) -> DecouplingStudy:
        """Make the study of one set of contrasts."""
        asked = self.decoupling
        return DecouplingStudy(
            self.options, contrasts, asked.items, asked.methods, self.scores.steps, seed=self.seed
        )

    def check_names(self) -> None:
        """Refuse tasks that are compared and are none of the preset's, or unknown text.

        Raises:
            UserError: naming each.
        """
        if strange := [task for task in self.scores.compared if task not in self.tasks]:
            named = ", ".join(f"scores.compared names {task}" for task in strange)
            raise BadOption(f"{named}; of `tasks`, no other has neurons.")
        if self.generic is not None:
            check_task_name(self.generic, self.study(None).options)

    def fact_study(self, facts: str) -> FactStudy:
        """Make the study of one set of facts."""
        asked = self.facts
        return FactStudy(
            self.options,
            facts,
            asked.form,
            count=asked.count,
            share=asked.share,
            draws=asked.draws,
            seed=self.seed,
        )


def read_cnl_preset(name: str) -> CnlPreset:
    """Read a preset that comes with caploc (`demo`), or one from a TOML file.

    Raises:
        UnknownName: if there is no such preset or file.
        BadData: if the file is not a preset; every mistake is named.
    """
    path, content = preset_file(name, CNL_PRESETS, "docs/cnl.md")
    try:
        return CnlPreset.model_validate(content)
    except ValidationError as error:
        mistakes = "; ".join(
            f"{'.'.join(map(str, mistake['loc']))}: {mistake['msg'].lower()}"
            for mistake in error.errors()
        )
        raise BadData(f"{path} is not a preset: {mistakes}.") from error


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
            points = points_exhibit(lab, tasks, asked.point_examples)
        controlled = self.keep(
            measure_controls(
                self.neurons, self.preset.controlling(), self.progress, command=self.command
            )
        )
        self.keep((None, [points]))
        self.results["told"] |= {
            "scores": agreement_of_ways(controlled["arms"], asked.method),
            "baselines": baselines(controlled["arms"]),
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
        tuned, judged, gains = gain_matrix(found["tasks"])
        effects = {
            "erase": losses(self.results["erasure"]),
            "tune": {
                (one, other): float(gains[row, column])
                for row, one in enumerate(tuned)
                for column, other in enumerate(judged)
            },
        }
        overlaps = self.results["located"]["share"]["overlaps"]
        crossed = [cross(how, each, overlaps, self.preset.kinds) for how, each in effects.items()]
        self.results["crossing"] = self.keep((crossed, [crossing_exhibit(crossed)]))

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
            effect = first["effects"]
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
        *(
            replace(preset.study(None).attribution, method=method).check
            for method in preset.scores.others
        ),
        preset.erasing().check,
        partial(preset.enhancing().check, preset.tasks),
        partial(check_kinds, preset.kinds, preset.tasks, "the run", "they are"),
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


def agreement_of_ways(arms: Sequence[dict[str, Any]], main: str) -> str:
    """Say how other scores agree with the study's own."""
    parts = []
    for name in dict.fromkeys(arm["control"] for arm in arms if arm["control"].startswith("by ")):
        own = [arm for arm in arms if arm["control"] == name]
        rank, same = ([arm[key] for arm in own] for key in ("spearman", "shared"))
        parts.append(
            f"{name.removeprefix('by ')}: rank correlation {ends(rank)}, as many neurons shared "
            f"{ends(same)}"
        )
    return f"{main} against {'; '.join(parts)}"


def baselines(arms: Sequence[dict[str, Any]]) -> str:
    """Say what the task loses without as many neurons of each kind."""
    parts = []
    for name in dict.fromkeys(arm["control"] for arm in arms):
        lost = [arm["logprob"]["mean"] for arm in arms if arm["control"] == name]
        parts.append(f"{name} {ends(lost, 3)}")
    drawn = [arm["at_random"]["mean"] for arm in arms]
    return f"log-probability lost without as many: {', '.join(parts)}; random {ends(drawn, 3)}"


def swept(points: Exhibit) -> str:
    """Say how the best neurons depend on the number of points."""
    found: dict[str, list[float]] = {}
    for name, _, same in points.rows:
        number = getattr(same, "number", None)
        if number is not None:
            found.setdefault(str(name).rpartition(", ")[2], []).append(number)
    parts = [f"{name} {as_text(sum(each) / len(each))}" for name, each in found.items()]
    return f"best 1 % shared with the most points: {', '.join(parts)}; sigma: see other thresholds"
