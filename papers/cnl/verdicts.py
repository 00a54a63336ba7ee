"""CNL's claims, judged on what was measured: capabilities have neurons of their own, facts do not.

    1. Neurons of one capability are found again on other data of it, and others' are different.
    2. Erasing them breaks the capability, and erasing others as many does not.
    3. Tuning them improves it more than tuning others as many.
    4. A single fact is not located: in other words it lies elsewhere.

Each verdict is a rule over stored results, which is ours: the paper's own tables are not known to
us. A claim *holds* if all of its parts do, each for five tasks of six (or as many of another
number), holds *in part* if one does, else it *does not hold*. The parts of the last are the ways to
locate a fact, each of which is asked for what the first asks of a capability's neurons.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from caploc.neurons.enhancing import GOLD, METRIC, changes_by_arm
from caploc.neurons.erasure import ACTIVE, LAYERS, LOCATED, OWN
from caploc.neurons.fact_study import NAMES, margin_of
from caploc.neurons.training import LOCATED as TUNED
from caploc.neurons.training import RANDOM as TUNED_AT_RANDOM
from caploc.report.exhibits import NOTHING, Exhibit, Row, Value
from caploc.report.tabulation import fill_table
from caploc.report.wording import finite_numbers, read_yaml, write_q

AGREE = 0.6  # overlap of halves, by the larger set
DAMAGE = 0.2  # of the task's own score
MOST = 5 / 6  # of the tasks
SURE = 0.05  # p
OF = "neurons of a capability are"
TABLES = read_yaml(Path(__file__).with_name("verdicts.yaml"))  # that verdicts rest on
Found = Mapping[str, Any]  # of one task, as the files hold it


@dataclass(frozen=True)
class ErasedLosses:
    """What the tasks lose without one task's neurons, in log-probability or in the score."""

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


def verdicts(results: Mapping[str, Any], kinds: Mapping[str, str]) -> list[Exhibit]:
    """Judge each claim that was measured, and show what its verdict rests on."""
    judged: list[Row] = []
    shown: dict[str, Any] = {"ends": ends, "mean": np.mean, "only": OWN}
    if "main" in results:
        judged.append((f"{OF} stable and specific", *judge_sets(results["main"])))
    if "erasure" in results:
        judged.append((f"{OF} needed", *judge_erasure(results["erasure"], kinds)))
        shown["erased"] = tabulate_losses(results["erasure"], kinds)
        shown["alone"] = list_alone(results["main"], shown["erased"], kinds)
    if "enhancement" in results:
        judged.append((f"{OF} those that learn best", *judge_tuning(results["enhancement"])))
        shown["tuned"] = list_tuned(results["enhancement"])
    if "fidelity" in results:
        judged.append(("single facts are not located", *judge_facts(results["fidelity"])))
        shown["located"] = list_locators(results["fidelity"])
    if "reliability" in results:
        shown["changed"] = list_changes(results["reliability"])
    notes = [
        f"A claim holds if all of its parts do, each for at least {MOST:.0%} of the tasks, in part "
        "if one does. The rules are caploc's."
    ]
    columns = ("claim", "verdict", "because")
    tables = [
        fill_table(f"verdict-{name}", table, {**results, **shown})
        for name, table in TABLES.items()
        if table["of"] in results
    ]
    first = Exhibit("verdicts", "The paper's claims", columns, judged, notes)
    return [first, *(table for table in tables if table.rows)]


def word_of(*parts: bool) -> str:
    """Word a verdict on the parts of a claim."""
    return "holds" if all(parts) else "holds in part" if any(parts) else "does not hold"


def enough(count: int, of: int) -> bool:
    """Ask whether these are most of the tasks."""
    return count >= MOST * of - 1e-9


