from dataclasses import dataclass

import numpy as np
import pytest

from caploc.neurons.stats import JsonRecord, plain_value


@dataclass(frozen=True)
class Inner(JsonRecord):
    chosen: np.ndarray
    value: float


@dataclass(frozen=True)
class Stranger:
    value: float


def test_results_become_plain_python():
    inner = Inner(np.array([False, True, True]), np.nan)
    assert inner.as_dict() == {"chosen": [1, 2], "value": None}
    told = plain_value({"a": (inner, np.float64(2)), 3: np.array([[1.0, np.inf]])})
    assert told == {"a": [{"chosen": [1, 2], "value": None}, 2.0], "3": [[1.0, None]]}
    assert type(told["a"][1]) is float
    assert plain_value(np.bool_(True)) is True
    assert plain_value(None) is None
    # A matrix of booleans is no set of neurons.
    assert plain_value(np.eye(2, dtype=bool)) == [[True, False], [False, True]]


def test_what_is_no_result_is_not_written_as_one():
    with pytest.raises(TypeError, match="Stranger is no JsonRecord"):
        plain_value([Stranger(1.0)])
