"""The adaptive search that begins with masks: a screen, then its shortlist alone.

It serves where likelihoods of right answers do not help. Each random mask stands on a row of its
own; the shortlist is tried alone on examples that the screen never used.
"""

from caploc.search.conclusion import Conclusion
from caploc.search.plan import Asking, Found
from caploc.search.screen import SPARE, Screen
from caploc.search.state import LOOKS, SearchState, Shortlist
from caploc.search.summary import summarize

CHECKING = 0.2  # share of the rows kept for the shortlist alone on fresh examples
FEWEST_CHECKED = 40  # examples that each head of the shortlist is tried on, rows permitting
FEWEST_JOINED = 10  # examples for a head that rises later, or it is not tried


def search_by_screen(state: SearchState, screen: Screen) -> Asking[Found]:
    """Screen with random masks; try alone critical heads of the task, and what it has highest."""
    yield from state.screening(screen, int((1 - CHECKING) * state.budget))
    highest = screen.strongest_first()[: state.problem.settings.top + SPARE]
    shortlist = Shortlist(state.problem, state.own + highest, state.random)
    yield from check_shortlist(state, screen, shortlist)
    conclusion = Conclusion(screen, shortlist, state.struck)
    return summarize(state, conclusion, conclusion.named)


def check_shortlist(state: SearchState, screen: Screen, shortlist: Shortlist) -> Asking[None]:
    """Knock out the shortlist alone: all its heads, those to confirm, those at the border.

    A share of the rows is for these; what is left of the budget may go to all top heads that are
    not yet beyond doubt, half as many examples again at each look.
    """
    least = FEWEST_CHECKED * len(shortlist.heads)
    share = CHECKING / (1 - CHECKING) * state.spent
    left = state.left
    rows = int(min(left, max(share, least)))
    yield from shortlist.even(rows)
    yield from complete(state, screen, shortlist, left)
    for limit, which in ((rows, "unconfirmed"), (rows, "contested"), (left, "doubtful")):
        for _ in range(LOOKS):
            conclusion = Conclusion(screen, shortlist, state.struck)
            heads = shortlist.unfinished(getattr(conclusion, which))
            step = -(-shortlist.examples // 2)
            count = min((limit - shortlist.first - shortlist.rows) // max(len(heads), 1), step)
            if not heads or count < 1:
                break
            yield from shortlist.more(heads, count)
            yield from complete(state, screen, shortlist, left)
    state.spent += shortlist.rows


def complete(state: SearchState, screen: Screen, shortlist: Shortlist, rows: int) -> Asking[None]:
    """Knock out alone whichever head has risen to the top untried: the screen flatters it."""
    fewest = min(FEWEST_JOINED, shortlist.first)
    while fewest and shortlist.rows < rows:
        untried = Conclusion(screen, shortlist, state.struck).untried
        affordable = untried[: (rows - shortlist.rows) // fewest]
        if not affordable:
            return
        yield from shortlist.join(affordable, rows - shortlist.rows)
