"""What each of the engine's ideas is worth: caploc with all of them, and with one left out.

    python bench/ideas.py --out docs/bench

CPU seconds of one thread, medians over repeats in which the variants take turns; texts equal to
those with every idea, log-probabilities within 1e-3.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from unittest.mock import patch

import models
import workloads
from caploc import engine
from caploc.engine import decoding, planning
from caploc.engine.decoding import DraftOdds
from caploc.engine.encoding import Span
from caploc.engine.packed import PackedModel
from caploc.engine.reading import TokenTree, merge_spans
from contenders import Caploc, Run
from engine import quiet
from measuring import compare, pinned, say
from workloads import Size

CASES = {
    "25m/a": Size(4, 16),
    "25m/b": Size(8, 16),
    "25m/c": Size(8, 16),
    "25m/e": Size(8, 8),
    "demo/d": Size(40, 40),
    "demo/f": Size(20, 16),
}


@dataclass(frozen=True)
class Idea:
    """Something that can be left out, by putting a value in place of another."""

    name: str
    place: object
    attribute: str
    value: object

    @contextmanager
    def left_out(self) -> Iterator[None]:
        """The engine without it, inside the block."""
        with patch.object(self.place, self.attribute, self.value):
            yield


def apart(spans: Sequence[Span]) -> list[TokenTree]:
    """A passage for every span."""
    found = []
    for number, span in enumerate(spans):
        (alone,) = merge_spans([span])
        (ending,) = alone.endings
        alone.endings = [replace(ending, span=number)]
        found.append(alone)
    return found


IDEAS = (
    Idea("refill", decoding, "REFILL", 1),  # new rows only when every slot is free
    Idea("shared prefix", planning, "SHORTEST", 10**9),
    Idea("shared passage", engine, "merge_spans", apart),
    Idea("below the first cut", planning, "MARGIN", float("inf")),
    Idea("narrow last layer", PackedModel, "tails", lambda packed, found: None),
    Idea("drafts", DraftOdds, "length", lambda odds: 0),
)


def seconds(case: str, size: Size, repeats: int) -> dict[str, tuple[float, bool]]:
    """CPU seconds with everything and without each idea, and whether the answers are the same."""
    model, _, name = case.partition("/")
    loaded = models.load(model)
    asks = workloads.build(name, loaded, size).asks
    contender = Caploc(loaded)
    variants: dict[str, Callable[[], Run]] = {"": lambda: pinned(1, contender, asks)}
    for idea in IDEAS:

        def without(idea: Idea = idea) -> Run:
            with idea.left_out():
                return pinned(1, contender, asks)

        variants[idea.name] = without
    pinned(1, contender, asks[: len(asks) // 4])
    spent: dict[str, list[float]] = {variant: [] for variant in variants}
    same = dict.fromkeys(variants, True)
    expected = None
    for _ in range(repeats):
        for variant, run in variants.items():
            done = run()
            expected = expected or done.responses
            found = compare(done.responses, expected)
            same[variant] &= found.equal == found.texts and found.difference < 1e-3
            spent[variant].append(done.seconds.cpu)
        say(f"{case}: " + ", ".join(f"{v or 'all'} {s[-1]:.1f}" for v, s in spent.items()))
    return {variant: (median(times), same[variant]) for variant, times in spent.items()}


def table(found: dict[str, dict[str, tuple[float, bool]]], repeats: int) -> str:
    """How many times longer each case takes without each idea."""
    lines = [
        "# What each idea is worth",
        "CPU seconds when one idea is left out, as a multiple of those with all of them (median of "
        f"{repeats}, one thread; `*`: an answer changed). Written by `bench/ideas.py`.",
        "| case | CPU s, all ideas | " + " | ".join(idea.name for idea in IDEAS) + " |\n"
        "|---|--:|" + "--:|" * len(IDEAS),
    ]
    for case, times in found.items():
        whole, _ = times[""]
        cells = []
        for idea in IDEAS:
            spent, same = times[idea.name]
            cells.append(f"{spent / whole:.2f}{'' if same else '*'}")
        size = CASES[case]
        lines[-1] += f"\n| {case}, {size.masks} x {size.examples} | {whole:.1f} | "
        lines[-1] += " | ".join(cells) + " |"
    return "\n\n".join(lines) + "\n"


def main() -> None:
    """Measure every case and write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--out", type=Path, default=Path("docs/bench"))
    arguments = parser.parse_args()
    quiet()
    found = {}
    for case in arguments.cases.split(","):
        found[case] = seconds(case, CASES[case], arguments.repeats)
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / "ideas.md").write_text(table(found, arguments.repeats))
    print(table(found, arguments.repeats))


if __name__ == "__main__":
    main()
