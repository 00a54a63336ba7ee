"""How sure the finding is: each sign with its figure and how to read it."""

from dataclasses import dataclass
from typing import Any

from caploc.report.charts import Chart
from caploc.report.plots import draw_ratio, draw_shares
from caploc.report.reading import (
    Result,
    at,
    called,
    counted,
    inline,
    known,
    listed,
    number_at,
)
from caploc.report.scores import interval, verdict
from caploc.report.stability import stability
from caploc.report.standing import percent
from caploc.report.units import SPACE, Unit, significant, unit_of, unit_of_other, unit_of_outcomes

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
    search = at(result, "search")
    if number_at(search, "expected_recall") is None:
        return []
    signs: list[Sign | None] = [_signal(search)]
    if at(search, "goal") == "set":
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
    search = at(result, "search")
    recall, wanted = (number_at(search, f"{which}_recall") for which in ("expected", "wanted"))
    top = number_at(result, "method", "top")
    which = f"the {top:,.0f} heads that matter most" if top else "the heads that matter most"
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


def _forecasts(search: Any) -> list[tuple[str, float]]:
    """How many times the rows, and the recall then expected."""
    forecast = at(search, "forecast") or {}
    pairs = [(str(factor), known(value)) for factor, value in forecast.items()]
    return [(factor, value) for factor, value in pairs if value is not None]


def _rows_signs(result: Result) -> list[Sign]:
    """What the run spent, and what it would have named with more."""
    search = at(result, "search")
    signs = [_forecast(search), _stopped(search)]
    if at(result, "top") and at(search, "expected_recall") is None:
        signs.insert(0, _again(result))
    elif at(search, "goal") == "set":
        signs.insert(0, _another_set())
    return [sign for sign in signs if sign is not None]


def _forecast(search: Any) -> Sign | None:
    forecasts = _forecasts(search)
    now = number_at(search, "expected_recall")
    if not forecasts or now is None or at(search, "goal") == "set":
        return None
    words = {"2": "twice", "4": "four times"}
    said = [f"{percent(v)} with {words.get(f, f'{f} times')}" for f, v in forecasts]
    wanted, best = number_at(search, "wanted_recall"), max(value for _, value in forecasts)
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
        listed([percent(value) for _, value in forecasts]),
        f"The forecast of the expected recall is {listed(said)} the rows, and {percent(now)} as "
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
    count = len(at(result, "top") or ())
    again = listed([f"{count * by_factor[f]:.1f} with {w}" for f, w in AGAIN])
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


def _stopped(search: Any) -> Sign | None:
    rows, budget = number_at(search, "rows"), number_at(search, "budget")
    if rows is None:
        return None
    of = "" if budget is None else f" of {budget:,.0f}"
    reasons = {
        "recall": "The search stopped early because the expected recall had reached what was "
        "wanted.",
        "budget": "The search stopped because its budget was spent.",
        "examples": "The search stopped because the heads in question were tried on all examples "
        "that there are for it.",
    }
    why = reasons.get(str(at(search, "stopped_by")), "What stopped the search is not recorded.")
    return Sign("Rows spent", f"{rows:,.0f}{of}", why)


def _ties(search: Any) -> Sign | None:
    tied = at(search, "tied")
    if tied is None:
        return None
    if not tied:
        return Sign(
            "Ties", "none", "No heads at the border of the top differ by less than a point."
        )
    return Sign(
        "Ties",
        counted(len(tied), "head"),
        f"{listed([str(name) for name in tied])} lie at the border of the top and differ by less "
        "than a point: which of them is named is next to chance, and no budget would settle it.",
    )


def _signal(search: Any) -> Sign | None:
    ratio = number_at(search, "signal_to_noise")
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
    held_out, controls = (at(result, "validation", part) for part in ("held_out", "controls"))
    if not held_out or not at(result, "top"):
        return []
    unit = unit_of(result)
    signs = [_held_out(held_out, unit), _random(controls, unit)]
    same = at(controls, "same_groups")
    if same:
        signs.append(_same_groups(same, unit))
    return signs


def _held_out(held_out: Any, unit: Unit) -> Sign:
    before, after = (number_at(held_out, when) for when in ("intact", "knocked_out"))
    examples = number_at(held_out, "examples")
    count = counted(examples, "example") if examples else "examples"
    if at(held_out, "fresh") is True:
        name, where = "Held-out examples", f"On {count} that the search for candidates never used"
    else:
        name = "Examples of the search"
        where = f"The task has none left over, so on {count} that the heads were found on"
    figure = f"{unit.score(before)} → {unit.score(after)}"
    return Sign(name, figure, f"{where}, {_changed(at(held_out, 'change'), unit)}")


