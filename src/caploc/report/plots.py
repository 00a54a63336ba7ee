"""What the page draws: effects, scores before and after, the curve, and what more rows would do."""

from collections.abc import Mapping, Sequence
from typing import Any

from caploc.contents import Curve
from caploc.report.charts import (
    NOTE,
    ROW,
    Chart,
    Spec,
    by_series,
    chart,
    horizontal_channel,
    named_rows,
    rows_of,
)
from caploc.report.headtable import HeadRow
from caploc.report.reading import called_apart, counted, finite_numbers
from caploc.report.scores import ScoreRow
from caploc.report.units import ScoreKind, Unit, unit_of, unit_of_other
from caploc.result import Result, Score

RULE = {"type": "rule", "aria": False}  # says nothing of its own at the pointer
LINE = {"type": "line", "aria": False}
ZERO = {"color": "var(--quiet)", "strokeDash": [3, 3]}
POINT = {"size": 70, "filled": True, "opacity": 1}
MOST_TICKS = 12
WHEN = {"intact": "var(--ink)", "knocked out": "var(--needed)"}


def draw_effects(rows: Sequence[HeadRow], unit: Unit, estimand: str) -> Chart | None:
    """Draw `effects_spec` for the page."""
    spec = effects_spec(rows, unit, estimand)
    count = sum(finite_numbers([row.number]) != [] for row in rows)
    summary = f"Effects of {counted(count, 'head')} with their intervals; the numbers are in "
    return None if spec is None else chart(f"{summary}the table below.", spec)


def effects_spec(rows: Sequence[HeadRow], unit: Unit, estimand: str) -> Spec | None:
    """Each listed head's effect with its interval, the most needed first; None without effects."""
    factor = unit.factor
    values = [
        {
            "name": row.head,
            "effect": factor * row.number,
            "low": None if row.low is None else factor * row.low,
            "high": None if row.high is None else factor * row.high,
            "series": "named" if row.standing.named else "not named",
            "noteOf": f"{row.head}: {row.effect}"
            + (f"\n95\u00a0% interval {row.interval}" if row.low is not None else ""),
        }
        for row in rows
        if row.number is not None and finite_numbers([row.number])
    ]
    if not values:
        return None
    y = named_rows([str(value["name"]) for value in values])
    x = horizontal_channel("effect", f"effect {estimand} ({unit.axis})")
    kinds: dict[str, Any] = {"field": "series", "type": "nominal", "legend": {}}
    kinds["scale"] = {
        "domain": ["named", "not named"],
        "range": ["var(--needed)", "var(--quiet)"],
    }
    bars = {
        "mark": {**RULE, "strokeWidth": 2},
        "encoding": {"y": y, "x": {**x, "field": "low"}, "x2": {"field": "high"}, "color": kinds},
    }
    shapes = {**kinds, "scale": {**kinds["scale"], "range": ["circle", "diamond"]}}
    dots = {
        "mark": {"type": "point", **POINT},
        "encoding": {"y": y, "x": x, "color": kinds, "shape": shapes, "description": NOTE},
    }
    layers = [_line_at(0.0, "x"), *([bars] if _any(values, "low") else []), dots]
    return {"data": rows_of(values), "height": {"step": ROW}, "layer": layers}


def _any(values: Sequence[Mapping[str, Any]], field: str) -> bool:
    return any(value[field] is not None for value in values)


def _line_at(value: float, channel: str) -> dict[str, Any]:
    """A dashed line to compare with."""
    return {
        "data": rows_of([{"at": value}]),
        "mark": {**RULE, **ZERO},
        "encoding": {channel: {"field": "at", "type": "quantitative"}},
    }


def draw_scores(rows: Sequence[ScoreRow]) -> list[Chart]:
    """Draw `scores_specs` for the page."""
    summary = "Scores before and after the knockout; the numbers are in the table below."
    return [chart(summary, spec) for spec in scores_specs(rows)]


def scores_specs(rows: Sequence[ScoreRow]) -> list[Spec]:
    """Scores before and after, a chart for each unit; random draws are short lines."""
    measures = dict.fromkeys(row.unit.measure for row in rows)
    specs = [_scores([row for row in rows if row.unit.measure == each]) for each in measures]
    return [spec for spec in specs if spec is not None]


