"""Keep tuned neurons: as a small file beside the model, and merged into a checkpoint to ship."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from caploc.contents import read_contents
from caploc.errors import BadOption, StoreFailed, UserError
from caploc.folder import ENHANCEMENT
from caploc.models.loading import load_model
from caploc.neurons.study import opened, read_study
from caploc.neurons.tuning import (
    Recipe,
    apply_delta,
    attach,
    delta_of,
    load_delta,
    save_delta,
)
from caploc.neurons.tuning.training import lessons, search
from caploc.progress import Progress
from caploc.workbench import Allowed, ModelOptions


def keep(
    folder: Path,
    task: str,
    path: Path,
    progress: Progress | None = None,
    *,
    allowed: Allowed | None = None,
) -> Path:
    """Tune a task's located neurons as its enhancement did, at the best rate; write their delta.

    Raises:
        UserError: if the folder holds no enhancement of the task, or one of a damaged model.
        StoreFailed: if the file cannot be written.
    """
    told = read_contents(folder / ENHANCEMENT)
    fit = best_fit(told, task, folder)
    asked = dict(told["enhancing"]["recipe"])
    recipe = Recipe(**asked | {"rates": (fit["best"]["rate"],), "extensions": 0})
    study, first = read_study(folder, allowed)
    with opened(study, folder, progress, first) as lab:
        model = lab.bench.neurons
        given = lessons(lab.source(task).lessons(lab.bench.wording), recipe, model.device)
        with attach(model.model, lab.found(task).located, recipe.trains) as rows:
            search(model.model, rows, given, recipe, progress=progress, what=f"tuning for {task}")
            delta = delta_of(model.model, rows, model.name)
        write(lambda: save_delta(delta, path), path)
    return path


def best_fit(told: dict[str, Any], task: str, folder: Path) -> dict[str, Any]:
    """How the located arm was tuned best.

    Raises:
        UserError: if it was not, or from a damaged start.
    """
    if task not in told["tasks"]:
        known = ", ".join(told["tasks"])
        raise UserError(f"{folder} holds no enhancement of {task}; it has {known}.")
    if told["enhancing"]["noise"]:
        raise UserError(
            f"The enhancement in {folder} started from a damaged model (--noise "
            f"{told['enhancing']['noise']:g}), whose neurons fit no other; run `caploc neurons "
            "enhance` without --noise."
        )
    for arm in told["tasks"][task]["arms"]:
        if arm["arm"] == "located" and arm["fit"] is not None:
            fit: dict[str, Any] = arm["fit"]
            return fit
    raise UserError(f"The enhancement in {folder} did not tune the located neurons of {task}.")


def merge(options: ModelOptions, delta: Path, target: Path) -> Path:
    """Write a checkpoint of the model with tuned neurons in place; plain transformers load it.

    Raises:
        BadOption: if the target exists and holds something.
        ModelRefused: if the neurons belong to another model.
        StoreFailed: if it cannot be written.
    """
    if target.exists() and (target.is_file() or any(target.iterdir())):
        raise BadOption(f"{target} exists and is not empty; name a new folder with --to.")
    tuned = load_delta(delta)
    loaded = load_model(**replace(options, dtype=tuned.dtype).loading())
    apply_delta(loaded.model, tuned)

    def save() -> None:
        loaded.model.save_pretrained(target)
        loaded.tokenizer.save_pretrained(target)

    write(save, target)
    return target


def write(save: Any, path: Path) -> None:
    """Write a file or folder, its failure in one sentence.

    Raises:
        StoreFailed: if the disk refuses.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save()
    except (OSError, SafetensorError) as error:
        said = getattr(error, "strerror", None) or str(error).rstrip(".")
        raise StoreFailed(
            f"{path} could not be written ({said}); free disk space or name another place."
        ) from error
