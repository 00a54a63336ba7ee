"""What scoring neurons costs, in forward passes over the same examples.

    python bench/neurons.py                    the demo model and 25 M random weights: some minutes
    python bench/neurons.py --models demo

Gradient x activation scores every neuron in one forward and one backward pass, which by counting
operations is two forward passes (weights are frozen). Measured against a plain forward pass of the
same tokens in the same batches, on one thread, turn by turn; integrated gradients are there for the
record. Each model replaces its own part of neurons.json, and the page is written from all.
"""

import argparse
import gc
import json
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

# before torch and the libraries that read them are imported
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
import torch

import models
from caploc.engine.encoding import RequestEncoder, Span
from caploc.neurons.attribution import METHODS, Attribution
from caploc.neurons.engine import Batch, Batcher, gold_logprobs
from caploc.neurons.finding import accumulate
from caploc.neurons.model import NeuronModel, as_neurons
from caploc.options import TaskOptions
from caploc.stats.threshold import Moments
from caploc.tasks.catalog import load_task
from clock import Stopwatch

PAGE = Path("docs/bench/neurons.md")
REPEATS, SLOW_REPEATS = 7, 5
EXAMPLES, SLOW_EXAMPLES = 200, 8  # per-layer integrals of S points cost S passes for each layer
SLOW = ("integrated", "joint")
LONGEST = 128  # tokens of an example of which integrals are taken
MOST = 2.5  # forward passes that gradient x activation may cost
TASKS = ("demo/addition", "demo/code")
LENGTHS = {"short": (20, 40, 30), "long": (150, 250, 6)}  # tokens, least and most; how many texts
STREAMED = "gradient, with running figures"


INTRODUCTION = f"""\
Written by `bench/neurons.py`; the numbers are in the JSON file beside it. *demo* is the small Llama
of caploc's tests, *25m* one with random weights. CPU seconds are medians
over repeats, with their range. Each repeat follows a plain forward pass over the same examples
(their gold answers' log-probabilities, in the batches of a gradient); the last column is the median
of the quotients, with their range. `gradient` is gradient x activation for every neuron of every
layer, and is measured with the running figures too that a study keeps. Integrals take
{Attribution().steps} points: `joint` for all layers at once, `integrated` layer by layer."""


@dataclass(frozen=True)
class Timed:
    """One way of going over some examples: CPU seconds of each repeat, and of as many forward ones.

    `ratios` divides each repeat by the forward pass that was taken right before it.
    """

    what: str
    examples: int
    tokens: int
    seconds: list[float]
    ratios: list[float]

    def row(self) -> str:
        """The row of a table."""
        ratio, low, high = median(self.ratios), min(self.ratios), max(self.ratios)
        return (
            f"| {self.what} | {self.examples} | {self.tokens:,} | {median(self.seconds):.3f} | "
            f"{min(self.seconds):.3f}-{max(self.seconds):.3f} | "
            f"{ratio:.2f} ({low:.2f}-{high:.2f}) |"
        )


def batches(model: NeuronModel, spans: Sequence[Span], copies: int = 1) -> list[Batch]:
    """The batches in which these examples are scored."""
    found: list[Batch] = []

    def keep(batch: Batch) -> list[int]:
        found.append(batch)
        return [0] * batch.size

    for _ in Batcher(model.model).run(spans, keep, copies):
        pass
    return found


@torch.no_grad()
def forward(model: NeuronModel, cut: Sequence[Batch]) -> None:
    """What the examples' answers are worth, and nothing else."""
    for batch in cut:
        gold_logprobs(model.model, batch)


def seconds(work: Callable[[], Any]) -> float:
    """CPU seconds, which other processes of the machine do not touch."""
    gc.collect()
    watch = Stopwatch()
    work()
    return watch.read().cpu


def timed(
    what: str, model: NeuronModel, spans: Sequence[Span], work: Callable[[], Any], repeats: int
) -> Timed:
    """A way of going over the examples and a forward pass, turn by turn, after a round to warm up.

    The forward pass has the batches of a gradient, whatever the way.
    """
    cut = batches(model, spans)
    plain: list[float] = []
    taken: list[float] = []
    for repeat in range(repeats + 1):
        before, own = seconds(lambda: forward(model, cut)), seconds(work)
        if repeat:
            plain.append(before)
            taken.append(own)
    tokens = sum(len(span.inputs) for span in spans)
    ratios = [own / before for own, before in zip(taken, plain, strict=True)]
    return Timed(what, len(spans), tokens, taken, ratios)


