"""Tuned neurons as a small file, a delta, and a checkpoint with a delta in place.

    save_delta(delta_of(model, rows, name), "capability.safetensors")
    apply_delta(model, load_delta("capability.safetensors"))   # a freshly loaded model

A delta's file holds the neurons' weights as trained (neurons first, by the parameters' names) and,
as JSON in its metadata, the neurons' names and a fingerprint of the model.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

from caploc.contents import read_contents
from caploc.errors import BadData, CaplocError, ModelRefused, UserError
from caploc.export import staged, writing_out
from caploc.folder import ENHANCEMENT, check_new
from caploc.models.loading import load_model
from caploc.models.neurons import find_sites
from caploc.neurons.study import reopen_study
from caploc.neurons.training import TuningRecipe, check_tunable, find_best_rate, make_lessons
from caploc.neurons.weights import TrainableRows, Trains, shares_by_projection
from caploc.progress import Progress
from caploc.workbench import Allowed, ModelOptions

SCHEMA = 1
KEY = "caploc"  # of the metadata
SAMPLED = 64  # values of each weight that the fingerprint looks at
ABOUT = ("neurons", "trains", "base", "dtype", "fingerprint")


@dataclass(frozen=True)
class Delta:
    """The weights of tuned neurons, and the model that they belong to.

    `values` are, by the parameters' names, (neurons of the layer, hidden), or (neurons) for a
    bias; a fused input projection has both of its rows. `base` and `dtype` tell a reader which
    model it was, `fingerprint` tells a program.
    """

    neurons: tuple[str, ...]
    trains: Trains
    base: str
    dtype: str
    fingerprint: str
    values: Mapping[str, Tensor]


def delta_of(model: PreTrainedModel, rows: TrainableRows, base: str = "") -> Delta:
    """Take what the rows of a model have become; `base` names the model."""
    grid = find_sites(model)[1]
    return Delta(
        neurons=tuple(str(neuron) for neuron in grid.named(rows.chosen)),
        trains=rows.trains,
        base=base,
        dtype=_dtype(model),
        fingerprint=fingerprint(model, rows.originals),
        values=rows.delta(),
    )


def fingerprint(model: PreTrainedModel, originals: Mapping[str, Tensor]) -> str:
    """Digest the untuned model: what the tuned neurons were, and a sample of all else.

    Every parameter counts with name and shape; one that holds `originals` with those, so that the
    digest is the same before and after they are replaced; others with up to 64 values.
    """
    digest = hashlib.blake2b(digest_size=20)
    for name, parameter in sorted(model.named_parameters()):
        digest.update(f"{name} {tuple(parameter.shape)}\0".encode())
        values = originals[name] if name in originals else _sample(parameter)
        digest.update(values.detach().float().contiguous().cpu().numpy().tobytes())
    return digest.hexdigest()


def save_delta(delta: Delta, path: Path | str) -> None:
    """Write a delta to a safetensors file."""
    about = {"schema": SCHEMA} | {name: getattr(delta, name) for name in ABOUT}
    values = {key: value.contiguous() for key, value in delta.values.items()}
    save_file(values, path, metadata={KEY: json.dumps(about)})


def load_delta(path: Path | str) -> Delta:
    """Read a delta from its file.

    Raises BadData if there is no such file, or it is no delta of this version.
    """
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {}).get(KEY, "{}"))
            values = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, json.JSONDecodeError) as error:
        raise BadData(f"{path} cannot be read as a delta ({error}).") from None
    if about.get("schema") != SCHEMA or about.get("trains") not in get_args(Trains):
        raise BadData(
            f"{path} holds no neurons tuned by this version of caploc; give a file that "
            "save_delta wrote."
        )
    fields = {name: about[name] for name in ABOUT} | {"neurons": tuple(about["neurons"])}
    return Delta(**fields, values=values)


def apply_delta(model: PreTrainedModel, delta: Delta) -> None:
    """Copy tuned neurons into the model they were tuned in.

    Raises ModelRefused if the model is another one, or holds the delta already.
    """
    try:
        held = shares_by_projection(model, find_sites(model)[1].mask(delta.neurons), delta.trains)
    except CaplocError:
        raise _refusal(model, delta) from None
    originals = {key: value for share in held for key, value in share.read().items()}
    shapes = {key: value.shape for key, value in originals.items()}
    fits = shapes == {key: value.shape for key, value in delta.values.items()}
    if not fits or fingerprint(model, originals) != delta.fingerprint:
        raise _refusal(model, delta)
    for share in held:
        share.write(delta.values)


def _refusal(model: PreTrainedModel, delta: Delta) -> ModelRefused:
    return ModelRefused(
        f"The tuned neurons belong to {delta.base or 'another model'} as loaded in {delta.dtype}, "
        f"and this {type(model).__name__} in {_dtype(model)} is not that model, or has been "
        "changed; load the model anew."
    )


def _sample(parameter: Tensor) -> Tensor:
    flat = parameter.detach().flatten()
    places = torch.linspace(0, len(flat) - 1, min(SAMPLED, len(flat)), dtype=torch.float64)
    return flat[places.long().to(flat.device)]


def _dtype(model: PreTrainedModel) -> str:
    return str(model.dtype).removeprefix("torch.")


def keep(
    folder: Path,
    task: str,
    path: Path,
    progress: Progress | None = None,
    *,
    allowed: Allowed | None = None,
) -> Path:
    """Tune a task's located neurons as its enhancement did, at the best rate; write their delta."""
    enhancement = read_contents(folder / ENHANCEMENT)
    fit = _best_fit(enhancement, task, folder)
    asked = dict(enhancement["enhancing"]["recipe"])
    recipe = TuningRecipe(**asked | {"rates": (fit["best"]["rate"],), "extensions": 0})
    with reopen_study(folder, progress, allowed) as lab:
        check_tunable(lab.study.model)
        loaded, what = lab.bench.neurons, f"tuning for {task}"
        model = loaded.model
        given = make_lessons(lab.source(task).lessons(lab.bench.wording), recipe)
        with TrainableRows(model, lab.found(task).located, recipe.trains) as rows:
            find_best_rate(model, rows, given, recipe, progress=progress, what=what)
            delta = delta_of(model, rows, loaded.name)
        with writing_out(path):
            save_delta(delta, path)
    return path


