"""Models that a program hands over itself, where commands name them."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from hashlib import blake2b
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from caploc.engine.batch import BatchEngine
from caploc.errors import BadOption
from caploc.models.guard import model_ends
from caploc.models.loading import LoadedModel, prove_model
from caploc.models.placement import weights_wait


@contextmanager
def answering(loaded: LoadedModel, engine: str) -> Iterator[BatchEngine[LoadedModel]]:
    """Answer with a model out of training, which it is put back into afterwards."""
    training = loaded.model.training
    loaded.model.train(False)
    try:
        with torch.no_grad():
            yield BatchEngine(loaded, backend=engine)
    finally:
        loaded.model.train(training)


def proved(model: Any, tokenizer: PreTrainedTokenizerBase | None) -> LoadedModel:
    """Check and prove a model, and say who it is by a digest of weights, config and tokenizer."""
    if getattr(getattr(model, "active_peft_config", None), "is_prompt_learning", False):
        raise BadOption(
            "This peft model puts a learned prompt before every text, which knocking out heads of "
            "the model inside would leave out; give an adapter that changes weights, such as LoRA."
        )
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    if not isinstance(inner, PreTrainedModel):
        raise BadOption(
            f"{type(model).__name__} is no model of transformers; give what from_pretrained "
            "returns. For a module of your own see docs/tutorials/own_model.py."
        )
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise BadOption(
            "A loaded model needs its tokenizer: caploc.locate(model, tokenizer, task), where task "
            "is a name or a list of (prompt, answer)."
        )
    if weights_wait(inner):
        raise BadOption(
            f"Some weights of {type(inner).__name__} are not in memory, so that it cannot be told "
            "which model it is; load them whole, or give the model's name with device='spread'."
        )
    tokenizer = deepcopy(tokenizer)  # what ends and pads a text is set in it
    name = inner.config._name_or_path or type(inner).__name__
    whose = partial(digest_pair, inner, tokenizer)
    return prove_model(name, inner, tokenizer, fingerprint=whose)


def digest_pair(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> str:
    """Return a digest of all that makes a model's answers: weights, words, where answers end."""
    digest = blake2b(digest_weights(model).encode(), digest_size=20)
    digest.update(json.dumps(model_ends(model)).encode())
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    written = {} if backend is None else json.loads(backend.to_str())
    for changing in ("padding", "truncation"):  # by whoever called it last
        written.pop(changing, None)
    words = written or sorted(tokenizer.get_vocab().items())
    signs = sorted((name, str(sign)) for name, sign in tokenizer.special_tokens_map.items())
    digest.update(json.dumps([words, signs]).encode())
    return digest.hexdigest()


def digest_weights(model: PreTrainedModel) -> str:
    """Return a digest of a model's config, its weights, and which adapters of peft are at work."""
    digest = blake2b(model.config.to_json_string().encode(), digest_size=20)
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        values = tensor.detach().contiguous().cpu().flatten()
        digest.update(values.view(torch.uint8).numpy().data)
    for name, module in model.named_modules():
        if hasattr(module, "merged_adapters"):
            merged, scaling = module.merged_adapters, getattr(module, "scaling", None)
            at_work = [] if module.disable_adapters else module.active_adapters
            digest.update(f"{name} {at_work} {merged} {scaling}".encode())
    return digest.hexdigest()
