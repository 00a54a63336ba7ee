"""Results as files hold them: plain Python, and None for what is missing."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from math import isfinite
from typing import Any

import numpy as np

from caploc.sharing import Chance


class Result:
    """A frozen dataclass that can be written to a file."""

    def as_dict(self) -> dict[str, Any]:
        """As files hold it: field by field, in plain Python, NaN as None."""
        return {
            field.name: plain(getattr(self, field.name))
            for field in fields(self)  # type: ignore[arg-type]  # its heirs are dataclasses
        }


def plain(value: Any) -> Any:
    """The value in plain Python.

    An array becomes nested lists; a set of neurons (a boolean array) the columns of its members;
    a number that is not finite None.
    """
    if isinstance(value, Result | Chance):
        return value.as_dict()
    if isinstance(value, np.ndarray) and value.dtype == bool and value.ndim == 1:
        return np.flatnonzero(value).tolist()
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, float):
        return value if isfinite(value) else None
    if is_dataclass(value):
        raise TypeError(f"{type(value).__name__} is no Result; it cannot be written as one.")
    return value
