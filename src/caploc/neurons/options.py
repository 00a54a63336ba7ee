"""What can be asked of neurons: each option once, as `caploc.options` has those of heads."""

from dataclasses import field
from typing import Annotated, ClassVar

from annotated_types import Ge, Gt, Le, MinLen
from pydantic import AfterValidator, Field

from caploc.declaration import ModelOptions
from caploc.errors import BadOption
from caploc.neurons.threshold import SIGMA, Chosen, Moments, above, best
from caploc.options import Option, TaskOptions, one_of, record, rise
from caploc.registries import Registry

# What a neuron's score is, each a function of an `Attribution`, a model and a batch.
SCORES = Registry(
    {
        name: f"caploc.neurons.attribution:{name}"
        for name in ("gradient", "integrated", "activation")
    }
)
TARGETS = Registry(  # each a function of a batch and its gold tokens' log-probabilities
    {
        "logprob": "caploc.neurons.engine:mean_logprob",
        "probability": "caploc.neurons.engine:first_probability",
    }
)
STEPS = 19  # S of the paper
POSITIONS = ("all", "last")
# Where the points of an integral from 0 to 1 lie, in parts of a step; Dai et al. take the left.
POINTS = {"midpoint": 0.5, "left": 0.0}

DRAWS = 19  # fewer can never be beaten by chance with p = .05
# Arms of an erasure, and the first two of tuning too.
LOCATED, RANDOM, LAYERS = ARMS = "located", "random", "random in layers"
TUNED = {
    "none": "nothing is tuned",
    LOCATED: "the located neurons",
    RANDOM: "as many random neurons in each layer as are located there, drawn several times",
    "lora": "low-rank adapters with as many parameters as the located neurons",
    "full": "all weights of the model",
}
USUAL = tuple(name for name in TUNED if name != "full")  # whose memory grows with the model

FEWEST = 5  # random draws from which a standard deviation is taken; 20 are better
Share = Annotated[float, Gt(0), Le(1)]
Sigma = Annotated[float, Gt(0), Field(allow_inf_nan=False)]
Draws = Annotated[
    int, Ge(FEWEST), Option("Draws of random neurons, 5 or more; fewer than 19 never give p = .05")
]
Judged = Annotated[int | None, Ge(2), Option("Examples of each task to judge on, at most.")]
Seed = Annotated[int, Ge(0), Option("Seed of everything that is drawn at random.")]
OfRun = Annotated[tuple[str, ...], Option("Only this task of the run", "task")]


@record(frozen=True)
class Attribution:
    """What is attributed, and how.

    `positions` are all of an example's, or the prompt's last. `rule` is where the S points of an
    integral lie: the middles of equal parts, or their left ends.
    """

    panel: ClassVar[str] = "Scores"
    method: Annotated[
        str,
        one_of(SCORES, "neuron score"),
        Option("gradient, integrated (the paper's), activation.", basic=True),
    ] = "gradient"
    target: Annotated[
        str,
        one_of(TARGETS, "target"),
        Option("logprob, or probability of the first token."),
    ] = "logprob"
    positions: Annotated[
        str, one_of(POSITIONS, "--positions"), Option("all, or last of the prompt.")
    ] = "all"
    steps: Annotated[int, Ge(1), Option("Points of an integral (S).")] = STEPS
    rule: Annotated[
        str,
        one_of(POINTS, "rule"),
        Option("Where these points lie: midpoint, left."),
    ] = "midpoint"

    @property
    def copies(self) -> int:
        """How many times an example stands in one pass."""
        return self.steps if self.method == "integrated" else 1


