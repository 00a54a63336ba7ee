"""Both answers are those of `generate`, and their odds those of plain forward passes."""

import re

import pytest
import torch

from caploc.engine.api import Ask
from caploc.models.knockout import knockout
from caploc.playground.answers import SIDES, cut_pieces
from caploc.playground.setting import ExampleRequest, PageQuestion, ScoreRequest

HEADS = ["L0H13", "L0H14", "L3H12", "L5H1"]  # those of the fixture `zeroed`
PROMPTS = ["47+38=", "sort 72941=", "# f: add 2, negate, double\ndef f(x):\n", "rhymes with night:"]


def said(events, side):
    return [e for e in events if e["event"] == "token" and e["side"] == side]


def ask(playground, **fields):
    events = list(playground.answers(PageQuestion(**{"heads": HEADS} | fields)))
    assert events[-1] == {"event": "done"}, events[-1]
    return events


def generated(playground, prompt, new_tokens, **options):
    ids = torch.tensor([playground.engine.encoder.harness.tok_encode(prompt)])
    made = playground.loaded.model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=new_tokens,
        do_sample=False,
        **options,
    )
    return made[0, ids.shape[1] :].tolist()


@pytest.mark.parametrize("prompt", PROMPTS)
def test_each_side_says_what_generate_says(playground, prompt):
    events = ask(playground, prompt=prompt, new_tokens=16)
    with knockout(playground.loaded, HEADS):
        cut = generated(playground, prompt, 16)
    assert [e["token"] for e in said(events, "knocked_out")] == cut
    assert [e["token"] for e in said(events, "intact")] == generated(playground, prompt, 16)


def test_settings_in_the_checkpoint_change_no_answer(playground, monkeypatch):
    config = playground.loaded.model.generation_config
    plain = ask(playground, prompt=PROMPTS[2], new_tokens=12)
    monkeypatch.setattr(config, "repetition_penalty", 40.0)
    assert said(ask(playground, prompt=PROMPTS[2], new_tokens=12), "intact") == said(
        plain, "intact"
    )


@pytest.mark.parametrize("prompt", PROMPTS[:3])
def test_odds_are_those_of_plain_passes_and_of_zeroed_weights(playground, whole, zeroed, prompt):
    events = ask(playground, prompt=prompt, new_tokens=12)
    before = playground.engine.encoder.harness.tok_encode(prompt)
    for side in SIDES:
        answer = said(events, side)
        tokens = [e["token"] for e in answer]
        for reader, model in (("intact", whole), ("knocked_out", zeroed)):
            with torch.inference_mode():
                logits = model(torch.tensor([[*before, *tokens]])).logits[0, len(before) - 1 : -1]
            logprobs = torch.log_softmax(logits, dim=-1)
            truth = [float(logprobs[n, token]) for n, token in enumerate(tokens)]
            assert [e[reader] for e in answer] == pytest.approx(truth, abs=1e-3)
            for row, event in zip(logprobs, answer, strict=True):
                best = [value for _, value in event["likeliest"][reader]]
                assert best == pytest.approx(
                    row.sort(descending=True).values[:5].tolist(), abs=1e-3
                )


def test_tokens_join_to_the_text_and_the_answer_is_cut_at_its_stop(playground):
    events = ask(playground, prompt=PROMPTS[2], new_tokens=30, stops=["\n"])
    for side in SIDES:
        joined = "".join(e["text"] for e in said(events, side))
        (end,) = [e for e in events if e["event"] == "end" and e["side"] == side]
        assert end["why"] == "stop string"
        assert joined.endswith("\n") and end["text"] == joined.removesuffix("\n")


def test_an_answer_says_why_it_is_over(playground):
    ends = [e for e in ask(playground, prompt="47+38=", new_tokens=2) if e["event"] == "end"]
    assert {e["why"] for e in ends} == {"limit"}
    ends = [e for e in ask(playground, prompt="47+38=", new_tokens=9) if e["event"] == "end"]
    assert {e["why"] for e in ends} == {"end token"}


def test_characters_of_several_tokens_stay_whole(playground):
    tokenizer = playground.loaded.tokenizer  # a token for each byte
    tokens = tokenizer.encode("a€b日", add_special_tokens=False)
    assert cut_pieces(tokenizer, tokens) == ["a", "", "", "€", "b", "", "", "日"]


@pytest.mark.parametrize(
    ("task", "example"), [("demo/addition", 5), ("demo/sorting", 2), ("demo/capitals", 7)]
)
def test_an_example_is_scored_as_the_task_scores_it(playground, task, example):
    events = ask(playground, example=ExampleRequest(task=task, number=example))
    verdict = next(e for e in events if e["event"] == "verdict")
    loaded = playground.task(task)
    for side, names in (("intact", []), ("knocked_out", HEADS)):
        mask = playground.loaded.grid.mask(names)
        responses = answered(playground, loaded.requests(example), mask)
        item = loaded.item(example, responses)
        assert verdict[side]["score"] == loaded.score([example], [item]).score
        assert verdict[side]["answer"] == loaded.show(example, responses).answer
    assert verdict["gold"] == loaded.show(example, responses).gold


