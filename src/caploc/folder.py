"""A run's folder: whose it is, and what is in it."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from itertools import zip_longest
from pathlib import Path
from typing import Any

from caploc.errors import BadOption, FolderTaken, StoreFailed, UserError
from caploc.files import whole_text, writing
from caploc.naming import is_file, is_folder, made_of_pairs
from caploc.store import LOCK, Store, holds_rows

RUN, RESULT, ANSWERS, ROWS = "run.json", "result.json", "answers.json", "rows.sqlite"
EVALUATION, CURVE, INTERACTIONS = "evaluation.json", "curve.json", "interactions.json"
UNIVERSAL, COMPARISON = "universal.json", "compare.json"
NEURONS, ERASURE, ENHANCEMENT = "neurons.json", "erasure.json", "enhancement.json"
OVERLAP = "overlap.json"
LEDGER = "ledger.jsonl"
STUDIES = "studies.json"  # marks a folder of several studies, which share its rows
EXAMPLES = "examples.parquet"  # in a folder of its own: pairs that a program or a file hands over
# What is in a run's folder before its first row.
BEGUN = (RUN, STUDIES, ROWS, f"{ROWS}-wal", f"{ROWS}-shm", LOCK)
TOLD = 6  # differences that a sentence names
# Which command leaves a file that others read; `locate` the rest.
WRITERS = {NEURONS: "neurons locate", ENHANCEMENT: "neurons enhance"}
PACKAGES = ("caploc", "torch", "transformers", "lm_eval", "scikit-learn", "numpy")


@contextmanager
def claim(
    folder: Path, study: dict[str, Any], command: str, data: Mapping[str, str] | None = None
) -> Iterator[Store]:
    """Open a run folder for a study, making it if it does not exist.

    `data` has a digest of the examples of each task whose file is the user's. A run without a row
    leaves its folder to whoever comes next. Raises FolderTaken if the folder holds another study,
    one on other examples, several studies or a model, or another process has it open; BadOption if
    it is a file; StoreFailed if it cannot be written.
    """
    study = json.loads(json.dumps(study))
    if is_file(check_out(folder) / STUDIES):
        raise FolderTaken(
            f"{folder} holds several studies, each in a folder of its own, and their rows; choose "
            "another --out."
        )
    with Store(rows_file(folder)) as store:
        make(folder)
        if (folder / RUN).exists() and has_begun(folder):
            check_same(folder, read_json(folder / RUN), study, data or {})
        else:
            run = {"study": study, "command": command, "versions": package_versions()}
            run |= {"data": dict(data)} if data else {}
            write_json(folder / RUN, run)
        yield store


def has_begun(folder: Path) -> bool:
    """Tell whether a run folder holds more than what stands there before the first row."""
    files = {each.name for each in folder.iterdir() if each.is_file()}
    return not files <= {*BEGUN} or holds_rows(rows_file(folder))


def check_out(folder: Path) -> Path:
    """Refuse, as the folder of a run, a file and a folder that holds a model."""
    if is_file(folder):
        raise BadOption(f"--out {folder} is a file; name a folder, which need not exist yet.")
    model = folder / "config.json"
    if is_file(model) and not is_file(folder / RUN):
        raise FolderTaken(f"{folder} holds a model ({model.name}); choose another --out.")
    return folder


def check_new(target: Path) -> Path:
    """Refuse, as a new folder, a file and a folder that holds something."""
    if is_file(target) or (is_folder(target) and any(target.iterdir())):
        raise BadOption(f"{target} exists and is not empty; name a new folder.")
    return target


def check_same(folder: Path, earlier: Any, study: dict[str, Any], data: Mapping[str, str]) -> None:
    """Refuse a folder whose run.json is of another study, or of one on other examples."""
    written = earlier.get("study") if isinstance(earlier, dict) else None
    if not isinstance(written, dict):
        raise UserError(
            f"{folder / RUN} is not what a run writes; was it edited by hand? Choose another "
            "--out, or delete the folder."
        )
    old, new = question(written), question(study)
    changed = [key for key in sorted(old | new) if old.get(key) != new.get(key)]
    if changed:
        changed.sort(key=lambda key: not key.startswith(("model.", "task")))  # tells most
        told = [tell_change(key, old.get(key), new.get(key)) for key in changed[:TOLD]]
        raise FolderTaken(
            f"{folder} belongs to another run ({'; '.join(told)}); choose another --out, or delete "
            "the folder."
        )
    before = earlier.get("data")
    for name, digest in data.items() if before else ():
        if before.get(name, digest) != digest:
            raise FolderTaken(
                f"The examples of {name} are not those that {folder} was begun with; restore "
                "them, or ask in a new folder."
            )


def tell_change(key: str, old: Any, new: Any) -> str:
    """Say how an option of the earlier run differs; of a task made of pairs, its examples may."""
    both = [each if isinstance(each, list) else [each] for each in (old, new)]
    changed = [(str(one), str(other)) for one, other in zip_longest(*both) if one != other]
    if all(has_other_examples(*pair) for pair in changed):
        names = ", ".join(repr(Path(name).stem) for name, _ in changed)
        return f"{key} {names} with other examples"
    return f"{key} {old!r}, not {new!r}"


def has_other_examples(before: str, after: str) -> bool:
    """Tell whether two tasks made of pairs differ in nothing but their examples."""
    pairs = made_of_pairs(before) and made_of_pairs(after)
    return pairs and Path(before).stem == Path(after).stem


def check_source(source: str) -> None:
    """Refuse what is no finished run, where heads are those of a run; raises UserError."""
    folder = Path(source)
    if not (is_file(folder / RUN) or finished_below(folder) or is_file(folder / RESULT)):
        raise BadOption(
            f"{source} is no finished run; name the folder of one, or a model with the heads to "
            "cut: --heads L0H5,L1H3."
        )
    check_named(folder)


def check_named(folder: Path) -> Path:
    """Refuse what is no finished run, and one that named no head; the folder itself."""
    result = read_json(folder / RESULT)
    if isinstance(result, dict) and result.get("top") == []:
        raise UserError(
            f"The run in {folder} named no head; to knock out heads of your own choice name them "
            "to `caploc evaluate`, or by --heads to `caploc chat` and `caploc export`."
        )
    return folder


def finished_below(folder: Path) -> list[Path]:
    """The finished runs in the folders right below one, sorted."""
    return sorted(path.parent for path in folder.glob(f"*/{RESULT}"))


def finished_in(folder: Path) -> list[Path]:
    """The finished run of a folder, or those right below it; itself, where there is none."""
    return ([] if (folder / RESULT).exists() else finished_below(folder)) or [folder]


def rows_file(folder: Path) -> Path:
    """Where the rows of a run folder lie: in it, or in the folder of studies that it is part of."""
    own, shared = folder / ROWS, folder.absolute().parent
    return shared / ROWS if is_file(shared / STUDIES) and not os.path.lexists(own) else own


def make(folder: Path) -> None:
    """Make a folder if there is none; raises StoreFailed if it cannot be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreFailed(
            f"{folder} cannot be made ({error.strerror}); free disk space or check the rights, "
            "then run the same command again."
        ) from error


