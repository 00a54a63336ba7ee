"""lm-evaluation-harness with heads knocked out: the model `caploc`.

    python -m caploc.integrations.lm_eval --model caploc \\
        --model_args pretrained=smollm2,knockout=heads.json --tasks hellaswag

is lm-eval's own command with the model `caploc` in its registry. Where lm-eval reads entry points
of the group `lm_eval.models` (0.4.13 does not), plain `lm_eval --model caploc` is the same.
"""

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from lm_eval.__main__ import cli_evaluate
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.api.registry import model_registry

from caploc.components import read_heads
from caploc.engine.api import Ask
from caploc.engine.batch import BatchEngine
from caploc.errors import BadOption, UserError
from caploc.models.loading import load_model
from caploc.tasks.leaf import as_request, check_greedy
from caploc.tasks.task import Generated, Response

NAME = "caploc"
UNSAID = "cuda:0"  # the device that lm-eval's command hands on where none was named


class KnockedOut(LM):  # type: ignore[misc]  # lm-eval has no types
    """A Hugging Face decoder with heads knocked out, as lm-eval asks models.

    Requests are answered by caploc's engine: the tokens and log-probabilities of lm-eval's own
    `hf` model under the same knockout, greedy decoding only.
    """

    def __init__(
        self,
        pretrained: str | None = None,
        knockout: str | None = None,
        device: str | None = None,
        batch_size: Any = None,
        max_batch_size: int | None = None,
        **loading: Any,
    ) -> None:
        """Load the model that `pretrained` names and knock out the heads of the file `knockout`.

        Without a file nothing is knocked out. `device` and `loading` are as `caploc.load_model` has
        them, but that `cuda:0`, which lm-eval names where nothing was said, is taken only where
        there is one. Batches are sized by memory: lm-eval always hands on a `batch_size`, which
        changes nothing; `max_batch_size` caps them.

        Raises:
            CaplocError: in one sentence, if the model or the file cannot be used.
        """
        super().__init__()
        if not pretrained:
            raise BadOption(
                "No model was named; write --model_args pretrained=MODEL, a Hugging Face id, a "
                "folder or a name of `caploc models`."
            )
        where = "auto" if device in (None, UNSAID) else device
        file = read_heads(knockout) if knockout else None
        loaded = load_model(pretrained, device=where, **loading)
        if file:
            file.check(loaded.grid)
        self.engine = BatchEngine(loaded, max_batch_size)
        self.mask = loaded.grid.mask(file.heads if file else ())
        self._device = loaded.device

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        """Log-probability of each continuation, and whether greedy decoding would say it."""
        return self.answer("loglikelihood", requests)

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        return self.answer("loglikelihood_rolling", requests)

    def generate_until(self, requests: list[Instance]) -> list[str]:
        """Return what is said up to the first stop string; raises BadOption for sampling."""
        for request in requests:
            check_greedy(request.task_name or "", request)
        return self.answer("generate_until", requests)

    def answer(self, kind: str, requests: Sequence[Instance]) -> list[Any]:
        """Answer requests of one kind, in their order, in the form of lm-eval's models."""
        rows: dict[tuple[str | None, int | None], int] = {}
        asks = []
        for part, instance in enumerate(requests):
            # the choices of one question are one row, which reads their context once
            alone = instance.doc_id is None
            place = (None, part) if alone else (instance.task_name, instance.doc_id)
            row = rows.setdefault(place, len(rows))
            asks.append(Ask((row, part), as_request(instance), self.mask))
        answers: dict[int, Any] = {}
        for batch in self.engine.answer(asks):
            for done in batch:
                part = done.key[1]
                answers[part] = as_lm_eval(kind, done.response)
                # lm-eval keeps these where it was asked to, in case of an interruption
                self.cache_hook.add_partial(kind, requests[part].args, answers[part])
        return [answers[part] for part in range(len(requests))]

    @property
    def tokenizer_name(self) -> str:
        """Return the tokenizer's name, by which lm-eval tells caches of requests apart."""
        return str(self.engine.encoder.harness.tokenizer_name)

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """Return the tokenizer's template of that name, as lm-eval's `hf` model gives it."""
        template: str | None = self.engine.encoder.harness.chat_template(chat_template)
        return template

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        return str(
            self.engine.encoder.harness.apply_chat_template(chat_history, add_generation_prompt)
        )

    def get_model_info(self) -> dict[str, Any]:
        """Return what lm-eval writes beside its results."""
        loaded = self.engine.loaded
        return {
            "model_dtype": loaded.dtype,
            "model_fingerprint": loaded.fingerprint,
            "model_heads": loaded.grid.size,
            "knocked_out": [str(head) for head in loaded.grid.named(np.asarray(self.mask))],
        }


def as_lm_eval(kind: str, response: Response) -> Any:
    """Return a response in the form that lm-eval's models give it."""
    if isinstance(response, Generated):
        return response.text
    return (response.logprob, response.greedy) if kind == "loglikelihood" else response.logprob


def register() -> None:
    """Enter the model `caploc` into lm-eval's registry, if lm-eval has not found it by itself."""
    if NAME not in model_registry:
        model_registry.register(NAME, target=KnockedOut)


def main() -> None:
    """lm-eval's command with the model `caploc`; a mistake in its arguments is one sentence."""
    register()
    try:
        cli_evaluate()
    except UserError as error:
        sys.exit(f"Error: {error}")


if __name__ == "__main__":
    main()
