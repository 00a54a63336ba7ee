"""Memory: what is used stays within what was planned, and running out loses no row."""

import weakref

import numpy as np
import pytest
import torch
from alone import around, responses, words
from tiny import GROUPED, build, random_tokens
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoConfig

from caploc.engine.api import Ask
from caploc.engine.batch import BatchEngine
from caploc.engine.passes import PackedModel
from caploc.engine.planning import DecoderShape, inner_size
from caploc.errors import OutOfMemory
from caploc.models.loading import load_model
from caploc.tasks.task import Generate, Generated, LogLikelihood, options_json
from worlds import DEMO

pytestmark = pytest.mark.slow  # memory is let run out again and again

MEGABYTE = 2**20
PREFIX = "the old king went to the castle and the pirate sang in the rain. " * 3
OWN = ["47+38=", "sort 72941 and 58034 and 61935:", "the moon over the night and the sun:", "6*7="]
LONG = "and the parrot said that the rum was gone, "


class Peak(TorchDispatchMode):
    """The most bytes held at one time by tensors that were made inside the block."""

    def __init__(self):
        super().__init__()
        self.live, self.most, self.known = 0, 0, set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor):
                self.take(tensor.untyped_storage())
        return made

    def take(self, storage):
        number, size = storage._cdata, storage.nbytes()
        if number not in self.known:
            self.known.add(number)
            self.live += size
            self.most = max(self.most, self.live)
            weakref.finalize(storage, self.let_go, number, size)

    def let_go(self, number, size):
        self.known.remove(number)
        self.live -= size


@pytest.fixture(scope="module")
def loaded():
    return load_model(DEMO)


def masks_of(grid, count):
    drawn = np.random.default_rng(0).random((count, grid.size)) < 0.05
    drawn[0] = False
    return drawn


def texts(masks, prefix=PREFIX, limit=8):
    """Texts to be said, each prompt under each mask."""
    options = options_json({"until": ["\n"], "max_gen_toks": limit, "do_sample": False})
    pairs = [(mask, prefix + LONG[: 9 * n] + own) for mask in masks for n, own in enumerate(OWN)]
    return [Ask((n, 0), Generate(prompt, options), mask) for n, (mask, prompt) in enumerate(pairs)]


def few_of_many(masks):
    """One text for each mask, each mask with a reading of the prefix to itself."""
    return texts(masks)[:: len(OWN) + 1]


def choices(masks):
    """Long choices, two for each question."""
    return [
        Ask(
            (len(OWN) * n + m, part),
            LogLikelihood(PREFIX + own, f" {PREFIX[part : 100 + m]}"),
            mask,
        )
        for n, mask in enumerate(masks)
        for m, own in enumerate(OWN)
        for part in range(2)
    ]


CASES = {
    "a prefix": lambda masks: texts(masks[:3]),
    "no prefix": lambda masks: texts(masks[:3], prefix=""),
    "a prefix for each row": few_of_many,
    "choices": lambda masks: choices(masks[:3]),
}
# Tokens that a pass must be able to have: of the prefix, or of the longest row after it.
LEAST = {"a prefix": 210, "no prefix": 60, "a prefix for each row": 210, "choices": 260}
each_case = pytest.mark.parametrize("case", CASES)


@pytest.fixture(scope="module")
def truth(loaded):
    """Answers without a limit."""
    masks = masks_of(loaded.grid, 16)
    return {case: responses(BatchEngine(loaded), make(masks)) for case, make in CASES.items()}


def same(got, expected):
    for key, response in expected.items():
        if isinstance(response, Generated):
            assert got[key] == response
        else:
            assert got[key].logprob == pytest.approx(response.logprob, abs=1e-3)
            assert got[key].tokens == response.tokens


@pytest.mark.parametrize("megabytes", [6, 20])
@each_case
def test_what_is_used_stays_within_the_memory_given(loaded, truth, case, megabytes):
    engine = BatchEngine(loaded, memory=megabytes * MEGABYTE)
    asks = CASES[case](masks_of(loaded.grid, 16))
    with Peak() as peak:
        got = responses(engine, asks)
    same(got, truth[case])
    assert peak.most <= 1.1 * megabytes * MEGABYTE
    assert peak.live < 1000  # nothing that grows with the rows is left


