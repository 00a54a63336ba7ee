"""Kinds of faults that were reported in public, tried on caploc and on its peers.

    make bench-conformance

Every tool gets the same tiny random models and the same words through its own public interface: cut
these heads of this row, then tell the log-probability of a word after a prompt, or write on. The
truth is plain transformers, one prompt at a time, on a copy of the model in which the columns that
read the heads are zero. What a tool cannot be asked is *not applicable*; an error is shown.
"""

import copy
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerFast
from transformers.pytorch_utils import Conv1D

TESTS = Path(__file__).parents[1] / "tests"
sys.path.insert(-1, str(TESTS))

from tokenizers.processors import TemplateProcessing  # noqa: E402

import figures  # noqa: E402
from caploc.engine.api import Ask  # noqa: E402
from caploc.engine.batch import BatchEngine  # noqa: E402
from caploc.engine.encoding import RequestEncoder  # noqa: E402
from caploc.errors import ModelRefused  # noqa: E402
from caploc.given import proved  # noqa: E402
from caploc.models.projections import find_projections, module_name  # noqa: E402
from caploc.tasks.task import Generate, LogLikelihood, options_json  # noqa: E402
from worlds.alone import word_tokenizer, words, zeroed_copy  # noqa: E402
from worlds.tiny import FAMILIES, GROUPED, OLD, build, random_tokens, tiny  # noqa: E402

FIGURES = Path(__file__).with_suffix(".json")
WORD = 5  # whose log-probability is told
NEAR = 1e-3
START = 3
Prompts = list[list[int]]
Masks = np.ndarray  # prompts x heads


class NotApplicable(Exception):
    """The tool's interface has no word for it."""


def sites(model: Any) -> list[tuple[int, slice, str]]:
    """Every layer with heads: its number, its columns in a mask, and what reads them."""
    projections, grid = find_projections(model)
    return [
        (layer, columns, module_name(model, each))
        for layer, (columns, each) in enumerate(zip(grid.layer_slices, projections, strict=True))
        if each is not None
    ]


class Caploc:
    """Rows of its engine."""

    name = "caploc"

    def __init__(self, model: Any, tokenizer: Any) -> None:
        """Open a model."""
        self.loaded = proved(model, tokenizer)
        self.engine = BatchEngine(self.loaded)

    def ask(self, requests: Sequence[Any], masks: Masks) -> list[Any]:
        """The responses, in the order of the requests."""
        asks = [Ask((n, 0), r, m) for n, (r, m) in enumerate(zip(requests, masks, strict=True))]
        got = {each.key[0]: each.response for part in self.engine.answer(asks) for each in part}
        return [got[n] for n in range(len(requests))]

    def odds(self, prompts: Prompts, masks: Masks) -> list[float]:
        """Log-probabilities of the word after each prompt, each under its mask, in one batch."""
        asked = [LogLikelihood(words(p), " " + words([WORD])) for p in prompts]
        return [each.logprob for each in self.ask(asked, masks)]

    def write(self, prompts: Prompts, masks: Masks, new: int) -> list[list[int]]:
        """Tokens written after each prompt, in one batch."""
        options = options_json({"until": [], "max_gen_toks": new, "do_sample": False})
        said = self.ask([Generate(words(p), options) for p in prompts], masks)
        return [[int(word[1:]) for word in each.text.split()] for each in said]

    def begins(self, text: str) -> list[int]:
        """The tokens that it reads of a text."""
        encoder = RequestEncoder(self.loaded.model, self.loaded.tokenizer)
        return [*encoder.prompt(Generate(text, options_json({"max_gen_toks": 2}))).tokens]


