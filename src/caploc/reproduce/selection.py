"""Which heads an exhibit is about, scores as the cells of tables, and what the paper prints."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import sqrt
from pathlib import Path

from caploc.components import Head
from caploc.report.exhibits import Exhibit, Row, Value
from caploc.report.wording import read_yaml
from caploc.reproduce.laboratory import Heads, Lab, ScoredTask, Searched
from caploc.reproduce.preset import Benchmark, PresetModel
from caploc.search import METHODS
from caploc.stats.chance import common_to_all
from caploc.stats.localization import CLEAR, LEVEL, HeadCost, Intact, Universality, share_error
from caploc.stats.localization import judge_universality as find_universal

TEXTS = read_yaml(Path(__file__).with_name("exhibits.yaml"))  # titles, columns and notes
TRIED = 100  # examples of each task of a benchmark that a candidate is tried on alone


def universal_candidates(lab: Lab, model: PresetModel, struck: Heads = ()) -> list[Head]:
    """Heads among the first found for benchmarks of at least two families, the most often first.

    `struck` heads leave the rankings first. Of equals the one comes first that was found first, in
    the order of the benchmarks.
    """
    preset = lab.preset
    kin: dict[Head, set[str]] = {}
    for benchmark in able(lab, model, preset.localized):
        found = search_without(lab, model, benchmark, preset.main, struck)
        kept = [head for head in found.ranking if head not in struck]
        for head in kept[: preset.top]:
            kin.setdefault(head, set()).add(benchmark.kin)
    often = Counter({head: len(families) for head, families in kin.items() if len(families) > 1})
    return [head for head, _ in often.most_common()]


def universality(lab: Lab, model: PresetModel) -> Universality:
    """The candidates tried alone on every benchmark, and the verdict on each.

    With the universal heads of these out of the rankings, others come first: trials go on until no
    new candidate turns up.
    """
    heads = universal_candidates(lab, model)
    while True:
        verdict = judge_candidates(lab, model, heads)
        struck = model.grid.named_in(verdict.universal)
        new = [h for h in universal_candidates(lab, model, struck) if h not in heads]
        if not new:
            return verdict
        heads += new


def judge_candidates(lab: Lab, model: PresetModel, heads: Heads) -> Universality:
    """Try heads alone on every benchmark, and say which of them are universal."""
    effects: dict[str, dict[Head, HeadCost]] = {}
    intact: dict[str, Intact] = {}
    for benchmark in lab.preset.benchmarks:
        for head in heads:
            found = lab.score(model, benchmark, [head], limit=TRIED)
            if found.drop is None or found.drop_stderr is None or found.intact is None:
                continue
            whole = Intact(found.intact, found.intact_stderr or 0.0, found.chance)
            intact[benchmark.label] = whole
            effect = HeadCost(-found.drop, found.drop_stderr)
            effects.setdefault(benchmark.label, {})[head] = effect
    families = {benchmark.label: benchmark.kin for benchmark in lab.preset.benchmarks}
    return find_universal(effects, intact, families)


def universal_heads(lab: Lab, model: PresetModel) -> list[Head]:
    """The model's universal heads."""
    if model.label not in lab.struck:
        lab.struck[model.label] = model.grid.named_in(universality(lab, model).universal)
    return lab.struck[model.label]


def search_without(
    lab: Lab, model: PresetModel, benchmark: Benchmark, label: str, struck: Heads
) -> Searched:
    """What a search finds for a benchmark once `struck` heads are known to be universal.

    As in the paper there is one search, and universal heads leave its ranking afterwards. Where the
    preset searches again, none of their masks knocks out a struck head. The default search sees for
    itself which heads break everything.
    """
    scans = METHODS[lab.preset.search(label).method].has_goals
    again = lab.preset.search_again and not scans
    return lab.search(model, benchmark, label, struck if again else ())


def search_own(lab: Lab, model: PresetModel, benchmark: Benchmark, label: str) -> Searched:
    """The search that a benchmark's heads are of."""
    return search_without(lab, model, benchmark, label, universal_heads(lab, model))


def searches_made(lab: Lab, model: PresetModel, benchmark: Benchmark, label: str) -> list[Searched]:
    """List the searches that were made for a benchmark's heads; the last one is theirs."""
    made = [lab.search(model, benchmark, label), search_own(lab, model, benchmark, label)]
    return made[:1] if made[0] == made[1] else made


def named_heads(
    lab: Lab, model: PresetModel, benchmark: Benchmark, label: str | None = None, count: int = 0
) -> list[Head]:
    """The first heads that a search finds for a benchmark, universal ones left out.

    `count` of them, or as many as the preset's `top`, as far as the search found so many; by the
    main search, or the one labelled.
    """
    struck = universal_heads(lab, model)
    found = search_own(lab, model, benchmark, label or lab.preset.main)
    kept = [head for head in found.ranking if head not in struck]
    return kept[: count or lab.preset.top]


