"""The paper's tables, and what makes a head universal."""

from collections.abc import Iterator, Sequence

from caploc.heads import Head, HeadGrid
from caploc.report.exhibits import NOTHING, Cell, Exhibit, Value
from caploc.reproduce import published
from caploc.reproduce.laboratory import Searched
from caploc.reproduce.preset import Benchmark, PresetModel
from caploc.reproduce.selection import (
    Lab,
    drop_value,
    fill_exhibit,
    format_score,
    general,
    idle,
    knowledge_heads,
    lost_share,
    mean,
    named_heads,
    read_exhibit_texts,
    score_value,
    universal_heads,
)


def table1(lab: Lab) -> Exhibit:
    """Models and how many heads they have."""
    rows: list[tuple[Cell, ...]] = []
    for model in lab.preset.models:
        grid = model.grid
        layers, heads = published.PRINTED["sizes"].get(model.label, (None, None))
        counts = sorted(set(grid.heads_per_layer))
        rows.append(
            (
                model.label,
                Value(grid.layers, None, layers, digits=0),
                "-".join(map(str, dict.fromkeys((counts[0], counts[-1])))),
                Value(len(grid.groups), digits=0),
                Value(grid.size, None, heads, digits=0),
            )
        )
    slips = published.slips(1, [model.label for model in lab.preset.models])
    return fill_exhibit(lab, "table1", rows, after=slips)


def table2(lab: Lab) -> Exhibit:
    """What a capability's heads cost on its task, and in general."""
    preset = lab.preset
    rows: list[tuple[Cell, ...]] = []
    for model in preset.models:
        for benchmark in leading(preset.capabilities):
            heads = named_heads(lab, model, benchmark)
            rows.append(
                (benchmark.group, model.label, benchmark.label)
                + costs(lab, model, benchmark, benchmark, heads)
            )
    groups = list(dict.fromkeys(benchmark.group for benchmark in preset.capabilities))
    rows.sort(key=lambda row: groups.index(str(row[0])))
    return fill_exhibit(lab, "table2", rows)


def leading(benchmarks: Sequence[Benchmark]) -> list[Benchmark]:
    """Without a second one of a family: twins are Table 3's."""
    first: dict[str, Benchmark] = {}
    for benchmark in benchmarks:
        first.setdefault(benchmark.kin, benchmark)
    return list(first.values())


def costs(
    lab: Lab,
    model: PresetModel,
    found_on: Benchmark | None,
    judged: Benchmark,
    heads: Sequence[Head],
) -> tuple[Cell, Cell, Cell]:
    """Drop on a benchmark, as a share of its intact score, and in general.

    The paper's figures stand beside them where it prints such; None as `found_on` is for heads of
    which it prints no scores.
    """
    on_task, in_general = format_score(lab, model, judged, heads), general(lab, model, heads)
    task = rest = None
    if found_on is not None:
        key = (model.label, found_on.label, len(heads))
        task = published.drop(*key, [judged.label])
        rest = published.drop(*key, [benchmark.label for benchmark in lab.preset.general])
    return drop_value(on_task, task), lost_share(on_task), drop_value(in_general, rest)


def table3(lab: Lab) -> Exhibit:
    """Heads found on one benchmark, judged on it and on its twin."""
    preset = lab.preset
    rows: list[tuple[Cell, ...]] = []
    for model in preset.models:
        for found_on in preset.capabilities:
            twins = preset.kindred(found_on)
            if len(twins) < 2:
                continue
            heads = named_heads(lab, model, found_on)
            rows += [
                (model.label, found_on.label, judged.label)
                + costs(lab, model, found_on, judged, heads)
                for judged in twins
            ]
    return fill_exhibit(lab, "table3", rows)


def table4(lab: Lab) -> Exhibit:
    """Methods: what their heads cost, and what finding them took."""
    preset, model = lab.preset, lab.preset.leader
    rows: list[tuple[Cell, ...]] = []
    for benchmark in preset.localized:
        for spec in preset.searches:
            heads = named_heads(lab, model, benchmark, spec.label)
            # The scores that the paper prints are of its main search.
            source = benchmark if spec.label == preset.main else None
            cost = costs(lab, model, source, benchmark, heads)
            took = spent(model, spec.label, lab.search(model, benchmark, spec.label))
            rows.append((benchmark.label, spec.label, *cost, *took))
    return fill_exhibit(lab, "table4", rows)


def spent(model: PresetModel, label: str, found: Searched) -> tuple[Cell, Cell, Cell]:
    """Masks that the heads follow from, all masks, rows."""
    masks = found.told["masks"] if "settings" in found.told else found.masks
    known = published.PRINTED["evaluations"] if model.label == published.LEADER else {}
    printed = known.get(label)
    return (
        Value(masks, None, printed, digits=0),
        Value(found.masks, digits=0),
        Value(found.rows, digits=0),
    )


def table6(lab: Lab) -> Exhibit:
    """One head after another."""
    preset, model = lab.preset, lab.preset.leader
    rows: list[tuple[Cell, ...]] = []
    for benchmark in preset.localized:
        heads = named_heads(lab, model, benchmark)
        for count in range(len(heads) + 1):
            gone = heads[:count]
            key = (model.label, benchmark.label, count, [benchmark.label])
            score = score_value(
                format_score(lab, model, benchmark, gone), published.published_score(*key)
            )
            if gone:
                task, _, rest = costs(lab, model, benchmark, benchmark, gone)
                rows.append((benchmark.label, str(count), str(gone[-1]), score, task, rest))
            else:
                rows.append((benchmark.label, "none", NOTHING, score, NOTHING, NOTHING))
    return fill_exhibit(lab, "table6", rows)


