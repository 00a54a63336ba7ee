"""Every experiment of CNL in a row: what it is, its command, what came out, what is published.

Of the paper's figures only those in `PUBLISHED` are known to us; the rest is marked as not known,
and nothing here is called reproduced against them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from caploc.exhibits.exhibit import NOTHING, Exhibit
from caploc.neurons.cells import as_text, ranged
from caploc.neurons.facts.pages import margin_of

Results = Mapping[str, Any]
NOT_KNOWN = "not published to our knowledge"
OURS = "none: asked for by reviewers"
PUBLISHED = {
    3: "a chain covers 2.6 % of the model",
    4: "1,000 CounterFact facts, rewritten by GPT-4o",
    5: "not faithful (in words)",
    9: "1,000 samples",
    10: "what data have in common may be located, single facts not (in words)",
    11: "S = 19",
    12: "sigma = 6; 0.15 % of the parameters",
    13: "GSM8K: overlap 96.42 %, IoU 95.95 %",
    18: "helps across datasets of one capability (in words)",
}


@dataclass(frozen=True)
class Line:
    """One row of the checklist."""

    number: int
    feature: str
    command: str
    tell: Callable[[Results], str]
    published: str = NOT_KNOWN

    def row(self, results: Results) -> tuple[str, ...]:
        """The row, filled; what was not measured is a dash."""
        try:
            outcome = self.tell(results)
        except KeyError:
            outcome = NOTHING
        published = PUBLISHED.get(self.number, self.published)
        return str(self.number), self.feature, self.command, outcome, published


def checklist(results: Results) -> Exhibit:
    """All rows, filled from what was measured."""
    return Exhibit(
        "checklist",
        "Every experiment of CNL",
        ("row", "experiment", "command", "here", "published"),
        [line.row(results) for line in LINES],
        ["Recipes that are not published follow our defaults, named in docs/cnl.md."],
    )


def by_set(results: Results, study: str, method: str, tell: Callable[[Any], str]) -> str:
    """One figure for each set of facts."""
    found = results[study]
    return "; ".join(f"{name}: {tell(each['methods'][method])}" for name, each in found.items())


def tasks_of(results: Results, rule: str) -> list[Any]:
    """The tasks of one rule's run."""
    tasks: list[Any] = results["located"][rule]["tasks"]
    return tasks


def ends(values: list[float], digits: int = 2) -> str:
    """From the lowest to the highest."""
    known = [value for value in values if value is not None and np.isfinite(value)]
    if not known:
        return NOTHING
    return f"{min(known):z.{digits}f} to {max(known):z.{digits}f}"


def rewrites(results: Results) -> str:
    """Row 4."""
    parts = []
    for name, each in results["fidelity"].items():
        known = each["known"]
        parts.append(
            f"{name}: {known['rewrites_known']} of {known['rewrites']} wordings of known facts are "
            "answered rightly and kept"
        )
    return "; ".join(parts)


def circuits(results: Results) -> str:
    """Row 3."""

    def one(each: Any) -> str:
        kept = next(arm for arm in each["arms"] if arm["name"] == "located")
        return (
            f"{each['edges']:,} edges ({100 * each['share_of_edges']:.1f} %), faithfulness "
            f"{ranged(kept['faithfulness'])}"
        )

    return by_set(results, "reliability", "circuits", one)


def fidelity(results: Results) -> str:
    """Row 5."""
    parts = []
    for name, each in results["fidelity"].items():
        margins = ", ".join(
            f"{method} {ranged(margin_of(found))}" for method, found in each["methods"].items()
        )
        parts.append(f"{name}, margin over other facts of the relation: {margins}")
    return "; ".join(parts)


def suppressed(each: Any) -> str:
    """Row 6, one set."""
    fact = each["suppress"]["fact"]
    return (
        f"P(gold) {ranged(fact['located'])} at zero, random {ranged(fact['random'])}, another "
        f"fact's {ranged(fact['other_fact'])}; {sum(each['conditions'].values())} of "
        f"{len(each['conditions'])} conditions met"
    )


def circuit_arms(each: Any) -> str:
    """Row 8, one set."""
    arms = {arm["name"]: arm for arm in each["arms"]}
    wanted = ("located", "complement", "same relation", "random")
    return "faithfulness " + ", ".join(
        f"{name} {ranged(arms[name]['faithfulness'])}" for name in wanted if name in arms
    )


def threshold(results: Results) -> str:
    """Row 12."""
    tasks = tasks_of(results, "sigma")
    shares = [100 * task["share"] for task in tasks]
    found = [sum(each) / len(each) for each in (t["within"]["sizes"] for t in tasks)]
    return (
        f"{ends([float(len(t['neurons'])) for t in tasks], 0)} neurons ({ends(shares)} % of all; "
        f"{ends(results['weights'], 3)} % of the weights) in the commonality sets, "
        f"{ends(found, 1)} in those of single subsets"
    )


def within(results: Results) -> str:
    """Row 13."""
    parts = []
    for rule, title in (("sigma", "6 sigma"), ("share", "best share")):
        rates = [task["within"]["rates"] for task in tasks_of(results, rule)]
        overlap = [each["largest"]["mean"] for each in rates]
        iou = [each["iou"]["mean"] for each in rates]
        parts.append(f"{title}: overlap {ends(overlap)}, IoU {ends(iou)}")
    return "; ".join(parts)


def apart(results: Results) -> str:
    """Row 14."""
    tasks = tasks_of(results, "share")
    return (
        f"{len(tasks)} tasks on one model; for {sum(t['separate'] is True for t in tasks)} the "
        "interval within lies above the one across"
    )