def _changed(change: Any, unit: Unit) -> str:
    """Write a change of outcomes with its interval, and what it says."""
    mean = number_at(change, "outcome")
    if mean is None:
        return "the change was not measured."
    ends = interval(change, unit)
    within = f" (95{SPACE}% interval {ends})" if ends else ""
    said = verdict(change)
    reading = READINGS.get(said, f"{said}." if said else "")
    return f"the change is {unit_of_outcomes(unit).effect(mean)}{within}: {reading}".rstrip(": ")


def _random(controls: Any, unit: Unit) -> Sign:
    if not controls:
        return Sign("Random heads", "not measured", "No random heads were tried instead.")
    how = (
        "The draws are all alike, so how far from them is far cannot be said."
        if number_at(controls, "deviations") is None
        else "The figure says how far the score without the named heads lies from these, in "
        "standard deviations of the draws."
    )
    return Sign("Random heads", _distance(controls, unit), f"{_draws(controls, unit)} {how}")


def _same_groups(same: Any, unit: Unit) -> Sign:
    return Sign(
        "Neighbours in the groups",
        _distance(same, unit),
        "Instead of the named heads, others of the same key-value groups, as far as there are any: "
        f"{_draws(same, unit)}",
    )


def _draws(controls: Any, unit: Unit) -> str:
    mean, spread = number_at(controls, "mean"), number_at(controls, "sd")
    draws, heads = number_at(controls, "draws"), number_at(controls, "heads")
    error = "" if not spread else f" ±{SPACE}{unit.error(spread)}"
    kind = "" if heads is None else f" of {counted(heads, 'head')}"
    count = counted(draws, "draw") if draws else "the draws"
    verb = "leaves" if draws == 1 else "leave"
    return f"{count}{kind} {verb} a score of {unit.score(mean)}{error} on the same examples."


def _distance(controls: Any, unit: Unit) -> str:
    deviations = number_at(controls, "deviations")
    if deviations is None:
        return unit.score(number_at(controls, "mean"))
    side = "below" if deviations > 0 else "above"
    return f"{significant(abs(deviations), 2)}{SPACE}sd {side}"


def _parts(subsets: Any) -> Sign:
    found, named = (at(subsets, key) or () for key in ("found", "named"))
    figure = counted(len(named), "head") if len(named) < len(found) else "the whole"
    return Sign("Most damaging part", figure, inline(at(subsets, "note")))


def _adding_signs(result: Result) -> list[Sign]:
    prediction = at(result, "validation", "held_out", "prediction")
    together = at(result, "validation", "held_out", "together")
    signs = [_prediction(prediction)] if number_at(prediction, "r2") is not None else []
    if number_at(together, "joint_drop") is not None:
        signs.append(_together(together, unit_of_outcomes(unit_of(result))))
    subsets = at(result, "validation", "subsets")
    if subsets:
        signs.append(_parts(subsets))
    return signs


def _prediction(prediction: Any) -> Sign:
    r2, ceiling = (number_at(prediction, key) or 0.0 for key in ("r2", "ceiling"))
    masks, examples = number_at(prediction, "masks"), number_at(prediction, "examples")
    sample = counted(masks, "held-out mask") if masks else "held-out masks"
    few = f", on {counted(examples, 'example')} each" if examples else ""
    known_ceiling = number_at(prediction, "ceiling") is not None
    noise = (
        f"Noise of so few examples leaves about {significant(ceiling, 2)} to the best prediction."
        if known_ceiling
        else "How much of it is noise was not measured."
    )
    return Sign(
        "R² on held-out masks",
        significant(r2, 2) + (f", ceiling {significant(ceiling, 2)}" if known_ceiling else ""),
        f"Adding up the effects of a mask's heads explains {percent(r2)} of the variance of "
        f"{sample}{few}. {noise}{_slope(prediction)} {NOTHING_PROVEN}",
    )


def _slope(prediction: Any) -> str:
    slope = number_at(prediction, "slope")
    if slope is None or slope > 0:
        return ""
    return " But masks cost less where the effects say more: they predict nothing."


def _together(together: Any, unit: Unit) -> Sign:
    ratio, low, high = (number_at(together, key) for key in ("ratio", "low", "high"))
    joint, summed = (number_at(together, key) for key in ("joint_drop", "sum_of_drops"))
    ends = "" if low is None or high is None else f" ({_ratio(low)} to {_ratio(high)})"
    return Sign(
        "Drop together over drops alone",
        _ratio(ratio) + ends,
        f"Together {_drop(joint, unit)}, one at a time {_drop(summed, unit)} in all. "
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
    entries = at(result, "validation", "other_tasks") or ()
    known_changes = [entry for entry in entries if at(entry, "change") and at(result, "top")]
    return [_other(entry, unit_of_other(entry, main)) for entry in known_changes]


def _other(entry: Any, unit: Unit) -> Sign:
    change = at(entry, "change")
    examples = number_at(change, "examples")
    where = f"On {counted(examples, 'example')}, " if examples else "Here "
    return Sign(
        called(at(entry, "name") or "another task"),
        verdict(change) or "not measured",
        f"{where}{_changed(change, unit)}",
    )
