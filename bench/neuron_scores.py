"""Which score finds the neurons that a task of a network needs, and at what price.

    python bench/neuron_scores.py                          SmolLM2, six tasks: an hour on one core
    python bench/neuron_scores.py --model gemma3-270m      another model; others keep their results
    python bench/neuron_scores.py --tasks words/past       some of the tasks; so do others

The same examples are scored in every way. Of each way stand here: CPU seconds for an example; how
alike the neurons of five disjoint subsets and of ten random halves are; how few examples carry half
of the score; and what held-out examples lose (log-probability of gold answers, and gold answers
that the model would write) when its neurons are cut, beside 19 random sets with as many neurons in
each layer and beside as many neurons of the lowest scores. Each task of a model replaces its own
part of neuron_scores.json, and the page is written from all.
"""

import argparse
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

# before torch and the libraries that read them are imported
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
import torch
from torch import Tensor

import caploc
from caploc.engine.encoding import RequestEncoder, Span
from caploc.models.hooks import temporary_hooks
from caploc.models.neurons import Chosen, NeuronModel, as_neurons, list_projections
from caploc.neurons.attribution import Attribution
from caploc.neurons.finding import score_examples
from caploc.neurons.study import load_source
from caploc.stats.chance import random_sets
from caploc.stats.sets import commonality_set, overlap_rates
from caploc.stats.threshold import above, best
from caploc.tasks.catalog import TaskOptions
from caploc.workbench import ModelOptions
from clock import Stopwatch

PAGE = Path("docs/bench/neuron_scores.md")
WORDS_TASKS = tuple(
    f"words/{name}" for name in ("past", "plural", "upper", "digits", "third_person", "capital")
)
TASKS = {
    "smollm2": WORDS_TASKS,
    "gemma3-270m": WORDS_TASKS,
    "demo": tuple(
        f"demo/{name}" for name in ("addition", "sorting", "code", "capitals", "elements", "recall")
    ),
}
TITLES = {"smollm2": "SmolLM2-135M", "gemma3-270m": "Gemma-3-270M", "demo": "the demo model"}
ASKED = {
    "gradient": Attribution("gradient"),
    "joint": Attribution("joint", steps=3),
    "integrated": Attribution("integrated", steps=3),
    "activation": Attribution("activation"),
    "logit": Attribution("logit"),
}
RULES: dict[str, Callable[[np.ndarray], Chosen]] = {
    "0.15 %": lambda mean: best(mean, 0.0015),
    "6 sigma": above,
    "1 %": lambda mean: best(mean, 0.01),
}
DRAWN = "0.15 %"  # the rule whose sets are held against random ones, for scores with gradients
SUBSETS, LEAST, HALVES, DRAWS = 5, 0.6, 10, 19


@dataclass(frozen=True)
class Judge:
    """Held-out examples that share the beginning of their prompts, read once for each cut."""

    model: NeuronModel
    prefix: Tensor
    spans: list[Span]

    @classmethod
    def of(cls, model: NeuronModel, spans: Sequence[Span]) -> "Judge":
        """Split off what all prompts begin with; each example keeps a token of its own."""
        columns = zip(*(span.inputs for span in spans), strict=False)
        common = next((n for n, column in enumerate(columns) if len(set(column)) > 1), 0)
        least = min(len(span.inputs) - len(span.continuation) for span in spans)
        common = min(common, least)
        rest = [replace(span, inputs=span.inputs[common:]) for span in spans]
        return cls(model, torch.tensor([spans[0].inputs[:common]]), rest)

    @torch.no_grad()
    def outcomes(self, cut: Chosen) -> np.ndarray:
        """Give each example's mean log-probability of gold tokens, and whether all come first."""
        longest = max(len(span.inputs) for span in self.spans)
        tokens = torch.zeros((len(self.spans), longest), dtype=torch.long)
        for row, span in zip(tokens, self.spans, strict=True):
            row[: len(span.inputs)] = torch.tensor(span.inputs)
        network = self.model.model
        with silenced(self.model, cut):
            past = network(input_ids=self.prefix, use_cache=True).past_key_values
            past.batch_repeat_interleave(len(self.spans))
            logits = network(input_ids=tokens, past_key_values=past, use_cache=True).logits.float()
        found = []
        for row, span in zip(logits.log_softmax(-1), self.spans, strict=True):
            gold = torch.tensor(span.continuation)
            own = row[len(span.inputs) - len(gold) : len(span.inputs)]
            right = bool((own.argmax(-1) == gold).all())
            found.append((float(own.gather(1, gold[:, None]).mean()), float(right)))
        return np.array(found)


