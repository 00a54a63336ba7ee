"""A step that a graph runs again says what it would say if it were computed anew."""

import gc
import weakref

import pytest
import torch
from test_decoding import PROMPTS, asks_for, loaded, masks, texts, truth  # noqa: F401

from caploc.engine import passes
from caploc.engine.batch import BatchEngine
from caploc.engine.decoding import Decoder
from caploc.engine.kernels import Recordable, StepGraph, StepGraphs, has_graphs

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

    def record(self, inputs, compute):
        kept = [each.clone() for each in inputs]
        graph = Again(kept, compute)
        return StepGraph(graph.replay, kept, graph.output, compute)

    def watch(self, compute, inputs):
        self.watched = True
        return compute(inputs)

    monkeypatch.setattr("caploc.engine.kernels.ONE_BY_ONE", set())
    monkeypatch.setattr(passes, "has_graphs", lambda device: True)
    monkeypatch.setattr(Recordable, "watch", watch)
    monkeypatch.setattr(StepGraphs, "record", record)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(Again, "replays", 0)
    return lambda: Again.replays


@pytest.mark.parametrize("slots", [None, 3, 8])
@pytest.mark.usefixtures("short_prefixes")
def test_graphs_say_what_one_row_says_alone(loaded, masks, truth, slots, replayed):  # noqa: F811
    assert texts(BatchEngine(loaded, slots), asks_for(PROMPTS, masks)) == truth
    assert replayed() > 0


@pytest.mark.parametrize("slots", [*(pytest.param(n, marks=pytest.mark.slow) for n in (2, 7)), 20])
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
        plain.setattr("caploc.engine.kernels.ONE_BY_ONE", {"cpu"})
        plain.setattr(StepGraphs, "run", lambda self, form, inputs, compute: compute(inputs))
        assert got == texts(BatchEngine(loaded, slots), asks)


def test_a_form_seen_once_is_computed_and_old_graphs_are_let_go(replayed, monkeypatch):
    monkeypatch.setattr("caploc.engine.kernels.MOST_GRAPHS", 2)
    graphs = StepGraphs(Recordable(True, watched=True))

    def doubled(number):
        return graphs.run(number, [torch.tensor([number])], lambda inputs: inputs[0] * 2).tolist()

    for turn in range(3):
        assert [doubled(number) for number in range(3)] == [[0], [2], [4]]
        assert len(graphs.graphs) == min(turn * 2, 2)
    assert graphs.run(None, [torch.tensor([7])], lambda inputs: inputs[0]).tolist() == [7]
    graphs.clear()
    assert not graphs.graphs and not graphs.seen


@pytest.mark.slow
@pytest.mark.usefixtures("short_prefixes")
def test_no_graph_holds_a_stack_that_is_no_more(loaded, masks, monkeypatch, replayed):  # noqa: F811
    """Prefixes of different length make and drop stacks, and what reads them goes with them."""
    prompts = [f"{'7-5=2 ' * n}{prompt}" for n in range(1, 4) for prompt in PROMPTS]
    restack, seen, replaced = Decoder.stack_segments, {}, set()

    def watched(decoder):
        restack(decoder)
        gc.collect()
        kept = [s.keys for layer in decoder.stacks.layers for s in layer.stacks.values()]
        now = {keys.data_ptr(): weakref.ref(keys.untyped_storage()) for keys in kept}
        gone = seen.keys() - now.keys()
        assert not any(seen[each]() for each in gone)
        replaced.update(gone)
        seen.update(now)

    monkeypatch.setattr(Decoder, "stack_segments", watched)
    texts(BatchEngine(loaded, 5), asks_for(prompts, masks))
    assert replaced and replayed()


def test_without_a_gpu_there_are_no_graphs():
    graphs = StepGraphs(Recordable(has_graphs(torch.device("cpu"))), 3)
    for _ in range(4):
        assert int(graphs.run("form", [torch.tensor(2)], lambda inputs: inputs[0])) == 2
    assert not graphs.graphs and graphs.layers is None


cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@cuda
def test_a_step_that_looks_at_values_is_never_recorded():
    graphs = StepGraphs(Recordable(True), 3)
    one = torch.ones(1, device="cuda")
    for _ in range(4):
        found = graphs.run("form", [one], lambda inputs: inputs[0] * float(inputs[0].item()))
        assert found.tolist() == [1.0]
    assert not graphs.recordable.may and graphs.layers is None and not graphs.graphs
    torch.cuda.empty_cache()
    assert torch.randn(1, device="cuda").isfinite()  # which a recording left open would refuse


@cuda
def test_a_graph_computes_from_its_inputs():
    graphs, kept = StepGraphs(Recordable(True), 3), torch.full((2,), 10.0, device="cuda")
    for number in range(5):
        one = torch.full((2,), float(number), device="cuda")
        found = graphs.run("form", [one], lambda inputs: inputs[0] + kept)
        assert found.tolist() == [number + 10] * 2
    assert graphs.graphs


@cuda
def test_a_recording_that_fails_leaves_random_numbers_to_be_had():
    graphs, one = StepGraphs(Recordable(True, watched=True), 3), torch.ones(1, device="cuda")
    for _ in range(3):
        found = graphs.run("form", [one], lambda inputs: inputs[0] * float(inputs[0].item()))
        assert found.tolist() == [1.0]
    assert not graphs.recordable.may
    assert torch.randn(1, device="cuda").isfinite()
