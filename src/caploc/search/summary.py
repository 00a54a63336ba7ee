"""What an adaptive search has to say beside its heads: figures for files, sentences for people."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy import stats

from caploc.heads import ALONE
from caploc.recovery.estimate import Estimate, Measurements, is_binary
from caploc.search.conclusion import LEVEL, Conclusion
from caploc.search.likelihood import FirstLook
from caploc.search.plan import Found, Problem
from caploc.search.state import TRIED_ELSEWHERE, SearchState

FEWEST_RIGHT = 10  # examples that the intact model must get right
ABOVE_CHANCE = 0.05  # largest p at which an intact score counts as better than guessing
FEW = 50  # examples on which the shortlist is checked, below which the reader is warned


def summarize(state: SearchState, conclusion: Conclusion, chosen: list[int]) -> Found:
    """Put together what the search hands back."""
    return Found(
        chosen=chosen,
        ranking=[*chosen, *(column for column in conclusion.ranking if column not in chosen)],
        estimate=conclusion.estimate(),
        seen=conclusion.first.seen,
        critical=state.critical,
        universal=state.universal,
        breaks_task=state.breaks_task,
        diagnostics=diagnose(state, conclusion),
        notes=write_notes(state, conclusion, chosen),
    )


def diagnose(state: SearchState, conclusion: Conclusion) -> dict[str, Any]:
    """Describe the search in figures, as `result.json` keeps them."""
    first, settings = conclusion.first, state.problem.settings
    looked = first.OPENING == FirstLook.OPENING
    stopped = "examples" if is_exhausted(state, conclusion) else "budget"
    stopped = "recall" if state.promised >= settings.recall else stopped
    return {
        "goal": settings.goal,
        "budget": state.budget,
        "rows": state.spent,
        "opening": first.OPENING,
        "unsteadiness": state.unsteadiness,
        "stopped_by": stopped,
        "expected_recall": conclusion.expected_recall,
        "wanted_recall": settings.recall,
        "forecast": conclusion.forecast(),
        "rate": first.size / max(state.problem.heads, 1),
        "group": first.examples_each[0],
        "most_each": first.examples_each[1],
        "scale": conclusion.scale.factor,
        "signal_to_noise": signal_to_noise(conclusion),
        "shortlist": conclusion.shortlist.candidates,
        "checked_on": conclusion.shortlist.examples,
        "checked_each": [conclusion.shortlist.asked[c] for c in conclusion.shortlist.candidates],
        "fresh": None if looked else bool(len(state.problem.fresh)),
        "tied": conclusion.tied if settings.goal == "heads" else [],
    }


def is_exhausted(state: SearchState, conclusion: Conclusion) -> bool:
    """Tell whether there were rows to spend and no example left to ask, short of the recall."""
    settings, looked = state.problem.settings, conclusion.first.OPENING == FirstLook.OPENING
    short = state.promised < settings.recall and settings.goal != "specific"
    return short and looked and state.left > len(conclusion.shortlist.candidates)


def signal_to_noise(conclusion: Conclusion) -> float | None:
    """Root mean square of the top heads' expected effects over their typical error."""
    first = conclusion.ranking[: conclusion.top]
    errors = conclusion.both.stderr[first]
    if not np.isfinite(errors).any():
        return None
    signal = float(np.sqrt(np.mean(conclusion.posterior.mean[first] ** 2)))
    return signal / float(np.nanmedian(errors))


def write_notes(state: SearchState, conclusion: Conclusion, chosen: list[int]) -> list[str]:
    """Say what a reader should know, in sentences; the weightiest first.

    Of a specific set its frontier says how sure it is, and no single head was to be named.
    """
    goal = state.problem.settings.goal
    sentences = [unknown_elsewhere(state)]
    if goal == "set":
        sentences = [incomplete_set(conclusion, chosen), *sentences]
    if goal == "heads":
        sentences = [confidence_notes(state, conclusion), ties(conclusion), *sentences]
    if goal != "specific":
        sentences.append(check_notes(state, conclusion, chosen))
    return [sentence for sentence in sentences if sentence]


