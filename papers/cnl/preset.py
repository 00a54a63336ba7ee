"""What is measured of CNL, on which model: a preset, read from a TOML file."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

from caploc.errors import BadOption
from caploc.files import read_toml
from caploc.naming import placed
from caploc.neurons.attribution import Attribution
from caploc.neurons.controls import Controlling
from caploc.neurons.engine import ErasureMode
from caploc.neurons.enhancing import Enhancing
from caploc.neurons.erasure import ARMS as ERASED_ARMS
from caploc.neurons.erasure import DOSES, LAYERS, LOCATED, Erasing
from caploc.neurons.study import NeuronStudy
from caploc.neurons.training import ARMS as TUNED_ARMS
from caploc.neurons.training import TuningRecipe
from caploc.options import TaskOptions
from caploc.stats.threshold import Rule
from caploc.tasks.catalog import check_task_name
from caploc.workbench import ModelOptions
from papers.cnl.decoupling import DecouplingStudy
from papers.cnl.fact_study import FactStudy

Step = Literal["located", "scored", "erased", "tuned", "facts", "decoupled"]
FOLDER = Path(__file__).parent


class PresetPart(BaseModel):
    """A table of the file: no key that is not known."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ScoresPreset(PresetPart):
    """How neurons are scored, and what that is compared with on the tasks `compared`."""

    method: str = "integrated"
    target: str = "logprob"
    positions: str = "all"
    steps: int = 19
    others: tuple[str, ...] = ("gradient", "activation", "logit")
    compared: tuple[str, ...] = ()
    point_examples: int = Field(default=40, ge=2)


class Cuts(PresetPart):
    """What is erased, and what it is held against; none of `tasks` is all of them."""

    tasks: tuple[str, ...] = ()
    arms: tuple[str, ...] = ERASED_ARMS
    beside: tuple[str, ...] = (LOCATED, LAYERS)
    doses: tuple[float, ...] = DOSES


class Tuning(PresetPart):
    """What is tuned, from which start, and what it is held against.

    With `fewshot`, the start is the model with so many examples in its prompt, and neurons are
    located anew with that prompt, on `tasks` alone. Each of `seeds` tunes everything once.
    """

    tasks: tuple[str, ...] = ()
    steps: int = 60
    batch_size: int = Field(default=16, ge=1)
    rates: tuple[float, ...] = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
    extensions: int = 4
    fewshot: int | None = None
    limit: int | None = None
    arms: tuple[str, ...] = tuple(TUNED_ARMS)
    draws: int = Field(default=5, ge=5)
    seeds: tuple[int, ...] = (0,)


class Facts(PresetPart):
    """Which single facts are located."""

    sets: tuple[str, ...] = ()
    count: int = 30
    share: float = 0.05
    draws: int = 20


class DecouplingPreset(PresetPart):
    """Which contrasts are asked, and how neurons of single items are scored."""

    sets: tuple[str, ...] = ("arithmetic", "sentiment")
    items: int = Field(default=1000, ge=2)
    methods: tuple[str, ...] = ("integrated",)


class CnlPreset(PresetPart):
    """A whole reproduction, or those of its `steps` that are named.

    Neurons are located by 6 sigma and, with a `share`, as so many of all, which are then those that
    later steps take.
    """

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
    share: float | None = None
    normalised: bool = False
    limit: int | None = None
    draws: int = Field(default=5, ge=5)
    seed: int = 0
    steps: tuple[Step, ...] = get_args(Step)
    scores: ScoresPreset = ScoresPreset()
    erasing: Cuts = Cuts()
    tuning: Tuning = Tuning()
    facts: Facts = Facts()
    decoupling: DecouplingPreset = DecouplingPreset()

    @model_validator(mode="after")
    def consistent(self) -> Self:
        """Refuse steps that go on from neurons without the step that locates them."""
        needed = {"scored", "erased"}
        if self.tuning.fewshot is None:
            needed.add("tuned")
        if "located" not in self.steps and (orphans := needed & {*self.steps}):
            names = ", ".join(sorted(orphans))
            raise ValueError(f'steps has {names} without "located", whose neurons they take')
        return self

    @property
    def options(self) -> ModelOptions:
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

    @property
    def start(self) -> NeuronStudy:
        """Locate the neurons that are tuned: those erased, or others for another start."""
        study, tuning = self.study(self.share), self.tuning
        if tuning.fewshot is None:
            return study
        options = replace(study.options, fewshot=tuning.fewshot)
        return replace(study, tasks=tuning.tasks or self.tasks, options=options)

    def cuts(self) -> Erasing:
        asked = self.erasing.model_dump()
        asked |= {"draws": self.draws, "limit": self.limit, "seed": self.seed, "kinds": self.kinds}
        return Erasing(ErasureMode(), **asked)

    def controlling(self) -> Controlling:
        how: dict[str, Any] = {"draws": self.draws, "limit": self.limit, "seed": self.seed}
        return Controlling(self.scores.others, self.generic, tasks=self.scores.compared, **how)

    def enhancing(self, seed: int) -> Enhancing:
        tuning = self.tuning
        asked = tuning.model_dump(include={"steps", "batch_size", "rates", "extensions"})
        recipe = TuningRecipe(**asked, seed=seed)
        limit = tuning.limit or self.limit
        return Enhancing(recipe, tuning.arms, tuning.draws, limit, tuning.tasks)

    def decoupling_study(self, contrasts: str) -> DecouplingStudy:
        asked = self.decoupling.model_dump(exclude={"sets"})
        asked |= {"steps": self.scores.steps, "seed": self.seed}
        return DecouplingStudy(self.options, contrasts, **asked)

    def check_names(self) -> None:
        """Refuse tasks that are compared and are none of the preset's, or unknown text."""
        if strange := [task for task in self.scores.compared if task not in self.tasks]:
            named = ", ".join(f"scores.compared names {task}" for task in strange)
            raise BadOption(f"{named}; of `tasks`, no other has neurons.")
        if self.generic is not None:
            check_task_name(self.generic, self.study(None).options)

    def fact_study(self, facts: str) -> FactStudy:
        asked = self.facts.model_dump(exclude={"sets"})
        return FactStudy(self.options, facts, **asked, seed=self.seed)


def read_preset(name: str) -> CnlPreset:
    """Read a preset that lies here (`real`, `paper`), or a TOML file.

    Its model and files of facts are looked for beside it first.
    """
    path = FOLDER / f"{name}.toml" if (FOLDER / f"{name}.toml").is_file() else Path(name)
    preset = CnlPreset.model_validate(read_toml(path))
    sets = tuple(placed(facts, path.parent) for facts in preset.facts.sets)
    facts = preset.facts.model_copy(update={"sets": sets})
    return preset.model_copy(update={"model": placed(preset.model, path.parent), "facts": facts})
