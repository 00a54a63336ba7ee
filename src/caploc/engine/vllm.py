"""vLLM as an engine: it has its own copy of the weights; each request brings its mask."""

import os
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from hashlib import blake2b
from typing import Any

import numpy as np
import torch

from caploc.components import Grid, Heads, Mask
from caploc.engine import missing_vllm
from caploc.engine.api import Answer, Ask
from caploc.engine.asks import MaskNumbers
from caploc.engine.encoding import RequestEncoder, group_prompts
from caploc.engine.planning import BatchSizer, model_devices
from caploc.engine.reading import SourceReader
from caploc.engine.scores import ContinuationScore, PendingScore
from caploc.engine.suitability import SAID_TOKENS, Continued, gives_plain_tokens
from caploc.models.loading import CutModel
from caploc.models.placement import free_memory
from caploc.process import MASKED_VLLM
from caploc.tasks.task import Generate

ZERO_ONLY = "knocks heads out to zero only"
VLLM_PAGE = 32  # tokens of a block of keys on a CPU, where vLLM takes no fewer
AT_ONCE = 512  # requests handed over together; answers come when all are done
# On a CPU: rows and tokens of a step, and tokens whose keys are kept, where the window has no more.
CPU_ROWS, CPU_TOKENS, CPU_KEYS = 64, 2048, 16384
VLLM_SHARE = 0.85  # of a GPU's free memory, for its weights and keys
NOT_KEPT = "skip_reading_prefix_cache"