def idle(lab: Lab, model: PresetModel, benchmark: Benchmark, label: str) -> set[Head]:
    """Heads of a ranking for which the search saw no need: it would have named them otherwise."""
    wanted = lab.preset.search(label).top or lab.preset.top
    found = search_own(lab, model, benchmark, label)
    return set(found.ranking[found.chosen :]) if found.chosen < wanted else set()


def able(lab: Lab, model: PresetModel, benchmarks: Sequence[Benchmark]) -> list[Benchmark]:
    """Those that the model can do: at least the preset's floor, and clearly better than guessing.

    All of them, unasked, where the preset has no floor.
    """
    if not lab.preset.floor:
        return list(benchmarks)

    def can(found: ScoredTask) -> bool:
        score, error = found.intact, found.intact_stderr
        if score is None or error is None:
            return False
        return score >= lab.preset.floor and score - found.chance > CLEAR * error

    return [each for each in benchmarks if can(lab.score(model, each, []))]


def knowledge_heads(lab: Lab, model: PresetModel) -> tuple[list[Head], float]:
    """Heads among the first found for all subjects of knowledge, and the chance of so many.

    None where random sets of heads would share as many in more than 5 % of all draws, or there are
    no two subjects.
    """
    found = [named_heads(lab, model, each) for each in able(lab, model, lab.preset.subjects)]
    if len(found) < 2 or not all(found):
        return [], 1.0
    shared = [head for head in found[0] if all(head in heads for heads in found)]
    p = common_to_all(len(shared), model.grid.size, [len(heads) for heads in found])
    return shared if p < LEVEL else [], p


def format_score(lab: Lab, model: PresetModel, benchmark: Benchmark, heads: Heads) -> ScoredTask:
    """A benchmark's score as tables show it: some as a share of the intact score."""
    found = lab.score(model, benchmark, heads)
    return relative(found) if benchmark.relative else found


def relative(found: ScoredTask) -> ScoredTask:
    """As a share of the intact score; everything is None where that is 0 or not known.

    The intact model is 1 without error, and what is left and what is lost share one error.
    """
    whole = found.intact or None
    left = None if whole is None or found.score is None else found.score / whole
    errors = found.intact_stderr, found.stderr
    error = None
    if whole is not None and left is not None and None not in (*errors, found.drop_stderr):
        error = share_error(left, whole, errors, found.drop_stderr)  # type: ignore[arg-type]
    return replace(
        found,
        intact=None if whole is None else 1.0,
        intact_stderr=None if whole is None or found.intact_stderr is None else 0.0,
        score=left,
        stderr=error,
        drop=None if left is None else 1 - left,
        drop_stderr=error,
        chance=0.0,
        ends=None,
    )


def mean(lab: Lab, model: PresetModel, benchmarks: Sequence[Benchmark], heads: Heads) -> ScoredTask:
    """The plain mean over benchmarks, which share no example: their variances add up."""
    parts = [format_score(lab, model, benchmark, heads) for benchmark in benchmarks]
    if len(parts) == 1:
        return parts[0]
    return ScoredTask(
        intact=average(part.intact for part in parts),
        intact_stderr=error(part.intact_stderr for part in parts),
        score=average(part.score for part in parts),
        stderr=error(part.stderr for part in parts),
        drop=average(part.drop for part in parts),
        drop_stderr=error(part.drop_stderr for part in parts),
        examples=sum(part.examples for part in parts),
        chance=sum(part.chance for part in parts) / max(len(parts), 1),
    )


def general(lab: Lab, model: PresetModel, heads: Heads) -> ScoredTask:
    """The mean of the general benchmarks."""
    return mean(lab, model, lab.preset.general, heads)


def average(values: Iterable[float | None]) -> float | None:
    """The mean; None if any is missing, or there are none."""
    every = list(values)
    known = [value for value in every if value is not None]
    return sum(known) / len(known) if known and len(known) == len(every) else None


def error(values: Iterable[float | None]) -> float | None:
    """The standard error of a mean of independent parts; None if any is missing."""
    every = list(values)
    squares = average(None if value is None else value**2 for value in every)
    return None if squares is None else sqrt(squares / len(every))


def score_value(found: ScoredTask, printed: float | None = None) -> Value:
    """A score with its error; with none where it is 1 by definition."""
    return Value(found.score, found.stderr or None, printed, ends=found.ends)


def drop_value(found: ScoredTask, printed: float | None = None) -> Value:
    """What was lost, with the error of the paired difference."""
    return Value(found.drop, found.drop_stderr, printed)


def lost_share(found: ScoredTask) -> Value:
    """What was lost, in percent of the intact score, with its error."""
    part = relative(found)
    lost, error = (None if value is None else 100 * value for value in (part.drop, part.stderr))
    return Value(lost, error, digits=0)


