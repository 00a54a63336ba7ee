"""The verdict on a finding, and the card that a reader sees first, from the record alone."""

from collections.abc import Iterator, Sequence
from typing import Any

from caploc.naming import TWIN, ZERO_SHOT
from caploc.result import (
    READ_OFF,
    AnswerPair,
    Card,
    CardRow,
    Change,
    Result,
    RowKind,
    Said,
    Sample,
    TaskComparison,
    TextChange,
    Verdict,
)
from caploc.wording import (
    Unit,
    called,
    called_apart,
    inline,
    name_list,
    unit_of,
    unit_of_outcomes,
    unit_of_task,
)

FEW = 30  # held-out examples, below which a verdict rests on few
STABLE = 0.8  # Jaccard index of the heads named on resampled examples (arXiv 2510.00845)
NEARLY_EVERY = 0.8  # share of the other tasks that must break for heads that everything needs
AS_BROKEN = 0.5  # of the share of its score that the task loses: another task that loses it breaks
CHANCE = 0.05  # share of draws of random heads that may do as much as the named ones
SEVERAL = 2  # other tasks, below which nothing is said of every one
NAMED = 4  # heads that a heading names
INSTEAD = {  # in the place of zero
    "mean": "Knocked out means: replaced by its mean over examples.",
    "resample": "Knocked out means: replaced by what it is on another example.",
    "patch": "Knocked out means: replaced by what it is on the corrupted prompt.",
}
LISTED = 10  # names that a note holds
ZERO_SHOT_LABEL = "without examples"
SAMPLES = 2
PROMPT = 40  # characters of a prompt's end that are shown

DECIDING = (RowKind.HELD_OUT, RowKind.OTHER_WORDS, RowKind.OTHER_TASK)  # of a verdict

SENTENCES = {
    Verdict.SPECIFIC: "{heads} {are} needed for {task}; no other task that was scored surely loses",
    Verdict.SHARED: "{heads} {are} needed for {task}, and for {lost} of {others} other tasks too",
    Verdict.PROMPT_BOUND: "{heads} {are} needed for {task}, but not in every wording",
    Verdict.NEEDED_BY_EVERYTHING: "{heads} {are} needed by nearly every task, not only by {task}",
    Verdict.LIKE_RANDOM: "{heads}: {task} loses no more without {them} than without random {kind}",
    Verdict.NOT_FOUND: "No {kind} passed the search for {task} and its check",
    Verdict.NOT_CHECKED: "{heads} may be needed for {task}: fresh examples, random {kind} or other "
    "tasks that the model can do are missing",
}
UNIVERSAL_ALONE = "Only {kind} that break another task too are needed for {task}: {universal}"
EXAMPLES_ALONE = "{heads} {are} needed for {task} where the prompt gives examples, not without them"


class WrittenResult(Result):
    """The content of result.json: the record, and the card that is made of it."""

    card: Card


def written(result: Result) -> dict[str, Any]:
    """Return the content of result.json. Whoever reads it makes the card anew."""
    return result.as_dict() | {"card": make_card(result).as_dict()}


def make_card(result: Result) -> Card:
    """Judge the heads of a result, and lay out what that rests on."""
    rows, held_out = list(list_rows(result)), result.validation.held_out
    verdict, top, grid = judge(result, rows), result.top, result.grid.grid()
    others = list_others(rows)
    fresh = held_out.examples or 0 if top and held_out and held_out.fresh else 0
    words = {
        "heads": name_list(top, NAMED),
        "kind": f"{grid.COMPONENT.KIND}s",
        "task": called(result.task.name),
        "are": "is" if len(top) == 1 else "are",
        "them": "it" if len(top) == 1 else "them",
        "universal": name_list(result.search.universal, NAMED),
        "lost": sum(row.said is Said.LOST for row in others),
        "others": len(others),
    }
    stability = result.search.stability
    checked = verdict not in (Verdict.NOT_FOUND, Verdict.NOT_CHECKED)
    return Card(
        verdict=verdict,
        few_examples=checked and (fresh < FEW or is_undecided(verdict, rows)),
        unstable=bool(top) and stability is not None and stability < STABLE,
        heading=sentence_of(verdict, rows, result.search.universal).format_map(words),
        heads=top,
        of=grid.size,
        kind=f"{grid.COMPONENT.KIND}s",
        model=called(result.model.name),
        rows=rows,
        samples=list(pick_samples(result)),
        held_out=fresh,
        notes=list(list_notes(result)),
    )