class VllmBackend:
    """Answers with vLLM, which is started at the first ask, and caploc's plugin in it.

    `shares` says whether rows of one mask share blocks of keys, `salts` whether those of other
    masks are kept from them, as they must be.
    """

    name = "vllm"

    def __init__(
        self, loaded: CutModel, encoder: RequestEncoder, sizer: BatchSizer, sources: SourceReader
    ) -> None:
        self.loaded, self.encoder, self.sizer = loaded, encoder, sizer
        self.grid: Grid = loaded.grid
        self.shares = self.salts = True

    def refusal(self, ask: Ask) -> str | None:
        if ask.source is not None and ask.knocked_out.any():
            return ZERO_ONLY
        return self.trouble

    @cached_property
    def trouble(self) -> str | None:
        """Say why it does not serve this model, as the end of a sentence; None if it does."""
        if missing := missing_vllm():
            return missing
        if not isinstance(self.grid, Heads):
            return "knocks out attention heads only"
        if getattr(self.loaded.model, "is_quantized", False):
            return "does not quantize weights as caploc does"
        try:
            self.llm.get_tokenizer()
        # whatever it raises for a model it does not know, or a device it was not built for
        except Exception as error:
            said = " ".join(str(error).split())[:200]
            return f"does not start with this model ({type(error).__name__}: {said})"
        return gives_plain_tokens(self.loaded, self.continued, VLLM_PAGE)

    @cached_property
    def llm(self) -> Any:
        """Start vLLM, in this process unless several GPUs share the model."""
        os.environ[MASKED_VLLM] = "1"
        devices = model_devices(self.loaded.model)
        if len(devices) == 1:
            os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        from vllm import LLM

        sizes: dict[str, Any] = {"enforce_eager": True, "block_size": VLLM_PAGE}
        sizes |= {"max_num_seqs": CPU_ROWS, "max_num_batched_tokens": CPU_TOKENS}
        if self.loaded.device.type == "cuda":
            least = min(map(free_memory, devices))
            whole = torch.cuda.get_device_properties(self.loaded.device).total_memory
            share = VLLM_SHARE * least / whole
            sizes = {"max_num_seqs": self.sizer.most, "gpu_memory_utilization": share}
        else:
            keys = max(CPU_KEYS, self.encoder.harness.max_length + VLLM_PAGE)
            most = int(self.sizer.budget())
            sizes["kv_cache_memory_bytes"] = min(most, keys * self.sizer.token)
        return LLM(
            self.loaded.model.config._name_or_path,
            dtype=str(self.loaded.model.dtype).removeprefix("torch."),
            max_model_len=self.encoder.harness.max_length,
            enable_prefix_caching=True,
            tensor_parallel_size=len(devices),
            disable_log_stats=True,
            skip_tokenizer_init=False,
            **sizes,
        )

    def answer(self, asks: Iterable[Ask]) -> Iterator[list[Answer]]:
        asks = list(asks)
        texts = [ask for ask in asks if isinstance(ask.request, Generate)]
        for settings, members in group_prompts(self.encoder, texts).items():
            stops = self.encoder.stops(settings)
            params = {
                "max_tokens": stops.limit,
                "stop": stops.stops or None,
                "stop_token_ids": sorted(stops.ends),
                "ignore_eos": True,
                "include_stop_str_in_output": True,
                "skip_special_tokens": False,
            }
            members.sort(key=lambda member: (member[0].knocked_out.tobytes(), member[1].tokens))
            for first in range(0, len(members), AT_ONCE):
                part = members[first : first + AT_ONCE]
                found = self.ask([(prompt.tokens, ask.knocked_out) for ask, prompt in part], params)
                answers = []
                for (ask, prompt), out in zip(part, found, strict=True):
                    said = stops.trim(list(out.outputs[0].token_ids))
                    cost = float(len(prompt.tokens) + len(said) - (out.num_cached_tokens or 0))
                    answers.append(self.encoder.answer(ask, prompt, said, cost))
                yield answers
        others = [ask for ask in asks if not isinstance(ask.request, Generate)]
        for first in range(0, len(others), AT_ONCE):
            yield self.scored(others[first : first + AT_ONCE])

    def scored(self, asks: Sequence[Ask]) -> list[Answer]:
        """Answer asks for log-probabilities: those of a text's last tokens, as a prompt."""
        pending = [PendingScore(ask, self.encoder) for ask in asks]
        spans = [(one, span) for one in pending for span in one.spans]
        params = {"max_tokens": 1, "prompt_logprobs": 0, "detokenize": False}
        asked = [
            ((*span.inputs, span.continuation[-1]), one.ask.knocked_out) for one, span in spans
        ]
        found = self.ask(asked, params | {NOT_KEPT: False})
        # what is read from kept blocks has no log-probabilities: such endings are asked anew
        short = [
            place
            for place, ((_, span), out) in enumerate(zip(spans, found, strict=True))
            if (out.num_cached_tokens or 0) > len(span.inputs) - len(span.continuation)
        ]
        again = self.ask([asked[place] for place in short], params | {NOT_KEPT: True})
        for place, out in zip(short, again, strict=True):
            found[place] = out
        answers = [one.answer() for one in pending if not one.spans]
        for (one, span), out in zip(spans, found, strict=True):
            last = out.prompt_logprobs[-len(span.continuation) :]
            each = [at[token] for at, token in zip(last, span.continuation, strict=True)]
            likeliest = all(token.rank == 1 for token in each)
            score = ContinuationScore(sum(token.logprob for token in each), likeliest, ())
            answers += one.take(score, float(len(span.inputs) - (out.num_cached_tokens or 0)))
        return answers

    def continued(
        self, prompts: Sequence[tuple[int, ...]], masks: MaskNumbers, numbers: Sequence[int]
    ) -> list[Continued]:
        params = {"max_tokens": SAID_TOKENS, "logprobs": 0, "ignore_eos": True, "detokenize": False}
        cuts = (masks.all[number].heads.numpy() for number in numbers)
        said = []
        for out in self.ask(list(zip(prompts, cuts, strict=True)), params):
            (one,) = out.outputs
            each = [at[t].logprob for at, t in zip(one.logprobs, one.token_ids, strict=True)]
            said.append(Continued(list(one.token_ids), each))
        return said

    def ask(self, texts: Sequence[tuple[Sequence[int], Mask]], params: dict[str, Any]) -> list[Any]:
        """Have vLLM continue tokens, each under its mask, or score the last of them."""
        if not texts:
            return []
        from vllm import SamplingParams

        told = params if self.shares else params | {NOT_KEPT: True}
        given, how = [], []
        for tokens, mask in texts:
            cut = self.cut(mask)
            prompt: dict[str, Any] = {"prompt_token_ids": list(tokens)}
            if cut and self.salts:
                prompt["cache_salt"] = blake2b(repr(cut).encode(), digest_size=16).hexdigest()
            given.append(prompt)
            how.append(SamplingParams(temperature=0, extra_args={MASKED_VLLM: cut}, **told))
        return list(self.llm.generate(given, how, use_tqdm=False))

    def cut(self, mask: Mask) -> list[tuple[int, int]]:
        """List layer and number of each head that a mask cuts."""
        assert isinstance(self.grid, Heads)
        heads = [self.grid.components[column] for column in np.flatnonzero(mask)]
        return [(head.layer, head.index) for head in heads]
