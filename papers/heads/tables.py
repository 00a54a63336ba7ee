"""The paper's tables, and what it says in words only: rows of one model after another."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from caploc.components import Head, Heads
from caploc.models.loading import model_shape
from papers.exhibits import NOTHING, Value, span
from papers.heads import published
from papers.heads.localization import (
    Strength,
    common_to_all,
    describe_trend,
    localization,
    mean_strength,
    overlaps,
)
from papers.heads.measured import KNOWLEDGE, LEVEL, Benchmark, Measured, Scored

LONGEST = 90  # characters of an answer shown in a cell
FEWEST_MODELS = 3  # whose order can be right or wrong
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


def scale(model: Measured) -> Rows:
    """How strongly each capability is localized in a model."""
    options = model.setup.models[model.label]
    _, parameters = model_shape(options.name, options.revision)
    for benchmark in model.localized:
        if not (heads := model.heads(benchmark)):
            continue
        parts = model.score(benchmark, heads), model.mean(model.setup.general, heads)
        found = localization(*parts)
        yield {
            "task": benchmark.label,
            "model": model.label,
            "billions of parameters": parameters / 1e9,
            "strength": Value(None) if found is None else Value(found.value, found.stderr),
        }


def compare_models(rows: Sequence[Row]) -> tuple[list[Row], list[str]]:
    """Add the mean over tasks that every model can do, and say what the trend with size is."""
    sizes: Mapping[str, float] = {row["model"]: row["billions of parameters"] for row in rows}
    every: dict[str, dict[str, Strength]] = {}
    for row in rows:
        value = row["strength"]
        if value.number is not None:
            found = Strength(value.number, value.stderr)
            every.setdefault(row["task"], {})[row["model"]] = found
    whole = [each for each in every.values() if len(each) == len(sizes)]
    added: list[Row] = []
    if len(whole) > 1 and len(sizes) > 1:
        shared = every["all that every model can do"] = {
            model: mean_strength([each[model] for each in whole]) for model in sizes
        }
        for model, size in sizes.items():
            row = {"task": "all that every model can do", "model": model}
            row |= {"billions of parameters": size}
            added.append(row | {"strength": Value(shared[model].value, shared[model].stderr)})
    notes = [
        f"{task}: {describe_trend(strengths, sizes)}"
        for task, strengths in every.items()
        if len(strengths) >= FEWEST_MODELS
    ]
    few = [] if len(sizes) >= FEWEST_MODELS else [f"A trend takes {FEWEST_MODELS} models or more."]
    return [*rows, *added], [*notes, *few]


def failures(model: Measured) -> Rows:
    """How a model fails without a benchmark's own heads, and without each universal head."""
    for benchmark in model.localized:
        sets = [(f"{benchmark.label} heads", model.heads(benchmark))]
        sets += [(str(head), [head]) for head in model.universal]
        for name, heads in sets:
            if not heads:
                continue
            lost = model.lost(benchmark, heads)
            shares = [
                f"{kind} {100 * count / lost.count:.0f} %" for kind, count in lost.kinds.items()
            ]
            answers = [" ".join(str(pair.knocked_out).split())[:LONGEST] for pair in lost.samples]
            yield {
                "task": benchmark.label,
                "heads knocked out": name,
                "score": score_of(model.score(benchmark, heads)),
                "lost": f"{lost.count} of {lost.examples}",
                "in their place": ", ".join(shares) or NOTHING,
                "for example": next((f"“{text}”" for text in answers), NOTHING),
            }


def choice(model: Measured) -> Rows:
    """Every setting that the main search tried, and how much its choice flatters itself."""
    for benchmark in model.localized:
        search = model.run(benchmark).search
        for number, each in enumerate(search.settings or ()):
            yield {
                "task": benchmark.label,
                "masks": each.masks,
                "rate": Value(each.rate, digits=2),
                "drop where chosen": Value(each.drop, each.stderr),
                "drop on others": Value(each.held_out_drop, each.held_out_stderr),
                "kept": "kept" if number == search.chosen else "",
            }
        if surplus := search.optimism:
            model.notes.append(
                f"{benchmark.label}: the kept setting flatters itself by {surplus.value:.3f} "
                f"(95 % interval {span([surplus.low, surplus.high], 3)})."
            )


def rules(model: Measured) -> Rows:
    """Benchmarks asked or scored in another way: intact, and without the benchmark's own heads."""
    for benchmark in model.setup.benchmarks:
        heads = model.heads(benchmark) if model.run(benchmark) and benchmark.others else []
        ways = {"as above": benchmark} if benchmark.others else {}
        ways |= {name: replace(benchmark, **other) for name, other in benchmark.others.items()}
        for name, way in ways.items():
            lost = costs(model, way, heads)
            yield {
                "model": model.label,
                "task": benchmark.label,
                "asked and scored": name,
                "intact": score_of(model.score(way, [])),
                "own heads' drop": lost["task drop"],
                "% of intact": lost["% of intact"],
            }
