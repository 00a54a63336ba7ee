"""A run's folder: whose it is, and what is in it."""

import json
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from caploc.errors import FolderTaken, StoreFailed, UserError
from caploc.store import Store

RUN, RESULT, ANSWERS, ROWS = "run.json", "result.json", "answers.json", "rows.sqlite"
EVALUATION, CURVE, INTERACTIONS = "evaluation.json", "curve.json", "interactions.json"
UNIVERSAL = "universal.json"
NEURONS = "neurons.json"
ERASURE, CROSSING, ENHANCEMENT = "erasure.json", "crossing.json", "enhancement.json"
FIDELITY, RELIABILITY, OVERLAP = "fidelity.json", "reliability.json", "overlap.json"
DECOUPLING, TOGETHER = "decoupling.json", "together.json"
LEDGER = "ledger.jsonl"
# Which command leaves a file that others read; `locate` the rest.
WRITERS = {NEURONS: "neurons locate", ENHANCEMENT: "neurons enhance"}
PACKAGES = ("caploc", "torch", "transformers", "lm_eval", "scikit-learn", "numpy")


def claim(folder: Path, study: dict[str, Any], command: str) -> Store:
    """Open a run folder for a study, making it if it does not exist.

    Raises:
        FolderTaken: if it holds another study, or another process has it open.
        StoreFailed: if it cannot be written.
    """
    study = json.loads(json.dumps(study))
    store = Store(folder / ROWS)
    try:
        earlier = read_json(folder / RUN) if (folder / RUN).exists() else None
        if earlier is not None and question(earlier.get("study")) != question(study):
            raise FolderTaken(
                f"{folder} belongs to another run ({differences(earlier.get('study'), study)}); "
                "choose another --out, or delete the folder."
            )
        if earlier is None:
            write_json(folder / RUN, {"study": study, "command": command, "versions": versions()})
    except BaseException:
        store.close()
        raise
    return store


def question(study: Any) -> dict[str, Any]:
    """A study without what changes no outcome: a run may go on elsewhere, in smaller batches."""
    same = ("model.batch_size", "model.device")
    return {key: value for key, value in flat(study or {}).items() if key not in same}


def differences(earlier: Any, study: dict[str, Any]) -> str:
    """What sets two studies apart, in a few words."""
    old, new = question(earlier), question(study)
    changed = [key for key in sorted(old | new) if old.get(key) != new.get(key)]
    return ", ".join(f"{key} {old.get(key)!r}, not {new.get(key)!r}" for key in changed[:3])


def flat(nested: dict[str, Any]) -> dict[str, Any]:
    """Nested dictionaries as one, by the innermost names that tell them apart."""
    result: dict[str, Any] = {}
    for key, value in nested.items():
        if isinstance(value, dict):
            result |= {f"{key}.{inner}": v for inner, v in flat(value).items()}
        else:
            result[key] = value
    return result


def versions() -> dict[str, str | None]:
    """The versions that a result depends on; None for a package that is not installed."""
    found: dict[str, str | None] = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found


def write_json(path: Path, content: Any) -> None:
    """Write a file whole or not at all.

    Raises:
        StoreFailed: if the folder cannot be written.
    """
    written = path.with_suffix(path.suffix + ".part")
    try:
        written.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n")
        written.replace(path)
    except OSError as error:
        raise StoreFailed(
            f"{path} could not be written ({error.strerror}); the rows are kept. Free disk space "
            "or check the folder's rights, then run the same command again."
        ) from error


def read_json(path: Path) -> Any:
    """Read a file of a run folder.

    Raises:
        UserError: if it is not there or not readable.
    """
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise UserError(
            f"{path.parent} holds no {path.name}; name the folder of a finished `caploc "
            f"{WRITERS.get(path.name, 'locate')}`."
        ) from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}); was it edited by hand?") from error