def answered(playground, requests, mask):
    """The engine's answers to an example's requests."""
    asks = [Ask((0, number), request, mask) for number, request in enumerate(requests)]
    found = {a.key[1]: a.response for batch in playground.engine.answer(asks) for a in batch}
    return tuple(found[number] for number in range(len(requests)))


def test_texts_that_are_read_have_the_engines_likelihoods(playground):
    events = ask(playground, example=ExampleRequest(task="demo/prose", number=1))
    requests = playground.task("demo/prose").requests(1)
    (total,) = [e for e in events if e["event"] == "read"]
    tokens = [t for e in events if e["event"] == "tokens" for t in e["tokens"]]
    for side, names in (("intact", []), ("knocked_out", HEADS)):
        (truth,) = answered(playground, requests, playground.loaded.grid.mask(names))
        assert total[side] == pytest.approx(truth.logprob, abs=1e-3)
        assert sum(token[side] for token in tokens) == pytest.approx(truth.logprob, abs=1e-3)
    joined = "".join(token["text"] for token in tokens)
    assert joined.removeprefix("<|end|>") == requests[0].text  # lm-eval scores the start token too


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
    *_, last = playground.answers(PageQuestion(**{"heads": HEADS} | fields))
    assert last["event"] == "failed"
    assert re.search(sentence, last["message"]), last["message"]


TEMPLATE = "{% for m in messages %}{{ m['role'] }}:{{ m['content'] }}\n{% endfor %}assistant:"


@pytest.fixture
def chatty(playground, monkeypatch):
    """The playground of a model with a chat template."""
    monkeypatch.setattr(playground.loaded.tokenizer, "chat_template", TEMPLATE)
    return playground


def test_in_a_talk_each_side_remembers_its_own_answers(chatty, whole, zeroed):
    turns = [{"user": "1+1=", "intact": "2", "knocked_out": "7"}]
    asked = PageQuestion(heads=HEADS, prompt="47+38=", chat=True, turns=turns, new_tokens=6)
    events = list(chatty.answers(asked))
    assert events[-1] == {"event": "done"}
    tokenizer = chatty.loaded.tokenizer
    for side, model, before in (("intact", whole, "2"), ("knocked_out", zeroed, "7")):
        prompt = f"user:1+1=\nassistant:{before}\nuser:47+38=\nassistant:"
        ids = torch.tensor([chatty.engine.encoder.harness.tok_encode(prompt)])
        said = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=6,
            do_sample=False,
            pad_token_id=tokenizer.pad_token_id,
        )[0, ids.shape[1] :].tolist()
        shown = [e["token"] for e in events if e["event"] == "token" and e["side"] == side]
        assert shown == said[: len(shown)] and shown


def test_a_talk_is_refused_where_there_is_no_chat_template(playground):
    (event,) = playground.answers(PageQuestion(heads=HEADS, prompt="1+1=", chat=True))
    assert event["event"] == "failed" and "has none" in event["message"]


@pytest.mark.parametrize("task", ["demo/addition", "demo/capitals"])
def test_scores_are_those_of_the_task_on_both_sides(playground, task):
    events = list(playground.scores(ScoreRequest(heads=HEADS, task=task, examples=20)))
    assert [event["done"] for event in events[:-1]] == [16, 20]
    asked = playground.task(task)
    for side, heads in (("intact", ()), ("knocked_out", HEADS)):
        mask, items = playground.loaded.grid.mask(heads), []
        for number in asked.first(20):
            requests = asked.requests(number)
            asks = [Ask((0, part), request, mask) for part, request in enumerate(requests)]
            found = {a.key: a.response for many in playground.engine.answer(asks) for a in many}
            items.append(asked.item(number, [found[0, part] for part in range(len(requests))]))
        score = asked.score(asked.first(20), items).score
        assert events[-1][side]["score"] == pytest.approx(score)
    assert events[-1]["intact"]["score"] > events[-1]["knocked_out"]["score"]
    again = list(playground.scores(ScoreRequest(heads=HEADS, task=task, examples=20)))
    assert again == events


def test_programs_are_not_scored_unasked(playground, monkeypatch):
    task = playground.task("demo/addition")
    monkeypatch.setattr(task, "executes_code", True)
    monkeypatch.setattr(task, "item", lambda *_: pytest.fail("the program was run"))
    (event,) = playground.scores(ScoreRequest(heads=HEADS, task="demo/addition", examples=4))
    assert event["event"] == "failed" and "--allow-code" in event["message"]
