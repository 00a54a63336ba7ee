"""What pages and figure files draw: the map, effects, scores, curves, and runs side by side."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from caploc.contents import Curve
from caploc.frontiers import find_worst
from caploc.report.charts import (
    Chart,
    Picture,
    Spec,
    by_series,
    chart,
    fill_spec,
    shade_scale,
    shortened,
)
from caploc.report.headtable import HeadRow, Standing, head_table, standings
from caploc.report.scores import ScoreRow, comparisons
from caploc.report.wording import (
    ScoreKind,
    Unit,
    called,
    called_apart,
    counted,
    inline,
    outcome_unit,
    unit_of,
    unit_of_other,
)
from caploc.result import Result, Score

FIGURES = "figures"  # folder of a run
NAMES = ("heads", "effects", "scores", "curve")
MOST_TICKS = 12
CELL, SMALL_CELL = 18, 9  # pixels of a head; the small ones of large maps
MOST_LARGE = 24  # layers or heads a layer that are drawn large
MOST_COLUMNS = 40  # of a matrix; with more, those of the largest effects are drawn
MARKS = (
    "bold: knocked out in the check",
    "outlined: selected",
    "dot: breaks the task alone",
    "cross: breaks another task too",
)

Row = dict[str, Any]


def effects_spec(rows: Sequence[HeadRow], unit: Unit, estimand: str) -> Spec | None:
    """Return each listed head's effect with its interval, most needed first; None without any."""
    values: list[Row] = []
    for row in rows:
        entry = row.standing.entry
        effect, low, high = entry.effect, entry.low, entry.high
        if effect is None:
            continue
        drawn: Row = {"effect": unit.factor * effect, "low": None, "high": None}
        drawn |= {"name": row.head, "series": "named" if row.standing.named else "not named"}
        drawn["noteOf"] = f"{row.head}: {row.effect}"
        if low is not None and high is not None:
            drawn |= {"low": unit.factor * low, "high": unit.factor * high}
            drawn["noteOf"] += f"\n95\u00a0% interval {row.interval}"
        values.append(drawn)
    if not values:
        return None
    return fill_spec(
        "effects",
        rows=values,
        names=[value["name"] for value in values],
        title=f"effect {estimand} ({unit.axis})",
        intervals=any(value["low"] is not None for value in values),
    )


def draw_effects(rows: Sequence[HeadRow], unit: Unit, estimand: str) -> Chart | None:
    """Draw `effects_spec` for the page."""
    spec = effects_spec(rows, unit, estimand)
    if spec is None:
        return None
    count = counted(len(spec["data"]["values"]), "head")
    summary = f"Effects of {count} with their intervals; the numbers are in the table below."
    return chart(summary, spec)


def draw_frontier(result: Result) -> Chart | None:
    """Draw what each set takes of the task over what it costs elsewhere; None without two sets."""
    frontier, unit = result.validation.frontier, unit_of(result)
    if frontier is None or len(frontier.sets) < 2:
        return None
    kinds = ["named", "within the price", "not surely within"]
    rows: list[Row] = []
    for one in frontier.sets:
        worst = find_worst(one.spared)
        if one.damage.effect is None or worst is None:
            continue
        kind = kinds[1] if one.within else kinds[2]
        (taken, high, low), (lost, most, least) = (
            [None if x is None else -unit.factor * x for x in (each.effect, each.low, each.high)]
            for each in (one.damage, worst.effect)
        )
        row: Row = {"taken": taken, "low": low, "high": high}
        row |= {"lost": lost, "least": least, "most": most}
        row["series"] = kinds[0] if set(one.heads) == set(result.top) else kind
        note = f"{' '.join(one.heads)}: takes {taken:.3g}, and costs {lost:.3g} elsewhere"
        rows.append(row | {"noteOf": note})
    spec = fill_spec(
        "frontier",
        rows=rows,
        price=[{"at": unit.factor * (frontier.price or 0.0)}],
        lost=f"lost by the task that loses most ({unit.axis})",
        taken=f"taken from {called(result.task.name)} ({unit.axis})",
        kinds=kinds,
    )
    return chart(f"{counted(len(rows), 'set')} of heads; the numbers are in the table below.", spec)


def _span(unit: Unit, score: float, error: float | None) -> Row:
    """A score and what lies an error to each side of it, as they are drawn."""
    ends = {"low": score - (error or 0.0), "score": score, "high": score + (error or 0.0)}
    return {name: unit.factor * value for name, value in ends.items()}


def _score_scale(kind: ScoreKind, measure: str, **plain: Any) -> dict[str, Any]:
    """The scale of scores: shares from 0 to 100, others as told."""
    ends = {"domain": [0, 100]} if kind is ScoreKind.SHARE else plain
    return {"title": f"score ({measure})", "scale": {"nice": True} | ends}