def measured(model: NeuronModel, spans: Sequence[Span]) -> list[Timed]:
    """Every way on one set of examples."""
    found = []
    for method in METHODS:
        few = method in SLOW
        some = spans[: SLOW_EXAMPLES if model.name == "demo" else 1] if few else spans
        if few and max(len(span.inputs) for span in some) > LONGEST:
            continue  # minutes for each repeat
        asked = Attribution(method)
        cut = batches(model, some, asked.copies)

        def work(asked: Attribution = asked, cut: Sequence[Batch] = cut) -> None:
            for batch in cut:
                asked.scores(model, batch)

        found.append(timed(method, model, some, work, SLOW_REPEATS if few else REPEATS))
        print("  " + found[-1].row())
    empty = Moments.empty(model.grid.size)
    whole = timed(
        STREAMED, model, spans, lambda: accumulate(model, spans, Attribution(), empty), REPEATS
    )
    print("  " + whole.row())
    return [whole, *found]


def demo_examples(model: NeuronModel) -> dict[str, list[Span]]:
    """Prompts and gold answers of the demo's tasks."""
    wording, found = RequestEncoder(model.model, model.tokenizer), {}
    for name in TASKS:
        task = load_task(name, TaskOptions(outcome="logprob", training=True))
        requests = [request for n in range(EXAMPLES) for request in task.requests(n)]
        found[name] = [span for request in requests for span in wording.spans(request)]
    return found


def random_examples(model: NeuronModel) -> dict[str, list[Span]]:
    """Random tokens, a fifth of each text its answer."""
    random, found = np.random.default_rng(0), {}
    most = len(model.tokenizer)
    for name, (least, longest, count) in LENGTHS.items():
        texts = [
            random.integers(3, most, size=length).tolist()
            for length in random.integers(least, longest, size=count)
        ]
        found[f"{name} texts"] = [
            Span(tuple(text[:-1]), tuple(text[-(len(text) // 5) :])) for text in texts
        ]
    return found


def report(name: str) -> dict[str, Any]:
    """The part of one model."""
    loaded = models.load(name)
    model = as_neurons(loaded)
    sets = demo_examples(model) if name == "demo" else random_examples(model)
    parts = {}
    for title, spans in sets.items():
        print(f"{name}, {title}")
        parts[title] = [vars(each) for each in measured(model, spans)]
    parameters = sum(weight.numel() for weight in loaded.model.parameters())
    told = f"{parameters / 1e6:.1f} M parameters, {model.grid.layers} layers, "
    return {
        "model": told + f"{model.grid.size:,} neurons",
        "where": f"{platform.machine()}, 1 thread, torch {torch.__version__}, {date.today()}",
        "parts": parts,
    }


def page(results: dict[str, Any]) -> str:
    """The page of all models."""
    lines = [
        "# What scoring neurons costs",
        "",
        INTRODUCTION,
        "",
        f"At most {MOST} forward passes are allowed to `gradient`: "
        f"{'held' if not exceeded(results) else 'EXCEEDED by ' + ', '.join(exceeded(results))}.",
    ]
    for name, told in results.items():
        lines += ["", f"## {name}: {told['model']}", "", f"{told['where']}."]
        for title, rows in told["parts"].items():
            lines += ["", f"### {title}", "", "| score | examples | tokens | CPU s | range |"
                      " forward passes |", "|---|--:|--:|--:|--:|--:|"]  # fmt: skip
            lines += [Timed(**row).row() for row in rows]
    return "\n".join(lines) + "\n"


def exceeded(results: dict[str, Any]) -> list[str]:
    """Where gradient x activation costs more than it may."""
    return [
        f"{name} ({title})"
        for name, told in results.items()
        for title, rows in told["parts"].items()
        for row in rows
        if row["what"] in ("gradient", STREAMED) and median(row["ratios"]) > MOST
    ]


def main() -> None:
    """Measure the models named, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="demo,25m", help="of demo, 25m, 140m")
    chosen = parser.parse_args().models.split(",")
    torch.set_num_threads(1)
    numbers = PAGE.with_suffix(".json")
    results = json.loads(numbers.read_text()) if numbers.exists() else {}
    for name in chosen:
        results[name] = report(name)
        numbers.write_text(json.dumps(results, indent=1) + "\n")
        PAGE.write_text(page(results))
    print(f"Written: {PAGE}")


if __name__ == "__main__":
    main()
