"""How the heads were found, in words with the run's numbers filled in."""

from caploc.report.members import describe_estimand
from caploc.report.reading import called, counted, inline, name_list
from caploc.report.units import ScoreKind, outcome_unit, significant
from caploc.result import HeldOut, Result, RunCost, Subsets, Validation

KNOCKOUT = (
    "A head is knocked out by setting its output to zero before the attention output projection, "
    "at every position, in the prompt as well as in the text that the model writes."
)
DESIGNS = {
    "css": "{masks} of heads were drawn{rate}, evenly, so that every head is knocked out about "
    "equally often, and each group was tried on the same {examples}.",
    "csb": "{masks} of heads were drawn, each head joining a group by chance on its own{rate}, "
    "and each group was tried on the same {examples}.",
    "css-search": "Groups of heads were drawn for several numbers of groups and sizes of a group, "
    "each tried on the same {examples}. The heads that each of these settings found were knocked "
    "out together there, and the setting whose heads cost most was kept: {masks}{rate}, drawn "
    "evenly, so that every head is knocked out about equally often.",
    "csb-search": "Groups of heads were drawn for several numbers of groups and sizes of a group, "
    "each tried on the same {examples}. The heads that each of these settings found were knocked "
    "out together there, and the setting whose heads cost most was kept: {masks}{rate}, each head "
    "joining a group by chance on its own.",
    "one-shot": "Each head was knocked out alone and tried on {examples}.",
    "greedy": "Heads were knocked out one after another: in each round, the head whose loss hurts "
    "most joined those already knocked out. Each choice rests on {examples}.",
    "adaptive": "Random groups of heads were knocked out{rate}, {each}, in rounds{masks_in_all}. "
    "It drew on {examples}, and of these only on what the intact model gets right: only there can "
    "a knockout take something away. After a first, even part, most of each group was drawn by "
    "each head's chance to belong to the top, so that most rows went where the question was open. "
    "Heads that break the task alone were set aside on the way.",
    "likelihood": "Every head was first knocked out alone, {each} that the intact model gets "
    "right, and the change of the right answer's log-probability was turned into the effect on the "
    "score that it leads one to expect. The search drew on {examples}.",
}
UNLISTED = "The method {name} chose which heads to knock out together; it drew on {examples}."
CHOOSING = {
    "heads": "The likeliest heads{shortlist} were then knocked out alone{checked}; more of these "
    "rows went to heads at the border of the top. Named are those of the top that are needed "
    "beyond doubt, by both parts together.",
    "set": "The goal was the set that breaks most. So the strongest heads were knocked out for "
    "good, and a further screen asked, of the examples still right, what the others do now; again, "
    "until the set was full. Of these heads and the runners-up random sets were knocked out, and "
    "those that did most among the others made another set. The sets and the heads that are "
    "strongest alone were all knocked out on other examples, and the most damaging is named. "
    "Effects are those of single heads{checked}.",
    "heads, likelihood": "Every head was then knocked out alone on an example or a few, and heads "
    "of which it was open whether they belong to the top{shortlist} on more of them{checked}. "
    "Named are those of the top that are needed beyond doubt, by both parts together.",
    "set, likelihood": "The goal was the set that breaks most. So the strongest head, of a few "
    "candidates that were tried, was knocked out for good, and every other head was looked at "
    "again on the examples still right; again, until the set was full or hardly an answer was "
    "right. The set as it grew and the heads that are strongest alone were knocked out on other "
    "examples, and the most damaging is named. Effects are those of single heads{checked}.",
}


def method_paragraphs(result: Result) -> list[str]:
    """The knockout, the design, the choice, the fit, the check, the software: a paragraph each."""
    parts = (_design, _choosing, _fit, _check, _software)
    texts = (KNOCKOUT, *(part(result) for part in parts))
    return [text for text in texts if text]


def _design(result: Result) -> str:
    method, search = result.method, result.search
    masks = result.fit.masks or method.masks
    rate = method.rate or search.rate
    examples = method.examples or result.task.examples
    group = search.group or 1
    name = "likelihood" if search.opening == "likelihood" else method.name
    return DESIGNS.get(name, UNLISTED).format(
        name=inline(name) or "of this run",
        masks=counted(masks, "random group") if masks else "Random groups",
        masks_in_all=f", {counted(masks, 'group')} in all" if masks else "",
        rate=f" ({100 * rate:.3g}\u00a0% of all heads each)" if rate is not None else "",
        each="each on one example" if group == 1 else f"each on {counted(group, 'example')}",
        examples=counted(examples, "example") if examples else "the task's examples",
    )


def _choosing(result: Result) -> str:
    """How an adaptive search came from its rows to the heads that it names."""
    search = result.search
    shortlist, checked = search.shortlist, search.checked_on
    if shortlist is None:
        return ""
    kind = {True: "that the groups were not tried on", False: "that the groups were tried on too"}
    where = "" if search.fresh is None else kind[search.fresh]
    goal = f"{search.goal}{', likelihood' if search.opening == 'likelihood' else ''}"
    return CHOOSING.get(goal, CHOOSING["heads"]).format(
        shortlist=f", {len(shortlist)} of them," if shortlist else "",
        checked=f" on {counted(checked, 'example')} {where}".rstrip() if checked else "",
    )


