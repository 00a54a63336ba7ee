"""What a study file may say. Its keys are the options of `caploc locate`, with `_` for `-`."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

Whole = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0)]
Rate = Annotated[float, Field(gt=0, lt=1)]
Name = Annotated[str, Field(min_length=1)]


class StudiesPart(BaseModel):
    """A table of the file: no key that is not known, no value of another type."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class SettingLists(StudiesPart):
    """What may be said of all studies, of a task, of a method, or of some studies; the last wins.

    What nobody says is as in `caploc locate`.
    """

    masks: Whole | None = None
    rate: Rate | None = None
    mask_counts: Annotated[list[Whole], Field(min_length=1)] | None = None
    rates: Annotated[list[Rate], Field(min_length=1)] | None = None
    examples: Whole | None = None
    budget: Whole | None = None
    goal: Literal["heads", "set"] | None = None
    opening: Literal["likelihood", "masks"] | None = None
    recall: Annotated[float, Field(gt=0, le=1)] | None = None
    top: Whole | None = None
    estimator: Name | None = None
    outcome: Literal["metric", "logprob"] | None = None
    metric: Name | None = None
    fewshot: Annotated[int, Field(ge=0)] | None = None
    chat_template: bool | None = None
    data: dict[Name, Name] | None = None
    also: list[Name] | None = None
    controls: Annotated[int, Field(ge=0)] | None = None
    limit: Whole | None = None
    disjoint: bool | None = None
    track: Name | None = None

    def said(self) -> dict[str, Any]:
        """The choices that were made here."""
        return {
            name: getattr(self, name)
            for name in SettingLists.model_fields
            if getattr(self, name) is not None
        }


def table_of_name(value: Any) -> Any:
    """A text alone is a table's name."""
    return {"name": value} if isinstance(value, str) else value


class ModelEntry(StudiesPart):
    """A model, and how it is loaded. Code of its own is allowed on the command line only."""

    name: Name
    label: Name | None = None
    device: Name = "auto"
    dtype: Name = "auto"
    revision: Name | None = None
    projections: Name | None = None
    quantize: Name | None = None
    gguf: Name | None = None
    batch_size: Whole | None = None


class TaskEntry(SettingLists):
    """A task: of lm-eval, caploc's own, or the path of a YAML."""

    name: Name
    label: Name | None = None


class MethodEntry(SettingLists):
    """A method of `caploc locate`."""

    name: Name
    label: Name | None = None


class Override(SettingLists):
    """Choices for the studies of these models, tasks, methods (by label) and seeds; all if absent.

    With `skip` they are left out.
    """

    models: Annotated[list[Name], Field(min_length=1)] | None = None
    tasks: Annotated[list[Name], Field(min_length=1)] | None = None
    methods: Annotated[list[Name], Field(min_length=1)] | None = None
    seeds: Annotated[list[Seed], Field(min_length=1)] | None = None
    skip: bool = False


class StudyFile(StudiesPart):
    """Every model with every task, method and seed."""

    out: Name | None = None
    models: Annotated[
        list[Annotated[ModelEntry, BeforeValidator(table_of_name)]], Field(min_length=1)
    ]
    tasks: Annotated[
        list[Annotated[TaskEntry, BeforeValidator(table_of_name)]], Field(min_length=1)
    ]
    methods: Annotated[
        list[Annotated[MethodEntry, BeforeValidator(table_of_name)]], Field(min_length=1)
    ] = [MethodEntry(name="adaptive")]
    seeds: Annotated[list[Seed], Field(min_length=1)] = [0]
    settings: SettingLists = SettingLists()
    overrides: list[Override] = []

    def labels(self, kind: str) -> list[str]:
        """The labels of models, tasks or methods, in their order: their names, if none is given."""
        return [entry.label or entry.name for entry in getattr(self, kind)]

    def twice(self) -> Iterator[str]:
        """What is named twice, in sentences."""
        for kind in ("models", "tasks", "methods"):
            labels = self.labels(kind)
            for label in dict.fromkeys(label for label in labels if labels.count(label) > 1):
                yield (
                    f"{kind}: {label!r} is there {labels.count(label)} times; give each a `label` "
                    "of its own, or name it once."
                )
        for seed in dict.fromkeys(seed for seed in self.seeds if self.seeds.count(seed) > 1):
            yield f"seeds: {seed} is there {self.seeds.count(seed)} times; name it once."

    def idle(self) -> Iterator[str]:
        """Overrides that speak of nothing there is, in sentences."""
        for place, override in enumerate(self.overrides):
            for kind in ("models", "tasks", "methods"):
                known = self.labels(kind)
                for label in getattr(override, kind) or ():
                    if label not in known:
                        yield (
                            f"overrides[{place}].{kind}: {label!r} is no label here; there are "
                            f"{', '.join(known)}."
                        )
            for seed in set(override.seeds or ()) - set(self.seeds):
                listed = ", ".join(map(str, self.seeds))
                yield f"overrides[{place}].seeds: {seed} is no seed here; there are {listed}."
