"""What a run says for a set of its heads: the part of `result.json` that goes with an export."""

from collections.abc import Sequence
from typing import Any

from caploc.contents import read_contents
from caploc.errors import UserError
from caploc.finished import FinishedRun
from caploc.folder import ANSWERS, CURVE
from caploc.heads import Head
from caploc.report.reading import Result, at

SCORES = ("name", "metric", "higher_is_better", "intact", "knocked_out", "change")


def chosen_heads(run: FinishedRun, top: int | None) -> tuple[Head, ...]:
    """The heads that a run names, the most needed `top` of them.

    Raises:
        UserError: if it names none.
    """
    named = [Head.parse(name) for name in run.result["top"]]
    if not named:
        raise UserError(
            f"The run in {run.folder} named no head, so there is none to export; name heads "
            "yourself with --heads."
        )
    return tuple(named[:top])


def evidence_of(run: FinishedRun, heads: Sequence[Head]) -> dict[str, Any]:
    """What the run measured of this very set of heads; None for what it did not.

    Scores with heads knocked out are of the run's own set. Those of another set are there only
    where `caploc curve` measured it.
    """
    result, names = run.result, [str(head) for head in heads]
    own = set(names) == set(result["top"])
    validation = result["validation"]
    main, others = _scores(validation["task"]), at(validation, "other_tasks") or []
    if not own:
        main |= {"knocked_out": _on_curve(run, names), "change": None}
    return {
        "task": main,
        "examples_held_out": _held_out(validation) if own else None,
        "controls": at(validation, "controls") if own else None,
        "other_tasks": [_scores(other) for other in others] if own else None,
        "heads": [_row(result, name) for name in names],
        "run_named": list(result["top"]),
        "dtype": at(result, "model", "dtype"),
        "method": at(result, "method"),
        "fit": at(result, "fit"),
        "rows": at(result, "cost", "rows"),
        "seed": at(result, "seed"),
        "command": at(result, "command"),
        "versions": at(result, "versions"),
    }


def prompts_of(run: FinishedRun) -> list[str]:
    """Prompts of the run's task, to compare models on; none if the run kept no answers."""
    if not (run.folder / ANSWERS).exists():
        return []
    answers = read_contents(run.folder / ANSWERS)
    return [answer["prompt"] for answer in answers if answer.get("prompt")]


def _scores(part: Any) -> dict[str, Any]:
    return {key: at(part, key) for key in SCORES}


def _held_out(validation: Any) -> dict[str, Any] | None:
    keys = ("fresh", "examples", "intact", "knocked_out", "change")
    held = {key: at(validation, "held_out", key) for key in keys}
    return held if held["knocked_out"] is not None else None


def _row(result: Result, name: str) -> dict[str, Any]:
    keys = ("head", "effect", "low", "high", "q", "universal")
    row = next((row for row in result["heads"] if row["head"] == name), {"head": name})
    return {key: row.get(key) for key in keys}


def _on_curve(run: FinishedRun, names: Sequence[str]) -> Any:
    """The score with these heads knocked out, where `caploc curve` measured it."""
    if not (run.folder / CURVE).exists():
        return None
    curve = read_contents(run.folder / CURVE)
    points = curve["curves"].get(run.result["task"]["name"], [])
    same = set(curve["heads"][: len(names)]) == set(names)
    return points[len(names)] if same and len(points) > len(names) else None
