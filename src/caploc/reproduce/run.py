"""Fill exhibits, model after model, and write them."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from caploc import designs
from caploc.errors import raise_together
from caploc.lookup import pick
from caploc.progress import Progress, Silent
from caploc.report.exhibits import Exhibit, Value, escape_markdown, write, write_index
from caploc.reproduce import analyses, exhibits
from caploc.reproduce.dry_run import Bill, PresetDryRun
from caploc.reproduce.laboratory import Lab, open_laboratory
from caploc.reproduce.preset import Benchmark, Preset, PresetModel, SearchSpec
from caploc.search import METHODS
from caploc.tasks.catalog import check_task_name

Fill = Callable[[Lab], Exhibit]
EXHIBITS: dict[str, Fill] = {
    "table1": exhibits.table1,
    "table2": exhibits.table2,
    "table3": exhibits.table3,
    "table4": exhibits.table4,
    "table5": exhibits.table5,
    "table6": exhibits.table6,
    "table7": exhibits.table7,
    "table8": exhibits.table8,
    "table9": exhibits.table9,
    "fig1": exhibits.fig1,
    "fig2": exhibits.fig2,
    "fig3": exhibits.fig3,
    "fig4": exhibits.fig4,
    "sharing": analyses.sharing_exhibit,
    "scale": analyses.scale,
    "failures": analyses.failures_exhibit,
    "choice": analyses.choice,
    "rules": analyses.rules,
}
# Those about one model: the one that leads.
OF_LEADER = {"table4", "table6", "fig1", "fig2", "fig4", "failures", "choice"}
# The one that asks a model nothing: its benchmarks need not be there.
UNASKED = "table1"
# Those without a score, which a limit on scores does not touch.
SCORELESS = {"table1", "table9", "sharing", "choice"}
ALL = "all"
READING = (
    "± is a standard error over examples, of a drop that of paired differences. Heads are found "
    "with {} unless a table says otherwise. A dash is something that was not measured, or is not "
    "defined."
)


@dataclass(frozen=True)
class PlannedItem:
    """What a model would be asked, and what that would take."""

    model: str
    heads: int
    parameters: int
    bill: Bill

    def as_dict(self) -> dict[str, Any]:
        """All of it, with the hours on one H200, assumed."""
        fields = {"model": self.model, "heads": self.heads, "parameters": self.parameters}
        return fields | asdict(self.bill) | {"h200_hours": self.bill.hours(self.parameters)}


def choose_exhibits(names: Sequence[str]) -> dict[str, Fill]:
    """The exhibits of these names; `all` is every one.

    Raises:
        UnknownName: naming the nearest there is.
    """
    wanted = list(EXHIBITS) if ALL in names else list(names)
    return {name: pick(EXHIBITS, name, "table or figure") for name in wanted}


def plan_exhibits(preset: Preset, names: Sequence[str]) -> list[PlannedItem]:
    """What filling the exhibits would take, model by model; no weights are read.

    Raises:
        UserError: if an exhibit is unknown or a configuration cannot be read.
    """
    dry_run = PresetDryRun(preset)
    for fill in choose_exhibits(names).values():
        fill(dry_run)
    return [
        PlannedItem(model.label, model.grid.size, model.parameters, dry_run.bill(model))
        for model in preset.models
    ]


def reproduce(
    preset: Preset,
    names: Sequence[str],
    folder: Path,
    progress: Progress | None = None,
    *,
    command: str = "",
    allow_code: bool = False,
) -> list[Exhibit]:
    """Measure what the exhibits need and write them into the folder; see `files.write`.

    Whatever was measured there before is used. Models are taken one after another, so that each is
    loaded once.

    Raises:
        UserError: for a mistake, before a model is loaded where possible.
        RunFailed: if the machine gives up; what was measured is kept.
    """
    fills = choose_exhibits(names)
    asking = set(fills) != {UNASKED}
    check_preset(preset, preset.benchmarks if asking else (), allow_code=allow_code)
    with open_laboratory(
        preset, folder, progress or Silent(), command, allow_code=allow_code
    ) as laboratory:
        for model in preset.models:
            alone = replace(laboratory, preset=preset.alone(model), draws=1)
            for name, fill in fills.items():
                if preset.leads(model) or name not in OF_LEADER:
                    fill(alone)
        filled = [limited(fill(laboratory), preset) for fill in fills.values()]
        for exhibit in filled:
            write(exhibit, folder)
        title = f"{preset.name}: {preset.about}"
        words = READING.format(escape_markdown(preset.main))
        write_index(folder, title, words, filled, command)
    return filled


def limited(exhibit: Exhibit, preset: Preset) -> Exhibit:
    """The same with a note of how few examples its scores are on, if that is not all."""
    if preset.limit is None or exhibit.name in SCORELESS:
        return exhibit
    note = f"Scores are on the first {preset.limit} examples of every task"
    values = (cell for row in exhibit.rows for cell in row if isinstance(cell, Value))
    if any(value.published is not None for value in values):
        note += ", the paper's on all"
    return replace(exhibit, notes=[*exhibit.notes, f"{note}."])


def check_preset(preset: Preset, benchmarks: Sequence[Benchmark], *, allow_code: bool) -> None:
    """Refuse models, tasks, searches and options that cannot be, all of them at once.

    Raises:
        UserError: naming every one.
    """
    attempts: list[Callable[[], object]] = [
        partial(check_preset_model, preset, model) for model in preset.models
    ]
    for benchmark in benchmarks:
        options = benchmark.options(allow_code)
        attempts.append(options.check)
        for name in dict.fromkeys((benchmark.task, benchmark.searched)):
            attempts.append(partial(check_task_name, name, options))
    raise_together(attempts)


def check_preset_model(preset: Preset, model: PresetModel) -> None:
    """Refuse a model that cannot be loaded, or that is too small for one of the searches.

    Raises:
        UserError: in one sentence for each.
    """
    grid = model.options().check()

    def check(spec: SearchSpec) -> None:
        method = METHODS[spec.method]
        if method.draws_masks:
            designs.check_mask_size(grid.size, spec.rate)
        method.check(preset.problem(spec, grid, [spec.examples]))

    raise_together(partial(check, spec) for spec in preset.searches)
