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

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from caploc.neurons.enhancing import GOLD, METRIC, changes_by_arm
from caploc.neurons.erasure import ACTIVE, LAYERS, LOCATED, OWN
from caploc.neurons.training import LOCATED as TUNED
from caploc.neurons.training import RANDOM as TUNED_AT_RANDOM
from papers.cnl.fact_study import NAMES, margin_of
from papers.exhibits import NOTHING, Exhibit, Value, dots, drawn, interval, of_draws, span

AGREE = 0.6  # overlap of halves, by the larger set
DAMAGE = 0.2  # of the task's own score
MOST = 5 / 6  # of the tasks
SURE = 0.05  # p
OF = "neurons of a capability are"
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
    judged: list[tuple[str, str, str]] = []
    tables: list[Exhibit] = []
    if "main" in results:
        judged.append((f"{OF} stable and specific", *judge_sets(results["main"])))
        tables += show_sets(results["main"])
    if "erasure" in results:
        judged.append((f"{OF} needed", *judge_erasure(results["erasure"], kinds)))
        tables += show_erasure(results, kinds)
    if "enhancement" in results:
        judged.append((f"{OF} those that learn best", *judge_tuning(results["enhancement"])))
        tables.append(show_tuning(results["enhancement"]))
    if "fidelity" in results:
        judged.append(("single facts are not located", *judge_facts(results["fidelity"])))
        tables.append(show_facts(results["fidelity"]))
    if "reliability" in results:
        tables.append(show_changes(results["reliability"]))
    notes = [
        f"A claim holds if all of its parts do, each for at least {MOST:.0%} of the tasks, in part "
        "if one does. The rules are caploc's."
    ]
    rows = [dict(zip(("claim", "verdict", "because"), each, strict=True)) for each in judged]
    first = Exhibit.of("verdicts", "The paper's claims", rows, notes)
    return [first, *(table for table in tables if len(table.frame))]


def show_sets(main: Found) -> list[Exhibit]:
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
    notes = [
        "Overlap by the larger set, of halves (two fifths of the examples against two others; mean "
        "and ends of ten random splits), and of fifths, with a 95 % interval."
    ]
    found = [Exhibit.of("verdict-sets", "Stable and specific?", rows, notes)]
    if overlaps := main["overlaps"]:
        names = overlaps["datasets"]
        shared = [
            {"task": name}
            | {other: Value(n, digits=2) for other, n in zip(names, row, strict=True)}
            for name, row in zip(names, overlaps["rates"]["largest"], strict=True)
        ]
        title = "What sets of different tasks share"
        notes = ["Overlap by the larger set; on the diagonal that of a task's own subsets."]
        found.append(Exhibit.of("verdict-shared", title, shared, notes))
    return found


def show_erasure(results: Mapping[str, Any], kinds: Mapping[str, str]) -> list[Exhibit]:
    """Show what each task loses without its neurons, and without those it alone has."""
    erased, located = tabulate_losses(results["erasure"], kinds), results["main"]
    rows, alone = [], []
    for each in erased:
        intact, score, gold = each["own"]["intact"], each["score"], each["gold"]
        row = {
            "task": each["task"],
            "neurons": each["neurons"],
            "intact": Value(intact["score"], intact["stderr"]),
            "score lost": interval(score.own()[0]),
        }
        row |= {arm: drawn(score.drawn(arm)) for arm in (LAYERS, ACTIVE)}
        row |= {"nats lost": interval(gold.own()[0])}
        row |= {f"nats, {arm}": drawn(gold.drawn(arm)) for arm in (LAYERS, ACTIVE)}
        row |= {"nats lost by its twin": drawn(gold.beside(kin=True))}
        row |= {"by other capabilities": drawn(gold.beside(kin=False))}
        rows.append(row | {"score lost by those": drawn(score.beside(kin=False))})
    for each in list_alone(located, erased, kinds):
        row = {"task": each["task"], "neurons": each["left"]}
        for what, losses in (("score", each["score"]), ("nats", each["gold"])):
            row[f"{what} lost"] = interval(losses.own(OWN)[0])
            row[f"{what}, by its twin"] = drawn(losses.beside(kin=True, arm=OWN))
            row[f"{what}, by other capabilities"] = drawn(losses.beside(kin=False, arm=OWN))
        alone.append(row)
    notes = [
        "On held-out examples of each task, with 95 % intervals; of draws, and of other tasks, the "
        "mean, the least and the most. Nats are of log-probability, for each gold token."
    ]
    spared = [
        "Losses with only those cut. The other capabilities are the ones whose neurons were left "
        "in: that they are spared is in part by construction, and tasks of no neurons say more."
    ]
    table = Exhibit.of("verdict-erasure", "Needed?", rows, notes)
    chart = dots(table.frame, "task", ["nats lost", f"nats, {LAYERS}", f"nats, {ACTIVE}"])
    title = "Without the neurons that no other capability has"
    return [replace(table, chart=chart), Exhibit.of("verdict-own", title, alone, spared)]


