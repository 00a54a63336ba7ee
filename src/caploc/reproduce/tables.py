"""The paper's tables about a capability's own heads: 1, 2, 3, 4, 6 and 9."""

from collections.abc import Iterator, Sequence

from caploc.exhibits.exhibit import NOTHING, Cell, Exhibit, Value
from caploc.heads import Head, HeadGrid
from caploc.reproduce import published
from caploc.reproduce.cells import drop_value, format_score, general, lost_share, score_value
from caploc.reproduce.laboratory import Searched
from caploc.reproduce.preset import Benchmark, PresetModel
from caploc.reproduce.selection import Lab, idle, named_heads, universal_heads

FILTERED = "Universal heads are left out of every task's heads."


def table1(lab: Lab) -> Exhibit:
    """Models and how many heads they have."""
    rows: list[tuple[Cell, ...]] = []
    for model in lab.preset.models:
        grid = model.grid
        layers, heads = published.SIZES.get(model.label, (None, None))
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
    columns = ("model", "layers", "heads a layer", "key-value heads", "heads")
    notes = ["Read from each model's configuration.", *published.slips(1, labels(lab))]
    return Exhibit("table1", "Table 1: models", columns, rows, notes)


def labels(lab: Lab) -> list[str]:
    """The models' labels."""
    return [model.label for model in lab.preset.models]


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
    columns = ("capability", "model", "task", "task drop", "% of intact", "general drop")
    title = f"Table 2: {preset.top} heads of each capability knocked out"
    return Exhibit("table2", title, columns, rows, [FILTERED])


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
    columns = ("model", "found on", "judged on", "task drop", "% of intact", "general drop")
    return Exhibit("table3", "Table 3: heads on a twin of their task", columns, rows, [FILTERED])


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
    scores = ("task drop", "% of intact", "general drop")
    columns = ("task", "method", *scores, "masks", "all masks", "rows")
    notes = [
        f"On {model.label} only. Masks: evaluations of all examples that heads are found on, from "
        "which the heads follow, as the paper counts. All masks: with those of the other settings "
        "that a search for masks and rate tried, and the sets that it compared. Rows: single "
        "examples under all of these; intact ones, and those that only check, are not counted.",
        FILTERED,
    ]
    return Exhibit("table4", "Table 4: methods", columns, rows, notes)


def spent(model: PresetModel, label: str, found: Searched) -> tuple[Cell, Cell, Cell]:
    """Masks that the heads follow from, all masks, rows."""
    masks = found.told["masks"] if "settings" in found.told else found.masks
    printed = published.evaluations(model.label, label)
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
    columns = ("task", "heads", "the last of them", "score", "task drop", "general drop")
    notes = [f"On {model.label} only.", FILTERED]
    return Exhibit("table6", "Table 6: one head after another", columns, rows, notes)


def table9(lab: Lab) -> Exhibit:
    """The heads themselves."""
    preset = lab.preset
    rows: list[tuple[Cell, ...]] = []
    for model in preset.models:
        for benchmark in preset.localized:
            for label in searches_of(lab, model):
                heads = named_heads(lab, model, benchmark, label)
                names = " ".join(marked(model.grid, heads, idle(lab, model, benchmark, label)))
                beside = printed_heads(model, label, benchmark, heads)
                rows.append((model.label, benchmark.label, label, names, beside))
        struck = " ".join(map(str, sorted(universal_heads(lab, model))))
        paper = " ".join(published.published_universal(model.label))
        rows.append((model.label, "universal", NOTHING, struck or NOTHING, paper or NOTHING))
    columns = ("model", "task", "method", f"first {preset.top} heads", "paper")
    notes = [
        "†: shares its key-value head with another head of the row.",
        "‡: the search itself would not name it, for it saw no need of it.",
        f"All methods on {preset.leader.label} only, {preset.main} on every model.",
        *published.slips(9, labels(lab)),
        FILTERED,
    ]
    return Exhibit("table9", "Table 9: the heads", columns, rows, notes)


def searches_of(lab: Lab, model: PresetModel) -> list[str]:
    """All searches for the first model, the main one for the others, as in the paper."""
    every = [search.label for search in lab.preset.searches]
    return every if lab.preset.leads(model) else [lab.preset.main]


def printed_heads(
    model: PresetModel, label: str, benchmark: Benchmark, heads: Sequence[Head]
) -> str:
    """What the paper names, and how many of these heads are ours too."""
    printed = published.published_heads(model.label, label, benchmark.label)
    if not printed:
        return NOTHING
    if (model.label, benchmark.label) in published.REPEATED:
        return f"{' '.join(printed)} (another model's)"
    both = len({str(head) for head in heads} & set(printed))
    return f"{' '.join(printed)} ({both} in common)"


def marked(grid: HeadGrid, heads: Sequence[Head], idle: set[Head]) -> Iterator[str]:
    """Names, with marks at those that share a key-value head, and at idle ones."""
    columns = {grid.column(head) for head in heads}
    mates = {column for group in grid.groups if len(columns & set(group)) > 1 for column in group}
    for head in heads:
        yield str(head) + "†" * (grid.column(head) in mates) + "‡" * (head in idle)
