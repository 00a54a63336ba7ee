"""Texts on the demo model: refilled slots, drafts, prefixes under masks, and what they cost."""

from os.path import commonprefix

import numpy as np
import pytest

from caploc.engine.api import Ask
from caploc.engine.attention import SharedSegments
from caploc.engine.batch import BatchEngine
from caploc.engine.decoding import Decoder
from caploc.engine.packed import ENOUGH
from caploc.engine.passes import IntactRecords
from caploc.tasks.task import Generate, options_json
from worlds.alone import answers, responses, said

pytestmark = pytest.mark.usefixtures("short_prefixes")
LIMIT = 8
OWN = ["47+38=", "9-3=", "sort 72941=", "6*7=", "a rhyme for night:", "capital of Peru is"]
PROMPTS = [f"12+34=46\n7-5=2\nreverse abc=cba\n{own}" for own in OWN]


@pytest.fixture(scope="module")
def masks(loaded):
    """One that cuts nothing, and some that begin to cut in different layers."""
    drawn = np.zeros((7, loaded.grid.size), dtype=bool)
    for number in range(1, 7):
        drawn[number, loaded.grid.layer_slices[number - 1].start + number :: 9] = True
    return drawn


def asks_for(prompts, masks, limit=LIMIT):
    options = options_json({"until": ["\n"], "max_gen_toks": limit, "do_sample": False})
    pairs = [(mask, prompt) for mask in masks for prompt in prompts]
    return [Ask((n, 0), Generate(prompt, options), mask) for n, (mask, prompt) in enumerate(pairs)]


@pytest.fixture(scope="module")
def truth(loaded, masks):
    """Texts said one row at a time."""
    found = {}
    for ask in asks_for(PROMPTS, masks):
        tokens = loaded.tokenizer.encode(ask.request.prompt)
        text = loaded.tokenizer.decode(said(loaded, tokens, ask.knocked_out, LIMIT))
        found[ask.key] = text.split("\n")[0].split(loaded.tokenizer.eos_token)[0]
    assert len({text for key, text in found.items() if key[0] % len(OWN) == 0}) > 1
    return found


def texts(engine, asks):
    return {key: response.text for key, response in responses(engine, asks).items()}


@pytest.mark.parametrize("slots", [None, 1, 3, 8])
def test_refilled_slots_say_what_one_row_says_alone(loaded, masks, truth, slots):
    assert texts(BatchEngine(loaded, slots), asks_for(PROMPTS, masks)) == truth


def test_wrong_drafts_change_no_answer(loaded, masks, truth):
    engine, asks = BatchEngine(loaded), asks_for(PROMPTS, masks)
    prompts = [engine.encoder.prompt(ask.request) for ask in asks]
    (settings,) = {(prompt.stops, prompt.new_tokens) for prompt in prompts}
    drafts = engine.backends[0].generation.drafts[settings]
    wrong = [[70] * 5, [71, 72], [loaded.tokenizer.encode("8")[0], 73, 74]]
    for number, prompt in enumerate(prompts):
        drafts.answers[prompt.tokens] = wrong[number % 3]
    assert texts(engine, asks) == truth
    assert drafts.reached, "no draft was read"


def test_right_drafts_change_no_answer_either(loaded, masks, truth):
    engine, asks = BatchEngine(loaded), asks_for(PROMPTS, masks)
    assert texts(engine, asks) == texts(engine, asks) == truth


def test_a_row_by_itself_costs_what_it_reads_and_says(loaded, masks):
    for mask in masks[:2]:
        (ask,) = asks_for(PROMPTS[:1], mask[None])
        (answer,) = answers(BatchEngine(loaded), [ask]).values()
        prompt = len(loaded.tokenizer.encode(PROMPTS[0]))
        assert answer.plain_tokens == prompt + len(answer.response.said)
        # nothing is read after the last token said
        assert answer.forward_tokens == answer.plain_tokens - 1


def test_a_prefix_is_read_once_for_each_mask_from_where_the_mask_cuts(loaded):
    """One token is said, so that nothing is drafted and every pass can be counted by hand."""
    layers, cut, count = loaded.grid.layers, 3, ENOUGH
    columns = range(loaded.grid.layer_slices[cut].start, loaded.grid.layer_slices[cut].stop)
    masks = np.zeros((count, loaded.grid.size), dtype=bool)
    for mask, column in zip(masks, columns, strict=False):
        mask[column] = True
    found = answers(BatchEngine(loaded), asks_for(PROMPTS, masks, limit=1)).values()
    tokens = [loaded.tokenizer.encode(prompt) for prompt in PROMPTS]
    prefix = len(commonprefix([text[:-1] for text in tokens]))
    own = sum(map(len, tokens)) - prefix * len(tokens)
    intact = prefix + own + own  # its prefix, its answers for drafts, and its records
    above = (prefix + own) * (1 - cut / layers)
    assert sum(a.forward_tokens for a in found) == pytest.approx(intact + count * above)
    assert sum(a.plain_tokens for a in found) == count * (sum(map(len, tokens)) + len(tokens))