def fill_exhibit(
    lab: Lab,
    name: str,
    rows: Sequence[Row],
    *,
    columns: Iterable[str] = (),
    before: Iterable[str] = (),
    after: Iterable[str] = (),
    **words: object,
) -> Exhibit:
    """Fill the table or figure of that name, with more columns, and notes before and after."""
    preset, texts = lab.preset, TEXTS[name]
    leader = preset.leader.label
    words |= {"top": preset.top, "leader": leader, "main": preset.main, "tried": TRIED}
    words["filtered"] = filtered_note(lab)
    title, *told = (text.format(**words) for text in (texts["title"], *texts["notes"]))
    headings = *(heading.format(**words) for heading in texts["columns"]), *columns
    notes = [*before, *told, *after, *unlike_published(lab, [headings, *rows])]
    return Exhibit(name, title, headings, list(rows), notes)


def unlike_published(lab: Lab, rows: Iterable[Row]) -> list[str]:
    """Say of each benchmark that a table names beside a printed number in what it differs."""
    cells = [cell for row in rows for cell in row]
    if not any(isinstance(cell, Value) and cell.published is not None for cell in cells):
        return []
    named = " ".join(cell for cell in cells if isinstance(cell, str))
    return [
        f"{each.label} is not quite the paper's: {each.differs}"
        for each in lab.preset.benchmarks
        if each.differs and each.label in named
    ]


def filtered_note(lab: Lab) -> str:
    """Say when universal heads left the tasks' heads."""
    return str(TEXTS["searched again" if lab.preset.search_again else "universal heads left out"])


def short_note(
    lab: Lab, model: PresetModel, benchmark: Benchmark, heads: Heads, label: str | None = None
) -> list[str]:
    """Say that a search, the main one or the one labelled, found too few heads for a benchmark."""
    wanted = lab.preset.top
    if len(heads) >= wanted:
        return []
    return [
        f"{label or lab.preset.main} found {len(heads)} of {wanted} heads for {benchmark.label} on "
        f"{model.label}; no other head is added."
    ]


def left_out(lab: Lab) -> list[str]:
    """Say of each model which tasks no heads were looked for, and how well it does them."""
    notes = []
    for model in lab.preset.models if lab.preset.floor else ():
        can = able(lab, model, lab.preset.localized)
        scores = [
            f"{each.label} {score_value(lab.score(model, each, []))}"
            for each in lab.preset.localized
            if each not in can
        ]
        if scores:
            notes.append(
                f"No heads were looked for where {model.label} scores below {lab.preset.floor:g} "
                f"or no better than guessing: {', '.join(scores)}."
            )
    return notes


# Figures that the heads paper prints, to stand beside ours.
PRINTED = read_yaml(Path(__file__).with_name("published.yaml"))
LEADER = "Llama-3.1-8B"  # the model of which it prints scores task by task, and every search
CURVES = {frozenset(names.split()): row.split() for names, row in PRINTED["curves"].items()}
FIGURE_3 = [frozenset(names.split()) for names in PRINTED["figure_3"]]


def published_score(model: str, source: str, count: int, benchmarks: Iterable[str]) -> float | None:
    """Return the printed mean score of benchmarks with `count` heads gone, found on `source`.

    With no head gone it is the intact model's. None where the paper prints nothing of the kind.
    """
    wanted, source = frozenset(benchmarks), source if count else ""
    if model != LEADER or not wanted:
        return None
    columns, rows = PRINTED["figure_1"], PRINTED["five_heads"]
    if count in (0, 5) and source in rows and wanted <= set(columns):
        printed = dict(zip(columns, rows[source], strict=True))
        total: float = sum(printed[label] for label in columns if label in wanted)
        return total / len(wanted)
    curve = CURVES.get(wanted, []) if source == "GSM8K" else []
    return int(curve[count]) / 10_000 if count < len(curve) else None


def published_drop(model: str, source: str, count: int, benchmarks: Sequence[str]) -> float | None:
    """Return what the printed scores say the knockout takes."""
    intact = published_score(model, "", 0, benchmarks)
    left = published_score(model, source, count, benchmarks)
    return None if intact is None or left is None else intact - left


def published_knowledge(
    model: str, heads: str, count: int, benchmarks: Iterable[str]
) -> float | None:
    """Return the printed mean score of benchmarks in figures 3 and 4, with `count` heads gone.

    `heads` names a subject, whose five heads are gone, or one head; "" is the intact model.
    """
    printed: list[float] | None = PRINTED["knowledge"].get(model, {}).get(heads)
    wanted, subjects = frozenset(benchmarks), PRINTED["figure_3"][:3]
    if printed is None or wanted not in FIGURE_3 or (heads in subjects and count != 5):
        return None
    return printed[FIGURE_3.index(wanted)]


def published_heads(model: str, search: str, benchmark: str) -> list[str]:
    """Return the heads of its Table 9; none where it names none."""
    names: str = PRINTED["heads"].get(model, {}).get(search, {}).get(benchmark, "")
    return names.split()


def published_universal(model: str) -> list[str]:
    """Return the universal heads that it names."""
    names: str = PRINTED["universal"].get(model, "")
    return names.split()