def show_tuning(enhanced: Mapping[Any, Mapping[str, Found]]) -> Exhibit:
    """Show what each arm gained, seed by seed."""
    rows = []
    for each in list_tuned(enhanced):
        score, gold = ([one["change"] for one in each[name]] for name in ("score", "gold"))
        many = f", {len(gold)} draws" if len(gold) > 1 else ""
        rows.append(
            {
                "task": each["task"],
                "seed": each["seed"],
                "tuned": f"{each['arm']}{many}",
                "parameters": each["parameters"],
                "score before": Value(each["score"][0]["before"]),
                "score gained": of_draws(score),
                "nats gained": of_draws(gold),
            }
        )
    notes = [
        "On held-out examples, with 95 % intervals; of draws the mean, the least and the most. "
        "Each arm has the learning rate that is best for it on other examples."
    ]
    return Exhibit.of("verdict-tuning", "Learn best?", rows, notes)


def show_facts(fidelity: Mapping[str, Found]) -> Exhibit:
    """Show how alike two wordings of a fact are located, beside other prompts."""
    rows = []
    for each in list_locators(fidelity):
        found, measure = each["found"], each["measure"]
        rows.append(
            {"located by": each["title"], "facts": found["facts"]}
            | {"neurons or edges": Value(found["size"], digits=0)}
            | {
                arm.replace("_", " "): interval(found["arms"][arm][measure])
                for arm in ("rewrites", "same_relation", "unrelated", "random")
            }
            | {"rewrites less same relation": interval(found["margin"][measure])}
        )
    notes = [
        "Facts that the model answers rightly, and of their wordings those too. Overlap of the "
        "prompt's neurons or edges, by the larger set, with those of each other prompt; of causal "
        "tracing, how often both peak in the same layer. With 95 % intervals over facts."
    ]
    table = Exhibit.of("verdict-facts", "Single facts: located alike in other words?", rows, notes)
    chart = dots(table.frame, "located by", ["rewrites", "same relation", "unrelated", "random"])
    return replace(table, chart=chart)


def show_changes(reliability: Mapping[str, Found]) -> Exhibit:
    """Show what changing what was located does to a fact, beside what changing others' does."""
    columns = {"own": "of the fact itself", "other": "of another fact", "random": "random"}
    rows = [
        {"changed": each["what"]}
        | {title: interval(each[key]) if key in each else NOTHING for key, title in columns.items()}
        for each in list_changes(reliability)
    ]
    notes = [
        "Mean over facts with 95 % intervals. Probabilities change by a share of themselves; the "
        "other fact of a circuit is of the same relation."
    ]
    title = "Single facts: does changing what was located change them, and them alone?"
    return Exhibit.of("verdict-changed", title, rows, notes)


def show_crossing(crossed: Sequence[Found]) -> list[Exhibit]:
    """Show what one task's neurons do to other tasks, of its kind and of others."""
    columns = {
        "the task itself": "cohesion",
        "other tasks": "separability",
        "others of its kind": "same_kind",
        "of other kinds": "across_kinds",
        "p of kinds": "p",
    }
    rows = [
        {"neurons": each["how"]}
        | {title: Value(each["kinds"][key], digits=4) for title, key in columns.items()}
        | {"correlation with overlap": Value((each["overlap"] or {}).get("value"), digits=2)}
        for each in crossed
    ]
    notes = [
        "Effects in nats of log-probability a gold token: lost when erased, gained when tuned. p: "
        "kinds dealt out to tasks at random. The correlation (Spearman) is over pairs of tasks."
    ]
    title = "Neurons of one task, effects on others"
    return [Exhibit.of("crossing", title, rows, notes)] if rows else []


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
    chance = span((each["by_chance"] for each in tasks), 3)
    agree = sum(each >= AGREE for each in halves)
    apart = sum(each["separate"] is True for each in tasks)
    because = (
        f"halves of one data set agree at {AGREE:g} or more for {agree} of {len(tasks)} "
        f"({span(halves)}; by chance {chance}); for {apart} of {len(tasks)} a task's subsets agree "
        "beyond doubt more than those of different tasks"
    )
    parts = [enough(agree, len(tasks)), enough(apart, len(tasks))]
    if whole.get("same_kind") is not None:
        shared = [Value(whole[name], digits=2) for name in ("same_kind", "across_kinds")]
        because += (
            f"; a task and its twin share {shared[0]} of their sets, different capabilities "
            f"{shared[1]} (p {whole['p']:.3g})"
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
        f"capability for {own} of {len(gold)}, and those lose {span(others)} of their score"
    )
    if alone := [each for each in gold if each.own(OWN)]:
        spared = [x for each in score for x in each.beside(kin=False, arm=OWN)]
        most = sum(
            each.own(OWN)[0]["mean"] > max(each.beside(kin=False, arm=OWN), default=np.inf)
            for each in alone
        )
        because += (
            f". Without only the neurons that no other capability has, the task loses most for "
            f"{most} of {len(alone)}, and other capabilities lose {span(spared)} of their score"
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