def _scores(rows: Sequence[ScoreRow]) -> Spec | None:
    unit = rows[0].unit
    factor = unit.factor
    points = [value for row in rows for value in _points(row, factor)]
    if not points:
        return None
    y = named_rows([row.short for row in rows])
    scale = {"domain": [0, 100]} if unit.kind is ScoreKind.SHARE else {"zero": True}
    x = horizontal_channel("score", f"score ({unit.measure})", **scale)
    draws = [
        {
            "name": row.short,
            "score": factor * score,
            "noteOf": f"{row.short}\none draw: {unit.score(score)}",
        }
        for row in rows
        for score in row.draws
    ]
    kinds: dict[str, Any] = {"field": "series", "type": "nominal", "legend": {}}
    kinds["scale"] = {"domain": list(WHEN), "range": list(WHEN.values())}
    shapes = {**kinds, "scale": {"domain": list(WHEN), "range": ["diamond", "circle"]}}
    ends = [
        {"name": row.short, "score": factor * before, "after": factor * after}
        for row in rows
        for before, after in [(row.points[0].score, row.points[1].score)]
        if before is not None and after is not None
    ]
    layers = [
        _spans(ends, y, x, "after", {"color": "var(--line)", "strokeWidth": 3}),
        _ticks(draws, y, x),
        _spans(points, y, {**x, "field": "low"}, "high", {"strokeWidth": 2}, color=kinds),
        {
            "data": rows_of(points),
            "mark": {"type": "point", **POINT},
            "encoding": {"y": y, "x": x, "color": kinds, "shape": shapes, "description": NOTE},
        },
    ]
    return {"height": {"step": 30}, "layer": [layer for layer in layers if layer]}


def _points(row: ScoreRow, factor: int) -> list[dict[str, Any]]:
    said = {"intact": row.intact, "knocked out": row.knocked_out}
    return [
        {
            "name": row.short,
            "series": when,
            "score": factor * point.score,
            "low": factor * (point.score - (point.error or 0.0)),
            "high": factor * (point.score + (point.error or 0.0)),
            "noteOf": f"{row.short}\n{when}: {said[when]}",
        }
        for when, point in zip(WHEN, row.points, strict=True)
        if point.score is not None and finite_numbers([point.score])
    ]


def _spans(
    values: Sequence[Mapping[str, Any]],
    y: Mapping[str, Any],
    x: Mapping[str, Any],
    end: str,
    style: Mapping[str, Any],
    **channels: Any,
) -> dict[str, Any] | None:
    """Horizontal lines between two fields."""
    if not values:
        return None
    return {
        "data": rows_of(values),
        "mark": {**RULE, **style},
        "encoding": {"y": y, "x": x, "x2": {"field": end}, **channels},
    }


def _ticks(
    values: Sequence[Mapping[str, Any]], y: Mapping[str, Any], x: Mapping[str, Any]
) -> dict[str, Any] | None:
    if not values:
        return None
    return {
        "data": rows_of(values),
        "mark": {"type": "tick", "color": "var(--quiet)", "thickness": 2, "size": 16},
        "encoding": {"y": y, "x": x, "description": NOTE},
    }


def units_by_task(result: Result) -> dict[str, Unit]:
    """How the scores of each task of the run are written."""
    main = unit_of(result)
    units = {result.task.name: main}
    for entry in result.validation.other_tasks:
        units.setdefault(entry.name, unit_of_other(entry, main))
    return units


def draw_curve(drawn: Curve, units: Mapping[str, Unit]) -> list[Chart]:
    """Draw `curve_specs` for the page."""
    summary = "Scores with 0, 1, 2 and more heads knocked out; the numbers are in the table below."
    return [chart(summary, spec) for spec in curve_specs(drawn, units)]


def curve_specs(drawn: Curve, units: Mapping[str, Unit]) -> list[Spec]:
    """Score against number of heads knocked out, a line a task and a chart for each unit."""
    curves = drawn.curves
    kinds: dict[tuple[ScoreKind, str], list[dict[str, Any]]] = {}
    names = called_apart(curves)
    for task, points in curves.items():
        unit = units.get(task) or Unit(ScoreKind.PLAIN, "score")
        values = _curve_points(names[task], points, drawn.heads, unit)
        kinds.setdefault((unit.kind, unit.measure), []).extend(values)
    return [_curve(values, kind) for kind, values in kinds.items() if values]


