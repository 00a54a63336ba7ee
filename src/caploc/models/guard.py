"""What a model and its tokenizer must be to be asked at all, whoever loaded them.

A model loaded by name and one handed over in Python pass the same guard, and are refused in the
same sentences.
"""

from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from caploc.errors import ModelRefused


def not_causal(name: str, kind: str) -> ModelRefused:
    """Build the error for a model of which no text can be asked."""
    return ModelRefused(
        f"{name} is a {kind} model, which does not continue text; give a causal language model "
        "(AutoModelForCausalLM loads one with its head)."
    )


def check_head(name: str, model: PreTrainedModel) -> None:
    """Refuse a model without a language-model head, and one that reads two texts."""
    reads_two = getattr(model.config, "is_encoder_decoder", False)
    if reads_two or model.get_output_embeddings() is None or not model.can_generate():
        raise not_causal(name, type(model).__name__)


def check_pair(name: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Refuse a model that does not continue text, and a tokenizer that is not the model's.

    The tokenizer is made ready: it pads with its end-of-text token if it has no padding token, or
    one beyond the model's embeddings. A tokenizer that names no end-of-text token takes the
    model's. The model may be without values, on the meta device.
    """
    check_head(name, model)
    table: Any = model.get_input_embeddings()
    rows, added = table.weight.shape[0], tokenizer.get_added_vocab()
    # tokens that were added may lie beyond the embeddings, as long as no text has them
    known = {word: number for word, number in tokenizer.get_vocab().items() if word not in added}
    word = max(known, key=known.__getitem__, default=None)
    if word is not None and known[word] >= rows:
        raise ModelRefused(
            f"The tokenizer of {name} gives {word!r} the number {known[word]}, and the model's "
            f"embeddings end at {rows - 1}; use the tokenizer that it was trained with."
        )
    if tokenizer.eos_token_id is None and (ends := model_ends(model)):
        tokenizer.eos_token = str(tokenizer.convert_ids_to_tokens(ends[0]))
    if tokenizer.eos_token_id is None:
        raise ModelRefused(
            f"The tokenizer of {name} names no token that ends a text, where answers stop; name "
            "the one that the model was trained with (tokenizer.eos_token = '...', or eos_token in "
            "tokenizer_config.json)."
        )
    if tokenizer.pad_token_id is None or tokenizer.pad_token_id >= rows:
        tokenizer.pad_token = tokenizer.eos_token


def model_ends(model: PreTrainedModel) -> list[int]:
    """List the tokens at which the model says that its answers end."""
    ends: Any = getattr(model.generation_config, "eos_token_id", None)
    return [] if ends is None else list(ends) if isinstance(ends, list | tuple) else [int(ends)]
