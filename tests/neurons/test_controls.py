import json

import numpy as np
import pytest

from caploc.errors import BadData
from caploc.neurons.sets import overlap_rates, specific


def members(*columns):
    chosen = np.zeros(12, dtype=bool)
    chosen[list(columns)] = True
    return chosen


def test_what_controls_locate_too_is_not_specific():
    located = members(0, 1, 2, 7)
    controls = {"generic": members(1, 5), "misplaced": members(1, 7, 8)}
    found = specific(located, controls)
    assert np.flatnonzero(found.chosen).tolist() == [0, 2]
    assert (found.count, found.located, found.share) == (2, 4, 0.5)
    assert found.controls == {name: overlap_rates(located, each) for name, each in controls.items()}
    assert located.sum() == 4  # left as it was
    told = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert told["controls"]["generic"]["reference"] == 0.25


def test_without_controls_or_neurons():
    assert specific(members(3), {}).share == 1
    assert specific(members(), {"generic": members(1)}).share is None


def test_a_control_of_another_model_is_refused():
    with pytest.raises(BadData, match="'generic' is over 3 neurons and the located one over 12"):
        specific(members(1), {"generic": np.zeros(3, dtype=bool)})
