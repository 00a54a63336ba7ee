"""The paper's tables 1 to 9 and figures 1 to 4, from what a laboratory tells."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, compress, cycle

from caploc.components import Head
from caploc.components import Heads as HeadGrid
from caploc.report import charts
from caploc.report.exhibits import NOTHING, Cell, Exhibit, Row, Value
from caploc.reproduce.laboratory import Heads, Lab, Searched
from caploc.reproduce.preset import KNOWLEDGE, Benchmark, Preset, PresetModel
from caploc.reproduce.selection import (
    LEADER,
    PRINTED,
    able,
    average,
    drop_value,
    fill_exhibit,
    filtered_note,
    format_score,
    general,
    idle,
    knowledge_heads,
    left_out,
    lost_share,
    mean,
    named_heads,
    published_drop,
    published_heads,
    published_knowledge,
    published_score,
    published_universal,
    score_value,
    search_own,
    searches_made,
    short_note,
    universal_heads,
)

SHOWN = 2  # heads of a model in figure 3; the paper finds one or two
INTACT, SCORE, SHARED = "intact", "score, of 1", "all that every model can do"
BLACK, GREY = "var(--series-7)", "var(--quiet)"
COLOURS = [f"var(--series-{number})" for number in (1, 2, 3, 4, 5, 6, 8, 9)]  # 7 is black
GREYS = {"its first head": GREY, "its second head": "#aab0ba"}
FEWEST_AXES = 3  # of a radar


def table1(lab: Lab) -> Exhibit:
    """Models and how many heads they have."""
    rows: list[Row] = []
    for model in lab.preset.models:
        grid = model.grid
        layers, heads = PRINTED["sizes"].get(model.label, (None, None))
        counts = sorted(set(grid.heads_per_layer))
        a_layer = "-".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
        depth, size = (
            Value(ours, None, printed, digits=0)
            for ours, printed in ((grid.layers, layers), (grid.size, heads))
        )
        rows.append((model.label, depth, a_layer, Value(len(grid.groups), digits=0), size))
    return fill_exhibit(lab, "table1", rows)


def table2(lab: Lab) -> Exhibit:
    """What a capability's heads cost on its task, and in general."""
    preset = lab.preset
    rows: list[Row] = []
    short: list[str] = []
    for model in preset.models:
        for benchmark in leading(able(lab, model, preset.capabilities)):
            heads = named_heads(lab, model, benchmark)
            short += short_note(lab, model, benchmark, heads)
            cost = costs(lab, model, benchmark, benchmark, heads)
            rows.append((benchmark.group, model.label, benchmark.label, *cost))
    groups = list(dict.fromkeys(benchmark.group for benchmark in preset.capabilities))
    rows.sort(key=lambda row: groups.index(str(row[0])))
    return fill_exhibit(lab, "table2", rows, after=[*short, *left_out(lab)])


def leading(benchmarks: Sequence[Benchmark]) -> list[Benchmark]:
    """Without a second one of a family: twins are Table 3's."""
    first: dict[str, Benchmark] = {}
    for benchmark in benchmarks:
        first.setdefault(benchmark.kin, benchmark)
    return list(first.values())


def costs(
    lab: Lab, model: PresetModel, found_on: Benchmark | None, judged: Benchmark, heads: Heads
) -> tuple[Cell, Cell, Cell]:
    """Drop on a benchmark, as a share of its intact score, and in general.

    The paper's figures stand beside them where it prints such; None as `found_on` is for heads of
    which it prints no scores.
    """
    if not heads:  # none was found
        return Value(None), Value(None), Value(None)
    on_task, in_general = format_score(lab, model, judged, heads), general(lab, model, heads)
    task = rest = None
    if found_on is not None:
        key = (model.label, found_on.label, len(heads))
        task = published_drop(*key, [judged.label])
        rest = published_drop(*key, [benchmark.label for benchmark in lab.preset.general])
    return drop_value(on_task, task), lost_share(on_task), drop_value(in_general, rest)


def table3(lab: Lab) -> Exhibit:
    """Heads found on one benchmark, judged on it and on its twin."""
    preset = lab.preset
    rows: list[Row] = []
    short: list[str] = []
    for model in preset.models:
        for found_on in able(lab, model, preset.capabilities):
            twins = preset.kindred(found_on)
            if len(twins) < 2:
                continue
            heads = named_heads(lab, model, found_on)
            short += short_note(lab, model, found_on, heads)
            for judged in able(lab, model, twins):
                cost = costs(lab, model, found_on, judged, heads)
                rows.append((model.label, found_on.label, judged.label, *cost))
    return fill_exhibit(lab, "table3", rows, after=short)