class Peer:
    """A tool around the same model; `caploc` says where heads are."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        """Open a model."""
        self.model, self.tokenizer = model, tokenizer
        self.sites = sites(model)

    def kept(self, columns: slice, masks: Masks) -> torch.Tensor:
        """1 where a head stays, 0 where it is cut: prompts x 1 x heads of the layer."""
        return torch.from_numpy(~masks[:, columns]).to(self.model.dtype)[:, None]

    def scale(self, name: str, columns: slice, masks: Masks) -> torch.Tensor:
        """The same for each value that the projection reads."""
        module = self.model.get_submodule(name)
        width = module.nx if isinstance(module, Conv1D) else module.in_features
        kept = self.kept(columns, masks)
        return kept.repeat_interleave(width // kept.shape[-1], dim=-1)

    def padded(self, prompts: Prompts) -> tuple[torch.Tensor, torch.Tensor]:
        """Prompts padded on the left, as `generate` wants them."""
        longest = max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(p)) + p for p in prompts])
        attention = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
        return ids, attention


def told(logits: torch.Tensor) -> list[float]:
    """Log-probabilities of the word from logits at the last position."""
    return logits.double().log_softmax(-1)[:, WORD].tolist()


class TransformerLens(Peer):
    """Hooks on `hook_z` of a bridge; texts go in as words and are padded by it."""

    name = "TransformerLens"

    def __init__(self, model: Any, tokenizer: Any) -> None:
        """Open a model."""
        super().__init__(model, tokenizer)
        bridge: Any = import_module("transformer_lens.model_bridge").TransformerBridge
        model.set_attn_implementation("eager")
        model.config.architectures = [type(model).__name__]  # as saved models have it
        self.bridge = bridge.boot_transformers(
            model.config.architectures[0], hf_model=model, tokenizer=tokenizer, device="cpu"
        )
        self.bridge.eval()

    def hooks(self, masks: Masks) -> list[Any]:
        """One for each layer."""
        return [
            (f"blocks.{layer}.attn.hook_z", partial(cut, kept=self.kept(columns, masks)))
            for layer, columns, _ in self.sites
        ]

    def odds(self, prompts: Prompts, masks: Masks) -> list[float]:
        """See `Caploc`."""
        texts = [words(p) for p in prompts]
        with self.bridge.hooks(fwd_hooks=self.hooks(masks)):
            logits = self.bridge(texts, padding_side="left", prepend_bos=False)
        return told(logits[:, -1])

    def write(self, prompts: Prompts, masks: Masks, new: int) -> list[list[int]]:
        """See `Caploc`."""
        with self.bridge.hooks(fwd_hooks=self.hooks(masks)):
            said = self.bridge.generate(
                [words(p) for p in prompts],
                max_new_tokens=new,
                do_sample=False,
                stop_at_eos=False,
                prepend_bos=False,
                padding_side="left",
                return_type="tokens",
                verbose=False,
            )
        return said[:, -new:].tolist()

    def begins(self, text: str) -> list[int]:
        """See `Caploc`."""
        return self.bridge.to_tokens(text)[0].tolist()


def cut(z: torch.Tensor, hook: Any, *, kept: torch.Tensor) -> torch.Tensor:
    """What heads hand on, split into heads or not, with the cut ones at 0."""
    if z.ndim == 4:
        return z * kept[..., None]
    return z * kept.repeat_interleave(z.shape[-1] // kept.shape[-1], dim=-1)


class NNsight(Peer):
    """One invocation a prompt; the input of every projection is set anew."""

    name = "nnsight"

    def __init__(self, model: Any, tokenizer: Any) -> None:
        """Open a model."""
        super().__init__(model, tokenizer)
        self.wrapped = import_module("nnsight").LanguageModel(model, tokenizer=tokenizer)

    def projection(self, name: str) -> Any:
        """The tool's own view of a module."""
        found = self.wrapped
        for part in name.split("."):
            found = found[int(part)] if part.isdigit() else getattr(found, part)
        return found

    def odds(self, prompts: Prompts, masks: Masks) -> list[float]:
        """See `Caploc`."""
        texts, kept = [words(p) for p in prompts], []
        scales = [
            (self.projection(name), self.scale(name, columns, masks))
            for _, columns, name in self.sites
        ]
        with self.wrapped.trace() as tracer:
            for row, text in enumerate(texts):
                with tracer.invoke(text):
                    for module, scale in scales:
                        module.input = module.input * scale[row : row + 1]
                    kept.append(self.wrapped.output.logits[:, -1].save())
        return told(torch.cat(kept))

    def write(self, prompts: Prompts, masks: Masks, new: int) -> list[list[int]]:
        """See `Caploc`."""
        texts = [words(p) for p in prompts]
        scales = [
            (self.projection(name), self.scale(name, columns, masks))
            for _, columns, name in self.sites
        ]
        with self.wrapped.generate(
            max_new_tokens=new, min_new_tokens=new, do_sample=False
        ) as tracer:
            for row, text in enumerate(texts):
                with tracer.invoke(text):
                    for _ in tracer.iter[:]:
                        for module, scale in scales:
                            module.input = module.input * scale[row : row + 1]
            with tracer.invoke():
                output = tracer.result.save()
        return output[:, -new:].tolist()

    def begins(self, text: str) -> list[int]:
        """See `Caploc`."""
        with self.wrapped.trace(text):
            ids = self.wrapped.inputs[1]["input_ids"].save()
        return ids[0].tolist()


