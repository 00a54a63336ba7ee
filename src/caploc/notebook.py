"""One call to find heads from Python, and what was found as tables and pictures."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass, replace
from html import escape
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import pandas as pd

from caploc import console
from caploc.contents import read_file
from caploc.evaluation import curve as measure_curve
from caploc.findings import StudyFindings as Record
from caploc.folder import RESULT
from caploc.lookup import pick
from caploc.modes import PATCH, Mode
from caploc.naming import default_folder, default_others, placed
from caploc.report.charts import Picture
from caploc.report.plots import curve_specs, heads_spec, units_by_task
from caploc.report.sentence import headline
from caploc.result import Result
from caploc.search import Settings
from caploc.study import Study, run_study
from caploc.tasks.catalog import TaskOptions
from caploc.workbench import ModelOptions

SHOWN = 8  # heads that the summary lists
PUBLIC = (ModelOptions, Settings, TaskOptions)  # options that are known as `caploc.NAME`
COLUMNS = ["head", "effect", "low", "high", "q", "selected"]


class Findings(Record):
    """What a study found, to look at in a notebook and to go on with.

    `result` is the content of result.json, as attributes (`result.as_dict()`: as dictionaries),
    `folder` where everything lies, `report` the page.
    """

    @classmethod
    def read(cls, folder: Path | str) -> "Findings":
        """A finished run's.

        Raises:
            UserError: if the folder holds none.
        """
        folder = Path(folder)
        return cls(read_file(folder / RESULT, Result), folder, folder / "report.html")

    @property
    def top(self) -> list[str]:
        """The chosen heads, most needed first."""
        return list(self.result.top)

    @property
    def headline(self) -> str:
        """The answer in a sentence."""
        return headline(self.result)

    def to_frame(self) -> pd.DataFrame:
        """Every head, most needed first: `layer`, `index`, `effect` in score units with `low` and
        `high` (95 %), `q`, `top_chance`, `selected`, `critical`, `universal`; what is not known is
        NaN or None. The head's name is the index.
        """
        return pd.DataFrame([head.as_dict() for head in self.result.heads]).set_index("head")

    def heatmap(self) -> Picture:
        """Draw the map of effects, layers by heads."""
        return Picture.of([heads_spec(self.result)])

    def curve(self, most: int = 10, limit: int | None = None, *, quiet: bool = False) -> Picture:
        """Scores with the 0, 1, ... `most` most needed heads knocked out, measured and drawn.

        `limit` caps the examples of each score. What was measured before is not measured again.

        Raises:
            UserError: if no head was found whose knockout lowers the score.
            RunFailed: if the machine gives up; rows already measured are kept.
        """
        with console.progress(quiet) as progress:
            drawn = measure_curve(self.folder, most, limit, progress)
        return Picture.of(curve_specs(drawn, units_by_task(self.result)))

    def _repr_html_(self) -> str:
        """The answer, the map and the most needed heads, as a notebook shows them."""
        heads = self.to_frame().reset_index()[COLUMNS].head(SHOWN)
        table = heads.to_html(index=False, border=0, float_format="{:.3f}".format, na_rep="–")
        picture = b64encode(self.heatmap().png(dots=110)).decode()
        return (
            f"<p><b>{escape(self.headline)}</b></p>"
            f'<img alt="Effects of all heads, layers by heads" style="max-width:40em"'
            f' src="data:image/png;base64,{picture}">{table}'
            f"<p>Report: <code>{escape(str(self.report))}</code></p>"
        )


def locate(  # noqa: PLR0913  (what can be chosen is its parameters)
    model: str | ModelOptions,
    task: str,
    *,
    method: str = "adaptive",
    settings: Settings | None = None,
    examples: int | None = None,
    also: list[str] | None = None,
    spare: Sequence[str] = (),
    twins: Sequence[str] = (),
    exclude: Sequence[str] = (),
    mode: str | Mode = "zero",
    controls: int = 20,
    limit: int | None = None,
    options: TaskOptions | None = None,
    track: str | None = None,
    out: Path | str | None = None,
    quiet: bool = False,
    **setting: Any,
) -> Findings:
    """Find the heads that a task depends on, as `caploc locate` does.

    `model` is a Hugging Face id, a local folder, `demo`, or `ModelOptions` for device, dtype and
    the rest; `task` an lm-eval task, a path to a YAML, or one of `caploc tasks`. `setting` are
    fields of `Settings` by name, such as `budget=2000`, `top=3`, `seed=1`, `goal="set"`; the other
    arguments are those of `Study`; `mode` is a name such as "mean", or a `modes.Mode`. `also` names
    tasks to score before and after. Files go to `out` (a folder below runs/ if absent), and the
    same call goes on where an earlier one stopped.

        found = caploc.locate("demo", "demo/addition", budget=1000)
        found.top

    Raises:
        UserError: for a mistake, before the model is loaded where possible.
        RunFailed: if the machine gives up; rows already measured are kept.
        Stopped: if it was interrupted; likewise.
    """
    given = {**locals()}
    for each in setting:  # those by name hold
        pick({field.name: field for field in fields(Settings)}, each, "setting")
    loading = ModelOptions(placed(model)) if isinstance(model, str) else model
    name = placed(task)
    knockout = Mode(mode) if isinstance(mode, str) else mode
    others = () if knockout.name == PATCH else default_others(name)
    study = Study(
        model=loading,
        task=name,
        method=method,
        settings=replace(settings or Settings(), **setting),
        examples=examples,
        options=options or TaskOptions(),
        other_tasks=tuple(others if also is None else also),
        spare=tuple(map(placed, spare)),
        twins=tuple(map(placed, twins)),
        exclude=tuple(exclude),
        mode=knockout,
        controls=controls,
        limit=limit,
        track=track,
    )
    folder = Path(out) if out else default_folder(loading.name, method, task)
    again = loading.name if isinstance(model, str) else loading
    command = call_of(given | {"model": again, "task": name})
    with console.progress(quiet) as progress:
        found = run_study(study, folder, progress, command=command)
    return Findings(found.result, found.folder, found.report)


def call_of(given: Mapping[str, Any]) -> str:
    """The call of `locate` with these arguments, as Python reads it; defaults are left out."""
    said = []
    for name, parameter in signature(locate).parameters.items():
        value = given[name]
        if parameter.kind is Parameter.VAR_KEYWORD:
            said += [f"{key}={as_python(each)}" for key, each in value.items()]
        elif parameter.default is Parameter.empty:
            said.append(as_python(value))
        elif value != parameter.default:
            said.append(f"{name}={as_python(value)}")
    return f"caploc.locate({', '.join(said)})"


def as_python(value: Any) -> str:
    """An argument as Python reads it; of options, what differs from their defaults."""
    if isinstance(value, Path):
        return repr(str(value))
    if not is_dataclass(value) or isinstance(value, type):
        return repr(value)
    said = []
    for each in fields(value):
        default = each.default if each.default_factory is MISSING else each.default_factory()
        if (given := getattr(value, each.name)) != default:
            said.append(f"{each.name}={as_python(given)}")
    kind = type(value)
    home = "caploc" if kind in PUBLIC else kind.__module__
    return f"{home}.{kind.__qualname__}({', '.join(said)})"
