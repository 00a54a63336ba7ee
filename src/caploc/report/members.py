"""Which effect a result shows, and what its named heads do alone and within their set."""

from dataclasses import dataclass
from typing import Any

from caploc.heads import ALONE, AMONG
from caploc.report.headmap import interval_text
from caploc.report.reading import Result, at, inline, number_at
from caploc.report.units import Unit, unit_of

DRAWN = ("css", "csb", "css-search", "csb-search")  # of older files, which name no estimand


def estimand_of(result: Result) -> str:
    """`alone` or `among others`: what the effects of a result are effects of."""
    named = at(result, "estimand", "heads")
    if named:
        return str(named)
    return AMONG if at(result, "method", "name") in DRAWN else ALONE


def describe_estimand(result: Result) -> str:
    """The end of a sentence that begins with `what the score changes when a head is`."""
    if estimand_of(result) == ALONE:
        return "knocked out alone"
    rate = number_at(result, "estimand", "rate")
    share = f"{100 * rate:.3g}\u00a0% of all heads" if rate else "other heads"
    return f"knocked out among others ({share}, drawn at random)"


@dataclass(frozen=True, slots=True)
class MemberRow:
    """A named head's two effects, as texts."""

    head: str
    alone: str
    alone_interval: str
    within: str
    within_interval: str


def member_rows(result: Result) -> list[MemberRow]:
    """The named heads, if they are several: of one alone, the two effects are the same."""
    heads = at(result, "validation", "members", "heads") or ()
    unit = unit_of(result)
    return [_row(entry, unit) for entry in heads] if len(heads) > 1 else []


def _row(entry: Any, unit: Unit) -> MemberRow:
    texts = []
    for kind in ("alone", "within"):
        effect = at(entry, kind)
        texts += [unit.effect(number_at(effect, "effect")), interval_text(effect, unit) or "–"]
    return MemberRow(inline(at(entry, "head")), *texts)