def table4(lab: Lab) -> Exhibit:
    """Methods: what their heads cost, and what finding them took."""
    preset, model = lab.preset, lab.preset.leader
    rows: list[Row] = []
    short: list[str] = []
    for benchmark in able(lab, model, preset.localized):
        for spec in preset.searches:
            heads = named_heads(lab, model, benchmark, spec.label)
            short += short_note(lab, model, benchmark, heads, spec.label)
            # The scores that the paper prints are of its main search.
            source = benchmark if spec.label == preset.main else None
            cost = costs(lab, model, source, benchmark, heads)
            made = searches_made(lab, model, benchmark, spec.label)
            rows.append((benchmark.label, spec.label, *cost, *spent(model, spec.label, made)))
    return fill_exhibit(lab, "table4", rows, after=short)


def spent(model: PresetModel, label: str, made: Sequence[Searched]) -> tuple[Cell, Cell, Cell]:
    """Masks of the last search, whose heads they are; masks and rows of all searches made."""
    found = made[-1]
    masks = found.told["masks"] if "settings" in found.told else found.masks
    known = PRINTED["evaluations"] if model.label == LEADER else {}
    followed = Value(masks, None, known.get(label), digits=0)
    every, rows = sum(each.masks for each in made), sum(each.rows for each in made)
    return followed, Value(every, digits=0), Value(rows, digits=0)


def table6(lab: Lab) -> Exhibit:
    """One head after another."""
    preset, model = lab.preset, lab.preset.leader
    rows: list[Row] = []
    short: list[str] = []
    for benchmark in able(lab, model, preset.localized):
        heads = named_heads(lab, model, benchmark)
        short += short_note(lab, model, benchmark, heads)
        for count in range(len(heads) + 1):
            gone = heads[:count]
            key = (model.label, benchmark.label, count, [benchmark.label])
            score = score_value(format_score(lab, model, benchmark, gone), published_score(*key))
            if gone:
                task, _, rest = costs(lab, model, benchmark, benchmark, gone)
                rows.append((benchmark.label, str(count), str(gone[-1]), score, task, rest))
            else:
                rows.append((benchmark.label, "none", NOTHING, score, NOTHING, NOTHING))
    return fill_exhibit(lab, "table6", rows, after=short)


def table9(lab: Lab) -> Exhibit:
    """The heads themselves."""
    preset = lab.preset
    every = [search.label for search in preset.searches]
    rows: list[Row] = []
    notes: list[str] = []
    for model in preset.models:
        labels = every if preset.leads(model) else [preset.main]  # as in the paper
        for benchmark in able(lab, model, preset.localized):
            for label in labels:
                heads = named_heads(lab, model, benchmark, label)
                notes += short_note(lab, model, benchmark, heads, label)
                if steps := search_own(lab, model, benchmark, label).steps:
                    added = ", ".join(f"{head} {Value(loss)}" for head, loss in steps)
                    notes.append(f"{label} for {benchmark.label}, what each head added: {added}.")
                names = " ".join(marked(model.grid, heads, idle(lab, model, benchmark, label)))
                beside = printed_heads(model, label, benchmark, heads)
                rows.append((model.label, benchmark.label, label, names, beside))
        struck = " ".join(map(str, sorted(universal_heads(lab, model))))
        paper = " ".join(published_universal(model.label))
        rows.append((model.label, "universal", NOTHING, struck or NOTHING, paper or NOTHING))
    notes = [filtered_note(lab), *notes, *left_out(lab)]
    return fill_exhibit(lab, "table9", rows, after=notes)


def printed_heads(model: PresetModel, label: str, benchmark: Benchmark, heads: Heads) -> str:
    """What the paper names, and how many of these heads are ours too."""
    printed = published_heads(model.label, label, benchmark.label)
    if not printed:
        return NOTHING
    if benchmark.label in PRINTED["repeated"].get(model.label, []):
        return f"{' '.join(printed)} (another model's)"
    both = len({str(head) for head in heads} & set(printed))
    return f"{' '.join(printed)} ({both} in common)"


