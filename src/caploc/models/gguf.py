"""GGUF files, which transformers reads: what it needs for that, and what is mended after."""

import importlib.util
from pathlib import Path
from typing import Any

from tokenizers.decoders import ByteLevel
from tokenizers.pre_tokenizers import Digits
from tokenizers.pre_tokenizers import Sequence as Steps
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from caploc.errors import BadOption

SPLITTING, VOCABULARY = "tokenizer.ggml.pre", "tokenizer.ggml.model"
# Vocabularies in which digits stand alone, by GGUF's name for how text is split. transformers
# splits these as GPT-2 does, so that blanks before a number become other tokens than in training.
DIGITS_APART = ("smollm", "starcoder", "refact", "command-r")


def check_package(name: str) -> None:
    """Refuse GGUF where the package that reads it is missing."""
    if importlib.util.find_spec("gguf") is None:
        raise BadOption(
            f"{name} is read with the package gguf, which is not installed; pip install "
            "'caploc[gguf]'."
        )


def unmark_quantized(model: PreTrainedModel) -> None:
    """Make a model that was read from GGUF one like any other: its weights are plain numbers."""
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    parts: Any = model
    parts.hf_quantizer, parts.is_quantized, parts.quantization_method = None, False, None


def mend_tokenizer(tokenizer: PreTrainedTokenizerBase, file: Path) -> None:
    """Split digits from the text before them where the file's vocabulary was learned so.

    One of bytes is read back as such: transformers 5.17 takes a blank away before the first word.
    """
    from gguf import GGUFReader

    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return
    fields = GGUFReader(file).fields
    vocabulary, splitting = (
        fields[key].contents() if key in fields else None for key in (VOCABULARY, SPLITTING)
    )
    if vocabulary == "gpt2":
        backend.decoder = ByteLevel()
    if splitting in DIGITS_APART:
        backend.pre_tokenizer = Steps([Digits(individual_digits=True), backend.pre_tokenizer])
