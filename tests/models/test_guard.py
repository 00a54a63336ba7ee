"""A model loaded by name and one handed over in Python pass one guard, in the same sentences."""

import json
import shutil

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    LlamaForSequenceClassification,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)

import caploc
from caploc.engine.api import Ask
from caploc.engine.batch import BatchEngine
from caploc.engine.encoding import RequestEncoder
from caploc.errors import BadOption, ModelRefused, UserError
from caploc.given import digest_pair, proved
from caploc.models.knockout import knockout
from caploc.models.loading import load_model
from caploc.store.rows import as_kept
from caploc.tasks.task import Generate, LogLikelihood, options_json
from worlds.tiny import GROUPED, VOCABULARY, build, random_tokens, tiny

END = "w1"


def word_tokenizer(count=VOCABULARY, start=None, **special):
    """Words w0, w1, ...; each text begins with `start`, if there is one."""
    tokenizer = Tokenizer(WordLevel({f"w{n}": n for n in range(count)}, unk_token="w2"))
    tokenizer.pre_tokenizer = Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)
    if start is not None:
        number = fast.convert_tokens_to_ids(start)
        tokenizer.post_processor = TemplateProcessing(
            single=f"{start} $A", special_tokens=[(start, number)]
        )
        fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)
    return fast


def by_name(model, tokenizer, folder):
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return load_model(str(folder), device="cpu")


def by_hand(model, tokenizer, folder):
    return proved(model, tokenizer)


each_way = pytest.mark.parametrize("load", [by_name, by_hand])


def ending_with(token):
    return build("llama", GROUPED | {"eos_token_id": token})


@each_way
@pytest.mark.parametrize(
    ("model", "tokenizer", "words"),
    [
        (lambda: build("llama", GROUPED), word_tokenizer(VOCABULARY + 3, eos_token=END),
         "gives 'w63' the number 63, and the model's embeddings end at 60"),
        (lambda: build("llama", GROUPED), word_tokenizer(), "names no token that ends a text"),
        (lambda: build("llama", GROUPED), word_tokenizer(pad_token="w0"),
         "names no token that ends a text"),
    ],
)  # fmt: skip
def test_a_tokenizer_that_is_not_the_models_gets_the_same_sentence(
    load, model, tokenizer, words, tmp_path
):
    with pytest.raises(ModelRefused, match=words):
        load(model(), tokenizer, tmp_path)


@each_way
@pytest.mark.parametrize("special", [{}, {"pad_token": "<pad>"}])
def test_what_pads_is_a_token_that_the_model_has(load, special, tmp_path):
    given = word_tokenizer(eos_token=END, **special)
    loaded = load(build("llama", GROUPED), given, tmp_path)
    assert loaded.tokenizer.pad_token_id == loaded.tokenizer.eos_token_id == 1
    assert given.pad_token == special.get("pad_token")  # the caller's own stays as it was


@each_way
def test_a_tokenizer_without_an_end_takes_the_models(load, tmp_path):
    loaded = load(ending_with([7, 9]), word_tokenizer(), tmp_path)
    assert loaded.tokenizer.eos_token == "w7"


