"""What is reproduced of CNL, on which model: a preset, read from a TOML file; and what that takes.

That is reckoned from a model's shape: passes, tokens and hours. The unit is a forward pass of P
parameters over T tokens, 2 P T operations; a backward pass to the activations, with frozen weights,
is as much again, and one to the weights too twice that. An integral over each of L layers by itself
begins where its layer does: S points take S L forward passes in all, half of them backward. Hours
are at a speed that is assumed, not measured.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self, get_args

from pydantic import Field, model_validator

from caploc.engine.neurons import ErasureMode
from caploc.errors import BadOption
from caploc.neurons.attribution import METHODS, Attribution
from caploc.neurons.controls import Controlling
from caploc.neurons.decoupling import DecouplingStudy
from caploc.neurons.enhancing import Enhancing
from caploc.neurons.erasure import ARMS as ERASED_ARMS
from caploc.neurons.erasure import DOSES, LAYERS, LOCATED, Erasing
from caploc.neurons.fact_study import FactStudy
from caploc.neurons.study import NeuronStudy
from caploc.neurons.training import ARMS as TUNED_ARMS
from caploc.neurons.training import TuningRecipe
from caploc.report.exhibits import Exhibit, Row, Value
from caploc.reproduce.preset import PEAK, PresetPart, read_as
from caploc.stats.threshold import SIGMAS, Rule
from caploc.tasks.catalog import TaskOptions, check_task_name
from caploc.workbench import ModelOptions

Step = Literal["located", "scored", "erased", "tuned", "facts", "decoupled"]
CNL_PRESETS = Path(__file__).parent / "presets" / "cnl"


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
    noise: float = 0.0
    fewshot: int | None = None
    limit: int | None = None
    arms: tuple[str, ...] = tuple(TUNED_ARMS)
    draws: int = Field(default=5, ge=5)
    seeds: tuple[int, ...] = (0,)


class Facts(PresetPart):
    """Which single facts are located."""

    sets: tuple[str, ...] = ()
    form: str = "lines"
    count: int = 30
    share: float = 0.05
    draws: int = 20


class DecouplingPreset(PresetPart):
    """Which contrasts are asked, and how neurons of single items are scored."""

    sets: tuple[str, ...] = ("arithmetic", "sentiment")
    items: int = Field(default=1000, ge=2)
    methods: tuple[str, ...] = ("integrated",)


class ModelShape(PresetPart):
    """The shape of a model and the lengths of its prompts, rough: for plans only."""

    parameters: float = Field(gt=0)
    layers: int = Field(ge=1)
    tokens: dict[str, int] = Field(default_factory=dict)
    fact_tokens: int = 12
    item_tokens: int = 30


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
    shape: ModelShape | None = None

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
        return Enhancing(recipe, tuning.arms, tuning.draws, tuning.noise, limit, tuning.tasks)

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


def read_cnl_preset(name: str) -> CnlPreset:
    """Read a preset of caploc's (`demo`, `real`) or a TOML file; raises what `read_as` does."""
    return read_as(CnlPreset, name, CNL_PRESETS, "docs/cnl.md")[1]


SHARE = 0.4  # of an H200's peak, assumed to be reached
TOKENS = 200  # of an example whose preset names no number
WORDINGS, WATCHED = 3, 5  # of a fact, its prompt among them; other facts' prompts watched for each
NOISES = 10  # draws of a trace
NEURON_POINTS, EDGE_POINTS, EDIT_STEPS = 20, 20, 20
BATCH, TUNED_ONCE = 16, 4  # examples of a tuning step; arms that are tuned once
POINTS = 5 + 10 + 19 + 40  # of the integrals that are compared
GIGABYTE = 1e9


@dataclass(frozen=True)
class PlannedStep:
    """One step: its `tokens`, and `work`, each token times the forward passes that it takes."""

    name: str
    work: float
    tokens: float

    def hours(self, parameters: float) -> float:
        """Reckon hours on one card at the speed assumed."""
        return 2 * parameters * self.work / (PEAK * SHARE) / 3600