@record(frozen=True)
class Rule:
    """Which neurons are chosen: by `sigma`, or a `share` of all.

    The paper's is sigma = 6: scores more than 6 standard deviations above the mean. That both are
    taken over all neurons, and the sign counts, is ours. `normalised` divides each example's scores
    by the sum of their sizes first, so that no example outweighs others.
    """

    panel: ClassVar[str] = "Choice of neurons"
    sigma: Annotated[Sigma, Option("Standard deviations above the mean.", basic=True)] = SIGMA
    share: Annotated[
        Share | None, Option("Choose this share of all neurons instead.", basic=True)
    ] = None
    normalised: Annotated[
        bool, Option("Divide each example's scores by their sum.", flags=(" /--raw",))
    ] = True

    def __post_init__(self) -> None:
        if self.share is not None and self.sigma != SIGMA:
            raise BadOption(
                f"--share {self.share:g} and --sigma {self.sigma:g} are two rules; give one."
            )

    def moments(self, neurons: int) -> Moments:
        return Moments.empty(neurons, normalised=self.normalised)

    def choose(self, moments: Moments) -> Chosen:
        if self.share is not None:
            return best(moments.mean, self.share)
        return above(moments.mean, self.sigma)

    def __str__(self) -> str:
        if self.share is not None:
            return f"the best {100 * self.share:g} %"
        return f"{self.sigma:g} sigma of all neurons"


@record(frozen=True)
class NeuronStudy:
    """What to do: find the neurons of some tasks in one model.

    `examples` of each task (fewer if it has fewer; None: all) are dealt into `subsets`; a neuron is
    the task's if it is chosen in a share `least` of them (1: in all). What erasing them costs is
    measured on `judged` examples of which none is found on (0: not at all).
    """

    panel: ClassVar[str] = "Neurons"
    model: ModelOptions
    tasks: Annotated[
        tuple[str, ...],
        MinLen(1),
        Option("Task, as for heads", "task", path=True),
    ]
    attribution: Attribution = field(default_factory=Attribution)
    rule: Rule = field(default_factory=Rule)
    options: TaskOptions = field(default_factory=TaskOptions)
    examples: Annotated[int | None, Option("Examples of each task.", basic=True)] = 400
    subsets: Annotated[int, Ge(2), Option("Disjoint subsets of them.")] = (
        5  # ten pairs, which have an interval; two would make one pair and none
    )
    least: Annotated[Share, Option("Share of subsets that must choose a neuron.")] = 0.6
    seed: Seed = 0
    judged: Annotated[
        int,
        Ge(0),
        Option("Held-out examples that the neurons are erased on (0: none).", basic=True),
    ] = 60

    def __post_init__(self) -> None:
        if self.examples is not None and self.examples < self.subsets:
            raise BadOption(
                f"--examples must be at least one for each of {self.subsets} subsets; got "
                f"{self.examples}."
            )
        if self.judged == 1:
            raise BadOption("--judged must be 0 or 2 and more; got 1.")

    def check(self) -> "NeuronStudy":
        """Refuse every mistake that can be seen before data or weights are loaded."""
        from caploc.neurons.study import check_scorable
        from caploc.tasks.catalog import check_task_name

        self.options.check_files()
        for name in self.tasks:
            check_task_name(name, self.options)
        check_scorable(self.model)
        self.model.check()
        return self


@record(frozen=True)
class Erasing:
    """Which neurons are erased, and with what the loss is compared.

    `tasks` are those whose neurons are erased (none: all), or in place of the located ones those of
    the names `neurons`; every task of the run is judged, and those `also` named.
    """

    panel: ClassVar[str] = "Erasing"
    draws: Draws = DRAWS
    limit: Judged = None
    seed: Seed = 0
    tasks: OfRun = ()
    neurons: Annotated[tuple[str, ...], Option("Erase these, L3N217, not the located ones")] = ()
    others: Annotated[tuple[str, ...], Option("Another task to judge", "also", path=True)] = ()


@record(frozen=True)
class TuningRecipe:
    """How every arm is tuned.

    Each of `rates` is tried with `steps` batches of `batch_size` examples. `seed` fixes the split,
    the batches and the random start of adapters.
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
    seed: Seed = 0


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
    draws: Draws = DRAWS
    limit: Judged = 60
    tasks: OfRun = ()