def marked(grid: HeadGrid, heads: Heads, idle: set[Head]) -> Iterator[str]:
    """Names, with marks at those that share a key-value head, and at idle ones."""
    columns = {grid.column(head) for head in heads}
    mates = {column for group in grid.groups if len(columns & set(group)) > 1 for column in group}
    for head in heads:
        yield str(head) + "†" * (grid.column(head) in mates) + "‡" * (head in idle)


def table5(lab: Lab) -> Exhibit:
    """What each universal head costs every group of benchmarks."""
    groups = list(dict.fromkeys(benchmark.group for benchmark in lab.preset.benchmarks))
    rows: list[Row] = []
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
    rows: list[Row] = []
    for model in lab.preset.models:
        rows.append((model.label, "none", *scores(lab, model, benchmarks, [])))
        for head in universal_heads(lab, model):
            name = named_by_paper(model, head)
            rows.append((model.label, name, *scores(lab, model, benchmarks, [head])))
    columns = [*(benchmark.label for benchmark in benchmarks), "mean"]
    return fill_exhibit(lab, "table7", rows, columns=columns, after=universal_notes(lab))


def table8(lab: Lab) -> Exhibit:
    """Heads that the subjects of knowledge share, against questions of knowledge and all others."""
    asking = [b for b in lab.preset.benchmarks if b.choice or b.group == KNOWLEDGE]
    other = [benchmark for benchmark in lab.preset.benchmarks if benchmark not in asking]
    rows: list[Row] = []
    notes = []
    for model in lab.preset.models:
        found, p = knowledge_heads(lab, model)
        notes.append(f"{model.label}: by chance so many in {100 * p:.2g} % of all draws.")
        if not found:
            notes[-1] = f"{model.label} has no such head."
        for heads in ([], *([head] for head in found)):
            name = " ".join(map(str, heads)) or "none"
            cells = (scores(lab, model, some, heads) for some in (asking, other))
            rows.append((model.label, name, *chain(*cells)))
    columns = [*(b.label for b in asking), "mean", *(b.label for b in other), "mean"]
    groups = ("", 2), ("questions of knowledge", len(asking) + 1), ("others", len(other) + 1)
    return replace(fill_exhibit(lab, "table8", rows, columns=columns, after=notes), groups=groups)


def scores(lab: Lab, model: PresetModel, benchmarks: Sequence[Benchmark], heads: Heads) -> Row:
    """Each benchmark's score without at most one head, and their mean."""
    name = " ".join(map(str, heads))
    cells = []
    for benchmark in benchmarks:
        printed = published_knowledge(model.label, name, len(heads), [benchmark.label])
        if printed is None and not heads:
            printed = published_score(model.label, "", 0, [benchmark.label])
        cells.append(score_value(format_score(lab, model, benchmark, heads), printed))
    return (*cells, score_value(mean(lab, model, benchmarks, heads)))


def named_by_paper(model: PresetModel, head: Head) -> str:
    """The head, and whether the paper names it too."""
    return f"{head} (paper too)" if str(head) in published_universal(model.label) else str(head)


def universal_notes(lab: Lab) -> list[str]:
    """Tell which models have no universal head, and what else the paper names."""
    notes = []
    for model in lab.preset.models:
        ours = {str(head) for head in universal_heads(lab, model)}
        if not ours:
            notes.append(f"No head of {model.label} is universal.")
        theirs = published_universal(model.label)
        if missing := [name for name in theirs if name not in ours]:
            notes.append(f"{model.label}: the paper also names {' '.join(missing)}.")
    return notes


def fig1(lab: Lab) -> Exhibit:
    """Every benchmark, intact and with one capability's heads gone."""
    preset, model = lab.preset, lab.preset.leader
    axes = [benchmark for benchmark in preset.benchmarks if benchmark.group != KNOWLEDGE]
    sets: dict[str, tuple[str, list[Head]]] = {INTACT: ("", [])}
    short: list[str] = []
    for benchmark in leading(able(lab, model, preset.capabilities)):
        heads = named_heads(lab, model, benchmark)
        short += short_note(lab, model, benchmark, heads)
        if heads:
            sets[f"{benchmark.label} heads"] = (benchmark.label, heads)
    rows: list[Row] = []
    for name, (source, heads) in sets.items():
        values = (
            score_value(
                format_score(lab, model, benchmark, heads),
                published_score(model.label, source, len(heads), [benchmark.label]),
            )
            for benchmark in axes
        )
        rows.append((name, *values))
    columns = tuple(benchmark.label for benchmark in axes)
    done = able(lab, model, axes)
    can = [each in done for each in axes]
    if len(done) < FEWEST_AXES:
        few = ["Too few benchmarks for a picture."]
        return fill_exhibit(lab, "fig1", rows, columns=columns, before=few, after=short)
    scaled = ["In the picture every axis is a share of the intact score, guessing not taken off."]
    if not all(can):  # next to nothing is no whole to have a share of
        scaled[0] += f" Benchmarks that {model.label} cannot do intact are in the table alone."
    title = "score as a share of the intact score"
    shares = {name: list(compress(each, can)) for name, each in shares_of_first(rows).items()}
    drawn = list(compress(columns, can))
    draw = partial(charts.radar, drawn, shares, title=title, palette=palette(preset))
    filled = fill_exhibit(lab, "fig1", rows, columns=columns, before=scaled, after=short)
    return replace(filled, draw=draw)