class Pyvene(Peer):
    """A function on the input of every projection, for a batch that the caller has padded."""

    name = "pyvene"

    def opened(self, masks: Masks) -> Any:
        """The model with its interventions."""
        pyvene: Any = import_module("pyvene")
        parts = [
            {
                "component": f"{indexed(name)}.input",
                "intervention": scaling(self.scale(name, columns, masks)),
            }
            for _, columns, name in self.sites
        ]
        return pyvene.IntervenableModel(parts, self.model)

    def odds(self, prompts: Prompts, masks: Masks) -> list[float]:
        """See `Caploc`."""
        # padded behind, where nothing looks; before, the caller would have to number positions
        longest = max(map(len, prompts))
        ids = torch.tensor([p + [0] * (longest - len(p)) for p in prompts])
        attention = torch.tensor([[1] * len(p) + [0] * (longest - len(p)) for p in prompts])
        read = self.opened(masks)({"input_ids": ids, "attention_mask": attention})[1]
        return told(read.logits[range(len(prompts)), [len(p) - 1 for p in prompts]])

    def write(self, prompts: Prompts, masks: Masks, new: int) -> list[list[int]]:
        """See `Caploc`."""
        ids, attention = self.padded(prompts)
        said = self.opened(masks).generate(
            {"input_ids": ids, "attention_mask": attention},
            unit_locations=None,
            intervene_on_prompt=True,
            max_new_tokens=new,
            min_new_tokens=new,
            do_sample=False,
        )[1]
        return said[:, -new:].tolist()

    def begins(self, text: str) -> list[int]:
        """See `Caploc`."""
        raise NotApplicable


def scaling(scale: torch.Tensor) -> Callable[..., torch.Tensor]:
    """A function for pyvene of what stands at the input of a projection; it takes no partial."""

    def scaled(base: torch.Tensor, source: Any, **_: Any) -> torch.Tensor:
        return base * scale

    return scaled


def indexed(name: str) -> str:
    """`layers.0.attn` as `layers[0].attn`."""
    parts: list[str] = []
    for part in name.split("."):
        if part.isdigit():
            parts[-1] += f"[{part}]"
        else:
            parts.append(part)
    return ".".join(parts)


TOOLS = (Caploc, TransformerLens, NNsight, Pyvene)


def truth(model: Any, prompts: Prompts, masks: Masks) -> list[float]:
    """Plain transformers, a prompt at a time."""
    return [
        told(zeroed_copy(model, mask)(torch.tensor([prompt])).logits[:, -1])[0]
        for prompt, mask in zip(prompts, masks, strict=True)
    ]


def written(model: Any, prompts: Prompts, masks: Masks, new: int) -> list[list[int]]:
    """The likeliest tokens, read anew for each, without a cache."""
    found = []
    for prompt, mask in zip(prompts, masks, strict=True):
        plain, tokens = zeroed_copy(model, mask), list(prompt)
        for _ in range(new):
            tokens.append(
                int(plain(torch.tensor([tokens]), use_cache=False).logits[0, -1].argmax())
            )
        found.append(tokens[len(prompt) :])
    return found


def drawn(count: int, longest: int, *, alike: bool = False) -> Prompts:
    """Prompts of unlike lengths, or all of the longest."""
    lengths = [longest if alike else 2 + n * (longest - 2) // max(count - 1, 1)
               for n in range(count)]  # fmt: skip
    return [t[:n] for t, n in zip(random_tokens(count, longest).tolist(), lengths, strict=True)]


