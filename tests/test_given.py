"""A model and examples that the caller has, in place of names."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

import caploc
from caploc.declaration import Allowed, ModelOptions
from caploc.errors import BadData, BadOption, StoreFailed, UserError
from caploc.export import Export
from caploc.finished import FinishedRun
from caploc.given import digest_pair, digest_weights
from caploc.models.sources import find_source
from caploc.pairs import write_task
from caploc.playground.chat import Chat
from caploc.progress import Silent
from caploc.tasks.catalog import load_task
from worlds import DEMO

SMALL = {"method": "css", "masks": 12, "rate": 0.05, "examples": 8, "limit": 8, "controls": 0}
SMALL |= {"also": [], "quiet": True}
PAIRS = [(f"{a}+{b}=", str(a + b)) for a in range(12, 52, 7) for b in range(13, 53, 5)]


@pytest.fixture
def tokenizer():
    return AutoTokenizer.from_pretrained(find_source(DEMO).place)


@pytest.fixture
def model():
    return AutoModelForCausalLM.from_pretrained(find_source(DEMO).place)


def test_a_loaded_model_and_pairs_give_what_its_name_and_a_task_would(model, tokenizer, tmp_path):
    model.train()
    before = digest_weights(model)
    own = caploc.locate(model, tokenizer, PAIRS, **SMALL, out=tmp_path / "own")
    assert model.training and digest_weights(model) == before
    named = caploc.locate(DEMO, PAIRS, **SMALL, out=tmp_path / "named")
    assert own.result.heads == named.result.heads and own.top == named.top
    assert own.result.validation.task.intact.score == 1.0
    assert own.heads[0].head


def test_a_run_of_a_loaded_model_is_gone_on_with_by_its_name(
    model, tokenizer, tmp_path, monkeypatch
):
    """Chat, export and further questions load the model from where it came, and know its rows."""
    caploc.locate(model, tokenizer, PAIRS, **SMALL, out=tmp_path / "run")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    result["top"] = ["L0H10"]
    (tmp_path / "run" / "result.json").write_text(json.dumps(result))
    run = FinishedRun.read(tmp_path / "run")
    assert run.engine().loaded.fingerprint == digest_pair(model, tokenizer)
    monkeypatch.setattr(
        "caploc.engine.batch.BatchEngine.answer", lambda *_: pytest.fail("asked again")
    )
    with run.opened() as (bench, tasks):
        task = tasks[run.study.task]
        bench.meter(task).under(np.zeros(96, dtype=bool), task.first(8), Silent(), "intact")
    assert "Without L0H10." in Chat.of(tmp_path / "run", None, 4, Allowed()).opening()
    asked = {"model": ModelOptions(""), "top": None, "heads": None, "kind": "checkpoint"}
    Export.find(str(tmp_path / "run"), target=tmp_path / "cut", **asked).write()
    cut = AutoModelForCausalLM.from_pretrained(tmp_path / "cut")
    assert not torch.equal(*(m.model.layers[0].self_attn.o_proj.weight for m in (cut, model)))
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight[0, 0] += 1
    result["model"]["fingerprint"] = digest_pair(model, tokenizer)
    (tmp_path / "run" / "result.json").write_text(json.dumps(result))
    with pytest.raises(UserError, match="or was another when it was handed to caploc.locate"):
        FinishedRun.read(tmp_path / "run").engine()


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")  # peft's
def test_a_peft_model_is_another_one_with_another_adapter(model):
    torch.manual_seed(0)
    lora = LoraConfig(target_modules=["q_proj"], r=4, init_lora_weights=False)
    adapted = get_peft_model(model, lora, "one")
    adapted.add_adapter("two", lora)
    base = adapted.get_base_model()

    def digest(name):
        adapted.set_adapter(name)
        return digest_weights(base)

    one, two = digest("one"), digest("two")
    assert one != two
    assert digest("one") == one
    with adapted.disable_adapter():
        assert digest_weights(base) not in (one, two)


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")  # peft's
@pytest.mark.parametrize(
    "target", [["q_proj", "v_proj"], pytest.param("all-linear", marks=pytest.mark.slow)]
)
def test_a_peft_model_is_asked_with_its_adapter(model, tokenizer, target, tmp_path):
    torch.manual_seed(0)
    lora = LoraConfig(target_modules=target, r=4, init_lora_weights=False)
    adapted = get_peft_model(model, lora)
    found = caploc.locate(adapted, tokenizer, PAIRS, **SMALL, out=tmp_path)
    ids = torch.as_tensor([tokenizer("12+13=")["input_ids"]])
    with torch.no_grad():
        intact = adapted(ids).logits
        with found.knockout(heads=["L2H3"]):
            cut = adapted(ids).logits
    assert not torch.equal(intact, cut)


def test_the_chosen_heads_are_knocked_out_inside_the_block(model, tokenizer, tmp_path):
    found = caploc.locate(model, tokenizer, PAIRS, **SMALL, out=tmp_path)
    ids = torch.as_tensor([tokenizer("12+13=")["input_ids"]])
    with torch.no_grad():
        intact = model(ids).logits
        with found.knockout(heads=["L0H5"]):
            cut = model(ids).logits
        with caploc.knockout(model, ["L0H5"]):
            assert torch.equal(model(ids).logits, cut)
        assert torch.equal(model(ids).logits, intact) and not torch.equal(intact, cut)
    with pytest.raises(BadOption, match="Which model"):
        caploc.Findings.read(found.folder).knockout(heads=["L0H5"])
    with pytest.raises(BadOption, match="is one text; give a list"), found.knockout(heads="L0H5"):
        pass


def test_examples_that_the_disk_refuses_are_told_in_a_sentence(tmp_path):
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(StoreFailed, match="could not be written .*; what was measured is kept"):
        write_task(PAIRS, tmp_path / "file")


def test_examples_are_written_once(tmp_path):
    path = write_task(PAIRS, tmp_path)
    assert write_task(PAIRS, tmp_path) == path and write_task(PAIRS[1:], tmp_path) != path
    assert pd.read_parquet(path.with_name("examples.parquet")).values.tolist() == [
        [*pair] for pair in PAIRS
    ]


WRITTEN = [
    ("{} jump -> jumped, call -> call", "ed"),
    ("{} 9, 1", "0"),
    ("{} 日本の首都は", "東京"),
    ("{} It is", " Rome"),
    ("{} see http:", "//a.b"),
    ("{} a line\n", "\n\tindented"),
    ("2024-01-1{}", "2024-01-2{}T00:00:00Z"),
    ("{} as a list is", "[{}, 1]"),
]


@pytest.mark.parametrize(("prompt", "answer"), WRITTEN)
def test_prompt_and_answer_are_asked_as_they_are_written(prompt, answer, tmp_path):
    pairs = [(prompt.format(number), answer.format(number)) for number in range(10)]
    task = load_task(str(write_task(pairs, tmp_path)))
    asked = [task.requests(number)[0] for number in range(10)]
    assert [(request.context, request.continuation) for request in asked] == pairs
    assert task.leaves[0].docs[3]["answer"] == pairs[3][1]
    assert task.with_outcome("logprob").requests(3)[0] == asked[3]


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ((object(), None, PAIRS), BadOption, "object is no model of transformers"),
        ((DEMO, "demo/addition", PAIRS), BadOption, "followed by the task alone"),
        ((DEMO, 5), BadOption, "The task is int"),
        ((DEMO, []), BadData, "There are no examples"),
        ((DEMO, [("a", "b")]), BadData, "1 different prompt is too few .* give 10 or more"),
        ((DEMO, [("a", "b")] * 12), BadData, "1 different prompt is too few"),
        ((DEMO, [(str(n), "b") for n in range(9)]), BadData, "9 different prompts are too few"),
        ((DEMO, [("a", "b"), "cd"]), BadData, "Example 1 is 'cd'"),
        ((DEMO, [("a", "")]), BadData, "Example 0 is"),
    ],
)
def test_what_cannot_be_handed_over_gets_a_sentence(given, error, words, tmp_path):
    with pytest.raises(error, match=words):
        caploc.locate(*given, out=tmp_path, quiet=True)


def test_a_tokenizer_must_come_with_the_model(model, tmp_path):
    with pytest.raises(BadOption, match="needs its tokenizer"):
        caploc.locate(model, PAIRS, out=tmp_path, quiet=True)
