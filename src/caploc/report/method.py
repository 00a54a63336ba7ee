"""How the heads were found, in words with the run's numbers filled in."""

from caploc.naming import PRETRAINED
from caploc.report.headtable import describe_estimand
from caploc.report.wording import (
    ScoreKind,
    called,
    counted,
    inline,
    name_list,
    outcome_unit,
    read_texts,
    significant,
)
from caploc.result import HeldOut, Model, Result


def method_paragraphs(result: Result) -> list[str]:
    """The knockout, the design, the choice, the fit, the check, the software: paragraphs."""
    parts = [_knockout, _design, _choosing, _fit, _check, _engines, _software]
    if not result.was_searched:
        parts = [_not_searched, _engines, _software]
    return [text for part in parts if (text := part(result))]


def _not_searched(result: Result) -> str:
    examples = result.intact.examples
    asked = f" {counted(examples, 'example')} of the task" if examples else " the task"
    return f"The intact model was asked{asked}. No head was knocked out."


def _knockout(result: Result) -> str:
    method, texts = result.method, read_texts()["knockout"]
    text: str = texts.get(method.mode, texts["zero"])
    return text.format(
        corrupted=inline(method.corrupted or "another task"),
        positions=inline(method.positions or "all"),
    )


def _design(result: Result) -> str:
    method, search = result.method, result.search
    masks = result.fit.masks or method.masks
    rate = method.rate or search.rate
    examples = method.examples or result.task.examples
    texts = read_texts()
    text: str = texts["designs"].get(method.name, texts["unlisted"])
    return text.format(
        name=inline(method.name) or "of this run",
        masks=counted(masks, "random group") if masks else "Random groups",
        masks_in_all=f", {counted(masks, 'group')} in all" if masks else "",
        rate=f" ({100 * rate:.3g}\u00a0% of all heads each)" if rate is not None else "",
        examples=counted(examples, "example") if examples else "the task's examples",
    )


def _choosing(result: Result) -> str:
    """How the default search came from its scan to the heads that it names."""
    search = result.search
    if not search.tried:
        return ""
    text: str = read_texts()["choosing"].get(search.goal or "heads", "")
    return text.format(
        tried=counted(len(search.tried), "head"),
        examples=counted(search.tried_on or 0, "example"),
        sets=counted(search.sets or 0, "set"),
    )


def _fit(result: Result) -> str:
    fit, held_out = result.fit, result.validation.held_out
    if not fit.estimator:
        return ""
    source = ""
    if fit.rows:
        source = f" from {counted(fit.rows, 'row')}"
        source += f" under {counted(fit.masks, 'mask')}" if fit.masks else ""
    outcome = " (here the log-probability)" if outcome_unit(result).kind is ScoreKind.NATS else ""
    r2 = held_out.prediction.r2 if held_out and held_out.prediction else None
    r2 = fit.r2_held_out if r2 is None else r2
    if r2 is None:
        explained = "How well these effects predict masks that were not fitted was not measured."
    elif r2 <= 0:
        explained = (
            "They predict masks that were not fitted no better than the average does "
            f"(R² {significant(r2, 2)}), so single effects say little."
        )
    else:
        explained = (
            f"They explain {100 * r2:.3g}\u00a0% of the variance of masks that were not fitted "
            f"(R² {significant(r2, 2)})."
        )
    lead = f"The estimator {inline(fit.estimator)} worked out each head's effect"
    return (
        f"{lead}{source}. An effect "
        f"is what the score{outcome} changes when the head is "
        f"{describe_estimand(result.estimand)}. {explained}"
    )


def _check(result: Result) -> str:
    top, validation = result.top, result.validation
    if not top:
        return ""
    which = "that head was" if len(top) == 1 else f"the top {len(top)} heads were"
    text, subsets = "", validation.subsets
    if subsets:  # how the set as found was held against its parts
        where = f" on {counted(subsets.examples, 'example')}" if subsets.examples else ""
        parts: str = read_texts()["parts"]
        text = parts.format(found=counted(len(subsets.found), "head"), where=where) + " "
        if result.search.goal == "set":
            text += f"{read_texts()['idle']} "
    # held-out examples where there are any, and then the task as it comes
    knocked_out, held_out = validation.task.knocked_out, validation.held_out or HeldOut()
    examples = knocked_out.examples if knocked_out else None
    where = counted(examples, "example") if examples else "the task"
    if held_out.fresh and held_out.examples:
        fresh = counted(held_out.examples, "held-out example")
        where = f"{fresh} (and on {where} of the task as they come)"
    text += f"To check the finding, {which} knocked out on {where}"
    if validation.controls and (draws := validation.controls.draws):
        text += f"; as many random heads, layer by layer, in {counted(draws, 'draw')} beside it"
    if others := len(validation.other_tasks):
        shows = "shows" if others == 1 else "show"
        text += f"; {counted(others, 'other task')} {shows} what else breaks"
    return f"{text}. ± is one standard error unless the row says otherwise."


