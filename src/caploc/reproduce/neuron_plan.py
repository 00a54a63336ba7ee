"""What a reproduction of CNL takes, reckoned from a model's shape: passes, tokens and hours.

The unit is a forward pass of P parameters over T tokens, 2 P T operations; a backward pass to the
activations, with frozen weights, is as much again, and one to the weights too twice that. An
integral over each of L layers by itself begins where its layer does: S points take S L forward
passes in all, half of them backward. Hours are at a speed that is assumed, not measured.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field

from caploc.neurons.attribution import METHODS, Attribution
from caploc.neurons.erasure import DOSES
from caploc.report.exhibits import Exhibit, Value
from caploc.stats.threshold import SIGMAS

if TYPE_CHECKING:
    from caploc.reproduce.cnl_preset import CnlPreset

PEAK, SHARE = 989e12, 0.4  # of one NVIDIA H200 in bfloat16, and the share assumed to be reached
TOKENS = 200  # of an example whose preset names no number
WORDINGS, WATCHED = 3, 5  # of a fact, its prompt among them; other facts' prompts watched for each
NOISES = 10  # draws of a trace
NEURON_POINTS, EDGE_POINTS, EDIT_STEPS = 20, 20, 20
BATCH, TUNED_ARMS = 16, 4  # examples of a tuning step; arms that are tuned once
POINTS = 5 + 10 + 19 + 40  # of the integrals that are compared
GIGABYTE = 1e9


class ModelShape(BaseModel):
    """The shape of a model and the lengths of its prompts, rough: for plans only."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    parameters: float = Field(gt=0)
    layers: int = Field(ge=1)
    tokens: dict[str, int] = Field(default_factory=dict)
    fact_tokens: int = 12
    item_tokens: int = 30


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


def plan_steps(preset: "CnlPreset", shape: ModelShape) -> Iterator[PlannedStep]:
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
    arms = TUNED_ARMS + 2 * preset.draws
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


def plan_cnl(preset: "CnlPreset", shape: ModelShape) -> Exhibit:
    """Tell what a reproduction takes: tokens, passes and hours by step, and the weights' memory."""
    rows = []
    steps = list(plan_steps(preset, shape))
    total = PlannedStep("all", sum(each.work for each in steps), sum(each.tokens for each in steps))
    for each in [*steps, total]:
        rows.append(
            (
                each.name,
                Value(each.tokens / 1e6, digits=2),
                Value(each.work / max(each.tokens, 1), digits=0),
                Value(each.hours(shape.parameters), digits=2),
            )
        )
    memory = 2 * shape.parameters / GIGABYTE
    return Exhibit(
        "plan",
        f"What {preset.about} takes: {preset.model}",
        ("step", "million tokens", "forward passes of each", "hours"),
        [*rows],
        [
            f"Reckoned for {shape.parameters / 1e9:.2f} billion parameters in {shape.layers} "
            f"layers on one card at {PEAK * SHARE / 1e12:.0f} TFLOP/s, which is assumed and not "
            "measured; a backward pass counts as a forward one, one to the weights as two. "
            f"Memory: {memory:.1f} GB of weights in bfloat16, and beside them one text's "
            "activations at one point of the integral at least (docs/large_models.md)."
        ],
    )
