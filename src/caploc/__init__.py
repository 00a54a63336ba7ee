"""caploc: which few attention heads does a capability of a language model depend on?"""

from importlib import import_module
from typing import Any

# Where each public name lives. They are imported when first used: designs, estimators and the
# command line's help must not wait for torch.
HOMES = {
    "CaplocError": "errors",
    "Evaluation": "evaluation",
    "Findings": "notebook",
    "Head": "components",
    "ModelOptions": "declaration",
    "Settings": "options",
    "Study": "declaration",
    "TaskOptions": "options",
    "curve": "evaluation",
    "evaluate": "evaluation",
    "knockout": "models.knockout",
    "load_model": "models.loading",
    "locate": "notebook",
    "read_heads": "components",
    "run_study": "study",
}

__all__ = list(HOMES)  # noqa: PLE0604  (the names are the table's)


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module 'caploc' has no attribute {name!r}")
    globals()[name] = getattr(import_module(f"caploc.{HOMES[name]}"), name)
    return globals()[name]


def __dir__() -> list[str]:
    return sorted(HOMES)
