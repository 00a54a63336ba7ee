"""What can be asked of neurons: each option once, as `caploc.options` has those of heads."""

from dataclasses import field
from typing import Annotated, ClassVar

from annotated_types import Ge, Gt, MinLen
from pydantic import AfterValidator

from caploc.options import Option, one_of, record, rise
from caploc.stats.chance import FEWEST

DRAWS = 19  # fewer can never be beaten by chance with p = .05
LOCATED, RANDOM = "located", "random"
TUNED = {
    "none": "nothing is tuned",
    LOCATED: "the located neurons",
    RANDOM: "as many random neurons in each layer as are located there, drawn several times",
    "lora": "low-rank adapters with as many parameters as the located neurons",
    "full": "all weights of the model",
}
USUAL = tuple(name for name in TUNED if name != "full")  # whose memory grows with the model


@record(frozen=True)
class TuningRecipe:
    """How every arm is tuned.

    Each of `rates` is tried with `steps` batches of `batch_size` examples. `seed` fixes the split,
    the batches and the random start of adapters. With `checkpointing` layers are run again on the
    way back instead of keeping what they computed.
    """

    panel: ClassVar[str] = "Tuning"
    steps: Annotated[int, Ge(1), Option("Batches to tune with.")] = 60
    batch_size: Annotated[int, Ge(1), Option("Examples in a batch.")] = 16
    rates: Annotated[
        tuple[Annotated[float, Gt(0)], ...],
        MinLen(1),
        AfterValidator(rise),
        Option("Learning rates to try for each arm."),
    ] = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
    seed: Annotated[int, Ge(0), Option("Seed of everything that is drawn at random.")] = 0
    checkpointing: Annotated[
        bool, Option("Run layers again on the way back: slower, with less memory.")
    ] = False


@record(frozen=True)
class Enhancing:
    """What is tuned, how, and what it is judged on.

    `tasks` are those tuned (none: all with located neurons); all of the study's are judged, on
    `limit` examples each.
    """

    recipe: TuningRecipe = field(default_factory=TuningRecipe)
    arms: Annotated[
        tuple[Annotated[str, one_of(TUNED, "arm")], ...],
        MinLen(1),
        Option(f"Of {', '.join(TUNED)}", "arm"),
    ] = USUAL
    draws: Annotated[
        int, Ge(FEWEST), Option("Draws of random neurons, 5 or more; 19 for p = .05.")
    ] = DRAWS
    limit: Annotated[int | None, Ge(2), Option("Examples of each task to judge on, at most.")] = 60
    tasks: Annotated[tuple[str, ...], Option("Only this task of the run", "task")] = ()