def _fit(result: Result) -> str:
    fit = result.fit
    estimator = fit.estimator
    if not estimator:
        return ""
    rows, masks = fit.rows, fit.masks
    source = " from " + counted(rows, "row") if rows else ""
    source += f" under {counted(masks, 'mask')}" if rows and masks else ""
    outcome = " (here the log-probability)" if outcome_unit(result).kind is ScoreKind.NATS else ""
    return (
        f"The estimator {inline(estimator)} worked out each head's effect{source}. An effect is "
        f"what the score{outcome} changes when the head is "
        f"{describe_estimand(result.estimand)}; on this page, orange marks the heads that the task "
        f"needs. {_explained(result)}"
    )


def _explained(result: Result) -> str:
    held_out = result.validation.held_out
    r2 = held_out.prediction.r2 if held_out and held_out.prediction else None
    r2 = result.fit.r2_held_out if r2 is None else r2
    if r2 is None:
        return "How well these effects predict masks that were not fitted was not measured."
    if r2 <= 0:
        return (
            f"They predict masks that were not fitted no better than the average does "
            f"(R² {significant(r2, 2)}), so single effects say little."
        )
    return (
        f"They explain {100 * r2:.3g}\u00a0% of the variance of masks that were not fitted "
        f"(R² {significant(r2, 2)})."
    )


def _check(result: Result) -> str:
    top, validation = result.top, result.validation
    if not top:
        return ""
    which = "that head was" if len(top) == 1 else f"the top {len(top)} heads were"
    text = _parts(validation.subsets) if validation.subsets else ""
    text += f"To check the finding, {which} knocked out on {_examples(validation)}"
    if validation.controls and (draws := validation.controls.draws):
        text += f", and so were as many random heads, layer by layer, in {counted(draws, 'draw')}"
    if others := len(validation.other_tasks):
        text += f"; {counted(others, 'other task')} show what else breaks"
    return f"{text}. ± is one standard error unless the row says otherwise."


def _parts(subsets: Subsets) -> str:
    """How the set as found was held against its parts."""
    where = f" on {counted(subsets.examples, 'example')}" if subsets.examples else ""
    return (
        f"The {counted(len(subsets.found), 'head')} found were knocked out together"
        f"{where}, and so were parts of them: each beginning of their ranking, each head alone and "
        "all but each. On every other example the most damaging part was picked; it is named "
        "instead of the whole if it did more on the examples between (one-sided, 5\u00a0%). "
    )


def _examples(validation: Validation) -> str:
    """Held-out examples where there are any, and then the task as it comes."""
    knocked_out, held_out = validation.task.knocked_out, validation.held_out or HeldOut()
    examples = knocked_out.examples if knocked_out else None
    whole = counted(examples, "example") if examples else "the task"
    if not held_out.fresh or not held_out.examples:
        return whole
    fresh = counted(held_out.examples, "held-out example")
    return f"{fresh} (and on {whole} of the task as they come)"


def _software(result: Result) -> str:
    """What a paper says of the software: versions, number format, seed, and what it cost."""
    names = [f"{inline(n)} {inline(v)}" for n, v in result.versions.items() if v is not None]
    if not names:
        return ""
    seed, rows, model = result.seed, result.cost.rows, result.model
    text = f"Computed with {name_list(names)}"
    text += f", seed {seed}" if seed is not None else ""
    text += f", {called(model.name)} in {inline(model.dtype)}" if model.dtype else ""
    text += f" (weights {inline(model.fingerprint)})" if model.fingerprint else ""
    return text + (f"; {counted(rows, 'row')} in all." if rows else ".")


def facts(result: Result) -> list[tuple[str, str]]:
    """Name and value of what it takes to run this again, and what it cost."""
    cost, model, task = result.cost, result.model, result.task
    rows: list[tuple[str, object]] = [
        ("Model", model.name),
        ("Fingerprint", model.fingerprint),
        ("Number format", model.dtype),
        ("Task", task.name),
        ("Metric", task.metric),
        ("Examples of the task", _count(task.examples)),
        ("Seed", result.seed),
        ("Rows measured", _count(cost.rows)),
        ("Forward tokens", _tokens(cost)),
        ("Time", format_duration(cost.seconds)),
    ]
    for key, value in result.method:
        if value is not None:  # a setting that the method does not use
            rows.append(("Method" if key == "name" else f"Method: {key}", value))
    return [(name, "not recorded" if value is None else inline(value)) for name, value in rows]


def format_versions(result: Result) -> list[tuple[str, str]]:
    """Name and version of the software that the run used."""
    return [(inline(name), inline(version)) for name, version in result.versions.items()]


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


def _tokens(cost: RunCost) -> str | None:
    """Tokens run, and how many fewer they are than those of every row run alone."""
    run, alone = cost.forward_tokens, cost.plain_tokens
    if run is None or not alone:
        return _count(run)
    return f"{run:,.0f}, {1 - run / alone:.0%} fewer than row by row ({alone:,.0f})"


def _count(value: float | None) -> str | None:
    return None if value is None else f"{value:,.0f}"
