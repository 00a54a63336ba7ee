"""Heads replaced by what they do on other texts, against a hook on one row at a time."""

import itertools

import numpy as np
import pytest
import torch

from caploc.engine.api import Ask, Source
from caploc.engine.batch import BatchEngine
from caploc.engine.encoding import Stops
from caploc.engine.plain import generate
from caploc.engine.reading import mean_outputs, read_outputs
from caploc.errors import BadData
from caploc.models.substitutes import Substitute
from caploc.tasks.task import Generate, LogLikelihood, options_json
from worlds.alone import around
from worlds.tiny import FAMILIES, random_masks, random_tokens, tiny

LIMIT = 6
OPTIONS = options_json({"until": [], "max_gen_toks": LIMIT, "do_sample": False})
# prompts, each with a corrupted one of as many tokens (a character is a token or more)
PAIRS = [("47+38=", "91+38="), ("9-3=", "8-5="), ("sort 72941=", "sort 31865=")]
CHOICES = ("85", "12")


@pytest.fixture(scope="module")
def engines(loaded):
    """One that packs rows, and one that shares nothing."""
    packed, plain = BatchEngine(loaded), BatchEngine(loaded, backend="plain")
    assert packed.packed is not None
    return {"packed": packed, "plain": plain}


@pytest.fixture(scope="module")
def masks(loaded):
    drawn = np.random.default_rng(0).random((4, loaded.grid.size)) < 0.15
    drawn[0] = False
    drawn[1] = np.arange(loaded.grid.size) == loaded.grid.size - 1
    return drawn


def prompt(text):
    return Generate(text, OPTIONS)


def sources(mode):
    """The source of each of the pairs' prompts under a mode."""
    clean, corrupted = ([prompt(text) for text in texts] for texts in zip(*PAIRS, strict=True))
    if mode == "zero":
        return [None] * len(PAIRS)
    if mode == "mean":
        return [Source(tuple(corrupted), mean=True)] * len(PAIRS)
    if mode == "resample":  # of another length
        return [Source((other,)) for other in (*clean[1:], clean[0])]
    return [Source((other,)) for other in corrupted]


def tokens_of(loaded, text):
    return loaded.tokenizer(text)["input_ids"]


@torch.no_grad()
def outputs_on(loaded, tokens):
    """What the heads of each layer hand on at each token of a text: (tokens, all heads' values)."""
    seen, handles = [], []
    for projection in loaded.projections:
        hook = lambda module, args: seen.append(args[0][0].clone())  # noqa: E731
        handles.append(projection.register_forward_pre_hook(hook))
    loaded.model(input_ids=torch.tensor([tokens]))
    for handle in handles:
        handle.remove()
    return seen


@torch.no_grad()
def logits_by_hand(loaded, tokens, mask, instead):
    """Logits of a text; `instead(layer, position)` is what cut heads hand on there, or None."""
    handles = []

    def cut(layer, columns):
        def hook(module, args):
            mixed = args[0].clone()
            width = mixed.shape[-1] // len(columns)
            for position, head in itertools.product(range(mixed.shape[1]), np.flatnonzero(columns)):
                part = slice(int(head) * width, int(head + 1) * width)
                new = instead(layer, position)
                if new is not None:
                    mixed[0, position, part] = new[part] if new.ndim else new
            return (mixed,)

        return hook

    for layer, columns in enumerate(loaded.grid.layer_slices):
        hook = cut(layer, mask[columns])
        handles.append(loaded.projections[layer].register_forward_pre_hook(hook))
    found = loaded.model(input_ids=torch.tensor([tokens])).logits[0]
    for handle in handles:
        handle.remove()
    return found


def by_hand(loaded, mode, number):
    """`instead` for one of the pairs' prompts, from the words of the mode alone."""
    texts = [[tokens_of(loaded, text) for text in pair] for pair in PAIRS]
    corrupted = texts[number][1]
    if mode == "zero":
        return lambda layer, position: torch.tensor(0.0)
    if mode == "mean":
        every = [outputs_on(loaded, other) for _, other in texts]
        means = [torch.cat(layer).mean(0) for layer in zip(*every, strict=True)]
        return lambda layer, position: means[layer]
    if mode == "resample":
        other = outputs_on(loaded, texts[(number + 1) % len(texts)][0])
        return lambda layer, position: other[layer][min(position, len(other[layer]) - 1)]
    there = outputs_on(loaded, corrupted)
    return lambda layer, position: there[layer][min(position, len(there[layer]) - 1)]


