"""What is reproduced on what, from TOML files: models, benchmarks in their roles, searches."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate
from math import ceil
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from caploc import designs
from caploc.components import Head, Heads
from caploc.errors import BadData, BadOption, CaplocError, UnknownName, list_keys, pick, unknown
from caploc.files import read_toml
from caploc.models.loading import model_shape
from caploc.naming import placed
from caploc.options import PACKAGED, Settings, TaskOptions, parse_data
from caploc.search import METHODS, Problem
from caploc.validation import check_limit
from caploc.workbench import ModelOptions

FRESH = 100  # examples that a search never chose on, to tell how much a choice flatters itself
GENERAL, KNOWLEDGE = "general", "knowledge"  # groups that exhibits treat in ways of their own


class PresetPart(BaseModel):
    """A table of the file: no key that is not known, nothing changed after it is read."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Labelled(PresetPart):
    """A table of which the file may have several, by the label that exhibits show."""

    label: str = Field(min_length=1)


class PresetModel(Labelled):
    """A model, and where it is loaded from."""

    name: str
    dtype: str = "auto"
    device: str = "auto"
    revision: str | None = None

    def options(self) -> ModelOptions:
        return ModelOptions(self.name, device=self.device, dtype=self.dtype, revision=self.revision)

    @property
    def grid(self) -> Heads:
        """Its heads, from its configuration.

        Raises UnknownName if there is no such model; ModelRefused if its heads are not found.
        """
        return model_shape(self.name, self.revision)[0]

    @property
    def parameters(self) -> int:
        """How many it has, from its configuration; raises what `grid` does."""
        return model_shape(self.name, self.revision)[1]


class Benchmark(Labelled):
    """One column of the paper's tables: a task, the role it plays, and what it is for.

    `identify` is the task that heads are found on where it is not the evaluated one. `group` is the
    capability it measures; tasks of a `family` (the group, if absent) make a head universal once
    together. `localize`: heads are looked for. `relative`: shown as a share of the intact score.
    `choice`: a multiple-choice question of knowledge. `each_part`: a search draws its examples from
    each task of a group. `differs` says in what the task is not the paper's, `others` how else it
    may be asked or scored: another `task`, `metric` or both under a name.
    """

    task: str
    group: str
    identify: str | None = None
    family: str | None = None
    localize: bool = False
    relative: bool = False
    choice: bool = False
    each_part: bool = False
    differs: str = ""
    others: dict[str, dict[Literal["task", "metric"], str]] = {}
    chat_template: bool = False
    fewshot: int | None = Field(default=None, ge=0)
    metric: str | None = None
    data: dict[str, str] = {}

    @property
    def kin(self) -> str:
        return self.family or self.group

    @property
    def searched(self) -> str:
        return self.identify or self.task

    def asked_as(self, other: str) -> "Benchmark":
        """The benchmark asked or scored in another way, one of `others`."""
        return self.model_copy(update={str(key): name for key, name in self.others[other].items()})

    def options(self, allow_code: bool) -> TaskOptions:
        return TaskOptions(
            metric=self.metric,
            fewshot=self.fewshot,
            chat_template=self.chat_template,
            data=self.data,
            allow_code=allow_code,
        )


class SearchSpec(Labelled):
    """One way to find heads."""

    method: str
    examples: int = Field(default=100, ge=1)
    masks: int = Field(default=100, ge=1)
    rate: float = Field(default=0.02, gt=0, lt=1)
    mask_counts: tuple[int, ...] = ()
    rates: tuple[float, ...] = ()
    top: int | None = Field(default=None, ge=1)  # heads to find, where not the preset's number

    def settings(self, top: int, seed: int) -> Settings:
        """What the search is told; `top` heads, unless it has a number of its own."""
        tried = {"mask_counts": self.mask_counts, "rates": self.rates}
        grid: dict[str, Any] = {name: values for name, values in tried.items() if values}
        return Settings(masks=self.masks, rate=self.rate, top=self.top or top, seed=seed, **grid)


