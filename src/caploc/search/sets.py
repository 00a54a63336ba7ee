"""The goal `set`: which heads break the task most together.

A head whose backup steps in costs nothing alone. So the strongest heads of a screen are knocked out
for good, and a further screen asks, of the examples that are still right, what the others do now;
again, until the set is full. What was found on the way is a pool, of which random sets are knocked
out: the heads that do most among the others of the pool make another set. That one, the one that
was grown and the heads that are strongest alone are knocked out on fresh examples, and the most
damaging of the three is the answer.
"""

from dataclasses import replace

import numpy as np

from caploc.recovery import falls
from caploc.recovery.estimate import is_binary, right_of
from caploc.search.conclusion import LEVEL, Conclusion
from caploc.search.likelihood import FirstLook
from caploc.search.plan import Asking, Found, Plan, column_mask, intact_plan
from caploc.search.screen import First, Screen
from caploc.search.state import SURVIVORS, TRIED_ALONE, SearchState, Shortlist, broken
from caploc.search.summary import summarize

AT_ONCE = 2  # heads that one screen adds
EXCHANGING = 0.2  # share of the budget for random sets of the pool
POOL = 2  # times the heads wanted
COMPARING = 0.2  # share of the budget for the sets on fresh examples and for single heads
MOST_COMPARED = 300  # fresh examples for the comparison, at most
CANDIDATES = 4  # that a look leaves
LOOKED = 0.6  # share of a head's rows that looks for the candidates
FEWEST_TRIED, MOST_TRIED = 15, 40  # examples that candidates are tried on
MOST_UNDER = 100  # right examples that are asked again with the heads found so far gone
FEWEST_RIGHT = 8  # examples still right, below which the set has nothing left to break
BEYOND_DOUBT = 2.0  # standard errors that a head must lower the score by to join the set


def concluded_set(
    state: SearchState, first: First, growing: Asking[list[list[int]]]
) -> Asking[Found]:
    """The most damaging of the sets that were grown, its heads alone, and what is known of all."""
    chosen = yield from most_damaging(state, (yield from growing))
    return (yield from conclude_set(state, first, chosen, MOST_COMPARED))