@pytest.mark.parametrize(("load", "engine"), [(by_name, "packed"), (by_hand, "plain")])
@pytest.mark.parametrize(
    "settings",
    [
        {"do_sample": True, "temperature": 5.0, "top_k": 40},
        {"repetition_penalty": 9.0},
        {"no_repeat_ngram_size": 1, "min_new_tokens": 4},
        {"forced_bos_token_id": 5, "forced_eos_token_id": 9},
        {"suppress_tokens": list(range(2, 50))},
        {"num_beams": 3, "length_penalty": 2.0},
        {"max_new_tokens": 1},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_settings_of_generation_in_the_checkpoint_change_no_answer(
    load, settings, engine, tmp_path
):
    def answers(number, **settings):
        model = build("llama", GROUPED)
        for name, value in settings.items():
            setattr(model.generation_config, name, value)
        model.save_pretrained = saving(model, settings)
        loaded = load(model, word_tokenizer(eos_token=END), tmp_path / str(number))
        masks = np.zeros((2, loaded.grid.size), dtype=bool)
        masks[1, 2] = True
        options = options_json({"until": [], "max_gen_toks": 5, "do_sample": False})
        asks = [
            Ask((m, n), Generate(" ".join(f"w{t}" for t in tokens), options), mask)
            for m, mask in enumerate(masks)
            for n, tokens in enumerate(random_tokens(3, 6).tolist())
        ]
        found = [a for batch in BatchEngine(loaded, backend=engine).answer(asks) for a in batch]
        return {answer.key: answer.response.text for answer in found}

    assert answers(0, **settings) == answers(1)


def saving(model, settings):
    """transformers refuses to save some settings together; a file from elsewhere may hold them."""

    def save(folder):
        own, model.generation_config = model.generation_config, type(model.generation_config)()
        type(model).save_pretrained(model, folder)
        model.generation_config = own
        (folder / "generation_config.json").write_text(json.dumps(settings))

    return save


@pytest.mark.parametrize("use", [lambda model: proved(model, word_tokenizer(eos_token=END)),
                                 lambda model: knockout(model, ["L0H0"]).__enter__()])  # fmt: skip
@pytest.mark.parametrize(
    "model",
    [
        lambda: AutoModel.from_config(build("llama", GROUPED).config),
        lambda: LlamaForSequenceClassification(build("llama", GROUPED).config),
        lambda: T5ForConditionalGeneration(
            T5Config(vocab_size=61, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4)
        ),
    ],
)
def test_a_model_that_continues_no_text_is_refused(model, use):
    with pytest.raises(ModelRefused, match="does not continue text; give a causal language model"):
        use(model())


def test_a_model_without_values_is_refused():
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(build("llama", GROUPED).config)
    with pytest.raises(BadOption, match="Some weights of LlamaForCausalLM are not in memory"):
        proved(model, word_tokenizer(eos_token=END))


def never_saved(folder):
    return build("llama", GROUPED)


def folder_gone(folder):
    build("llama", GROUPED).save_pretrained(folder / "model")
    model = AutoModelForCausalLM.from_pretrained(folder / "model")
    shutil.rmtree(folder / "model")
    return model


def named_like_a_hub_model(folder):
    model = build("llama", GROUPED)
    model.config._name_or_path = "nobody/has-this"
    return model


@pytest.mark.parametrize("make", [never_saved, folder_gone, named_like_a_hub_model])
def test_a_model_handed_over_needs_no_name_folder_or_hub(make, tmp_path):
    pairs = [(f"w{n} w5", "w7") for n in range(60)]
    asked = {"method": "css", "masks": 8, "rate": 0.2, "examples": 8, "controls": 0, "limit": 8}
    asked |= {"also": [], "quiet": True}
    found = caploc.locate(
        make(tmp_path), word_tokenizer(eos_token=END), pairs, **asked, out=tmp_path / "run"
    )
    assert found.result.intact.score is not None and (tmp_path / "run" / "report.html").exists()


def test_other_words_or_another_end_make_another_model():
    model = build("llama", GROUPED)
    first = digest_pair(model, word_tokenizer(eos_token=END))
    assert digest_pair(model, word_tokenizer(eos_token="w9")) != first
    assert digest_pair(model, word_tokenizer(60, eos_token=END)) != first
    padding = word_tokenizer(eos_token=END, pad_token="w0")
    second = digest_pair(model, padding)
    padding(["w3", "w3 w4"], padding=True)
    assert digest_pair(model, padding) == second
    model.generation_config.eos_token_id = 9
    assert digest_pair(model, word_tokenizer(eos_token=END)) != first


def test_a_prompt_with_a_token_that_the_model_lacks_does_not_fit():
    tokenizer = word_tokenizer(eos_token=END)
    tokenizer.add_tokens(["<new>"])
    encoder = RequestEncoder(build("llama", GROUPED), tokenizer)
    options = options_json({"until": [], "max_gen_toks": 5})
    for request in (Generate("w3 <new>", options), LogLikelihood("w3", "<new>")):
        assert encoder.misfit(request) == "token '<new>', which the model has no embedding of"
    assert encoder.misfit(LogLikelihood("w3", "w4")) is None


@pytest.mark.parametrize("score", [object()])
def test_a_score_that_is_no_number_gets_a_sentence(score):
    with pytest.raises(UserError, match="which is no number"):
        as_kept({"acc": score})


def test_what_no_mask_reaches_is_told_and_written_down(tmp_path, capsys):
    pairs = [(f"w{n} w5", "w7") for n in range(60)]
    asked = {
        "method": "css",
        "masks": 8,
        "rate": 0.5,
        "top": 2,
        "examples": 8,
        "controls": 0,
        "limit": 8,
    }
    model, tokenizer = tiny("lfm2, attention in one layer of three"), word_tokenizer(eos_token=END)
    found = caploc.locate(model, tokenizer, pairs, **asked, also=[], out=tmp_path / "run")
    named = "a part of Lfm2ForCausalLM beside the heads (there are none in layers 0, 2)"
    assert found.result.model.uncovered == [named]
    said = " ".join("".join(capsys.readouterr()).split())
    assert f"Not covered: {named} carries something" in said