def opened(tool: Any, model: Any) -> Any:
    """The tool around a copy of the model, which some take apart."""
    return tool(copy.deepcopy(model), word_tokenizer())


def odds_hold(tool: Any, model: Any, prompts: Prompts, masks: Masks) -> bool:
    """Whether a tool tells what is true."""
    expected = truth(model, prompts, masks)
    return np.allclose(opened(tool, model).odds(prompts, masks), expected, atol=NEAR)


def unlike_lengths(tool: Any) -> bool:
    """A batch of prompts of unlike lengths."""
    found = []
    for name in ("gpt2", "opt", "llama"):
        model, prompts = tiny(name), drawn(8, 16)
        found.append(odds_hold(tool, model, prompts, np.zeros((8, 8), dtype=bool)))
    return all(found)


def text_of_unlike_lengths(tool: Any) -> bool:
    """Text written after them."""
    found = []
    for name in ("gpt2", "llama"):
        model, prompts, masks = tiny(name), drawn(4, 9), np.zeros((4, 8), dtype=bool)
        expected = written(model, prompts, masks, 20)
        got = opened(tool, model).write(prompts, masks, 20)
        found.append(all(same(*pair) for pair in zip(got, expected, strict=True)))
    return all(found)


def same(got: list[int], expected: list[int]) -> bool:
    """Up to an end, and but for padding, which is no word of a text."""

    def trim(tokens: list[int]) -> list[int]:
        tokens = tokens[: tokens.index(1)] if 1 in tokens else tokens
        return [token for token in tokens if token > 1]

    return trim(got) == trim(expected)


def own_masks(tool: Any) -> bool:
    """32 rows in one batch, each with another head cut."""
    model = build("llama", GROUPED | {"num_hidden_layers": 8})
    return odds_hold(tool, model, drawn(32, 9, alike=True), np.eye(32, dtype=bool))


def masks_and_lengths(tool: Any) -> bool:
    """The same with prompts of unlike lengths."""
    model = build("llama", GROUPED | {"num_hidden_layers": 8})
    return odds_hold(tool, model, drawn(32, 12), np.eye(32, dtype=bool))


def again(tool: Any) -> bool:
    """One prompt under two masks, then intact."""
    model, (prompt,) = tiny("llama"), drawn(1, 12, alike=True)
    masks = np.zeros((3, 1, 8), dtype=bool)
    masks[0, 0, [0, 5]] = masks[1, 0, 2:4] = True
    asked = opened(tool, model)
    got = [asked.odds([prompt], mask)[0] for mask in masks]
    return np.allclose(got, truth(model, [prompt] * 3, masks[:, 0]), atol=NEAR)


def with_bias(tool: Any) -> bool:
    """All heads of a layer cut, where the projection has a bias."""
    model = build("gpt2", OLD)
    for layer in model.transformer.h:
        torch.nn.init.normal_(layer.attn.c_proj.bias)
    return odds_hold(tool, model, drawn(1, 9, alike=True), np.arange(8)[None] < 4)


def groups(tool: Any) -> bool:
    """Each head of groups of 2, 3 and 7, and of one key-value head for all."""
    found = []
    for heads, pairs in ((4, 2), (6, 2), (14, 2), (4, 1)):
        sizes = {"hidden_size": 8 * heads, "num_attention_heads": heads}
        model = build("qwen2", GROUPED | sizes | {"num_key_value_heads": pairs})
        masks = np.eye(2 * heads, dtype=bool)
        found.append(odds_hold(tool, model, drawn(2 * heads, 7, alike=True), masks))
    return all(found)


def decoding(tool: Any) -> bool:
    """Text under a mask: of the prompt and of every token written."""
    model, (prompt,) = tiny("llama"), drawn(1, 9, alike=True)
    masks = np.random.default_rng(0).random((6, 1, 8)) < 0.4
    asked = opened(tool, model)
    return all(
        same(asked.write([prompt], mask, 8)[0], written(model, [prompt], mask, 8)[0])
        for mask in masks
    )