def judge_sets(located: Found) -> tuple[str, str]:
    """Judge whether sets agree within a task, more than across tasks, and with its twin's."""
    tasks, whole = located["tasks"], located["cohesion"] or {}
    halves = [float(np.mean(each["halves"])) for each in tasks if each["halves"]]
    chance = ends((each["by_chance"] for each in tasks), 3)
    agree = sum(each >= AGREE for each in halves)
    apart = sum(each["separate"] is True for each in tasks)
    because = (
        f"halves of one data set agree at {AGREE:g} or more for {agree} of {len(tasks)} "
        f"({ends(halves)}; by chance {chance}); for {apart} of {len(tasks)} a task's subsets agree "
        "beyond doubt more than those of different tasks"
    )
    parts = [enough(agree, len(tasks)), enough(apart, len(tasks))]
    if whole.get("same_kind") is not None:
        shared = [Value(whole[name], digits=2) for name in ("same_kind", "across_kinds")]
        because += (
            f"; a task and its twin share {shared[0]} of their sets, different capabilities "
            f"{shared[1]} (p {write_q(whole['p'])})"
        )
        parts.append(whole["p"] is not None and whole["p"] <= SURE)
    return word_of(*parts), because


def tabulate_losses(erasure: Found, kinds: Mapping[str, str]) -> list[dict[str, Any]]:
    """List each task's erasure, with what is lost of log-probability and of the score."""
    measures = {"gold": "logprob", "score": "metric"}
    return [
        each | {name: ErasedLosses(each, kinds, what) for name, what in measures.items()}
        for each in erasure["tasks"]
    ]


