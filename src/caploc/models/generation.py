"""How a model's `generate` is called: greedily, and by no other settings of the checkpoint."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers import GenerationConfig, PreTrainedModel

# What counts of a model's own generation config: which tokens end and pad a text, and the cache.
KEPT = ("bos_token_id", "eos_token_id", "pad_token_id", "cache_implementation")


@contextmanager
def generating(model: PreTrainedModel, **options: Any) -> Iterator[GenerationConfig]:
    """Take a model's own settings away for a block; yield what `generate` decodes by.

    Of the model's own settings only `KEPT` count: `generate` would fill what a call leaves open
    with others. A penalty of repetition or tokens that are forced are for a taste in texts; an
    answer is what the model finds likeliest, by every engine alike.
    """
    own = model.generation_config
    kept = {name: getattr(own, name, None) for name in KEPT}
    model.generation_config = GenerationConfig(**kept | options, do_sample=False)
    try:
        yield model.generation_config
    finally:
        model.generation_config = own