def passes_of(method: str, steps: int, layers: int) -> float:
    """Count the forward passes that a score, or a locator of single facts, takes for one text."""
    if method in METHODS:
        return Attribution(method, steps=steps).passes(layers)
    ways = {
        "neurons": 1.0 + NEURON_POINTS * layers,
        "tracing": 1.0 + NOISES * (1 + layers),
        "circuits": 2.0 + 2 * EDGE_POINTS,
    }
    return ways[method]


def plan_steps(preset: CnlPreset, shape: ModelShape) -> Iterator[PlannedStep]:
    """Reckon every step of a reproduction, in its order."""
    scores, tuning, facts = preset.scores, preset.tuning, preset.facts
    lengths = {task: shape.tokens.get(task, TOKENS) for task in preset.tasks}
    whole, judged = sum(lengths.values()), preset.limit or preset.examples
    compared = sum(lengths[task] for task in scores.compared or preset.tasks)
    plain = 0 if preset.generic is None else shape.tokens.get(preset.generic, TOKENS)

    def score(method: str) -> float:
        return passes_of(method, scores.steps, shape.layers)

    def step(name: str, passes: float, tokens: float) -> PlannedStep:
        return PlannedStep(name, passes * tokens, tokens)

    yield step("neurons located", score(scores.method), preset.examples * whole)
    others = sum(map(score, scores.others))
    again = (score(scores.method) + others) * compared + score(scores.method) * plain
    yield PlannedStep("controls scored", preset.examples * again, preset.examples * compared)
    sets = (3 + len(scores.others) + len(SIGMAS)) * (1 + preset.draws)
    yield step("controls erased", 2 * sets, judged * compared)
    yield step("points of the integral", POINTS * shape.layers, scores.point_examples * compared)
    own, beside = 2 + 2 * preset.draws + len(DOSES), 1 + preset.draws
    cuts = 2 * (own + (len(lengths) - 1) * beside)
    yield step("neurons erased", cuts, judged * whole)
    tuned = sum(lengths.get(task, TOKENS) for task in tuning.tasks)
    arms = TUNED_ONCE + 2 * preset.draws
    yield step("neurons tuned", 4 * arms * len(tuning.rates) * tuning.steps, BATCH * tuned)
    asked = len(facts.sets) * facts.count * shape.fact_tokens
    for method in ("neurons", "tracing", "circuits"):
        found = passes_of(method, scores.steps, shape.layers)
        yield step(f"facts located: {method}", found, WORDINGS * asked)
    cut = 2 * (2 + facts.draws) * (WORDINGS + WATCHED)
    yield step("facts' neurons cut", cut, asked)
    yield step("facts edited at every layer", shape.layers * (2 * EDIT_STEPS + 2 * WATCHED), asked)
    yield step("facts' circuits run", 6 + facts.draws, asked)
    items = len(preset.decoupling.sets) * preset.decoupling.items * 5 * shape.item_tokens
    for method in preset.decoupling.methods:
        yield step(f"items located: {method}", score(method), items)


def plan_cnl(preset: CnlPreset, shape: ModelShape) -> Exhibit:
    """Tell what a reproduction takes: tokens, passes and hours by step, and the weights' memory."""
    steps = list(plan_steps(preset, shape))
    total = PlannedStep("all", sum(each.work for each in steps), sum(each.tokens for each in steps))
    rows: list[Row] = [
        (
            each.name,
            Value(each.tokens / 1e6, digits=2),
            Value(each.work / max(each.tokens, 1), digits=0),
            Value(each.hours(shape.parameters), digits=2),
        )
        for each in [*steps, total]
    ]
    memory = 2 * shape.parameters / GIGABYTE
    return Exhibit(
        "plan",
        f"What {preset.about} takes: {preset.model}",
        ("step", "million tokens", "forward passes of each", "hours"),
        rows,
        [
            f"Reckoned for {shape.parameters / 1e9:.2f} billion parameters in {shape.layers} "
            f"layers on one card at {PEAK * SHARE / 1e12:.0f} TFLOP/s, which is assumed and not "
            "measured; a backward pass counts as a forward one, one to the weights as two. "
            f"Memory: {memory:.1f} GB of weights in bfloat16, and beside them one text's "
            "activations at one point of the integral at least (docs/large_models.md)."
        ],
    )