def _best_fit(enhancement: dict[str, Any], task: str, folder: Path) -> dict[str, Any]:
    """Find how the located arm was tuned best."""
    if task not in enhancement["tasks"]:
        known = ", ".join(enhancement["tasks"])
        raise UserError(f"{folder} holds no enhancement of {task}; it has {known}.")
    if enhancement["enhancing"]["noise"]:
        raise UserError(
            f"The enhancement in {folder} started from a damaged model (--noise "
            f"{enhancement['enhancing']['noise']:g}), whose neurons fit no other; run `caploc "
            "neurons enhance` without --noise."
        )
    for arm in enhancement["tasks"][task]["arms"]:
        if arm["arm"] == "located" and arm["fit"] is not None:
            fit: dict[str, Any] = arm["fit"]
            return fit
    raise UserError(f"The enhancement in {folder} did not tune the located neurons of {task}.")


def merge(options: ModelOptions, delta: Path, target: Path) -> Path:
    """Write a checkpoint of the model with tuned neurons in place; plain transformers load it.

    Raises BadOption if the target exists and holds something; ModelRefused if the neurons belong to
    another model; StoreFailed if it cannot be written.
    """
    check_new(target)
    tuned = load_delta(delta)
    loaded = load_model(**replace(options, dtype=tuned.dtype).loading())
    apply_delta(loaded.model, tuned)
    with staged(target) as stage:
        loaded.model.save_pretrained(stage)
        loaded.tokenizer.save_pretrained(stage)
    return target
