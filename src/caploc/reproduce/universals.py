"""The paper's tables about heads that matter to many tasks: 5, 7 and 8."""

from collections.abc import Sequence

from caploc.exhibits.exhibit import Cell, Exhibit
from caploc.heads import Head
from caploc.reproduce import published
from caploc.reproduce.cells import drop_value, format_score, mean, score_value
from caploc.reproduce.preset import Benchmark, PresetModel
from caploc.reproduce.selection import TRIED, Lab, knowledge_heads, universal_heads


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
    columns = ("model", "head", *(f"{group} drop" for group in groups))
    notes = universal_notes(lab)
    if shares := [benchmark.label for benchmark in lab.preset.benchmarks if benchmark.relative]:
        notes.append(f"In these means {' and '.join(shares)} is a share of the intact score.")
    return Exhibit("table5", "Table 5: universal heads", columns, rows, notes)


def table7(lab: Lab) -> Exhibit:
    """Every benchmark with each universal head knocked out."""
    benchmarks = lab.preset.benchmarks
    rows: list[tuple[Cell, ...]] = []
    for model in lab.preset.models:
        rows.append((model.label, "none", *scores(lab, model, benchmarks, [])))
        for head in universal_heads(lab, model):
            name = named_by_paper(model, head)
            rows.append((model.label, name, *scores(lab, model, benchmarks, [head])))
    columns = ("model", "head", *(benchmark.label for benchmark in benchmarks), "mean")
    title = "Table 7: every benchmark without a universal head"
    return Exhibit("table7", title, columns, rows, universal_notes(lab))


def table8(lab: Lab) -> Exhibit:
    """Heads of knowledge questions with choices, against all benchmarks."""
    choice = [benchmark for benchmark in lab.preset.benchmarks if benchmark.choice]
    other = [benchmark for benchmark in lab.preset.benchmarks if not benchmark.choice]
    rows: list[tuple[Cell, ...]] = []
    notes = [
        f"Heads among the first {lab.preset.top} of two or more subjects of knowledge, universal "
        "ones left out."
    ]
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
    columns = ("model", "head", *(b.label for b in choice), "mean of these")
    columns += (*(b.label for b in other), "mean of those")
    title = "Table 8: heads of knowledge questions with choices"
    return Exhibit("table8", title, columns, rows, notes)


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
    """What makes a head universal, which models have none, and what else the paper names."""
    notes = [
        f"Tried: heads among the first {lab.preset.top} of two or more families of tasks, each "
        f"alone on at most {TRIED} examples of every task. Universal: those whose loss costs half "
        "of the families, and two at least, more than a tenth of their score beyond doubt."
    ]
    for model in lab.preset.models:
        ours = {str(head) for head in universal_heads(lab, model)}
        if not ours:
            notes.append(f"No head of {model.label} is universal.")
        if missing := [
            name for name in published.published_universal(model.label) if name not in ours
        ]:
            notes.append(f"{model.label}: the paper also names {' '.join(missing)}.")
    return notes
