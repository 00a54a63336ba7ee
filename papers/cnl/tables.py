"""Tables and figures of CNL, made of the numbers of its experiments."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from caploc.neurons.enhancing import GOLD, METRIC, changes_by_arm
from caploc.neurons.options import ACTIVE, LAYERS, OWN
from papers.cnl.comparisons import POINTS
from papers.cnl.contrasts import ARMS as CONTRASTED
from papers.cnl.editing import MEASURES as EDITED
from papers.cnl.fidelity import ARMS
from papers.cnl.verdicts import MOST, NAMES, all_runs, judge_claims, losses_of
from papers.exhibits import NOTHING, Exhibit, Value, dots, drawn, interval, of_draws

Found = Mapping[str, Any]
MEASURES = {
    "largest": "overlap",
    "iou": "IoU",
    "reference": "kept",
    "agreement": "same layer",
    "distance": "layers apart",
    "spearman": "Spearman of profiles",
}


def list_tables(numbers: Found) -> list[Exhibit]:
    """Make every table of what was measured; verdicts first."""
    rows = [row for claim in judge_claims(numbers) for row in claim.rows()]
    note = (
        f"A claim holds if all of its parts do, each for at least {MOST:.0%} of the tasks, in part "
        "if one does. The rules are caploc's."
    )
    shown = [Exhibit.of("verdicts", "The paper's claims", rows, [note])]
    makers: dict[str, Callable[[Any], Iterable[Exhibit]]] = {
        "main": show_sets,
        "erasure": lambda found: show_erasure(found, numbers),
        "enhancement": show_tuning,
        "fidelity": show_fidelity,
        "reliability": show_reliability,
        "points": show_points,
        "crossing": show_crossing,
        "decoupling": show_decoupling,
    }
    for name, make in makers.items():
        shown += make(numbers[name]) if name in numbers else ()
    return [table for table in shown if len(table.frame)]


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


def show_erasure(erasure: Found, numbers: Found) -> Iterator[Exhibit]:
    """Show what each task loses without its neurons, and without those it alone has."""
    kinds, located = numbers["preset"]["kinds"], {}
    for each in numbers["main"]["tasks"]:
        located[each["task"]] = {neuron["neuron"] for neuron in each["neurons"]}
    rows, alone = [], []
    of_both = (losses_of(erasure, kinds, name) for name in ("metric", "logprob"))
    for score, gold in zip(*of_both, strict=True):
        task, intact = score.erased["task"], score.erased["own"]["intact"]
        rows.append(
            {
                "task": task,
                "neurons": score.erased["neurons"],
                "intact": Value(intact["score"], intact["stderr"]),
                "score lost": interval(score.own()[0]),
            }
            | {arm: drawn(score.drawn(arm)) for arm in (LAYERS, ACTIVE)}
            | {"nats lost": interval(gold.own()[0])}
            | {f"nats, {arm}": drawn(gold.drawn(arm)) for arm in (LAYERS, ACTIVE)}
            | {"nats lost by its twin": drawn(gold.beside(kin=True))}
            | {"by other capabilities": drawn(gold.beside(kin=False))}
            | {"score lost by those": drawn(score.beside(kin=False))}
        )
        if gold.own(OWN):
            strangers = [located[t] for t in located if kinds.get(t, t) != kinds.get(task, task)]
            row = {"task": task, "neurons": len(located[task].difference(*strangers))}
            for what, losses in (("score", score), ("nats", gold)):
                row[f"{what} lost"] = interval(losses.own(OWN)[0])
                row[f"{what}, by its twin"] = drawn(losses.beside(kin=True, arm=OWN))
                row[f"{what}, by other capabilities"] = drawn(losses.beside(kin=False, arm=OWN))
            alone.append(row)
    note = (
        "On held-out examples of each task, with 95 % intervals; of draws, and of other tasks, the "
        "mean, the least and the most. Nats are of log-probability, for each gold token."
    )
    spared = (
        "Losses with only those cut. The other capabilities are the ones whose neurons were left "
        "in: that they are spared is in part by construction, and tasks of no neurons say more."
    )
    table = Exhibit.of("erasure", "Needed?", rows, [note])
    chart = dots(table.frame, "task", ["nats lost", f"nats, {LAYERS}", f"nats, {ACTIVE}"])
    yield replace(table, chart=chart)
    title = "Without the neurons that no other capability has"
    yield Exhibit.of("own", title, alone, [spared])


def show_tuning(enhanced: Mapping[str, Mapping[str, Found]]) -> Iterator[Exhibit]:
    """Show what each arm gained, seed by seed."""
    rows = []
    for seed, task, result in all_runs(enhanced):
        parameters = {arm["arm"]: arm["fit"]["parameters"] for arm in result["arms"] if arm["fit"]}
        score = changes_by_arm(result, task, METRIC)
        for arm, gold in changes_by_arm(result, task, GOLD).items():
            if arm != "none":
                rows.append(
                    {
                        "task": task,
                        "seed": seed,
                        "tuned": f"{arm}, {len(gold)} draws" if len(gold) > 1 else arm,
                        "parameters": parameters.get(arm),
                        "score before": Value(score[arm][0]["before"]),
                        "score gained": of_draws([each["change"] for each in score[arm]]),
                        "nats gained": of_draws([each["change"] for each in gold]),
                    }
                )
    note = (
        "On held-out examples, with 95 % intervals; of draws the mean, the least and the most. "
        "Each arm has the learning rate that is best for it on other examples."
    )
    yield Exhibit.of("tuning", "Learn best?", rows, [note])


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
        "single fact. The formulas are ours; the paper's are not known to us."
    )
    table = Exhibit.of("fidelity", "Is a fact located alike however it is worded?", rows, [note])
    named = table.frame.assign(measured=[f"{r['located by']}, {r['measure']}" for r in rows])
    chart = dots(named, "measured", [arm.replace("_", " ") for arm in ARMS])
    yield replace(table, chart=chart)
    yield Exhibit.of("fidelity-layers", "Where causal tracing peaks", layers)


def show_reliability(reliability: Mapping[str, Found]) -> Iterator[Exhibit]:
    """Show what each method's own intervention does, set of facts by set."""
    for name, found in reliability.items():
        end = f"-{name}" if len(reliability) > 1 else ""
        for table in show_interventions(found["methods"]):
            yield replace(table, name=table.name + end)