def scores_specs(rows: Sequence[ScoreRow]) -> list[Spec]:
    """Return scores before and after, a chart for each unit; random draws are short lines."""
    specs: list[Spec] = []
    for measure in dict.fromkeys(row.unit.measure for row in rows):
        group = [row for row in rows if row.unit.measure == measure]
        unit, points, ends = group[0].unit, [], []
        for row in group:
            texts = {"intact": row.intact, "knocked out": row.knocked_out}
            before, after = (point.score for point in row.points)
            if before is not None and after is not None:
                score, knocked_out = unit.factor * before, unit.factor * after
                ends.append({"name": row.short, "score": score, "after": knocked_out})
            points += [
                _span(unit, point.score, point.stderr)
                | {"name": row.short, "series": when, "noteOf": f"{row.short}\n{when}: {text}"}
                for (when, text), point in zip(texts.items(), row.points, strict=True)
                if point.score is not None
            ]
        draws = [
            {"name": row.short, "score": unit.factor * score}
            | {"noteOf": f"{row.short}\none draw: {unit.score(score)}"}
            for row in group
            for score in row.draws
        ]
        if points:
            names = [row.short for row in group]
            scale = _score_scale(unit.kind, measure, zero=True)
            spec = fill_spec("scores", rows=points, names=names, ends=ends, draws=draws, **scale)
            specs.append(spec)
    return specs


def units_by_task(result: Result) -> dict[str, Unit]:
    """Return how the scores of each task of the run are written."""
    main = unit_of(result)
    units = {result.task.name: main}
    for entry in result.validation.other_tasks:
        units.setdefault(entry.name, unit_of_other(entry, main))
    return units