def sentence_of(verdict: Verdict, rows: list[CardRow], universal: Sequence[str]) -> str:
    """Return the sentence of a verdict; it names the wording that does without the heads.

    Where nothing is named, it names the heads that were left out as other tasks need them too.
    """
    if verdict is Verdict.NOT_FOUND and universal:
        return UNIVERSAL_ALONE
    twins = [row for row in rows if row.kind is RowKind.OTHER_WORDS and row.said is Said.KEPT]
    if verdict is Verdict.PROMPT_BOUND and all(row.label == ZERO_SHOT_LABEL for row in twins):
        return EXAMPLES_ALONE
    return SENTENCES[verdict]


def judge(result: Result, rows: list[CardRow]) -> Verdict:
    """Return the first verdict whose rule holds."""
    own = rows[0]
    twins = [row for row in rows if row.kind is RowKind.OTHER_WORDS]
    others = list_others(rows)
    lost = [row for row in others if row.said is Said.LOST]
    if not result.top:
        return Verdict.NOT_FOUND
    if own.kind is not RowKind.HELD_OUT or count_random(result) == 0:
        return Verdict.NOT_CHECKED
    if own.said is not Said.LOST or count_as_harmful(result) > CHANCE * count_random(result):
        return Verdict.LIKE_RANDOM
    if any(row.said is Said.KEPT for row in twins):
        return Verdict.PROMPT_BOUND
    broken = [row for row in lost if lost_share(row) >= AS_BROKEN * lost_share(own)]
    if len(others) >= SEVERAL and len(broken) >= NEARLY_EVERY * len(others):
        return Verdict.NEEDED_BY_EVERYTHING
    if {*result.top} <= {*result.search.universal}:
        return Verdict.NEEDED_BY_EVERYTHING
    if lost:
        return Verdict.SHARED
    return Verdict.SPECIFIC if others else Verdict.NOT_CHECKED


def list_others(rows: list[CardRow]) -> list[CardRow]:
    """List the rows of other tasks that could tell something: of those that can lose an answer."""
    return [r for r in rows if r.kind is RowKind.OTHER_TASK and r.said is not Said.POWERLESS]


def lost_share(row: CardRow) -> float:
    """Return the share of its score by which a task changes; 0 of none."""
    if not row.intact or row.without is None:
        return 0.0
    return abs(row.intact - row.without) / abs(row.intact)


def count_random(result: Result) -> int:
    """Count the draws of random heads that were scored."""
    controls = result.validation.controls
    return sum(score is not None for score in controls.scores) if controls else 0


def count_as_harmful(result: Result) -> int:
    """Count the draws of random heads that leave as little as the named heads, or less."""
    controls, unit = result.validation.controls, unit_of(result)
    if controls is None or controls.chosen is None:
        return 0
    known = [score for score in controls.scores if score is not None]
    return sum(unit.harm(score - controls.chosen) >= 0 for score in known)


