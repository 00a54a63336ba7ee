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


class FileObject(BaseModel):
    """An object of a file."""

    model_config = ConfigDict(extra="allow", strict=True, protected_namespaces=())


class Written(FileObject):
    """A whole file that says its schema."""

    schema_: int = Field(SCHEMA, alias="schema")


class ScoreForm(FileObject):
    """A score and how sure it is."""

    score: Number | None = None
    stderr: Number | None = None
    examples: Count | None = None


class Change(FileObject):
    """How an outcome changed."""

    outcome: Number | None = None
    stderr: Number | None = None
    low: Number | None = None
    high: Number | None = None
    margin: Number | None = None
    verdict: Name | None = None
    examples: Count | None = None


class Share(FileObject):
    """A count, and what share of its whole it is."""

    broken: bool | None = None
    count: Count
    share: Number | None = None
    low: Number | None = None
    high: Number | None = None


class AnswerForm(FileObject):
    """An example, answered with and without the chosen heads."""

    example: Count | None = None
    prompt: str | None = None
    gold: str | None = None
    intact: str | None = None
    knocked_out: str | None = None
    intact_outcome: Number | None = None
    knocked_out_outcome: Number | None = None
    kind: Name | None = None


class FailuresForm(FileObject):
    """What of a task was lost."""

    task: Name | None = None
    examples: Count | None = None
    unscored: Count | None = None
    verdict: Name | None = None
    harmed: Share | None = None
    broken: Share | None = None
    categories: dict[Name, Share] = {}
    samples: dict[Name, list[AnswerForm]] = {}


class ComparedForm(FileObject):
    """A task's scores before and after."""

    name: Name
    metric: Name | None = None
    higher_is_better: bool | None = None
    intact: ScoreForm | None = None
    knocked_out: ScoreForm | None = None
    change: Change | None = None
    failures: FailuresForm | None = None


class Controls(FileObject):
    """Random heads, as many."""

    examples: Count | None = None
    chosen: Number | None = None
    draws: Count | None = None
    scores: list[Number | None] | None = None
    mean: Number | None = None
    sd: Number | None = None
    deviations: Number | None = None
    same_groups: dict[str, Any] | None = None


class TogetherForm(FileObject):
    """All heads at once against the sum of each."""

    joint_drop: Number | None = None
    sum_of_drops: Number | None = None
    ratio: Number | None = None
    low: Number | None = None
    high: Number | None = None


class Prediction(FileObject):
    """How well effects foretell masks that were not seen."""

    r2: Number | None = None
    ceiling: Number | None = None
    slope: Number | None = None
    masks: Count | None = None
    examples: Count | None = None


class HeldOut(FileObject):
    """The check on examples that no search saw."""

    fresh: bool | None = None
    examples: Count | None = None
    intact: Number | None = None
    knocked_out: Number | None = None
    change: Change | None = None
    together: TogetherForm | None = None
    prediction: Prediction | None = None


class TriedForm(FileObject):
    """A set of heads, and what its loss costs."""

    heads: list[PartName]
    drop: Number | None = None
    stderr: Number | None = None


class Subsets(FileObject):
    """The set as found beside its parts."""

    found: list[PartName]
    named: list[PartName]
    fresh: bool | None = None
    examples: Count | None = None
    tried: list[TriedForm] = []
    picked: list[PartName] | None = None
    p: Number | None = None
    note: Name = ""


class EffectForm(FileObject):
    """A change of the score and its interval."""

    effect: Number | None = None
    low: Number | None = None
    high: Number | None = None


class MemberForm(FileObject):
    """What a named head does alone, and within the set of all that are named."""

    head: PartName
    alone: EffectForm
    within: EffectForm


class MembersForm(FileObject):
    """The named heads, all on the same examples."""

    fresh: bool | None = None
    examples: Count | None = None
    heads: list[MemberForm] = []


class EstimandForm(FileObject):
    """Which effects the heads have, under which rate, and for which some are named."""

    heads: Name
    rate: Number | None = None
    top: Name


class Validation(FileObject):
    """What was checked."""

    task: ComparedForm
    controls: Controls | None = None
    held_out: HeldOut | None = None
    subsets: Subsets | None = None
    members: MembersForm | None = None
    other_tasks: list[ComparedForm] = []


class Model(FileObject):
    """Which model it was."""

    name: Name
    fingerprint: Name | None = None
    dtype: Name | None = None


class TaskForm(FileObject):
    """Which task it was."""

    name: Name
    metric: Name | None = None
    outcome: Name | None = None
    examples: Count | None = None
    higher_is_better: bool | None = None


class MethodForm(FileObject):
    """Which method it was, and its settings."""

    name: Name
    masks: Count | None = None
    rate: Number | None = None
    top: Count | None = None
    goal: Name | None = None
    examples: Count | None = None


class Heads(FileObject):
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


class Entry(FileObject):
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


class Fit(FileObject):
    """The regression."""

    estimator: Name | None = None
    r2_held_out: Number | None = None
    noise_ceiling: Number | None = None
    masks: Count | None = None
    rows: Count | None = None


class Search(FileObject):
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


class CostForm(FileObject):
    """What it took."""

    rows: Count | None = None
    forward_tokens: Number | None = None
    plain_tokens: Number | None = None
    seconds: Number | None = None


class ResultForm(Written):
    """result.json."""

    model: Model
    task: TaskForm
    method: MethodForm
    seed: int | None = None
    grid: Heads
    intact: ScoreForm | None = None
    estimand: EstimandForm | None = None
    heads: list[Entry]
    top: list[PartName]
    fit: Fit | None = None
    search: Search | None = None
    validation: Validation
    cost: CostForm | None = None
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
    curves: dict[Name, list[ScoreForm]]
    cost: CostForm | None = None


class ContrastForm(FileObject):
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
    interactions: list[ContrastForm]
    summary: list[Name] = []


class Universal(Written):
    """universal.json."""

    model: Name
    universal: list[PartName] = []


class RunForm(FileObject):
    """run.json."""

    study: dict[str, Any]
    command: str = ""
    versions: dict[str, str | None] | None = None


class Studies(Written):
    """studies.json."""

    studies: list[Name]
