"""What a head does on one example, where the answer is written: something to look at, no claim."""

from contextlib import suppress
from typing import Any

import torch

from caploc.components import Component, Head
from caploc.engine.batch import BatchEngine
from caploc.errors import BadOption
from caploc.models.attention import pattern, promoted_words
from caploc.models.loading import LoadedModel
from caploc.result import AttendedToken, HeadAction
from caploc.tasks.task import Rolling, Task

SHOWN = 5  # tokens that are attended to, and words that are promoted


def describe_action(
    engine: Any, task: Task, example: int, component: Component
) -> HeadAction | None:
    """Say what a head attends to at the end of a prompt, and which words its output promotes there.

    None for anything but a head, where the model is not in this process, and where it hands no
    attention out or the prompt is long.
    """
    request = task.requests(example)[0]
    if not isinstance(component, Head) or isinstance(request, Rolling):
        return None
    if not isinstance(engine, BatchEngine) or not isinstance(engine.loaded, LoadedModel):
        return None
    tokens = engine.encoder.context(request)
    with suppress(BadOption, torch.OutOfMemoryError):
        return read_action(engine.loaded, tokens, component)
    return None


def read_action(loaded: LoadedModel, tokens: tuple[int, ...], head: Head) -> HeadAction:
    """Describe what a head does at the last of the tokens; raises BadOption where it is unknown."""

    def text(token: int) -> str:
        return str(loaded.tokenizer.decode([token]))

    shares = pattern(loaded, tokens, head)[-1]
    promoted, logits = promoted_words(loaded, tokens, head)
    most = shares.topk(min(SHOWN, len(tokens)))
    following = int(logits.argmax())
    return HeadAction(
        head=str(head),
        prompt=str(loaded.tokenizer.decode(list(tokens), skip_special_tokens=True)),
        attends=[
            AttendedToken(token=text(tokens[place]), place=place, share=share)
            for place, share in zip(most.indices.tolist(), most.values.tolist(), strict=True)
        ],
        promotes=[text(token) for token in promoted.topk(SHOWN).indices.tolist()],
        following=text(following),
        rank=int((promoted > promoted[following]).sum()) + 1,
        of=len(promoted),
    )