def list_rows(result: Result) -> Iterator[CardRow]:
    """Yield the rows of the table: the task, its other wordings, other tasks, random heads.

    The task's own figures are all of the held-out examples, where there are any.
    """
    checked, unit, name = result.validation, unit_of(result), called(result.task.name)
    held_out, controls, named = checked.held_out, checked.controls, bool(result.top)
    if held_out is None or held_out.intact is None or not named:
        whole = checked.task.model_copy(update={"intact": checked.task.intact or result.intact})
        yield compared(f"{name}, all examples", RowKind.ALL, whole, unit, named)
    else:
        kind = RowKind.HELD_OUT if held_out.fresh else RowKind.SEEN
        scores = held_out.intact, held_out.knocked_out
        counts = held_out.examples
        yield make_row(f"{name}, {kind.value}", kind, unit, scores, held_out.change, counts)
        yield from list_strongest(result)
    others = sorted(checked.other_tasks, key=lambda each: not each.twin)
    names = called_apart([each.name for each in others])
    for each in others:
        kind = RowKind.OTHER_WORDS if each.twin else RowKind.OTHER_TASK
        label = name_wording(names[each.name]) if each.twin else names[each.name]
        yield compared(label, kind, each, unit_of_task(each), named)
    if named and checked.text:
        yield compare_text(checked.text)
    if named and controls and controls.mean is not None:
        before = held_out.intact if held_out else (checked.task.intact or result.intact).score
        count, noun = len(result.top), result.grid.grid().COMPONENT.KIND
        many = f"a random {noun}" if count == 1 else f"{count} random {noun}s"
        moved = None if before is None else Change(outcome=-unit.harm(controls.mean - before))
        row = make_row(
            f"{name}, {many}", RowKind.CONTROL, unit, (before, controls.mean), moved, None
        )
        yield row.model_copy(update={"said": Said.CONTROL, "examples": controls.examples})


def list_strongest(result: Result) -> Iterator[CardRow]:
    """Yield the row of the head that takes most alone, of several named, on the same examples."""
    held_out, members, unit = result.validation.held_out, result.validation.members, unit_of(result)
    known = [one for one in members.heads if one.alone.effect is not None] if members else []
    if len(known) < SEVERAL or not held_out or held_out.intact is None or unit.sign != "%":
        return
    one = min(known, key=lambda member: member.alone.effect or 0.0)
    effect, low, high = one.alone.effect or 0.0, one.alone.low, one.alone.high
    said = "changed" if (high is not None and high < 0) else "open"
    change = Change(outcome=effect, low=low, high=high, verdict=said)
    left = held_out.intact + (effect if unit.higher_is_better else -effect)
    scores = held_out.intact, min(max(left, 0.0), 1.0)
    label = f"{called(result.task.name)}, {one.head} alone"
    yield make_row(label, RowKind.ALONE, unit, scores, change, held_out.examples)


def is_undecided(verdict: Verdict, rows: list[CardRow]) -> bool:
    """Tell whether an open row could turn the verdict: a loss that is not seen yet."""
    open_kinds = {row.kind for row in rows if row.said is Said.OPEN}
    return verdict is Verdict.SPECIFIC and not open_kinds.isdisjoint(DECIDING)


def list_unnamed(result: Result) -> Iterator[str]:
    """Yield which heads were found and are not named, and why."""
    members = result.validation.members
    if members and (unsure := [one.head for one in members.heads if not one.is_confirmed]):
        yield f"Named with the others, though what each adds is open: {' '.join(unsure)}."
    if unconfirmed := result.validation.unconfirmed:
        yield f"Found, and not confirmed by the check: {' '.join(unconfirmed)}."
    if not result.top and any(head.effect is not None for head in result.heads):
        yield "More examples may confirm heads."
        if result.method.goal == "heads":
            yield "--goal set looks for heads that matter together."
    breaks = result.search.breaks
    others = [
        f"{name} ({breaks[name]})" if name in breaks else name
        for name in result.search.universal
        if name not in result.top
    ]
    if others:
        yield f"Left out, as each alone breaks another task too: {' '.join(others[:LISTED])}."
    if costly := result.validation.costly:
        yield f"Needed too, and left out for what else they break: {' '.join(costly)}."


def list_notes(result: Result) -> Iterator[str]:
    """Yield what a reader must know beside the table, in a sentence each."""
    yield from list_unnamed(result)
    if result.task.copies:
        yield f"{result.task.copies:,} examples repeat a question and count for nothing."
    if said := INSTEAD.get(result.method.mode):
        yield said
    if excluded := result.search.excluded:
        yield f"Left in, as --exclude says: {' '.join(excluded[:LISTED])}."
    if uncovered := result.model.uncovered:
        yield f"No head of these was knocked out: {', '.join(uncovered)}."


