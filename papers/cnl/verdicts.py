"""CNL's claims, judged on what was measured: capabilities have neurons of their own, facts do not.

    1. Neurons of one capability are found again on other data of it, and others' are different.
    2. Erasing them breaks the capability, and erasing others as many, or the neurons of another
       capability, does not.
    3. Tuning them improves it more than tuning others as many.
    4. A single fact is not located: in other words it lies elsewhere.

Each verdict is a rule over stored numbers, which is ours: the paper's own tables are not known to
us. A claim *holds* if all of its parts do, each for five tasks of six (or as many of another
number), holds *in part* if one does, else it *does not hold*. The parts of the last are the ways to
locate a fact, each of which is asked for what the first asks of a capability's neurons.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from caploc.neurons.enhancing import GOLD
from caploc.neurons.options import LOCATED, RANDOM
from papers.exhibits import Value, span

AGREE = 0.6  # overlap of halves, by the larger set
DAMAGE = 0.2  # of the task's own score
MOST = 5 / 6  # of the tasks
SURE = 0.05  # p
OF = "neurons of a capability are"
Found = Mapping[str, Any]  # of one task, as the files hold it
NAMES = {
    "neurons": "knowledge neurons",
    "tracing": "causal tracing (ROME)",
    "circuits": "knowledge circuits",
}


@dataclass
class Claim:
    """A claim, what was counted for it, and which of its parts hold."""

    claim: str
    counts: list[dict[str, Any]] = field(default_factory=list)
    parts: list[bool] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        return (
            "holds" if all(self.parts) else "holds in part" if any(self.parts) else "does not hold"
        )

    def count(self, what: str, holds: Sequence[bool], figures: str = "") -> bool:
        """Count the tasks for which something holds; ask whether these are most."""
        self.tell(what, f"{sum(holds)} of {len(holds)}", figures)
        return sum(holds) >= MOST * len(holds) - 1e-9

    def tell(self, what: str, holds_for: str, figures: str = "") -> None:
        self.counts.append({"what": what, "holds for": holds_for, "figures": figures})

    def rows(self) -> Iterator[dict[str, Any]]:
        for each in self.counts:
            yield {"claim": self.claim, "verdict": self.verdict, **each}


def all_runs(enhanced: Mapping[str, Mapping[str, Found]]) -> Iterator[tuple[str, str, Found]]:
    """List seed, task and result of everything that was tuned."""
    for seed, tasks in enhanced.items():
        for task, result in tasks.items():
            yield seed, task, result


def changes_by_arm(result: Found, task: str, measure: str) -> dict[str, list[Any]]:
    """List the changes of each arm's draws on a task, as far as they were measured."""
    found: dict[str, list[Any]] = {}
    for arm in result["arms"]:
        for each in arm["changes"]:
            if (each["task"], each["measure"]) == (task, measure):
                found.setdefault(arm["arm"], []).append(each)
    return found


def judge_claims(numbers: Mapping[str, Any]) -> list[Claim]:
    """Judge each claim that was measured."""
    judges = {
        "main": judge_sets,
        "erasure": judge_erasure,
        "enhancement": judge_tuning,
        "yardstick": judge_yardstick,
        "fidelity": judge_facts,
        "reliability": judge_reliability,
    }
    return [judge(numbers[name]) for name, judge in judges.items() if name in numbers]


def judge_sets(located: Found) -> Claim:
    """Judge whether sets agree within a task, more than across tasks, and with its twin's."""
    claim = Claim(f"{OF} stable and specific")
    tasks, whole = located["tasks"], located["cohesion"] or {}
    halves = [float(np.mean(each["halves"])) for each in tasks if each["halves"]]
    chance = span((each["by_chance"] for each in tasks), 3)
    agree = [each >= AGREE for each in halves] + [False] * (len(tasks) - len(halves))
    what = f"halves of its data agree at {AGREE:g} or more"
    claim.parts.append(claim.count(what, agree, f"{span(halves)}; by chance {chance}"))
    apart = [each["separate"] is True for each in tasks]
    what = "its subsets agree beyond doubt more than those of different tasks"
    claim.parts.append(claim.count(what, apart))
    if whole.get("same_kind") is not None:
        shared = [str(Value(whole[name], digits=2)) for name in ("same_kind", "across_kinds")]
        claim.parts.append(whole["p"] is not None and whole["p"] <= SURE)
        figures = f"{shared[0]}; {shared[1]}; p {whole['p']:.3g}"
        claim.tell("a task and its twin share more than different capabilities", "all", figures)
    return claim


def judge_erasure(erasure: Found) -> Claim:
    """Judge whether a task needs its neurons more than random ones, and other capabilities'."""
    claim = Claim(f"{OF} needed")
    for stage, found in erasure["stages"].items():
        tasks, end = found["tasks"], f"; {stage}, {found['count']} neurons each"
        least = [min(each["more_than"].values(), key=lambda m: m["low"]) for each in tasks]
        what = "the task loses more by its own than by any other capability's, surely"
        figures = f"{span(each['mean'] for each in least)} nats more than by the nearest{end}"
        claim.parts.append(claim.count(what, [each["low"] > 0 for each in least], figures))
        less = [any(m["high"] < 0 for m in each["more_than"].values()) for each in tasks]
        claim.count("the task surely loses less by its own than by some other's", less, end[2:])
        broken = [each["score"]["mean"] >= DAMAGE for each in tasks]
        figures = f"{span(each['score']['mean'] for each in tasks)}{end}"
        claim.parts.append(claim.count(f"takes {DAMAGE:g} or more of the score", broken, figures))
        if tasks[0]["draws"]:
            beaten = [each["nats"]["mean"] > max(each["draws"]) for each in tasks]
            figures = f"draws cost {span(d for each in tasks for d in each['draws'])} nats{end}"
            what = "costs more log-probability than every draw in the same layers"
            claim.parts.append(claim.count(what, beaten, figures))
    taken = erasure["taken_by_universal"].values()
    what = f"the {len(erasure['universal'])} universal neurons alone take {DAMAGE:g} or more"
    claim.count(what, [e["mean"] >= DAMAGE for e in taken], span(e["mean"] for e in taken))
    return claim