def list_alone(
    located: Found, erased: Sequence[dict[str, Any]], kinds: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    """List the tasks erased by only the neurons that no other capability has, and how many."""
    names = {
        each["task"]: {n["neuron"] if isinstance(n, Mapping) else n for n in each["neurons"]}
        for each in located["tasks"]
    }
    for each in erased:
        task = each["task"]
        strangers = [n for t, n in names.items() if kinds.get(t, t) != kinds.get(task, task)]
        if each["gold"].own(OWN):
            yield each | {"left": len(names[task].difference(*strangers))}


def judge_erasure(erasure: Found, kinds: Mapping[str, str]) -> tuple[str, str]:
    """Judge whether a task needs its neurons, and whether other capabilities do not."""
    erased = tabulate_losses(erasure, kinds)
    gold, score = ([each[name] for each in erased] for name in ("gold", "score"))
    layers = sum(each.beats(LAYERS) for each in gold)
    active = sum(each.beats(ACTIVE) for each in gold)
    broken = sum(each.own()[0]["mean"] >= DAMAGE for each in score)
    own = sum(each.own()[0]["mean"] > max(each.beside(kin=False), default=np.inf) for each in gold)
    others = [x for each in score for x in each.beside(kin=False)]
    because = (
        f"erasing them costs more log-probability than every draw in the same layers for {layers} "
        f"of {len(gold)}, and than every draw as active besides for {active}; the score falls by "
        f"{DAMAGE:g} or more for {broken}; the task itself loses more than every task of another "
        f"capability for {own} of {len(gold)}, and those lose {ends(others)} of their score"
    )
    if alone := [each for each in gold if each.own(OWN)]:
        spared = [x for each in score for x in each.beside(kin=False, arm=OWN)]
        most = sum(
            each.own(OWN)[0]["mean"] > max(each.beside(kin=False, arm=OWN), default=np.inf)
            for each in alone
        )
        because += (
            f". Without only the neurons that no other capability has, the task loses most for "
            f"{most} of {len(alone)}, and other capabilities lose {ends(spared)} of their score"
        )
    needed = enough(min(layers, active), len(gold)) and 2 * broken >= len(gold)
    return word_of(needed, enough(own, len(gold))), because


def judge_tuning(enhanced: Mapping[str, Mapping[str, Found]]) -> tuple[str, str]:
    """Judge whether tuning the located neurons gains most, and gains beyond doubt at all."""
    runs = [(task, result) for tasks in enhanced.values() for task, result in tasks.items()]
    gained = beaten = best = 0
    for task, result in runs:
        changes = changes_by_arm(result, task, GOLD)
        gains = {name: [c["change"] for c in each] for name, each in changes.items()}
        if TUNED not in gains:  # it ran out of memory: nothing is known
            continue
        (own,) = gains.pop(TUNED)
        gained += own["low"] is not None and own["low"] > 0
        drawn = [each["mean"] for each in gains.get(TUNED_AT_RANDOM, [])]
        beaten += bool(drawn) and own["mean"] > max(drawn)
        rivals = [x["mean"] for name, each in gains.items() if name != "none" for x in each]
        best += own["mean"] > max(rivals, default=np.inf)
    because = (
        f"tuning them gains log-probability beyond doubt in {gained} of {len(runs)} runs, more "
        f"than tuning every draw of as many random neurons of the same layers in {beaten}, and "
        f"more than every other arm in {best}"
    )
    return word_of(enough(beaten, len(runs)), enough(best, len(runs))), because


def list_tuned(enhanced: Mapping[str, Mapping[str, Found]]) -> Iterator[dict[str, Any]]:
    """List what each arm gained, seed by seed."""
    for seed, tasks in enhanced.items():
        for task, result in tasks.items():
            score = changes_by_arm(result, task, METRIC)
            counts = {arm["arm"]: arm["fit"]["parameters"] for arm in result["arms"] if arm["fit"]}
            for name, gold in changes_by_arm(result, task, GOLD).items():
                run = {"task": task, "seed": seed, "arm": name, "parameters": counts.get(name)}
                if name != "none":
                    yield run | {"score": score[name], "gold": gold}


def list_locators(fidelity: Mapping[str, Found]) -> list[dict[str, Any]]:
    """List each way to locate the facts of each set, what it found, and by what wordings agree."""
    return [
        {
            "title": NAMES[method] if len(fidelity) == 1 else f"{NAMES[method]}, {name}",
            "found": found,
            "measure": "agreement" if "agreement" in found["margin"] else "largest",
        }
        for name, of_set in fidelity.items()
        for method, found in of_set["methods"].items()
    ]


def judge_facts(fidelity: Mapping[str, Found]) -> tuple[str, str]:
    """Judge whether no way to locate facts finds one again in other words, and it alone."""
    parts, said = [], []
    for each in list_locators(fidelity):
        found, measure = each["found"], each["measure"]
        own, related = (
            found["arms"][arm][measure]["mean"] for arm in ("rewrites", "same_relation")
        )
        more = (margin_of(found)["low"] or 0) > 0
        parts.append(not (own is not None and own >= AGREE and more))
        said.append(
            f"{each['title']} {Value(own, digits=2)} (with other facts of the relation "
            f"{Value(related, digits=2)}, {'less beyond doubt' if more else 'not surely less'})"
        )
    because = (
        f"what is located for two wordings of a fact agrees, asked for {AGREE:g} and surely more "
        f"than with other facts of the relation, at: {', '.join(said)}"
    )
    return word_of(*parts), because


def list_changes(reliability: Mapping[str, Found]) -> Iterator[dict[str, Any]]:
    """List what changing what was located does to a fact, beside what changing others' does."""
    for name, of_set in reliability.items():
        title, found = "" if len(reliability) == 1 else f", {name}", of_set["methods"]
        if "neurons" in found:
            for how, words in (("suppress", "set to zero"), ("enhance", "doubled")):
                own = found["neurons"][how]["fact"]
                what = f"knowledge neurons {words}: change of the answer's probability{title}"
                effects = {"own": own["located"], "other": own["other_fact"]}
                yield {"what": what, **effects, "random": own["random"]}
        if "tracing" in found:
            what = f"rank-one edits: correlation of success with tracing over layers{title}"
            yield {"what": what, "own": found["tracing"]["correlation"]}
        if "circuits" in found:
            kept = {arm["name"]: arm["faithfulness"] for arm in found["circuits"]["arms"]}
            what = f"all edges cut but a circuit's: share of the answer kept{title}"
            effects = {"own": kept["located"], "other": kept["same relation"]}
            yield {"what": what, **effects, "random": kept["random"]}


def ends(values: Iterable[float | None], digits: int = 2) -> str:
    """Write the lowest and the highest."""
    known = finite_numbers(values)
    return f"{min(known):z.{digits}f} to {max(known):z.{digits}f}" if known else NOTHING
