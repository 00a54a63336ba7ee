"""Draw docs/engine.png: which row held which slot, pass by pass, in a small real run.

    python scripts/engine_picture.py

The demo model answers a few examples under a few masks in eight slots; each pass over running rows
is a column. Nothing is staged: the picture is what the decoder did.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle

import caploc
from caploc import designs, engine
from caploc.engine import Ask, BatchEngine, decoding
from caploc.engine.decoding import Decoder, DraftOdds, RunningRow
from caploc.tasks.catalog import load_task

OUT = Path("docs/engine.png")
TASK, SLOTS, MASKS, EXAMPLES, RATE = "demo/cursing", 8, 8, 4, 0.06


@dataclass(frozen=True)
class Fed:
    """What one row was fed in one pass, and how much of its draft held."""

    number: int  # of the pass
    slot: int
    mask: int
    opened: bool  # its prompt was read in this pass
    drafted: int
    said: int


class Traced(Decoder):
    """A decoder that notes what it does."""

    events: list[Fed] = []
    passes = 0

    def hear(
        self, rows: Sequence[RunningRow], slots: Sequence[int], best: Sequence[int], odds: DraftOdds
    ) -> None:
        """Note the pass, then take it in."""
        before = [(len(row.said), len(row.draft)) for row in rows]
        super().hear(rows, slots, best, odds)
        for row, slot, (said, drafted) in zip(rows, slots, before, strict=True):
            new = len(row.said) - said
            opened = odds is self.first_odds
            mask = row.row.mask
            Traced.events.append(Fed(Traced.passes, slot, mask, opened, drafted, new))
        Traced.passes += 1


def run() -> list[Fed]:
    """Answer the rows of the picture."""
    engine.Decoder = Traced  # type: ignore[misc]
    loaded, task = caploc.load_model("demo"), load_task(TASK)
    masks = designs.bernoulli(loaded.grid.size, MASKS, rate=RATE, seed=3)
    asks = [
        Ask((number, example), task.requests(example)[0], mask)
        for number, mask in enumerate(masks)
        for example in range(EXAMPLES)
    ]
    engine.ENOUGH = 2
    for _ in BatchEngine(loaded, batch_size=SLOTS).answer(asks):
        pass
    return Traced.events


def draw(events: Sequence[Fed], axes: Axes) -> None:
    """A rectangle for each row and pass: colour by mask, hatched where the prompt was read."""
    colours = plt.get_cmap("tab10")
    order = {mask: n for n, mask in enumerate(dict.fromkeys(event.mask for event in events))}
    for event in events:
        place = (event.number, event.slot)
        colour = "#9a9a9a" if order[event.mask] == 0 else colours(order[event.mask] - 1)
        hatch = "////" if event.opened else None
        axes.add_patch(
            Rectangle(place, 0.94, 0.86, facecolor=colour, hatch=hatch, edgecolor="white", lw=0)
        )
        if event.said > 1:
            middle = (event.number + 0.47, event.slot + 0.43)
            axes.annotate(f"{event.said}", middle, ha="center", va="center", fontsize=6)
    axes.set(
        xlim=(0, max(event.number for event in events) + 1),
        ylim=(decoding.REFILL, 0),
        xlabel="pass",
        ylabel="slot",
    )
    handles = [Patch(facecolor="#9a9a9a", label="intact")]
    handles += [Patch(facecolor=colours(n), label=f"mask {n + 1}") for n in range(len(order) - 1)]
    handles.append(Patch(facecolor="white", edgecolor="black", hatch="////", label="prompt read"))
    axes.legend(handles=handles, ncols=7, loc="lower left", bbox_to_anchor=(0, 1), frameon=False)


def main() -> None:
    """Run, and write the picture."""
    figure, axes = plt.subplots(figsize=(11, 2.8), layout="constrained")
    draw(run(), axes)
    figure.savefig(OUT, dpi=150)
    print(OUT)


if __name__ == "__main__":
    main()
