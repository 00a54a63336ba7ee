"""A run told while it goes: on the terminal, and to a tracker of experiments if one is asked for.

Whatever a tracker does wrong, the run goes on: what it says is logged, and kept in `trouble`.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from caploc.errors import BadOption, pick
from caploc.folder import flat
from caploc.heads import HeadGrid
from caploc.progress import Progress, expect, tell
from caploc.recovery.estimate import is_binary
from caploc.result import Result
from caploc.search.conclusion import Conclusion

LOG = logging.getLogger(__name__)
# the command line hushes everything else
LOG.setLevel(logging.WARNING)
PROJECT = "caploc"
EVERY = 5.0  # seconds between two points of a curve
LONGEST = 500  # characters of a setting; MLflow refuses 6,000


class Likewise:
    """Weights & Biases, and Trackio, which has the same functions."""

    def __init__(self, module: str, project: str, name: str, settings: dict[str, Any]) -> None:
        self.module = import_module(module)
        self.run = self.module.init(project=project, name=name, config=settings)

    def log(self, figures: Mapping[str, float], step: int) -> None:
        self.run.log(dict(figures), step=step)

    def keep(self, files: Sequence[Path]) -> None:
        artifact = self.module.Artifact("findings", type="findings")
        for path in files:
            artifact.add_file(str(path))
        self.run.log_artifact(artifact)

    def end(self, failed: bool) -> None:
        """Close the run; Trackio knows no failed ones."""
        self.run.finish(**({"exit_code": int(failed)} if self.module.__name__ == "wandb" else {}))


class MLflow:
    """MLflow, wherever MLFLOW_TRACKING_URI says."""

    def __init__(self, module: str, project: str, name: str, settings: dict[str, Any]) -> None:
        self.module = import_module(module)
        self.module.set_experiment(project)
        self.run = self.module.start_run(run_name=name)
        try:
            self.module.log_params(settings)
        except BaseException:
            # no other run begins in this process while one is open
            with suppress(Exception):
                self.end(failed=True)
            raise

    def log(self, figures: Mapping[str, float], step: int) -> None:
        self.module.log_metrics(dict(figures), step=step)

    def keep(self, files: Sequence[Path]) -> None:
        for path in files:
            self.module.log_artifact(str(path))

    def end(self, failed: bool) -> None:
        self.module.end_run("FAILED" if failed else "FINISHED")


Tracker = Likewise | MLflow  # one run: it gets points of curves and copies of files, and is closed
TRACKERS: dict[str, type[Tracker]] = {"mlflow": MLflow, "trackio": Likewise, "wandb": Likewise}


def check_tracker(where: str | None) -> None:
    """Refuse a tracker that there is not, before anything runs.

    Raises UnknownName if it is none of those known; BadOption if its package is not installed, or
    no project is named after the colon.
    """
    if where is None:
        return
    name, colon, project = where.partition(":")
    pick(TRACKERS, name, "tracker")
    if colon and not project:
        raise BadOption(f"--track {where} names no project; write {name}:PROJECT or {name}.")
    if find_spec(name) is None:
        raise BadOption(
            f"--track {name} needs a package that is not here: pip install 'caploc[{name}]'."
        )


class Tracked:
    """Progress that also draws curves in a tracker (None: nowhere)."""

    def __init__(self, begin: Callable[[], Tracker] | None, progress: Progress) -> None:
        self.shown, self.tracker = progress, None
        self.trouble: list[str] = []
        self.rows, self.tokens, self.last = 0, 0.0, time.monotonic()
        if begin is not None:
            self.tracker = self.tried(begin)

    def tried(self, what: Callable[[], Any]) -> Any:
        """Do what a tracker may fail at; afterwards it is told no more, and its run only closed."""
        try:
            return what()
        except Exception as error:  # a tracker's trouble is its own
            self.trouble.append(f"{type(error).__name__}: {error}")
            if len(self.trouble) == 1:
                LOG.warning("The tracker is told no more (%s); the run goes on.", self.trouble[0])
            return None

    def log(self, what: Callable[[Tracker], None]) -> None:
        """Tell the tracker something, as long as it has had no trouble."""
        if self.tracker is not None and not self.trouble:
            self.tried(partial(what, self.tracker))

    def start(self, what: str, rows: int) -> None:
        self.shown.start(what, rows)

    def expect(self, rows: int) -> None:
        expect(self.shown, rows)

    def tell(self, text: str) -> None:
        tell(self.shown, text)

    def advance(self, rows: int, tokens: float) -> None:
        """Pass it on, and add a point to the curves now and then."""
        self.shown.advance(rows, tokens)
        self.rows, self.tokens = self.rows + rows, self.tokens + tokens
        if time.monotonic() - self.last >= EVERY:
            self.last = time.monotonic()
            self.point({"rows": self.rows, "tokens": self.tokens})

    def point(self, figures: Mapping[str, float]) -> None:
        self.log(lambda tracker: tracker.log(figures, self.rows))

    def found(self, result: Result, files: Sequence[Path]) -> None:
        """Tell what was found, and hand over the files that say so."""
        self.point(figures_of(result))
        self.log(lambda tracker: tracker.keep([path for path in files if path.exists()]))

    def end(self, failed: bool) -> None:
        """Close the run, once, whatever trouble there was."""
        tracker, self.tracker = self.tracker, None
        if tracker is not None:
            self.tried(lambda: tracker.end(failed))


@contextmanager
def tracked(
    where: str | None, name: str, settings: Mapping[str, Any], progress: Progress
) -> Iterator[Tracked]:
    """Track a run while the block runs: `where` is mlflow, trackio, wandb, each perhaps `:PROJECT`.

    `settings` may be nested. With None nothing is imported and nothing is told.
    Raises what `check_tracker` raises.
    """
    check_tracker(where)

    def begin() -> Tracker:
        module, _, project = str(where).partition(":")
        said = {key: str(value)[:LONGEST] for key, value in flat(dict(settings)).items()}
        return TRACKERS[module](module, project or PROJECT, name, said)

    watched = Tracked(None if where is None else begin, progress)
    failed = True
    try:
        yield watched
        failed = False
    finally:
        watched.end(failed)


def figures_of(result: Result) -> dict[str, float]:
    """The figures of a result that one compares runs by; what is not known is left out."""
    task = result.validation.task
    told = {
        **dict(zip(("intact", "knocked_out"), task.scores, strict=True)),
        "change_of_outcome": task.change.outcome if task.change else None,
        "heads_chosen": len(result.top),
        "r2_held_out": result.fit.r2_held_out,
        **{f"cost_{key}": value for key, value in result.cost},
    }
    return {key: float(value) for key, value in told.items() if value is not None}


class Watch:
    """Tells the first heads of a search, whenever they are others than before."""

    def __init__(self, grid: HeadGrid, progress: Progress) -> None:
        self.grid, self.progress = grid, progress
        self.last: list[int] = []

    def __call__(self, conclusion: Conclusion) -> None:
        columns = conclusion.top_heads
        if columns == self.last:
            return
        self.last = columns
        estimate, intact = conclusion.estimate(), conclusion.first.intact
        factor, unit, form = 1, "", "+.3g"
        if is_binary(intact):
            estimate = estimate.within(np.array([*intact.values()]))
            factor, unit, form = 100, " points", "+.1f"
        effect, low, high = (factor * e for e in (estimate.effect, estimate.low, estimate.high))
        heads = [
            f"{self.grid.heads[c]} {effect[c]:{form}} ({low[c]:{form}} to {high[c]:{form}})"
            for c in sorted(columns, key=lambda column: effect[column])
        ]
        tell(self.progress, f"so far: {', '.join(heads)}{unit}")