def _curve_points(
    task: str, points: Sequence[Score], heads: Sequence[str], unit: Unit
) -> list[dict[str, Any]]:
    values = []
    for count, point in enumerate(points):
        score, error = point.score, point.stderr or 0.0
        if score is None:
            continue
        last = f", last {heads[count - 1]}" if 0 < count <= len(heads) else ""
        values.append(
            {
                "heads": count,
                "score": unit.factor * score,
                "low": unit.factor * (score - error),
                "high": unit.factor * (score + error),
                "series": task,
                "noteOf": f"{task}\n{counted(count, 'head')} knocked out{last}: "
                f"{unit.score(score)}",
            }
        )
    return values


def _curve(values: list[dict[str, Any]], kind: tuple[ScoreKind, str]) -> Spec:
    names = list(dict.fromkeys(str(value["series"]) for value in values))
    x = horizontal_channel("heads", "heads knocked out, most needed first", nice=False)
    most = max(value["heads"] for value in values)
    x["axis"] = {"format": "d", "values": list(range(0, most + 1, -(-most // MOST_TICKS) or 1))}
    scale = {"domain": [0, 100]} if kind[0] is ScoreKind.SHARE else {"zero": False}
    y = horizontal_channel("score", f"score ({kind[1]})", **scale)
    series = by_series(names)
    colour = {**series["color"], "legend": {}}
    layers = [
        {"mark": {**LINE, "strokeWidth": 2}, "encoding": {"x": x, "y": y, "color": colour}},
        {
            "mark": {**RULE, "strokeWidth": 1.5},
            "encoding": {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}}
            | {"color": colour},
        },
        {
            "mark": {"type": "point", **POINT},
            "encoding": {"x": x, "y": y, "color": colour, "description": NOTE}
            | {"shape": {**series["shape"], "legend": {}}},
        },
    ]
    return {"data": rows_of(values), "height": 260, "layer": layers}


def draw_shares(points: Sequence[tuple[float, float]], wanted: float | None, label: str) -> Chart:
    """A share against the rows measured, 1 being those of the run; a line where it should be."""
    values = [
        {
            "rows": factor,
            "share": 100 * share,
            "noteOf": f"{factor:g} times the rows: {100 * share:.0f}\u00a0%",
        }
        for factor, share in points
    ]
    x = horizontal_channel(
        "rows", "rows, as multiples of this run's", type="log", base=2, nice=False
    )
    x["axis"] = {"values": [factor for factor, _ in points], "format": "~g"}
    y = horizontal_channel("share", f"{label} (%)", domain=[0, 100])
    layers: list[dict[str, Any]] = [
        {
            "mark": {**LINE, "color": "var(--series-1)", "strokeWidth": 2},
            "encoding": {"x": x, "y": y},
        },
        {
            "mark": {"type": "point", "color": "var(--series-1)", **POINT},
            "encoding": {"x": x, "y": y, "description": NOTE},
        },
    ]
    if wanted is not None:
        layers.append(_line_at(100 * wanted, "y"))
    said = ", ".join(str(value["noteOf"]) for value in values)
    return chart(f"{label}: {said}.", {"data": rows_of(values), "height": 150, "layer": layers})


def draw_ratio(ratio: float, low: float | None, high: float | None) -> Chart:
    """The drop of all heads together over the sum of their drops alone, beside 1."""
    value = {"name": "together / alone", "ratio": ratio, "low": low, "high": high}
    value["noteOf"] = f"together over alone: {ratio:.2g}"
    y = {**named_rows(["together / alone"]), "axis": None}
    x = horizontal_channel("ratio", "drop together over the sum of drops alone", zero=True)
    layers: list[dict[str, Any]] = [_line_at(1.0, "x")]
    if low is not None and high is not None:
        layers.append(
            {
                "mark": {**RULE, "color": "var(--series-1)", "strokeWidth": 2},
                "encoding": {"y": y, "x": {**x, "field": "low"}, "x2": {"field": "high"}},
            }
        )
    layers.append(
        {
            "mark": {"type": "point", "color": "var(--series-1)", **POINT},
            "encoding": {"y": y, "x": x, "description": NOTE},
        }
    )
    summary = f"The drop of all heads together is {ratio:.2g} times the sum of their drops alone."
    return chart(summary, {"data": rows_of([value]), "height": {"step": ROW}, "layer": layers})
