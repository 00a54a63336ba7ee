"""What a study found: the one description of `result.json`, built, written, read and shown.

Missing is None, never 0 or NaN. Strict: `"5"` is no number.
Fields that are not named here are left out when a file is read.
"""

import math
from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    model_validator,
)

from caploc.components import (
    HEADS,
    KINDS,
    Component,
    GridOfHeads,
    Heads,
    find_grid,
    parse_component,
)
from caploc.errors import CaplocError

SCHEMA = 1  # of every file that is made of these records
READ_OFF = "log-probability "  # how an answer begins that the model did not choose or write
CLEAR = 0.03  # of a score: a loss that is taken for real where its error is unknown

Name = Annotated[str, StringConstraints(max_length=100_000)]
LETTERS = "".join(kind.COMPONENT.LETTER for kind in KINDS.values()) + "N"  # N of neurons
ComponentName = Annotated[str, StringConstraints(pattern=rf"^L\d{{1,6}}([{LETTERS}]\d{{1,9}})?$")]
Count = Annotated[int, Field(ge=0, le=2**63)]
Size = Annotated[int, Field(ge=0)]
Number = Annotated[float, Field(allow_inf_nan=False)]


def number(value: float | None) -> float | None:
    """Return a number as files keep it: None for what is not finite."""
    return None if value is None or not math.isfinite(value) else float(value)


class Record(BaseModel):
    """A part of a file."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True, protected_namespaces=())

    def as_dict(self) -> dict[str, Any]:
        """Return what is written: plain values of the fields that were set."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)


class Document(Record):
    """A whole file, which says its schema."""

    schema_: int = Field(default=SCHEMA, alias="schema")


class Score(Record):
    """A task's score over some examples, with the standard error over examples.

    Both are None where they are not defined (no example; no formula; no finite number).
    """

    score: Number | None = None
    stderr: Number | None = None
    examples: Count | None = None

    @classmethod
    def of(cls, score: float | None, stderr: float | None, examples: int) -> Self:
        """Return the score of so many examples."""
        return cls(score=number(score), stderr=number(stderr), examples=examples)


class Change(Record):
    """A mean change of outcomes with its 95 % interval, and what that says.

    `verdict` is `changed` beyond doubt, `unchanged` within `margin` for sure, or `open`.
    """

    outcome: Number | None = None
    stderr: Number | None = None
    low: Number | None = None
    high: Number | None = None
    margin: Number | None = None
    verdict: Name | None = None
    examples: Count | None = None


class Status(StrEnum):
    """What knocking the heads out did to one answer."""

    LOST = "lost"
    GAINED = "gained"
    REWORDED = "reworded"  # another text, scored the same
    UNCHANGED = "unchanged"
    UNKNOWN = "not measured"


class AnswerPair(Record):
    """An example, answered with and without the chosen heads, as a reader sees it.

    `kind` says what stands in the place of a lost answer.
    """

    example: Count | None = None
    prompt: str | None = None
    gold: str | None = None
    intact: str | None = None
    knocked_out: str | None = None
    intact_outcome: Number | None = None
    knocked_out_outcome: Number | None = None
    kind: Name | None = None

    @property
    def status(self) -> Status:
        """What became of the answer; outcomes are better when higher.

        Log-probabilities never come out exactly alike, so there an answer whose text is the same is
        unchanged whatever its outcome, and so is one that is itself a log-probability.
        """
        before, after = self.intact_outcome, self.knocked_out_outcome
        texts = self.intact, self.knocked_out
        if None in texts and (before is None or after is None):
            return Status.UNKNOWN
        read_off = all(text is not None and text.startswith(READ_OFF) for text in texts)
        same_text = read_off or (texts[0] == texts[1] and None not in texts)
        if same_text and (before == after or not {before, after} <= {0.0, 1.0}):
            return Status.UNCHANGED
        if before is not None and after is not None and before != after:
            return Status.LOST if after < before else Status.GAINED
        return Status.UNCHANGED if None in texts or same_text else Status.REWORDED


class BeforeAfter(Record):
    """A figure of the intact model and of the knocked-out one."""

    intact: Number | None = None
    knocked_out: Number | None = None


class Lost(Record):
    """The answers that were lost of the `examples` asked, and a few of them.

    `kinds` counts them by what stands in their place, the most frequent first.
    """

    count: Count
    examples: Count
    kinds: dict[Name, Count] = {}
    samples: list[AnswerPair] = []