def compare_text(text: TextChange) -> CardRow:
    """Make the row of ordinary text: the surprise of its next token, in nats."""
    before, after = text.surprise.intact, text.surprise.knocked_out
    return CardRow(
        label=f"ordinary text, nats a token (KL {text.nats:.2g})",
        kind=RowKind.TEXT,
        unit="",
        change_unit="",
        intact=before,
        without=after,
        change=None if before is None or after is None else after - before,
        low=None,
        high=None,
        said=None,
        examples=text.tokens,
    )


def name_wording(name: str) -> str:
    """Say what other words a twin asks in."""
    if name.endswith(ZERO_SHOT):
        return ZERO_SHOT_LABEL
    return "in other words" if name.endswith(TWIN) else f"in other words, {name}"


def compared(label: str, kind: RowKind, entry: TaskComparison, unit: Unit, named: bool) -> CardRow:
    """Make the row of a task that was scored before and after; without heads, of the intact one."""
    intact, knocked_out = entry.scores
    measured = entry.knocked_out or entry.intact
    scores, change = (intact, knocked_out if named else None), entry.change if named else None
    row = make_row(label, kind, unit, scores, change, measured.examples if measured else None)
    return row.model_copy(update={"said": read_task(entry) if named else None})


def make_row(
    label: str,
    kind: RowKind,
    unit: Unit,
    scores: tuple[float | None, float | None],
    change: Change | None,
    examples: int | None,
) -> CardRow:
    """Make a row, and say what the interval says."""
    return CardRow(
        label=label,
        kind=kind,
        unit=unit.sign,
        change_unit=unit_of_outcomes(unit).sign,
        intact=scores[0],
        without=scores[1],
        change=change.outcome if change else None,
        low=change.low if change else None,
        high=change.high if change else None,
        said=read_change(change),
        examples=examples,
    )


def read_change(change: Change | None) -> Said | None:
    """Read an interval: lost for sure, kept (no loss beyond the margin) for sure, or neither."""
    if change is None or change.outcome is None:
        return None
    if change.verdict == "changed":
        return Said.LOST if change.outcome < 0 else Said.KEPT
    if change.low is not None and change.margin is not None and change.low >= -change.margin:
        return Said.KEPT
    return Said.KEPT if change.verdict == "unchanged" else Said.OPEN


def read_task(entry: TaskComparison) -> Said | None:
    """Read a task's change; one that is right too rarely to lose more than the margin says so."""
    unit, before = unit_of_task(entry), entry.scores[0]
    margin = entry.change.margin if entry.change else None
    # F1 may be 0 where most answers are right, of which some can be lost
    share = unit.sign == "%" and unit.higher_is_better and entry.metric != "f1"
    if share and before is not None and margin is not None and before <= margin:
        return Said.POWERLESS
    return read_change(entry.change)


def pick_samples(result: Result) -> Iterator[Sample]:
    """Yield the first lost answers."""
    lost = result.validation.task.lost
    for pair in lost.samples[:SAMPLES] if lost and result.top else ():
        intact, without = (inline(said)[:PROMPT] for said in both_said(pair))
        yield Sample(prompt=shorten_prompt(pair.prompt or ""), intact=intact, without=without)


def both_said(pair: AnswerPair) -> tuple[str, str]:
    """Return what the model said intact and knocked out, quoted if only white space differs."""
    gold = pair.gold or ""
    intact, without = (first_said(said or "", gold) for said in (pair.intact, pair.knocked_out))
    if intact != without and intact.strip() == without.strip():
        return repr(intact), repr(without)
    return intact.strip(), without.strip()


def first_said(answer: str, gold: str) -> str:
    """Return what the model would say first, of an answer that is the right one's log-probability.

    Any other answer is returned as it is.
    """
    if not answer.startswith(READ_OFF):
        return answer
    if answer.endswith("(its first choice)"):
        return gold
    _, _, instead = answer.partition("(its first choice is ")
    return instead.removesuffix(")").strip("'\"") or "another answer"


def shorten_prompt(prompt: str) -> str:
    """Return the last line of a prompt, with the one before where it is a single word."""
    lines = prompt.strip().splitlines() or [""]
    asked = inline(lines[-1] if " " in lines[-1] else " ".join(lines[-2:]))
    return asked if len(asked) <= PROMPT else f"…{asked[1 - PROMPT :]}"
