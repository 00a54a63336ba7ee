"""The paper's tables, and what it says in words only: rows of one model after another."""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

from caploc.components import Head, Heads
from papers.exhibits import NOTHING, Value
from papers.heads import published
from papers.heads.measured import KNOWLEDGE, LEVEL, Benchmark, Measured, Scored
from papers.heads.overlaps import common_to_all, overlaps

Row = dict[str, Any]
Rows = Iterator[Row]


def score_of(found: Scored, paper: float | None = None) -> Value:
    """Take a score with its error, none where it is 1 by definition."""
    return Value(found.score, found.stderr or None, paper)


def costs(
    model: Measured, judged: Benchmark, heads: Sequence[Head], source: str = ""
) -> dict[str, Value]:
    """Tell what heads cost on a benchmark, as a share of its intact score, and in general.

    `source` is the benchmark that they were found on, where the paper prints such figures.
    """
    columns = "task drop", "% of intact", "general drop"
    if not heads:
        return dict.fromkeys(columns, Value(None))
    setup = model.setup
    own, rest = model.score(judged, heads), model.mean(setup.general, heads)
    key = model.label, source, len(heads)
    printed = [
        published.drop(*key, [each.label for each in some]) if source else None
        for some in ([judged], setup.general)
    ]
    part = own.relative()
    cells = (
        Value(own.drop, own.drop_stderr, printed[0]),
        Value(100 * part.drop, 100 * part.stderr, digits=0),
        Value(rest.drop, rest.drop_stderr, printed[1]),
    )
    return dict(zip(columns, cells, strict=True))


def leading(benchmarks: Sequence[Benchmark]) -> list[Benchmark]:
    """Leave out a second one of a family: twins are Table 3's."""
    first: dict[str, Benchmark] = {}
    for benchmark in benchmarks:
        first.setdefault(benchmark.kin, benchmark)
    return list(first.values())


def table1(label: str, grid: Heads) -> Row:
    """A model and how many heads it has."""
    layers, size = published.PRINTED["sizes"].get(label, (None, None))
    return {
        "model": label,
        "layers": Value(grid.layers, paper=layers, digits=0),
        "heads a layer": "-".join(map(str, sorted(set(grid.heads_per_layer)))),
        "key-value heads": len(grid.groups),
        "heads": Value(grid.size, paper=size, digits=0),
    }


def table2(model: Measured) -> Rows:
    """What a capability's heads cost on its task, and in general."""
    for benchmark in leading(model.capabilities):
        heads = model.heads(benchmark)
        names = {"capability": benchmark.group, "model": model.label, "task": benchmark.label}
        yield names | costs(model, benchmark, heads, benchmark.label)


def table3(model: Measured) -> Rows:
    """Heads found on one benchmark, judged on it and on its twins."""
    for source in model.capabilities:
        twins = [each for each in model.setup.benchmarks if each.kin == source.kin]
        for judged in twins if len(twins) > 1 else ():
            names = {"model": model.label, "found on": source.label, "judged on": judged.label}
            yield names | costs(model, judged, model.heads(source), source.label)


def table4(model: Measured) -> Rows:
    """Methods: what their heads cost, and what finding them took.

    Masks are those from which the heads follow, as the paper counts; rows are all that the search
    asked with heads knocked out.
    """
    for benchmark, label in product(model.localized, model.setup.methods):
        if (result := model.run(benchmark, label)) is None:
            continue
        source = benchmark.label if label == model.setup.main else ""
        known = published.PRINTED["evaluations"] if model.label == published.LEADER else {}
        yield {
            "task": benchmark.label,
            "method": label,
            **costs(model, benchmark, model.heads(benchmark, label), source),
            "masks": Value(result.fit.masks, paper=known.get(label), digits=0),
            "rows": Value(
                (result.cost.search_rows or 0) - (result.cost.intact_rows or 0), digits=0
            ),
        }


def table5(model: Measured) -> Rows:
    """What each universal head costs every group of benchmarks."""
    groups = dict.fromkeys(benchmark.group for benchmark in model.setup.benchmarks)
    for head in model.universal:
        row: Row = {"model": model.label, "head": named_by_paper(model, head)}
        for group in groups:
            lost = model.mean(model.setup.of_group(group), [head])
            row[f"{group} drop"] = Value(lost.drop, lost.drop_stderr)
        yield row
    note_universal(model)


def table6(model: Measured) -> Rows:
    """One head after another."""
    for benchmark in model.localized:
        heads = model.heads(benchmark)
        for count in range(len(heads) + 1):
            gone, label = heads[:count], benchmark.label
            paper = published.score(model.label, label, count, [label])
            row = {
                "task": label,
                "heads": count,
                "the last of them": str(gone[-1]) if gone else NOTHING,
                "score": score_of(model.score(benchmark, gone), paper),
            }
            lost = costs(model, benchmark, gone, label)
            yield row | {name: lost[name] for name in ("task drop", "general drop")}


def table7(model: Measured) -> Rows:
    """Every benchmark with each universal head knocked out."""
    for head in (None, *model.universal):
        name = "none" if head is None else named_by_paper(model, head)
        gone = [] if head is None else [head]
        yield {"model": model.label, "head": name, **scores(model, model.setup.benchmarks, gone)}
    note_universal(model)