class TaskComparison(Record):
    """A task's scores before and after, on the same examples, and what was lost.

    A `twin` is the task that heads were found for in other words.
    """

    name: Name
    twin: bool = False
    metric: Name | None = None
    higher_is_better: bool | None = None
    intact: Score | None = None
    knocked_out: Score | None = None
    change: Change | None = None
    lost: Lost | None = None

    @property
    def scores(self) -> tuple[float | None, float | None]:
        """The scores intact and knocked out, None where one was not measured."""
        intact, knocked_out = self.intact or Score(), self.knocked_out or Score()
        return intact.score, knocked_out.score

    @property
    def lost_share(self) -> float:
        """The share of the score by which it changes; 0 of none."""
        before, after = self.scores
        return 0.0 if not before or after is None else abs(before - after) / before

    @property
    def is_hurt(self) -> bool:
        """Whether something is lost beyond doubt; outcomes are better when higher.

        Where it is not known how surely, a share of `CLEAR` of the score must be lost.
        """
        if self.change is None:
            before, after = self.scores
            fell = before is not None and after is not None and after < before
            return fell and self.lost_share > CLEAR
        return self.change.verdict == "changed" and (self.change.outcome or 0) < 0


class Controls(Record):
    """Scores without random other heads, as many in each layer as the `chosen` ones."""

    examples: Count | None = None
    chosen: Number | None = None
    scores: list[Number | None] = []
    mean: Number | None = None
    sd: Number | None = None


class HeldOut(Record):
    """The check on examples that, if `fresh`, no search saw."""

    fresh: bool | None = None
    examples: Count | None = None
    intact: Number | None = None
    knocked_out: Number | None = None
    change: Change | None = None


class Effect(Record):
    """A mean change of the outcome and its 95 % interval; None where it could not be told."""

    effect: Number | None = None
    low: Number | None = None
    high: Number | None = None


class Member(Record):
    """A named head's effect alone, and its share of what all named heads do together."""

    head: ComponentName
    alone: Effect
    within: Effect

    @property
    def is_confirmed(self) -> bool:
        """Whether its loss surely costs something, alone or with the other heads gone."""
        return any(each.high is not None and each.high < 0 for each in (self.alone, self.within))


class Members(Record):
    """The named heads, all on the same examples."""

    fresh: bool | None = None
    examples: Count | None = None
    heads: list[Member] = []


class TaskEffect(Record):
    """What knocking out a set changes in one task."""

    task: Name
    effect: Effect
    examples: Count | None = None


class FrontierSet(Record):
    """A set that was found, what it breaks, and what it costs the tasks to be spared.

    `within` tells whether each spared task loses less than the price, beyond doubt at `level`.
    """

    heads: list[ComponentName]
    damage: Effect
    twins: list[TaskEffect] = []
    spared: list[TaskEffect] = []
    within: bool = False
    level: Number | None = None

    @property
    def breaks(self) -> bool:
        """Whether the task and its twins surely lose."""
        ends = [self.damage.high, *(twin.effect.high for twin in self.twins)]
        return all(high is not None and high < 0 for high in ends)


class Frontier(Record):
    """What the model allows: sets that break the task, in the order in which they were judged."""

    price: Number | None = None
    fresh: bool | None = None
    examples: Count | None = None
    sets: list[FrontierSet] = []


class Strongest(Record):
    """The head that takes most of the task alone, and what every task loses without it alone."""

    head: ComponentName
    task: TaskComparison
    other_tasks: list[TaskComparison] = []


class AttendedToken(Record):
    """An earlier token, its place in the prompt, and the share of a head's attention it has."""

    token: str
    place: Count
    share: Number


class HeadAction(Record):
    """What a head does on one example at the prompt's last token: to look at, no claim.

    `promotes` are the words to whose logits its output adds most directly; among all `of`, `rank`
    is that of `following`, the next word of the intact model.
    """

    head: ComponentName
    prompt: str
    attends: list[AttendedToken]
    promotes: list[str]
    following: str
    rank: Count
    of: Count


class TextChange(Record):
    """How far the model's next words on ordinary text are from the intact model's.

    `nats` is the mean Kullback-Leibler divergence from the intact model, a token; `surprise` the
    mean negative log-probability of the text's own next token, intact and knocked out.
    """

    tokens: Count
    nats: Number
    surprise: BeforeAfter