def silenced(model: NeuronModel, cut: Chosen) -> Any:
    """Zero the chosen neurons in every forward pass inside the block."""

    def hooks() -> Iterator[Any]:
        for _, columns, module in list_projections(model.projections):
            keep = torch.tensor(~cut[columns], dtype=torch.float32)
            yield module.register_forward_pre_hook(lambda _, a, k=keep: (a[0] * k, *a[1:]))

    return temporary_hooks(hooks())


def score(model: NeuronModel, spans: list[Span], asked: Attribution) -> tuple[np.ndarray, float]:
    """Score every example; the rows in their order, and CPU seconds for each."""
    watch, rows = Stopwatch(), np.zeros((len(spans), model.grid.size))
    for numbers, found in score_examples(model, spans, asked):
        rows[numbers] = found
    return rows, watch.read().cpu / len(spans)


def normalise(rows: np.ndarray) -> np.ndarray:
    """Divide each example's scores by the sum of their sizes."""
    total = np.abs(rows).sum(1, keepdims=True)
    return np.divide(rows, total, out=np.zeros_like(rows), where=total > 0)


def agreement(rows: np.ndarray, choose: Callable[[np.ndarray], Chosen]) -> dict[str, Any]:
    """Compare the sets of disjoint subsets, and of random halves."""
    size, random = len(rows) // SUBSETS, np.random.default_rng(0)
    subsets = [choose(rows[n * size : (n + 1) * size].mean(0)) for n in range(SUBSETS)]
    pairs = [overlap_rates(a, b).largest for a, b in combinations(subsets, 2)]
    halves = []
    for _ in range(HALVES):
        order = random.permutation(len(rows))
        parts = (order[: len(rows) // 2], order[len(rows) // 2 :])
        halves.append(overlap_rates(*(choose(rows[part].mean(0)) for part in parts)).largest)
    located = commonality_set(np.stack(subsets), LEAST)
    return {"subsets": mean(pairs), "halves": mean(halves), "located": located}


def mean(values: Sequence[float | None]) -> float | None:
    """Average what is defined."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def carriers(rows: np.ndarray) -> int:
    """Count the examples, the largest first, that carry half of all score sizes."""
    sizes = np.sort(np.abs(rows).sum(1))[::-1].cumsum()
    return int((sizes < sizes[-1] / 2).sum()) + 1


def erase(
    judge: Judge, located: Chosen, scores: np.ndarray, intact: np.ndarray, draws: int
) -> dict[str, Any]:
    """Measure what a cut costs, and what as many random or lowest-scored neurons cost."""
    if not located.any():
        return {"neurons": 0}
    lost = (intact - judge.outcomes(located)).mean(0)
    found = {"neurons": int(located.sum()), "logprob": lost[0], "metric": lost[1]}
    if draws:
        lowest = np.zeros_like(located)
        lowest[np.argsort(scores, kind="stable")[: located.sum()]] = True
        found["lowest"] = (intact - judge.outcomes(lowest)).mean(0).tolist()
        sets = random_sets(located, judge.model.grid, draws, seed=0)
        drawn = np.array([(intact - judge.outcomes(each)).mean(0) for each in sets])
        found |= {"drawn": drawn.mean(0).tolist(), "most": drawn.max(0).tolist()}
        found["beats"] = [bool(a > b) for a, b in zip(lost, drawn.max(0), strict=True)]
    return found


def report(
    model: NeuronModel,
    wording: RequestEncoder,
    task: str,
    counts: tuple[int, int],
    methods: list[str],
) -> dict[str, Any]:
    """Compare these scores, as they are and normalised, on one task."""
    source = load_source(ModelOptions(model.name), task, TaskOptions(), counts[0], 0)
    spans = source.spans(wording)
    judge = Judge.of(model, source.judged_spans(wording, counts[1]))
    intact = judge.outcomes(np.zeros(model.grid.size, dtype=bool))
    print(task, len(spans), len(judge.spans), intact.mean(0).round(3), flush=True)
    ways = {}
    for method in methods:
        raw, seconds = score(model, spans, ASKED[method])
        for title, rows in ((method, raw), (f"{method}, normalised", normalise(raw))):
            told: dict[str, Any] = {"seconds": seconds, "carriers": carriers(rows), "rules": {}}
            for rule, choose in RULES.items():
                found = agreement(rows, choose)
                draws = DRAWS if rule == DRAWN else 0
                lost = erase(judge, found.pop("located"), rows.mean(0), intact, draws)
                told["rules"][rule] = found | lost
                print(" ", title, rule, found | lost, flush=True)
            ways[title] = told
    parts = {"examples": len(spans), "judged": len(judge.spans)}
    return parts | {"intact": intact.mean(0).tolist(), "ways": ways}


def page(results: dict[str, dict[str, Any]]) -> str:
    """Write the page: models one after another, means of the tasks before single tasks."""
    lines = ["# Which neuron score finds what a network needs", "", WORDS, ""]
    for model, tasks in results.items():
        missing = ", ".join(name for name in TASKS[model] if name not in tasks)
        run = f"{len(tasks)} of {len(TASKS[model])} tasks."
        lines += [f"## {TITLES[model]}", "", run + f" Not run: {missing}." * bool(missing), ""]
        titles = dict.fromkeys(title for told in tasks.values() for title in told["ways"])
        for rule in RULES:
            lines += [f"### {TITLES[model]}, {rule}, mean of the tasks", "", HEAD, RULER]
            lines += [summary(tasks, title, rule) for title in titles] + [""]
    for model, tasks in results.items():
        for name, told in tasks.items():
            lines += [f"## {TITLES[model]}, {name}", "", intact_words(told), "", HEAD, RULER]
            for rule in RULES:
                one = {name: told}
                lines += [summary(one, title, rule, f", {rule}") for title in told["ways"]]
            lines.append("")
    return "\n".join(lines)


WORDS = f"""\
Written by `bench/neuron_scores.py`; the numbers are in the JSON file beside it. Tasks with their
usual examples in the prompt. A task's neurons are those chosen on {LEAST:.0%} of
{SUBSETS} disjoint subsets. Lost: by cutting them, on held-out examples, in nats for each gold token
and in the share of gold answers that are the model's first choice; in brackets the mean of {DRAWS}
random sets with as many neurons in each layer and, where measured, of as many neurons of the lowest
scores. Beats: tasks whose neurons cost more than every one of the random sets. Half: how many
examples carry half of all score sizes (over all neurons). `joint` and `integrated` take
{ASKED["joint"].steps} points. Small samples: a difference of a tenth between two ways is none."""
HEAD = (
    "| score | CPU s each | half | halves agree | subsets agree | neurons | nats lost |"
    " answers lost | beats (nats) | beats (answers) |"
)
RULER = "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|"


def intact_words(told: dict[str, Any]) -> str:
    """Say how good the model is at a task."""
    logprob, right = told["intact"]
    return (
        f"{told['examples']} examples to find on, {told['judged']} to judge on; intact "
        f"{right:.2f} right, {logprob:.3f} nats."
    )


def summary(results: dict[str, Any], title: str, rule: str, beside: str = "") -> str:
    """Write the row of one way and rule over some tasks; a set of no neuron loses nothing."""
    ways = [told["ways"][title] for told in results.values() if title in told["ways"]]
    beside += f", of {len(ways)} alone" if len(ways) < len(results) else ""
    rows = [way["rules"][rule] for way in ways]

    def average(name: str, digits: int = 2) -> str:
        known = mean([row.get(name) for row in rows])
        return "—" if known is None else f"{known:.{digits}f}"

    def loss(name: str, place: int) -> str:
        own = mean([row.get(name, 0.0) for row in rows])
        drawn, low = (
            mean([row[kind][place] for row in rows if kind in row]) for kind in ("drawn", "lowest")
        )
        beside = [f"{each:.3f}" for each in (drawn, low) if each is not None]
        return f"{own:.3f}" + (f" ({', '.join(beside)})" if beside else "")

    def beaten(place: int) -> str:
        known = [row["beats"][place] for row in rows if "beats" in row]
        return f"{sum(known)} of {len(rows)}" if known else "—"

    seconds, half = mean([w["seconds"] for w in ways]), mean([w["carriers"] for w in ways])
    return (
        f"| {title}{beside} | {seconds:.2f} | {half:.1f} | {average('halves')} | "
        f"{average('subsets')} | {average('neurons', 0)} | {loss('logprob', 0)} | "
        f"{loss('metric', 1)} | {beaten(0)} | {beaten(1)} |"
    )


def main() -> None:
    """Compare the scores on the tasks named, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2", choices=TASKS)
    parser.add_argument("--tasks", help="by name, parted by commas; all of the model's if left out")
    parser.add_argument("--examples", type=int, default=30)
    parser.add_argument("--judged", type=int, default=30)
    parser.add_argument("--scores", default=",".join(ASKED), help="some of the five")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    loaded = caploc.load_model(asked.model)
    model, wording = as_neurons(loaded), RequestEncoder(loaded.model, loaded.tokenizer)
    numbers = PAGE.with_suffix(".json")
    for name in asked.tasks.split(",") if asked.tasks else TASKS[asked.model]:
        found = report(
            model, wording, name, (asked.examples, asked.judged), asked.scores.split(",")
        )
        results = json.loads(numbers.read_text()) if numbers.exists() else {}
        results.setdefault(asked.model, {})[name] = found
        ordered = {
            model: {task: results[model][task] for task in tasks if task in results[model]}
            for model, tasks in TASKS.items()
            if model in results
        }
        numbers.write_text(json.dumps(ordered, indent=1) + "\n")
        PAGE.write_text(page(ordered))
    print(f"Written: {PAGE}")


if __name__ == "__main__":
    main()
