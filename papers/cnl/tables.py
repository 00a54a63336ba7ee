"""Tables of CNL, made of the numbers of its experiments.

Sets are *located* if they agree at `AGREE` or more, and more than what they are held against, both
by 95 % intervals; where an interval holds the border it is open. The rule is caploc's.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from caploc.neurons.enhancing import GOLD, METRIC
from papers.cnl.editing import MEASURES as EDITED
from papers.cnl.fidelity import ARMS
from papers.exhibits import NOTHING, Exhibit, Value, drawn, interval

Found = Mapping[str, Any]
AGREE = 0.6  # overlap by the larger set, or share of profiles that peak in one layer
NAMES = {
    "neurons": "knowledge neurons",
    "tracing": "causal tracing (ROME)",
    "circuits": "knowledge circuits",
}
RULE = (
    f"Located: overlap, or the same layer, of {AGREE:g} or more and a margin above 0, both by the "
    "interval; the rule is ours."
)
MEASURES = {
    "largest": "overlap",
    "iou": "IoU",
    "reference": "kept",
    "agreement": "same layer",
    "distance": "layers apart",
    "spearman": "Spearman of profiles",
}


def list_tables(numbers: Found) -> list[Exhibit]:
    """Make every table of what was measured."""
    shown: list[Exhibit] = []
    makers: dict[str, Callable[[Any], Iterable[Exhibit]]] = {
        "main": show_sets,
        "erasure": show_erasure,
        "enhancement": show_tuning,
        "yardstick": show_yardstick,
        "fidelity": show_fidelity,
        "reliability": show_reliability,
    }
    for name, make in makers.items():
        shown += make(numbers[name]) if name in numbers else ()
    return [table for table in shown if len(table.frame)]


def located(agreement: Found, margin: Found) -> str:
    """Say whether sets agree at `AGREE` and beyond the margin, by intervals."""
    if None in (agreement["low"], margin["low"]):
        return NOTHING
    if agreement["high"] < AGREE or margin["high"] < 0:
        return "no"
    return "yes" if agreement["low"] >= AGREE and margin["low"] > 0 else "open"


def show_sets(main: Found) -> Iterator[Exhibit]:
    """Show how alike a task's sets are, and what sets of different tasks share."""
    rows = [
        {
            "task": each["task"],
            "examples": each["examples"],
            "neurons": len(each["neurons"]),
            "halves": drawn(each["halves"]),
            "subsets": interval(each["within"]["rates"]["largest"]),
            "by chance, in layers": Value(each["by_chance"]),
            "subsets of other tasks": interval(each["across"]) if each["across"] else NOTHING,
            "apart": "yes" if each["separate"] else "no",
        }
        for each in main["tasks"]
    ]
    note = (
        "Overlap by the larger set, of halves (two fifths of the examples against two others; mean "
        "and ends of ten random splits), and of fifths, with a 95 % interval."
    )
    yield Exhibit.of("sets", "Stable and specific?", rows, [note])
    if overlaps := main["overlaps"]:
        names = overlaps["datasets"]
        shared = [
            {"task": name}
            | {other: Value(n, digits=2) for other, n in zip(names, row, strict=True)}
            for name, row in zip(names, overlaps["rates"]["largest"], strict=True)
        ]
        note = "Overlap by the larger set; on the diagonal that of a task's own subsets."
        yield Exhibit.of("shared", "What sets of different tasks share", shared, [note])


def show_erasure(erasure: Found) -> Iterator[Exhibit]:
    """Show what each task loses by its own set, and how much more than by others' and draws."""
    rows = [
        {"task": each["task"], "sets": stage, "neurons": found["count"], "lost": measure,
         "by its own set": interval(lost["own"], 2), "random in layers": drawn(lost["draws"], 2)}
        | {f"more than by {other.split('/')[-1]}": interval(more, 2)
           for other, more in lost["more_than"].items()}
        for stage, found in erasure["stages"].items()
        for each in found["tasks"]
        for measure, lost in each["lost"].items()
    ]  # fmt: skip
    note = (
        "Sets of equal size on held-out examples, with 95 % intervals; of draws the mean, least "
        "and most. Nats are of log-probability, for each gold token. How much more the task "
        "loses by its own set than by another capability's: paired by example, with intervals "
        "corrected for the number of tasks."
    )
    yield Exhibit.of("erasure", "Needed?", rows, [note])


def show_yardstick(yardstick: Mapping[str, Found]) -> Iterator[Exhibit]:
    """Show how sets of one fact, of one capability and of two agree, by what they have alike."""
    names = {"fact": "one fact", "capability": "one capability", "apart": "two capabilities"}
    rows = [
        {"sets of": row["of"], "score": score, "rule": row["rule"], "prompts a set": row["prompts"],
         "words": row["words"], "demonstrations": row["demonstrations"],
         "neurons": Value(row["size"], digits=0)}
        | {title: interval(row[name], 2) for name, title in names.items()}
        | {f"{name} margin": interval(row[f"{name}_margin"], 2) for name in ("fact", "capability")}
        | {f"{name} located": located(row[name], row[f"{name}_margin"])
           for name in ("fact", "capability")}
        for score, of_score in yardstick.items()
        for row in of_score
    ]  # fmt: skip
    note = (
        "Overlap by the larger set, with 95 % intervals over facts, or over capabilities. A fact's "
        "margin is that of one fact less that of its capability, a capability's less that of two. "
        f"With answers exchanged, one capability is a task beside itself with wrong answers. {RULE}"
    )
    yield Exhibit.of("yardstick", "Facts and capabilities on one yardstick", rows, [note])