class Validation(Record):
    """What was checked of the named heads.

    `unconfirmed` heads were found by the search, and the check did not confirm them. `costly` heads
    were confirmed, and are not named since `strongest` does most of what they do together and
    breaks no other task. `action` is that of the strongest head on a lost example.
    """

    unconfirmed: list[ComponentName] = []
    costly: list[ComponentName] = []
    strongest: Strongest | None = None
    action: HeadAction | None = None
    text: TextChange | None = None
    task: TaskComparison
    controls: Controls | None = None
    held_out: HeldOut | None = None
    other_tasks: list[TaskComparison] = []
    members: Members | None = None
    frontier: Frontier | None = None


class Model(Record):
    """Which model it was: `name` loads it.

    `uncovered` names what carries something from token to token beside the heads of the grid.
    """

    name: Name
    fingerprint: Name | None = None
    dtype: Name | None = None
    device: Name | None = None
    uncovered: list[Name] = []


class LocatedTask(Record):
    """Which task the heads were found on; `outcome` is the kind of what found them.

    `copies` examples put a question that another one puts already, and were not asked.
    """

    name: Name
    metric: Name | None = None
    outcome: Name | None = None
    examples: Count | None = None
    copies: Count = 0
    higher_is_better: bool | None = None


class MethodSettings(Record):
    """The method and the settings it used; those it does not use are None."""

    name: Name
    masks: Count | None = None
    rate: Number | None = None
    top: Count | None = None
    goal: Name | None = None
    examples: Count | None = None
    mode: Name = "zero"
    corrupted: Name | None = None


class GridShape(Record):
    """The heads of each layer, how many share a key-value head, and what was knocked out of them.

    `components` is one of `KINDS`: masks, effects and names of the result are of this kind.
    """

    layers: Size
    heads: list[Size]
    group_sizes: list[Annotated[int, Field(ge=1)]] = []
    components: Name = HEADS

    @model_validator(mode="after")
    def agree(self) -> Self:
        """Hold one number for each layer."""
        if len(self.heads) != self.layers or len(self.group_sizes) not in (0, self.layers):
            raise ValueError(f"heads and group_sizes must hold {self.layers} numbers, as layers")
        if self.components not in KINDS:
            raise ValueError(f"components are {', '.join(KINDS)}, and not {self.components!r}")
        return self

    @classmethod
    def of(cls, heads: Heads, components: str = HEADS) -> Self:
        """Describe a model's heads, and the components that were knocked out."""
        sizes = list(heads.heads_per_layer), list(heads.group_sizes)
        return cls(layers=heads.layers, heads=sizes[0], group_sizes=sizes[1], components=components)

    def model_heads(self) -> Heads:
        """Return the model's heads, as masks of stored rows are over them."""
        return Heads(tuple(self.heads), tuple(self.group_sizes))

    def grid(self) -> GridOfHeads[Any]:
        """Return the grid of the components that effects are of."""
        return find_grid(self.components, self.model_heads())


class Estimand(Record):
    """Which effects the heads have, at which rate of others gone, and for which some are named."""

    heads: Name
    rate: Number | None = None
    top: Name


class HeadEffect(Record):
    """One head, and what the run says of it; an effect that was not measured is null."""

    head: ComponentName
    layer: Count
    index: Count
    effect: Number | None
    low: Number | None = None
    high: Number | None = None
    q: Number | None = None
    top_chance: Number | None = None
    scanned: Count | None = None  # right answers that were asked without it, in the scan
    broken: Count | None = None  # of these, the answers that were others than before
    lost: Number | None = None  # mean share of the right answer's probability that was gone
    selected: bool | None = None
    critical: bool | None = None
    universal: bool | None = None

    @property
    def is_open(self) -> bool:
        """Whether its interval holds zero, so that it may do nothing."""
        return self.low is not None and self.high is not None and self.low <= 0 <= self.high

    @property
    def place(self) -> Component:
        """Where it lies."""
        return parse_component(self.head)


class Fit(Record):
    """The regression."""

    estimator: Name | None = None
    r2_held_out: Number | None = None
    masks: Count | None = None
    rows: Count | None = None


class SettingOutcome(Record):
    """One setting of a search over settings, and what its heads cost where they were found."""

    heads: list[ComponentName]
    drop: Number | None = None
    stderr: Number | None = None
    masks: Count
    rate: Number


class Step(Record):
    """A head that a search took after others, the score left then, and what that head lowered."""

    head: ComponentName
    score: Number
    added: Number | None = None