class Preset(PresetPart):
    """Everything that a reproduction needs to know; see the files in `presets/`."""

    name: str = Field(pattern=r"^\w[\w.-]*$")  # of a folder, too
    about: str
    top: int = Field(default=5, ge=1)
    most: int = Field(default=10, ge=1)  # heads of the longest curve
    seed: int = Field(default=0, ge=0)
    limit: int | None = Field(default=None, ge=1)  # examples of a score, of each task
    floor: float = Field(default=0.0, ge=0)  # intact score below which no heads are looked for
    search_again: bool = False  # without universal heads, not only take them out of rankings
    lead: str | None = None  # the model that some exhibits are about; the first, if absent
    main: str  # the search whose heads the exhibits are about
    searches: tuple[SearchSpec, ...] = Field(alias="search", min_length=1)
    models: tuple[PresetModel, ...] = Field(alias="model", min_length=1)
    benchmarks: tuple[Benchmark, ...] = Field(alias="benchmark", min_length=1)

    @model_validator(mode="after")
    def consistent(self) -> Self:
        """Refuse what does not fit together, all of it at once."""
        if mistakes := list(self.mistakes()):
            raise ValueError("; ".join(mistakes))
        return self

    def mistakes(self) -> Iterator[str]:
        """What does not fit together: labels twice, names of nothing, roles that nobody plays."""
        yield from same_labels("search", self.searches)
        yield from same_labels("model", self.models)
        yield from same_labels("benchmark", self.benchmarks)
        if self.main not in {search.label for search in self.searches}:
            yield f"main = {self.main!r} is no search's label"
        if self.lead not in {None, *(model.label for model in self.models)}:
            yield f"lead = {self.lead!r} is no model's label"
        for search in self.searches:
            yield from self.misfits(search)
        if not self.localized:
            yield "no benchmark has localize = true, so that there are no heads to find"
        if not self.general:
            yield f'no benchmark has group = "{GENERAL}", so that there is nothing to compare with'

    def misfits(self, search: SearchSpec) -> Iterator[str]:
        try:
            pick(METHODS, search.method, "method")
            search.settings(self.top, self.seed)
        except CaplocError as error:
            said = str(error).replace("--mask-counts", "mask_counts").replace("--", "")
            yield f"search {search.label!r}: {said.rstrip('.')}"

    @property
    def general(self) -> tuple[Benchmark, ...]:
        """Those that a drop of general ability is the mean of."""
        return self.of_group(GENERAL)

    @property
    def localized(self) -> tuple[Benchmark, ...]:
        """Those that heads are found for."""
        return tuple(benchmark for benchmark in self.benchmarks if benchmark.localize)

    @property
    def capabilities(self) -> tuple[Benchmark, ...]:
        """Those that heads are found for, subjects of knowledge apart."""
        return tuple(b for b in self.localized if b.group != KNOWLEDGE)

    @property
    def subjects(self) -> tuple[Benchmark, ...]:
        """The subjects of knowledge that heads are found for."""
        return tuple(b for b in self.localized if b.group == KNOWLEDGE)

    @property
    def leader(self) -> PresetModel:
        """The model that some exhibits are about; the first, where it is not among the models."""
        return next(filter(self.leads, self.models), self.models[0])

    def leads(self, model: PresetModel) -> bool:
        """Whether this is the model that some exhibits are about."""
        return model.label == (self.lead or self.models[0].label)

    def of_group(self, group: str) -> tuple[Benchmark, ...]:
        return tuple(benchmark for benchmark in self.benchmarks if benchmark.group == group)

    def kindred(self, benchmark: Benchmark) -> tuple[Benchmark, ...]:
        """The benchmarks of a family: this one and its twins."""
        return tuple(other for other in self.benchmarks if other.kin == benchmark.kin)

    def search(self, label: str) -> SearchSpec:
        return pick({search.label: search for search in self.searches}, label, "search")

    def problem(
        self, spec: SearchSpec, grid: Heads, sizes: Sequence[int], excluded: Sequence[Head] = ()
    ) -> Problem:
        """What a search is given on a grid, some heads left in, and a task of parts of these sizes.

        It draws its examples from each part.
        """
        found: list[int] = []
        fresh: list[int] = []
        for start, size in zip(accumulate(sizes, initial=0), sizes, strict=False):
            wanted = min(spec.examples, size)
            most = min(size, wanted + ceil(FRESH / len(sizes)))
            drawn = [start + n for n in designs.draw_examples(size, most, seed=self.seed)]
            found += drawn[:wanted]
            fresh += drawn[wanted:]
        return Problem(
            grid.size,
            found,
            spec.settings(self.top, self.seed),
            fresh=fresh,
            excluded=tuple(map(grid.column, excluded)),
        )

    def alone(self, model: PresetModel) -> "Preset":
        """The same for one of its models, which leads only if it did."""
        lead = self.lead or self.models[0].label
        return self.model_copy(update={"models": (model,), "lead": lead})

    def narrowed(self, labels: list[str], models: list[str], limit: int | None) -> "Preset":
        """Only some benchmarks (by label), other models (`LABEL=NAME`, or a name), another limit.

        Raises UnknownName for a label that no benchmark has; BadOption if what is left does not fit
        together, or the limit leaves nothing.
        """
        check_limit(limit)
        changes: dict[str, Any] = {"limit": self.limit if limit is None else limit}
        if labels:
            table = {benchmark.label: benchmark for benchmark in self.benchmarks}
            kept = {pick(table, label, "benchmark").label for label in labels}
            changes["benchmarks"] = tuple(b for b in self.benchmarks if b.label in kept)
        if models:
            changes["models"] = tuple(self.renamed(text) for text in models)
            if self.lead not in {model.label for model in changes["models"]}:
                changes["lead"] = None
        fewer = self.model_copy(update=changes)
        if mistakes := list(fewer.mistakes()):
            raise BadOption(f"--only or --model leaves what does not fit: {'; '.join(mistakes)}.")
        return fewer

    def with_data(self, texts: list[str]) -> "Preset":
        """The same with files for some benchmarks' splits, each given as `LABEL:SPLIT=FILE`.

        Raises BadOption if a text is not of that form; UnknownName for a label that no benchmark
        has.
        """
        table = {benchmark.label: benchmark for benchmark in self.benchmarks}
        for text in texts:
            label, colon, file = text.partition(":")
            if not colon:
                raise BadOption(
                    "--data takes LABEL:SPLIT=FILE, such as GSM8K:test=gsm8k_test.jsonl; got "
                    f"{text!r}."
                )
            benchmark = pick(table, label, "benchmark")
            data = benchmark.data | parse_data([file])
            table[label] = benchmark.model_copy(update={"data": data})
        return self.model_copy(update={"benchmarks": tuple(table.values())})

    def renamed(self, text: str) -> PresetModel:
        """`LABEL=NAME`: a model of the preset loaded from elsewhere, or a new one.

        Raises BadOption if it names none.
        """
        known = {model.label: model for model in self.models}
        if text in known:
            return known[text]
        label, equals, name = text.partition("=")
        if not equals or Path(text).expanduser().is_dir():  # which may have = in its name
            label, name = "", text
        name = placed(name)
        label = label or Path(name).name or name
        if not (label and name):
            raise BadOption(f"--model takes a label, LABEL=NAME or a model's name; got {text!r}.")
        if label in known:  # a revision is one of the other place
            return known[label].model_copy(update={"name": name, "revision": None})
        return PresetModel(label=label, name=name)


