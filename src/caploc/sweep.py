"""Several studies one after another, their rows in one store, with a page over all of them."""

import gc
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from caploc.comparison import compare
from caploc.contents import read_contents
from caploc.errors import BadOption, OutOfMemory, Stopped, StoreFailed, UserError
from caploc.findings import StudyFindings
from caploc.folder import COMPARISON, RESULT, STUDIES, make, read_json, refuse_links, write_json
from caploc.measurement import HeadModel, RowEngine
from caploc.progress import Progress
from caploc.report import rewrite_page
from caploc.report.templates import COMPARE
from caploc.store import folder_lock
from caploc.study import Study, run_study
from caploc.workbench import ModelOptions

SCHEMA = 1  # of studies.json
LONGEST = 200  # bytes of a folder's name; disks take 255
Located = tuple[str, StudyFindings | Exception]


@dataclass(frozen=True)
class Sweep:
    """What the studies found, in their order, and the page to open."""

    findings: list[StudyFindings]
    report: Path


def locate_all(
    studies: Sequence[Study], folder: Path, progress: Progress, *, command: str = ""
) -> Sweep:
    """Run studies of one model; it is loaded once.

    A single study's files lie in `folder`; those of several in a folder each below it, with their
    rows in one store, so that rows which several need are measured once.

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
        found = run_study(studies[0], folder, progress, command=command)
        return Sweep([found], rewrite_page(folder))
    findings = []
    named = dict(zip(names, studies, strict=True))
    for _, each in located(named, folder, progress, command=command):
        if isinstance(each, Exception):
            raise each
        findings.append(each)
    for name in names:
        rewrite_page(folder / name)
    compare([folder / name for name in names], folder, command=command)
    return Sweep(findings, folder / COMPARE)


def located(
    studies: Mapping[str, Study], folder: Path, progress: Progress, *, command: str = ""
) -> Iterator[Located]:
    """Run studies, each in its subfolder; what each found, or why it failed.

    Models come one after another, each loaded once. A study that fails does not stop the others;
    Ctrl-C and a store that cannot be written do.

    Raises:
        FolderTaken: if another process is running in the folder.
        RunFailed: if all must stop; rows already measured are kept.
    """
    with lock_studies(folder, list(studies)):
        for model in dict.fromkeys(study.model for study in studies.values()):
            own = {name: study for name, study in studies.items() if study.model == model}
            yield from of_model(model, own, folder, progress, command)
            gc.collect()  # a model is full of cycles, and the next one needs its memory


def of_model(
    model: ModelOptions,
    studies: Mapping[str, Study],
    folder: Path,
    progress: Progress,
    command: str,
) -> Iterator[Located]:
    """Run the studies of a model; if it cannot be loaded, all of them have failed."""
    with ExitStack() as stack:
        try:
            engine = stack.enter_context(model.answering())
        except (UserError, OutOfMemory) as error:
            yield from ((name, error) for name in studies)
            return
        for name, study in studies.items():
            yield name, attempted(study, folder / name, progress, command, engine)


def attempted(
    study: Study, folder: Path, progress: Progress, command: str, engine: RowEngine[HeadModel]
) -> StudyFindings | Exception:
    """A study's findings, or what stopped it and need not stop others."""
    try:
        return run_study(study, folder, progress, command=command, engine=engine)
    except (Stopped, StoreFailed):
        raise
    except Exception as error:  # whatever is wrong with one, the others may be right
        return error


@contextmanager
def lock_studies(folder: Path, names: Sequence[str]) -> Iterator[None]:
    """Keep other processes out of a folder of studies, and mark it as one: they share its rows.

    Raises:
        FolderTaken: if another process is running in it.
        StoreFailed: if it cannot be written.
    """
    refuse_links(folder)
    make(folder)
    lock = folder_lock(folder)
    try:
        marked = folder / STUDIES
        known = read_contents(marked)["studies"] if marked.exists() else []
        every = list(dict.fromkeys([*known, *names]))
        if every != known:
            write_json(marked, {"schema": SCHEMA, "studies": every})
        yield
    finally:
        lock.release()


def subfolders(studies: Sequence[Study]) -> list[str]:
    """A folder name for each study: its task, and its method where there are several."""
    several = len({study.method for study in studies}) > 1
    names = [f"{study.task}-{study.method}" if several else study.task for study in studies]
    return [folder_name(name) for name in names]


def folder_name(name: str) -> str:
    """A name as that of a folder: letters, digits and what separates them.

    One that is too long for a disk is cut, and ends in a digest of the whole.
    """
    text = "".join(c if c.isalnum() or c in "-_." else "-" for c in name).strip("-.") or "unnamed"
    if len(text.encode()) <= LONGEST:
        return text
    cut = text.encode()[: LONGEST - 9].decode(errors="ignore")
    return f"{cut}-{blake2b(name.encode(errors='replace'), digest_size=4).hexdigest()}"


def compared_by(folder: Path) -> str:
    """The command that made the page over a folder of runs."""
    try:
        return str(read_json(folder / COMPARISON)["command"])
    except (UserError, LookupError, TypeError):
        return shlex.join(["caploc", "report", str(folder)])


def rewrite_report(folder: Path) -> Path:
    """Write page and figures of a finished run from its result files.

    Of a folder of runs, those of each, and the page over all of them.

    Raises:
        UserError: if the folder holds no finished run.
    """
    runs = sorted(path.parent for path in folder.glob(f"*/{RESULT}"))
    if runs and not (folder / RESULT).exists():
        for run_folder in runs:
            rewrite_report(run_folder)
        compare(runs, folder, command=compared_by(folder))
        return folder / COMPARE
    return rewrite_page(folder)
