"""How a model's `generate` is called: greedily, and by no other settings of the checkpoint."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers import GenerationConfig, PreTrainedModel

# What counts of a model's own generation config: which tokens end and pad a text, and the cache.
KEPT = ("bos_token_id", "eos_token_id", "pad_token_id", "cache_implementation")


def greedy_options(options: dict[str, Any]) -> dict[str, Any]:
    """Return generation arguments as `generate` takes them for greedy decoding."""
    unused = {"temperature", "top_p", "top_k", "do_sample"}
    return {k: v for k, v in options.items() if k not in unused} | {"do_sample": False}


def greedy_config(model: PreTrainedModel) -> GenerationConfig:
    """Build what `generate` decodes by: of the model's own settings only `KEPT` count.

    Others, a penalty of repetition or tokens that are forced, are for a taste in texts; an answer
    is what the model finds likeliest, by every engine alike, unless a task says otherwise.
    """
    own = model.generation_config
    return GenerationConfig(**{name: getattr(own, name, None) for name in KEPT})


@contextmanager
def generating(
    model: PreTrainedModel, options: dict[str, Any]
) -> Iterator[tuple[GenerationConfig, dict[str, Any]]]:
    """Take a model's own settings away for a block; yield those of a call, and what is none.

    `generate` would fill what a call leaves open with the model's own.
    """
    config, own = greedy_config(model), model.generation_config
    rest: Any = config.update(**greedy_options(options))
    model.generation_config = config
    try:
        yield config, rest
    finally:
        model.generation_config = own
