"""What may be tuned beside the located neurons: arms, and the neurons of each."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from transformers import PreTrainedModel

from caploc.cache import digest
from caploc.errors import BadOption
from caploc.grid import Grid
from caploc.lookup import pick
from caploc.models.neurons import Chosen
from caploc.neurons.training import TuningRecipe
from caploc.neurons.weights import (
    Trainable,
    TrainableLora,
    TrainableRows,
    TrainableWhole,
    adaptable,
    check_chosen,
    require_peft_to_train,
    shares_by_projection,
)
from caploc.stats.chance import FEWEST, bottom, random_sets
from caploc.stats.threshold import Scores

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
# Their memory grows with the model: only where they are asked for.
COSTLY = ("complement", "full")
USUAL = tuple(name for name in ARMS if name not in COSTLY)
RANDOM = "random-layer-matched"
DRAWN = ("random-uniform", RANDOM)


@dataclass(frozen=True)
class TuningArm:
    """One thing to tune: `name` is of `ARMS`, `draw` counts the sets of a random arm from 0.

    `chosen` are the neurons tuned or, of adapters, those whose number of parameters they match;
    None for the arms "none" and "full".
    """

    name: str
    chosen: Chosen | None = None
    draw: int | None = None

    def check(self, model: PreTrainedModel, recipe: TuningRecipe) -> None:
        """Refuse, before anything is tuned, an arm that this model cannot have."""
        if self.chosen is not None:
            shares_by_projection(model, self.chosen, recipe.trains)
        if self.name == "lora":
            adaptable(model, recipe.trains)

    @property
    def label(self) -> str:
        return self.name if self.draw is None else f"{self.name} {self.draw + 1}"

    def question(self) -> dict[str, Any]:
        """Tell what is tuned, whatever it is tuned with."""
        columns = None if self.chosen is None else np.flatnonzero(self.chosen).tolist()
        return {"arm": self.name, "draw": self.draw, "neurons": digest({"columns": columns})}

    def open(self, model: PreTrainedModel, recipe: TuningRecipe) -> Trainable | None:
        """Open what the arm may tune, to be used with `with`; None for "none"."""
        if self.name == "none":
            return None
        if self.name == "full":
            return TrainableWhole(model)
        assert self.chosen is not None
        if self.name != "lora":
            return TrainableRows(model, self.chosen, recipe.trains)
        wanted = parameter_count(model, self.chosen, recipe)
        return TrainableLora(model, wanted, recipe.trains, recipe.seed)


def make_arms(
    located: Chosen,
    grid: Grid,
    *,
    scores: Scores | None = None,
    names: Sequence[str] = tuple(ARMS),
    draws: int = FEWEST,
    seed: int = 0,
) -> list[TuningArm]:
    """Make the arms of these names, each random one `draws` times; `scores` are for "bottom".

    Random neurons and those of the lowest scores leave the located ones out, as far as there are
    enough others. Asking for more draws keeps the first ones. Raises UnknownName if there is no arm
    of such a name; BadOption if nothing is located, draws are fewer than 5, "bottom" has no scores
    or "lora" no PEFT.
    """
    check_chosen(located, grid.size)
    for name in names:
        pick(ARMS, name, "arm")
    if draws < FEWEST and set(names) & set(DRAWN):
        raise BadOption(
            f"draws={draws}: a random arm needs {FEWEST} draws or more for its standard deviation."
        )
    if "lora" in names:
        require_peft_to_train()
    if "bottom" in names and scores is None:
        raise BadOption("The arm 'bottom' needs the neurons' scores; give them.")
    found: list[TuningArm] = []
    within = dict(zip(DRAWN, (None, grid), strict=True))
    for name in dict.fromkeys(names):
        if name in within:
            drawn = random_sets(located, within[name], draws, seed=seed)
            found += [TuningArm(name, each, number) for number, each in enumerate(drawn)]
        elif name == "bottom" and scores is not None:
            found.append(TuningArm(name, bottom(scores, located)))
        else:
            chosen = {"none": None, "full": None, "complement": ~located}
            found.append(TuningArm(name, chosen.get(name, located)))
    return found


def parameter_count(model: PreTrainedModel, chosen: Chosen, recipe: TuningRecipe) -> int:
    """Count the values that tuning these neurons trains."""
    return sum(
        value.numel()
        for share in shares_by_projection(model, chosen, recipe.trains)
        for value in share.read().values()
    )
