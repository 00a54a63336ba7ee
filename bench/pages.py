"""The page of the recovery benchmark: Markdown tables made of its JSON."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import sqrt
from typing import Any

from simulator import IDLE

Entry = dict[str, Any]
Cell = dict[str, Any]
DASH = "–"
NULL = "null"
INTRODUCTION = """\
Written by `bench/recovery.py`; the numbers are in the JSON file beside it. ± is a standard error
over worlds, or over seeds.

- *Rows* are examples asked with heads knocked out. Intact rows are not counted: every method needs
  them.
- *Seconds* are what a method itself takes to think, in CPU time; on real models its rows as well.
- *Recall*: the share of the five heads that matter most alone among the first five found.
- *Damage*: what the first five found take from the score together, as a share of what the best
  five take. Judged where nothing was searched.
- Heads that break every task are struck from all rankings. Greedy and halving never meet them.

The methods:

- *adaptive (heads)*, *(set)*: for the heads that matter most alone, or the set that does most
  together, without an early stop. *(own stop)*: for heads, with the stop it comes with.
- *flat rows*: a mask for every row, 4 % of the heads in each, all drawn evenly beforehand.
- *css*, *csb*: masks crossed with examples and the Lasso on their means, as published.
- *css (searched)*: 100, 200 and 400 masks at rates of 1, 2, 5 and 10 %; of the twelve sets the one
  that hurts most.
- *ridge regression*, *least squares*: 5 % random masks crossed with examples, in COAR's manner.
- *Thompson (as coded)*: the search of the paper's code that its text does not mention: a Beta
  distribution a head, the heads with the largest draws knocked out together, and the score their
  reward, so that it is led to what can be spared. *(mended)*: 1 less the score is the reward.
- *one-shot*: every head alone. *greedy*: again after each one found. *halving*: single heads, the
  worse half dropped in every round.
