"""What is measured of CNL, on which model: a preset, read from a TOML file."""

from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from caploc.declaration import ModelOptions
from caploc.errors import BadOption, describe_faults, pick
from caploc.files import read_toml
from caploc.naming import placed
from caploc.neurons.locating import check_kinds
from caploc.neurons.options import Attribution, Enhancing, Erasing, NeuronStudy, Rule
from caploc.options import TaskOptions

Step = Literal["located", "erased", "compared", "fidelity", "reliability", "tuned"]
Method = Literal["neurons", "tracing", "circuits"]
FOLDER = Path(__file__).parent


class PresetPart(BaseModel):
    """A table of the file: no key that is not known."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Facts(PresetPart):
    """Which single facts are located, how, and how what was located is changed.

    Of each of `sets` the first `count` facts that the model knows are used; a set is `words/facts`
    or a file. A circuit keeps a `share` of the edges, scored in `circuit_steps`; knowledge neurons
    are integrated in `neuron_steps`. `texts` is a file of texts, one a line, for the covariance
    that a rank-one edit needs; without it the facts' prompts serve, and beside `words/facts` those
    of word tasks. An edit is made after so many `contexts` too, which the model writes.
    """

    sets: tuple[str, ...] = ("words/facts",)
    methods: tuple[Method, ...] = get_args(Method)
    count: int = Field(default=30, ge=2)
    share: float = Field(default=0.05, gt=0, le=1)
    draws: int = Field(default=20, ge=5)
    circuit_steps: int = Field(default=20, ge=1)
    neuron_steps: int = Field(default=20, ge=1)
    texts: str | None = None
    contexts: int = Field(default=0, ge=0)


class Yardstick(PresetPart):
    """On how much facts and capabilities are compared.

    `size` examples of each task a side; after demonstrations `drawn` facts of each relation, each
    in `contexts` a side. By integrated gradients in `steps` points, `few` of each instead.
    """

    size: int = Field(default=12, ge=2)
    drawn: int = Field(default=12, ge=2)
    contexts: int = Field(default=6, ge=2)
    few: int = Field(default=4, ge=2)
    steps: int = Field(default=5, ge=1)


class CnlPreset(PresetPart):
    """A whole reproduction, or those of its `steps` that are named.

    Neurons are located by 6 sigma and, with a `share`, as so many of all, which are then those that
    later steps take; `scores` says how. Each of `seeds` tunes everything once. With `fewshot`,
    tuning starts from the model with so many examples in its prompt, and neurons are located anew
    with that prompt, on the tasks that are tuned alone.
    """

    about: str
    model: str
    dtype: str = "auto"
    tasks: tuple[str, ...] = Field(min_length=2)
    kinds: dict[str, str] = Field(default_factory=dict)
    data: dict[str, str] = Field(default_factory=dict)
    examples: int = 400
    subsets: int = 5
    least: float = 0.6
    share: float | None = None
    normalised: bool = False
    limit: int | None = None
    draws: int = Field(default=5, ge=5)
    seed: int = 0
    steps: tuple[Step, ...] = get_args(Step)
    scores: Attribution = Attribution("integrated")
    erasing: Erasing = Erasing()
    tuning: Enhancing = Enhancing()
    fewshot: int | None = None
    seeds: tuple[int, ...] = (0,)
    facts: Facts = Facts()
    yardstick: Yardstick = Yardstick()

    @classmethod
    def read(cls, name: str) -> "CnlPreset":
        """Read a preset that lies here (`real`, `paper`), or a TOML file.

        Its model and files of facts are looked for beside it first.
        """
        path = FOLDER / f"{name}.toml" if (FOLDER / f"{name}.toml").is_file() else Path(name)
        content = read_toml(path)
        if sets := content.get("facts", {}).get("sets"):
            content["facts"]["sets"] = [placed(facts, path.parent) for facts in sets]
        try:
            preset = cls.model_validate(content)
        except ValidationError as error:
            raise BadOption(f"{path} is no preset: {describe_faults(error)}.") from None
        return preset.model_copy(update={"model": placed(preset.model, path.parent)})

    @property
    def options(self) -> ModelOptions:
        return ModelOptions(self.model, dtype=self.dtype)

    def study(self, share: float | None) -> NeuronStudy:
        """Neurons by the paper's 6 sigma, or a share of all."""
        return NeuronStudy(
            self.options,
            self.tasks,
            self.scores,
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
        study = self.study(self.share)
        if self.fewshot is None:
            return study
        options = replace(study.options, fewshot=self.fewshot)
        return replace(study, tasks=self.tuning.tasks or self.tasks, options=options)

    def cuts(self) -> Erasing:
        return replace(self.erasing, draws=self.draws, limit=self.limit, seed=self.seed)

    def enhancing(self, seed: int) -> Enhancing:
        return replace(self.tuning, recipe=replace(self.tuning.recipe, seed=seed))

    def check(self) -> None:
        """Refuse, by a UserError and before weights are loaded, what the commands would refuse."""
        own = dict.fromkeys(self.study(self.share).check().tasks)
        for task in self.erasing.tasks:
            pick(own, task, "task of the run")
        start = self.start.check()
        for task in self.tuning.tasks:
            pick(dict.fromkeys(start.tasks), task, "task of the run")
        check_kinds(self.kinds, self.tasks, "the run", "they are")