def judge_tuning(enhanced: Mapping[str, Mapping[str, Found]]) -> Claim:
    """Judge whether tuning the located neurons gains most, and gains beyond doubt at all."""
    claim = Claim(f"{OF} those that learn best")
    gained, beaten, best = [], [], []
    for _, task, result in all_runs(enhanced):
        changes = changes_by_arm(result, task, GOLD)
        gains = {name: [c["change"] for c in each] for name, each in changes.items()}
        own = gains.pop(LOCATED, [None])[0]  # None: it was not tuned
        drawn = [each["mean"] for each in gains.get(RANDOM, [])]
        rivals = [x["mean"] for name, each in gains.items() if name != "none" for x in each]
        gained.append(bool(own and own["low"] is not None and own["low"] > 0))
        beaten.append(bool(own and drawn and own["mean"] > max(drawn)))
        best.append(bool(own and own["mean"] > max(rivals, default=np.inf)))
    claim.count("gains log-probability beyond doubt", gained)
    what = "gains more than every draw of as many neurons of the same layers"
    claim.parts.append(claim.count(what, beaten))
    claim.parts.append(claim.count("gains more than every other arm", best))
    return claim


def agreement(found: Found) -> str:
    """Name the measure by which wordings agree: of layers, or of sets by the larger."""
    return "agreement" if "agreement" in found["margin"] else "largest"


def written(interval: Found) -> str:
    """Write a mean in two digits."""
    return str(Value(interval["mean"], digits=2))


def surely_less(first: Found, second: Found) -> bool:
    """Ask whether an interval lies below another; no if either is not known."""
    return None not in (first["high"], second["low"]) and first["high"] < second["low"]


def located_by(agreement: Found, margin: Found) -> bool | None:
    """Ask whether sets agree at `AGREE` and beyond the margin, by intervals; None if open."""
    if None in (agreement["low"], margin["low"]):
        return None
    if agreement["high"] < AGREE or margin["high"] < 0:
        return False
    return True if agreement["low"] >= AGREE and margin["low"] > 0 else None


def judge_yardstick(yardstick: Mapping[str, Sequence[Found]]) -> Claim:
    """Judge facts and capabilities by the same score, rule, number of prompts and words."""
    claim = Claim("capabilities are located rather than single facts, on one yardstick")
    for what in ("capability", "fact"):
        found = [
            located_by(row[what], row[f"{what}_margin"])
            for rows in yardstick.values()
            for row in rows
            if row[what]["mean"] is not None
        ]
        wanted = what == "capability"
        told = "is" if wanted else "is not"
        claim.parts.append(
            claim.count(
                f"a {what} {told} located: sets agree at {AGREE:g}, beyond the margin",
                [each is wanted for each in found],
                f"{found.count(None)} open, {found.count(not wanted)} the other way",
            )
        )
    return claim


def judge_facts(fidelity: Mapping[str, Found]) -> Claim:
    """Judge whether no way to locate facts finds one again in other words, and it alone."""
    claim = Claim("single facts are not located by the methods for them")
    for name, of_set in fidelity.items():
        for method, found in of_set["methods"].items():
            measure = agreement(found)
            own, related = (found["arms"][arm][measure] for arm in ("rewrites", "same_relation"))
            located = located_by(own, found["margin"][measure])
            claim.parts.append(located is False)
            claim.tell(
                f"{NAMES[method]}: wordings of a fact agree below {AGREE:g}, or not more than "
                f"other facts of the relation",
                {True: "no", False: name, None: "open"}[located],
                f"{written(own)}; other facts {written(related)}",
            )
    return claim


def judge_reliability(reliability: Mapping[str, Found]) -> Claim:
    """Judge whether what was located for a fact works on it, and on nothing else."""
    claim = Claim("what is located for a single fact is not its own")
    for found in (of_set["methods"] for of_set in reliability.values()):
        if neurons := found.get("neurons"):
            suppressed = neurons["suppress"]
            own, apart = (suppressed[place]["located"] for place in ("fact", "unrelated"))
            other = suppressed["fact"]["other_fact"]
            claim.parts.append(not (surely_less(own, apart) and surely_less(own, other)))
            figures = f"{written(own)}; unrelated {written(apart)}; {written(other)}"
            what = (
                "knowledge neurons at zero change the fact no more than unrelated facts, or than "
                "another fact's do"
            )
            claim.tell(what, "all" if claim.parts[-1] else "no", figures)
        if circuits := found.get("circuits"):
            arms = {each["name"]: each["faithfulness"] for each in circuits["arms"]}
            own, other = arms["located"], arms["same relation"]
            claim.parts.append(not surely_less(other, own))
            figures = f"{written(own)}; of another fact {written(other)}"
            what = "a fact's circuit is no more faithful than another fact's"
            claim.tell(what, "all" if claim.parts[-1] else "no", figures)
    return claim