def question(study: Any) -> dict[str, Any]:
    """A study without what changes no outcome: a run may go on elsewhere, in smaller batches."""
    same = ("model.backend", "model.batch_size", "model.device", "model.workers", "track")
    return {key: value for key, value in flat(study or {}).items() if not key.startswith(same)}


def flat(nested: dict[str, Any]) -> dict[str, Any]:
    """Nested dictionaries as one, by the innermost names that tell them apart."""
    result: dict[str, Any] = {}
    for key, value in nested.items():
        if isinstance(value, dict):
            result |= {f"{key}.{inner}": v for inner, v in flat(value).items()}
        else:
            result[key] = value
    return result


def package_versions() -> dict[str, str | None]:
    """The versions that a result depends on; None for a package that is not installed."""
    found: dict[str, str | None] = dict.fromkeys(PACKAGES)
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def write_json(path: Path, content: Any) -> None:
    """Write a file as `whole_text` does; raises StoreFailed if it cannot be written."""
    with writing(path, "the rows are"), whole_text(path) as file:
        file.write(json.dumps(content, indent=1, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """Read a file of a run folder; raises UserError."""

    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        folder, name = path.parent, WRITERS.get(path.name, "locate")
        advice = f"name the folder of a finished `caploc {name}`."
        if not is_folder(folder):
            raise UserError(f"There is no folder {str(folder)!r}; {advice}") from None
        if path.name == RESULT and (below := finished_below(folder)):
            advice = f"name one of the runs in it, such as {below[0]}."
        elif path.name == RESULT and (folder / RUN).exists():
            advice = (
                "its run has not ended, or is of another command: wait for it, or go on with it by "
                "the command in its run.json."
            )
        raise UserError(f"{folder} holds no {path.name}; {advice}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(
            f"{path} cannot be read ({error}); was it edited by hand, or cut off? Delete it, and "
            "give the run's command again, which writes it anew; no row is lost."
        ) from error
