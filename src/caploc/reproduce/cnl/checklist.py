"""Every experiment of CNL in a row: what it is, its command, what came out, what is published.

Of the paper's figures only those in `PUBLISHED` are known to us; the rest is marked as not known,
and nothing here is called reproduced against them.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from caploc.exhibits.exhibit import NOTHING, Exhibit
from caploc.neurons.fact_pages import margin_of
from caploc.neurons.study import as_text, ranged

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
        """Fill the row; what was not measured is a dash."""
        try:
            outcome = self.tell(results)
        except KeyError:
            outcome = NOTHING
        published = PUBLISHED.get(self.number, self.published)
        return str(self.number), self.feature, self.command, outcome, published


def checklist(results: Results) -> Exhibit:
    """Fill all rows from what was measured."""
    return Exhibit(
        "checklist",
        "Every experiment of CNL",
        ("row", "experiment", "command", "here", "published"),
        [line.row(results) for line in LINES],
        ["Recipes that are not published follow our defaults, named in docs/cnl.md."],
    )


def ends(values: Iterable[float | None], digits: int = 2) -> str:
    """Write the lowest and the highest."""
    known = [value for value in values if value is not None and np.isfinite(value)]
    return f"{min(known):z.{digits}f} to {max(known):z.{digits}f}" if known else NOTHING


def _facts(study: str, method: str, tell: Callable[[Any], str]) -> Callable[[Results], str]:
    """Tell one figure for each set of facts."""
    return lambda results: "; ".join(
        f"{name}: {tell(each['methods'][method])}" for name, each in results[study].items()
    )


def _told(name: str) -> Callable[[Results], str]:
    return lambda results: str(results["told"][name])


def _tasks(results: Results, rule: str) -> list[Any]:
    """List the tasks of one rule's run."""
    return list(results["located"][rule]["tasks"])


def _arms(result: Any) -> dict[str, str]:
    """Write the faithfulness of each kind of circuit."""
    return {arm["name"]: ranged(arm["faithfulness"]) for arm in result["arms"]}


def _circuit(each: Any) -> str:
    share = 100 * each["share_of_edges"]
    return f"{each['edges']:,} edges ({share:.1f} %), faithfulness {_arms(each)['located']}"


def _circuit_arms(each: Any) -> str:
    arms, wanted = _arms(each), ("located", "complement", "same relation", "random")
    return "faithfulness " + ", ".join(f"{name} {arms[name]}" for name in wanted if name in arms)


def _rewrites(results: Results) -> str:
    known = {name: each["known"] for name, each in results["fidelity"].items()}
    return "; ".join(
        f"{name}: {each['rewrites_known']} of {each['rewrites']} wordings of known facts are "
        "answered rightly and kept"
        for name, each in known.items()
    )


def _fidelity(results: Results) -> str:
    margins = {
        name: ", ".join(
            f"{method} {ranged(margin_of(found))}" for method, found in each["methods"].items()
        )
        for name, each in results["fidelity"].items()
    }
    return "; ".join(
        f"{name}, margin over other facts of the relation: {each}" for name, each in margins.items()
    )


def _suppressed(each: Any) -> str:
    fact, met = each["suppress"]["fact"], each["conditions"].values()
    return (
        f"P(gold) {ranged(fact['located'])} at zero, random {ranged(fact['random'])}, another "
        f"fact's {ranged(fact['other_fact'])}; {sum(met)} of {len(met)} conditions met"
    )


def _threshold(results: Results) -> str:
    tasks = _tasks(results, "sigma")
    found = [sum(each) / len(each) for each in (t["within"]["sizes"] for t in tasks)]
    return (
        f"{ends([float(len(t['neurons'])) for t in tasks], 0)} neurons "
        f"({ends(100 * t['share'] for t in tasks)} % of all; {ends(results['weights'], 3)} % of "
        f"the weights) in the commonality sets, {ends(found, 1)} in those of single subsets"
    )


def _within(results: Results) -> str:
    parts = []
    for rule, title in (("sigma", "6 sigma"), ("share", "best share")):
        rates = [task["within"]["rates"] for task in _tasks(results, rule)]
        overlap, iou = (ends(r[name]["mean"] for r in rates) for name in ("largest", "iou"))
        parts.append(f"{title}: overlap {overlap}, IoU {iou}")
    return "; ".join(parts)


def _apart(results: Results) -> str:
    tasks = _tasks(results, "share")
    return (
        f"{len(tasks)} tasks on one model; for {sum(t['separate'] is True for t in tasks)} the "
        "interval within lies above the one across"
    )


