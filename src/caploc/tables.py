"""The tables that commands print, from results: headings, rows and, mostly, a title."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from caploc.contents import TaskScores
from caploc.options import ZERO
from caploc.report.card import cells, label
from caploc.result import Card, Change, Effect, Lost, Result, Score
from caploc.verdict import make_card, read_task
from caploc.wording import (
    SPACE,
    Unit,
    called,
    counted,
    percent,
    unit_of,
    unit_of_metric,
    unit_of_outcomes,
    write_q,
)

if TYPE_CHECKING:  # it would load torch, which help and completion do without
    from caploc.comparison import ComparedRun
    from caploc.studies.running import Outcome

MOST_SHOWN = 25  # interactions
CHANGE = "change (95 %)"  # the heading of a column

Table = tuple[list[str], list[list[str]], str]  # headings, rows and title


def format_with_error(point: Score, unit: Unit) -> str:
    """Write a score and its error."""
    if point.score is None or point.stderr is None:
        return unit.score(point.score)
    return f"{unit.score(point.score)} ±{SPACE}{unit.number(point.stderr)}"


def describe_lost(lost: Lost | None) -> str:
    """Write how many answers were lost, and what stands in their place."""
    if not lost or not lost.count:
        return ""
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in lost.kinds.items())
    return f"{lost.count:,} of {lost.examples:,} answers lost: {kinds}"


def write_change(change: Change | None, unit: Unit) -> str:
    """Write how a score of this unit changed, and the interval."""
    outcomes = unit_of_outcomes(unit)
    text = outcomes.change(change.outcome if change else None)
    return f"{text} {outcomes.interval(change)}".rstrip()


def first_row(card: Card) -> list[str]:
    """Write the task's own scores, and their change with its interval."""
    _, intact, without, change, interval, _ = cells(card.rows[0])
    return [intact, without, f"{change} {interval}".strip()]


def evaluation_table(found: TaskScores) -> Table:
    """Tabulate what `evaluate` measured; what of the answers is lost is told beside it."""
    rows = []
    for row in found.tasks:
        unit = unit_of_metric(row.metric or "score", row.scores, row.higher_is_better is not False)
        pair = row.intact or Score(), row.knocked_out or Score()
        first = [called(row.name), *(format_with_error(each, unit) for each in pair)]
        said = read_task(row)
        verdict = said.value if said else "–"
        examples = str(row.intact.examples if row.intact else None)
        rows.append([*first, write_change(row.change, unit), verdict, examples])
    headings = ["task", "intact ± s.e.", "knocked out ± s.e.", CHANGE, "verdict", "examples"]
    heads = ", ".join(found.heads) or "nothing"
    how = "" if found.mode == ZERO else f" (--mode {found.mode})"
    return headings, rows, f"{found.model}, knocked out{how}: {heads}"


def tell_losses(found: TaskScores) -> list[str]:
    """Say for each task what of its answers is lost, or that none was right to begin with."""
    told = [(called(row.name), describe_lost(row.lost)) for row in found.tasks]
    none = "no answer is right to begin with; see whether it is asked as it should be"
    rows = [row for row in found.tasks if row.scores[0] == 0.0 and row.higher_is_better]
    told += [(called(row.name), none) for row in rows]
    return [f"{name}: {text}" for name, text in told if text]


def interaction_table(told: dict[str, Any], result: Result) -> Table:
    """Tabulate what `interactions` found in a run with this result, the surest first."""
    unit = unit_of_outcomes(unit_of(result))
    headings = ["heads", "and", "contrast (95 %)", "q", "meaning"]
    rows = [
        [
            " ".join(row["first"]),
            " ".join(row["second"]),
            f"{unit.change(row['effect'])} {unit.interval(Effect.model_validate(row))}".rstrip(),
            write_q(row["q"]),
            row["meaning"],
        ]
        for row in told["interactions"][:MOST_SHOWN]
    ]
    left = len(told["interactions"]) - len(rows)
    more = f"; {left} more in the file" if left else ""
    return headings, rows, f"{unit.axis}, on {told['examples']} examples{more}"


def universal_table(told: dict[str, Any]) -> Table:
    """Tabulate the candidates, with the share of each score that they cost."""
    names = list(dict.fromkeys(t["task"] for c in told["candidates"] for t in c["trials"]))
    rows = []
    for candidate in told["candidates"]:
        trials = {trial["task"]: trial for trial in candidate["trials"]}
        costs = []
        for trial in map(trials.get, names):
            star = "*" if trial and trial["needed"] else ""
            costs.append(f"{round(100 * trial['share'])} %{star}" if trial else "–")
        rows.append([candidate["head"], "yes" if candidate["universal"] else "no", *costs])
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
        "their score above chance without it (--examples takes more, and is surer)."
    )


def comparison_table(runs: "Sequence[ComparedRun]") -> Table:
    """Tabulate runs side by side."""
    headings = ["run", "verdict", "heads", "intact", "without", CHANGE, "rows"]
    rows = []
    for run in runs:
        asked, heads = run.result.cost.rows, " ".join(run.card.heads) or "none"
        count = "–" if asked is None else f"{asked:,}"
        rows.append([run.name, label(run.card), heads, *first_row(run.card), count])
    return headings, rows, f"{len(rows)} runs"


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
        card, state = make_card(outcome.result), "done before" if outcome.earlier else "done"
        heads = " ".join(card.heads) or "none"
        rows.append([outcome.name, state, label(card), heads, *first_row(card)])
    failed = sum(outcome.result is None for outcome in outcomes)
    done = f"{len(outcomes) - failed} of {len(outcomes)} studies done"
    headings = ["study", "", "verdict", "heads", "intact", "without", CHANGE]
    return headings, rows, done
