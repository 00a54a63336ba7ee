"""The benchmark's models: SmolLM2, and Llamas with random weights.

SmolLM2 is fetched before (`caploc models fetch smollm2`).

A random model answers with random words, so the shapes below fix what speed depends on (lengths,
widths, number of heads) and nothing else. Its vocabulary is made-up words, one token each; a share
of them ends in a full stop, so that the stop string "." ends answers at very different lengths.
"""

from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from caploc.models.loading import LoadedModel, load_model
from caploc.models.projections import find_projections

BUILD = Path("build/bench")
SEED = 0
SPECIAL = ("<unk>", "<end>", "<pad>")
STOP = "."
STOPPING = 0.015  # of the words end in STOP: a chance for each token, so lengths are geometric
CONSONANTS, VOWELS = "bdfgklmnprstvz", "aeiou"
# Weights of this size, over the root of the hidden size, keep what layers add well above the
# embeddings: answers neither loop nor repeat the prompt, and depend on the whole context.
SPREAD = 1.36


@dataclass(frozen=True)
class Shape:
    """Sizes of a Llama architecture; `groups` is the number of key-value heads."""

    vocabulary: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    groups: int
    width: int  # values of one head
    tied: bool = False

    def config(self) -> LlamaConfig:
        """The transformers config."""
        return LlamaConfig(
            vocab_size=self.vocabulary,
            hidden_size=self.hidden,
            intermediate_size=self.intermediate,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.groups,
            head_dim=self.width,
            max_position_embeddings=2048,
            initializer_range=SPREAD / self.hidden**0.5,
            tie_word_embeddings=self.tied,
            bos_token_id=SPECIAL.index("<end>"),
            eos_token_id=SPECIAL.index("<end>"),
            pad_token_id=SPECIAL.index("<pad>"),
        )


# Heads of 64 values with two to a key-value head, as in Llamas of a billion parameters; a mask of
# 2 % then cuts one or two heads.
SAVED = {"25m": Shape(8192, 512, 1024, layers=8, heads=8, groups=4, width=64)}
ON_DEVICE = {
    "llama-3.2-1b": Shape(128256, 2048, 8192, layers=16, heads=32, groups=8, width=64, tied=True),
    "llama-3.1-8b": Shape(128256, 4096, 14336, layers=32, heads=32, groups=8, width=128),
}


def load(name: str) -> LoadedModel:
    """Load a fresh copy of the model: by name, from its folder, or built on the GPU.

    On a CPU it is in float32, so that contenders can be held to say the same.
    """
    if name in ON_DEVICE:
        return build_on_device(name)
    return load_model(str(saved(name)) if name in SAVED else name, device="cpu", dtype="float32")


def saved(name: str) -> Path:
    """The folder of a model with random weights, made on first use."""
    shape = SAVED[name]
    digest = blake2b(repr((shape, SPREAD, STOPPING)).encode(), digest_size=4).hexdigest()
    folder = BUILD / f"{name}-{digest}"
    if not folder.is_dir():
        unfinished = folder.with_suffix(".unfinished")
        tokenizer(shape.vocabulary).save_pretrained(unfinished)
        random_model(shape).save_pretrained(unfinished)
        unfinished.rename(folder)
    return folder


def random_model(shape: Shape) -> Any:
    """The same random weights for the same shape, in the default dtype on the default device."""
    torch.manual_seed(SEED)
    model: Any = LlamaForCausalLM(shape.config())
    model.eval().requires_grad_(False)
    with torch.no_grad():
        # Special tokens would end an answer unseen in its text: with a logit of 0 they never win.
        model.lm_head.weight[: len(SPECIAL)] = 0
    return model


def build_on_device(name: str) -> LoadedModel:
    """Random weights in bfloat16, straight in the GPU's memory."""
    device, before = torch.device("cuda:0"), torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with device:
            model = random_model(ON_DEVICE[name])
    finally:
        torch.set_default_dtype(before)
    return around(name, model)


def around(name: str, model: Any) -> LoadedModel:
    """A model with random weights as a loaded one, with made-up words."""
    projections, grid = find_projections(model)
    return LoadedModel(
        model=model,
        tokenizer=tokenizer(model.config.vocab_size),
        grid=grid,
        projections=projections,
        name=name,
        fingerprint=name,
        dtype=str(model.dtype).removeprefix("torch."),
        device=model.device,
    )


def tokenizer(vocabulary: int) -> PreTrainedTokenizerFast:
    """One word, one token; text and tokens turn into each other exactly."""
    entries = {word: number for number, word in enumerate((*SPECIAL, *words(vocabulary)))}
    fast = Tokenizer(models.WordLevel(entries, unk_token="<unk>"))
    fast.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    wrapped: Any = PreTrainedTokenizerFast
    whole: PreTrainedTokenizerFast = wrapped(
        tokenizer_object=fast,
        unk_token="<unk>",
        eos_token="<end>",
        pad_token="<pad>",
        clean_up_tokenization_spaces=False,  # it would join what a space must keep apart
    )
    return whole


def words(vocabulary: int) -> list[str]:
    """Made-up words of three syllables, all different, some of which end in STOP."""
    count = vocabulary - len(SPECIAL)
    random = np.random.default_rng(SEED)
    stopping = set(random.choice(count, size=round(STOPPING * count), replace=False).tolist())
    syllables = [consonant + vowel for consonant in CONSONANTS for vowel in VOWELS]
    base = len(syllables)
    return [
        syllables[number // base**2 % base] + syllables[number // base % base]
        + syllables[number % base] + (STOP if number in stopping else "")
        for number in range(count)
    ]  # fmt: skip


def kept_words(vocabulary: int) -> list[str]:
    """The words that end nothing: what prompts are made of."""
    return [word for word in words(vocabulary) if STOP not in word]
