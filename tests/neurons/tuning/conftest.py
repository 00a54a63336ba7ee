"""What the tests of this folder share."""

import pytest
import torch

import caploc
from caploc.engine.encoding import RequestEncoder
from caploc.neurons.model import as_neurons
from caploc.tasks.task import LogLikelihood
from worlds import DEMO
from worlds.tasks import data


@pytest.fixture
def unchanged():
    """Watch models that must be, at the end, bit for bit and module for module what they were."""
    watched = []

    def watch(model):
        watched.append((model, _state(model)))
        return model

    yield watch
    for model, before in watched:
        after = _state(model)
        assert after.keys() == before.keys()
        for name, value in before.items():
            same = (
                torch.equal(value, after[name]) if torch.is_tensor(value) else value == after[name]
            )
            assert same, name


def _state(model):
    state = {name: value.clone() for name, value in model.state_dict().items()}
    for name, module in model.named_modules():
        state[f"hooks of {name}"] = len(module._forward_hooks) + len(module._forward_pre_hooks)
        state[f"identity of {name}"] = id(module)
        state[f"attributes of {name}"] = sorted(vars(module))
        state[f"training of {name}"] = module.training
    for name, parameter in model.named_parameters():
        state[f"gradient of {name}"] = (parameter.requires_grad, parameter.grad is None)
        state[f"identity of parameter {name}"] = id(parameter)
        state[f"hooks of parameter {name}"] = len(parameter._post_accumulate_grad_hooks or {})
    return state


@pytest.fixture(scope="session")
def demo():
    """The demo model as its neurons; tests must leave it as they found it."""
    return as_neurons(caploc.load_model(DEMO))


@pytest.fixture(scope="session")
def spans_of(demo):
    """Spans of a demo capability: spans_of(data.addition, "train", 40)."""
    wording = RequestEncoder(demo.model, demo.tokenizer)

    def found(draw, split, count):
        examples = data.draw_distinct(draw, split, count)
        requests = [LogLikelihood(example.prompt, example.answer) for example in examples]
        return tuple(wording.spans(request)[0] for request in requests)

    return found