def show_interventions(found: Found) -> Iterator[Exhibit]:
    """Show what each method's own intervention does to facts, and one measure for all."""
    gains: dict[str, Any] = {}
    if neurons := found.get("neurons"):
        rows = [
            {"intervention": f"{name}, on {place.replace('fact', 'the fact')}"}
            | {
                arm.replace("_", " "): interval(each[arm])
                for arm in ("located", "random", "other_fact")
            }
            | {"gain in sd of draws": Value(each["gain"]["pooled_gain"], digits=1)}
            for name in ("suppress", "enhance")
            for place, each in neurons[name].items()
        ]
        note = (
            f"Relative change of the gold answer's probability, {neurons['facts']} facts, "
            f"{neurons['size']:.1f} neurons each, {neurons['draws']} draws."
        )
        title = "Knowledge neurons set to zero and doubled"
        yield Exhibit.of("reliability-neurons", title, rows, [note])
        gains["knowledge neurons, suppressed"] = neurons["suppress"]["fact"]["gain"]
    if edits := found.get("tracing"):
        rows = [
            {"layer edited": f"L{each['layer']}"}
            | {name: interval(each[name]) for name in EDITED[:-1]}
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
        gains["rank-one edit at the traced layer"] = {"gain": edits["gain"]}
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
        table = Exhibit.of("reliability-circuits", "Circuits run alone", rows, [note])
        yield replace(table, chart=dots(table.frame, "circuit", ["faithfulness"]))
        gains |= {f"circuit: {arm}": each for arm, each in circuits["gains"].items()}
    rows = [
        {
            "locator": name,
            "mean over facts": interval(each["gain"]),
            "of the mean effects": Value(each.get("pooled_gain"), digits=1),
            "p": Value(each.get("p")),
        }
        for name, each in gains.items()
    ]
    note = (
        "For each fact, (effect of the located - mean effect of random) / sd of random; of the "
        "edit, the traced layer against the other layers. Random sets that do next to nothing have "
        "a small deviation and make large gains: compare the arms of one locator."
    )
    title = "One measure for all: effect beyond random, in standard deviations of random draws"
    yield Exhibit.of("common-metric", title, rows, [note])


def show_points(points: Found) -> Iterator[Exhibit]:
    """Show how the neurons of integrated gradients depend on the number of points."""
    rows = [
        {
            "task": each["task"],
            "points": each["points"],
            "best 1 % shared": Value(each["shared"]),
            f"rank correlation with S = {max(POINTS)}": Value(each["correlation"]),
        }
        for each in points["rows"]
    ]
    note = (
        f"On {points['examples']} examples. The paper's S is 19; gradient takes the last point "
        "alone."
    )
    yield Exhibit.of("points", "Points of the integral (S)", rows, [note])


def show_crossing(crossed: Mapping[str, Found]) -> Iterator[Exhibit]:
    """Show what one task's neurons do to other tasks, of its kind and of others."""
    columns = {
        "the task itself": "cohesion",
        "other tasks": "separability",
        "others of its kind": "same_kind",
        "of other kinds": "across_kinds",
        "p of kinds": "p",
    }
    rows = [
        {"neurons": how}
        | {title: Value(each["kinds"][key], digits=4) for title, key in columns.items()}
        | {"correlation with overlap": Value(each["overlap"], digits=2)}
        for how, each in crossed.items()
    ]
    note = (
        "Effects in nats of log-probability a gold token: lost when erased, gained when tuned. p: "
        "kinds dealt out to tasks at random. The correlation (Spearman) is over pairs of tasks."
    )
    yield Exhibit.of("crossing", "Neurons of one task, effects on others", rows, [note])


def show_decoupling(decoupling: Mapping[str, Found]) -> Iterator[Exhibit]:
    """Show how alike an item and each partner are located, and the effects."""
    effects = "commonality", "individual", "content"
    note = (
        "Mean IoU of what is located for an item and for its partner: reworded (SS), of the same "
        "capability (SC), of the same content (CD), of neither (DD); only contrasts of which the "
        "model answers all five items rightly. Commonality is SC less DD, individual SS less SC, "
        "content CD less DD, with paired 95 % intervals over items. A rewording keeps the answer "
        "and other content does not, so the last column compares it with another item of the same "
        "answer. The design is ours: the paper's is not known to us."
    )
    for contrasts, found in decoupling.items():
        rows = [
            {
                "locator": name,
                "items used": f"{each['right']} of {each['contrasts']}",
                "units an item": Value(each["size"], digits=1),
            }
            | {arm: interval(each["effects"]["similarity"][arm]) for arm in CONTRASTED}
            | {f"{effect} effect": interval(each["effects"][effect]) for effect in effects}
            | {"rewording beyond the answer": interval(each["beyond_answer"])}
            for name, each in found.items()
        ]
        title = f"Capability and content apart: {contrasts}"
        table = Exhibit.of(f"decoupling-{contrasts.replace('/', '-')}", title, rows, [note])
        columns = [f"{effect} effect" for effect in effects]
        yield replace(table, chart=dots(table.frame, "locator", columns))