def same_labels(kind: str, parts: Sequence[Labelled]) -> Iterator[str]:
    """What to say of tables of a kind that cannot be told apart."""
    for label, times in Counter(part.label for part in parts).items():
        if times > 1:
            yield f"{times} tables [[{kind}]] have the label {label!r}"


FOLDER = Path(__file__).parent / "presets"
P = TypeVar("P", bound=PresetPart)


def read_preset(name: str) -> Preset:
    """A preset that comes with caploc (`paper`, `real`), or one from a TOML file.

    Files and folders that it names are looked for beside it first. Raises what `read_as` does.
    """
    path, preset = read_as(Preset, name, FOLDER, "docs/reproduce.md")
    return resolve_paths(preset, path.parent)


def read_as(kind: type[P], name: str, folder: Path, page: str) -> tuple[Path, P]:
    """The file of a preset and what it holds: one of the folder's, or a path; `page` tells how.

    Raises UnknownName if there is no such preset or file; UserError if the file is not TOML;
    BadData if it is not a preset, and names every mistake.
    """
    known = {path.stem: path for path in sorted(folder.glob("*.toml"))}
    path = known.get(name) or Path(name).expanduser()
    if not path.is_file():
        raise UnknownName(
            f"There is no preset {name!r}; choose one of {', '.join(known)}, or give the path of a "
            f"TOML file such as those ({page})."
        )
    content = read_toml(path)
    try:
        return path, kind.model_validate(content)
    except ValidationError as error:
        found = (describe_mistake(dict(mistake), kind, content) for mistake in error.errors())
        raise BadData(f"{path} is not a preset: {'; '.join(found)}.") from error


def resolve_paths(preset: Preset, folder: Path) -> Preset:
    """The same with absolute paths for the files and folders that lie beside it."""

    def file(name: str) -> str:
        place = (folder / Path(name).expanduser()).absolute()
        return str(place) if place.is_file() and name != PACKAGED else name

    def task(name: str) -> str:
        return file(name) if name.endswith((".yaml", ".yml")) else name

    def resolved(benchmark: Benchmark) -> Benchmark:
        changes = {
            "task": task(benchmark.task),
            "identify": benchmark.identify and task(benchmark.identify),
            "data": {split: file(name) for split, name in benchmark.data.items()},
        }
        return benchmark.model_copy(update=changes)

    models = (m.model_copy(update={"name": placed(m.name, folder)}) for m in preset.models)
    changes = {"models": tuple(models), "benchmarks": tuple(map(resolved, preset.benchmarks))}
    return preset.model_copy(update=changes)


def describe_mistake(
    mistake: dict[str, Any], kind: type[BaseModel], content: dict[str, Any]
) -> str:
    """One of pydantic's findings, and the place of it in the words of the file."""
    *tables, key = mistake["loc"] or ("",)
    if mistake["type"] == "extra_forbidden":
        refused = unknown(list_keys(kind, tables), str(key), "key")
        return where(tables, content) + str(refused).rstrip(".")
    message = mistake["msg"].removeprefix("Value error, ").rstrip(".")
    if mistake["type"] == "missing":
        message = "is missing"
    return f"{where(tables, content)}{key} {message}".strip()


def where(tables: list[str | int], content: dict[str, Any]) -> str:
    """The table that a key stands in, by its label if it has one."""
    words: list[str] = []
    inside: Any = content
    for step in tables:
        inside = inside[step]
        label = inside.get("label") if isinstance(inside, dict) else None
        if isinstance(step, str):
            words.append(step)
        else:
            words.append(repr(label) if label else f"number {step + 1}")
    return " ".join(words) + ": " if words else ""