def conclude_set(state: SearchState, first: First, chosen: list[int], most: int) -> Asking[Found]:
    """Knock out a set's heads alone, on `most` examples at most; say what is known of all heads."""
    shortlist = Shortlist(state.problem, chosen, state.random)
    yield from shortlist.more(chosen, min(most, state.left // max(len(chosen), 1)))
    state.spent += shortlist.rows
    if state.tried is not None:
        others = np.flatnonzero(~state.tried.masks[:, chosen].any(axis=1))
        shortlist.take(state.tried.where(np.isin(state.tried.mask, others)), state.intact)
    return summarize(state, Conclusion(first, shortlist, state.struck), chosen)


def grown_by_looks(state: SearchState, first: FirstLook) -> Asking[list[list[int]]]:
    """Keep the strongest head out, look again at what is still right, until the set is full.

    Each look leaves a few candidates, of which the one that breaks most is kept out. The set as it
    grew, the smallest first, is what is compared with the heads that are strongest alone.
    """
    problem = state.problem
    top = min(problem.settings.top, len(problem.eligible))
    end = int((1 - COMPARING) * state.budget)
    grown: list[int] = []
    look, under = first, state.intact
    while True:
        share = max(end - state.spent, 0) // (top - len(grown))
        if grown:
            avoid = column_mask(problem.heads, state.struck)
            look = FirstLook(problem, under, state.random, list(grown), avoid)
            yield from look.ask(int(LOOKED * share))
            state.spent += len(look.seen.mask) + len(look.before)
        count = int(np.clip(share // (2 * CANDIDATES), FEWEST_TRIED, MOST_TRIED))
        tried = state.random.permutation(look.right)[:count].tolist()
        best = yield from most_breaking(state, look, tried)
        if best is None:
            break
        grown.append(best)
        asked = look.right[:MOST_UNDER]
        further = len(asked) + problem.heads + CANDIDATES * FEWEST_TRIED
        if len(grown) == top or state.spent + further > end:
            break
        under = yield from state.outcomes_without(grown, asked, "heads found so far")
        if len(right_of(under)) < FEWEST_RIGHT:
            break
    alone = [c for c in first.strongest(problem.heads) if c not in state.struck][:top]
    return [*(grown[:size] for size in range(1, len(grown) + 1)), alone] if grown else []


def most_breaking(state: SearchState, look: FirstLook, examples: list[int]) -> Asking[int | None]:
    """Find the candidate that costs most with the base gone; None if there is no candidate.

    If none costs anything for sure, it is the one without which right answers get least likely. A
    candidate that alone breaks another task too is universal, and none of the set. Without a base,
    a share of the examples that the model gets wrong is asked too: what a candidate does alone is
    told of all of them.
    """
    strongest = look.strongest(CANDIDATES + len(state.struck))
    candidates = [c for c in strongest if c not in state.struck][:CANDIDATES]
    wrong = [] if look.base else [each for each in look.intact if each not in set(look.right)]
    wrong = wrong[: round(len(examples) * len(wrong) / max(len(look.right), 1))]
    if not candidates or state.left < len(candidates) * len([*examples, *wrong]):
        return None
    masks = state.problem.without_each([[*look.base, c] for c in candidates])
    measured = yield from state.ask(Plan.crossed(masks, [*examples, *wrong], what="candidates"))
    if not look.base:
        state.tried = measured if state.tried is None else state.tried.joined(measured)
    measured = measured.where(~np.isin(measured.example, wrong))
    tried = {c: measured.where(measured.mask == n) for n, c in enumerate(candidates)}
    change = {
        c: np.array([outcome - look.intact[e] for e, outcome in rows.by_example().items()])
        for c, rows in tried.items()
        if np.isfinite(rows.outcome).any()
    }
    for best in sorted(change, key=lambda candidate: change[candidate].mean()):
        if falls(change[best], binary=is_binary(state.intact)) > LEVEL:
            # Several heads may share the work, so that none costs an answer alone.
            return next(c for c in candidates if c not in state.universal)
        breaks = broken(tried[best], look.intact, SURVIVORS / TRIED_ALONE)
        if look.base or not breaks or not state.triable_elsewhere:
            return best
        state.critical.append(best)
        universal = yield from state.find_universal([best])
        if not universal:
            return best
        state.universal += universal
    return None


def grown_by_screens(state: SearchState, screen: Screen) -> Asking[list[list[int]]]:
    """Screen, keep the strongest out, screen again; then exchange heads."""
    top = min(state.problem.settings.top, len(state.problem.eligible))
    end = int((1 - EXCHANGING - COMPARING) * state.budget)
    yield from state.screening(screen, end // stages(top))
    own = state.own
    grown, conditional = own[:top], screen
    while new := beyond_doubt(conditional, min(AT_ONCE, top - len(grown))):
        grown += new
        share = (end - state.spent) // max(stages(top - len(grown)), 1)
        asked = right_of(state.intact)[: max(share, 0) // 2]
        if len(grown) >= top or not asked:
            break
        conditional = yield from under(state, conditional, grown, asked)
        if len(conditional.right) < FEWEST_RIGHT:
            break
        yield from state.screening(conditional, state.spent + share - len(asked))
    alone = (own + screen.strongest_first())[:top]
    full = list(dict.fromkeys(grown + alone))[:top]
    pool = list(dict.fromkeys(full + alone + conditional.strongest_first()))[: POOL * top]
    return [full, alone, (yield from exchanged(state, pool, top))] if grown else []


def stages(heads: int) -> int:
    """Count the screens that so many heads should take."""
    return -(-heads // AT_ONCE)


def under(state: SearchState, before: Screen, base: list[int], asked: list[int]) -> Asking[Screen]:
    """Make a screen with the base gone, on the examples that are still right under it."""
    problem = state.problem
    left = yield from state.outcomes_without(base, asked, "heads found so far")
    avoid = problem.empty()
    avoid[[*state.critical, *state.struck]] = True
    avoid[base] = False
    chances = before.look()
    return Screen(problem, left, state.random, list(base), avoid, before.rate, chances)


def beyond_doubt(screen: Screen, count: int) -> list[int]:
    """List the heads with the largest expected drops, as far as they are beyond doubt."""
    seen, mean = screen.effects(), screen.posterior().mean
    with np.errstate(invalid="ignore"):
        sure = screen.free & (seen.effect < -BEYOND_DOUBT * seen.stderr)
    order = np.argsort(np.where(sure, mean, np.inf), kind="stable")[:count]
    return [int(column) for column in order if sure[column]]


def exchanged(state: SearchState, pool: list[int], top: int) -> Asking[list[int]]:
    """Find the `top` heads of the pool that do most among others of the pool.

    Screens add heads two at a time, and what each does shows only beside those found before it. In
    random sets of the pool every head is judged among many others that it may stand beside.
    """
    problem, intact = state.problem, state.intact
    rows = min(int(EXCHANGING * state.budget), state.left)
    if len(pool) <= top or rows < len(pool):
        return pool[:top]
    others = ~column_mask(problem.heads, pool)
    rate = top / problem.heads
    contest = Screen(problem, intact, state.random, avoid=others, rate=rate)
    plan = replace(contest.next_rows(rows), what="sets of a pool")
    contest.take((yield from state.ask(plan)))
    effect = np.nan_to_num(contest.effects().effect, nan=np.inf)
    return [int(column) for column in np.argsort(effect, kind="stable")[:top]]


def most_damaging(state: SearchState, sets: list[list[int]]) -> Asking[list[int]]:
    """Find the set that leaves least of the fresh examples; none if it takes nothing for sure.

    The level is shared between the sets compared (Bonferroni).
    """
    problem = state.problem
    sets = [each for n, each in enumerate(sets) if set(each) not in map(set, sets[:n])]
    if not sets:
        return []
    fresh = list(problem.fresh) or list(problem.examples)
    share = max(2, min(MOST_COMPARED, int(COMPARING * state.budget / 4)))
    count = min(share, len(fresh), state.left // len(sets))
    if not count:
        return []
    examples = state.random.permutation(fresh)[:count].tolist()
    intact = (yield intact_plan(problem, examples)).by_example()
    plan = Plan.crossed(problem.without_each(sets), examples, what="whole sets")
    measured = yield from state.ask(plan)
    best = int(np.argmin(np.nan_to_num(measured.mask_means(), nan=np.inf)))
    outcomes = measured.where(measured.mask == best).by_example()
    drop = np.array([outcomes[e] - intact[e] for e in outcomes if e in intact])
    p = falls(drop, binary=is_binary(intact)) if drop.size else 1.0
    return sets[best] if p < LEVEL / len(sets) else []