- *gradient x activation*: the derivative of the gold answer's log-probability by each head's
  strength. *learned gates*: a gate for each head, trained on the gold answers under a penalty on
  open gates; the best of three penalties. A pass forward and backward counts as three rows."""


def page(parts: Mapping[str, dict[str, Entry]], stem: str) -> str:
    """Everything measured so far."""
    sections = ["# How well heads are found", INTRODUCTION]
    for part, render in (("simulator", simulated), ("planted", planted), ("demo", demo)):
        if parts[part]:
            sections += render(parts[part], stem)
    return "\n\n".join(sections) + "\n"


def simulated(kinds: dict[str, Entry], stem: str) -> Iterator[str]:
    """Recall and damage against rows, and how far a search is right about itself."""
    real = {kind: e for kind, e in kinds.items() if IDLE not in kind and kind != NULL}
    idle = {kind.removesuffix(IDLE): e for kind, e in kinds.items() if IDLE in kind}
    yield "## Simulated models of 1,024 heads"
    yield "The kinds of world are those of `tests/worlds/simulate.py`."
    yield f"![recall against rows]({stem}.png)"
    if real:
        yield "Recall of the five heads that matter most alone:"
        yield by_kind(real, "recall")
        yield "Damage of the first five found:"
        yield by_kind(real, "damage")
        yield "The default stop: the recall that it expects when it stops, and what it is."
        yield stops(real)
        yield "Share of 95 % intervals that hold the true effect alone, all heads / first five:"
        yield by_kind(real, "coverage", covering)
    if idle:
        yield (
            "False discoveries where idle heads do exactly nothing alone: their share among heads "
            "with q < .05 (and the number of such heads). An idle head may have a silent partner."
        )
        yield by_kind(idle, "false", lying)
    if NULL in kinds:
        yield "Nothing to find (no head matters): how often a head is named all the same."
        yield nothing(kinds[NULL]["cells"])


def covering(cell: Cell) -> str:
    """Both shares of intervals that hold."""
    return f"{mean(cell, 'coverage', 3)} / {number(cell, 'coverage top')}"


def lying(cell: Cell) -> str:
    """False discoveries, and how many discoveries there are."""
    return f"{number(cell, 'false')} ({mean(cell, 'discovered', 1)})"


def by_kind(kinds: dict[str, Entry], score: str, show: Callable[[Cell], str] | None = None) -> str:
    """A line for each method and setting that has the score, a column for each kind of world."""
    show = show or (lambda cell: number(cell, score))
    lines = []
    for cells in by_method(kinds, score).values():
        first = cells[next(iter(cells))]
        shown = [show(cells[kind]) if kind in cells else DASH for kind in kinds]
        rows, seconds = (average(cells.values(), name) for name in ("rows", "thinking"))
        lines.append([first["method"], first["setting"], f"{rows:,.0f}", f"{seconds:.1f}", *shown])
    return table(["method", "setting", "rows", "s", *kinds], lines)


def by_method(kinds: dict[str, Entry], score: str) -> dict[str, dict[str, Cell]]:
    """The cells that have a score, by method and setting and then by kind."""
    found: dict[str, dict[str, Cell]] = {}
    for kind, entry in kinds.items():
        for key, cell in entry["cells"].items():
            if score in cell["scores"]:
                found.setdefault(key, {})[kind] = cell
    return found


def stops(kinds: dict[str, Entry]) -> str:
    """What the search promises when it stops by itself."""
    lines = []
    for kind, entry in kinds.items():
        for cell in entry["cells"].values():
            if cell["method"] == "adaptive (own stop)":
                values = [number(cell, name) for name in ("promised", "recall", "damage")]
                lines.append([kind, number(cell, "rows", 0), *values, mean(cell, "named", 1)])
    return table(["world", "rows", "expected recall", "recall", "damage", "heads named"], lines)


def nothing(cells: dict[str, Cell]) -> str:
    """Which methods name heads where there are none."""
    lines = [
        [
            cell["method"],
            cell["setting"],
            number(cell, "names any"),
            mean(cell, "named", 1),
            mean(cell, "discovered", 1),
        ]
        for cell in cells.values()
    ]
    return table(["method", "setting", "share naming a head", "heads named", "q < .05"], lines)


def planted(models: dict[str, Entry], stem: str) -> Iterator[str]:
    """What was found of the heads that were put there."""
    models = dict(sorted(models.items(), key=lambda pair: int(pair[0])))
    first = next(iter(models.values()))
    methods = list(dict.fromkeys(c["method"] for e in models.values() for c in e["cells"].values()))
    yield f"## Planted models of {first['heads']} heads"
    yield (
        "Whole runs, from the first row to the result, told how many heads to find. Beside the "
        "needed heads there are a universal one, and backups, which cost nothing alone. Needed "
        "heads among the first found, seconds, and * if the method names these and no others."
    )
    lines = []
    for needed, entry in models.items():
        cells = {cell["method"]: cell for cell in entry["cells"].values()}
        shown = [planting(cells.get(method), int(needed)) for method in methods]
        rows = mean(cells["adaptive"], "rows", 0) if "adaptive" in cells else DASH
        lines.append([needed, str(entry["backups"]), rows, *shown])
    yield table(["needed", "backups", "rows of adaptive", *methods], lines)


def planting(cell: Cell | None, needed: int) -> str:
    """One method on one planted model."""
    if cell is None:
        return DASH
    scores = cell["scores"]
    star = "*" if scores["exact"]["mean"] == 1 else ""
    found = round(scores["recall"]["mean"] * needed)
    return f"{found} of {needed}{star}, {scores['seconds']['mean']:.1f} s"


def demo(capabilities: dict[str, Entry], stem: str) -> Iterator[str]:
    """The demo model: all methods over all capabilities, then capability by capability."""
    yield "## The demo model, 96 heads"
    yield (
        "Means over capabilities; ± from the spread over seeds within each. *Recall* is of the "
        "heads whose effect alone is beyond doubt, five at most. *Damage* is that on held-out "
        "examples, against that of the five that greedy finds on 100 others."
    )
    lines = []
    for cells in by_method(capabilities, "rows").values():
        first = next(iter(cells.values()))
        seconds = average(cells.values(), "thinking") + average(cells.values(), "measuring")
        both = [across(cells.values(), score) for score in ("recall", "damage")]
        rows = f"{average(cells.values(), 'rows'):,.0f}"
        lines.append([first["method"], first["setting"], rows, f"{seconds:.1f}", *both])
    yield table(["method", "setting", "rows", "s", "recall", "damage"], lines)
    yield "Capability by capability at the largest budget, recall / damage:"
    yield apart(capabilities)
    yield "What there is to find: heads alone, and greedy's five together."
    lines = []
    for name, entry in capabilities.items():
        alone = ", ".join(f"{head} {effect:+.2f}" for head, effect in entry["wanted"].items())
        best = f"{' '.join(entry['greedy'])}: -{entry['greedy_drop']:.2f}"
        lines.append([name, f"{entry['intact']:.2f}", alone, best])
    yield table(["capability", "intact", "heads that matter most alone", "greedy"], lines)


def apart(capabilities: dict[str, Entry]) -> str:
    """A line for each capability, a column for each method at its last setting."""
    last: dict[str, str] = {}
    for entry in capabilities.values():
        last |= {cell["method"]: key for key, cell in entry["cells"].items()}
    lines = []
    for name, entry in capabilities.items():
        cells = [entry["cells"].get(key) for key in last.values()]
        shown = [DASH if c is None else f"{mean(c, 'recall')} / {mean(c, 'damage')}" for c in cells]
        lines.append([name, *shown])
    return table(["capability", *last], lines)


def across(cells: Iterable[Cell], score: str) -> str:
    """The mean of several cells, each with its own error."""
    found = [cell["scores"][score] for cell in cells if score in cell["scores"]]
    if not found:
        return DASH
    whole = f"{sum(each['mean'] for each in found) / len(found):.2f}"
    if not all("error" in each for each in found):
        return whole
    return f"{whole} ± {sqrt(sum(each['error'] ** 2 for each in found)) / len(found):.2f}"


def average(cells: Iterable[Cell], score: str) -> float:
    """The plain mean of a score over cells."""
    found = [cell["scores"][score]["mean"] for cell in cells if score in cell["scores"]]
    return sum(found) / max(len(found), 1)


def number(cell: Cell, score: str, digits: int = 2) -> str:
    """A mean with its standard error."""
    found = cell["scores"].get(score, {})
    error = f" ± {found['error']:,.{digits}f}" if "error" in found else ""
    return mean(cell, score, digits) + error


def mean(cell: Cell, score: str, digits: int = 2) -> str:
    """A mean alone."""
    found = cell["scores"].get(score)
    return f"{found['mean']:,.{digits}f}" if found else DASH


def table(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A Markdown table; nothing but its first column stands on the left."""
    rule = "|---|" + "--:|" * (len(header) - 1)
    rows = [f"| {' | '.join(line)} |" for line in (header, *lines)]
    return "\n".join([rows[0], rule, *rows[1:]])