def windows(tool: Any) -> bool:
    """A window of five tokens, at lengths around it."""
    sizes = GROUPED | {"sliding_window": 5, "num_hidden_layers": 1}
    model = build("mistral", sizes)
    return odds_hold(tool, model, drawn(10, 11), np.zeros((10, 4), dtype=bool))


def hybrid(tool: Any) -> bool:
    """A head of the second layer, where the first has none."""
    name = "qwen3_next, gated attention"
    if name not in FAMILIES:
        raise NotApplicable
    return odds_hold(tool, tiny(name), drawn(1, 9, alike=True), np.arange(4)[None] == 1)


def half(tool: Any) -> bool:
    """Short prompts beside long ones in float16 give numbers."""
    model = copy.deepcopy(tiny("llama")).half()
    prompts = [t[:n] for t, n in zip(random_tokens(3, 40).tolist(), (1, 2, 40), strict=True)]
    asked = opened(tool, model)
    return all(np.isfinite(asked.odds(prompts, np.zeros((3, 8), dtype=bool))))


def starts(tool: Any) -> bool:
    """A chat's text that has its start token, where the tokenizer adds one too."""
    tokenizer = word_tokenizer()
    tokenizer.bos_token = words([START])
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{words([START])} $A", special_tokens=[(words([START]), START)]
    )
    with TemporaryDirectory() as folder:  # some read it again by its name
        tokenizer.save_pretrained(folder)
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
        asked = tool(build("llama", GROUPED | {"bos_token_id": START}), tokenizer)
        return list(asked.begins(words([START, 10, 11]))).count(START) == 1


class Fused(torch.nn.Linear):
    """Uses its weight itself and calls hooks on something else, as a fused kernel does."""

    def __call__(self, mixed: torch.Tensor) -> torch.Tensor:
        """What the layer says."""
        super().__call__(mixed)
        return torch.nn.functional.linear(mixed, self.weight)


def bypassed(tool: Any) -> bool:
    """Where hooks reach nothing, the cut is made all the same, or the tool says that it is not."""
    model = build("llama", GROUPED)
    for layer in model.model.layers:
        layer.self_attn.o_proj.__class__ = Fused
    try:
        return odds_hold(tool, model, drawn(1, 9, alike=True), np.arange(8)[None] == 1)
    except ModelRefused:
        return True


CASES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "prompts of unlike lengths in a batch": ("nnsight 672", unlike_lengths),
    "text after prompts of unlike lengths": ("TransformerLens 1005", text_of_unlike_lengths),
    "every row its own head": ("DMI 67", own_masks),
    "every row its own head and length": ("DMI 67", masks_and_lengths),
    "a prompt again under other masks": ("nnsight 662", again),
    "windows": ("Megatron-Bridge 2656, transformers 41184", windows),
    "no NaN in float16": ("unsloth 9708", half),
    "heads of hybrid and gated layers": ("heretic 241, causalab 71", hybrid),
    "a bias is left": ("ACDC 52", with_bias),
    "one head and no other, in groups of 2, 3, 7": ("SAELens 163, hypercloning 1", groups),
    "a cut while decoding": ("QRHead 6, SparseMM 10", decoding),
    "a cut that reaches nothing is no silence": ("OPTIN 6", bypassed),
    "one start token": ("ukrainian-llm-leaderboard 5", starts),
}


def tried(case: Callable[[Any], bool], tool: Any) -> str:
    """What came out."""
    try:
        with torch.no_grad():
            return "holds" if case(tool) else "**does not hold**"
    except NotApplicable:
        return "not applicable"
    except Exception as error:  # whatever a tool throws is its answer
        return f"error: {type(error).__name__}: {' '.join(str(error).split())[:80]}"


def main() -> None:
    """Try every case on every tool that is installed; print and keep the table."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    names = [tool.name for tool in TOOLS]
    print(f"| must hold | reported as | {' | '.join(names)} |\n|---|---|{'---|' * len(names)}")
    kept = {}
    for must, (reported, case) in CASES.items():
        found = [tried(case, tool) for tool in TOOLS]
        kept[must] = dict(zip(names, found, strict=True))
        print(f"| {must} | {reported} | {' | '.join(found)} |", flush=True)
    figures.write(FIGURES, kept)


if __name__ == "__main__":
    main()
