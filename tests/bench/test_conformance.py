"""What is asked of every tool can fail, and does not fail here."""

import numpy as np
import pytest

import conformance

# The others are about words, or about rows without a cut.
CUT = [
    "every row its own head",
    "every row its own head and length",
    "a prompt again under other masks",
    "heads of hybrid and gated layers",
    "a bias is left",
    "one head and no other, in groups of 2, 3, 7",
    "a cut while decoding",
]


class Careless(conformance.Caploc):
    """Leaves out every mask, and pads without saying so."""

    def ask(self, requests, masks):
        return super().ask(requests, np.zeros_like(masks))


@pytest.mark.parametrize("case", conformance.CASES)
def test_every_case_holds(case):
    assert conformance.tried(conformance.CASES[case][1], conformance.Caploc) == "holds"


@pytest.mark.parametrize("case", CUT)
def test_a_tool_that_forgets_masks_is_found_out(case):
    said = conformance.tried(conformance.CASES[case][1], Careless)
    assert said == "**does not hold**"
