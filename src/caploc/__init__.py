"""caploc: which few attention heads does a capability of a language model depend on?"""

from importlib import import_module
from typing import Any

# Where each public name lives. They are imported when first used: designs, estimators and the
# command line's help must not wait for torch.
HOMES = {
    "Attribution": "neurons.attribution",
    "CaplocError": "errors",
    "Evaluation": "evaluation",
    "Findings": "notebook",
    "Head": "heads",
    "HeadFile": "headfile",
    "HeadGrid": "heads",
    "KnockoutRegressor": "regressor",
    "LoadedModel": "models.loading",
    "ModelOptions": "workbench",
    "NeuronStudy": "neurons.study",
    "Planted": "models.planted",
    "PlantedNeurons": "models.planted_neurons",
    "Rule": "neurons.scores",
    "Settings": "search",
    "Study": "study",
    "TaskOptions": "tasks.catalog",
    "World": "simulate",
    "as_neurons": "neurons.proof",
    "curve": "evaluation",
    "evaluate": "evaluation",
    "knockout": "models.knockout",
    "load_model": "models.loading",
    "locate": "notebook",
    "read_heads": "headfile",
    "read_studies": "studies",
    "reference_outputs": "models.knockout",
    "run": "study",
    "run_studies": "studies",
    "write_planted": "models.planted",
    "write_planted_neurons": "models.planted_neurons",
    "write_rows": "rowfiles",
}

__all__ = list(HOMES)  # noqa: PLE0604  (the names are the table's)


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module 'caploc' has no attribute {name!r}")
    return getattr(import_module(f"caploc.{HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(HOMES)
