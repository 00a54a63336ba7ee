"""A run told to others: its first heads to the terminal, and what it found to MLflow."""

import logging
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from caploc.errors import BadOption
from caploc.folder import flat
from caploc.result import Result

LOG = logging.getLogger(__name__)
# the command line hushes everything else
LOG.setLevel(logging.WARNING)
LONGEST = 500  # characters of a setting; MLflow refuses 6,000


def check_tracking(experiment: str | None) -> None:
    """Refuse, before anything runs, to log to MLflow where it is not installed, as a BadOption."""
    if experiment is not None and find_spec("mlflow") is None:
        raise BadOption(
            f"--track {experiment} needs MLflow, which is not here: pip install 'caploc[mlflow]'."
        )


def log_run(
    experiment: str, name: str, settings: Mapping[str, Any], result: Result, files: Sequence[Path]
) -> None:
    """Log a finished run to an experiment of MLflow, wherever MLFLOW_TRACKING_URI says.

    `settings` may be nested. A run that is already open gets it as a child. Trouble with MLflow is
    a line of warning: the run's own files are complete.
    """
    import mlflow

    try:
        mlflow.set_experiment(experiment)
        with mlflow.start_run(run_name=name, nested=True):
            said = flat(dict(settings))
            mlflow.log_params({key: str(value)[:LONGEST] for key, value in said.items()})
            mlflow.log_metrics(figures_of(result))
            for path in files:
                mlflow.log_artifact(str(path))
    except Exception as error:  # noqa: BLE001  (a tracker's trouble is its own)
        LOG.warning("The run was not logged to MLflow (%s: %s).", type(error).__name__, error)


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