def table9(lab: Lab) -> Exhibit:
    """The heads themselves."""
    preset = lab.preset
    every = [search.label for search in preset.searches]
    rows: list[tuple[Cell, ...]] = []
    for model in preset.models:
        for benchmark in preset.localized:
            for label in every if preset.leads(model) else [preset.main]:  # as in the paper
                heads = named_heads(lab, model, benchmark, label)
                names = " ".join(marked(model.grid, heads, idle(lab, model, benchmark, label)))
                beside = printed_heads(model, label, benchmark, heads)
                rows.append((model.label, benchmark.label, label, names, beside))
        struck = " ".join(map(str, sorted(universal_heads(lab, model))))
        paper = " ".join(published.published_universal(model.label))
        rows.append((model.label, "universal", NOTHING, struck or NOTHING, paper or NOTHING))
    slips = published.slips(9, [model.label for model in preset.models])
    filtered = read_exhibit_texts()["universal heads left out"]
    return fill_exhibit(lab, "table9", rows, after=[*slips, filtered])


def printed_heads(
    model: PresetModel, label: str, benchmark: Benchmark, heads: Sequence[Head]
) -> str:
    """What the paper names, and how many of these heads are ours too."""
    printed = published.published_heads(model.label, label, benchmark.label)
    if not printed:
        return NOTHING
    if benchmark.label in published.PRINTED["repeated"].get(model.label, []):
        return f"{' '.join(printed)} (another model's)"
    both = len({str(head) for head in heads} & set(printed))
    return f"{' '.join(printed)} ({both} in common)"


def marked(grid: HeadGrid, heads: Sequence[Head], idle: set[Head]) -> Iterator[str]:
    """Names, with marks at those that share a key-value head, and at idle ones."""
    columns = {grid.column(head) for head in heads}
    mates = {column for group in grid.groups if len(columns & set(group)) > 1 for column in group}
    for head in heads:
        yield str(head) + "†" * (grid.column(head) in mates) + "‡" * (head in idle)


def table5(lab: Lab) -> Exhibit:
    """What each universal head costs every group of benchmarks."""
    groups = list(dict.fromkeys(benchmark.group for benchmark in lab.preset.benchmarks))
    rows: list[tuple[Cell, ...]] = []
    for model in lab.preset.models:
        for head in universal_heads(lab, model):
            drops = [
                drop_value(mean(lab, model, lab.preset.of_group(group), [head])) for group in groups
            ]
            rows.append((model.label, named_by_paper(model, head), *drops))
    notes = universal_notes(lab)
    if shares := [benchmark.label for benchmark in lab.preset.benchmarks if benchmark.relative]:
        notes.append(f"In these means {' and '.join(shares)} is a share of the intact score.")
    columns = [f"{group} drop" for group in groups]
    return fill_exhibit(lab, "table5", rows, columns=columns, after=notes)


def table7(lab: Lab) -> Exhibit:
    """Every benchmark with each universal head knocked out."""
    benchmarks = lab.preset.benchmarks
    rows: list[tuple[Cell, ...]] = []
    for model in lab.preset.models:
        rows.append((model.label, "none", *scores(lab, model, benchmarks, [])))
        for head in universal_heads(lab, model):
            name = named_by_paper(model, head)
            rows.append((model.label, name, *scores(lab, model, benchmarks, [head])))
    columns = [*(benchmark.label for benchmark in benchmarks), "mean"]
    return fill_exhibit(lab, "table7", rows, columns=columns, after=universal_notes(lab))


def table8(lab: Lab) -> Exhibit:
    """Heads of knowledge questions with choices, against all benchmarks."""
    choice = [benchmark for benchmark in lab.preset.benchmarks if benchmark.choice]
    other = [benchmark for benchmark in lab.preset.benchmarks if not benchmark.choice]
    rows: list[tuple[Cell, ...]] = []
    notes = []
    for model in lab.preset.models:
        found = knowledge_heads(lab, model)
        if not found:
            notes.append(f"{model.label} has no such head.")
        for heads in ([], *([head] for head in found)):
            name = " ".join(map(str, heads)) or "none"
            rows.append(
                (model.label, name)
                + scores(lab, model, choice, heads)
                + scores(lab, model, other, heads)
            )
    columns = [*(b.label for b in choice), "mean of these"]
    columns += [*(b.label for b in other), "mean of those"]
    return fill_exhibit(lab, "table8", rows, columns=columns, after=notes)


def scores(
    lab: Lab, model: PresetModel, benchmarks: Sequence[Benchmark], heads: Sequence[Head]
) -> tuple[Cell, ...]:
    """Each benchmark's score without at most one head, and their mean."""
    name = " ".join(map(str, heads))
    cells = []
    for benchmark in benchmarks:
        printed = published.knowledge(model.label, name, len(heads), [benchmark.label])
        if printed is None and not heads:
            printed = published.published_score(model.label, "", 0, [benchmark.label])
        cells.append(score_value(format_score(lab, model, benchmark, heads), printed))
    return (*cells, score_value(mean(lab, model, benchmarks, heads)))


def named_by_paper(model: PresetModel, head: Head) -> str:
    """The head, and whether the paper names it too."""
    return (
        f"{head} (paper too)"
        if str(head) in published.published_universal(model.label)
        else str(head)
    )


def universal_notes(lab: Lab) -> list[str]:
    """Tell which models have no universal head, and what else the paper names."""
    notes = []
    for model in lab.preset.models:
        ours = {str(head) for head in universal_heads(lab, model)}
        if not ours:
            notes.append(f"No head of {model.label} is universal.")
        theirs = published.published_universal(model.label)
        if missing := [name for name in theirs if name not in ours]:
            notes.append(f"{model.label}: the paper also names {' '.join(missing)}.")
    return notes
