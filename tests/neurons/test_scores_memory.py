"""Scores are streamed: what is held at a time does not grow with the number of examples."""

import tracemalloc

from caploc.neurons.engine import Batcher
from caploc.neurons.finding import accumulate, score_examples
from caploc.neurons.options import Attribution
from worlds.planted_neurons import PlantedNeurons

WIDE = PlantedNeurons(layers=2, width=2048, seed=1)


def peak(work):
    """Bytes held at most while working, beyond those before; torch's own are not among them."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        work()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def test_ten_times_the_examples_take_no_more_memory(planted):
    model, asked = planted(WIDE), Attribution()
    spans = model.spans(examples=200) * 2
    row = 8 * model.grid.size
    batch = next(iter(score_examples(model.neurons, spans, asked)))[1]
    few = peak(lambda: accumulate(model.neurons, spans, asked))
    many = peak(lambda: accumulate(model.neurons, spans * 5, asked))
    assert few >= batch.nbytes > 100 * row  # what is held is seen
    assert many < few + 20 * row  # of 1,600 more examples


def test_a_batch_holds_no_more_rows_than_it_may(planted):
    model = planted(WIDE)
    small = Batcher(model.neurons.model, most_rows=16)
    spans = model.spans(examples=200)
    sizes = [len(r) for _, r in score_examples(model.neurons, spans, Attribution(), batcher=small)]
    assert max(sizes) == 16 and sum(sizes) == 200
