"""The adaptive search: a look at every head alone, then rows where the question is open.

Mostly (`looked`) the look is at how likely right answers are without each head, and open heads are
then tried on more examples. Where likelihoods do not help, random masks come first
(`search_by_screen`).
"""

import numpy as np

from caploc import designs
from caploc.search.conclusion import ENOUGH, LEVEL, Conclusion
from caploc.search.likelihood import MOST_LINKED, FirstLook
from caploc.search.plan import Asking, Found, Problem, Search, opening_plan
from caploc.search.screen import SPARE, Screen
from caploc.search.sets import concluded_set, grown_by_looks, grown_by_screens
from caploc.search.specific import search_specific
from caploc.search.state import (
    LOOKS,
    SURVIVORS,
    TRIED_ALONE,
    SearchState,
    Shortlist,
    worth_a_look,
)
from caploc.search.summary import nothing_found, nothing_to_lose, summarize

LOOKING = 0.35  # share of the budget that the look at likelihoods may take
SURVEYING = 0.2  # share of it for trying every head alone, whatever likelihoods lead one to expect
SURVEYED = 3  # examples for each of them then, at most
ALARMING = 0.5  # share of right answers that a head leaves at most, to be tried on more
TURN = 10  # examples more for each head of a turn
AT_A_TURN = 12  # heads
CHECKED = 70  # examples that each head of the top is tried on, if there are so many


def adaptive(problem: Problem) -> Search:
    """The heads that matter most alone, or with the goal `set` those that do most together."""
    opening = opening_plan(problem.heads, problem.examples)
    intact = (yield opening).by_example()
    hopeless = nothing_to_lose(problem, intact)
    if hopeless:
        return nothing_found(problem, hopeless)
    state = SearchState(problem, designs.generator(problem.settings.seed), intact)
    if problem.settings.goal == "specific":
        return (yield from search_specific(state))
    if problem.likelihood is not None and (yield from worth_a_look(state)):
        return (yield from looked(state))
    screen = Screen(problem, intact, state.random)
    if problem.settings.goal == "set":
        return (yield from concluded_set(state, screen, grown_by_screens(state, screen)))
    return (yield from search_by_screen(state, screen))


def looked(state: SearchState) -> Asking[Found]:
    """Begin with a look at how likely right answers are without each head; then settle the top.

    An answer may change though the right one gets hardly less likely: every head is knocked out
    alone on an example or a few besides. Heads of which it is open whether they belong to the top
    are tried on a few examples more at each turn, the most open ones first, until enough of the top
    is known, or nothing is left to ask; then those of the top, until each was tried on `CHECKED`.
    """
    problem, intact = state.problem, state.intact
    first = FirstLook(problem, intact, state.random)
    yield from first.ask(int(LOOKING * state.budget), list(intact)[:MOST_LINKED])
    state.spent += len(first.seen.mask)
    if problem.settings.goal == "set":
        return (yield from concluded_set(state, first, grown_by_looks(state, first)))
    shortlist = Shortlist(problem, [], state.random, pool=problem.examples)  # all heads may join
    if problem.likelihood:  # 0: the likelihood is the outcome itself
        count = min(SURVEYED, int(SURVEYING * state.budget) // problem.heads)
        yield from tried_alone(state, shortlist, np.flatnonzero(first.free).tolist(), count)
    while True:
        conclusion = Conclusion(first, shortlist, state.struck)
        state.promised = conclusion.expected_recall
        if problem.watch is not None:
            problem.watch(conclusion)
        heads = unsettled(state, conclusion)
        count = min(TURN, state.left // max(len(heads), 1))
        if not heads or not count:
            return summarize(state, conclusion, conclusion.named)
        yield from tried_alone(state, shortlist, heads, count)


def tried_alone(
    state: SearchState, shortlist: Shortlist, heads: list[int], count: int
) -> Asking[None]:
    """Knock heads out alone on further examples; count the rows, and note heads that break it."""
    before = shortlist.rows
    yield from shortlist.more(heads, count)
    state.spent += shortlist.rows - before
    yield from recognize_breaking(state, shortlist)


def unsettled(state: SearchState, conclusion: Conclusion) -> list[int]:
    """Heads to knock out alone on further examples, if there are any left."""
    shortlist = conclusion.shortlist
    top = shortlist.unfinished(conclusion.top_heads)
    unchecked = {c: CHECKED - shortlist.asked[c] for c in top if shortlist.asked[c] < CHECKED}
    too_few = [column for column in unchecked if shortlist.asked[column] < ENOUGH]
    # Rows for the check of heads that surely matter are not spent on which is the last of the top.
    reserve = sum(rows for column, rows in unchecked.items() if conclusion.q[column] < LEVEL)
    exhausted = state.left < reserve + TURN * AT_A_TURN
    settled = exhausted or state.promised >= state.problem.settings.recall
    alarming = [
        head
        for head, (left, asked) in shortlist.survival().items()
        if left <= ALARMING * asked and shortlist.asked[head] < ENOUGH
    ]
    open_heads = [] if settled else conclusion.open
    heads = shortlist.unfinished([*alarming, *too_few, *open_heads])
    return list(dict.fromkeys(heads))[:AT_A_TURN] or list(unchecked)


def recognize_breaking(state: SearchState, shortlist: Shortlist) -> Asking[None]:
    """Note heads that alone leave hardly any right answer, and which break another task too."""
    breaking = [
        head
        for head, (left, asked) in shortlist.survival().items()
        if asked >= TRIED_ALONE and left <= asked * SURVIVORS / TRIED_ALONE
    ]
    new = [head for head in breaking if head not in state.critical][: state.triable_elsewhere]
    if new:
        state.critical += new
        state.universal += yield from state.find_universal(new)


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
