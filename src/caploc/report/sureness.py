"""How sure the finding is: each sign with its figure and how to read it."""

from dataclasses import dataclass

from caploc.report.charts import Chart
from caploc.report.plots import draw_ratio, draw_shares
from caploc.report.reading import called, counted, inline, name_list
from caploc.report.scores import describe_verdict, format_interval
from caploc.report.stability import stability
from caploc.report.standing import percent
from caploc.report.units import SPACE, Unit, significant, unit_of, unit_of_other, unit_of_outcomes
from caploc.result import (
    Change,
    Controls,
    HeldOut,
    JointDrop,
    Prediction,
    Result,
    Search,
    Spread,
    Subsets,
    TaskComparison,
)

LITTLE = 0.05  # a share of the heads by which an answer hardly changes
AGAIN = ((1.0, "as many"), (4.0, "four times"))
NOTHING_PROVEN = (
    "A high R² cannot prove that effects add up: heads that do nothing alone can still matter "
    "together."
)
READINGS = {
    "changed": "it is beyond doubt.",
    "open": "too few examples to tell a change from none.",
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
    """Signs that answer one question."""

    name: str  # of its place on the page
    title: str
    signs: list[Sign]


def questions(result: Result) -> list[ReaderQuestion]:
    """All that is known of how sure the finding is; what was not measured is left out."""
    asked = [
        ("right-heads", "Are these the right heads?", _search_signs(result)),
        ("more-rows", "Would more rows change the answer?", _rows_signs(result)),
        ("holds", "Does it hold on other examples?", _check_signs(result)),
        ("adds-up", "Do the effects add up?", _adding_signs(result)),
        ("else", "What else breaks?", _other_signs(result)),
    ]
    return [ReaderQuestion(name, title, signs) for name, title, signs in asked if signs]


def _search_signs(result: Result) -> list[Sign]:
    search = result.search
    if search.expected_recall is None:
        return []
    signs: list[Sign | None] = [_signal(search)]
    if search.goal == "set":
        signs.insert(0, _set_sign())
    else:
        signs.insert(0, _recall(result))
        signs.append(_ties(search))
    return [sign for sign in signs if sign is not None]


def _set_sign() -> Sign:
    return Sign(
        "Expected recall",
        "not for sets",
        "Whether some other set of as many heads breaks more is not known; this one was compared "
        "with the heads that are strongest alone.",
    )


def _recall(result: Result) -> Sign:
    recall, wanted = result.search.expected_recall, result.search.wanted_recall
    top = result.method.top
    which = f"the {top:,} heads that matter most" if top else "the heads that matter most"
    reach = "" if wanted is None else f" The search stops at {percent(wanted)}."
    return Sign(
        "Expected recall",
        percent(recall or 0.0) + ("" if wanted is None else f", wanted {percent(wanted)}"),
        f"So many of {which} alone are expected to be at the head of the ranking.{reach}",
    )


def _another_set() -> Sign:
    return Sign(
        "Run again",
        "not known",
        "A set is not chosen by single effects, so what another run would name cannot be worked "
        "out; a run with another --seed, or with more rows, shows it.",
    )


def _rows_signs(result: Result) -> list[Sign]:
    """What the run spent, and what it would have named with more."""
    search = result.search
    signs = [_forecast(search), _stopped(search)]
    if result.top and search.expected_recall is None:
        signs.insert(0, _again(result))
    elif search.goal == "set":
        signs.insert(0, _another_set())
    return [sign for sign in signs if sign is not None]


def _forecast(search: Search) -> Sign | None:
    forecasts = [(f, value) for f, value in (search.forecast or {}).items() if value is not None]
    now = search.expected_recall
    if not forecasts or now is None or search.goal == "set":
        return None
    words = {"2": "twice", "4": "four times"}
    said = [f"{percent(v)} with {words.get(f, f'{f} times')}" for f, v in forecasts]
    wanted, best = search.wanted_recall, max(value for _, value in forecasts)
    gain = best - now
    reading = (
        "More rows would hardly change which heads are named."
        if gain < LITTLE
        else "More rows would make the ranking surer."
    )
    short = "" if wanted is None or best >= wanted else " That would still not be what was wanted."
    numbers = [(1.0, now), *((float(f), v) for f, v in forecasts if f.isdecimal())]
    return Sign(
        "With more rows",
        name_list([percent(value) for _, value in forecasts]),
        f"The forecast of the expected recall is {name_list(said)} the rows, and {percent(now)} as "
        f"it is. {reading}{short}",
        draw_shares(numbers, wanted, "expected recall"),
    )


def _again(result: Result) -> Sign:
    """What another run would name; its chart shows how that grows with rows."""
    shares = stability(result)
    if not shares:
        return Sign(
            "Run again",
            "not known",
            "The method gives no intervals of effects by which it names heads, so what another "
            "run would name cannot be worked out; a run with another --seed shows it.",
        )
    by_factor = dict(shares)
    count = len(result.top)
    again = name_list([f"{count * by_factor[f]:.1f} with {w}" for f, w in AGAIN])
    more = by_factor[4.0] - by_factor[1.0]
    reading = (
        "More rows would hardly change the answer."
        if more < LITTLE
        else "More rows would settle more of it."
    )
    return Sign(
        "Run again",
        f"{percent(by_factor[1.0])} the same",
        f"Of the {counted(count, 'head')} named, another run would be expected to name {again} the "
        f"rows. {reading} This takes the effects as they were measured, and those of named heads "
        "tend to be too large: it is an upper figure.",
        draw_shares(shares, None, "named again"),
    )


def _stopped(search: Search) -> Sign | None:
    rows, budget = search.rows, search.budget
    if rows is None:
        return None
    of = "" if budget is None else f" of {budget:,}"
    reasons = {
        "recall": "The search stopped early because the expected recall had reached what was "
        "wanted.",
        "budget": "The search stopped because its budget was spent.",
        "examples": "The search stopped because the heads in question were tried on all examples "
        "that there are for it.",
    }
    why = reasons.get(search.stopped_by or "", "What stopped the search is not recorded.")
    return Sign("Rows spent", f"{rows:,}{of}", why)


def _ties(search: Search) -> Sign | None:
    tied = search.tied
    if tied is None:
        return None
    if not tied:
        return Sign(
            "Ties", "none", "No heads at the border of the top differ by less than a point."
        )
    return Sign(
        "Ties",
        counted(len(tied), "head"),
        f"{name_list(tied)} lie at the border of the top and differ by less "
        "than a point: which of them is named is next to chance, and no budget would settle it.",
    )


def _signal(search: Search) -> Sign | None:
    ratio = search.signal_to_noise
    if ratio is None:
        return None
    small = "" if ratio >= 1 else " At less than 1 the ranking is mostly noise."
    return Sign(
        "Signal to noise",
        significant(ratio, 2),
        f"The effects of the first heads of the ranking, typically, over their errors.{small}",
    )


def _check_signs(result: Result) -> list[Sign]:
    """Signs on held-out examples; none of them means anything without heads."""
    held_out, controls = result.validation.held_out, result.validation.controls
    if not held_out or not result.top:
        return []
    unit = unit_of(result)
    signs = [_held_out(held_out, unit), _random(controls, unit)]
    if controls and controls.same_groups:
        signs.append(_same_groups(controls.same_groups, unit))
    return signs


def _held_out(held_out: HeldOut, unit: Unit) -> Sign:
    examples = held_out.examples
    count = counted(examples, "example") if examples else "examples"
    if held_out.fresh:
        name, where = "Held-out examples", f"On {count} that the search for candidates never used"
    else:
        name = "Examples of the search"
        where = f"The task has none left over, so on {count} that the heads were found on"
    figure = f"{unit.score(held_out.intact)} → {unit.score(held_out.knocked_out)}"
    return Sign(name, figure, f"{where}, {_changed(held_out.change, unit)}")


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


def _random(controls: Controls | None, unit: Unit) -> Sign:
    if not controls:
        return Sign("Random heads", "not measured", "No random heads were tried instead.")
    how = (
        "The draws are all alike, so how far from them is far cannot be said."
        if controls.deviations is None
        else "The figure says how far the score without the named heads lies from these, in "
        "standard deviations of the draws."
    )
    return Sign("Random heads", _distance(controls, unit), f"{_draws(controls, unit)} {how}")


def _same_groups(same: Spread, unit: Unit) -> Sign:
    return Sign(
        "Neighbours in the groups",
        _distance(same, unit),
        "Instead of the named heads, others of the same key-value groups, as far as there are any: "
        f"{_draws(same, unit)}",
    )


def _draws(spread: Spread, unit: Unit) -> str:
    draws = spread.draws
    error = "" if not spread.sd else f" ±{SPACE}{unit.error(spread.sd)}"
    kind = "" if spread.heads is None else f" of {counted(spread.heads, 'head')}"
    count = counted(draws, "draw") if draws else "the draws"
    verb = "leaves" if draws == 1 else "leave"
    return f"{count}{kind} {verb} a score of {unit.score(spread.mean)}{error} on the same examples."


def _distance(spread: Spread, unit: Unit) -> str:
    deviations = spread.deviations
    if deviations is None:
        return unit.score(spread.mean)
    side = "below" if deviations > 0 else "above"
    return f"{significant(abs(deviations), 2)}{SPACE}sd {side}"


def _parts(subsets: Subsets) -> Sign:
    count = len(subsets.named)
    figure = counted(count, "head") if count < len(subsets.found) else "the whole"
    return Sign("Most damaging part", figure, inline(subsets.note))


def _adding_signs(result: Result) -> list[Sign]:
    held_out, subsets = result.validation.held_out or HeldOut(), result.validation.subsets
    prediction, together = held_out.prediction, held_out.together
    signs = []
    if prediction and prediction.r2 is not None:
        signs.append(_prediction(prediction, prediction.r2))
    if together and together.joint_drop is not None:
        signs.append(_together(together, unit_of_outcomes(unit_of(result))))
    if subsets:
        signs.append(_parts(subsets))
    return signs


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
        f"{sample}{few}. {noise}{slope if nothing else ''} {NOTHING_PROVEN}",
    )


