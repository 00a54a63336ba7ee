"""The colours of effects."""

import pytest

from caploc.report import charts

SHADES = [
    charts.shade(number, dark=dark)
    for number in range(-charts.STEPS, charts.STEPS + 1)
    for dark in (False, True)
]


@pytest.mark.parametrize("background", SHADES)
def test_numbers_can_be_read_on_every_shade(background):
    assert charts.contrast(charts.ink(background), background) >= 4.5


def test_the_scale_is_centred_and_even():
    assert charts.shade_number(0.0, 1.0) == charts.shade_number(0.4, 0.0) == 0
    assert charts.shade_number(1.0, 1.0) == -charts.shade_number(-1.0, 1.0) == charts.STEPS
    assert charts.shade_number(9.0, 1.0) == charts.STEPS


def test_both_sides_start_from_the_same_middle():
    assert charts.NEEDED[0] == charts.HELPED[0] == charts.shade(0)
    assert charts.NEEDED_DARK[0] == charts.HELPED_DARK[0] == charts.shade(0, dark=True)


def test_black_on_white_has_the_contrast_that_the_standard_gives():
    assert charts.contrast("#000000", "#ffffff") == pytest.approx(21)
