"""Two threads and one model: one of them is told, and the model is as it was."""

import threading

import numpy as np
import pytest
import torch

from caploc.engine.api import Ask
from caploc.engine.batch import BatchEngine
from caploc.engine.passes import PackedModel
from caploc.errors import ModelBusy
from caploc.tasks.task import LogLikelihood
from worlds.alone import around, responses, words
from worlds.tiny import GROUPED, build, random_tokens

TOKENS = torch.tensor([[5, 6, 7]])


@pytest.fixture
def loaded():
    return around(build("llama", {**GROUPED, "num_hidden_layers": 6}))


def asks(loaded):
    masks = np.eye(loaded.grid.size, dtype=bool)[-8:]
    texts = [words(text) for text in random_tokens(12, 30).tolist()]
    return [
        Ask((12 * n + k, 0), LogLikelihood(text, " w05 w06"), mask)
        for n, mask in enumerate(masks)
        for k, text in enumerate(texts)
    ]


def inside(loaded, monkeypatch, meanwhile):
    """Run something in another thread while a pass of this thread's engine is under way."""
    raised, forward = [], PackedModel.forward

    def other():
        try:
            meanwhile()
        except Exception as error:  # noqa: BLE001 - handed to the test
            raised.append(error)

    def run(packed, one):
        hook = loaded.model.model.layers[-1].register_forward_pre_hook(lambda *told: join())
        try:
            return forward(packed, one)
        finally:
            hook.remove()

    def join():
        if not raised:
            thread = threading.Thread(target=other)
            thread.start()
            thread.join()

    engine = BatchEngine(loaded)
    truth = responses(engine, asks(loaded))
    monkeypatch.setattr(PackedModel, "forward", run)
    found = responses(engine, asks(loaded))
    monkeypatch.undo()
    assert found == truth
    return raised


def test_a_second_engine_is_told_and_the_first_goes_on(loaded, monkeypatch):
    before, second = loaded.model(TOKENS).logits, BatchEngine(loaded)
    raised = inside(loaded, monkeypatch, lambda: responses(second, asks(loaded)))
    assert raised and all(isinstance(error, ModelBusy) for error in raised)
    assert torch.equal(loaded.model(TOKENS).logits, before)
    assert not [name for name, module in loaded.model.named_modules() if "forward" in vars(module)]
    assert responses(second, asks(loaded))


def test_a_plain_pass_of_another_thread_is_told(loaded, monkeypatch):
    raised = inside(loaded, monkeypatch, lambda: loaded.model(TOKENS))
    assert raised and all(isinstance(error, ModelBusy) for error in raised)
