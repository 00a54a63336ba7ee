"""The picture of the benchmark: rows per second of every contender, on a logarithmic axis."""

from pathlib import Path
from statistics import median
from typing import Any

import altair as alt
import pandas as pd

COLOURS = {
    "reference": "#c9c9c9",
    "hook loop": "#9a9a9a",
    "hook loop with prefix cache": "#7fa3b8",
    "rows": "#5f6b7a",
    "caploc": "#d1495b",
}
PEERS = ("#c7e9b4", "#7fcdbb", "#41b6c4", "#1d91c0", "#225ea8")


def draw(workloads: dict[str, dict[str, Any]], file: Path) -> None:
    """Write the bars of all workloads, in their order, grouped by "model/workload"."""
    rows = [
        {"workload": name, "contender": each, "speed": speed(found, each)}
        for name, found in workloads.items()
        for each in found["contenders"]
    ]
    colours = order({row["contender"] for row in rows})
    names, shades = list(colours), list(colours.values())
    chart = (
        alt.Chart(pd.DataFrame(rows), width=alt.Step(14), height=260)
        .mark_bar()
        .encode(
            x=alt.X("workload:N", sort=list(workloads), title=None, axis=alt.Axis(labelAngle=0)),
            xOffset=alt.XOffset("contender:N", sort=names),
            y=alt.Y("speed:Q", title="rows per second", scale=alt.Scale(type="log")),
            color=alt.Color(
                "contender:N",
                scale=alt.Scale(domain=names, range=shades),
                legend=alt.Legend(orient="top", columns=5, title=None),
            ),
        )
    )
    chart.save(file, ppi=150)


def order(names: set[str]) -> dict[str, str]:
    """Contenders and their colours: the peers between the plain ways and caploc."""
    peers = sorted(names - set(COLOURS))
    plain = {name: colour for name, colour in COLOURS.items() if name != "caploc"}
    every = plain | {name: PEERS[place % len(PEERS)] for place, name in enumerate(peers)}
    every |= {"caploc": COLOURS["caploc"]}
    return {name: colour for name, colour in every.items() if name in names}


def speed(found: dict[str, Any], contender: str) -> float:
    """Rows per second, by the median repeat."""
    return float(found["rows"] / median(found["contenders"][contender]["wall"]))
