"""The tables that commands print, from results: headings, rows and, mostly, a title."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from caploc.contents import TaskScores
from caploc.report.headtable import tabulate_frontier, write_effects
from caploc.report.method import ROWS, split_rows
from caploc.report.scores import describe_verdict, format_with_error, lost
from caploc.report.sentence import check_of
from caploc.report.wording import (
    SPACE,
    Unit,
    called,
    counted,
    outcome_unit,
    percent,
    unit_of,
    unit_of_metric,
    unit_of_other,
    unit_of_outcomes,
    write_q,
)
from caploc.result import Change, Effect, Frontier, Members, Result, Score

if TYPE_CHECKING:  # it would load torch, which help and completion do without
    from caploc.studies.running import Outcome

MOST_SHOWN = 25  # interactions
MOST_HEADS = 10
INTERVAL = "95 % interval"  # the heading of a column
# Those of what `summary_row` returns.
SUMMARY = ["top heads", "intact", "knocked out", "random heads", f"rows: {' + '.join(ROWS)}"]
UNIVERSAL = {"universal": "yes", "not universal": "no", "open": "open"}

Table = tuple[list[str], list[list[str]], str]  # headings, rows and title


def locate_table(results: Sequence[Result]) -> Table:
    """Tabulate what `locate` found."""
    rows = [
        [called(result.task.name), result.method.name, *summary_row(result)] for result in results
    ]
    return ["task", "method", *SUMMARY], rows, called(results[0].model.shown)


def others_table(result: Result) -> Table:
    """Tabulate what the named heads do to other tasks, and to this one in other words."""
    rows, main = [], unit_of(result)
    for other in result.validation.other_tasks:
        unit = unit_of_other(other, main)
        name = f"{called(other.name)}{', in other words' if other.twin else ''}"
        rows.append([name, *map(unit.score, other.scores), *write_change(other.change, unit)])
    headings, rows = join_intervals(["task", "intact", "knocked out", "change", INTERVAL], rows)
    return headings, rows, f"The other tasks without {' '.join(result.top)}"


def write_change(change: Change | None, unit: Unit) -> list[str]:
    """Write how a score of this unit changed, and the interval."""
    outcomes = unit_of_outcomes(unit)
    return [outcomes.effect(change.outcome if change else None), outcomes.interval(change) or "–"]


def join_intervals(headings: list[str], rows: list[list[str]]) -> tuple[list[str], list[list[str]]]:
    """Put each interval behind its effect, in one column of both: a terminal is narrow."""
    joined = []
    for row in (headings, *rows):
        cells: list[str] = []
        for heading, cell in zip(headings, row, strict=True):
            if heading == INTERVAL:
                end = "95 %" if row is headings else cell
                cells[-1] += "" if end in ("", "–") else f" ({end})"
            else:
                cells.append(cell.replace(f"{SPACE}points", ""))
        joined.append(cells)
    return joined[0], joined[1:]


def summary_row(result: Result) -> list[str]:
    """The named heads, the scores intact, without them and without random ones, and the rows.

    Scores are those of the headline: on held-out examples, as of the controls, where there are any.
    """
    check, controls = check_of(result), result.validation.controls
    pair = check.intact, check.knocked_out if result.top else None
    unit, figures = unit_of(result), [*pair, controls.mean if controls else None]
    counts = split_rows(result)
    rows = " + ".join(f"{count:,}" for count in counts) if counts else f"{result.cost.rows or '–'}"
    scores = ["–" if score is None else unit.score(score) for score in figures]
    return [" ".join(result.top) or "none found", *scores, rows]


def heads_table(result: Result) -> Table:
    """Tabulate the first heads: the check of those named, and what the search says of all.

    In the check a head has two effects: alone, and beyond that of the others named.
    """
    members = result.validation.members or Members()
    checked = {member.head: (member.alone, member.within) for member in members.heads}
    listed = [each for each in result.heads if each.head in checked or each.effect is not None]
    listed.sort(key=lambda each: each.head not in checked)
    shown = 2 * min(len(checked), 2)  # of one head its effect alone is that within the set
    rows, unit, own = [], outcome_unit(result), unit_of(result)
    # a search may go by other outcomes than the score
    axis, points = (f", {unit.axis}", "") if unit.axis == own.axis else ("", f", {own.axis}")
    headings = [f"alone{points}", INTERVAL, f"within the set{points}", INTERVAL][:shown]
    search = "search: " if checked else ""
    headings += [f"{search}{result.estimand.heads}", INTERVAL, "q"]
    for place, entry in enumerate(listed[: max(MOST_HEADS, len(checked))], 1):
        known = write_effects(own, *checked.get(entry.head, ())) or ["–"] * shown
        said = [*write_effects(unit, entry), write_q(entry.q)]
        rows.append([str(place), entry.head, *known[:shown], *said])
    kind = "fresh examples" if members.fresh else "examples that the search has seen"
    note = "the first heads, none of them named"
    if checked:
        named = "named head" if len(checked) == 1 else f"{len(checked)} named heads"
        note = f"the {named}, checked on {members.examples} {kind}, and the next, by the search"
    title = f"{called(result.task.name)}{axis}: {note}"
    return *join_intervals(["", "head", *headings], rows), title


def frontier_table(result: Result) -> Table:
    """Tabulate the sets found for `--goal specific`."""
    frontier = result.validation.frontier or Frontier()
    headings, rows = join_intervals(*tabulate_frontier(result))
    task, price = called(result.task.name), f"{100 * (frontier.price or 0):g} at most"
    return headings, rows, f"{task}, points: sets that were tried; others should lose {price}"


def evaluation_table(found: TaskScores) -> Table:
    """Tabulate what `evaluate` measured; what of the answers is lost is told beside it."""
    rows = []
    for row in found.tasks:
        unit = unit_of_metric(row.metric or "score", row.scores, row.higher_is_better is not False)
        pair = row.intact or Score(), row.knocked_out or Score()
        cells = [called(row.name), *(format_with_error(each, unit) for each in pair)]
        verdict = describe_verdict(row.change or Change()) or "–"
        examples = str(row.intact.examples if row.intact else None)
        rows.append([*cells, *write_change(row.change, unit), verdict, examples])
    headings = ["task", "intact", "knocked out", "change", INTERVAL, "verdict", "examples"]
    heads = ", ".join(found.heads) or "nothing"
    return *join_intervals(headings, rows), f"{found.model}, knocked out: {heads}"


def tell_losses(found: TaskScores) -> list[str]:
    """Say for each task what of its answers is lost, or that none was right to begin with."""
    told = [(called(row.name), lost(row.failures)) for row in found.tasks]
    none = "no answer is right to begin with; see whether it is asked as it should be"
    rows = [row for row in found.tasks if row.scores[0] == 0.0 and row.higher_is_better]
    told += [(called(row.name), none) for row in rows]
    return [f"{name}: {text}" for name, text in told if text]


def interaction_table(told: dict[str, Any], result: Result) -> Table:
    """Tabulate what `interactions` found in a run with this result, the surest first."""
    unit = unit_of_outcomes(unit_of(result))
    headings = ["heads", "and", "contrast", INTERVAL, "q", "meaning"]
    rows = [
        [
            " ".join(row["first"]),
            " ".join(row["second"]),
            *write_effects(unit, Effect(effect=row["effect"], low=row["low"], high=row["high"])),
            write_q(row["q"]),
            row["meaning"],
        ]
        for row in told["interactions"][:MOST_SHOWN]
    ]
    left = len(told["interactions"]) - len(rows)
    more = f"; {left} more in the file" if left else ""
    return *join_intervals(headings, rows), f"{unit.axis}, on {told['examples']} examples{more}"


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
        rows.append([candidate["head"], UNIVERSAL[candidate["verdict"]], *costs])
    share = percent(told["share"])
    title = f"{told['model']}: share of the score that one head alone costs; * surely above {share}"
    return ["head", "universal?", *names], rows, title


def explain_universal(told: dict[str, Any]) -> str:
    """Say which heads were tried, and what it takes to be universal."""
    first, share = told["candidates"][0], percent(told["share"])
    tasks = counted(first["wanted"], "task")
    return (
        "Tried were heads that two of these runs name, and those that broke a run's task alone. "
        f"One is universal if {tasks} or more, of {first['families']}, surely lose over {share} of "
        "their score above chance without it; open: these examples do not tell (--examples takes "
        "more)."
    )


def comparison_table(told: dict[str, Any]) -> Table:
    """Tabulate runs side by side."""
    headings = ["run", "task", "model", "method", "top heads", "intact", "knocked out", "rows"]
    rows = []
    for run in told["runs"]:
        scores = run["intact"], run["knocked_out"]
        unit = unit_of_metric(run["metric"] or "score", scores)
        told_rows = "–" if run["rows"] is None else f"{run['rows']:,.0f}"
        names = [run["name"], called(run["task"]), run["model"], run["method"]]
        heads = " ".join(run["top"]) or "none found"
        rows.append([*names, heads, *map(unit.score, scores), told_rows])
    shared = [
        f"{model['model']}: {len(row['heads'])} heads of {row['tasks']} tasks or more "
        f"({row['chance']['expected']:.2g} by chance)"
        for model in told["models"]
        for row in model["shared"][:1]
    ]
    return headings, rows, "; ".join(shared) or "runs side by side"


def own_table(told: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Tabulate each run's intact score here, its heads, and those left without universal ones."""
    rows = [
        [
            run["task"],
            unit_of_metric(run["metric"] or "score", [run["intact"]]).score(run["intact"]),
            str(run["examples"]),
            " ".join(run["top"]),
            " ".join(run["own"]),
        ]
        for run in told["tasks"]
    ]
    return ["task", "intact", "examples", "heads", "without universal ones"], rows


def studies_table(outcomes: "Sequence[Outcome]") -> Table:
    """Tabulate what became of several studies."""
    rows = []
    for outcome in outcomes:
        if outcome.result is None:
            rows.append([outcome.name, "failed", *["–"] * 5])
            continue
        state = "done before" if outcome.earlier else "done"
        rows.append([outcome.name, state, *summary_row(outcome.result)])
    failed = sum(outcome.result is None for outcome in outcomes)
    done = f"{len(outcomes) - failed} of {len(outcomes)} studies done"
    return ["study", "", *SUMMARY], rows, done