def _cohesion(results: Results) -> str:
    found = results["located"]["share"]["cohesion"]
    return (
        f"cohesion {as_text(found['cohesion'])}, separability {as_text(found['separability'])}; "
        f"of one kind {as_text(found['same_kind'])}, of others {as_text(found['across_kinds'])} "
        f"(p {as_text(found['p'])})"
    )


def _enhancement(results: Results) -> str:
    beaten = results["enhancement_beats"]
    return (
        f"located beat every layer-matched draw for {sum(beaten.values())} of {len(beaten)} tasks"
    )


def _erasure(results: Results) -> str:
    own = [task["own"] for task in results["erasure"]["tasks"]]
    beaten = sum(each["beats_every_layer_matched_draw"] for each in own)
    arms = [arm for each in own for arm in each["arms"] if arm["arm"] == "located"]
    return (
        f"located cost more than every layer-matched draw for {beaten} of {len(own)} tasks; "
        f"log-probability lost {ends((arm['logprob']['mean'] for arm in arms), 3)} nats a token"
    )


def _crossing(results: Results) -> str:
    return "; ".join(
        f"{each['how']}: own {as_text(each['kinds']['cohesion'])}, same kind "
        f"{as_text(each['kinds']['same_kind'])}, other kinds "
        f"{as_text(each['kinds']['across_kinds'])} nats"
        for each in results["crossing"]["crossings"]
    )


def _gains(results: Results) -> str:
    own = [each["own"]["logprob_specificity"] for each in results["erasure"]["tasks"]]
    parts = [f"CNL erased {ends((each['pooled_gain'] for each in own), 1)}"]
    for name, each in results["reliability"].items():
        methods = each["methods"]
        gains = {
            "KN": methods["neurons"]["suppress"]["fact"]["gain"]["pooled_gain"],
            "edit at the traced layer": methods["tracing"]["gain"]["mean"],
            "circuit": methods["circuits"]["gains"]["located"]["pooled_gain"],
        }
        told = (f"{way} {NOTHING if g is None else f'{g:,.1f}'}" for way, g in gains.items())
        parts.append(f"{name}: {', '.join(told)}")
    return "; ".join(parts)


def _layers(results: Results) -> str:
    counts = np.array([task["layers"] for task in _tasks(results, "share")]).sum(axis=0)
    return ", ".join(f"L{layer} {count}" for layer, count in enumerate(counts.tolist()))


LINES = (
    Line(1, "knowledge-neurons locator", "neurons fidelity --method neurons",
         _facts("fidelity", "neurons", lambda m: f"{m['size']:.1f} neurons a prompt")),
    Line(2, "causal-tracing locator", "neurons fidelity --method tracing",
         _facts("fidelity", "tracing", lambda m: "peaks " + ", ".join(
             f"L{n} {c}" for n, c in enumerate(m["peaks"])))),
    Line(3, "circuit locator", "neurons reliability --method circuits",
         _facts("reliability", "circuits", _circuit)),
    Line(4, "rewrites of facts", "neurons fidelity --rewrites FILE", _rewrites),
    Line(5, "fidelity of the three families", "neurons fidelity", _fidelity),
    Line(6, "reliability of knowledge neurons", "neurons reliability --method neurons",
         _facts("reliability", "neurons", _suppressed)),
    Line(7, "reliability of causal tracing: edits at every layer",
         "neurons reliability --method tracing",
         _facts("reliability", "tracing", lambda m: "correlation of score and traced effect "
                f"{ranged(m['correlation'])}")),
    Line(8, "reliability of circuits", "neurons reliability --method circuits",
         _facts("reliability", "circuits", _circuit_arms)),
    Line(9, "decoupling data", "neurons decouple", _told("contrasts")),
    Line(10, "decoupling experiment", "neurons decouple", _told("decoupling")),
    Line(11, "neuron scores", "neurons locate --method integrated", _told("scores")),
    Line(12, "threshold", "neurons locate --sigma 6", _threshold),
    Line(13, "commonality within a dataset", "neurons locate --subsets 5", _within),
    Line(14, "other datasets, other models", "neurons locate --task ... --task ...", _apart),
    Line(15, "commonality across datasets", "neurons overlap", _cohesion),
    Line(16, "enhancement", "neurons enhance", _enhancement),
    Line(17, "erasure", "neurons erase", _erasure),
    Line(18, "cross-data", "neurons cross --how erase --how tune", _crossing),
    Line(19, "sweeps of sigma and S, draws and p",
         "neurons locate --sigma, --steps; neurons erase --draws", _told("points"), OURS),
    Line(20, "one measure for all locators", "neurons reliability, neurons erase", _gains, OURS),
    Line(21, "layers of located neurons", "neurons locate", _layers),
    Line(22, "baselines: activation, direct logits, random",
         "neurons locate --method activation", _told("baselines"), OURS),
)  # fmt: skip
