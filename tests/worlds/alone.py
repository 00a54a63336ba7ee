"""A second implementation, one row at a time; and tiny models with a tokenizer around them."""

import copy

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.pytorch_utils import Conv1D

from caploc.models.cutting import knocked_out
from caploc.models.loading import LoadedModel
from caploc.models.projections import find_projections, module_name

WORDS = 61
PAD, START = 0, 1  # also ends a text, as lm-eval reads a text from its end token on


def words(tokens):
    """Token ids as text; each word is one token."""
    return " ".join(f"w{token:02}" for token in tokens)


def word_tokenizer(**special):
    """A tokenizer of 61 words; special tokens may be others than those of `PAD` and `START`."""
    vocabulary = {words([number]): number for number in range(WORDS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=words([2])))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"pad_token": words([PAD]), "eos_token": words([START])} | special
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


def save(folder, model, **special):
    """Save a model and such a tokenizer into a folder; return it."""
    model.save_pretrained(folder)
    word_tokenizer(**special).save_pretrained(folder)
    return folder


def zeroed_copy(model, mask):
    """A copy of a model whose projections read nothing of the mask's heads."""
    made, (projections, grid) = copy.deepcopy(model), find_projections(model)
    for columns, projection in zip(grid.layer_slices, projections, strict=True):
        if projection is not None:
            module = made.get_submodule(module_name(model, projection))
            weight = module.weight if isinstance(module, Conv1D) else module.weight.T
            width = weight.shape[0] // (columns.stop - columns.start)
            for head in np.flatnonzero(mask[columns]):
                weight.data[head * width : (head + 1) * width] = 0
    return made


def around(model, tokenizer=None):
    """The model as the engine takes it."""
    projections, grid = find_projections(model)
    return LoadedModel(
        model=model,
        tokenizer=tokenizer or word_tokenizer(),
        grid=grid,
        projections=projections,
        name="tiny",
        fingerprint="tiny",
        dtype=str(model.dtype).removeprefix("torch."),
        device=model.device,
    )


def answers(engine, asks):
    """Answers by key; every ask is answered once."""
    found = [answer for batch in engine.answer(asks) for answer in batch]
    assert sorted(answer.key for answer in found) == sorted(ask.key for ask in asks)
    return {answer.key: answer for answer in found}


def responses(engine, asks):
    """Responses by key."""
    return {key: answer.response for key, answer in answers(engine, asks).items()}


def under(loaded, mask):
    """The model without the heads of one mask."""
    return knocked_out(loaded.projections, loaded.grid, torch.from_numpy(mask)[None])


@torch.inference_mode()
def said(loaded, tokens, mask, limit, **options):
    """The tokens of plain greedy decoding, without a stop string."""
    ids = torch.tensor([list(tokens)])
    with under(loaded, mask):
        output = loaded.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=limit,
            do_sample=False,
            pad_token_id=loaded.tokenizer.pad_token_id,
            forced_eos_token_id=None,  # a checkpoint's settings change no answer
            **options,
        )
    return output[0, len(tokens) :].tolist()


@torch.inference_mode()
def scored(loaded, context, continuation, mask):
    """Summed log-probability of tokens after others, and whether each was the likeliest."""
    # the last token is scored and not read: nothing is predicted from it
    ids = torch.tensor([[*context, *continuation[:-1]]])
    with under(loaded, mask):
        logits = loaded.model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0]
    read = logits[len(context) - 1 :].double().log_softmax(-1)
    wanted = torch.tensor(list(continuation))
    likeliest = bool((read.argmax(-1) == wanted).all())
    return float(read[torch.arange(len(wanted)), wanted].sum()), likeliest
