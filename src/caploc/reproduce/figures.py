"""The paper's figures 1 to 4, as tables and as pictures."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from caploc.heads import Head
from caploc.report import drawing
from caploc.report.exhibits import NOTHING, Cell, Exhibit, Value
from caploc.reproduce import published
from caploc.reproduce.preset import KNOWLEDGE, Benchmark, PresetModel
from caploc.reproduce.selection import (
    Lab,
    average,
    fill_exhibit,
    format_score,
    knowledge_heads,
    mean,
    named_heads,
    score_value,
)
from caploc.reproduce.tables import leading

SHOWN = 2  # heads of a model in figure 3; the paper finds one or two
FEWEST_AXES = 3  # of a radar


def fig1(lab: Lab) -> Exhibit:
    """Every benchmark, intact and with one capability's heads gone."""
    preset, model = lab.preset, lab.preset.leader
    axes = [benchmark for benchmark in preset.benchmarks if benchmark.group != KNOWLEDGE]
    sets: dict[str, tuple[str, list[Head]]] = {"intact": ("", [])}
    for benchmark in leading(preset.capabilities):
        sets[f"{benchmark.label} heads"] = (benchmark.label, named_heads(lab, model, benchmark))
    rows: list[tuple[Cell, ...]] = [
        (name, *row_of(lab, model, axes, heads, source)) for name, (source, heads) in sets.items()
    ]
    columns = tuple(benchmark.label for benchmark in axes)
    if len(axes) < FEWEST_AXES:
        few = ["Too few benchmarks for a picture."]
        return fill_exhibit(lab, "fig1", rows, columns=columns, before=few)
    scaled = ["In the picture every axis is a share of the intact score."]
    draw = partial(drawing.radar, columns, shares_of_first(rows))
    return replace(fill_exhibit(lab, "fig1", rows, columns=columns, before=scaled), draw=draw)


def row_of(
    lab: Lab, model: PresetModel, benchmarks: Sequence[Benchmark], heads: list[Head], source: str
) -> list[Value]:
    """Scores of the benchmarks; `source` is the benchmark that the heads were found on."""
    return [
        score_value(
            format_score(lab, model, benchmark, heads),
            published.published_score(model.label, source, len(heads), [benchmark.label]),
        )
        for benchmark in benchmarks
    ]


def named_series(rows: Sequence[tuple[Cell, ...]]) -> dict[str, list[tuple[float | None, float]]]:
    """The numbers of each row and their errors, by its name."""
    return {
        str(name): [(v.number, v.stderr or 0.0) for v in cells if isinstance(v, Value)]
        for name, *cells in rows
    }


def shares_of_first(rows: Sequence[tuple[Cell, ...]]) -> dict[str, list[float | None]]:
    """Each number as a share of the first row's, by name; None where either is missing."""
    series = named_series(rows)
    wholes = [number for number, _ in next(iter(series.values()))]
    return {
        name: [
            number / whole if number is not None and whole else None
            for (number, _), whole in zip(values, wholes, strict=True)
        ]
        for name, values in series.items()
    }


def fig2(lab: Lab) -> Exhibit:
    """Score against the number of heads knocked out, one benchmark's, one after another."""
    preset, model = lab.preset, lab.preset.leader
    source = preset.localized[0]
    heads = named_heads(lab, model, source, count=preset.most)
    lines = {twin.label: [twin] for twin in preset.kindred(source)}
    if code := [b for b in preset.of_group("code") if b.label not in lines]:
        lines["code"] = code
    lines["general"] = list(preset.general)
    rows: list[tuple[Cell, ...]] = []
    for count in range(len(heads) + 1):
        gone = heads[:count]
        cells = [
            score_value(
                mean(lab, model, group, gone),
                published.published_score(
                    model.label, source.label, count, [b.label for b in group]
                ),
            )
            for group in lines.values()
        ]
        rows.append((str(count), str(gone[-1]) if gone else NOTHING, *cells))
    scores = {
        name: [
            (count, row[2 + place].number, row[2 + place].stderr)  # type: ignore[union-attr]
            for count, row in enumerate(rows)
        ]
        for place, name in enumerate(lines)
    }
    draw = partial(drawing.curves, scores, across="heads knocked out", up="score", zero=True)
    filled = fill_exhibit(lab, "fig2", rows, columns=lines, source=source.label)
    return replace(filled, draw=draw)


@dataclass(frozen=True)
class Bar:
    """One bar of every group: a model without some heads, which the paper calls by `key`."""

    model: PresetModel
    what: str
    key: str
    heads: list[Head]


def fig3(lab: Lab) -> Exhibit:
    """Single heads that knowledge questions share, on every model that has some."""
    bars: list[Bar] = []
    for model in lab.preset.models:
        heads = knowledge_heads(lab, model)[:SHOWN]
        bars += [Bar(model, "intact", "", [])] if heads else []
        bars += [Bar(model, str(head), str(head), [head]) for head in heads]
    notes = [f"At most {SHOWN} heads of a model, those of the most subjects."]
    if not bars:
        subjects = ", ".join(subject.label for subject in lab.preset.subjects) or "no subject"
        notes = [f"No head is among the first {lab.preset.top} of two of {subjects}."]
    return knowledge_bars(lab, "fig3", bars, notes)


def fig4(lab: Lab) -> Exhibit:
    """Each subject's own heads, on the first model."""
    model = lab.preset.leader
    bars = [
        Bar(model, f"{subject.label} heads", subject.label, named_heads(lab, model, subject))
        for subject in lab.preset.subjects
    ]
    if not bars:
        return knowledge_bars(lab, "fig4", [], ["There is no subject of knowledge."])
    bars.insert(0, Bar(model, "intact", "", []))
    return knowledge_bars(lab, "fig4", bars, [f"On {model.label} only."])


def knowledge_bars(lab: Lab, name: str, bars: Sequence[Bar], notes: list[str]) -> Exhibit:
    """Bars over the subjects, the other questions with choices, and the rest of the general ones.

    The paper's general score in these figures leaves out MMLU, which stands beside it.
    """
    preset = lab.preset
    groups = {b.label: [b] for b in preset.benchmarks if b.group == KNOWLEDGE or b.choice}
    groups["general"] = [benchmark for benchmark in preset.general if not benchmark.choice]
    several = len({bar.model.label for bar in bars}) > 1
    rows: list[tuple[Cell, ...]] = []
    guessing: list[Value] = []
    for bar in bars:
        key = (bar.model.label, bar.key, len(bar.heads))
        cells = [
            score_value(
                mean(lab, bar.model, group, bar.heads),
                published.knowledge(*key, [b.label for b in group]),
            )
            for group in groups.values()
        ]
        guessing = [guessed(lab, bar, group) for group in groups.values()]
        rows.append((f"{bar.model.label}, {bar.what}" if several else bar.what, *cells))
    chances = [value.number for value in guessing]
    ways = {"up": "score", "mark": "guessing"}
    draw = partial(drawing.draw_bars, tuple(groups), named_series(rows), chances, **ways)
    rows += [("guessing", *guessing)] if rows else []
    filled = fill_exhibit(lab, name, rows, columns=groups, before=notes)
    return replace(filled, draw=draw) if rows else filled


def guessed(lab: Lab, bar: Bar, benchmarks: Sequence[Benchmark]) -> Value:
    """The mean score of guessing, if there is something to guess among in every benchmark."""
    chances = [lab.score(bar.model, b, bar.heads).chance for b in benchmarks]
    return Value(average(chance or None for chance in chances))
