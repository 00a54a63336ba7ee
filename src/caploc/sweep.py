"""Several studies of one model one after another, with a page over all of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from caploc.errors import BadOption
from caploc.findings import Findings
from caploc.folder import ANSWERS, RESULT, read_json
from caploc.progress import Progress
from caploc.report import write_overview, write_report
from caploc.study import Study, run


@dataclass(frozen=True)
class Sweep:
    """What the studies found, in their order, and the page to open."""

    findings: list[Findings]
    report: Path


def locate_all(
    studies: Sequence[Study], folder: Path, progress: Progress, *, command: str = ""
) -> Sweep:
    """Run studies of one model; it is loaded once.

    A single study's files lie in `folder`; those of several in a folder each below it.

    Raises:
        UserError: for a mistake in any study, before the first one runs.
        RunFailed: if the machine gives up; rows already measured are kept.
    """
    names = subfolders(studies)
    if len(set(names)) < len(names):
        raise BadOption("--task or --method names the same one twice; name each once.")
    for study in studies:
        study.check()
    if len(studies) == 1:
        found = run(studies[0], folder, progress, command=command)
        return Sweep([found], found.report)
    engine = studies[0].model.engine()
    findings = [
        run(study, folder / name, progress, command=command, engine=engine)
        for study, name in zip(studies, names, strict=True)
    ]
    pairs = [(name, found.result) for name, found in zip(names, findings, strict=True)]
    return Sweep(findings, write_overview(folder, pairs))


def subfolders(studies: Sequence[Study]) -> list[str]:
    """A folder name for each study: its task, and its method where there are several."""
    several = len({study.method for study in studies}) > 1
    names = [f"{study.task}-{study.method}" if several else study.task for study in studies]
    return ["".join(c if c.isalnum() or c in "-_." else "-" for c in n).strip("-.") for n in names]


def rewrite_report(folder: Path) -> Path:
    """Write the report of a finished run, or of a folder of runs, from its result files.

    Raises:
        UserError: if the folder holds no finished run.
    """
    runs = sorted(path.parent for path in folder.glob(f"*/{RESULT}"))
    if runs and not (folder / RESULT).exists():
        for run_folder in runs:
            rewrite_report(run_folder)
        return write_overview(folder, [(r.name, read_json(r / RESULT)) for r in runs])
    return write_report(folder, read_json(folder / RESULT), read_json(folder / ANSWERS))
