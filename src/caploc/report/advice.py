"""What to do next: steps that follow from what was found, each with its command."""

from dataclasses import dataclass

from caploc.contents import Curve
from caploc.report.reading import called, name_list
from caploc.report.sentence import HeadlineVerdict, check_of
from caploc.result import JointDrop, Result

WEAK = (
    HeadlineVerdict.NOISE,
    HeadlineVerdict.UNHURT,
    HeadlineVerdict.SLIGHT,
    HeadlineVerdict.LIKE_RANDOM,
)


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to do: why, and the command, DIR being this page's folder."""

    why: str
    command: str = ""


def next_steps(result: Result, curve: Curve | None) -> list[Step]:
    """The steps, those that mend a doubt first."""
    verdict = check_of(result).verdict
    steps = _doubts(result, verdict)
    if verdict is HeadlineVerdict.CARRIED:
        steps += _uses(result, curve)
    return steps


def _doubts(result: Result, verdict: HeadlineVerdict) -> list[Step]:
    """What would make the finding surer, or find anything."""
    steps = []
    if verdict is HeadlineVerdict.NO_HEADS:
        finer = "A finer outcome shows smaller effects: take --outcome logprob. "
        tried = result.task.outcome == "logprob"
        steps.append(
            Step(
                f"No head stands out. {'' if tried else finer}More rows (--budget) show smaller "
                f"effects. If that finds none either, the task may be spread over many heads"
                f"{'' if _of_set(result) else '; --goal set looks for those'}."
            )
        )
    if verdict in WEAK:
        spend = (
            "Spend more rows."
            if _of_set(result)
            else "Look for a set with --goal set, or spend more rows."
        )
        steps.append(
            Step(
                "Do not build on these heads yet: knocking them out does no more than chance or "
                f"random heads would. {spend}"
            )
        )
    steps += [step for step in (_more_rows(result), _unchecked(result)) if step]
    return steps


def _of_set(result: Result) -> bool:
    """Whether the search looked for the set that breaks most."""
    return result.search.goal == "set"


def _once_more(result: Result, option: str) -> str:
    """How to measure again with an option, from what the run was started by."""
    if (result.command or "").startswith("caploc locate "):
        return f"add {option} and a new --out to the command below"
    return f"as `caploc locate` does with {option}"


def _more_rows(result: Result) -> Step | None:
    search = result.search
    expected, wanted, budget = search.expected_recall, search.wanted_recall, search.budget
    if expected is None or wanted is None or expected >= wanted or budget is None:
        return None
    if _of_set(result):
        return None  # the expected recall is of single heads
    return Step(
        "The ranking is less sure than was wanted. Run again with twice the rows: "
        f"{_once_more(result, f'--budget {2 * budget}')}."
    )


def _unchecked(result: Result) -> Step | None:
    validation = result.validation
    if not result.top:
        return None
    if not validation.controls:
        return Step(
            "Random heads were not tried. Run again to see what they do: "
            f"{_once_more(result, '--controls 20')}."
        )
    if validation.held_out and validation.held_out.fresh is False:
        return Step(
            "The check used examples that the search had seen. Run again with more examples of "
            "the task, so that some are left over."
        )
    return None


def _uses(result: Result, curve: Curve | None) -> list[Step]:
    """What heads that carry the task are good for."""
    steps = []
    hurt = [
        called(entry.name)
        for entry in result.validation.other_tasks
        if entry.change and entry.change.verdict == "changed"
    ]
    if hurt:
        steps.append(
            Step(
                f"Knocking these heads out also changes {name_list(hurt)}. Locate other tasks in "
                "the same model, then ask which heads all of them need.",
                "caploc universal DIR OTHER-DIR",
            )
        )
    if curve is None:
        steps.append(Step("See how many of these heads it takes.", "caploc curve DIR"))
    held_out, subsets = result.validation.held_out, result.validation.subsets
    together = (held_out and held_out.together) or JointDrop()
    if subsets and subsets.found != subsets.named:
        steps.append(
            Step(
                "Fewer heads do more than all that were found: see whose absence rescues what.",
                "caploc interactions DIR",
            )
        )
    elif (together.low or 0) > 1 or (together.high is not None and together.high < 1):
        steps.append(
            Step(
                "Effects do not add up: see which heads stand in for each other.",
                "caploc interactions DIR",
            )
        )
    return [
        *steps,
        Step("Try the knockout on prompts of your own.", "caploc ui DIR"),
        Step(
            "Write a model without these heads, to use or to share.",
            "caploc export DIR --to PATH",
        ),
    ]