def test_choices_of_many_long_questions_stay_within_the_memory_given(loaded):
    """Who reads whom takes the square of a question's length: 32 MB for all of these."""
    mask, megabytes = np.zeros(loaded.grid.size, dtype=bool), 16
    asks = [
        Ask((n, part), LogLikelihood(f"{n:02}: " + PREFIX * 3 + OWN[n % 4], f" {ending}"), mask)
        for n in range(80)
        for part, ending in enumerate(("the pirate went home", "the king went home"))
    ]
    with Peak() as peak:
        responses(BatchEngine(loaded, memory=megabytes * MEGABYTE), asks)
    assert peak.most <= 1.1 * megabytes * MEGABYTE


@pytest.mark.parametrize("kind", ["texts", "choices"])
def test_logits_of_a_large_vocabulary_stay_within_the_memory_given(kind):
    loaded = around(build("llama", {**GROUPED, "vocab_size": 20_000}))
    mask, megabytes = np.zeros(loaded.grid.size, dtype=bool), 16
    prompts = [tokens.tolist() for tokens in random_tokens(40, 20)]
    options = options_json({"until": [], "max_gen_toks": 8, "do_sample": False})
    asks = [
        Ask(
            (number, 0),
            Generate(words(tokens), options)
            if kind == "texts"
            else LogLikelihood(words(tokens[:5]), " " + words(tokens[5:])),
            mask,
        )
        for number, tokens in enumerate(prompts)
    ]
    with Peak() as peak:
        responses(BatchEngine(loaded, memory=megabytes * MEGABYTE), asks)
    assert peak.most <= 1.1 * megabytes * MEGABYTE


@pytest.fixture
def crowded(monkeypatch):
    """Let a pass of more than so many tokens run out of memory; returns how often it did."""
    forward, failed = PackedModel.forward, []

    def limit(most):
        def crowding(packed, one):
            if len(one.tokens) > most:
                failed.append(len(one.tokens))
                raise torch.OutOfMemoryError("CUDA out of memory.")
            return forward(packed, one)

        monkeypatch.setattr(PackedModel, "forward", crowding)
        return failed

    return limit


@each_case
def test_running_out_of_memory_loses_no_row(loaded, truth, crowded, case):
    engine = BatchEngine(loaded, memory=512 * MEGABYTE)
    failed = crowded(LEAST[case])
    same(responses(engine, CASES[case](masks_of(loaded.grid, 16))), truth[case])
    assert failed


def test_a_row_that_fits_nowhere_is_one_sentence_and_the_engine_lives_on(loaded, truth, crowded):
    engine = BatchEngine(loaded, memory=64 * MEGABYTE)
    masks = masks_of(loaded.grid, 16)
    crowded(10)
    for case in ("no prefix", "choices"):
        with pytest.raises(OutOfMemory, match="Not even one row fits") as raised:
            responses(engine, CASES[case](masks))
        assert "\n" not in str(raised.value) and str(raised.value).endswith(".")
    crowded(LEAST["choices"])
    same(responses(engine, CASES["no prefix"](masks)), truth["no prefix"])


def test_errors_other_than_out_of_memory_are_raised(loaded, monkeypatch):
    engine = BatchEngine(loaded)

    def failing(packed, one):
        raise RuntimeError("shapes do not match")

    monkeypatch.setattr(PackedModel, "forward", failing)
    with pytest.raises(RuntimeError, match="shapes do not match"):
        responses(engine, texts(masks_of(loaded.grid, 2)))


@pytest.mark.parametrize(
    ("model_type", "config", "inner"),
    [
        ("llama", {"hidden_size": 32, "intermediate_size": 300}, 300),
        ("gpt2", {"n_embd": 32}, 128),
        ("gpt2", {"n_embd": 32, "n_inner": 70}, 70),
        ("opt", {"hidden_size": 32, "ffn_dim": 90}, 90),
        ("bloom", {"hidden_size": 32}, 128),
        ("mixtral", {"intermediate_size": 50, "num_experts_per_tok": 2}, 100),
        (
            "qwen3_moe",
            {"intermediate_size": 60, "moe_intermediate_size": 20, "num_experts_per_tok": 8},
            160,
        ),
    ],
)
def test_the_inside_of_a_feed_forward_block_is_read_from_the_config(model_type, config, inner):
    assert inner_size(AutoConfig.for_model(model_type, **config)) == inner


def test_a_models_shape_is_counted_in_bytes_of_its_dtype(loaded):
    shape = DecoderShape.of(loaded.model)
    assert (shape.layers, shape.heads) == (6, 16)
    assert shape.keys == 2 * 8 * 16 * 4  # keys and values of 8 groups of width 16
    assert shape.residual == 128 * 4
