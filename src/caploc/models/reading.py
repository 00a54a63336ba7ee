"""Read a model's config, tokenizer and weights with transformers; say in a sentence what fails."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import transformers
from huggingface_hub.errors import GatedRepoError
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from caploc.errors import CaplocError, ModelRefused
from caploc.models.gguf import dequantized, mend_splitting
from caploc.models.sources import Source, gated


def empty_model(source: Source, trust_remote_code: bool) -> PreTrainedModel:
    """Build the model without values, from its configuration alone."""
    with one_sentence(source.name):
        config = AutoConfig.from_pretrained(
            source.place, trust_remote_code=trust_remote_code, **source.which
        )
        _refuse_other_models(source.name, config)
        # on the meta device a model has its modules and shapes, and no values
        with torch.device("meta"):
            empty: PreTrainedModel = AutoModelForCausalLM.from_config(
                config, trust_remote_code=trust_remote_code
            )
    return empty


def _refuse_other_models(name: str, config: PretrainedConfig) -> None:
    own_code = getattr(config, "auto_map", None) or {}
    if config.model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        return
    if "AutoModelForCausalLM" not in own_code:
        raise ModelRefused(
            f"{name} is a {config.model_type} model, which does not continue text; give a causal "
            "language model."
        )


def read_tokenizer(source: Source, trust_remote_code: bool) -> PreTrainedTokenizerBase:
    """Load the tokenizer; one without a padding token pads with its end-of-text token."""
    with one_sentence(f"The tokenizer of {source.name}"):
        tokenizer = AutoTokenizer.from_pretrained(
            source.place, trust_remote_code=trust_remote_code, **source.which
        )
    if source.gguf is not None:
        mend_splitting(tokenizer, source.header)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    # What tokenizers 0.23 remembers of words it never gives back, not even with the tokenizer;
    # whoever runs many studies in a process loads many. Texts that come again `Wording` remembers.
    model: Any = getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None)
    if hasattr(model, "_resize_cache"):
        model._resize_cache(0)
    return tokenizer


def refuse_other_words(
    name: str, tokenizer: PreTrainedTokenizerBase, empty: PreTrainedModel
) -> None:
    """Refuse a tokenizer that knows more words than the model.

    Tokens that were added to it may lie beyond the embeddings, as a padding token does in some
    models; the end-of-text token pads then.
    """
    table: Any = empty.get_input_embeddings()
    rows = table.weight.shape[0]
    added = set(tokenizer.get_added_vocab())
    beyond = [(n, w) for w, n in tokenizer.get_vocab().items() if n >= rows and w not in added]
    if beyond:
        number, word = max(beyond)
        raise ModelRefused(
            f"The tokenizer of {name} gives {word!r} the number {number}, and the model's "
            f"embeddings end at {rows - 1}; use the tokenizer that it was trained with."
        )
    if tokenizer.pad_token_id is not None and tokenizer.pad_token_id >= rows:
        tokenizer.pad_token = tokenizer.eos_token


def read_weights(source: Source, arguments: dict[str, Any]) -> PreTrainedModel:
    """Load the model with its weights; `arguments` go to `from_pretrained`.

    Raises:
        ModelRefused: if they cannot be read, or some are missing or of another shape.
    """
    with one_sentence(source.name):
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            source.place,
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # refused below, by name
            **source.which,
            **arguments,
        )
    model, report = loaded
    if source.gguf is not None:
        dequantized(model)
    for weight, there, here in sorted(report["mismatched_keys"]):
        raise ModelRefused(
            f"{source.name} holds {weight!r} in the shape {tuple(there)}, and its config.json says "
            f"{tuple(here)}; the two belong to different models."
        )
    absent = sorted(report["missing_keys"])
    if absent:  # transformers would fill them with random numbers and go on
        raise ModelRefused(
            f"{source.name} lacks {len(absent)} of its weights, {absent[0]!r} among them; the "
            "files are incomplete, or the config belongs to another model."
        )
    return model.eval().requires_grad_(False)


@contextmanager
def one_sentence(what: str) -> Iterator[None]:
    """Turn what the libraries raise for a model they cannot load into one sentence for the user."""
    try:
        yield
    except (CaplocError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # a config that makes no sense fails anywhere, in any way
        raise explained(what, error) from error


def explained(what: str, error: Exception) -> ModelRefused:
    """Build the error for `what`, which a library could not load."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, GatedRepoError):
            return gated(what)
        cause = cause.__cause__ or cause.__context__
    text = str(error)
    if "trust_remote_code" in text:
        return ModelRefused(
            f"{what} brings its own program code; if you trust it, pass trust_remote_code=True "
            "(--trust-remote-code), and it runs with your rights."
        )
    short = " ".join(text.split()).rstrip(".")[:200]
    if isinstance(error, json.JSONDecodeError) or "valid JSON" in text:
        return ModelRefused(f"{what} has a file that is not valid JSON ({short}); get it again.")
    if isinstance(error, SafetensorError):
        return ModelRefused(
            f"{what} has a weights file that is cut off or damaged ({short}); get it again."
        )
    return ModelRefused(
        f"{what} cannot be loaded with transformers {transformers.__version__} "
        f"({type(error).__name__}: {short}); compare its files with the original's."
    )