def cohesion(results: Results) -> str:
    """Row 15."""
    found = results["located"]["share"]["cohesion"]
    return (
        f"cohesion {as_text(found['cohesion'])}, separability {as_text(found['separability'])}; "
        f"of one kind {as_text(found['same_kind'])}, of others {as_text(found['across_kinds'])} "
        f"(p {as_text(found['p'])})"
    )


def enhancement(results: Results) -> str:
    """Row 16."""
    beaten = results["enhancement_beats"]
    return (
        f"located beat every layer-matched draw for {sum(beaten.values())} of {len(beaten)} tasks"
    )


def erasure(results: Results) -> str:
    """Row 17."""
    tasks = results["erasure"]["tasks"]
    beaten = sum(task["own"]["beats_every_layer_matched_draw"] for task in tasks)
    located = [arm_of(task)["logprob"]["mean"] for task in tasks]
    return (
        f"located cost more than every layer-matched draw for {beaten} of {len(tasks)} tasks; "
        f"log-probability lost {ends(located, 3)} nats a token"
    )


def arm_of(task: Any) -> Any:
    """The located arm of an erased task."""
    return next(arm for arm in task["own"]["arms"] if arm["arm"] == "located")


def crossing(results: Results) -> str:
    """Row 18."""
    parts = []
    for each in results["crossing"]["crossings"]:
        kinds = each["kinds"]
        parts.append(
            f"{each['how']}: own {as_text(kinds['cohesion'])}, same kind "
            f"{as_text(kinds['same_kind'])}, other kinds {as_text(kinds['across_kinds'])} nats"
        )
    return "; ".join(parts)


def gains(results: Results) -> str:
    """Row 20."""
    own = [
        task["own"]["logprob_specificity"]["pooled_gain"] for task in results["erasure"]["tasks"]
    ]
    parts = [f"CNL erased {ends(own, 1)}"]
    for name, each in results["reliability"].items():
        methods = each["methods"]
        neurons = methods["neurons"]["suppress"]["fact"]["gain"]["pooled_gain"]
        circuit = methods["circuits"]["gains"]["located"]["pooled_gain"]
        edit = methods["tracing"]["gain"]["mean"]
        parts.append(
            f"{name}: KN {number(neurons)}, edit at the traced layer {number(edit)}, circuit "
            f"{number(circuit)}"
        )
    return "; ".join(parts)


def number(value: float | None) -> str:
    """A gain in standard deviations."""
    return NOTHING if value is None else f"{value:,.1f}"


def layers(results: Results) -> str:
    """Row 21."""
    counts = np.array([task["layers"] for task in tasks_of(results, "share")]).sum(axis=0)
    return ", ".join(f"L{layer} {count}" for layer, count in enumerate(counts.tolist()))


def scores(results: Results) -> str:
    """Row 11."""
    return str(results["told"]["scores"])


LINES = (
    Line(
        1,
        "knowledge-neurons locator",
        "neurons fidelity --method neurons",
        lambda r: by_set(r, "fidelity", "neurons", lambda m: f"{m['size']:.1f} neurons a prompt"),
    ),
    Line(
        2,
        "causal-tracing locator",
        "neurons fidelity --method tracing",
        lambda r: by_set(
            r,
            "fidelity",
            "tracing",
            lambda m: "peaks " + ", ".join(f"L{n} {c}" for n, c in enumerate(m["peaks"])),
        ),
    ),
    Line(3, "circuit locator", "neurons reliability --method circuits", circuits),
    Line(4, "rewrites of facts", "neurons fidelity --rewrites FILE", rewrites),
    Line(5, "fidelity of the three families", "neurons fidelity", fidelity),
    Line(
        6,
        "reliability of knowledge neurons",
        "neurons reliability --method neurons",
        lambda r: by_set(r, "reliability", "neurons", suppressed),
    ),
    Line(
        7,
        "reliability of causal tracing: edits at every layer",
        "neurons reliability --method tracing",
        lambda r: by_set(
            r,
            "reliability",
            "tracing",
            lambda m: f"correlation of score and traced effect {ranged(m['correlation'])}",
        ),
    ),
    Line(
        8,
        "reliability of circuits",
        "neurons reliability --method circuits",
        lambda r: by_set(r, "reliability", "circuits", circuit_arms),
    ),
    Line(9, "decoupling data", "neurons decouple", lambda r: str(r["told"]["contrasts"])),
    Line(10, "decoupling experiment", "neurons decouple", lambda r: str(r["told"]["decoupling"])),
    Line(11, "neuron scores", "neurons locate --method integrated", scores),
    Line(12, "threshold", "neurons locate --sigma 6", threshold),
    Line(13, "commonality within a dataset", "neurons locate --subsets 5", within),
    Line(14, "other datasets, other models", "neurons locate --task ... --task ...", apart),
    Line(15, "commonality across datasets", "neurons overlap", cohesion),
    Line(16, "enhancement", "neurons enhance", enhancement),
    Line(17, "erasure", "neurons erase", erasure),
    Line(18, "cross-data", "neurons cross --how erase --how tune", crossing),
    Line(
        19,
        "sweeps of sigma and S, draws and p",
        "neurons locate --sigma, --steps; neurons erase --draws",
        lambda r: str(r["told"]["points"]),
        OURS,
    ),
    Line(20, "one measure for all locators", "neurons reliability, neurons erase", gains, OURS),
    Line(21, "layers of located neurons", "neurons locate", layers),
    Line(
        22,
        "baselines: activation, direct logits, random",
        "neurons locate --method activation",
        lambda r: str(r["told"]["baselines"]),
        OURS,
    ),
)
