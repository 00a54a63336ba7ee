"""What a run's files look like, as far as commands rely on it.

Strict: `"5"` is no number, and NaN is none; sizes are those that models have. Further fields are
left as they are.
"""

from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from caploc.errors import CaplocError
from caploc.heads import HeadGrid

SCHEMA = 1  # of every file described here
MOST_PARTS = 1_000_000_000  # of a grid: beyond any model's neurons
MOST_HEADS = 1_000_000

Name = Annotated[str, StringConstraints(max_length=100_000)]
PartName = Annotated[str, StringConstraints(pattern=r"^L\d{1,6}[HN]\d{1,9}$")]
Count = Annotated[int, Field(ge=0, le=2**63)]
Size = Annotated[int, Field(ge=0, le=MOST_PARTS)]
Number = Annotated[float, Field(allow_inf_nan=False)]


class Part(BaseModel):
    """An object of a file."""

    model_config = ConfigDict(extra="allow", strict=True, protected_namespaces=())


class Written(Part):
    """A whole file that says its schema."""

    schema_: int = Field(SCHEMA, alias="schema")


class Score(Part):
    """A score and how sure it is."""

    score: Number | None = None
    stderr: Number | None = None
    examples: Count | None = None


class Change(Part):
    """How an outcome changed."""

    outcome: Number | None = None
    stderr: Number | None = None
    low: Number | None = None
    high: Number | None = None
    margin: Number | None = None
    verdict: Name | None = None
    examples: Count | None = None


class Share(Part):
    """A count, and what share of its whole it is."""

    broken: bool | None = None
    count: Count
    share: Number | None = None
    low: Number | None = None
    high: Number | None = None


class Answer(Part):
    """An example, answered with and without the chosen heads."""

    example: Count | None = None
    prompt: str | None = None
    gold: str | None = None
    intact: str | None = None
    knocked_out: str | None = None
    intact_outcome: Number | None = None
    knocked_out_outcome: Number | None = None
    kind: Name | None = None


class Failures(Part):
    """What of a task was lost."""

    task: Name | None = None
    examples: Count | None = None
    unscored: Count | None = None
    verdict: Name | None = None
    harmed: Share | None = None
    broken: Share | None = None
    categories: dict[Name, Share] = {}
    samples: dict[Name, list[Answer]] = {}


class Compared(Part):
    """A task's scores before and after."""

    name: Name
    metric: Name | None = None
    higher_is_better: bool | None = None
    intact: Score | None = None
    knocked_out: Score | None = None
    change: Change | None = None
    failures: Failures | None = None


class Controls(Part):
    """Random heads, as many."""

    examples: Count | None = None
    chosen: Number | None = None
    draws: Count | None = None
    scores: list[Number | None] | None = None
    mean: Number | None = None
    sd: Number | None = None
    deviations: Number | None = None
    same_groups: dict[str, Any] | None = None


class Together(Part):
    """All heads at once against the sum of each."""

    joint_drop: Number | None = None
    sum_of_drops: Number | None = None
    ratio: Number | None = None
    low: Number | None = None
    high: Number | None = None


class Prediction(Part):
    """How well effects foretell masks that were not seen."""

    r2: Number | None = None
    ceiling: Number | None = None
    slope: Number | None = None
    masks: Count | None = None
    examples: Count | None = None


class HeldOut(Part):
    """The check on examples that no search saw."""

    fresh: bool | None = None
    examples: Count | None = None
    intact: Number | None = None
    knocked_out: Number | None = None
    change: Change | None = None
    together: Together | None = None
    prediction: Prediction | None = None


class Tried(Part):
    """A set of heads, and what its loss costs."""

    heads: list[PartName]
    drop: Number | None = None
    stderr: Number | None = None


class Subsets(Part):
    """The set as found beside its parts."""

    found: list[PartName]
    named: list[PartName]
    fresh: bool | None = None
    examples: Count | None = None
    tried: list[Tried] = []
    picked: list[PartName] | None = None
    p: Number | None = None
    note: Name = ""


class Effect(Part):
    """A change of the score and its interval."""

    effect: Number | None = None
    low: Number | None = None
    high: Number | None = None


class Member(Part):
    """What a named head does alone, and within the set of all that are named."""

    head: PartName
    alone: Effect
    within: Effect


class Members(Part):
    """The named heads, all on the same examples."""

    fresh: bool | None = None
    examples: Count | None = None
    heads: list[Member] = []


class Estimand(Part):
    """Which effects the heads have, under which rate, and for which some are named."""

    heads: Name
    rate: Number | None = None
    top: Name


