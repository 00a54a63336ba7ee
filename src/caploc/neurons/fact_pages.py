"""Fidelity and reliability of located facts for a reader, from what their files hold."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from caploc.neurons.study import YES_NO, Row, bounds, ranged
from caploc.report import drawing
from caploc.report.exhibits import NOTHING, Exhibit, Value

Results = Mapping[str, Any]  # by method, or of one method
NAMES = {
    "neurons": "knowledge neurons",
    "tracing": "causal tracing (ROME)",
    "circuits": "knowledge circuits",
}
ARMS = ("rewrites", "same_relation", "unrelated", "random")


def fidelity_headline(found: Results) -> str:
    """Say the answer in a sentence."""
    clear = [name for name in found if (margin_of(found[name])["low"] or 0) > 0]
    if not clear:
        return "No method locates a fact's wordings more alike than other facts of its relation"
    names = ", ".join(NAMES[name] for name in clear)
    return (
        f"{names}: wordings of one fact are located more alike than other facts of its relation "
        f"({len(clear)} of {len(found)} methods)"
    )


def margin_of(result: Results) -> Any:
    """Take the margin's interval: of the overlap, or of agreement on the layer."""
    margin = result["margin"]
    return margin["agreement"] if "agreement" in margin else margin["largest"]


def fidelity_exhibits(found: Results) -> list[Exhibit]:
    """Show whether wordings of a fact are located alike."""
    sets = {name: each for name, each in found.items() if "units" in each}
    exhibits = [wordings_exhibit(sets)] if sets else []
    return exhibits + ([traced_layers_exhibit(found["tracing"])] if "tracing" in found else [])


def wordings_exhibit(found: Results) -> Exhibit:
    """Show the overlap of sets located for wordings of one fact, and its controls."""
    rows: list[Row] = []
    for name, each in found.items():
        for measure, title in (("largest", "overlap"), ("iou", "IoU"), ("reference", "kept")):
            rows.append(
                (
                    f"{NAMES[name]}, {title}",
                    f"{each['facts']}",
                    Value(each["size"], digits=1),
                    *(ranged(each[arm][measure]) for arm in ("same_prompt", *ARMS)),
                    ranged(each["margin"][measure]),
                )
            )
    columns = (
        "locator; facts; mean size; same prompt again; rewrites; other facts, same relation; "
        "unrelated facts; random in layers; margin"
    )
    return Exhibit(
        "fidelity",
        "Is a fact located alike however it is worded?",
        tuple(columns.split("; ")),
        rows,
        [
            "Overlap is by the larger set; kept, the share of the prompt's set that the rewrite's "
            "has too. The margin is rewrites less other facts of the relation: only above 0 is "
            "there anything of the single fact. Intervals are 95 %, over facts. The formulas are "
            "ours; the paper's are not known to us."
        ],
        partial(
            drawing.draw_points,
            [NAMES[name] for name in found],
            {
                arm.replace("_", " "): [bounds(each[arm]["largest"]) for each in found.values()]
                for arm in ARMS
            },
            label="overlap by the larger set",
        ),
    )


def traced_layers_exhibit(result: Results) -> Exhibit:
    """Show the agreement of wordings on the layer that causal tracing names."""
    arms = ("rewrites", "same_prompt", "same_relation", "unrelated", "chance", "margin")
    rows: list[Row] = [
        (
            arm.replace("_", " "),
            *(ranged(result[arm][measure]) for measure in ("agreement", "distance", "spearman")),
        )
        for arm in arms
    ]
    return Exhibit(
        "fidelity-layers",
        "Does causal tracing name one layer for a fact?",
        ("compared with", "same layer", "layers apart", "Spearman of profiles"),
        rows,
        [
            f"{result['facts']} facts; {result['wrong']} of {result['prompts']} prompts are left "
            "out because the model answers them wrongly. Share of a fact's wordings in their most "
            f"frequent layer: {ranged(result['modal_share'])}. The traced layers of the facts: "
            + ", ".join(f"L{n} {count}" for n, count in enumerate(result["peaks"]))
            + "."
        ],
        partial(
            drawing.curves,
            {
                "prompts": list(enumerate(map(float, result["peaks"]))),
                "rewrites": list(enumerate(map(float, result["rewrite_peaks"]))),
            },
            across="layer with the largest indirect effect",
            up="prompts",
        ),
    )


def reliability_headline(found: Results) -> str:
    """Say the answer in a sentence."""
    parts = []
    if "neurons" in found:
        kept = found["neurons"]["conditions"]
        parts.append(f"knowledge neurons meet {sum(kept.values())} of {len(kept)} conditions")
    if "tracing" in found:
        related = ranged(found["tracing"]["correlation"])
        parts.append(f"edits succeed where tracing points with a correlation of {related}")
    if "circuits" in found:
        arms = {arm["name"]: ranged(arm["faithfulness"]) for arm in found["circuits"]["arms"]}
        parts.append(
            f"circuits keep {arms['located']} of the answer, those of other facts "
            f"{arms['same relation']}"
        )
    told = "; ".join(parts)
    return told[:1].upper() + told[1:]


