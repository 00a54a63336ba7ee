"""vLLM gives the packed engine's answers, in an environment of its own: make test-vllm."""

import os

import pytest
from test_plain_engine import questions, same

from caploc.engine.batch import BatchEngine
from caploc.models.loading import load_model
from worlds.alone import responses, word_tokenizer
from worlds.tiny import GROUPED, build

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("default")]
# vLLM's CPU kernels take heads of 32 values and more
SHAPE = {
    "hidden_size": 128,
    "num_attention_heads": 4,
    "head_dim": 32,
    "max_position_embeddings": 256,
}


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    build("llama", {**GROUPED, **SHAPE, "vocab_size": 61}).save_pretrained(folder)
    word_tokenizer().save_pretrained(folder)
    return load_model(str(folder), device="cpu", dtype="float32")


@pytest.fixture(scope="module")
def engine(loaded):
    engine = BatchEngine(loaded, backend="vllm")
    assert engine.backends[0].trouble is None
    return engine


@pytest.fixture(scope="module")
def truth(loaded):
    return responses(BatchEngine(loaded, backend="packed"), questions(loaded))


def test_vllm_gives_the_answers_of_packed(loaded, engine, truth):
    asks = questions(loaded)
    found = [answer for batch in engine.answer(asks) for answer in batch]
    got = {answer.key: answer.response for answer in found}
    assert same(got, truth, rel=1e-4) == len(asks) == 720
    assert {answer.way.engine for answer in found} == {"vllm"}
    texts = [answer for answer in found if hasattr(answer.response, "text")]
    spared = sum(a.plain_tokens for a in texts) - sum(a.forward_tokens for a in texts)
    assert spared > 200 * 32  # the prefix's first block came from kept keys


def test_without_salts_answers_of_masks_mix(loaded, engine, truth):
    asks = questions(loaded)
    engine.backends[0].salts = False
    engine.backends[0].llm.reset_prefix_cache()
    try:
        assert same(responses(engine, asks), truth, rel=1e-4) < len(asks)
    finally:
        engine.backends[0].salts = True
        engine.backends[0].llm.reset_prefix_cache()


def test_a_second_time_all_is_kept_and_answers_stay(loaded, engine, truth):
    asks = questions(loaded)
    responses(engine, asks)
    assert same(responses(engine, asks), truth, rel=1e-4) == len(asks)


def test_a_plain_vllm_is_left_alone(monkeypatch):
    from caploc.integrations import vllm_masks
    from caploc.process import MASKED_VLLM

    monkeypatch.delenv(MASKED_VLLM, raising=False)
    monkeypatch.setattr(vllm_masks, "_cut_attention", None)  # would fail if it were called
    vllm_masks.register()
    assert MASKED_VLLM not in os.environ
