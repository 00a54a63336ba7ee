"""The heads paper again: its tables and figures from one command, on any models.

`preset` says what is measured on what, and reads it; `laboratory` measures; `selection` takes
universal heads out and knows the paper's figures; `exhibits` and `analyses` fill tables and
figures, whose words `exhibits.yaml` holds. `cnl` and `verdicts` do the same for the neurons paper,
`cnl_preset` says on what.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from caploc import designs
from caploc.errors import pick, raise_together
from caploc.progress import Progress, Silent
from caploc.report.exhibits import Exhibit, Value, escape_markdown, write, write_index
from caploc.reproduce import analyses, exhibits
from caploc.reproduce.laboratory import Lab, open_laboratory
from caploc.reproduce.preset import Benchmark, Preset, PresetModel, SearchSpec, read_preset
from caploc.search import METHODS
from caploc.tasks.catalog import check_data, check_task_name

__all__ = ["EXHIBITS", "read_preset", "reproduce"]

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


def choose_exhibits(names: Sequence[str]) -> dict[str, Fill]:
    """The exhibits of these names, or all; raises UnknownName, naming the nearest there is."""
    wanted = list(EXHIBITS) if ALL in names else list(names)
    return {name: pick(EXHIBITS, name, "table or figure") for name in wanted}


def reproduce(
    preset: Preset,
    names: Sequence[str],
    folder: Path,
    progress: Progress | None = None,
    *,
    command: str = "",
    allow_code: bool = False,
) -> list[Exhibit]:
    """Measure what the exhibits need and write them into the folder.

    Rows that were measured there before are used. Models are taken one after another, so that each
    is loaded once. Raises UserError for a mistake, before a model is loaded where possible;
    RunFailed if the machine gives up, and then what was measured is kept.
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
    """Refuse models, tasks, searches and options that cannot be; raises UserError, naming all.

    Without benchmarks nothing is asked of a model, and of each a configuration is enough.
    """
    check = check_preset_model if benchmarks else check_shape
    attempts: list[Callable[[], object]] = [
        partial(check, preset, model) for model in preset.models
    ]
    for benchmark in benchmarks:
        options = benchmark.options(allow_code)
        attempts.append(partial(check_data, options))
        for name in dict.fromkeys((benchmark.task, benchmark.searched)):
            attempts.append(partial(check_task_name, name, options))
    raise_together(attempts)


def check_shape(_: Preset, model: PresetModel) -> None:
    """Refuse a model whose heads cannot be counted, for which its configuration is enough."""
    model.grid  # noqa: B018  (raises)


def check_preset_model(preset: Preset, model: PresetModel) -> None:
    """Refuse a model that cannot be loaded or is too small for a search, in a sentence for each."""
    grid = model.options().check()

    def check(spec: SearchSpec) -> None:
        method = METHODS[spec.method]
        if method.draws_masks:
            designs.check_mask_size(grid.size, spec.rate)
        method.check(preset.problem(spec, grid, [spec.examples]))

    raise_together(partial(check, spec) for spec in preset.searches)