def _together(together: JointDrop, unit: Unit) -> Sign:
    ratio, low, high = together.ratio, together.low, together.high
    ends = "" if low is None or high is None else f" ({_ratio(low)} to {_ratio(high)})"
    joint, summed = _drop(together.joint_drop, unit), _drop(together.sum_of_drops, unit)
    return Sign(
        "Drop together over drops alone",
        _ratio(ratio) + ends,
        f"Together {joint}, one at a time {summed} in all. "
        f"{_ratio_reading(low, high)} Below 1, heads do the same work or little is left to lose; "
        "above 1, they stand in for each other.",
        None if ratio is None else draw_ratio(ratio, low, high),
    )


def _ratio(value: float | None) -> str:
    return "not measured" if value is None else significant(value, 2)


def _drop(value: float | None, unit: Unit) -> str:
    return unit.effect(None if value is None else -value)


def _ratio_reading(low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return "Alone they take nothing, so there is no ratio."
    if low > 1:
        return "The heads stand in for each other: alone, each one seems to do less than it does."
    if high < 1:
        return "The heads' losses overlap."
    return "The interval holds 1: nothing speaks against losses that add up."


def _other_signs(result: Result) -> list[Sign]:
    main = unit_of(result)
    entries = result.validation.other_tasks if result.top else []
    return [_other(each, each.change, unit_of_other(each, main)) for each in entries if each.change]


def _other(entry: TaskComparison, change: Change, unit: Unit) -> Sign:
    where = f"On {counted(change.examples, 'example')}, " if change.examples else "Here "
    return Sign(
        called(entry.name),
        describe_verdict(change) or "not measured",
        f"{where}{_changed(change, unit)}",
    )
