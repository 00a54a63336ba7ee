"""Other tools on the same rows, each the way its own guide shows and the way an expert would.

They answer generations alone: `make bench-peers` gives them an environment of their own. The cut is
the same everywhere: what a head hands to its output projection is multiplied by 0.
"""

from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import StoppingCriteria

import plain
from answering import Ask
from caploc.models.loading import LoadedModel
from caploc.tasks.task import Generate
from clock import Stopwatch
from contenders import LOOP_BATCH, Contender, Run, tokens_run
from measuring import say
from plain import Prompt, Responses

Load = Callable[[], LoadedModel]


class Peer:
    """A tool that generates batches of rows; subclasses say how."""

    tool = ""

    def __init__(self, loaded: LoadedModel, *, one_mask: bool, batch: int = LOOP_BATCH) -> None:
        """Answer with this model, one mask a call or rows of many, so many rows in a batch."""
        self.loaded, self.one_mask, self.batch = loaded, one_mask, batch
        self.name = f"{self.tool} {'loop' if one_mask else 'rows'}"

    def run(self, asks: Sequence[Ask]) -> Run:
        """Answer batch by batch."""
        watch = Stopwatch()
        tokenizer = self.loaded.tokenizer
        prompts = plain.prompts(tokenizer, asks)
        responses: Responses = {}
        for batch in plain.batches(prompts, self.batch, one_mask=self.one_mask):
            ids, attention = plain.left_padded(tokenizer, batch)
            with torch.inference_mode():
                output = self.generate(batch, ids, attention)
            responses |= plain.answers(tokenizer, batch, output[:, ids.shape[1] :])
        return Run(responses, watch.read(), tokens_run(prompts, [], responses))

    def generate(self, batch: Sequence[Prompt], ids: Tensor, attention: Tensor) -> Tensor:
        """Prompts and answers, of shape (rows, tokens)."""
        raise NotImplementedError

    def kept(self, batch: Sequence[Prompt]) -> list[Tensor]:
        """For each layer 1 where a head stays and 0 where it is cut, of shape (rows, 1, heads)."""
        masks = np.stack([row.mask for row in (batch[:1] if self.one_mask else batch)])
        whole = torch.from_numpy(~masks).to(self.loaded.model.dtype)[:, None]
        return [whole[..., columns] for columns in self.loaded.grid.layer_slices]

    def scales(self, batch: Sequence[Prompt]) -> list[Tensor]:
        """The same for every value that enters an output projection: (rows, 1, values)."""
        widths = [p.in_features for p in self.projections()]
        return [
            kept.repeat_interleave(width // kept.shape[-1], dim=-1)
            for kept, width in zip(self.kept(batch), widths, strict=True)
        ]

    def projections(self) -> list[Any]:
        """The output projections, in order of their layers."""
        return [projection for projection in self.loaded.projections if projection is not None]


class StopTokens(StoppingCriteria):
    """A row is done with the first end token, for a `generate` that takes only one of them."""

    def __init__(self, ends: Sequence[int]) -> None:
        """These tokens end an answer."""
        self.ends = torch.tensor(ends)

    def __call__(self, input_ids: Tensor, scores: Tensor | None, **_: Any) -> Tensor:
        """Which rows have just ended."""
        return torch.isin(input_ids[:, -1], self.ends)


class TransformerLens(Peer):
    """Forward hooks on `blocks.{layer}.attn.hook_z` of a bridge around the same weights."""

    tool = "TransformerLens"

    def __init__(self, loaded: LoadedModel, *, one_mask: bool, batch: int = LOOP_BATCH) -> None:
        """Wrap the model, whose attention must be eager for its hooks to see anything."""
        super().__init__(loaded, one_mask=one_mask, batch=batch)
        bridge: Any = import_module("transformer_lens.model_bridge").TransformerBridge
        loaded.model.set_attn_implementation("eager")
        self.bridge = bridge.boot_transformers(
            loaded.name, hf_model=loaded.model, tokenizer=loaded.tokenizer, device="cpu"
        )
        self.bridge.eval()

    def generate(self, batch: Sequence[Prompt], ids: Tensor, attention: Tensor) -> Tensor:
        """Its own greedy loop."""
        hooks = [
            (f"blocks.{layer}.attn.hook_z", lambda z, hook, kept=kept: z * kept[..., None])
            for layer, kept in enumerate(self.kept(batch))
        ]
        arguments = plain.arguments(self.loaded.tokenizer, batch[0].settings, ids.shape[1])
        with self.bridge.hooks(fwd_hooks=hooks):
            output: Tensor = self.bridge.generate(
                ids,
                attention_mask=attention,
                max_new_tokens=arguments["max_new_tokens"],
                stopping_criteria=[StopTokens(arguments["eos_token_id"])],
                stop_at_eos=False,
                do_sample=False,
                return_type="tokens",
                verbose=False,
            )
        return output


class NNsight(Peer):
    """Tracing: the input of every output projection is reassigned at every step."""

    tool = "nnsight"

    def __init__(self, loaded: LoadedModel, *, one_mask: bool, batch: int = LOOP_BATCH) -> None:
        """Wrap the model; its rows are one invocation for each mask of a batch."""
        super().__init__(loaded, one_mask=one_mask, batch=batch)
        wrapped: Any = import_module("nnsight").LanguageModel
        self.wrapped = wrapped(loaded.model, tokenizer=loaded.tokenizer)
        self.name = "nnsight loop" if one_mask else "nnsight invokes"

    def generate(self, batch: Sequence[Prompt], ids: Tensor, attention: Tensor) -> Tensor:
        """One trace; the result is read by an invocation of its own, after the others."""
        arguments = plain.arguments(self.loaded.tokenizer, batch[0].settings, ids.shape[1])
        layers, parts = self.wrapped.model.layers, list(self.parts(batch, ids, attention))
        with self.wrapped.generate(**arguments) as tracer:
            for inputs, scales in parts:
                with tracer.invoke(inputs):
                    for _ in tracer.iter[:]:
                        for layer, scale in enumerate(scales):
                            projection = layers[layer].self_attn.o_proj
                            projection.input = projection.input * scale
            with tracer.invoke():
                output: Tensor = tracer.result.save()
        return output

    def parts(
        self, batch: Sequence[Prompt], ids: Tensor, attention: Tensor
    ) -> Iterator[tuple[dict[str, Tensor], list[Tensor]]]:
        """The rows of each mask, in the batch's order, with their masks' scales."""
        scales, start = self.scales(batch), 0
        while start < len(batch):
            end = start + 1
            while end < len(batch) and (batch[end].mask == batch[start].mask).all():
                end += 1
            row = 0 if self.one_mask else start
            rows = slice(start, end)
            inputs = {"input_ids": ids[rows], "attention_mask": attention[rows]}
            yield inputs, [scale[row : row + 1] for scale in scales]
            start = end


class Pyvene(Peer):
    """An intervention on the input of every output projection, in an object made for each mask."""

    tool = "pyvene"

    def generate(self, batch: Sequence[Prompt], ids: Tensor, attention: Tensor) -> Tensor:
        """Its `generate`, which intervenes on the prompt and on every step."""
        pyvene: Any = import_module("pyvene")
        representations = [
            {
                "component": f"model.layers[{layer}].self_attn.o_proj.input",
                "intervention": lambda base, source, scale=scale, **_: base * scale,
            }
            for layer, scale in enumerate(self.scales(batch))
        ]
        model = pyvene.IntervenableModel(representations, self.loaded.model)
        arguments = plain.arguments(self.loaded.tokenizer, batch[0].settings, ids.shape[1])
        output: Tensor = model.generate(
            {"input_ids": ids, "attention_mask": attention},
            unit_locations=None,
            intervene_on_prompt=True,
            **arguments,
        )[1]
        return output


PEERS = {"transformer_lens": TransformerLens, "nnsight": NNsight, "pyvene": Pyvene}


def present(load: Load) -> list[Contender]:
    """The peers that can be imported, each with its own copy of the model; a line for the rest."""
    made: list[Contender] = []
    for module, kind in PEERS.items():
        try:
            import_module(module)
        except ImportError as error:
            say(f"{kind.tool}: skipped, it cannot be imported here ({error}); try make bench-peers")
            continue
        loaded = load()
        made.append(kind(loaded, one_mask=True))
        if kind is not Pyvene:  # its interventions are functions of a mask, one for all rows
            made.append(kind(loaded, one_mask=False))
    return made


def fits(contender: Contender, asks: Sequence[Ask]) -> bool:
    """Whether a contender can answer these; peers generate only."""
    if not isinstance(contender, Peer) or all(isinstance(ask.request, Generate) for ask in asks):
        return True
    say(f"  {contender.name}: skipped, it is set up here for generations only")
    return False
