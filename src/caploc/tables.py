"""The tables that commands print, from results: headings, rows and, mostly, a title."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from caploc import console
from caploc.contents import Curve, TaskScores
from caploc.report.method import format_duration
from caploc.report.scores import lost
from caploc.result import Effect, Frontier, HeadEffect, Members, Result
from caploc.validation.frontier import find_unbroken, find_worst

if TYPE_CHECKING:  # it would load torch, which help and completion do without
    from caploc.studies.running import Outcome

MOST_SHOWN = 25  # interactions
MOST_HEADS = 10

Table = tuple[list[str], list[list[str]], str]  # headings, rows and title


def locate_table(results: Sequence[Result]) -> Table:
    """Tabulate what `locate` found."""
    others = [other.name for other in results[0].validation.other_tasks]
    headings = ["task", "method", "top heads", "intact", "knocked out", "random heads"]
    headings += [f"{name}, then" for name in others] + ["rows: search + checks"]
    rows = []
    for result in results:
        top, *figures, count = summary_row(result)
        pairs = [other.scores for other in result.validation.other_tasks]
        then = [" → ".join(map(console.figure, pair)) for pair in pairs]
        rows.append([result.task.name, result.method.name, top, *figures, *then, count])
    return headings, rows, results[0].model.name


def summary_row(result: Result) -> list[str]:
    """The named heads, the scores intact, without them and without random ones, and the rows.

    Scores are those on held-out examples, as of the controls, where there are any.
    """
    validation = result.validation
    held_out, controls = validation.held_out, validation.controls
    pair = validation.task.scores
    if held_out and held_out.fresh:
        pair = held_out.intact, held_out.knocked_out
    figures = [*pair, controls.mean if controls else None]
    cost = result.cost
    rows = "–" if cost.rows is None else f"{cost.rows:,}"
    if cost.rows is not None and cost.search_rows is not None:
        rows = f"{cost.search_rows:,} + {cost.rows - cost.search_rows:,}"
    return [" ".join(result.top) or "none found", *map(console.figure, figures), rows]


def heads_table(result: Result) -> Table:
    """Tabulate the first heads: what the search says, and the check of some.

    Effects of named heads are those of the check: alone, and beyond that of the others named.
    """
    members = result.validation.members or Members()
    checked = {member.head: (member.alone, member.within) for member in members.heads}
    listed = [each for each in result.heads if each.head in checked or each.effect is not None]
    listed.sort(key=lambda each: each.head not in checked)
    headings = ["", "head", result.estimand.heads, "95 % interval", "q"]
    headings += ["checked alone", "95 % interval", "within the set", "95 % interval"]
    rows = []
    for place, entry in enumerate(listed[: max(MOST_HEADS, len(checked))], 1):
        row = [str(place), entry.head, *effect_cells(entry), console.figure(entry.q)]
        row += [cell for effect in checked.get(entry.head, ()) for cell in effect_cells(effect)]
        rows.append(row + ["–"] * (len(headings) - len(row)))
    kind = "fresh examples" if members.fresh else "examples that the search has seen"
    note = (
        f"; those checked, on {members.examples} {kind}, are named" if checked else ", none named"
    )
    return headings, rows, f"{result.task.name}: the first heads{note}"


def effect_cells(effect: Effect | HeadEffect) -> list[str]:
    """Write an effect and its interval; a dash for what is not known."""
    known = effect.low is not None and effect.high is not None
    ends = (console.figure(end, True) for end in (effect.low, effect.high))
    return [console.figure(effect.effect, True), " to ".join(ends) if known else "–"]


def frontier_table(result: Result) -> Table:
    """Tabulate the sets found for `--goal specific`."""
    frontier = result.validation.frontier or Frontier()
    twins = any(one.twins for one in frontier.sets)
    headings = ["set", "damage", "95 % interval", *(["its twin", "95 % interval"] if twins else [])]
    headings += ["worst elsewhere", "95 % interval", "spares"]
    rows = []
    for one in frontier.sets:
        told = [find_unbroken(one.twins)] if twins else []
        told.append(find_worst(one.spared))
        effects = one.damage, *(each.effect if each else Effect() for each in told)
        cells = [cell for effect in effects for cell in effect_cells(effect)]
        rows.append([" ".join(one.heads), *cells, "yes" if one.within else "not surely"])
    price = f"{100 * (frontier.price or 0):g} points"
    title = f"{result.task.name}: sets that break it; spared tasks should lose {price} at most"
    return headings, rows, title


def evaluation_table(found: TaskScores) -> Table:
    """Tabulate what `evaluate` measured."""
    headings = ["task", "intact", "knocked out", "change", "examples", "lost"]
    rows = []
    for row in found.tasks:
        scores = map(console.format_score_error, (row.intact, row.knocked_out))
        change, moved = row.change, "–"  # of the outcome, and its standard error
        if change is not None and change.outcome is not None:
            error = "" if change.stderr is None else f" ± {change.stderr:.3f}"
            moved = f"{change.outcome:+.3f}{error}"
        examples = str(row.intact.examples if row.intact else None)
        rows.append([row.name, *scores, moved, examples, lost(row.failures) or "–"])
    heads = ", ".join(found.heads) or "nothing"
    return headings, rows, f"{found.model}, knocked out: {heads}"


def curve_rows(drawn: Curve) -> tuple[list[str], list[list[str]]]:
    """Tabulate a curve, one more head knocked out each row."""
    rows = [
        [head, *(console.figure(points[count].score) for points in drawn.curves.values())]
        for count, head in enumerate(["none", *drawn.heads])
    ]
    return ["knocked out, one more each line", *drawn.curves], rows


def interaction_table(told: dict[str, Any]) -> Table:
    """Tabulate what `interactions` found, the surest first."""
    headings = ["heads", "and", "contrast", "95 % interval", "q", "meaning"]
    rows = [
        [
            " ".join(row["first"]),
            " ".join(row["second"]),
            console.figure(row["effect"]),
            f"{console.figure(row['low'])} to {console.figure(row['high'])}",
            console.figure(row["q"]),
            row["meaning"],
        ]
        for row in told["interactions"][:MOST_SHOWN]
    ]
    left = len(told["interactions"]) - len(rows)
    more = f"; {left} more in the file" if left else ""
    return headings, rows, f"{told['examples']} examples{more}"


def universal_table(told: dict[str, Any]) -> Table:
    """Tabulate the candidates, with the share of each score that they cost."""
    names = list(dict.fromkeys(t["task"] for c in told["candidates"] for t in c["trials"]))
    rows = []
    for candidate in told["candidates"]:
        trials = {trial["task"]: trial for trial in candidate["trials"]}
        costs = []
        for trial in map(trials.get, names):
            star = "*" if trial and trial["verdict"] == "needed" else ""
            costs.append(f"{round(100 * trial['share'])} %{star}" if trial else "–")
        rows.append([candidate["head"], candidate["verdict"], *costs])
    title = f"{told['model']}: share of the score that one head alone costs; * beyond doubt"
    return ["head", "", *names], rows, title


def comparison_table(told: dict[str, Any]) -> Table:
    """Tabulate runs side by side."""
    headings = ["run", "task", "model", "method", "top heads", "intact", "knocked out", "rows"]
    rows = [
        [
            run["name"],
            run["task"],
            run["model"],
            run["method"],
            " ".join(run["top"]) or "none found",
            console.figure(run["intact"]),
            console.figure(run["knocked_out"]),
            "–" if run["rows"] is None else f"{run['rows']:,.0f}",
        ]
        for run in told["runs"]
    ]
    shared = [
        f"{model['model']}: {len(row['heads'])} heads of {row['tasks']} tasks or more "
        f"({row['chance']['expected']:.2g} by chance)"
        for model in told["models"]
        for row in model["shared"][:1]
    ]
    return headings, rows, "; ".join(shared) or "runs side by side"


def own_table(told: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Tabulate each run's heads, and of those left without universal ones."""
    rows = [[run["task"], " ".join(run["top"]), " ".join(run["own"])] for run in told["tasks"]]
    return ["task", "heads", "without universal ones"], rows


