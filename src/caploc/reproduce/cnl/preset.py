"""What a reproduction of CNL asks of which model: a TOML file, checked whole."""

from dataclasses import replace
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from caploc.errors import BadData, BadOption
from caploc.neurons.attribution import Attribution
from caploc.neurons.crossing import ERASE, TUNE, Crossing
from caploc.neurons.cutting import Mode
from caploc.neurons.decoupling import DecouplingStudy
from caploc.neurons.enhancing import Enhancing
from caploc.neurons.erasure import Erasing
from caploc.neurons.fact_study import FactStudy
from caploc.neurons.finding import Rule
from caploc.neurons.study import NeuronStudy
from caploc.neurons.training import TuningRecipe
from caploc.reproduce.reading import preset_file
from caploc.tasks.catalog import TaskOptions, check_task_name
from caploc.workbench import ModelOptions

FOLDER = Path(__file__).parents[1] / "presets" / "cnl"


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
        )

    def erasing(self) -> Erasing:
        """Say what is erased."""
        return Erasing(Mode(), self.draws, limit=self.limit, seed=self.seed)

    def enhancing(self) -> Enhancing:
        """Say what is tuned."""
        tuning = self.tuning
        recipe = TuningRecipe(steps=tuning.steps, rates=tuning.rates, seed=self.seed)
        return Enhancing(
            recipe, draws=self.draws, noise=tuning.noise, limit=self.limit, tasks=tuning.tasks
        )

    def crossing(self) -> Crossing:
        """Say what is erased and tuned, task by task."""
        return Crossing((ERASE, TUNE), self.erasing(), self.enhancing(), dict(self.kinds))

    def other_score(self, method: str) -> Attribution:
        """Make a score that the study's own is compared with."""
        return replace(self.study(None).attribution, method=method)

    def decoupling_study(self, contrasts: str) -> DecouplingStudy:
        """Make the study of one set of contrasts."""
        asked = self.decoupling
        ways = tuple(Attribution(method, steps=self.scores.steps) for method in asked.methods)
        return DecouplingStudy(self.options, contrasts, asked.items, ways, seed=self.seed)

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
    path, content = preset_file(name, FOLDER, "docs/cnl.md")
    try:
        return CnlPreset.model_validate(content)
    except ValidationError as error:
        mistakes = "; ".join(
            f"{'.'.join(map(str, mistake['loc']))}: {mistake['msg'].lower()}"
            for mistake in error.errors()
        )
        raise BadData(f"{path} is not a preset: {mistakes}.") from error