def palette(preset: Preset) -> dict[str, str]:
    """A colour for each capability and subject, the same in all figures, by the names of series.

    Twins have one colour. What is of no capability is black or grey.
    """
    kinds = [b.label if b.group == KNOWLEDGE else b.kin for b in preset.localized]
    colours = dict(zip(dict.fromkeys(kinds), cycle(COLOURS), strict=False))
    drawn = {INTACT: BLACK, "general": GREY, SHARED: BLACK}
    for benchmark in preset.benchmarks:
        kind = benchmark.label if benchmark.group == KNOWLEDGE else benchmark.kin
        if kind in colours:
            drawn |= dict.fromkeys((benchmark.label, f"{benchmark.label} heads"), colours[kind])
            drawn.setdefault(benchmark.group, colours[kind])
    return {charts.drawable(name): colour for name, colour in drawn.items()}


def interval(value: Value) -> tuple[float | None, ...]:
    """A number and the ends of its interval where it has one, else its error."""
    return (value.number, *(value.ends or (value.stderr,)))


def named_series(rows: Sequence[Row]) -> dict[str, list[tuple[float | None, ...]]]:
    """The numbers of each row and their errors, by its name."""
    return {
        str(name): [interval(cell) for cell in cells if isinstance(cell, Value)]
        for name, *cells in rows
    }


def shares_of_first(rows: Sequence[Row]) -> dict[str, list[float | None]]:
    """Each number as a share of the first row's, by name; None where either is missing."""
    series = named_series(rows)
    wholes = [number for number, *_ in next(iter(series.values()))]
    return {
        name: [
            number / whole if number is not None and whole else None
            for (number, *_), whole in zip(values, wholes, strict=True)
        ]
        for name, values in series.items()
    }


def fig2(lab: Lab) -> Exhibit:
    """Score against the number of heads knocked out, one benchmark's, one after another."""
    preset, model = lab.preset, lab.preset.leader
    source = next(iter(able(lab, model, preset.localized)), preset.localized[0])
    heads = named_heads(lab, model, source, count=preset.most)
    lines = {twin.label: [twin] for twin in preset.kindred(source)}
    if code := [b for b in preset.of_group("code") if b.label not in lines]:
        lines["code"] = code
    lines["general"] = list(preset.general)
    rows: list[Row] = []
    curves: dict[str, list[tuple[float | None, ...]]] = {name: [] for name in lines}
    for count in range(len(heads) + 1):
        gone = heads[:count]
        cells: list[Value] = []
        for name, group in lines.items():
            key = (model.label, source.label, count, [benchmark.label for benchmark in group])
            found = mean(lab, model, group, gone)
            cells.append(score_value(found, published_score(*key)))
            curves[name].append((count, *interval(cells[-1])))
        rows.append((str(count), str(gone[-1]) if gone else NOTHING, *cells))
    across = f"{source.label} heads knocked out"
    draw = partial(charts.curves, curves, across=across, up=SCORE, zero=True)
    draw = partial(draw, palette=palette(preset))
    short = []
    if len(heads) < preset.most:
        short = [f"{preset.main} found {len(heads)} of {preset.most} heads: the curves end there."]
    filled = fill_exhibit(lab, "fig2", rows, columns=lines, after=short, source=source.label)
    return replace(filled, draw=draw)


@dataclass(frozen=True)
class Bar:
    """One bar of every group: a model without some heads, which the paper calls by `key`.

    `part` names its like in every model, where several are shown.
    """

    model: PresetModel
    what: str
    key: str
    heads: list[Head]
    part: str = INTACT