def _engines(result: Result) -> str:
    """Who answered, and why where it was not who was asked first."""
    parts = []
    for each in result.engines:
        count = f"{counted(each.requests, 'request')} " if each.requests else ""
        why = f" ({inline(each.why)})" if each.why else ""
        parts.append(f"{count}by {inline(each.engine)}{why}")
    return f"Answered, without those that were stored before: {name_list(parts)}." if parts else ""


def _software(result: Result) -> str:
    """What a paper says of the software: versions, number format, seed, and what it cost."""
    names = [f"{inline(n)} {inline(v)}" for n, v in result.versions.items() if v is not None]
    if not names:
        return ""
    seed, rows, model = result.seed, result.cost.rows, result.model
    text = f"Computed with {name_list(names)}"
    text += f", seed {seed}" if seed is not None else ""
    text += f", {called(model.shown)} in {number_format(model)}" if model.dtype else ""
    text += f" (weights {inline(model.fingerprint)})" if model.fingerprint else ""
    return text + (f"; {counted(rows, 'row')} in all." if rows else ".")


def number_format(model: Model) -> str:
    """Tell a model's number format, and what its weights were before."""
    known = PRETRAINED.get(model.name)
    before = "" if known is None else f", dequantized from {known.quantized}"
    return inline(model.dtype or "") + before


ROWS = ("search", "intact", "checks")  # what rows are for


def split_rows(result: Result) -> tuple[int, int, int] | None:
    """Count the rows of the search with heads knocked out, its intact ones, and those of checks.

    None where they were not recorded.
    """
    every, searched, intact = result.cost.rows, result.cost.search_rows, result.cost.intact_rows
    if every is None or searched is None:
        return None
    if intact is None:  # as older runs have it: what the budget did not count
        cut = result.fit.rows if result.search.rows is None else result.search.rows
        if cut is None:
            return None
        intact = max(searched - cut, 0)
    return searched - intact, intact, every - searched


def facts(result: Result) -> list[tuple[str, str]]:
    """Return name and value of what it takes to run this again, and what it cost."""
    cost, model, task = result.cost, result.model, result.task
    tokens = _count(cost.forward_tokens)
    if cost.forward_tokens is not None and cost.plain_tokens:
        fewer = 1 - cost.forward_tokens / cost.plain_tokens
        tokens = f"{tokens}, {fewer:.0%} fewer than row by row ({cost.plain_tokens:,.0f})"
    parts = zip(split_rows(result) or (), ROWS, strict=False)
    measured, purposes = (
        _count(cost.rows),
        name_list([f"{count:,} {what}" for count, what in parts]),
    )
    rows: list[tuple[str, object]] = [
        ("Model", model.name),
        ("Fingerprint", model.fingerprint),
        ("Number format", number_format(model) if model.dtype else None),
        ("Task", task.name),
        ("Metric", task.metric),
        ("Examples of the task", _count(task.examples)),
        ("Seed", result.seed),
        ("Rows measured", f"{measured} ({purposes})" if purposes else measured),
        ("Forward tokens", tokens),
        ("Time", format_duration(cost.seconds)),
    ]
    for key, value in result.method:
        if value is not None:  # a setting that the method does not use
            rows.append(("Method" if key == "name" else f"Method: {key}", value))
    return [(name, "not recorded" if value is None else inline(value)) for name, value in rows]


def format_duration(seconds: float | None) -> str | None:
    """Write `33.1 s`, `4 min 5 s` or `2 h 4 min`; None where nothing was recorded."""
    if seconds is None:
        return None
    if seconds < 60:
        return f"{seconds:.1f}\u00a0s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}\u00a0min {rest}\u00a0s"
    return f"{minutes // 60:,}\u00a0h {minutes % 60}\u00a0min"


def _count(value: float | None) -> str | None:
    return None if value is None else f"{value:,.0f}"
