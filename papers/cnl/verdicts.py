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

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from caploc.neurons.enhancing import GOLD, changes_by_arm
from caploc.neurons.options import ACTIVE, LAYERS, LOCATED, OWN, RANDOM
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


def judge_claims(numbers: Mapping[str, Any]) -> list[Claim]:
    """Judge each claim that was measured."""
    kinds = numbers["preset"]["kinds"]
    judges = {
        "main": lambda found: judge_sets(found, kinds),
        "erasure": lambda found: judge_erasure(found, kinds),
        "enhancement": judge_tuning,
        "fidelity": judge_facts,
    }
    return [judge(numbers[name]) for name, judge in judges.items() if name in numbers]


def universal_neurons(tasks: Sequence[Found], kinds: Mapping[str, str]) -> dict[str, int]:
    """List the neurons that more than half of three capabilities or more have, and how many do.

    A capability has a neuron if one of its tasks does, a twin for example.
    """
    owned: dict[str, set[str]] = defaultdict(set)
    for each in tasks:
        owned[kinds.get(each["task"], each["task"])] |= {row["neuron"] for row in each["neurons"]}
    if len(owned) < 3:
        return {}
    owners = Counter(neuron for names in owned.values() for neuron in names)
    return {name: n for name, n in owners.most_common() if 2 * n > len(owned)}


def judge_sets(located: Found, kinds: Mapping[str, str]) -> Claim:
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
    if universal := universal_neurons(tasks, kinds):
        first = ", ".join(f"{name} ({count})" for name, count in list(universal.items())[:5])
        what = "neurons that more than half of the capabilities have (the first, and of how many)"
        claim.tell(what, str(len(universal)), first)
    return claim


@dataclass(frozen=True)
class ErasedLosses:
    """What the tasks lose without one task's neurons: `logprob` or `metric`."""

    erased: Found
    kinds: Mapping[str, str]
    measure: str

    def own(self, arm: str = LOCATED) -> list[Any]:
        """List the intervals of an arm's draws, on the task itself."""
        return [x[self.measure] for x in self.erased["own"]["arms"] if x["arm"] == arm]

    def drawn(self, arm: str) -> list[float]:
        """List what each of an arm's draws costs the task itself, on average."""
        return [each["mean"] for each in self.own(arm)]

    def beats(self, arm: str) -> bool:
        """Ask whether the located neurons cost more than every draw of an arm."""
        drawn = self.drawn(arm)
        return bool(drawn) and self.own()[0]["mean"] > max(drawn)

    def beside(self, *, kin: bool, arm: str = LOCATED) -> list[float]:
        """List what other tasks lose, of the same kind (such as a twin) or of other kinds."""
        task, found = self.erased["task"], []
        for each in self.erased["others"]:
            same = self.kinds.get(task, task) == self.kinds.get(each["judged"], each["judged"])
            if same == kin:
                found += [x[self.measure]["mean"] for x in each["arms"] if x["arm"] == arm]
        return found

    def loses_most(self, arm: str = LOCATED) -> bool:
        """Ask whether the task loses more than every task of another capability."""
        return self.own(arm)[0]["mean"] > max(self.beside(kin=False, arm=arm), default=np.inf)


def losses_of(erasure: Found, kinds: Mapping[str, str], measure: str) -> list[ErasedLosses]:
    """List each task's erasure."""
    return [ErasedLosses(each, kinds, measure) for each in erasure["tasks"]]


def costliest_other(task: ErasedLosses, erased: Sequence[ErasedLosses]) -> float | None:
    """Find the most that the task loses without another capability's neurons; None if untried."""
    name = task.erased["task"]
    kind = task.kinds.get(name, name)
    lost = [
        arm[each.measure]["mean"]
        for each in erased
        if each.kinds.get(each.erased["task"], each.erased["task"]) != kind
        for judged in each.erased["others"]
        if judged["judged"] == name
        for arm in judged["arms"]
        if arm["arm"] == LOCATED
    ]
    return max(lost, default=None)


def judge_erasure(erasure: Found, kinds: Mapping[str, str]) -> Claim:
    """Judge whether a task needs its neurons, and whether other capabilities do not."""
    claim = Claim(f"{OF} needed")
    gold, score = (losses_of(erasure, kinds, name) for name in ("logprob", "metric"))
    costs = "costs more log-probability than every draw"
    layers = claim.count(f"{costs} in the same layers", [each.beats(LAYERS) for each in gold])
    active = claim.count(f"{costs} as active besides", [each.beats(ACTIVE) for each in gold])
    broken = [each.own()[0]["mean"] >= DAMAGE for each in score]
    claim.count(f"takes {DAMAGE:g} or more of the score", broken)
    claim.parts.append(layers and active and 2 * sum(broken) >= len(broken))

    def others(arm: str) -> str:
        lost = span(x for each in score for x in each.beside(kin=False, arm=arm))
        return f"others lose {lost} of their score"

    what = "the task loses more than every task of another capability"
    own = claim.count(what, [each.loses_most() for each in gold], others(LOCATED))
    claim.parts.append(own)
    rivals = [(each, costliest_other(each, gold)) for each in gold]
    if rivals := [(each, other) for each, other in rivals if other is not None]:
        margins = [each.own()[0]["mean"] - other for each, other in rivals]
        what = "the task loses more than without the neurons of any other capability"
        figures = f"{span(margins)} nats more than by the costliest"
        claim.parts.append(claim.count(what, [margin > 0 for margin in margins], figures))
    if alone := [each for each in gold if each.own(OWN)]:
        what = "so without only the neurons that no other capability has"
        claim.count(what, [each.loses_most(OWN) for each in alone], others(OWN))
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


def judge_facts(fidelity: Mapping[str, Found]) -> Claim:
    """Judge whether no way to locate facts finds one again in other words, and it alone."""
    claim = Claim("single facts are not located")
    for name, of_set in fidelity.items():
        for method, found in of_set["methods"].items():
            measure = agreement(found)
            own, related = (found["arms"][arm][measure] for arm in ("rewrites", "same_relation"))
            more = (found["margin"][measure]["low"] or 0) > 0
            located = own["mean"] is not None and own["mean"] >= AGREE and more
            claim.parts.append(not located)
            sure = "less beyond doubt" if more else "not surely less"
            figures = [str(Value(each["mean"], digits=2)) for each in (own, related)]
            claim.tell(
                f"{NAMES[method]}: wordings of a fact agree below {AGREE:g}, or not surely more "
                "than other facts of the relation",
                name if not located else "no",
                f"{figures[0]}; other facts {figures[1]}, {sure}",
            )
    return claim
