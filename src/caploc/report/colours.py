"""The colours of effects and of series, in light and dark, and how well text stands out on them."""

from functools import cache
from typing import Any

import numpy as np

SERIES = tuple(f"var(--series-{number})" for number in range(1, 8))
# Of the series these are Okabe and Ito's, told apart with every kind of colour vision.
OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
PRINT = {f"--series-{number}": colour for number, colour in enumerate(OKABE_ITO, 1)}
PRINT |= {"--series-8": "#882255", "--series-9": "#332288"}  # Tol's wine and indigo
PRINT |= {
    "--paper": "#ffffff",
    "--ink": "#16181d",
    "--quiet": "#5b626d",
    "--line": "#dcdfe4",
    "--needed": "#b8500c",
}

# The colours of effects, the same on the page and in the figures. Orange is a head that the task
# needs, blue one whose knockout helps; the two stay apart in every common kind of colour blindness.
# Shades go from the middle (no effect) outwards, on dark pages from dark to bright.
STEPS = 16  # shades a side; so many look continuous
GREYS = 5  # of heads that were only scanned
NEEDED = ("#f3f1ec", "#eb9a57", "#8a2d04")
HELPED = ("#f3f1ec", "#74a9d8", "#0d3b70")
NEEDED_DARK = ("#2b2f36", "#b05a20", "#ffb680")
HELPED_DARK = ("#2b2f36", "#2f6fae", "#a3d2ff")


def shade_number(harm: float, limit: float) -> int:
    """Return the shade, -STEPS to STEPS: 0 for next to no effect, positive for a needed head."""
    return round(STEPS * min(1.0, max(-1.0, harm / limit))) if limit > 0 else 0


def shade(number: int, *, dark: bool = False) -> str:
    """Return the colour of a shade as `#rrggbb`."""
    anchors = (NEEDED_DARK if dark else NEEDED) if number > 0 else (HELPED_DARK if dark else HELPED)
    channels = zip(*map(_parse, anchors), strict=True)
    mixed = (np.interp(abs(number) / STEPS, (0, 0.5, 1), channel) for channel in channels)
    return "#" + "".join(f"{round(255 * channel):02x}" for channel in mixed)


def shade_scale(limit: float, *, diverging: bool = True) -> dict[str, Any]:
    """Return domain and range of a scale of changes, from 0 or centred on it, up to `limit`."""
    steps = range(-STEPS if diverging else 0, STEPS + 1)
    return {
        "domain": [limit * number / STEPS for number in steps],
        "range": [shade(-number) for number in steps],  # orange stands for a fall
    }


def ink(background: str) -> str:
    """Return the text colour, black or white, that stands out more from the background."""
    return max(("#000000", "#ffffff"), key=lambda text: contrast(text, background))


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of two colours, 1 to 21, as WCAG 2 defines it."""
    darker, lighter = sorted((_luminance(one), _luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def shade_class(number: int) -> str:
    """Return the CSS class of a shade: n1, n2 ... needed, p1 ... helped, z none."""
    if number == 0:
        return "z"
    return f"n{number}" if number > 0 else f"p{-number}"


@cache
def stylesheet() -> str:
    """The CSS rules of all shades, light and dark, and of the greys of heads only scanned."""
    rules = {False: "", True: ""}
    for dark in rules:
        for number in range(-STEPS, STEPS + 1):
            fill = shade(number, dark=dark)
            rule = f"background:{fill};color:{ink(fill)};fill:{fill}"
            rules[dark] += f".{shade_class(number)}{{{rule}}}"
    for step in range(GREYS + 1):
        mixed = f"color-mix(in srgb,var(--ink) {8 * step}%,var(--soft))"
        rules[False] += f".q{step}{{background:{mixed}}}"
    return f"{rules[False]}\n@media screen and (prefers-color-scheme:dark){{{rules[True]}}}"


def _parse(colour: str) -> list[float]:
    return [channel / 255 for channel in bytes.fromhex(colour[1:])]


def _luminance(colour: str) -> float:
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in _parse(colour)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