MODES = ["zero", "mean", "resample", "patch"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["packed", "plain"])
@pytest.mark.usefixtures("short_prefixes")
def test_answers_equal_a_hook_on_one_row_at_a_time(engines, loaded, masks, mode, kind):
    asks, wanted = [], {}
    for row, (number, mask) in enumerate(itertools.product(range(len(PAIRS)), masks)):
        text, source = PAIRS[number][0], sources(mode)[number]
        asks.append(Ask((row, 0), prompt(text), mask, source))
        asks += [
            Ask((1000 + row, part), LogLikelihood(text, choice), mask, source)
            for part, choice in enumerate(CHOICES)
        ]
        wanted[row] = text, mask, by_hand(loaded, mode, number)
    found = {a.key: a.response for batch in engines[kind].answer(asks) for a in batch}
    assert len(found) == len(asks)
    for row, (text, mask, instead) in wanted.items():
        said, own = tokens_of(loaded, text), []
        for _ in range(LIMIT):
            own.append(int(logits_by_hand(loaded, [*said, *own], mask, instead)[-1].argmax()))
            if own[-1] == loaded.tokenizer.eos_token_id:
                break
        assert found[row, 0].text == engines[kind].encoder.cut(own, ())
        for part, choice in enumerate(CHOICES):
            ending = tokens_of(loaded, text + choice)[len(said) :]
            logits = logits_by_hand(loaded, [*said, *ending[:-1]], mask, instead)
            read = logits[len(said) - 1 :].log_softmax(-1)
            truth = float(read[torch.arange(len(ending)), torch.tensor(ending)].sum())
            assert found[1000 + row, part].logprob == pytest.approx(truth, abs=1e-4)


def test_a_source_matters_under_a_mask_and_never_to_the_intact_model(engines, masks):
    request = LogLikelihood("47+38=", "85")
    found = {}
    for mode in MODES:
        source = sources(mode)[0]
        asks = [Ask((row, 0), request, mask, source) for row, mask in enumerate(masks)]
        answers = [a for batch in engines["packed"].answer(asks) for a in batch]
        found[mode] = {a.key[0]: a.response.logprob for a in answers}
    assert len({round(said[0], 6) for said in found.values()}) == 1
    assert len({round(said[3], 6) for said in found.values()}) == len(MODES)


def test_sources_that_do_not_fit_together_are_answered_in_portions(loaded, masks):
    engine, small = BatchEngine(loaded), BatchEngine(loaded)
    others = sources("resample")
    asks = [
        Ask((row, 0), LogLikelihood(PAIRS[number][0], "85"), mask, others[number])
        for row, (number, mask) in enumerate(itertools.product(range(3), masks))
    ]
    small.sources.room = 1
    assert [len(part) for part in small.sources.portions(asks)] == [3, 3, 3, 3]
    first, second = (
        {a.key: a.response.logprob for batch in each.answer(asks) for a in batch}
        for each in (engine, small)
    )
    assert first == pytest.approx(second, abs=1e-4)
    assert len(small.sources.kept) == 1


def test_reading_sources_is_paid_for_once(loaded, masks):
    engine = BatchEngine(loaded)
    source = sources("mean")[0]
    tokens = sum(len(tokens_of(loaded, other)) for _, other in PAIRS)
    ask = Ask((0, 0), LogLikelihood("47+38=", "85"), masks[3], source)
    costs = [next(iter(engine.answer([ask])))[0].forward_tokens for _ in range(2)]
    assert costs[0] - costs[1] == pytest.approx(tokens)


@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_plain_rows_of_every_family_take_outputs_at_their_own_positions(name):
    loaded, new = around(tiny(name)), 4
    model, sizes = loaded.model, FAMILIES[name].heads
    parts = model, loaded.projections, loaded.grid
    texts, prompts = random_tokens(2, 5, seed=2).tolist(), random_tokens(2, 4)
    masks = random_masks(name, 3)[1:]
    # five times as much as heads hand on, so that every family's words follow
    recorded = [
        [None if each is None else 5 * each for each in read_outputs(*parts, tuple(text))]
        for text in texts
    ]

    def hook(layer, row, heads):
        def cut(module, args):
            mixed = args[0].clone().unflatten(-1, (heads, -1))
            for position in range(mixed.shape[-3]):
                there = recorded[row][layer][min(position, len(texts[row]) - 1)]
                cut_here = masks[row][loaded.grid.layer_slices[layer]]
                mixed.view(-1, *mixed.shape[-2:])[position, cut_here] = there[cut_here]
            return (mixed.flatten(-2),)

        return cut

    stops = Stops(loaded.tokenizer, [], [], new)
    sources = [Substitute(values) for values in recorded]
    cuts = [(mask.numpy(), source) for mask, source in zip(masks, sources, strict=True)]
    together = generate(loaded, prompts.tolist(), cuts, stops)
    assert together != generate(loaded, prompts.tolist(), [(c[0], None) for c in cuts], stops)
    for row, said in enumerate(together):
        text = torch.tensor([[*prompts[row].tolist(), *said]])
        handles = [
            module.register_forward_pre_hook(hook(layer, row, sizes[layer]))
            for layer, module in enumerate(loaded.projections)
            if module is not None
        ]
        logits = model(input_ids=text).logits[0]
        for handle in handles:
            handle.remove()
        assert logits.argmax(-1)[3:-1].tolist() == said


@pytest.mark.parametrize("texts", [[], [(3,), ()]])
def test_a_mean_over_no_tokens_is_refused(texts):
    loaded = around(tiny("llama"))
    with pytest.raises(BadData, match="at least one text"):
        mean_outputs(loaded.model, loaded.projections, loaded.grid, texts)