def curve_specs(drawn: Curve, units: Mapping[str, Unit]) -> list[Spec]:
    """Return score against number of heads knocked out, a line a task, a chart for each unit."""
    kinds: dict[tuple[ScoreKind, str], list[Row]] = {}
    names = called_apart(drawn.curves)
    for task, points in drawn.curves.items():
        unit = units.get(task) or Unit(ScoreKind.PLAIN, "score")
        values = _curve_points(names[task], points, drawn.heads, unit)
        kinds.setdefault((unit.kind, unit.measure), []).extend(values)
    specs: list[Spec] = []
    for axis, values in kinds.items():
        if values:
            most = max(value["heads"] for value in values)
            ticks = list(range(0, most + 1, -(-most // MOST_TICKS) or 1))
            looks = by_series(list(dict.fromkeys(str(value["series"]) for value in values)))
            scale = _score_scale(*axis, zero=False)
            specs.append(fill_spec("curve", rows=values, ticks=ticks, **scale, **looks))
    return specs


def _curve_points(
    task: str, points: Sequence[Score], heads: Sequence[str], unit: Unit
) -> list[Row]:
    values = []
    for count, point in enumerate(points):
        if point.score is not None:
            last = f", last {heads[count - 1]}" if 0 < count <= len(heads) else ""
            text = f"{counted(count, 'head')} knocked out{last}: {unit.score(point.score)}"
            row = {"heads": count, "series": task, "noteOf": f"{task}\n{text}"}
            values.append(row | _span(unit, point.score, point.stderr))
    return values


def draw_shares(points: Sequence[tuple[float, float]], wanted: float | None, label: str) -> Chart:
    """Draw a share against the rows measured, 1 being those of the run; a line at the wanted."""
    notes = [f"{factor:g} times the rows: {100 * share:.0f}\u00a0%" for factor, share in points]
    spec = fill_spec(
        "shares",
        rows=[
            {"rows": factor, "share": 100 * share, "noteOf": note}
            for (factor, share), note in zip(points, notes, strict=True)
        ],
        factors=[factor for factor, _ in points],
        title=f"{label} (%)",
        wanted=[] if wanted is None else [{"at": 100 * wanted}],
    )
    return chart(f"{label}: {', '.join(notes)}.", spec)


def draw_ratio(ratio: float, low: float | None, high: float | None) -> Chart:
    """Draw the drop of all heads together over the sum of their drops alone, beside 1."""
    value = {"name": "together / alone", "ratio": ratio, "low": low, "high": high}
    value["noteOf"] = f"together over alone: {ratio:.2g}"
    summary = f"The drop of all heads together is {ratio:.2g} times the sum of their drops alone."
    return chart(summary, fill_spec("ratio", rows=[value], interval=None not in (low, high)))


def heads_spec(result: Result) -> Spec:
    """Return the map of effects, layers by heads; marks say what is known of a head besides."""
    unit, grid = outcome_unit(result), result.grid.grid()
    cells: list[Row] = []
    for standing in standings(result).values():
        entry, effect, mark = standing.entry, standing.entry.effect, _mark(standing)
        if effect is not None:
            effect = 0.0 if entry.is_open else unit.factor * effect
        cells.append({"layer": entry.layer, "head": entry.index, "mark": mark, "effect": effect})
    effects = [cell["effect"] for cell in cells]
    step = CELL if max(grid.layers, *grid.heads_per_layer, 1) <= MOST_LARGE else SMALL_CELL
    limit = min(_largest(effects), 1e300) or 1.0
    marks = [text for text in MARKS if any(cell["mark"] == text for cell in cells)]
    unmeasured = ["–: not measured"] if None in effects else []
    if any(entry.is_open for entry in result.heads):
        unmeasured.append("no colour: the interval holds 0")
    return fill_spec(
        "heads",
        rows=cells,
        title=shortened(f"{called(result.task.name)} in {called(result.model.shown)}"),
        marks=marks + unmeasured,
        step=step,
        size=step**2 / 8,
        small=step / 2,
        legend=f"change ({unit.axis})",
        **shade_scale(limit),
    )


def _mark(standing: Standing) -> str | None:
    """Return the weightiest mark of a head, or none."""
    bold, outlined, dot, cross = MARKS
    if standing.universal is True:
        return cross
    if standing.named:
        return bold
    return dot if standing.critical else outlined if standing.selected else None


def _largest(effects: Iterable[float | None]) -> float:
    return max((abs(effect) for effect in effects if effect is not None), default=0.0)


def matrix_spec(matrix: Mapping[str, Any], tops: Mapping[str, Sequence[str]]) -> Spec:
    """Return each run's effects of the heads that any of them names; a dot marks its own.

    Shades are relative to the run's largest effect, so that tasks of different units can stand in
    one picture. Of too many columns, those of the largest effects are drawn.
    """
    rows, every = matrix["rows"], range(len(matrix["heads"]))
    sizes = [_largest(row["effects"][column] for row in rows) for column in every]
    drawn = sorted(sorted(every, key=lambda column: -sizes[column])[:MOST_COLUMNS])
    cells = []
    for row in rows:
        effects, run = row["effects"], shortened(row["run"], 30)
        limit = _largest(effects) or 1.0
        for column in drawn:
            effect, head = effects[column], matrix["heads"][column]
            share = None if effect is None else effect / limit
            own = head in tops[row["run"]]
            cells.append({"run": run, "head": inline(head), "own": own, "share": share})
    return fill_spec("matrix", rows=cells, **shade_scale(1.0))


def draw_damage(
    runs: Sequence[Mapping[str, Any]], labels: Mapping[str, str], unit: Unit
) -> Chart | None:
    """Draw the score without each run's heads against the rows it took; lower has found more."""
    values = [
        {
            "rows": run["rows"],
            "score": unit.factor * run["knocked_out"],
            "series": labels[run["name"]],
            "noteOf": f"{labels[run['name']]}: {unit.score(run['knocked_out'])} after "
            f"{run['rows']:,.0f} rows",
        }
        for run in runs
        if run["rows"] and run["knocked_out"] is not None
    ]
    if not values:
        return None
    title = f"score without its heads ({unit.measure})"
    series = by_series([value["series"] for value in values])
    spec = fill_spec("damage", rows=values, title=title, **series)
    return chart("Score without each run's heads against the rows it took; see the table.", spec)


def draw_depths(models: Sequence[Mapping[str, Any]], labels: Sequence[str]) -> Chart | None:
    """Draw where the named heads lie between the first layer and the last, a row a model."""
    values = [
        {"name": label, "depth": 100 * depth, "noteOf": f"{label}: {inline(head)}"}
        for each, label in zip(models, labels, strict=True)
        for head, depth in each["depths"].items()
    ]
    if not values:
        return None
    spec = fill_spec("depths", rows=values, names=list(labels))
    return chart("Depth of each model's named heads; the heads are in the table below.", spec)


def write_figures(folder: Path, result: Result, curve: Curve | None) -> None:
    """Write the figures of a run into `folder`, each as PNG and as PDF.

    `heads` is the map, `effects` the listed heads with intervals, `scores` the task before and
    after beside random heads and other tasks, and `curve` what `caploc curve` measured. Raises
    OSError if the folder or a file cannot be written.
    """
    unit, estimand = outcome_unit(result), result.estimand.heads
    effects = effects_spec(head_table(result).rows, unit, estimand)
    parts = {
        "heads": [heads_spec(result)],
        "effects": [] if effects is None else [effects],
        "scores": scores_specs(comparisons(result)),
        "curve": [] if curve is None else curve_specs(curve, units_by_task(result)),
    }
    for name, specs in parts.items():
        if specs:
            Picture.of(specs).save(folder / name)


def write_matrices(folder: Path, told: Mapping[str, Any]) -> list[str]:
    """Write a picture for each model whose runs name a head; their names, without endings.

    Raises OSError if the folder or a file cannot be written.
    """
    tops = {run["name"]: run["top"] for run in told["runs"]}
    matrices = [each["matrix"] for each in told["models"] if each["matrix"]["heads"]]
    names = ["matrix" if not place else f"matrix-{place + 1}" for place in range(len(matrices))]
    for name, matrix in zip(names, matrices, strict=True):
        Picture.of([matrix_spec(matrix, tops)]).save(folder / name)
    return names


def drawn_figures(folder: Path) -> list[str]:
    """Name, without endings, the figures that lie in a run's folder."""
    return [name for name in NAMES if (folder / FIGURES / f"{name}.pdf").exists()]
