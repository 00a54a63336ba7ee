"""What gradients say that every head does alone, example by example, beside what it does.

    python bench/attributions.py                           every case of the census that has signals
    python bench/attributions.py --tasks past,digits       part of it
    python bench/attributions.py --ways gradient,path      without `drop`

The signal is the scan's: the log-odds of the right answer, on the examples whose signals the census
stores. Each head hands on its output times a gate, and a knockout moves a gate from 1 to 0.

*gradient*: the derivative at open gates, as attribution patching has it (Kramar et al., arXiv
2403.00745; its mended softmax concerns queries and keys, which no gate touches). *drop*: the mean
size of that derivative over passes in each of which one layer's gradients are dropped, as the same
paper has it against effects that cancel. *path*: the mean derivative along a straight way from
closed to open gates (integrated gradients).

What was measured joins bench/census/MODEL-TASK.parquet as three parts more; what an example took
stands with the prices of rows in docs/bench/joint.json.
"""

import argparse
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TQDM_DISABLE", "1")

import numpy as np
import torch
from pyarrow import parquet
from torch import Tensor

import draws
import figures
from caploc import designs
from caploc.console import progress
from caploc.declaration import ModelOptions
from caploc.engine.encoding import RequestEncoder, Span
from caploc.measurement import Meters
from caploc.models.hooks import temporary_hooks
from caploc.models.loading import LoadedModel
from caploc.options import TaskOptions
from caploc.recovery import Measurements
from caploc.search import column_mask
from caploc.search.scan import log_odds
from caploc.store import Store
from caploc.tasks.signal import Signal
from caploc.tasks.task import responses_from_json
from census import CASES, FILES, ROWS, Case, Census, write
from clock import Stopwatch
from measuring import say

STEPS = 5  # of the path
BATCH = 8
ALIKE = 0.25  # nats, in the middle, by which signals read in bfloat16 differ from these
CERTAIN = -1e-7  # a log-probability nearer to 0 is rounding


def logprobs(loaded: LoadedModel, spans: Sequence[Span]) -> Tensor:
    """The log-probability of each span's continuation, its tokens summed."""
    longest = max(len(span.inputs) for span in spans)
    ids = torch.zeros((len(spans), longest), dtype=torch.long)
    rows, positions, tokens = [], [], []
    for row, span in enumerate(spans):
        end, scored = len(span.inputs), len(span.continuation)
        ids[row, :end] = torch.tensor(span.inputs)
        rows += [row] * scored
        positions += range(end - scored, end)
        tokens += span.continuation
    model: Any = loaded.model
    # padding stands behind the text, where causal attention does not look
    hidden = model.base_model(ids.to(model.device), use_cache=False).last_hidden_state
    logits = model.get_output_embeddings()(hidden[rows, positions]).float()
    read = torch.log_softmax(logits, dim=-1)[range(len(tokens)), tokens]
    return read.new_zeros(len(spans)).index_add(0, torch.tensor(rows, device=read.device), read)