def test_masks_that_cut_at_the_bottom_share_nothing_but_their_own_prompts(loaded):
    """A prefix cache that forgot the mask would read the prefix once."""
    masks = np.zeros((3, loaded.grid.size), dtype=bool)
    masks[0, 0] = masks[1, 1] = masks[2, 2] = True
    found = answers(BatchEngine(loaded), asks_for(PROMPTS, masks, limit=1)).values()
    tokens = [loaded.tokenizer.encode(prompt) for prompt in PROMPTS]
    prefix = len(commonprefix([text[:-1] for text in tokens]))
    own = sum(map(len, tokens)) - prefix * len(tokens)
    assert sum(a.forward_tokens for a in found) == pytest.approx(prefix + 3 * (prefix + own))


def test_a_row_asked_twice_is_answered_twice_and_paid_once(loaded, masks):
    once = asks_for(PROMPTS[:2], masks[:2])
    again = [Ask((ask.key[0], 1), ask.request, ask.knocked_out) for ask in once]
    single, double = (answers(BatchEngine(loaded), a) for a in (once, [*once, *again]))
    for ask in once:
        first, second = double[ask.key[0], 0], double[ask.key[0], 1]
        assert first.response == second.response == single[ask.key].response
    assert sum(a.forward_tokens for a in double.values()) == pytest.approx(
        sum(a.forward_tokens for a in single.values())
    )


def test_running_rows_hold_the_first_slots_without_gaps(loaded, masks, monkeypatch):
    step, seen = Decoder.step, []

    def watched(decoder):
        assert None not in decoder.running
        assert len(decoder.running) <= decoder.plan.slots == 4
        seen.append(len(decoder.running))
        step(decoder)

    monkeypatch.setattr(Decoder, "step", watched)
    asks = asks_for(PROMPTS, masks)
    assert len(texts(BatchEngine(loaded, 4), asks)) == len(asks)
    assert 4 in seen and min(seen) < 4  # the last rows end one by one


@pytest.mark.parametrize("slots", [1, 3])
def test_running_rows_read_their_own_segments(loaded, masks, monkeypatch, slots):
    """Also where a new row takes the place in memory of one that has left, and thus its id."""
    monkeypatch.setattr("caploc.engine.decoding.id", lambda row: 0, raising=False)
    shared, steps = Decoder.shared, []

    def watched(decoder, rows):
        got = shared(decoder, rows)
        packed = decoder.packed
        anew = SharedSegments(packed.depth, packed.device, packed.model.dtype)
        for layer, own in zip(got, anew.readers([row.segment for row in rows]), strict=True):
            assert [(id(p.keys), p.rows) for p in layer.parts] == [
                (id(p.keys), p.rows) for p in own.parts
            ]
        steps.append(len(rows))
        return got

    monkeypatch.setattr(Decoder, "shared", watched)
    texts(BatchEngine(loaded, slots), asks_for(PROMPTS[:3], masks))
    assert steps


def test_a_mask_reads_its_prefix_once_and_keeps_it_no_longer_than_its_rows_run(
    loaded, masks, monkeypatch
):
    engine, kept, read, under = BatchEngine(loaded, 2), [], [], IntactRecords.under

    def watched(intact, number, cut):
        kept.append(len(intact.read))
        read.extend(mask.number for mask in cut)
        return under(intact, number, cut)

    monkeypatch.setattr(IntactRecords, "under", watched)
    texts(engine, asks_for(PROMPTS, masks))
    above = loaded.grid.layer_slices[-1].start
    # once each mask that cuts below the last layer, whose own keys no cut of it changes
    assert len(read) == len(set(read)) == masks[:, :above].any(axis=1).sum() > 2
    assert max(kept) <= 3  # two rows run, and one mask's may go on


def test_masks_whose_rows_are_opened_together_read_their_prefix_in_one_pass(
    loaded, masks, truth, monkeypatch
):
    together, under = [], IntactRecords.under

    def watched(intact, number, cut):
        together.append(len(cut))
        return under(intact, number, cut)

    monkeypatch.setattr(IntactRecords, "under", watched)
    assert texts(BatchEngine(loaded), asks_for(PROMPTS, masks)) == truth
    assert max(together) > 2


def test_answers_that_end_in_the_pass_that_opens_them_are_handed_on_before_the_next(
    loaded, masks, monkeypatch
):
    """Rows whose drafts hold never run a step, and a queue of them may last for minutes."""
    engine, asks, waiting = BatchEngine(loaded, 4), asks_for(PROMPTS, masks), []
    texts(engine, asks)  # most drafts will hold from now on
    open_rows, most = Decoder.open, []

    def watched(decoder, *given):
        most.append(len(decoder.done))
        open_rows(decoder, *given)
        waiting.append(len(decoder.done))

    monkeypatch.setattr(Decoder, "open", watched)
    monkeypatch.setattr("caploc.engine.decoding.SECONDS", 0.0)
    assert sum(map(len, engine.answer(asks))) == len(asks)
    assert any(waiting)  # rows did end in the pass that opened them
    assert not any(most)  # and none of them waited for another pass