def confidence_notes(state: SearchState, conclusion: Conclusion) -> str:
    """Say how sure the naming is, and what would make it surer."""
    wanted, named = conclusion.top, len(conclusion.named)
    if not named:
        return (
            f"No head is needed beyond doubt (false discovery rate {LEVEL:.0%}) after "
            f"{state.spent:,} rows: either nothing localizes here, or each head does little, which "
            "--goal set, --outcome logprob or a larger --budget may show."
        )
    if named < wanted:
        return (
            f"Up to {wanted} heads may be named, and {named} of the first {wanted} "
            f"{'is' if named == 1 else 'are'} needed beyond doubt; all others are candidates."
        )
    recall, more = conclusion.expected_recall, conclusion.forecast()["2"]
    if is_exhausted(state, conclusion):
        return f"The search asked every example, at an expected recall of {recall:.0%}."
    if recall < state.problem.settings.recall:
        return (
            f"The search ended at an expected recall of {recall:.0%}; twice the rows would give "
            f"about {more:.0%}."
        )
    return ""


def ties(conclusion: Conclusion) -> str:
    """Say that heads at the border hardly differ."""
    count = len(conclusion.tied)
    return (
        f"{count} heads at the border of the top {conclusion.top} differ by less than a point by "
        "all that is known of them, likelihoods as well as what each does alone: which of them is "
        "named is next to chance, and no budget would settle it."
        if count
        else ""
    )


def incomplete_set(conclusion: Conclusion, chosen: list[int]) -> str:
    """Say that a set is smaller than was asked for."""
    if not chosen:
        return (
            "No set of heads lowers the score of fresh examples beyond doubt: nothing localizes "
            "here as far as this budget can see."
        )
    if len(chosen) < conclusion.top:
        found, gone = (len(chosen), "them") if len(chosen) > 1 else ("one", "it")
        return (
            f"A set of up to {conclusion.top} heads was sought, and the search ended with {found}: "
            f"with {gone} gone, none of the heads that it tried next lowers the score beyond "
            "doubt. Others may still be needed: for little each, for what they do together, or "
            "where too little is left to lose."
        )
    return ""


def tell_universal(tasks: Mapping[str, str]) -> list[str]:
    """Say which heads are not named since they break another task too, by their names."""
    return [
        f"{head} breaks {task} as well, and is left out: it takes half or more of up to "
        f"{TRIED_ELSEWHERE} right answers there."
        for head, task in tasks.items()
    ]


def unknown_elsewhere(state: SearchState) -> str:
    """Say that heads break this task, and may break all."""
    own = len(state.own)
    if not own or any(len(examples) for examples in state.problem.elsewhere):
        return ""
    heads, they = (
        (f"{own} heads break", "they break") if own > 1 else ("One head breaks", "it breaks")
    )
    return (
        f"{heads} this task alone. Whether {they} other tasks too is unknown: name one with --also."
    )


def check_notes(state: SearchState, conclusion: Conclusion, chosen: list[int]) -> str:
    """Warn of a check on few examples, or on those that the heads were found on."""
    asked = conclusion.shortlist.asked
    # candidates for a set may have been tried on more examples than those that are of it
    count = max((asked[c] for c in chosen or asked), default=0)
    if conclusion.first.OPENING != FirstLook.OPENING and not len(state.problem.fresh):
        return (
            "The task has no examples left that the search did not use: the shortlist was checked "
            "on those it was found on, and its effects may be overstated."
        )
    if 0 < count < FEW:
        return f"The shortlist was checked on few examples ({count}); its intervals are wide."
    return ""


def nothing_to_lose(problem: Problem, intact: dict[int, float]) -> str | None:
    """Say why no knockout could show anything, if so."""
    if not intact:
        return "None of the intact model's answers could be scored: there is nothing to compare."
    if not is_binary(intact):
        spread = np.ptp(list(intact.values()))
        return None if spread else "The intact model's outcomes do not differ: nothing to measure."
    right = int(sum(intact.values()))
    if right < min(FEWEST_RIGHT, len(intact)):
        return (
            f"The intact model gets {right} of the {len(intact)} examples for the search right, "
            f"too few ({FEWEST_RIGHT} are needed) for a knockout to take anything away. See "
            "whether it is asked as it should be (does the model begin its answers as yours "
            "begin?); use a task that it can do, more examples, or --outcome logprob."
        )
    if problem.chance:
        test = stats.binomtest(right, len(intact), problem.chance, alternative="greater")
        if test.pvalue > ABOVE_CHANCE:
            return (
                f"The intact model gets {right} of {len(intact)} examples right, no better than "
                f"guessing ({problem.chance:.0%}): the task is at chance, and heads cannot be told "
                "from noise. Use --outcome logprob, or a model that can do the task."
            )
    return None


def nothing_found(problem: Problem, why: str) -> Found:
    """Find no head, and give the reason."""
    unknown = np.full(problem.heads, np.nan)
    estimate = Estimate("spike-slab", *(unknown,) * 4, estimand=ALONE)
    return Found([], estimate.order(), estimate, Measurements.none(problem.heads), notes=[why])