def table8(model: Measured) -> Rows:
    """Heads that the subjects of knowledge share, against questions of knowledge and all others."""
    every = model.setup.benchmarks
    asking = [each for each in every if each.choice or each.group == KNOWLEDGE]
    others = [each for each in every if each not in asking]
    for head in (None, *knowledge_heads(model)):
        gone = [] if head is None else [head]
        row: Row = {"model": model.label, "head": "none" if head is None else str(head)}
        row |= scores(model, asking, gone, "mean of knowledge")
        yield row | scores(model, others, gone, "mean of others")


def scores(
    model: Measured, benchmarks: Sequence[Benchmark], heads: Sequence[Head], mean: str = "mean"
) -> Row:
    """Score each benchmark without at most one head, and take the mean."""
    row: Row = {}
    for benchmark in benchmarks:
        label, name = benchmark.label, " ".join(map(str, heads))
        paper = published.knowledge(model.label, name, len(heads), [label])
        if paper is None and not heads:
            paper = published.score(model.label, "", 0, [label])
        row[label] = score_of(model.score(benchmark, heads), paper)
    return row | {mean: score_of(model.mean(benchmarks, heads))}


def knowledge_heads(model: Measured) -> list[Head]:
    """Find heads among the first found for all subjects of knowledge.

    None where random sets of heads would share as many in more than 5 % of all draws.
    """
    found = [model.heads(each) for each in model.subjects]
    if len(found) < 2 or not all(found):
        return []
    shared = [head for head in found[0] if all(head in heads for heads in found)]
    p = common_to_all(len(shared), model.grid.size, [len(heads) for heads in found])
    model.notes.append(f"{model.label}: {len(shared)} heads of all subjects, by chance p {p:.2g}.")
    return shared if p < LEVEL else []


def table9(model: Measured) -> Rows:
    """The heads themselves."""
    setup = model.setup
    for benchmark in model.localized:
        for label in setup.methods if model.leads else [setup.main]:
            if (result := model.run(benchmark, label)) is None:
                continue
            heads = model.heads(benchmark, label)
            unnamed = len(result.top) < (result.method.top or setup.top)
            idle = {head for head in heads if unnamed and str(head) not in result.top}
            if steps := result.search.steps:
                added = ", ".join(f"{each.head} {Value(each.added)}" for each in steps)
                model.notes.append(f"{label} for {benchmark.label}, what each added: {added}.")
            yield {
                "model": model.label,
                "task": benchmark.label,
                "method": label,
                "heads": " ".join(marked(model.grid, heads, idle)),
                "paper": printed_heads(model, label, benchmark, heads),
            }
    yield {
        "model": model.label,
        "task": "universal",
        "method": NOTHING,
        "heads": " ".join(map(str, sorted(model.universal))) or NOTHING,
        "paper": " ".join(published.universal(model.label)) or NOTHING,
    }


def marked(grid: Heads, heads: Sequence[Head], idle: set[Head]) -> Iterator[str]:
    """Yield names, with marks at those that share a key-value head, and at idle ones."""
    columns = {grid.column(head) for head in heads}
    mates = {column for group in grid.groups if len(columns & set(group)) > 1 for column in group}
    for head in heads:
        yield str(head) + "†" * (grid.column(head) in mates) + "‡" * (head in idle)


def printed_heads(model: Measured, label: str, benchmark: Benchmark, heads: Sequence[Head]) -> str:
    """Tell what the paper names, and how many of these heads are ours too."""
    printed = published.heads(model.label, label, benchmark.label)
    if not printed:
        return NOTHING
    if benchmark.label in published.PRINTED["repeated"].get(model.label, []):
        return f"{' '.join(printed)} (another model's)"
    both = len({str(head) for head in heads} & set(printed))
    return f"{' '.join(printed)} ({both} in common)"


def named_by_paper(model: Measured, head: Head) -> str:
    """Name the head, and say whether the paper names it too."""
    also = str(head) in published.universal(model.label)
    return f"{head} (paper too)" if also else str(head)


def note_universal(model: Measured) -> None:
    """Tell that a model has no universal head, and what else the paper names."""
    ours = {str(head) for head in model.universal}
    if not ours:
        model.notes.append(f"No head of {model.label} is universal.")
    if missing := [name for name in published.universal(model.label) if name not in ours]:
        model.notes.append(f"{model.label}: the paper also names {' '.join(missing)}.")


def sharing(model: Measured) -> Rows:
    """Heads and key-value groups that benchmarks share, beside what chance would give."""
    found = {each.label: heads for each in model.localized if (heads := model.heads(each))}
    for pair in overlaps(found, model.grid):
        row: Row = {"model": model.label, "tasks": f"{pair.first}, {pair.second}"}
        for what, chance, p in (
            ("heads", pair.heads, pair.p_heads),
            ("key-value groups", pair.groups, pair.p_groups),
        ):
            row[what] = chance.count
            row[f"{what} by chance"] = Value(chance.expected, digits=2)
            row[f"p, {what}"] = Value(chance.p, digits=4)
            row[f"p in layers, {what}"] = Value(chance.p_in_layers, digits=4)
            row[f"p of all pairs, {what}"] = Value(p, digits=4)
        yield row | {"which": " ".join(pair.shared) or NOTHING}
