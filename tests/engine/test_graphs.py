"""A step that a graph runs again says what it would say if it were computed anew."""

import pytest
import torch
from test_decoding import PROMPTS, asks_for, loaded, masks, texts, truth  # noqa: F401

from caploc.engine import BatchEngine
from caploc.engine.graphs import StepGraph, StepGraphs

LONG = 24  # tokens of an answer, so that steps of one form come again


class Again:
    """Stands in for a CUDA graph where there is no GPU: computes from the same tensors again.

    Whatever the recorded step reads and is no input must be where it was, as for a graph.
    """

    replays = 0

    def __init__(self, inputs, compute):
        self.inputs, self.compute = inputs, compute
        self.output = compute(inputs)

    def replay(self):
        type(self).replays += 1
        self.output.copy_(self.compute(self.inputs))


@pytest.fixture
def replayed(monkeypatch):
    """Let the CPU work as a GPU does, with graphs; says how often one was run."""

    def capture(self, inputs, compute):
        kept = [each.clone() for each in inputs]
        graph = Again(kept, compute)
        return StepGraph(graph.replay, kept, graph.output, compute)

    def begin(self, *args, **kwargs):
        begun(self, *args, **kwargs)
        self.captures = True

    begun = StepGraphs.__init__
    monkeypatch.setattr("caploc.engine.products.ONE_BY_ONE", set())
    monkeypatch.setattr(StepGraphs, "__init__", begin)
    monkeypatch.setattr(StepGraphs, "capture", capture)
    monkeypatch.setattr(Again, "replays", 0)
    return lambda: Again.replays


@pytest.mark.parametrize("slots", [None, 3, 8])
@pytest.mark.usefixtures("short_prefixes")
def test_graphs_say_what_one_row_says_alone(loaded, masks, truth, slots, replayed):  # noqa: F811
    assert texts(BatchEngine(loaded, slots), asks_for(PROMPTS, masks)) == truth
    assert replayed() > 0


@pytest.mark.parametrize("slots", [2, 7, 20])
@pytest.mark.usefixtures("short_prefixes")
def test_segments_that_come_and_go_are_found_where_they_are(
    loaded,  # noqa: F811
    masks,  # noqa: F811
    slots,
    replayed,
):
    asks = asks_for([*PROMPTS, *(f"{each} " for each in PROMPTS)], masks, LONG)
    got = texts(BatchEngine(loaded, slots), asks)
    assert replayed() > 10
    with pytest.MonkeyPatch.context() as plain:
        plain.setattr("caploc.engine.products.ONE_BY_ONE", {"cpu"})
        plain.setattr(StepGraphs, "run", lambda self, form, inputs, compute: compute(inputs))
        assert got == texts(BatchEngine(loaded, slots), asks)


def test_a_form_seen_once_is_computed_and_old_graphs_are_let_go(replayed, monkeypatch):
    monkeypatch.setattr("caploc.engine.graphs.MOST", 2)
    graphs = StepGraphs(torch.device("cpu"), 0)

    def doubled(number):
        return graphs.run(number, [torch.tensor([number])], lambda inputs: inputs[0] * 2).tolist()

    for turn in range(3):
        assert [doubled(number) for number in range(3)] == [[0], [2], [4]]
        assert len(graphs.graphs) == min(turn * 2, 2)
    assert graphs.run(None, [torch.tensor([7])], lambda inputs: inputs[0]).tolist() == [7]


def test_without_a_gpu_there_are_no_graphs():
    graphs = StepGraphs(torch.device("cpu"), 3)
    for _ in range(4):
        assert int(graphs.run("form", [torch.tensor(2)], lambda inputs: inputs[0])) == 2
    assert not graphs.graphs and graphs.layers is None


cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@cuda
def test_a_step_that_looks_at_values_is_computed_without_a_graph():
    graphs = StepGraphs(torch.device("cuda"), 3)
    one = torch.ones(1, device="cuda")
    for _ in range(4):
        found = graphs.run("form", [one], lambda inputs: inputs[0] * float(inputs[0].item()))
        assert found.tolist() == [1.0]
    assert not graphs.captures and graphs.layers is None


@cuda
def test_a_graph_computes_from_its_inputs():
    graphs, kept = StepGraphs(torch.device("cuda"), 3), torch.full((2,), 10.0, device="cuda")
    for number in range(5):
        one = torch.full((2,), float(number), device="cuda")
        assert (
            graphs.run("form", [one], lambda inputs: inputs[0] + kept).tolist() == [number + 10] * 2
        )
    assert graphs.graphs
