"""A finished run opened again: its study, its result, and its model and rows to ask more of."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from caploc.contents import RunFile, read_file, restore
from caploc.declaration import Allowed, Study, check_places
from caploc.engine.api import HeadModel, RowEngine
from caploc.engine.batch import BatchEngine
from caploc.errors import UserError
from caploc.folder import RESULT, RUN, claim
from caploc.given import digest_pair
from caploc.measurement import Meters
from caploc.models.loading import LoadedModel
from caploc.progress import Silent
from caploc.result import Result
from caploc.session import without_unfit_control
from caploc.tasks.defects import ask_once
from caploc.tasks.harness import digest_data
from caploc.tasks.task import Task


@dataclass(frozen=True)
class FinishedRun:
    """What lies in the folder of a run that ended."""

    folder: Path
    study: Study
    result: Result
    written: RunFile

    @classmethod
    def read(cls, folder: Path, allowed: Allowed | None = None) -> "FinishedRun":
        """Read the folder; `allowed` says what may be run for it, and who answers.

        Raises UserError if it holds no finished run, or one of another version, asks for what is
        not allowed, or if the workers mean nothing.
        """
        allowed = allowed or Allowed()
        result, written = read_file(folder / RESULT, Result), read_file(folder / RUN, RunFile)
        try:
            study = restored(written.study)
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"The run in {folder} was written by another version of caploc ({error}); run "
                "`caploc locate` again into a new folder."
            ) from error
        check_places(study.model, study.options)
        allowed.check(f"The run in {folder}", study.model, study.options, study.named_tasks)
        if allowed.workers is not None:
            from caploc.workers.ray_backend import check_workers

            check_workers(allowed.workers, study.model.device)
            study = replace(study, model=replace(study.model, workers=allowed.workers))
        return cls(folder, study, result, written)

    def tasks(self) -> dict[str, Task]:
        """Load the run's task and those beside it, each question once, judged by their metric."""
        tasks = ask_once(self.study.tasks(), self.study.leave_out, Silent())
        return {name: task.in_metric() for name, task in tasks.items()}

    def engine(self) -> BatchEngine[LoadedModel]:
        """Load the run's model in this process, and prove it to be the same (`check_same`)."""
        self.study.model.check()
        engine: BatchEngine[LoadedModel] = self._known(self.study.model.engine())
        return engine

    @contextmanager
    def answering(self) -> Iterator[RowEngine[HeadModel]]:
        """Have the run's model answer here or in workers, once it is proved to be the same."""
        self.study.model.check()
        with self.study.model.answering() as engine:
            yield self._known(engine)

    def check_same(self, loaded: HeadModel) -> None:
        """Refuse another model than the run's; raises UserError if it is another."""
        if not self.is_of(loaded):
            whole = isinstance(loaded, LoadedModel)
            raise UserError(
                f"The model {self.study.model.name} has changed since the run in {self.folder}, or "
                "was another when it was handed to caploc.locate; run `caploc locate` into a new "
                "folder."
                + ("" if whole else " One that was handed over is known again in one process only.")
            )

    def is_of(self, loaded: HeadModel) -> bool:
        """Tell whether this is the run's model; one handed over in Python is known by its weights.

        What it is called loads it, unless it was changed beforehand.
        """
        wanted = self.result.model.fingerprint
        if wanted == loaded.fingerprint:
            return True
        if not isinstance(loaded, LoadedModel):
            return False
        on_disk = any(each.is_meta for each in loaded.model.parameters())
        return not on_disk and digest_pair(loaded.model, loaded.tokenizer) == wanted

    def _known(self, engine: Any) -> Any:
        """Return the engine with the model as the run has called it, by which its rows are kept."""
        self.check_same(engine.loaded)
        wanted = self.result.model.fingerprint
        if wanted == engine.loaded.fingerprint:
            return engine
        loaded, model = replace(engine.loaded, fingerprint=wanted), self.study.model
        return BatchEngine(loaded, model.batch_size, backend=model.backend)

    @contextmanager
    def opened(self) -> Iterator[tuple[Meters[HeadModel], dict[str, Task]]]:
        """Open the run's model and rows, and its tasks with the examples that it asked.

        Raises FolderTaken if a file of examples has changed.
        """
        tasks, written = self.tasks(), self.written
        data = digest_data([*tasks.values()])
        with (
            claim(self.folder, written.study, written.command, data) as store,
            self.answering() as engine,
        ):
            meters = Meters(engine, store, self.study.components, self.study.intervention())
            study, tasks = without_unfit_control(self.study, tasks, engine.misfit, Silent())
            yield meters, study.without_defects(tasks, engine.misfit)


def restored(fields: dict[str, Any]) -> Study:
    """Rebuild the study of a run from its file.

    Raises KeyError, TypeError, ValueError if a field is missing, unknown or not of its type.
    """
    # where a run's rows were answered says nothing of where to ask for more
    model = fields["model"] | {"workers": None}
    return restore(Study, {"mode": {}} | fields | {"model": model})