def plan_table(expected: list[dict[str, Any]]) -> Table:
    """Tabulate what a reproduction would take."""
    headings = ["model", "heads", "parameters", "masks", "rows", "tokens", "H200 hours"]
    rows = [
        [
            one["model"],
            f"{one['heads']:,}",
            f"{one['parameters'] / 1e9:.2f} B",
            f"{one['masks']:,}",
            f"{one['rows']:,}",
            f"{(one['read'] + one['said']) / 1e6:,.0f} M",
            f"{one['h200_hours']:,.1f}" if one["h200_hours"] >= 0.05 else "< 0.1",
        ]
        for one in expected
    ]
    return headings, rows, "From nothing, at rates that are assumed and not measured"


def studies_table(outcomes: "Sequence[Outcome]") -> Table:
    """Tabulate what became of several studies."""
    headings = ["study", "", "top heads", "intact", "knocked out", "random heads", "rows"]
    rows = []
    for outcome in outcomes:
        if outcome.result is None:
            rows.append([outcome.name, "failed", *["–"] * 5])
            continue
        done = "done before" if outcome.earlier else "done"
        rows.append([outcome.name, done, *summary_row(outcome.result)])
    failed = sum(outcome.result is None for outcome in outcomes)
    return headings, rows, f"{len(outcomes) - failed} of {len(outcomes)} studies done"


def study_plan_table(expected: dict[str, Any]) -> Table:
    """Tabulate what several studies will take."""
    headings = ["study", "rows", "stored", "shared", "tokens", "memory, GiB", "time"]
    rows = [plan_row(study["study"], study) for study in expected["studies"]]
    rows.append(plan_row("in all", expected["total"]))
    loading = expected["total"]["loading"]
    title = "At most; stored rows are not measured again, shared ones by an earlier study"
    if loading is None:
        return headings, rows, f"{title}; without calibration only rows are known"
    return headings, rows, f"{title}; loading ({format_duration(loading)}) is in the last line"


def plan_row(name: str, study: dict[str, Any]) -> list[str]:
    """A line of what one study, or all of them, will take."""
    if study.get("failure"):
        return [name, "cannot be", *["–"] * 5]
    tokens, memory = study["tokens"], study["memory"]
    return [
        name,
        "finished" if study.get("finished") else f"{study['rows']:,}",
        f"{study['stored']:,}",
        f"{study['shared']:,}",
        "–" if tokens is None else f"{tokens:,.0f}",
        "–" if memory is None else f"{memory / 2**30:.2f}",
        format_duration(study["seconds"]) or "–",
    ]