class Validation(Part):
    """What was checked."""

    task: Compared
    controls: Controls | None = None
    held_out: HeldOut | None = None
    subsets: Subsets | None = None
    members: Members | None = None
    other_tasks: list[Compared] = []


class Model(Part):
    """Which model it was."""

    name: Name
    fingerprint: Name | None = None
    dtype: Name | None = None


class Task(Part):
    """Which task it was."""

    name: Name
    metric: Name | None = None
    outcome: Name | None = None
    examples: Count | None = None
    higher_is_better: bool | None = None


class Method(Part):
    """Which method it was, and its settings."""

    name: Name
    masks: Count | None = None
    rate: Number | None = None
    top: Count | None = None
    goal: Name | None = None
    examples: Count | None = None


class Heads(Part):
    """The heads of each layer."""

    layers: Size
    heads: list[Size]
    group_sizes: list[Annotated[int, Field(ge=1, le=MOST_PARTS)]] = []

    @model_validator(mode="after")
    def agree(self) -> Self:
        """One number for each layer, and not more heads than a mask may have."""
        if len(self.heads) != self.layers or len(self.group_sizes) not in (0, self.layers):
            raise ValueError(f"heads and group_sizes must hold {self.layers} numbers, as layers")
        if sum(self.heads) > MOST_HEADS:
            raise ValueError(f"a grid of {sum(self.heads):,} heads is none of a model")
        return self

    def grid(self) -> HeadGrid:
        """As masks are over it."""
        return HeadGrid(tuple(self.heads), tuple(self.group_sizes))


class Entry(Part):
    """One head, and what the run says of it."""

    head: PartName
    layer: Count | None = None
    index: Count | None = None
    effect: Number | None  # null if it was not measured; commands order heads by it
    low: Number | None = None
    high: Number | None = None
    q: Number | None = None
    top_chance: Number | None = None
    selected: bool | None = None
    critical: bool | None = None
    universal: bool | None = None


class Fit(Part):
    """The regression."""

    estimator: Name | None = None
    r2_held_out: Number | None = None
    noise_ceiling: Number | None = None
    masks: Count | None = None
    rows: Count | None = None


class Search(Part):
    """What the search says of itself."""

    goal: Name | None = None
    opening: Name | None = None
    budget: Count | None = None
    rows: Count | None = None
    stopped_by: Name | None = None
    expected_recall: Number | None = None
    wanted_recall: Number | None = None
    forecast: dict[str, Number | None] | None = None
    rate: Number | None = None
    group: Count | None = None
    signal_to_noise: Number | None = None
    checked_on: Count | None = None
    fresh: bool | None = None
    shortlist: list[PartName] | None = None
    tied: list[PartName] | None = None
    critical: list[PartName] = []
    universal: list[PartName] = []
    notes: list[str] = []


class Cost(Part):
    """What it took."""

    rows: Count | None = None
    forward_tokens: Number | None = None
    plain_tokens: Number | None = None
    seconds: Number | None = None


class Result(Written):
    """result.json."""

    model: Model
    task: Task
    method: Method
    seed: int | None = None
    grid: Heads
    intact: Score | None = None
    estimand: Estimand | None = None
    heads: list[Entry]
    top: list[PartName]
    fit: Fit | None = None
    search: Search | None = None
    validation: Validation
    cost: Cost | None = None
    command: str | None = None
    versions: dict[str, str | None] | None = None

    @model_validator(mode="after")
    def known(self) -> Self:
        """Every head that is named is one of the grid's."""
        grid = self.grid.grid()
        for entry in self.heads:
            place = f"L{entry.layer}H{entry.index}"
            if None not in (entry.layer, entry.index) and entry.head != place:
                raise ValueError(f"head {entry.head} is said to lie at {place}")
        try:
            grid.named_in([*(entry.head for entry in self.heads), *self.top])
        except CaplocError as error:
            raise ValueError(str(error).rstrip(".")) from None
        return self


class Curve(Written):
    """curve.json."""

    heads: list[PartName]
    curves: dict[Name, list[Score]]
    cost: Cost | None = None


class Contrast(Part):
    """Two sets of heads, and what their joint loss does beyond that of each."""

    kind: Name
    first: list[PartName]
    second: list[PartName]
    effect: Number | None = None
    low: Number | None = None
    high: Number | None = None
    q: Number | None = None
    meaning: Name | None = None


class Interactions(Written):
    """interactions.json."""

    examples: Count | None = None
    interactions: list[Contrast]
    summary: list[Name] = []


class Universal(Written):
    """universal.json."""

    model: Name
    universal: list[PartName] = []


class Run(Part):
    """run.json."""

    study: dict[str, Any]
    command: str = ""
    versions: dict[str, str | None] | None = None


class Studies(Written):
    """studies.json."""

    studies: list[Name]
