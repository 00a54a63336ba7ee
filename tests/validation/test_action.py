"""What the strongest head does on one example, beside the model's own numbers."""

import pytest
import torch

from caploc.components import Head, Layer
from caploc.declaration import ModelOptions
from caploc.tasks.catalog import load_task
from caploc.tasks.task import Generate, options_json
from caploc.validation.action import LONGEST, describe_action, promote_words, read_attention
from worlds import DEMO

HEAD = Head(3, 12)


@pytest.fixture(scope="module")
def engine():
    return ModelOptions(DEMO, device="cpu").engine()


def test_it_is_what_the_model_does_at_the_end_of_the_prompt(engine):
    loaded, task = engine.loaded, load_task("demo/addition")
    found = describe_action(engine, task, 2, HEAD)
    prompt = task.requests(2)[0].prompt
    tokens = loaded.tokenizer(prompt)["input_ids"]
    assert found.prompt == prompt and found.head == "L3H12" and found.of == 258
    row = read_attention(loaded, tokens, HEAD)
    assert [(one.place, one.share) for one in found.attends] == [
        (place, pytest.approx(float(row[place])))
        for place in row.argsort(descending=True).tolist()[:5]
    ]
    assert [one.token for one in found.attends] == [
        loaded.tokenizer.decode([tokens[one.place]]) for one in found.attends
    ]
    with torch.inference_mode():
        following = int(loaded.model(torch.tensor([tokens])).logits[0, -1].argmax())
    promoted = promote_words(loaded, tokens, HEAD)[0].argsort(descending=True).tolist()
    assert found.following == loaded.tokenizer.decode([following])
    assert promoted[found.rank - 1] == following
    assert found.promotes == [loaded.tokenizer.decode([token]) for token in promoted[:5]]


def test_nothing_is_said_of_layers_long_prompts_and_models_elsewhere(engine, monkeypatch):
    task = load_task("demo/addition")
    assert describe_action(engine, task, 2, Layer(3)) is None
    assert describe_action(object(), task, 2, HEAD) is None
    long = Generate("1+" * LONGEST, options_json({"until": [], "max_gen_toks": 2}))
    monkeypatch.setattr(task, "requests", lambda example: [long])
    assert describe_action(engine, task, 2, HEAD) is None
