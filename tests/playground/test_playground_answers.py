"""Both answers are those of `generate`, and their odds those of plain forward passes."""

import pytest
import torch

from caploc.engine.api import Ask
from caploc.errors import CaplocError
from caploc.models.knockout import knockout
from caploc.playground.answers import SIDES, cut_pieces
from caploc.playground.playground import ExampleRequest, PageQuestion
from caploc.tasks.task import write_answer

HEADS = ["L0H13", "L0H14", "L3H12", "L5H1"]  # those of the fixture `zeroed`
PROMPTS = ["47+38=", "sort 72941=", "# f: add 2, negate, double\ndef f(x):\n", "rhymes with night:"]


def ask(playground, tell=lambda so_far: None, **fields):
    return playground.answer(PageQuestion(**{"heads": HEADS} | fields), tell)


def said(answers, side):
    return [token["token"] for token in answers[side]["tokens"]]


def generated(model, tokenized, new_tokens):
    ids = torch.tensor([tokenized])
    made = model.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=new_tokens,
        do_sample=False,
    )  # fmt: skip
    return made[0, ids.shape[1] :].tolist()


@pytest.mark.parametrize("prompt", PROMPTS)
def test_each_side_says_what_generate_says(playground, prompt):
    answers = ask(playground, prompt=prompt, new_tokens=16)
    model = playground.loaded.model
    read = playground.engine.encoder.harness.tok_encode(prompt)
    with knockout(playground.loaded, HEADS):
        cut = generated(model, read, 16)
    assert said(answers, "knocked_out") == cut
    assert said(answers, "intact") == generated(model, read, 16)


def test_words_come_one_by_one_and_end_as_the_answer(playground):
    heard = []
    answers = ask(playground, heard.append, prompt=PROMPTS[2], new_tokens=30, stops=["\n"])
    for side in SIDES:
        texts = [so_far[side] for so_far in heard]
        assert len(set(texts)) > 5 and texts[0] == texts[-1][: len(texts[0])]
        assert texts[-1] == answers[side]["text"]


@pytest.mark.parametrize("prompt", PROMPTS[:3])
def test_odds_are_those_of_plain_passes_and_of_zeroed_weights(playground, whole, zeroed, prompt):
    answers = ask(playground, prompt=prompt, new_tokens=12)
    before = playground.engine.encoder.harness.tok_encode(prompt)
    for side in SIDES:
        shown = answers[side]["tokens"]
        tokens = said(answers, side)
        for reader, model in (("intact", whole), ("knocked_out", zeroed)):
            with torch.inference_mode():
                logits = model(torch.tensor([[*before, *tokens]])).logits[0, len(before) - 1 : -1]
            logprobs = torch.log_softmax(logits, dim=-1)
            truth = [float(logprobs[n, token]) for n, token in enumerate(tokens)]
            assert [each[reader] for each in shown] == pytest.approx(truth, abs=1e-3)
            for row, each in zip(logprobs, shown, strict=True):
                best = [value for _, value in each["likeliest"][reader]]
                assert best == pytest.approx(
                    row.sort(descending=True).values[:5].tolist(), abs=1e-3
                )


def test_characters_of_several_tokens_stay_whole(playground):
    tokenizer = playground.loaded.tokenizer  # a token for each byte
    tokens = tokenizer.encode("a€b日", add_special_tokens=False)
    assert list(cut_pieces(tokenizer, tokens)) == ["a", "", "", "€", "b", "", "", "日"]


@pytest.mark.parametrize(
    ("task", "example"), [("demo/addition", 5), ("demo/sorting", 2), ("demo/capitals", 7)]
)
def test_an_example_is_scored_as_the_task_scores_it(playground, task, example):
    verdict = ask(playground, example=ExampleRequest(task=task, number=example))["verdict"]
    loaded = playground.task(task)
    for side, names in (("intact", []), ("knocked_out", HEADS)):
        mask = playground.loaded.grid.mask(names)
        responses = answered(playground, loaded.requests(example), mask)
        item = loaded.item(example, responses)
        assert verdict[side]["score"] == loaded.score([example], [item]).score
        assert verdict[side]["answer"] == write_answer(loaded.example(example), responses)


def answered(playground, requests, mask):
    """The engine's answers to an example's requests."""
    asks = [Ask((0, number), request, mask) for number, request in enumerate(requests)]
    found = {a.key[1]: a.response for batch in playground.engine.answer(asks) for a in batch}
    return tuple(found[number] for number in range(len(requests)))


@pytest.mark.parametrize(("task", "right"), [("demo/prose", None), ("demo/capitals", 3)])
def test_texts_that_are_read_have_the_engines_likelihoods(playground, task, right):
    answers = ask(playground, example=ExampleRequest(task=task, number=1))
    requests = playground.task(task).requests(1)
    assert answers["right"] == playground.task(task).example(1).right
    for side, names in (("intact", []), ("knocked_out", HEADS)):
        truth = answered(playground, requests, playground.loaded.grid.mask(names))
        for choice, found in zip(answers["choices"], truth, strict=True):
            total = sum(token[side] for token in choice["tokens"])
            assert [choice[side], total] == pytest.approx([found.logprob] * 2, abs=1e-3)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"prompt": "  "}, "The prompt is empty"),
        ({"prompt": "1" * 2100}, r"The prompt has 2,\d+ tokens .* window is 2,048"),
        ({"prompt": "1+1=", "heads": []}, "No head is chosen"),
        ({"prompt": "1+1=", "heads": ["L9H1"]}, "L0 to L5"),
        ({"prompt": "1+1=", "heads": ["x"]}, "is not a head"),
        ({"prompt": "hi", "chat": True}, "has none"),
        ({"example": ExampleRequest(task="demo/addition", number=512)}, "no example 512"),
        ({"example": ExampleRequest(task="gsm8k")}, "start again with --task gsm8k"),
    ],
)
def test_mistakes_get_a_sentence(playground, fields, sentence):
    with pytest.raises(CaplocError, match=sentence):
        ask(playground, **fields)


TEMPLATE = "{% for m in messages %}{{ m['role'] }}:{{ m['content'] }}\n{% endfor %}assistant:"


def test_in_a_talk_each_side_remembers_its_own_answers(playground, whole, zeroed, monkeypatch):
    monkeypatch.setattr(playground.loaded.tokenizer, "chat_template", TEMPLATE)
    turns = [{"user": "1+1=", "intact": "2", "knocked_out": "seven"}]
    answers = ask(playground, prompt="47+38=", chat=True, turns=turns, new_tokens=6)
    for side, model, before in (("intact", whole, "2"), ("knocked_out", zeroed, "seven")):
        prompt = f"user:1+1=\nassistant:{before}\nuser:47+38=\nassistant:"
        truth = generated(model, playground.engine.encoder.harness.tok_encode(prompt), 6)
        assert said(answers, side) == truth
