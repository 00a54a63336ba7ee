"""What single neurons fire on, and what they promote: words for what scores only count.

A neuron fires on a token as strongly as the size of its activation there; the first token of a
text, at which many are largest whatever it is, is left out. What it promotes are the
tokens whose logits its output raises most, `activation x (output column . unembedding)`, leaving
out what later layers and the last norm make of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from caploc.engine.encoding import Span
from caploc.engine.passes import Batch, Batcher
from caploc.models.neurons import NeuronModel, list_projections
from caploc.models.proof import reads_first
from caploc.neurons.attribution import record_activations
from caploc.neurons.study import NeuronLab
from caploc.stats.intervals import JsonRecord

WATCHED = 4  # neurons of a task
TEXTS = 100
TOKENS = 5  # shown of each kind
BEFORE = 10  # tokens of a text up to the one a neuron fires on


@dataclass(frozen=True)
class Firing(JsonRecord):
    """One neuron: the tokens it fires on most, the text before the first, and what it does there.

    `value` is its activation at the first of them; `promotes` and `demotes` are the tokens whose
    logits that raises and lowers most.
    """

    neuron: str
    tokens: tuple[str, ...]
    context: str
    value: float
    promotes: tuple[str, ...]
    demotes: tuple[str, ...]


def watch_neurons(lab: NeuronLab, task: str) -> list[dict[str, Any]]:
    """Say what the neurons of a task's highest scores fire on, in the texts that scored them."""
    columns, model = lab.found(task).ordered[:WATCHED], lab.bench.neurons
    spans = lab.spans(task)[:TEXTS]
    if not columns:
        return []
    values = activations_of(model, spans, columns)
    found = []
    for place, column in enumerate(columns):
        each = [row[place] for row in values]
        found.append({"task": task, **describe_neuron(model, spans, column, each).as_dict()})
    return found


@torch.no_grad()
def activations_of(
    model: NeuronModel, spans: Sequence[Span], columns: Sequence[int]
) -> list[Float[np.ndarray, "neurons _"]]:
    """Compute what some neurons hand on at every token of each text."""
    sites = [inside for _, inside, _ in list_projections(model.projections)]
    values: list[np.ndarray] = [np.empty((0, 0))] * len(spans)

    def work(batch: Batch) -> list[np.ndarray]:
        with record_activations(model.projections) as seen:
            model.model(input_ids=batch.tokens, attention_mask=batch.real.long(), use_cache=False)
        rows = []
        for column in columns:
            site = next(n for n, inside in enumerate(sites) if inside.start <= column < inside.stop)
            handed = seen[site].reshape(*batch.tokens.shape, -1)
            rows.append(handed[..., column - sites[site].start].float().cpu().numpy())
        return list(np.stack(rows, axis=1))

    for numbers, found in Batcher(model.model).run(spans, work):
        for number, row in zip(numbers, found, strict=True):
            values[number] = row[:, : len(spans[number].inputs)]
    return values


def describe_neuron(
    model: NeuronModel,
    spans: Sequence[Span],
    column: int,
    values: Sequence[Float[np.ndarray, " _"]],
) -> Firing:
    """Say what one neuron fires on, and what its output promotes there."""
    places = [(number, at) for number, row in enumerate(values) for at in range(len(row))]
    sizes = np.abs(np.concatenate(values))
    sizes[[at == 0 < len(values[number]) - 1 for number, at in places]] = -1.0  # a text's first
    order = np.argsort(-sizes, kind="stable")
    first, at = places[order[0]]
    value, tokens = float(values[first][at]), dict[str, None]()
    for number, place in (places[each] for each in order):
        tokens[write_token(model.tokenizer, spans[number].inputs[place])] = None
        if len(tokens) == TOKENS:
            break
    _, inside, module = next(
        each
        for each in list_projections(model.projections)
        if each[1].start <= column < each[1].stop
    )
    output = compute_output(module, column - inside.start, inside.stop - inside.start)
    unembedding: Any = model.model.get_output_embeddings()
    logits = compute_response(unembedding, output) * value
    raised, lowered = (
        tuple(write_token(model.tokenizer, token) for token in some.topk(TOKENS).indices.tolist())
        for some in (logits, -logits)
    )
    before = spans[first].inputs[max(0, at - BEFORE) : at + 1]
    context = str(model.tokenizer.decode(before)).replace("\n", "⏎")
    return Firing(str(model.grid.part(column)), tuple(tokens), context, value, raised, lowered)


@torch.no_grad()
def compute_output(projection: Any, place: int, width: int) -> Float[Tensor, " hidden"]:
    """Compute what one unit of what a projection of so many reads adds to its output."""
    if projection.weight.ndim > 2:  # of experts
        return reads_first(projection).reshape(width, -1)[place]
    one = torch.zeros(width)
    one[place] = 1.0
    return compute_response(projection, one)


@torch.no_grad()
def compute_response(linear: Any, vector: Float[Tensor, " reads"]) -> Float[Tensor, " writes"]:
    """Compute what a linear module makes of a vector, without its bias.

    By its forward pass, which also unpacks quantized weights and fetches those that wait elsewhere.
    """
    weight = linear.weight
    dtype = weight.dtype if weight.dtype.is_floating_point else torch.float32
    device = "cpu" if weight.device.type == "meta" else weight.device
    pair = torch.stack([vector, torch.zeros_like(vector)]).to(device=device, dtype=dtype)
    made: Tensor = linear(pair).float()
    return made[0] - made[1]


def write_token(tokenizer: PreTrainedTokenizerBase, token: int) -> str:
    """Write a token so that its blanks and ends of lines show."""
    return mark_blanks(tokenizer.decode([token]))


def mark_blanks(text: str | list[str]) -> str:
    """Put signs for blanks and ends of lines."""
    return str(text).replace(" ", "␣").replace("\n", "⏎")
