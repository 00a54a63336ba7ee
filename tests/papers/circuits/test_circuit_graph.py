"""The edges of a decoder: how many, which, and which of them lead anywhere."""

import networkx
import numpy as np
import pytest
from edge_names import nodes_and_edges
from hypothesis import given
from hypothesis import strategies as st

from papers.cnl.edges import EdgeGrid, prune


def small_grids():
    return st.builds(
        lambda layers, shared, size, parallel: EdgeGrid(layers, shared * size, shared, parallel),
        st.integers(1, 3),
        st.integers(1, 2),
        st.integers(1, 2),
        st.booleans(),
    )


def random_edges(grid, seed, share):
    return np.random.default_rng(seed).random(grid.size) < share


SEEDS, SHARES = st.integers(0, 2**32), st.floats(0, 1)


def flow(grid, chosen):
    """The circuit as a graph in which queries, keys and values lead to their heads."""
    graph = networkx.DiGraph()
    graph.add_nodes_from(["input", "logits"])
    size = grid.heads // grid.key_value_heads
    for layer in range(grid.decoder_layers):
        for head in range(grid.heads):
            graph.add_edge(f"L{layer}H{head}.q", f"L{layer}H{head}")
            for kind in "kv":
                graph.add_edge(f"L{layer}KV{head // size}.{kind}", f"L{layer}H{head}")
    _, edges = nodes_and_edges(grid)
    graph.add_edges_from(edge for edge, kept in zip(edges, chosen, strict=True) if kept)
    return graph, edges


@pytest.mark.parametrize(
    ("shape", "edges"),
    [
        ((32, 32, 32, False), 1_592_881),  # Llama2-7B
        ((24, 16, 16, False), 231_877),  # GPT2-medium
        ((28, 16, 16, True), 316_723),  # GPT-J, attention and MLP in parallel
    ],
)
def test_known_models_have_the_published_number_of_edges(shape, edges):
    assert EdgeGrid(*shape).size == edges


@given(small_grids())
def test_the_columns_are_all_edges_in_order(grid):
    sources, edges = nodes_and_edges(grid)
    assert grid.size == len(edges)
    targets = list(dict.fromkeys(target for _, target in edges))
    assert (grid.n_sources, grid.n_targets) == (len(sources), len(targets))
    columns = zip(grid.edge_sources, grid.edge_targets, strict=True)
    assert [(sources[source], targets[target]) for source, target in columns] == edges


@given(small_grids())
def test_layers_and_blocks_hold_edges_into_one_layer_and_kind(grid):
    names = [target for _, target in nodes_and_edges(grid)[1]]
    for layer, columns in enumerate(grid.layer_slices):
        inside = {name.removesuffix(".q").split("H")[0] for name in names[columns]}
        own = f"L{layer}" if layer < grid.decoder_layers else "logits"
        assert all(name.startswith(own) for name in inside)
    covered = [column for block in grid.blocks for column in range(block.start, block.stop)]
    assert covered == list(range(grid.size))
    for block in grid.blocks:
        kinds = {(name[:2], name[-1] if "." in name else name[2:]) for name in names[block]}
        assert len(kinds) == 1


@given(small_grids(), SEEDS, SHARES)
def test_what_pruning_keeps_lies_on_a_path_from_input_to_logits(grid, seed, share):
    chosen = random_edges(grid, seed, share)
    graph, edges = flow(grid, chosen)
    reached = networkx.descendants(graph, "input") | {"input"}
    used = networkx.ancestors(graph, "logits") | {"logits"}
    expected = [
        bool(kept) and source in reached and target in used
        for (source, target), kept in zip(edges, chosen, strict=True)
    ]
    pruned = prune(grid, chosen)
    assert pruned.tolist() == expected
    assert np.array_equal(prune(grid, pruned), pruned)
