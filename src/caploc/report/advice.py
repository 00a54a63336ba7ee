"""What to do next with a finding: what mends a doubt first, each with its command."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from caploc.contents import Curve
from caploc.frontiers import find_gentlest, find_worst
from caploc.report.sentence import (
    HURT,
    WEAK,
    HeadlineVerdict,
    check_of,
    other_scores,
    surviving_twin,
)
from caploc.report.wording import called, capital, counted, inline, name_list, unit_of
from caploc.result import JointDrop, Result

FEW_OTHERS = 3  # other tasks, below which the first next steps are to score more
CALL = "caploc.locate("  # what begins the command of a run from Python
BY_NAME = re.compile(re.escape(CALL) + r"""(['"])[^'"]*\1, (['"])[^'"]*\2""")  # model and task


@dataclass(frozen=True, slots=True)
class NextStep:
    """One thing to do: why, and the command."""

    why: str
    command: str = ""


def next_steps(
    result: Result, curve: Curve | None, place: str, *, together: bool = False
) -> list[NextStep]:
    """Return what to do next, what mends a doubt first; `place` is the run's folder, quoted.

    `together`: what heads do together has been looked at already.
    """
    verdict, of_set = check_of(result).verdict, result.search.seeks_set
    reasons = []
    if twin := surviving_twin(result):
        reasons.append(
            f"Do not take these heads for those of the capability: in other words "
            f"({called(twin.name)}) it may survive without them, so they may serve this prompt's "
            f"form alone. --goal specific --twin {inline(twin.name)}, with a task to leave alone "
            "(--spare), looks for what both need."
        )
    if verdict is HeadlineVerdict.NO_HEADS and not result.was_searched:
        reasons.append(
            "Nothing was searched. See with `caploc evaluate` which wording of the task the model "
            "can do, and ask that; --outcome logprob tells small changes where few answers are "
            "right."
        )
    elif verdict is HeadlineVerdict.NO_HEADS and result.validation.frontier:
        reasons.append(
            "No set keeps its price; the table of sets shows from which price on each would. Such "
            "a --price (with another --seed, to be believed), more heads (--top) or more rows may "
            "find one."
        )
    elif verdict is HeadlineVerdict.NO_HEADS and result.search.goal == "specific":
        reasons.append(
            "More rows (--budget) may grow a set, and a higher --price lets heads in that cost "
            "other tasks more."
        )
    elif verdict is HeadlineVerdict.NO_HEADS:
        finer = "A finer outcome shows smaller effects: take --outcome logprob. "
        reasons.append(
            f"No head stands out. {'' if result.task.outcome == 'logprob' else finer}More rows "
            "(--budget) show smaller effects. If that finds none either, the task may be "
            f"spread over many heads{'' if of_set else '; --goal set looks for those'}."
        )
    if verdict in WEAK:
        more = "spend more rows"
        look = f"{capital(more)}." if of_set else f"Look for a set with --goal set, or {more}."
        reasons.append(
            "Do not build on these heads yet: knocking them out does no more than chance or "
            f"random heads would. {look}"
        )
    return [
        *_gentler_part(result),
        *(NextStep(why) for why in (*reasons, *_doubts(result, of_set))),
        *(_uses(result, curve, place, together) if verdict in HURT else ()),
    ]


def _gentler_part(result: Result) -> Iterator[NextStep]:
    """Tell of a part of the named heads that costs other tasks less, where parts were tried."""
    frontier, unit = result.validation.frontier, unit_of(result)
    part = find_gentlest(frontier) if frontier and result.search.goal != "specific" else None
    worst, others = find_worst(part.spared) if part else None, other_scores(result, twins=False)
    whole = others[0].change.outcome if others and others[0].change else None
    if not part or not worst or not set(part.heads) < set(result.top):
        return
    least = worst.effect.effect or 0.0
    if whole is None or least <= whole / 2:
        return
    alone = "alone takes" if len(part.heads) == 1 else "alone take"
    taken = f"{unit.effect(part.damage.effect)} ({unit.interval(part.damage) or 'not sure'})"
    why = (
        f"{name_list(part.heads)} {alone} {taken} of the task, and at "
        f"worst {unit.effect(least)} elsewhere ({called(worst.task)}), where all named heads take "
        f"{unit.effect(whole)} ({called(others[0].name)}). Score that on every example, and export "
        "it by --heads."
    )
    tasks = ",".join([result.task.name, *(each.name for each in others)])
    words = ["evaluate", result.model.name, "--heads", ",".join(part.heads), "--task", tasks]
    yield NextStep(why, _typed(result, *words))


def _typed(result: Result, *words: str) -> str:
    """Write a command; none for what a program handed over, whose names mean nothing to it."""
    return "" if is_handed_over(result) else inline(shlex.join(["caploc", *words]))


def is_handed_over(result: Result) -> bool:
    """Tell whether a program handed over the model or the examples, and named neither."""
    written = result.command or ""
    return written.startswith(CALL) and not BY_NAME.match(written)


def _locate_specific(result: Result, spare: list[str], place: str) -> str:
    """Write how to look for a set that leaves these tasks alone, into a folder of its own."""
    folder = f"{''.join(shlex.split(place))}-specific"
    if not is_handed_over(result):
        wanted = ["--goal", "specific", "--spare", ",".join(spare), "--quick", "--out", folder]
        return _typed(result, "locate", result.model.name, "--task", result.task.name, *wanted)
    call, settings = (result.command or "").removesuffix(")"), ("goal=", "spare=", "out=")
    if any(each in call for each in settings):
        call = f"{CALL}..."
    return inline(f"{call}, goal='specific', spare={spare!r}, out={folder!r})")


def _doubts(result: Result, of_set: bool) -> Iterator[str]:
    """Tell what would make the finding surer."""

    def once_more(option: str) -> str:
        if (result.command or "").startswith("caploc locate "):
            return f"add {option} and a new --out to the command below"
        return f"with {option}"

    validation = result.validation
    if result.top and not validation.controls:
        option = "--controls 20"
        yield f"Random heads were not tried. Run again to see what they do: {once_more(option)}."
    elif result.top and validation.held_out and validation.held_out.fresh is False:
        yield (
            "The check used examples that the search had seen. Run again with more examples of "
            "the task, so that some are left over."
        )


def _elsewhere(result: Result, place: str) -> Iterator[NextStep]:
    """Tell what to ask of other tasks, and of heads that leave them alone."""
    beside = [e for e in result.validation.other_tasks if e.change and not e.twin]
    hurt = [e for e in beside if e.change and e.change.verdict == "changed"]
    spared = name_list([called(entry.name) for entry in hurt or beside])
    if beside and result.search.goal != "specific":
        why = f"Look for heads whose loss leaves {spared} alone."
        if not hurt:
            why = f"Look for a set that takes more of it and leaves {spared} alone for sure."
        spare = [entry.name for entry in hurt or beside]
        yield NextStep(why, _locate_specific(result, spare, place))
    if len(beside) < FEW_OTHERS:
        few = counted(len(beside), "other task")
        why = f"What else breaks was measured on {few} alone: score what must not break."
        if not beside:
            why = "What else breaks without them was not measured: score other tasks."
        heads = ["--heads", ",".join(result.top), "--task", "OTHER-TASK"]
        yield NextStep(why, _typed(result, "evaluate", result.model.name, *heads))
    if hurt:
        why = (
            f"Knocking these heads out also changes {spared}. Locate other tasks in the same "
            "model, then ask which heads most of them need."
        )
        yield NextStep(why, f"caploc universal {place} OTHER-RUN")


def _why_interactions(result: Result) -> str:
    """Say why to look at what heads do together, if there is a reason."""
    held_out, subsets = result.validation.held_out, result.validation.subsets
    together = (held_out and held_out.together) or JointDrop()
    if subsets and subsets.found != subsets.named:
        return "Fewer heads do more than all that were found: see whose absence rescues what."
    if (together.low or 0) > 1 or (together.high is not None and together.high < 1):
        return "Effects do not add up: see which heads stand in for each other."
    return ""


def _uses(result: Result, curve: Curve | None, place: str, looked: bool) -> Iterator[NextStep]:
    """Tell what heads that the task needs are good for."""
    yield from _elsewhere(result, place)
    if curve is None:
        yield NextStep("See how many of these heads it takes.", f"caploc curve {place}")
    if not looked and (why := _why_interactions(result)):
        yield NextStep(why, f"caploc interactions {place}")
    look = "See every example, and try the knockout on prompts of your own in the playground."
    yield NextStep(look, f"caploc view {place}")
    write = "Write a model without these heads, to use or to share."
    yield NextStep(write, f"caploc export {place} --to PATH")
