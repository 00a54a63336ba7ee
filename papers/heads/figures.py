"""The paper's figures: rows as of a table, and the chart that Altair draws of them."""

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import pandas as pd

from papers.exhibits import NOTHING, Value, known
from papers.heads import published
from papers.heads.measured import KNOWLEDGE, WIDTH, Measured
from papers.heads.tables import Row, Rows, knowledge_heads, leading, score_of

SHOWN = 2  # heads of a model in figure 3; the paper finds one or two
INTACT, GENERAL, GUESSING = "intact", "general", "guessing"


def fig1(model: Measured) -> Rows:
    """Every benchmark, intact and with one capability's heads gone."""
    axes = [each for each in model.setup.benchmarks if each.group != KNOWLEDGE]
    sets = {INTACT: ("", [])}
    for benchmark in leading(model.capabilities):
        if heads := model.heads(benchmark):
            sets[f"{benchmark.label} heads"] = benchmark.label, heads
    for name, (source, heads) in sets.items():
        row: Row = {"model": model.label, "heads knocked out": name}
        for axis in axes:
            paper = published.score(model.label, source, len(heads), [axis.label])
            row[axis.label] = score_of(model.score(axis, heads), paper)
        yield row


def fig2(model: Measured) -> Rows:
    """Score against the number of heads knocked out, one benchmark's, one after another."""
    source = model.localized[0]
    heads = model.heads(source, count=model.setup.most)
    lines = {each.label: [each] for each in model.setup.benchmarks if each.kin == source.kin}
    if code := [each for each in model.setup.of_group("code") if each.label not in lines]:
        lines["code"] = code
    lines[GENERAL] = model.setup.general
    for count in range(len(heads) + 1):
        gone = heads[:count]
        row: Row = {"heads": count, "the last of them": str(gone[-1]) if gone else NOTHING}
        for name, group in lines.items():
            labels = [each.label for each in group]
            paper = published.score(model.label, source.label, count, labels)
            row[name] = score_of(model.mean(group, gone), paper)
        yield row


def fig3(model: Measured) -> Rows:
    """Single heads that questions of knowledge share."""
    heads = knowledge_heads(model)[:SHOWN]
    sets: dict[str, tuple[str, list[Any]]] = {INTACT: ("", [])} if heads else {}
    sets |= {str(head): (str(head), [head]) for head in heads}
    yield from bars(model, sets)


def fig4(model: Measured) -> Rows:
    """Each subject's own heads."""
    sets: dict[str, tuple[str, list[Any]]] = {INTACT: ("", [])}
    for subject in model.subjects:
        if heads := model.heads(subject):
            sets[f"{subject.label} heads"] = subject.label, heads
    yield from bars(model, sets)


def bars(model: Measured, sets: Mapping[str, tuple[str, list[Any]]]) -> Rows:
    """Yield scores over the subjects, other questions with choices, and the rest in general.

    The paper's general score in these figures leaves out MMLU, which stands beside it.
    """
    every = model.setup.benchmarks
    groups = {each.label: [each] for each in every if each.group == KNOWLEDGE or each.choice}
    groups[GENERAL] = [each for each in model.setup.general if not each.choice]
    chances: Row = {}
    for name, (key, heads) in sets.items():
        row: Row = {"model": model.label, "heads knocked out": name}
        for column, group in groups.items():
            found = model.mean(group, heads)
            labels = [each.label for each in group]
            paper = published.knowledge(model.label, key, len(heads), labels)
            row[column] = score_of(found, paper)
            chances[column] = Value(found.chance or None)
        yield row
    if sets:
        yield {"model": model.label, "heads knocked out": GUESSING, **chances}


def long_form(frame: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """Put every number on a row of its own, with the ends of its 95 % interval."""
    rows = []
    for row in frame.to_dict("records"):
        for column, cell in row.items():
            if isinstance(cell, Value) and known(cell.number):
                half = WIDTH * (cell.stderr or 0.0)
                ends = {"low": cell.number - half, "high": cell.number + half}
                named = {name: row[name] for name in names}
                rows.append(named | {"of": column, "score": cell.number} | ends)
    return pd.DataFrame(rows)


def draw_curves(frame: pd.DataFrame) -> Any:
    """Draw lines with 95 % intervals over the number of heads, one a column."""
    data = long_form(frame, ["heads"])
    if data.empty:
        return None
    series = alt.Color("of:N", sort=None, title=None)
    base = alt.Chart(data).encode(alt.X("heads:Q", axis=alt.Axis(tickMinStep=1)), color=series)
    lines = base.mark_line(point=True).encode(alt.Y("score:Q"))
    return (base.mark_rule(opacity=0.5).encode(y="low:Q", y2="high:Q") + lines).properties(
        width=460, height=300
    )


def draw_bars(frame: pd.DataFrame) -> Any:
    """Draw bars for each benchmark, with 95 % intervals, and a mark where guessing lies."""
    data = long_form(frame, ["model", "heads knocked out"]) if len(frame) else frame
    if data.empty:
        return None
    kind, beside = "heads knocked out", alt.XOffset("heads knocked out:N", sort=None)
    base = alt.Chart(data)
    x = alt.X("of:N", sort=None, title=None)
    measured = base.transform_filter(alt.datum[kind] != GUESSING).encode(x, xOffset=beside)
    color = alt.Color(f"{kind}:N", sort=None)
    drawn = measured.mark_bar().encode(alt.Y("score:Q"), color=color)
    errors = measured.mark_rule().encode(alt.Y("low:Q", title="score"), y2="high:Q")
    guessed = base.transform_filter(alt.datum[kind] == GUESSING).encode(x)
    marks = guessed.mark_tick(color="black", thickness=2, width=50).encode(y="score:Q")
    layers = alt.layer(drawn, errors, marks).properties(height=260, width=460)
    return layers.facet(alt.Facet("model:N", title=None), columns=1)