def fig3(lab: Lab) -> Exhibit:
    """Single heads that knowledge questions share, on every model that has some."""
    bars: list[Bar] = []
    for model in lab.preset.models:
        heads = knowledge_heads(lab, model)[0][:SHOWN]
        bars += [Bar(model, INTACT, "", [])] if heads else []
        bars += [
            Bar(model, str(head), str(head), [head], part)
            for head, part in zip(heads, GREYS, strict=False)
        ]
    each = [f"{bar.model.label} {bar.what}, {bar.part}" for bar in bars if bar.heads]
    notes = [f"At most {SHOWN} heads of a model, the first ones: {'; '.join(each)}."]
    if not bars:
        subjects = ", ".join(subject.label for subject in lab.preset.subjects) or "no subject"
        notes = [
            f"No head is among the first {lab.preset.top} of all of {subjects} by more than chance."
        ]
    return knowledge_bars(lab, "fig3", bars, notes)


def fig4(lab: Lab) -> Exhibit:
    """Each subject's own heads, on the first model."""
    model = lab.preset.leader
    bars = [
        Bar(model, f"{subject.label} heads", subject.label, named_heads(lab, model, subject))
        for subject in able(lab, model, lab.preset.subjects)
    ]
    if not bars:
        return knowledge_bars(lab, "fig4", [], ["There is no subject of knowledge."])
    notes = [f"On {model.label} only."]
    for subject, bar in zip(able(lab, model, lab.preset.subjects), bars, strict=True):
        notes += short_note(lab, model, subject, bar.heads)
    bars = [Bar(model, INTACT, "", []), *(bar for bar in bars if bar.heads)]
    return knowledge_bars(lab, "fig4", bars, notes)


def knowledge_bars(lab: Lab, name: str, bars: Sequence[Bar], notes: list[str]) -> Exhibit:
    """Bars over the subjects, the other questions with choices, and the rest of the general ones.

    The paper's general score in these figures leaves out MMLU, which stands beside it.
    """
    preset = lab.preset
    groups = {b.label: [b] for b in preset.benchmarks if b.group == KNOWLEDGE or b.choice}
    groups["general"] = [benchmark for benchmark in preset.general if not benchmark.choice]
    several = len({bar.model.label for bar in bars}) > 1
    rows: list[Row] = []
    guessing: list[Value] = []
    for bar in bars:
        cells, guessing = [], []
        for group in groups.values():
            key = (bar.model.label, bar.key, len(bar.heads), [b.label for b in group])
            found = mean(lab, bar.model, group, bar.heads)
            cells.append(score_value(found, published_knowledge(*key)))
            # guessing has a mean if there is something to guess among in every benchmark
            chances = (lab.score(bar.model, b, bar.heads).chance or None for b in group)
            guessing.append(Value(average(chances)))
        rows.append((f"{bar.model.label}, {bar.what}" if several else bar.what, *cells))
    marks = [value.number for value in guessing]
    names, series = list(groups), named_series(rows)
    if several:
        names, series, marks = by_model(bars, names, list(series.values()), marks)
    greys = GREYS | {bar.what: GREYS[bar.part] for bar in bars if bar.part in GREYS}
    draw = partial(charts.draw_bars, names, series, marks, up=SCORE, mark="guessing")
    draw = partial(draw, palette=palette(preset) | greys)
    rows += [("guessing", *guessing)] if rows else []
    filled = fill_exhibit(lab, name, rows, columns=groups, before=notes)
    return replace(filled, draw=draw) if rows else filled


def by_model(
    bars: Sequence[Bar],
    groups: Sequence[str],
    values: Sequence[list[tuple[float | None, ...]]],
    marks: Sequence[float | None],
) -> tuple[list[str], dict[str, list[tuple[float | None, ...]]], list[float | None]]:
    """Set the groups of each model beside those of the others, bars being named by their part."""
    models = list(dict.fromkeys(bar.model.label for bar in bars))
    found = {(b.model.label, b.part): each for b, each in zip(bars, values, strict=True)}
    nothing: list[tuple[float | None, ...]] = [(None,)] * len(groups)
    series = {
        part: [cell for model in models for cell in found.get((model, part), nothing)]
        for part in dict.fromkeys(bar.part for bar in bars)
    }
    names = [f"{group}, {model}" for model in models for group in groups]
    return names, series, list(marks) * len(models)
