"""What the heads of real networks do, in pictures: from the truth of bench/census.py.

python bench/networks.py        docs/real_networks.md's tables, and docs/bench/networks-*.png
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pyarrow import parquet

from caploc.heads import HeadGrid
from caploc.report.charts import Picture, by_series, number_channel
from census import CASES, FILES, Case

DOCS = Path(__file__).parents[1] / "docs"
BEGIN, END = "<!-- written by bench/networks.py -->", "<!-- end -->"
SHOWN = 12  # strongest heads of a task that are drawn
NAMED = 3  # and named
MATTERING = 0.05  # effect alone from which a head matters
DIGITS = 2


@dataclass(frozen=True)
class Truth:
    """What every head of a model does alone on a task, and to the right answer's likelihood."""

    case: Case
    grid: HeadGrid
    intact: float
    change: np.ndarray  # heads x examples
    likelihood: np.ndarray  # mean change of each head, in nats

    @classmethod
    def read(cls, case: Case) -> "Truth":
        """From the census."""
        table = parquet.read_table(FILES / f"{case.name}.parquet")
        told = json.loads((table.schema.metadata or {})[b"caploc"])
        rows = table.to_pandas()
        heads = HeadGrid(tuple(told["heads"]))
        before = rows[rows["part"] == "intact"].set_index("example")["outcome"]
        alone = rows[rows["part"] == "alone"]
        column = alone["knocked_out"].map(lambda columns: columns[0])
        outcome = alone.assign(head=column).pivot(index="head", columns="example", values="outcome")
        likely = rows[rows["part"] == "likelihood"]
        scored = likely["outcome"].to_numpy().reshape(heads.size + 1, -1)
        return cls(
            case,
            heads,
            float(before[outcome.columns].mean()),
            outcome.to_numpy() - before[outcome.columns].to_numpy(),
            (scored[1:] - scored[0]).mean(axis=1),
        )

    @property
    def effect(self) -> np.ndarray:
        """Of each head alone, in score units."""
        mean: np.ndarray = self.change.mean(axis=1)
        return mean

    def split_half(self) -> float:
        """Standard deviation of idle heads' true effects: what both halves of the examples share.

        The mean product of the two halves' means, over splits, has no noise of examples in it.
        """
        random, count = np.random.default_rng(0), self.change.shape[1]
        idle = np.abs(self.effect) < MATTERING
        products = []
        for _ in range(200):
            order = random.permutation(count)
            halves = (order[: count // 2], order[count // 2 : 2 * (count // 2)])
            first, second = (self.change[idle][:, half].mean(axis=1) for half in halves)
            products.append(np.mean(first * second) - first.mean() * second.mean())
        return float(np.sqrt(max(np.mean(products), 0)))

    def line(self) -> str:
        """A row of the page's table."""
        effect = self.effect
        order = np.argsort(effect, kind="stable")
        first = ", ".join(
            f"{self.grid.heads[column]} {effect[column]:.{DIGITS}f}" for column in order[:NAMED]
        )
        idle = np.abs(effect) < MATTERING
        cells = [
            self.case.name,
            f"{self.intact:.2f}",
            first,
            str(int((effect < -MATTERING).sum())),
            f"{100 * (self.change[idle] != 0).mean():.1f} %",
            f"{effect[idle].mean():+.4f} ± {self.split_half():.4f}",
            f"{np.corrcoef(effect, self.likelihood)[0, 1]:.2f}",
        ]
        return f"| {' | '.join(cells)} |"


HEADINGS = [
    "task",
    "intact",
    "strongest heads, alone",
    f"heads beyond -{MATTERING}",
    "answers that an idle head changes",
    "idle heads' effect, mean ± true spread",
    "correlation with the right answer's likelihood",
]


def strongest(truths: list[Truth]) -> dict[str, Any]:
    """The effects of the strongest heads of each task, a line a task."""
    values = [
        {"series": truth.case.name, "rank": rank, "effect": float(effect)}
        for truth in truths
        for rank, effect in enumerate(np.sort(truth.effect)[:SHOWN], 1)
    ]
    x = number_channel("rank", "heads, the most needed alone first", nice=False)
    series = by_series([truth.case.name for truth in truths])
    colour = {**series["color"], "legend": {"columns": 2}}
    y = {"field": "effect", "type": "quantitative", "title": "effect alone"}
    return {
        "data": {"values": values},
        "height": 220,
        "mark": {"type": "line", "point": True},
        "encoding": {"x": x, "y": y, "color": colour},
    }


def likelihoods(truths: list[Truth]) -> dict[str, Any]:
    """Each head's effect on the score beside that on the right answer's likelihood."""
    values = [
        {"series": truth.case.name, "nats": float(nats), "effect": float(effect)}
        for truth in truths
        for nats, effect in zip(truth.likelihood, truth.effect, strict=True)
    ]
    series = by_series([truth.case.name for truth in truths])
    colour = {**series["color"], "legend": {"columns": 2}}
    return {
        "data": {"values": values},
        "height": 260,
        "mark": {"type": "circle", "size": 20},
        "encoding": {
            "x": number_channel(
                "nats", "change of the right answer's log-probability (nats a token)"
            ),
            "y": {"field": "effect", "type": "quantitative", "title": "effect alone"},
            "color": colour,
        },
    }


def main() -> None:
    """Draw the pictures and write the table into the page."""
    truths = [Truth.read(case) for case in CASES if (FILES / f"{case.name}.parquet").is_file()]
    small = [truth for truth in truths if truth.case.model == "smollm2"]
    for name, draw in (("strongest", strongest), ("likelihood", likelihoods)):
        (DOCS / "bench" / f"networks-{name}.png").write_bytes(Picture.of([draw(small)]).png())
    page = DOCS / "real_networks.md"
    text = page.read_text(encoding="utf-8")
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    lines = [f"| {' | '.join(HEADINGS)} |", "|---" + "|---" * (len(HEADINGS) - 1) + "|"]
    lines += [truth.line() for truth in truths]
    table = "\n".join(["", "", *lines, "", ""])
    page.write_text(f"{head}{BEGIN}{table}{END}{tail}", encoding="utf-8")


if __name__ == "__main__":
    main()
