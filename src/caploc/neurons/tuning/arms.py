"""What may be tuned: the located neurons, and everything that they must be held against.

The paper compares located neurons with random ones; the other arms are ours.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from transformers import PreTrainedModel

from caploc.commonality.draws import bottom, complement, layer_matched, uniform
from caploc.commonality.specificity import FEWEST
from caploc.commonality.threshold import Scores
from caploc.errors import BadOption
from caploc.grid import Grid
from caploc.lookup import pick
from caploc.neurons.grid import Chosen
from caploc.neurons.tuning.lora import TrainableLora, adaptable, check_peft
from caploc.neurons.tuning.rows import attach
from caploc.neurons.tuning.training import Recipe, Trainable
from caploc.neurons.tuning.weights import check_chosen, shares
from caploc.neurons.tuning.whole import TrainableWhole

LOCATED = "located"
ARMS = {
    "none": "nothing is tuned",
    LOCATED: "the located neurons",
    "random-uniform": "as many random neurons of the whole model, drawn several times",
    "random-layer-matched": "as many random neurons in each layer as are located there",
    "bottom": "as many neurons, those of the lowest scores",
    "complement": "all feed-forward neurons but the located ones",
    "full": "all weights of the model",
    "lora": "low-rank adapters with as many parameters as the located neurons",
}
DRAWN = ("random-uniform", "random-layer-matched")


@dataclass(frozen=True)
class Arm:
    """One thing to tune: `name` is of `ARMS`, `draw` counts the sets of a random arm from 0.

    `chosen` are the neurons tuned or, of adapters, those whose number of parameters they match;
    None for the arms "none" and "full".
    """

    name: str
    chosen: Chosen | None = None
    draw: int | None = None

    @property
    def label(self) -> str:
        """The name, and which draw."""
        return self.name if self.draw is None else f"{self.name} {self.draw + 1}"


def arms(
    located: Chosen,
    grid: Grid,
    *,
    scores: Scores | None = None,
    names: Sequence[str] = tuple(ARMS),
    draws: int = FEWEST,
    seed: int = 0,
) -> list[Arm]:
    """The arms of these names, each random one `draws` times; `scores` are for "bottom" alone.

    Random neurons and those of the lowest scores leave the located ones out, as far as there are
    enough others. Asking for more draws keeps the first ones.

    Raises:
        UnknownName: if there is no arm of such a name.
        BadOption: if nothing is located, draws are fewer than 5, "bottom" has no scores or "lora"
            no PEFT.
    """
    check_chosen(located, grid.size)
    for name in names:
        pick(ARMS, name, "arm")
    if draws < FEWEST and set(names) & set(DRAWN):
        raise BadOption(
            f"draws={draws}: a random arm needs {FEWEST} draws or more for its standard deviation."
        )
    found: list[Arm] = []
    for name in dict.fromkeys(names):
        if name in DRAWN:
            sets = (
                uniform(located, draws, seed=seed)
                if name == "random-uniform"
                else layer_matched(located, grid, draws, seed=seed)
            )
            found += [Arm(name, each, number) for number, each in enumerate(sets)]
        else:
            found.append(Arm(name, _chosen(name, located, scores)))
    return found


def _chosen(name: str, located: Chosen, scores: Scores | None) -> Chosen | None:
    if name == "bottom":
        if scores is None:
            raise BadOption("The arm 'bottom' needs the neurons' scores; give them.")
        return bottom(scores, located)
    if name == "lora":
        check_peft()
    if name in ("none", "full"):
        return None
    return complement(located) if name == "complement" else located


def check(model: PreTrainedModel, arm: Arm, recipe: Recipe) -> None:
    """Refuse, before anything is tuned, an arm that this model cannot have.

    Raises:
        BadOption, ModelRefused: as `opened`.
    """
    if arm.chosen is not None:
        shares(model, arm.chosen, recipe.trains)
    if arm.name == "lora":
        adaptable(model, recipe.trains)


@contextmanager
def opened(model: PreTrainedModel, arm: Arm, recipe: Recipe) -> Iterator[Trainable | None]:
    """What the arm may tune, None for "none"; after it the model is bit for bit what it was.

    Raises:
        BadOption, ModelRefused: as `rows.attach` and `lora.TrainableLora`.
    """
    trainable = _trainable(model, arm, recipe)
    try:
        yield trainable
    finally:
        if trainable is not None:
            trainable.detach()


def _trainable(model: PreTrainedModel, arm: Arm, recipe: Recipe) -> Trainable | None:
    if arm.name == "none":
        return None
    if arm.name == "full":
        return TrainableWhole(model)
    assert arm.chosen is not None
    if arm.name == "lora":
        wanted = parameter_count(model, arm.chosen, recipe)
        return TrainableLora(model, wanted, recipe.trains, recipe.seed)
    return attach(model, arm.chosen, recipe.trains)


def parameter_count(model: PreTrainedModel, chosen: Chosen, recipe: Recipe) -> int:
    """How many values tuning these neurons trains."""
    return sum(
        value.numel()
        for share in shares(model, chosen, recipe.trains)
        for value in share.read().values()
    )