@contextmanager
def gated(loaded: LoadedModel, gates: Tensor) -> Iterator[None]:
    """Multiply what every head hands on by its gate inside the block.

    `gates` is one row for all texts of a batch, or a row for each.
    """

    def scale(columns: slice) -> Any:
        def hook(module: Any, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            mixed, *rest = args
            per_head = mixed.unflatten(-1, (columns.stop - columns.start, -1))
            return (per_head * gates[..., None, columns, None]).flatten(-2), *rest

        return hook

    handles = [
        projection.register_forward_pre_hook(scale(columns))
        for projection, columns in zip(loaded.projections, loaded.grid.layer_slices, strict=True)
        if projection is not None
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@dataclass
class Reader:
    """A model that reads right answers under gates, a row of gates for each."""

    loaded: LoadedModel
    kept: list[float] = field(init=False)  # of each layer's gradients

    def __post_init__(self) -> None:
        self.loaded.model.requires_grad_(False)
        self.layers: Any = self.loaded.model.get_decoder().layers
        self.kept = [1.0] * len(self.layers)

    def log_odds(self, answers: Sequence[Sequence[Span]]) -> Tensor:
        """The log-odds of every example's right answer, which is the first of its spans.

        Of a single span they are those of the text, of several those against the likeliest other.
        """
        spans = [span for each in answers for span in each]
        total = logprobs(self.loaded, spans)
        read, start = [], 0
        for each in answers:
            own = total[start : start + len(each)]
            start += len(each)
            if len(each) > 1:
                read.append(own[0] - own[1:].max())
            else:
                certain = own[0].clamp(max=CERTAIN)
                read.append(certain - torch.log(-torch.expm1(certain)))
        return torch.stack(read)

    @contextmanager
    def dropping(self) -> Iterator[None]:
        """Let gradients through each layer's branches as far as `kept` says at that moment."""

        def branch(layer: int) -> Callable[..., Any]:
            def hook(_: Any, args: Any, output: Any) -> Any:
                first = output[0] if isinstance(output, tuple) else output
                first.register_hook(lambda gradient: gradient * self.kept[layer])
                return output

            return hook

        with temporary_hooks(
            module.register_forward_hook(branch(number))
            for number, layer in enumerate(self.layers)
            for module in (layer.self_attn, layer.mlp)
        ):
            yield

    def derivative(self, answers: Sequence[Sequence[Span]], opened: float) -> np.ndarray:
        """Of each example's log-odds by each gate, all gates open so far: examples x heads."""
        gates = self.gates(answers, opened)
        with gated(self.loaded, gates):
            self.log_odds(answers).sum().backward()
        return self.by_example(gates, answers)

    def gates(self, answers: Sequence[Sequence[Span]], opened: float) -> Tensor:
        """A row of gates for each span."""
        rows = sum(map(len, answers))
        return torch.full((rows, self.loaded.grid.size), opened, requires_grad=True)

    def by_example(self, gates: Tensor, answers: Sequence[Sequence[Span]]) -> np.ndarray:
        """The gradients of gates, those of an example's spans summed."""
        assert gates.grad is not None
        owner = torch.tensor([n for n, each in enumerate(answers) for _ in each])
        total = torch.zeros(len(answers), gates.shape[1]).index_add(0, owner, gates.grad)
        return total.double().numpy()

    def gradient(self, answers: Sequence[Sequence[Span]]) -> np.ndarray:
        """What each knockout would change if the model were linear: examples x heads."""
        return -self.derivative(answers, 1.0)

    def path(self, answers: Sequence[Sequence[Span]]) -> np.ndarray:
        """What all knockouts change together, shared out: the mean derivative on the way."""
        steps = (np.arange(STEPS) + 0.5) / STEPS
        return -np.mean([self.derivative(answers, float(step)) for step in steps], axis=0)

    def drop(self, answers: Sequence[Sequence[Span]]) -> np.ndarray:
        """The size of the derivative with one layer's gradients dropped, the mean over layers.

        It has no sign, and stands as a fall.
        """
        gates = self.gates(answers, 1.0)
        layers = len(self.layers)
        total = np.zeros((len(answers), gates.shape[1]))
        with self.dropping(), gated(self.loaded, gates):
            read = self.log_odds(answers).sum()
            for layer in range(layers):
                self.kept = [float(each != layer) for each in range(layers)]
                gates.grad = None
                read.backward(retain_graph=layer + 1 < layers)
                total += np.abs(self.by_example(gates, answers))
        return -total / (layers - 1)


def right_answers(census: Census, examples: Sequence[int]) -> list[list[Span]]:
    """What is read of every example: its right answer first."""
    masks = column_mask(census.heads, [])[None]
    rows = census.meter.measure(census.plan(masks, examples, "intact"), census.watched, "intact")
    answers = {row.number: responses_from_json(row.responses) for row in rows}
    signal = Signal(census.meter.task, answers)
    loaded = census.meter.engine.loaded  # type: ignore[attr-defined]
    encoder = RequestEncoder(loaded.model, loaded.tokenizer)
    found = []
    for example in examples:
        spans = [span for request in signal.requests(example) for span in encoder.spans(request)]
        if len(spans) > 1:
            spans.insert(0, spans.pop(signal.example(example).right))  # type: ignore[arg-type]
        found.append(spans)
    return found


def attribute(census: Census, ways: Sequence[str]) -> tuple[list[str], list[Measurements]]:
    """Every way on the examples whose signals are stored."""
    heads = census.heads
    stored = stored_signals(census.case)
    examples = list(stored)
    answers = right_answers(census, examples)
    reader = Reader(census.meter.engine.loaded)  # type: ignore[attr-defined]
    with torch.no_grad():
        read = np.concatenate([reader.log_odds(part).numpy() for part in parts(answers)])
    gap = np.abs(read - np.array([*stored.values()]))
    say(f"{census.case.name}: {len(examples)} examples, log-odds within {gap.max():.1g} nats")
    assert np.median(gap) < ALIKE, "these are other signals than the census's"
    masks, found = designs.singles(heads), []
    for way in ways:
        watch = Stopwatch()
        change = np.concatenate([getattr(reader, way)(part) for part in parts(answers)])
        joint = figures.read(draws.JOINT)
        prices = joint.setdefault(census.case.name, {}).setdefault("passes", {})
        prices[way] = watch.read().cpu / len(examples)
        say(f"{census.case.name} {way}: {prices[way]:.2f} CPU s an example")
        figures.write(draws.JOINT, joint)
        mask = np.repeat(np.arange(heads), len(examples))
        found.append(Measurements(masks, mask, np.tile(examples, heads), change.T.ravel()))
    return list(ways), found


def parts(answers: Sequence[Sequence[Span]]) -> list[Sequence[Sequence[Span]]]:
    """Batches."""
    return [answers[start : start + BATCH] for start in range(0, len(answers), BATCH)]


def stored_signals(case: Case) -> dict[int, float]:
    """The intact log-odds by example, from the case's file; none if it has no signals."""
    table = parquet.read_table(FILES / f"{case.name}.parquet", filters=[("part", "=", "signal")])
    rows = [row for row in table.to_pylist() if not row["knocked_out"]]
    odds = log_odds(np.array([row["outcome"] for row in rows], dtype=float))
    return dict(zip([row["example"] for row in rows], odds.tolist(), strict=True))


def main() -> None:
    """Attribute what was asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tasks", type=lambda text: text.split(","), help="such as past,upper")
    parser.add_argument(
        "--ways", type=lambda text: text.split(","), default=["gradient", "path", "drop"]
    )
    asked = parser.parse_args()
    for case in CASES:
        short = case.name.split("-", 1)[1]
        if case.model.startswith(("gemma", "qwen")) or asked.tasks and short not in asked.tasks:
            continue
        model = ModelOptions(case.model, device="cpu", dtype="float32")
        engine = model.engine()
        (task,) = model.tasks([case.task], TaskOptions())
        with progress(quiet=True) as watched, Store(ROWS / case.name / "rows.sqlite") as store:
            bench = Meters(engine, store)
            census = Census(case, bench.meter(task), watched, bench)
            write(case.name, case.model, census.meter, *attribute(census, asked.ways))


if __name__ == "__main__":
    main()