def show_tuning(enhanced: Mapping[str, Mapping[str, Found]]) -> Iterator[Exhibit]:
    """Show what each arm gained on its own task: a row for each seed and draw."""
    rows = []
    for seed, task, arm in (
        (seed, task, arm)
        for seed, each in enhanced.items()
        for task, result in each.items()
        for arm in result["arms"]
        if arm["fit"]
    ):
        score, gold = (
            change
            for measure in (METRIC, GOLD)
            for change in arm["changes"]
            if (change["task"], change["measure"]) == (task, measure)
        )
        rows.append(
            {
                "task": task,
                "seed": seed,
                "tuned": arm["arm"],
                "draw": arm["draw"],
                "neurons": arm["neurons"],
                "rate": arm["fit"]["rate"],
                "at the grid's edge": "yes" if arm["fit"]["at_edge"] else "no",
                "score before": Value(score["before"]),
                "score gained": interval(score["change"]),
                "nats gained": interval(gold["change"]),
            }
        )
    note = (
        "On held-out examples, with 95 % intervals. A first draw has the learning rate that is "
        "best for it on other examples, the others the better of that and the next lower one."
    )
    yield Exhibit.of("tuned", "Learn best?", rows, [note])


def show_fidelity(fidelity: Mapping[str, Found]) -> Iterator[Exhibit]:
    """Show every measure of every method, by what a wording is held against."""
    rows, layers = [], []
    for name, of_set in fidelity.items():
        for method, found in of_set["methods"].items():
            rows += [
                {
                    "located by": NAMES[method],
                    "facts of": name,
                    "measure": MEASURES[measure],
                    "facts": found["facts"],
                    "neurons or edges": Value(found["size"], digits=1),
                }
                | {arm.replace("_", " "): interval(found["arms"][arm][measure]) for arm in ARMS}
                | {"margin": interval(found["margin"][measure])}
                | {
                    "located": located(found["arms"]["rewrites"][measure], found["margin"][measure])
                    if measure in ("largest", "agreement")
                    else NOTHING
                }
                for measure in MEASURES
                if measure in found["margin"]
            ]
            layers += [
                {"facts of": name, "layer": f"L{layer}", "facts": count}
                for layer, count in enumerate(found["peaks"] or ())
            ]
    note = (
        "Facts that the model answers rightly, and of their wordings those too, with 95 % "
        "intervals over facts. Overlap is by the larger set; kept, the share of the prompt's set "
        "that the rewrite's has too. Of tracing: do both peak in one layer, how many layers lie "
        "between the peaks, and how alike are the profiles (Spearman)? Random: sets as large in "
        "every layer, or the layers of a profile dealt anew. The margin is rewrites less other "
        "facts of the relation: only above 0 (of layers apart, below) is there anything of the "
        f"single fact. {RULE} The formulas are ours; the paper's are not known to us."
    )
    yield Exhibit.of("fidelity", "Is a fact located alike however it is worded?", rows, [note])
    yield Exhibit.of("fidelity-layers", "Where causal tracing peaks", layers)


def show_reliability(reliability: Mapping[str, Found]) -> Iterator[Exhibit]:
    """Show what each method's own intervention does, set of facts by set."""
    for name, found in reliability.items():
        end = f"-{name}" if len(reliability) > 1 else ""
        for table in show_interventions(found["methods"]):
            yield replace(table, name=table.name + end)


def show_interventions(found: Found) -> Iterator[Exhibit]:
    """Show what each method's own intervention does to facts."""
    if neurons := found.get("neurons"):
        rows = [
            {"intervention": f"{name}, on {place.replace('fact', 'the fact')}"}
            | {
                arm.replace("_", " "): interval(each[arm])
                for arm in ("located", "random", "other_fact")
            }
            for name in ("suppress", "enhance")
            for place, each in neurons[name].items()
        ]
        note = (
            f"Relative change of the gold answer's probability, {neurons['facts']} facts, "
            f"{neurons['size']:.1f} neurons each, {neurons['draws']} draws."
        )
        title = "Knowledge neurons set to zero and doubled"
        yield Exhibit.of("reliability-neurons", title, rows, [note])
    if edits := found.get("tracing"):
        rows = [
            {"layer edited": f"L{each['layer']}"}
            | {name: interval(each[name]) for name in EDITED}
            | {"traced effect": interval(each["effect"])}
            | {"facts traced to it": edits["traced"].count(each["layer"])}
            for each in edits["layers"]
        ]
        note = (
            f"{edits['facts']} facts. Spearman of score and traced effect over layers: "
            f"{interval(edits['correlation'])}; the traced layer scores as well as the best for "
            f"{interval(edits['hit'])} of facts, a layer drawn at random for "
            f"{interval(edits['hit_by_chance'])}."
        )
        title = "Rank-one edits at every layer, not only where tracing points"
        yield Exhibit.of("reliability-edits", title, rows, [note])
    if circuits := found.get("circuits"):
        rows = [
            {
                "circuit": each["name"],
                "facts": each["facts"],
                "faithfulness": interval(each["faithfulness"]),
                "P(gold)": interval(each["probability"]),
                "median rank": Value(each["rank"], digits=1),
            }
            | {f"Hit@{top}": Value(each["hits"][top]) for top in ("1", "10")}
            for each in circuits["arms"]
        ]
        note = (
            f"{circuits['edges']:,} edges are kept, {100 * circuits['share_of_edges']:.1f} % of "
            "all (the paper's chains are 2.6 % of the model; of what is not known to us). All "
            "other edges carry what they do on a prompt about another subject. Without a "
            f"counterpart of equal length: {len(circuits['unpaired'])} facts; answered wrongly: "
            f"{len(circuits['unknown'])}."
        )
        yield Exhibit.of("reliability-circuits", "Circuits run alone", rows, [note])
