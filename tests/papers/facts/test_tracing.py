"""Causal tracing against plain passes, identities and planted dependence."""

import numpy as np
import pytest
import torch

from caploc.errors import BadData
from papers.cnl.facts import FactPrompt
from papers.cnl.prompts import Encoded, Encoder
from papers.cnl.tracing import Tracer, noise_level
from worlds.tiny import FAMILIES, WITH_NEURONS, build


def everywhere(asked: Encoded) -> tuple[int, ...]:
    return tuple(range(len(asked.first().tokens)))


@pytest.mark.parametrize("name", WITH_NEURONS)
def test_outputs_of_every_family_are_put_back(as_tiny, asked, name):
    tracer = Tracer(as_tiny(name), 1.0, window=1)
    found = tracer.trace(asked.first(), everywhere(asked))
    present = [module is not None for module in tracer.outputs]
    assert any(present)
    assert (~np.isnan(found.effects)).all(axis=0).tolist() == present
    # before the subject nothing is disturbed, so that nothing can be put back
    assert np.nanmax(np.abs(found.effects[0])) < 1e-6
    assert np.nanmax(np.abs(found.effects[-1])) > 1e-6


def plain(loaded, encoded: Encoded, noise, layer: int, token: int) -> np.ndarray:
    """Disturbed answers' probabilities with one feed-forward output put back, row by row."""
    model = loaded.model
    ids = torch.tensor([encoded.tokens])
    with torch.no_grad():
        block, kept = model.model.layers[layer].mlp, []
        handle = block.register_forward_hook(lambda _, args, output: kept.append(output))
        clean = model(input_ids=ids)
        handle.remove()
        top, rows = int(clean.logits[0, -1].argmax()), []
        for draw in noise:
            embedded = model.get_input_embeddings()(ids).clone()
            embedded[0, list(encoded.subject)] += draw

            def put_back(_, args, output):
                changed = output.clone()
                changed[0, token] = kept[0][0, token]
                return changed

            handle = block.register_forward_hook(put_back)
            rows.append(model(inputs_embeds=embedded).logits[0, -1].softmax(-1)[top])
            handle.remove()
    return np.array([float(each) for each in rows])


def test_effects_are_those_of_plain_passes_row_by_row(as_tiny, asked):
    loaded = as_tiny("llama")
    tracer = Tracer(loaded, 0.7, window=1, draws=4, seed=5)
    found = tracer.trace(asked.first(), everywhere(asked))
    noise = 0.7 * torch.randn(4, 2, 32, generator=torch.Generator().manual_seed(5))
    for token in (1, 2, 4):
        restored = plain(loaded, asked.first(), noise, 0, token).mean()
        assert found.effects[token, 0] + found.disturbed == pytest.approx(restored, abs=1e-5)


def test_without_attention_only_the_last_tokens_own_layer_counts(as_tiny):
    model = build("llama", FAMILIES["llama"].config, seed=2)
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.zero_()
    model.model.layers[0].mlp.down_proj.weight.zero_()
    encoded = Encoded(tokens=(5, 17, 23, 8), answer=(3,), subject=(2, 3))
    loaded = as_tiny(model)
    found = Tracer(loaded, 1.0, window=1).trace(encoded, (0, 1, 2, 3))
    assert np.flatnonzero(np.abs(found.effects) > 1e-6).tolist() == [7]  # token 3, layer 1


@pytest.mark.parametrize(
    ("layers", "window", "layer", "put_back"),
    [
        (6, None, 3, (2, 3)),  # 2 of 6, as 10 of 28
        (6, None, 0, (0,)),
        (6, 3, 3, (2, 3, 4)),
        (6, 10, 3, (0, 1, 2, 3, 4, 5)),
        (6, 10, 0, (0, 1, 2, 3, 4)),
        (6, 1, 5, (5,)),
    ],
)
def test_a_window_is_clipped_to_the_model(neurons, layers, window, layer, put_back):
    tracer = Tracer(neurons, 1.0, window=window)
    assert tracer.layers == layers and tracer.put_back(layer) == put_back


def test_a_prompt_answered_wrongly_has_no_profile(neurons):
    prompt = FactPrompt("capital of France is ", "France", "Rome")
    assert Tracer(neurons, 0.3).locate(prompt) is None
    encoded = Encoder(neurons).encode(prompt).first()
    assert not Tracer(neurons, 0.3).trace(encoded, encoded.subject[-1:]).right


def test_the_noise_is_three_deviations_of_subject_embeddings(neurons):
    prompts = [
        FactPrompt("a bc", "bc", "d"),
        FactPrompt("efb", "e", "d"),
        FactPrompt("none", None, "d"),
    ]
    ids = neurons.tokenizer("bce", add_special_tokens=False).input_ids
    values = neurons.model.get_input_embeddings().weight[ids].double()
    assert noise_level(neurons, prompts) == pytest.approx(3 * float(values.std()))
    with pytest.raises(BadData, match="No prompt has a subject"):
        noise_level(neurons, prompts[2:])
