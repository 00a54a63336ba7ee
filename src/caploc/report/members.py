"""Which effect a result shows, and what its named heads do alone and within their set."""

from dataclasses import dataclass

from caploc.heads import ALONE
from caploc.report.headmap import interval_text
from caploc.report.reading import inline
from caploc.report.units import Unit, unit_of
from caploc.result import Estimand, Member, Result


def describe_estimand(estimand: Estimand) -> str:
    """The end of a sentence that begins with `what the score changes when a head is`."""
    if estimand.heads == ALONE:
        return "knocked out alone"
    share = f"{100 * estimand.rate:.3g}\u00a0% of all heads" if estimand.rate else "other heads"
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
    members = result.validation.members
    unit = unit_of(result)
    return [_row(each, unit) for each in members.heads] if members and members.heads[1:] else []


def _row(member: Member, unit: Unit) -> MemberRow:
    texts = []
    for effect in (member.alone, member.within):
        texts += [unit.effect(effect.effect), interval_text(effect, unit) or "–"]
    return MemberRow(inline(member.head), *texts)