def reliability_exhibits(found: Results) -> list[Exhibit]:
    """Show whether what was located does what its method says."""
    ways = {"neurons": suppression_exhibit, "tracing": edits_exhibit, "circuits": circuits_exhibit}
    return [ways[name](each) for name, each in found.items()] + [gains_exhibit(found)]


def suppression_exhibit(result: Results) -> Exhibit:
    """Show the relative change of the gold answer's probability under each intervention."""
    rows: list[Row] = []
    for name in ("suppress", "enhance"):
        for place in ("fact", "rewrites", "unrelated"):
            watched = result[name][place]
            rows.append(
                (
                    f"{name}, on {'the fact' if place == 'fact' else place}",
                    *(ranged(watched[arm]) for arm in ("located", "random", "other_fact")),
                    Value(watched["gain"]["pooled_gain"], digits=1),
                )
            )
    kept = ", ".join(
        f"{name.replace('_', ' ')}: {YES_NO[met]}" for name, met in result["conditions"].items()
    )
    return Exhibit(
        "reliability-neurons",
        "Knowledge neurons set to zero and doubled",
        ("intervention", "located", "random in layers", "another fact's", "gain in sd of draws"),
        rows,
        [
            f"Relative change of the gold answer's probability, {result['facts']} facts, "
            f"{result['size']:.1f} neurons each, {result['draws']} draws. Conditions of "
            f"reliability (ours): {kept}."
        ],
    )


def edits_exhibit(result: Results) -> Exhibit:
    """Show rank-one edits at every layer beside the traced effect."""
    shown = ("efficacy", "generalization", "specificity", "score", "effect")
    rows: list[Row] = [
        (
            f"L{layer['layer']}",
            *(ranged(layer[name]) for name in shown),
            str(result["traced"].count(layer["layer"])),
        )
        for layer in result["layers"]
    ]
    columns = (
        "layer edited; efficacy; generalization; specificity; score; traced effect; "
        "facts traced to it"
    )
    return Exhibit(
        "reliability-edits",
        "Rank-one edits at every layer, not only where tracing points",
        tuple(columns.split("; ")),
        rows,
        [
            f"{result['facts']} facts. Spearman of score and traced effect over layers: "
            f"{ranged(result['correlation'])}; the traced layer scores as well as the best for "
            f"{ranged(result['hit'])} of facts, a layer drawn at random for "
            f"{ranged(result['hit_by_chance'])}."
        ],
        partial(
            drawing.curves,
            {
                "score of edits": [(x["layer"], x["score"]["mean"]) for x in result["layers"]],
                "traced effect": [(x["layer"], x["effect"]["mean"]) for x in result["layers"]],
            },
            across="layer",
            up="mean over facts",
        ),
    )


def circuits_exhibit(result: Results) -> Exhibit:
    """Show circuits run alone, beside complements, other facts' and random ones."""
    rows: list[Row] = [
        (
            arm["name"],
            str(arm["facts"]),
            ranged(arm["faithfulness"]),
            ranged(arm["probability"]),
            Value(arm["rank"], digits=1),
            *(Value(hit) for hit in arm["hits"].values()),
        )
        for arm in result["arms"]
    ]
    hits = [f"Hit@{k}" for k in result["arms"][0]["hits"]]
    return Exhibit(
        "reliability-circuits",
        "Circuits run alone",
        ("circuit", "facts", "faithfulness", "P(gold)", "median rank", *hits),
        rows,
        [
            f"{result['edges']:,} edges are kept, {100 * result['share_of_edges']:.1f} % of all "
            "(the paper's chains are 2.6 % of the model; of what is not known to us). All other "
            "edges carry what they do on a prompt about another subject. Without a counterpart of "
            f"equal length: {len(result['unpaired'])} facts; answered wrongly: "
            f"{len(result['unknown'])}."
        ],
    )


def gains_exhibit(found: Results) -> Exhibit:
    """Show one measure for all locators: how far the located effect is beyond random ones."""
    gains: dict[str, Results] = {}
    if "neurons" in found:
        gains["knowledge neurons, suppressed"] = found["neurons"]["suppress"]["fact"]["gain"]
    if "tracing" in found:
        gains["rank-one edit at the traced layer"] = {"gain": found["tracing"]["gain"]}
    if "circuits" in found:
        gains |= {f"circuit: {arm}": each for arm, each in found["circuits"]["gains"].items()}
    rows: list[Row] = [
        (
            name,
            ranged(each["gain"]),
            Value(each["pooled_gain"], digits=1) if "pooled_gain" in each else NOTHING,
            Value(each["p"]) if "p" in each else NOTHING,
        )
        for name, each in gains.items()
    ]
    return Exhibit(
        "common-metric",
        "One measure for all: effect beyond random, in standard deviations of random draws",
        ("locator", "mean over facts", "of the mean effects", "p"),
        rows,
        [
            "For each fact, (effect of the located - mean effect of random) / sd of random; of the "
            "edit, the traced layer against the other layers. Random sets that do next to nothing "
            "have a small deviation and make large gains: compare the arms of one locator."
        ],
    )
