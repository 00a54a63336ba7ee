"""The colours of effects."""

import pytest

from caploc.report import colours

SHADES = [
    colours.shade(number, dark=dark)
    for number in range(-colours.STEPS, colours.STEPS + 1)
    for dark in (False, True)
]


@pytest.mark.parametrize("background", SHADES)
def test_numbers_can_be_read_on_every_shade(background):
    assert colours.contrast(colours.ink(background), background) >= 4.5


def test_the_scale_is_centred_and_even():
    assert colours.shade_number(0.0, 1.0) == colours.shade_number(0.4, 0.0) == 0
    assert colours.shade_number(1.0, 1.0) == -colours.shade_number(-1.0, 1.0) == colours.STEPS
    assert colours.shade_number(9.0, 1.0) == colours.STEPS


def test_both_sides_start_from_the_same_middle():
    assert colours.NEEDED[0] == colours.HELPED[0] == colours.shade(0)
    assert colours.NEEDED_DARK[0] == colours.HELPED_DARK[0] == colours.shade(0, dark=True)


def test_black_on_white_has_the_contrast_that_the_standard_gives():
    assert colours.contrast("#000000", "#ffffff") == pytest.approx(21)
