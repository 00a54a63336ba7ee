"""How sure the finding is: each sign with its figure and how to read it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from caploc.contents import Interactions
from caploc.designs import generator
from caploc.report.charts import Chart
from caploc.report.method import split_rows
from caploc.report.plots import draw_ratio, draw_shares
from caploc.report.scores import describe_verdict, format_interval
from caploc.report.wording import (
    SPACE,
    ScoreKind,
    Unit,
    called,
    counted,
    finite_numbers,
    inline,
    name_list,
    percent,
    read_texts,
    significant,
    unit_of,
    unit_of_other,
    unit_of_outcomes,
)
from caploc.result import Change, HeldOut, JointDrop, Prediction, Result, Spread

LITTLE = 0.05  # a share of the heads by which an answer hardly changes
FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)  # rows of another run, as multiples of this one's
DRAWS = 2_000
NEARLY_GONE = 0.2  # of the intact score: where no more is left, further heads can show little
NEXT_TO_NOTHING = 0.1  # of the joint loss: by less the losses alone are no divisor
NORMAL_WIDTH = 1.959964  # standard errors on either side of a 95 % interval
BY_EFFECT = ("css", "csb", "css-search", "csb-search", "one-shot")  # name the strongest alone
LEVEL = 0.05  # false discovery rate at which a contrast is named
MOST_SHOWN = 25  # contrasts
STABLE = 0.8  # Jaccard of named heads from which on they count as stable (arXiv 2510.00845)
READINGS = {
    "changed": "chance alone would seldom do so.",
    "may be chance": "too few examples to tell a change from none.",
}


@dataclass(frozen=True, slots=True)
class Sign:
    """One sign of how sure the finding is."""

    name: str
    figure: str
    reading: str
    drawing: Chart | None = None


@dataclass(frozen=True, slots=True)
class ReaderQuestion:
    """Signs that answer one question; `name` is that of its place on the page."""

    name: str
    title: str
    signs: list[Sign]


def questions(result: Result) -> list[ReaderQuestion]:
    """Tell all that is known of how sure the finding is; what was not measured is left out."""
    asked = [
        ("right-heads", "Are these the right heads?", _search_signs(result)),
        ("more-rows", "Would more rows change the answer?", _rows_signs(result)),
        ("holds", "Does it hold on other examples?", _check_signs(result)),
        ("adds-up", "Do the effects add up?", _adding_signs(result)),
        ("else", "What else breaks?", _other_signs(result)),
    ]
    found = [ReaderQuestion(name, title, list(signs)) for name, title, signs in asked]
    return [question for question in found if question.signs]


def _fixed(name: str) -> Sign:
    """Return a sign that always reads the same."""
    return Sign(*read_texts()["signs"][name])


def _search_signs(result: Result) -> Iterator[Sign]:
    search = result.search
    if search.tried and search.tried_on is not None:
        heads = counted(len(search.tried), "head")
        yield Sign(
            "Heads tried alone",
            f"{heads} on {search.tried_on}",
            "Effects, intervals and q are of these examples, on which the scan asked nothing. Of "
            "all other heads the scan tells how many answers were as before.",
        )
    if search.jaccard is not None and result.top:
        stable = search.jaccard >= STABLE
        yield Sign(
            "Stability",
            significant(search.jaccard, 2),
            "Mean overlap (Jaccard) of the heads named on resampled examples of the trial. "
            + ("" if stable else "Unstable: other examples name other heads."),
        )


def _rows_signs(result: Result) -> Iterator[Sign]:
    """Tell what the run spent, and what it would have named with more."""
    search = result.search
    if result.top and search.tried is None:
        yield _again(result)
    elif search.seeks_set:
        yield _fixed("another set")
    if search.rows is not None:
        of = "" if search.budget is None else f" of {search.budget:,}"
        why = "Rows with heads knocked out."
        if counts := split_rows(result):
            _, intact, checks = counts
            why += (
                f" Beside them the search asked the intact model {counted(intact, 'row')}, and "
                f"the checks took {checks:,}."
            )
        yield Sign("Rows of the search", f"{search.rows:,}{of}", why)


def _again(result: Result) -> Sign:
    """Tell what another run would name; its chart shows how that grows with rows."""
    shares = stability(result)
    if not shares:
        return _fixed("no intervals")
    by_factor, count = dict(shares), len(result.top)
    times = ((1.0, "as many"), (4.0, "four times"))
    again = name_list([f"{count * by_factor[f]:.1f} with {w}" for f, w in times])
    reading = "More rows would settle more of it."
    if by_factor[4.0] - by_factor[1.0] < LITTLE:
        reading = "More rows would hardly change the answer."
    return Sign(
        "Run again",
        f"{percent(by_factor[1.0])} the same",
        f"Of the {counted(count, 'head')} named, another run would be expected to name {again} the "
        f"rows. {reading} This takes the effects as they were measured, and those of named heads "
        "tend to be too large: it is an upper figure.",
        draw_shares(shares, None, "named again"),
    )


def stability(result: Result) -> list[tuple[float, float]]:
    """Return the share of the named heads that a run of other rows would name again.

    Of another run with `f` times the rows, the effect of head i is taken as normal about this
    one's, with variance `s_i² (1 + 1/f)`: `s_i²` for what this run leaves open, and `s_i² / f` for
    the other's own error. It names as many heads, those of the lowest effects. With `f` growing,
    what remains is this run's own doubt. Returns pairs of factor and share, for `FACTORS`; none
    where heads are not named by their effects alone, or where effects have no intervals.
    """
    if result.method.name not in BY_EFFECT:
        return []
    measured = [entry for entry in result.heads if entry.effect is not None]
    figures = np.array([(e.effect, e.low, e.high) for e in measured], dtype=float)
    named = np.array([entry.head in result.top for entry in measured], dtype=bool)
    if not named.any() or np.isnan(figures).any():
        return []
    effect, low, high = figures.T
    return named_again(effect, (high - low) / (2 * NORMAL_WIDTH), named)


def named_again(
    effect: Float[np.ndarray, " heads"], stderr: Float[np.ndarray, " heads"], named: np.ndarray
) -> list[tuple[float, float]]:
    """Return for each factor the expected share of the heads `named` (True) named again."""
    count = int(named.sum())
    noise = generator(0).standard_normal((DRAWS, len(effect)))
    shares = []
    for factor in FACTORS:
        seen = effect + noise * stderr * np.sqrt(1 + 1 / factor)
        first = np.argpartition(seen, count - 1, axis=1)[:, :count]
        shares.append((factor, float(named[first].mean())))
    return shares


def _check_signs(result: Result) -> Iterator[Sign]:
    """Tell what held-out examples say; nothing of it means anything without heads."""
    held_out, controls = result.validation.held_out, result.validation.controls
    if not held_out or not result.top:
        return
    unit, examples = unit_of(result), held_out.examples
    count = counted(examples, "example") if examples else "examples"
    name, where = "Held-out examples", f"On {count} that the search for candidates never used"
    if not held_out.fresh:
        name = "Examples of the search"
        where = f"The task has too few left over, so on {count} that the heads were found on"
    figure = f"{unit.score(held_out.intact)} → {unit.score(held_out.knocked_out)}"
    yield Sign(name, figure, f"{where}, {_changed(held_out.change, unit)}")
    if noise := result.noise:
        reading: str = read_texts()["noise"]
        yield Sign("Noise of rounding", f"{noise.changed} of {noise.rows}", reading)
    if not controls:
        yield _fixed("no random heads")
        return
    how = "The figure says how many of the draws leave as little as the named heads do, or less."
    known = _beyond(controls, controls.chosen, unit)
    yield Sign("Random heads", known, f"{_draws(controls, unit)} {how}")
    if same := controls.same_groups:
        yield Sign(
            "Neighbours in the groups",
            _beyond(same, controls.chosen, unit),
            "Instead of the named heads, others of the same key-value groups, as far as there are "
            f"any: {_draws(same, unit)}",
        )


def _changed(change: Change | None, unit: Unit) -> str:
    """Write a change of outcomes with its interval, and what it says."""
    if change is None or change.outcome is None:
        return "the change was not measured."
    ends = format_interval(change, unit)
    within = f" (95{SPACE}% interval {ends})" if ends else ""
    said = describe_verdict(change)
    reading = READINGS.get(said, f"{said}." if said else "")
    mean = unit_of_outcomes(unit).effect(change.outcome)
    return f"the change is {mean}{within}: {reading}".rstrip(": ")


def _draws(spread: Spread, unit: Unit) -> str:
    error = "" if not spread.sd else f" ±{SPACE}{unit.error(spread.sd)}"
    kind = "" if spread.heads is None else f" of {counted(spread.heads, 'head')}"
    count = counted(spread.draws, "draw") if spread.draws else "the draws"
    verb = "leaves" if spread.draws == 1 else "leave"
    return f"{count}{kind} {verb} a score of {unit.score(spread.mean)}{error} on the same examples."


def _beyond(spread: Spread, chosen: float | None, unit: Unit) -> str:
    """Count the draws that leave as little as the chosen heads; a mean alone is a score."""
    scores = finite_numbers(spread.scores)
    if chosen is None or not scores:
        return unit.score(spread.mean)
    alike = sum(unit.harm(score - chosen) >= 0 for score in scores)
    return f"{alike or 'none'} of {counted(len(scores), 'draw')}"


def _adding_signs(result: Result) -> Iterator[Sign]:
    held_out, subsets = result.validation.held_out or HeldOut(), result.validation.subsets
    prediction, together = held_out.prediction, held_out.together
    if prediction and prediction.r2 is not None:
        yield _prediction(prediction, prediction.r2)
    if together and together.joint_drop is not None:
        share = unit_of(result).kind is ScoreKind.SHARE
        most = held_out.intact if share else None
        yield _together(together, together.joint_drop, unit_of_outcomes(unit_of(result)), most)
    if subsets:
        count = len(subsets.named)
        figure = counted(count, "head") if count < len(subsets.found) else "none surely does more"
        told = inline(subsets.note)
        if idle := [head for head in subsets.named if head not in result.top]:
            adds = "adds" if len(idle) == 1 else "add"
            told += f" Of them {name_list(idle)} {adds} nothing beyond doubt, and the set is named "
            told += f"without {'it' if len(idle) == 1 else 'them'}."
            if held_out.intact and (held_out.knocked_out or 0) < NEARLY_GONE * held_out.intact:
                told += " What is named leaves too little to lose for it to be seen."
        yield Sign("Most damaging part", figure, told)


def _prediction(prediction: Prediction, r2: float) -> Sign:
    masks, examples, ceiling = prediction.masks, prediction.examples, prediction.ceiling
    sample = counted(masks, "held-out mask") if masks else "held-out masks"
    few = f", on {counted(examples, 'example')} each" if examples else ""
    noise, beside = "How much of it is noise was not measured.", ""
    if ceiling is not None:
        best = significant(ceiling, 2)
        noise = f"Noise of so few examples leaves about {best} to the best prediction."
        beside = f", ceiling {best}"
    nothing = prediction.slope is not None and prediction.slope <= 0
    slope = " But masks cost less where the effects say more: they predict nothing."
    return Sign(
        "R² on held-out masks",
        significant(r2, 2) + beside,
        f"Adding up the effects of a mask's heads explains {percent(r2)} of the variance of "
        f"{sample}{few}. {noise}{slope if nothing else ''} A high R² cannot prove that effects add "
        "up: heads that do nothing alone can still matter together.",
    )


def _together(together: JointDrop, joint: float, unit: Unit, most: float | None) -> Sign:
    """Tell whether losses add up, which they cannot where alone they sum to more than `most`."""
    ratio, low, high = together.ratio, together.low, together.high
    figure = "not measured" if ratio is None else significant(ratio, 2)
    if low is None or high is None:
        reading = "Alone they take nothing, so there is no ratio."
    elif (together.sum_of_drops or 0.0) < NEXT_TO_NOTHING * joint:
        figure, ratio = "not told", None
        reading = "Alone they take next to nothing, so that a ratio says little."
    else:
        figure += f" ({significant(low, 2)} to {significant(high, 2)})"
        reading = "The interval holds 1: this does not tell whether losses add up."
        if low > 1:
            reading = (
                "Alone each seems to do less than it does: the heads may stand in for each other, "
                "or answers may hold until several are gone."
            )
        elif high < 1:
            reading = "The heads' losses overlap."
        elif most is not None and (together.sum_of_drops or 0.0) > most:
            reading = "Alone they take more than there is, so that their losses must overlap."
    summed = None if together.sum_of_drops is None else -together.sum_of_drops
    return Sign(
        "Drop together over drops alone",
        figure,
        f"Together {unit.effect(-joint)}, one at a time {unit.effect(summed)} in all. {reading} "
        "Below 1, heads do the same work or little is left to lose; above 1, each matters more "
        "once others are gone.",
        None if ratio is None else draw_ratio(ratio, low, high),
    )


def _other_signs(result: Result) -> Iterator[Sign]:
    main = unit_of(result)
    for each in result.validation.other_tasks if result.top else []:
        if change := each.change:
            where = f"On {counted(change.examples, 'example')}, " if change.examples else "Here "
            reading = where + _changed(change, unit_of_other(each, main))
            yield Sign(called(each.name), describe_verdict(change) or "not measured", reading)


def contrasts_of(found: Interactions, result: Result) -> dict[str, Any]:
    """Write the content of interactions.json in the units of the run's score, the surest first."""
    unit = unit_of_outcomes(unit_of(result))
    named = [each for each in found.interactions if each.q is not None and each.q < LEVEL]
    rows = [
        [
            name_list(each.first),
            name_list(each.second),
            unit.effect(each.effect),
            format_interval(each, unit),
            significant(each.q or 0.0, 2),
            inline(each.meaning),
        ]
        for each in named[:MOST_SHOWN]
    ]
    summary = [inline(sentence) for sentence in found.summary]
    tested = len(found.interactions)
    told = {"summary": summary, "rows": rows, "named": len(named), "tested": tested}
    return told | {"limits": inline(found.limits)}
