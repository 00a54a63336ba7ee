"""Modes of knocking out on a pretrained model, against a hook on one row at a time."""

import numpy as np
import pytest
import torch

from caploc.engine.api import Ask
from caploc.engine.batch import BatchEngine
from caploc.modes import Intervention
from caploc.options import Mode, TaskOptions
from caploc.tasks.catalog import load_task

pytestmark = pytest.mark.real

EXAMPLES = 4
NEAR = 1e-3  # nats


@torch.no_grad()
def heads_on(loaded, tokens):
    """What each layer's heads hand on, (tokens, values), in a plain pass."""
    seen = []
    handles = [
        each.register_forward_pre_hook(lambda module, args: seen.append(args[0][0].clone()))
        for each in loaded.projections
    ]
    loaded.model(input_ids=torch.tensor([tokens]))
    for handle in handles:
        handle.remove()
    return seen


@torch.no_grad()
def logprob(loaded, context, ending, mask, values):
    """Log-probability of tokens after others; `values` are what cut heads hand on, by layer."""
    handles = []
    for layer, columns in enumerate(loaded.grid.layer_slices):
        cut = torch.from_numpy(mask[columns])

        def hook(module, args, layer=layer, cut=cut):
            mixed, new = args[0], values[layer]
            wide = cut.repeat_interleave(mixed.shape[-1] // len(cut))
            places = torch.arange(mixed.shape[1]).clamp(max=len(new) - 1)
            return (torch.where(wide, new[places], mixed),)

        handles.append(loaded.projections[layer].register_forward_pre_hook(hook))
    logits = loaded.model(input_ids=torch.tensor([[*context, *ending[:-1]]])).logits[0]
    for handle in handles:
        handle.remove()
    read = logits[len(context) - 1 :].float().log_softmax(-1)
    return float(read[torch.arange(len(ending)), torch.tensor(ending)].sum())


@pytest.mark.parametrize("mode", ["mean", "resample"])
def test_likelihoods_equal_a_hook_on_one_row_at_a_time(loaded, mode):
    task = load_task("words/past", TaskOptions()).with_outcome("logprob")
    engine, sources = BatchEngine(loaded), Intervention(Mode(mode)).sources(task)
    assert engine.packed is not None
    masks = np.random.default_rng(1).random((EXAMPLES, loaded.grid.size)) < 0.05
    requests = [task.requests(example)[0] for example in range(EXAMPLES)]
    asks = [
        Ask((row, 0), request, masks[row], sources.of(row, [request])[0])
        for row, request in enumerate(requests)
    ]
    found = {a.key[0]: a.response.logprob for batch in engine.answer(asks) for a in batch}
    by_hand = {}
    for ask in asks:
        if ask.source not in by_hand:
            texts = [heads_on(loaded, engine.encoder.context(text)) for text in ask.source.texts]
            by_hand[ask.source] = [
                torch.cat(layer).mean(0, keepdim=True) if mode == "mean" else layer[0]
                for layer in zip(*texts, strict=True)
            ]
        (span,) = engine.encoder.spans(ask.request)
        truth = logprob(
            loaded,
            engine.encoder.context(ask.request),
            span.continuation,
            ask.knocked_out,
            by_hand[ask.source],
        )
        assert found[ask.key[0]] == pytest.approx(truth, abs=NEAR)
