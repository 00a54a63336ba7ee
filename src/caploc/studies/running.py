"""Run the studies of a file into folders, with a page over them."""

import gc
import json
import shlex
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from caploc.comparison import compare
from caploc.contents import RunFile, Studies, read_file
from caploc.declaration import Study
from caploc.engine.api import HeadModel, RowEngine
from caploc.errors import CaplocError, OutOfMemory, Stopped, StoreFailed, UserError
from caploc.findings import StudyFindings
from caploc.folder import (
    COMPARISON,
    RESULT,
    RUN,
    STUDIES,
    finished_in,
    package_versions,
    question,
    read_json,
    write_json,
)
from caploc.progress import InTurn, Progress, Silent
from caploc.report.card import headline
from caploc.report.page import rewrite_page
from caploc.report.templates import COMPARE, REPORT
from caploc.result import Result
from caploc.store import folder_lock
from caploc.study import run_study
from caploc.tasks.defects import ask_once
from caploc.tasks.harness import digest_data
from caploc.verdict import make_card, written

SCHEMA = 1  # of studies.json
FAILURE = "failure.txt"  # beside run.json, of a failure that no sentence foresaw


@dataclass(frozen=True)
class Outcome:
    """What became of a study: `result` as in result.json, or the sentence of why it failed."""

    name: str
    result: Result | None = None
    failure: str | None = None
    earlier: bool = False  # it was finished before

    def as_dict(self) -> dict[str, Any]:
        return {
            "study": self.name,
            "result": None if self.result is None else written(self.result),
            "failure": self.failure,
            "earlier": self.earlier,
        }


@dataclass(frozen=True)
class Ran:
    """What became of studies, in their order, and the page to open."""

    outcomes: list[Outcome]
    report: Path | None

    @property
    def failed(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.failure is not None]


def run_studies(
    studies: Mapping[str, Study],
    folder: Path,
    progress: Progress | None = None,
    *,
    command: str = "",
) -> Ran:
    """Run every study into its subfolder of `folder`, model by model.

    Their rows lie in one store: a row that several need is measured once. A study whose result is
    there, written by these versions, is left as it is; a failed one does not stop the others.
    Raises FolderTaken if another process is running in the folder; RunFailed if all must stop
    (Ctrl-C, a full disk); rows already measured are kept.
    """
    outcomes: dict[str, Outcome] = {}
    for name, study in studies.items():
        if result := finished(folder / name, study):
            outcomes[name] = Outcome(name, result, earlier=True)
            if not (folder / name / REPORT).is_file():
                rewrite_page(folder / name)
    todo = {name: study for name, study in studies.items() if name not in outcomes}
    shown = progress or Silent()
    for name, found in located(todo, folder, shown, command=command):
        outcomes[name] = outcome_of(name, found, folder / name)
    done = [folder / name for name in studies if outcomes[name].result is not None]
    if done:
        compare(done, folder, command=command)
    return Ran([outcomes[name] for name in studies], folder / COMPARE if done else None)


def finished(folder: Path, study: Study) -> Result | None:
    """Return the result in the folder, if it is this study's, of these versions and readable."""
    if not (folder / RESULT).is_file() or not (folder / RUN).is_file():
        return None
    try:
        written, result = read_file(folder / RUN, RunFile), read_file(folder / RESULT, Result)
        budgeted = study.check(result.grid.model_heads())  # its model need not fit here any more
        same = question(written.study) == question(json.loads(json.dumps(asdict(budgeted))))
        same = same and is_same_data(budgeted, written.data)
    except UserError:
        return None
    return result if same and result.versions == package_versions() else None


def is_same_data(study: Study, data: Mapping[str, str] | None) -> bool:
    """Tell whether the user's own files of examples are what this digest of them says."""
    if not data:
        return True
    found = digest_data([*ask_once(study.tasks(), study.leave_out, Silent()).values()])
    return all(found.get(name, digest) == digest for name, digest in data.items())


def outcome_of(name: str, found: StudyFindings | Exception, folder: Path) -> Outcome:
    """Tell a study's outcome; of a failure that no sentence foresaw the details go into a file."""
    if isinstance(found, StudyFindings):
        (folder / FAILURE).unlink(missing_ok=True)
        return Outcome(name, found.result)
    if isinstance(found, CaplocError):
        return Outcome(name, failure=str(found))
    folder.mkdir(parents=True, exist_ok=True)
    lines = traceback.format_exception(found)
    (folder / FAILURE).write_text("".join(lines), encoding="utf-8")
    first = (str(found).strip() or "no text").splitlines()[0]
    return Outcome(
        name,
        failure=f"{type(found).__name__}: {first} (a mistake of caploc's; see {folder / FAILURE})",
    )


def located(
    studies: Mapping[str, Study],
    folder: Path,
    progress: Progress,
    *,
    command: str = "",
) -> Iterator[tuple[str, StudyFindings | Exception]]:
    """Run studies, each in its subfolder, and yield what each found, or why it failed.

    Models come one after another, each loaded once; if one cannot be loaded, all its studies have
    failed. A study that fails does not stop the others; Ctrl-C and a store that cannot be written
    do. Raises as `run_studies`.
    """
    turns = {
        name: InTurn(progress, name, place, len(studies)) for place, name in enumerate(studies, 1)
    }
    with lock_studies(folder, list(studies)):
        for model in dict.fromkeys(study.model for study in studies.values()):
            own = {name: study for name, study in studies.items() if study.model == model}
            with ExitStack() as stack:
                try:
                    engine = stack.enter_context(model.answering())
                except (UserError, OutOfMemory) as error:
                    yield from ((name, error) for name in own)
                    continue
                for name, study in own.items():
                    yield name, run_apart(study, folder / name, turns[name], command, engine)
                del engine
            gc.collect()  # a model is full of cycles, and the next one needs its memory


def run_apart(
    study: Study,
    folder: Path,
    progress: Progress,
    command: str,
    engine: RowEngine[HeadModel],
) -> StudyFindings | Exception:
    """Run one of several studies; return what was found, or why it failed: others may be right.

    Raises what ends them all: Stopped and StoreFailed.
    """
    try:
        found = run_study(study, folder, progress, command=command, engine=engine)
        progress.tell(headline(make_card(found.result)))
    except (Stopped, StoreFailed):
        raise
    except Exception as error:
        return error
    return found


@contextmanager
def lock_studies(folder: Path, names: Sequence[str]) -> Iterator[None]:
    """Keep other processes out of a folder of studies that share rows, and mark it as one."""
    with ExitStack() as held:
        held.callback(folder_lock(folder).release)
        marked = folder / STUDIES
        known = read_file(marked, Studies).studies if marked.exists() else []
        every = list(dict.fromkeys([*known, *names]))
        if every != known:
            write_json(marked, {"schema": SCHEMA, "studies": every})
        yield


def rewrite_report(folder: Path) -> Path:
    """Write page and figures of a finished run from its result files.

    Of a folder of runs, those of each, and the page over all of them. Raises UserError if the
    folder holds no finished run.
    """
    runs = finished_in(folder)
    if runs == [folder]:
        return rewrite_page(folder)
    for run_folder in runs:
        rewrite_page(run_folder)
    try:
        command = str(read_json(folder / COMPARISON)["command"])
    except (UserError, LookupError, TypeError):
        command = shlex.join(["caploc", "view", str(folder), "--write"])
    compare(runs, folder, command=command)
    return folder / COMPARE