class Search(Record):
    """What the search says of itself; each method has figures of its own."""

    goal: Name | None = None
    budget: Count | None = None
    rows: Count | None = None
    rate: Number | None = None
    tried: list[ComponentName] | None = None  # heads of the trial
    tried_on: Count | None = None  # examples of each of them
    stability: Number | None = None  # overlap (Jaccard) of those named on resampled examples
    sets: Count | None = None  # that were tried jointly
    settings: list[SettingOutcome] | None = None
    steps: list[Step] | None = None
    chosen: Count | None = None
    masks: Count | None = None
    critical: list[ComponentName] = []
    universal: list[ComponentName] = []
    breaks: dict[ComponentName, Name] = {}  # of a universal head, another task that it breaks
    excluded: list[ComponentName] = []
    notes: list[str] = []

    @property
    def seeks_set(self) -> bool:
        """Whether it names heads for what they do together."""
        return self.goal in ("set", "specific")


class RunCost(Record):
    """What the rows took; tokens in units of a pass through all layers."""

    rows: Count | None = None
    search_rows: Count | None = None  # of them, those that the search asked for
    intact_rows: Count | None = None  # of these, those with nothing knocked out
    forward_tokens: Count | Number | None = None
    plain_tokens: Count | Number | None = None
    seconds: Number | None = None


class Verdict(StrEnum):
    """What the check says of the named heads, in one word."""

    SPECIFIC = "specific"
    SHARED = "shared"
    PROMPT_BOUND = "prompt-bound"
    NEEDED_BY_EVERYTHING = "needed by everything"
    LIKE_RANDOM = "like random heads"
    NOT_FOUND = "not found"
    NOT_CHECKED = "not checked"


class Said(StrEnum):
    """What the interval of a change says of a task; a control's change is only compared with."""

    LOST = "lost"
    KEPT = "kept"
    OPEN = "open"
    POWERLESS = "nothing to lose"  # the intact model gets hardly any answer right
    CONTROL = "control"


class RowKind(StrEnum):
    """What a row of a card is measured on."""

    HELD_OUT = "held out"
    SEEN = "seen in the search"  # the task's examples, too few to hold some out
    ALL = "all examples"
    ALONE = "the strongest head alone"
    OTHER_WORDS = "other words"
    OTHER_TASK = "other task"
    TEXT = "ordinary text"
    CONTROL = "control"


class CardRow(Record):
    """A task's score with and without the named heads, and its change with the 95 % interval.

    A change is one of outcomes, which are better when higher. `unit` is that of the scores and
    `change_unit` that of the change: `%` (then 1 is 100 %), `nats`, or empty.
    """

    label: Name
    kind: RowKind
    unit: Name
    change_unit: Name
    intact: Number | None
    without: Number | None
    change: Number | None
    low: Number | None
    high: Number | None
    said: Said | None
    examples: Count | None


class Sample(Record):
    """An example whose answer was lost: the end of its prompt, and both answers."""

    prompt: str
    intact: str
    without: str


class Card(Record):
    """What a reader sees first. `of` counts all of the `kind`, `rows` are those of one table."""

    verdict: Verdict
    few_examples: bool
    unstable: bool
    heading: Name
    heads: list[ComponentName]
    of: Count
    kind: Name = "heads"
    model: Name
    rows: list[CardRow]
    samples: list[Sample]
    held_out: Count
    notes: list[Name] = []


class Result(Document):
    """The content of result.json; `heads` are all heads, the most needed first."""

    model: Model
    task: LocatedTask
    method: MethodSettings
    seed: int | None = None
    grid: GridShape
    intact: Score = Score()
    estimand: Estimand
    heads: list[HeadEffect]
    top: list[ComponentName]
    fit: Fit = Fit()
    search: Search = Search()
    validation: Validation
    cost: RunCost = RunCost()
    command: str | None = None
    versions: dict[str, str | None] = {}

    @model_validator(mode="after")
    def known(self) -> Self:
        """Name no component but those of the grid."""
        try:
            self.grid.grid().columns([*(entry.head for entry in self.heads), *self.top])
        except CaplocError as error:
            raise ValueError(str(error).rstrip(".")) from None
        return self

    def by_name(self) -> dict[str, HeadEffect]:
        """Return every head by its name."""
        return {entry.head: entry for entry in self.heads}

    def ranking(self) -> list[str]:
        """Return the heads to knock out in turn: those named, needed for sure, maybe needed."""
        needed = [entry for entry in self.heads if (entry.effect or 0) < 0]
        needed.sort(key=lambda entry: entry.is_open)
        return list(dict.fromkeys([*self.top, *(entry.head for entry in needed)]))
