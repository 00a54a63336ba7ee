"""A finished run opened again: its study, its result, and its model and rows to ask more of."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from caploc.engine import BatchEngine
from caploc.errors import UserError
from caploc.folder import RESULT, RUN, claim, read_json
from caploc.models.loading import LoadedModel
from caploc.search import Settings
from caploc.study import Study
from caploc.tasks.catalog import TaskOptions
from caploc.tasks.task import Task
from caploc.workbench import ModelOptions, Workbench


@dataclass(frozen=True)
class FinishedRun:
    """What lies in the folder of a run that ended."""

    folder: Path
    study: Study
    result: dict[str, Any]
    written: dict[str, Any]  # run.json, as the run left it

    @classmethod
    def read(cls, folder: Path) -> "FinishedRun":
        """Read the folder.

        Raises:
            UserError: if it holds no finished run, or one of another version.
        """
        result, written = read_json(folder / RESULT), read_json(folder / RUN)
        try:
            return cls(folder, restored(written["study"]), result, written)
        except (KeyError, TypeError) as error:
            raise UserError(
                f"The run in {folder} was written by another version of caploc ({error}); run "
                "`caploc locate` again into a new folder."
            ) from error

    def tasks(self) -> list[Task]:
        """The run's task and those beside it, asked as the run did and judged by their metric."""
        study = self.study
        tasks = study.model.tasks([study.task], study.options)
        tasks += study.model.tasks(study.other_tasks, study.options.plain())
        return [task.in_metric() for task in tasks]

    def engine(self) -> BatchEngine[LoadedModel]:
        """The run's model, loaded, and proved to be the same.

        Raises:
            UserError: if the model has changed since.
        """
        engine = self.study.model.engine()
        if engine.loaded.fingerprint != self.result["model"]["fingerprint"]:
            raise UserError(
                f"The model {self.study.model.name} has changed since the run in {self.folder}; "
                "run `caploc locate` into a new folder."
            )
        return engine

    @contextmanager
    def workbench(self) -> Iterator[Workbench[LoadedModel]]:
        """The run's model and its rows.

        Raises:
            UserError: if the model has changed since.
        """
        with claim(self.folder, self.written["study"], self.written["command"]) as store:
            yield Workbench(self.engine(), store)


def restored(fields: dict[str, Any]) -> Study:
    """The study of a run, from its file."""
    parts = {
        "model": ModelOptions(**fields["model"]),
        "options": TaskOptions(**fields["options"]),
        "settings": Settings(**fields["settings"]),
        "other_tasks": tuple(fields["other_tasks"]),
    }
    return Study(**fields | parts)
