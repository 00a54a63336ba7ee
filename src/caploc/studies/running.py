"""Run the studies of a file; what is finished is not done again."""

import json
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from caploc.comparison import compare
from caploc.contents import RunFile, read_file
from caploc.errors import CaplocError, OutOfMemory, UserError
from caploc.findings import StudyFindings
from caploc.folder import RESULT, RUN, package_versions, question
from caploc.progress import Progress, Silent
from caploc.report import rewrite_page
from caploc.report.templates import COMPARE, REPORT
from caploc.result import Result
from caploc.studies.expanding import grid_of
from caploc.study import Study
from caploc.sweep import located

FAILURE = "failure.txt"  # beside run.json, of a failure that no sentence foresaw


@dataclass(frozen=True)
class Outcome:
    """What became of a study: `result` as in result.json, or the sentence of why it failed."""

    name: str
    result: Result | None = None
    failure: str | None = None
    earlier: bool = False  # it was finished before

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "study": self.name,
            "result": None if self.result is None else self.result.as_dict(),
            "failure": self.failure,
            "earlier": self.earlier,
        }


@dataclass(frozen=True)
class Ran:
    """What became of all studies, in their order, and the page over those that are finished."""

    outcomes: list[Outcome]
    report: Path | None

    @property
    def failed(self) -> list[Outcome]:
        """Those that failed."""
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

    Raises:
        FolderTaken: if another process is running in the folder.
        RunFailed: if all must stop (Ctrl-C, a full disk); rows already measured are kept.
    """
    outcomes: dict[str, Outcome] = {}
    for name, study in studies.items():
        result = finished(folder / name, study)
        if result is not None:
            outcomes[name] = Outcome(name, result, earlier=True)
    todo = {name: study for name, study in studies.items() if name not in outcomes}
    for name, found in located(todo, folder, progress or Silent(), command=command):
        outcomes[name] = outcome_of(name, found, folder / name)
    ordered = [outcomes[name] for name in studies]
    done = [folder / each.name for each in ordered if each.result is not None]
    for run in done:
        if not (run / REPORT).is_file():
            rewrite_page(run)
    if done:
        compare(done, folder, command=command)
    return Ran(ordered, folder / COMPARE if done else None)


def finished(folder: Path, study: Study) -> Result | None:
    """The result in the folder, if it is this study's, of these versions and readable."""
    if not (folder / RESULT).is_file() or not (folder / RUN).is_file():
        return None
    try:
        written, result = read_file(folder / RUN, RunFile), read_file(folder / RESULT, Result)
        wanted = json.loads(json.dumps(asdict(budgeted(study))))
        same = question(written.study) == question(wanted)
    except UserError:
        return None
    return result if same and result.versions == package_versions() else None


def budgeted(study: Study) -> Study:
    """The study with its budget spent, though its model may not fit into the memory there is.

    Raises:
        UserError: if there is a mistake in the study.
    """
    try:
        return study.check()
    except OutOfMemory:
        return study.sized(grid_of(study.model).size)


def outcome_of(name: str, found: StudyFindings | Exception, folder: Path) -> Outcome:
    """A study's outcome; of a failure that no sentence foresaw the details go into a file."""
    if isinstance(found, StudyFindings):
        (folder / FAILURE).unlink(missing_ok=True)
        rewrite_page(folder)
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
