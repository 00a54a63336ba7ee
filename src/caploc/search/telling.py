"""What an adaptive search has to say beside its heads: figures for files, sentences for people."""

from typing import Any

import numpy as np

from caploc.search.conclusion import LEVEL, Conclusion
from caploc.search.inquiry import Inquiry
from caploc.search.likelihood import FirstLook
from caploc.search.plan import Found

FEW = 50  # examples on which the shortlist is checked, below which the reader is warned


def reported(
    inquiry: Inquiry, conclusion: Conclusion, chosen: list[int], ranking: list[int]
) -> Found:
    """What the search hands back."""
    return Found(
        chosen=chosen,
        ranking=ranking,
        estimate=conclusion.estimate(),
        seen=conclusion.first.seen,
        critical=inquiry.critical,
        universal=inquiry.universal,
        told=told(inquiry, conclusion),
        notes=notes(inquiry, conclusion, chosen),
    )


def told(inquiry: Inquiry, conclusion: Conclusion) -> dict[str, Any]:
    """The search in figures."""
    first, settings = conclusion.first, inquiry.problem.settings
    looked = first.OPENING == FirstLook.OPENING
    more = looked and inquiry.left > len(conclusion.shortlist.heads)  # rows, and none to spend
    stopped = "recall" if inquiry.promised >= settings.recall else "examples" if more else "budget"
    return {
        "goal": settings.goal,
        "budget": inquiry.budget,
        "rows": inquiry.spent,
        "opening": first.OPENING,
        "stopped_by": stopped,
        "expected_recall": conclusion.expected_recall,
        "wanted_recall": settings.recall,
        "forecast": conclusion.forecast(),
        "rate": first.size / max(inquiry.problem.heads, 1),
        "group": first.group,
        "scale": conclusion.scale.factor,
        "signal_to_noise": signal_to_noise(conclusion),
        "shortlist": conclusion.shortlist.heads,
        "checked_on": len(conclusion.shortlist.intact),
        "fresh": None if looked else bool(len(inquiry.problem.fresh)),
        "tied": conclusion.tied if settings.goal == "heads" else [],
    }


def signal_to_noise(conclusion: Conclusion) -> float | None:
    """Root mean square of the top heads' expected effects over their typical error."""
    first = conclusion.ranking[: conclusion.top]
    errors = conclusion.both.stderr[first]
    if not np.isfinite(errors).any():
        return None
    signal = float(np.sqrt(np.mean(conclusion.posterior.mean[first] ** 2)))
    return signal / float(np.nanmedian(errors))


def notes(inquiry: Inquiry, conclusion: Conclusion, chosen: list[int]) -> list[str]:
    """What a reader should know, in sentences; the weightiest first."""
    if inquiry.problem.settings.goal == "set":
        sentences = [incomplete_set(conclusion, chosen)]
    else:
        sentences = [doubt(inquiry, conclusion), ties(conclusion)]
    sentences += [universal(inquiry), unknown_elsewhere(inquiry), check(inquiry, conclusion)]
    return [sentence for sentence in sentences if sentence]


def doubt(inquiry: Inquiry, conclusion: Conclusion) -> str:
    """How sure the naming is, and what would make it surer."""
    wanted, named = conclusion.top, len(conclusion.named)
    recall, more = conclusion.expected_recall, conclusion.forecast()["2"]
    if not named:
        return (
            f"No head is needed beyond doubt (false discovery rate {LEVEL:.0%}) after "
            f"{inquiry.spent:,} rows: either nothing localizes here, or each head does little. "
            "Try --goal set, --outcome logprob, or a larger --budget (twice the rows would raise "
            f"the expected recall from {recall:.0%} to about {more:.0%})."
        )
    if named < wanted:
        return (
            f"Only {named} of the {wanted} heads asked for are needed beyond doubt; the others "
            "of the ranking are candidates."
        )
    if recall < inquiry.problem.settings.recall:
        return (
            f"The search ended at an expected recall of {recall:.0%}; twice the rows would give "
            f"about {more:.0%}."
        )
    return ""


def ties(conclusion: Conclusion) -> str:
    """Heads at the border that hardly differ."""
    count = len(conclusion.tied)
    return (
        f"{count} heads at the border of the top {conclusion.top} differ by less than a point: "
        "which of them is named is next to chance, and no budget would settle it."
        if count
        else ""
    )


def incomplete_set(conclusion: Conclusion, chosen: list[int]) -> str:
    """A set smaller than was asked for."""
    if not chosen:
        return (
            "No set of heads lowers the score of fresh examples beyond doubt: nothing localizes "
            "here as far as this budget can see."
        )
    if len(chosen) < conclusion.top:
        return (
            f"The set has {len(chosen)} of the {conclusion.top} heads asked for: with these gone, "
            "no further head lowers the score beyond doubt."
        )
    return ""


def universal(inquiry: Inquiry) -> str:
    """Heads that break another task too."""
    count = len(inquiry.universal)
    heads = f"{count} heads break" if count > 1 else "One head breaks"
    left = "they are universal and are" if count > 1 else "it is universal and is"
    return f"{heads} another task as well: {left} left out of the top." if count else ""


def unknown_elsewhere(inquiry: Inquiry) -> str:
    """Heads that break this task, and may break all."""
    own = len(inquiry.critical) - len(inquiry.universal)
    if not own or any(len(examples) for examples in inquiry.problem.others):
        return ""
    return (
        f"{own} of the heads break this task alone. Whether they break every task is unknown: name "
        "another one with --also."
    )


def check(inquiry: Inquiry, conclusion: Conclusion) -> str:
    """A check on few examples, or on those that the heads were found on."""
    count = len(conclusion.shortlist.intact)
    if conclusion.first.OPENING != FirstLook.OPENING and not len(inquiry.problem.fresh):
        return (
            "The task has no examples left that the search did not use: the shortlist was checked "
            "on those it was found on, and its effects may be overstated."
        )
    if 0 < count < FEW:
        return f"The shortlist was checked on few examples ({count}); its intervals are wide."
    return ""
