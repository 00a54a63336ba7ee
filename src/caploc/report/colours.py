"""The colours of effects, the same on the page and in the figures.

Orange is a head that the task needs, blue one whose knockout helps; the two stay apart in every
common kind of colour blindness. Dark pages run from dark in the middle to bright at the ends.
"""

from functools import cache

STEPS = 16  # shades a side; so many look continuous

# From the middle (no effect) outwards.
NEEDED = ("#f3f1ec", "#eb9a57", "#8a2d04")
HELPED = ("#f3f1ec", "#74a9d8", "#0d3b70")
NEEDED_DARK = ("#2b2f36", "#b05a20", "#ffb680")
HELPED_DARK = ("#2b2f36", "#2f6fae", "#a3d2ff")

Colour = tuple[float, float, float]


def step(harm: float, limit: float) -> int:
    """Return the shade, -STEPS to STEPS: 0 for next to no effect, positive for a needed head."""
    if not limit > 0:
        return 0
    return round(STEPS * min(1.0, max(-1.0, harm / limit)))


def shade(number: int, *, dark: bool = False) -> str:
    """Return the colour of a shade as `#rrggbb`."""
    anchors = (NEEDED_DARK if dark else NEEDED) if number > 0 else (HELPED_DARK if dark else HELPED)
    low, middle, high = (_parse(anchor) for anchor in anchors)
    share = 2 * abs(number) / STEPS
    start, end = (low, middle) if share <= 1 else (middle, high)
    weight = share if share <= 1 else share - 1
    mixed = (a + weight * (b - a) for a, b in zip(start, end, strict=True))
    return "#" + "".join(f"{round(255 * channel):02x}" for channel in mixed)


def ink(background: str) -> str:
    """Return the text colour, black or white, that stands out more from the background."""
    return max(("#000000", "#ffffff"), key=lambda text: contrast(text, background))


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of two colours, 1 to 21, as WCAG 2 defines it."""
    darker, lighter = sorted((_luminance(one), _luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def name(number: int) -> str:
    """Return the CSS class of a shade: n1, n2 ... needed, p1 ... helped, z none."""
    if number == 0:
        return "z"
    return f"n{number}" if number > 0 else f"p{-number}"


@cache
def stylesheet() -> str:
    """The CSS rules of all shades, light and dark."""
    dark = "".join(_rule(number, dark=True) for number in range(-STEPS, STEPS + 1))
    light = "".join(_rule(number, dark=False) for number in range(-STEPS, STEPS + 1))
    return f"{light}\n@media screen and (prefers-color-scheme:dark){{{dark}}}"


def _rule(number: int, *, dark: bool) -> str:
    background = shade(number, dark=dark)
    return f".{name(number)}{{background:{background};color:{ink(background)};fill:{background}}}"


def _parse(colour: str) -> Colour:
    red, green, blue = (int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5))
    return red, green, blue


def _luminance(colour: str) -> float:
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in _parse(colour)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
