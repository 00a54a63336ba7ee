"""The plain way, transformers' own calls, and which models and options need it.

Packed rows are for models that they are shown to give the answers of; all others go this way.

Rows are padded into batches, each under its own mask; nothing is shared, and no row leaves before
the last is done. It is also the second implementation that the packed engine is tested against.

In most decoders padding changes nothing. In some it does: those that ignore the attention mask,
that number positions by the place in the batch, that carry a state through the padding, or that
read keys by blocks. So it is shown at the lengths at hand (`PaddingCheck`), and where that fails
only rows of equal length share a batch.

Other engines are shown to continue texts as this way does before they answer (`ProvenBackend`).
"""

import inspect
import json
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from itertools import cycle, groupby, product
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from accelerate.utils.memory import should_reduce_batch_size
from jaxtyping import Float, Int
from torch import Tensor, distributed
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    StoppingCriteria,
    StoppingCriteriaList,
)

from caploc.engine.asks import INTACT, Answer, Ask, MaskNumbers
from caploc.engine.attention import KeySlots, Unsupported
from caploc.engine.encoding import RequestEncoder, Settings, Stops, TokenizedPrompt
from caploc.engine.kernels import reads_stacks
from caploc.engine.packed import Chunk, FedRow, IntactRecords, PackedModel
from caploc.engine.planning import BatchPlan, BatchSizer, PlannedRow
from caploc.engine.stacks import SegmentStacks
from caploc.grid import Grid, Mask
from caploc.models.cutting import knocked_out
from caploc.models.knockout import Positions, source_replacement
from caploc.models.loading import CutModel
from caploc.models.projections import stated, text_config
from caploc.models.proof import root_mean_square, tolerance
from caploc.models.substitutes import Substitute, number_substitutes
from caploc.tasks.task import Generate, LogLikelihood, Scored

T = TypeVar("T")
Tokens = Sequence[int]
FURTHER = 2  # padding is shown again for rows, or padding, so many times as long as seen
STEPS = 2  # tokens said to show it: the second reads kept keys


@dataclass(frozen=True)
class PaddedText:
    """Tokens to be read under a mask, and the continuations to be scored at their end."""

    inputs: tuple[int, ...]
    mask: Mask
    wanted: list[tuple[int, ...]]
    substitute: Substitute | None = None


class _StopStrings(StoppingCriteria):
    """Ends a row when one of the stop strings appears in what it has said."""

    def __init__(self, stops: Stops, start: int, rows: int) -> None:
        self.stops, self.start = stops, start  # answers begin at position `start`
        self.done = torch.zeros(rows, dtype=torch.bool)

    def __call__(self, input_ids: Tensor, scores: Tensor | None, **_: Any) -> Tensor:
        said = input_ids[:, self.start :].tolist()
        if len(said) != len(self.done):  # beams, which change places
            stopped = [self.stops.stopped(tokens) for tokens in said]
            return torch.tensor(stopped, device=input_ids.device)
        for row in (~self.done).nonzero().flatten().tolist():
            self.done[row] = self.stops.stopped(said[row])
        return self.done.to(input_ids.device)


class _LeadersLogits(LogitsProcessor):
    """Has every process go on from the leader's logits, so that none takes another of two alike."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        told = scores.contiguous()
        distributed.broadcast(told, 0)
        return told


@torch.inference_mode()
def generate_padded(
    loaded: CutModel,
    stops: Stops,
    batch: Sequence[tuple[TokenizedPrompt, Mask, Substitute | None]],
) -> list[list[int]]:
    """Continue prompts of equal settings, each under its mask, up to the token that ends each."""
    model: Any = loaded.model
    pad = loaded.tokenizer.pad_token_id
    ids, attention = pad_rows([prompt.tokens for prompt, *_ in batch], pad, left=True)
    longest = ids.shape[1]
    options = greedy_options(json.loads(batch[0][0].options))
    beams = options.get("num_beams") or model.generation_config.num_beams or 1
    with _cut(loaded, [(mask, other) for _, mask, other in batch for _ in range(beams)]):
        # ours last: what the task or the model says of them is answered by what the engine does
        own = {
            "input_ids": ids.to(loaded.device),
            "attention_mask": attention.to(loaded.device),
            "max_new_tokens": stops.limit,
            "logits_processor": LogitsProcessorList([_LeadersLogits()] if loaded.team else []),
            "stopping_criteria": StoppingCriteriaList([_StopStrings(stops, longest, len(batch))]),
            "pad_token_id": pad,
            "use_cache": True,
            "return_dict_in_generate": False,
        }
        output = model.generate(**(options | own))
    return [stops.trim(tokens) for tokens in output[:, longest:].tolist()]


def greedy_options(options: dict[str, Any]) -> dict[str, Any]:
    """Return generation arguments as `generate` takes them for greedy decoding."""
    unused = {"temperature", "top_p", "top_k", "do_sample"}
    return {k: v for k, v in options.items() if k not in unused} | {"do_sample": False}


class ContinuationScore(NamedTuple):
    """A continuation's log-probability, and whether each of its tokens was the likeliest.

    If not, `instead` are its tokens up to where another is likelier, and that one.
    """

    logprob: float
    greedy: bool
    instead: tuple[int, ...]


class PendingScore:
    """An ask some of whose spans have yet to be scored."""

    def __init__(self, ask: Ask, encoder: RequestEncoder) -> None:
        assert not isinstance(ask.request, Generate)
        self.ask, self.encoder, self.spans = ask, encoder, encoder.spans(ask.request)
        self.missing = len(self.spans)
        self.logprob, self.greedy, self.cost = 0.0, True, 0.0
        self.instead: tuple[int, ...] = ()

    def take(self, found: ContinuationScore, cost: float) -> list[Answer]:
        """Take one span's result; return the answer once none is missing."""
        self.logprob, self.greedy = self.logprob + found.logprob, self.greedy and found.greedy
        self.instead = found.instead
        self.cost, self.missing = self.cost + cost, self.missing - 1
        return [] if self.missing else [self.answer()]

    def answer(self) -> Answer:
        tokens = sum(len(span.continuation) for span in self.spans)
        # of a whole text it is not asked what the model would have written
        known = self.instead and isinstance(self.ask.request, LogLikelihood)
        instead = self.encoder.decode(self.instead) if known else ""
        alone = sum(len(span.inputs) for span in self.spans)
        return Answer(
            self.ask.key, Scored(self.logprob, self.greedy, tokens, instead), 0.0, self.cost, alone
        )


@torch.inference_mode()
def score_padded(loaded: CutModel, batch: Sequence[PaddedText]) -> list[list[ContinuationScore]]:
    """Sum each continuation's log-probability."""
    first = min(len(row.inputs) - max(map(len, row.wanted)) for row in batch)
    # on the right: a causal model's earlier positions never see it
    ids, _ = pad_rows([row.inputs for row in batch], 0, left=False)
    with _cut(loaded, [(row.mask, row.substitute) for row in batch]):
        logits = last_logits(loaded.model, ids.to(loaded.device), first)
    results = []
    for number, row in enumerate(batch):
        end = len(row.inputs) - first
        wanted = [torch.tensor(tokens, device=logits.device) for tokens in row.wanted]
        results.append([sum_logprobs(logits[number, end - len(w) : end], w) for w in wanted])
    return results


@contextmanager
def _cut(loaded: CutModel, rows: Sequence[tuple[Mask, Substitute | None]]) -> Iterator[None]:
    """Cut each row of a batch under its mask, for a block."""
    masks = torch.from_numpy(np.stack([mask for mask, _ in rows]))
    numbers, substitutes = number_substitutes([other for _, other in rows])
    with ExitStack() as stack:
        replacement = None
        if substitutes.sources:
            positions = Positions(loaded.model)
            stack.enter_context(positions.followed())
            replacement = source_replacement(substitutes, numbers, positions)
        stack.enter_context(knocked_out(loaded.projections, loaded.grid, masks, replacement))
        yield


def sum_logprobs(logits: Tensor, wanted: Tensor) -> ContinuationScore:
    """Sum the log-probabilities of the tokens wanted.

    In float32 whatever the model's dtype: in bfloat16 choices would tie.
    """
    read = torch.log_softmax(logits.float(), dim=-1)
    chosen, best = read.gather(1, wanted[:, None]), read.argmax(-1)
    others = (best != wanted).nonzero()
    instead = best[: int(others[0]) + 1].tolist() if len(others) else ()
    return ContinuationScore(float(chosen.double().sum()), not instead, tuple(instead))


def last_logits(model: torch.nn.Module, ids: Tensor, first: int) -> Tensor:
    """Compute logits from position `first` on, and no others where the model allows it."""
    if "logits_to_keep" in inspect.signature(model.forward).parameters:
        positions = torch.arange(first, ids.shape[1])  # on the host: it fits any last device
        kept: Tensor = model(ids, use_cache=False, logits_to_keep=positions).logits
        return kept
    every: Tensor = model(ids, use_cache=False).logits
    return every[:, first:]


class PaddingCheck:
    """Sorts rows into those that may share padded batches: padded `left` to be continued."""

    def __init__(self, loaded: CutModel, *, left: bool) -> None:
        self.loaded, self.left = loaded, left
        self.holds, self.longest, self.most = True, 0, 0

    def groups(self, items: Iterable[T], tokens: Callable[[T], Tokens]) -> list[list[T]]:
        """Group items that may share batches, longest first; `tokens` are those to be read."""
        ordered = sorted(items, key=lambda item: -len(tokens(item)))
        alike = [list(same) for _, same in groupby(ordered, key=lambda item: len(tokens(item)))]
        if len(alike) < 2 or not self._allows([tokens(same[0]) for same in alike]):
            return alike
        return [ordered]

    def _allows(self, rows: Sequence[Tokens]) -> bool:
        """Tell whether such rows, all of unlike length and the longest first, may share a batch."""
        longest = len(rows[0])
        padding = longest - len(rows[-1])
        seen = longest <= FURTHER * self.longest and padding <= FURTHER * self.most
        if self.holds and not seen:
            # What is kept of a row may depend on its length: little, some and much padding.
            some = [rows[n] for n in sorted({0, 1, len(rows) // 2, len(rows) - 1})]
            self.holds = leaders_verdict(self.loaded, self.shown(some))
            self.longest, self.most = max(longest, self.longest), max(padding, self.most)
        return self.holds

    @torch.inference_mode()
    def shown(self, rows: Sequence[Tokens]) -> bool:
        """Tell whether all but the first row are predicted beside it as each is alone."""
        predict = self.continued if self.left else self.read
        try:
            beside, alone = predict(rows), [predict([row])[0] for row in rows[1:]]
        except Exception as error:
            if not should_reduce_batch_size(error):
                raise
            return False
        allowed = tolerance(self.loaded.model)
        for got, truth in zip(beside[1:], alone, strict=True):
            # after another token there is nothing to compare
            steps = len(truth) if got[0].argmax() == truth[0].argmax() else 1
            apart = (got[:steps] - truth[:steps]).square().mean().sqrt()
            if not apart <= allowed * truth[:steps].std():
                return False
        return True

    def continued(self, rows: Sequence[Tokens]) -> Float[Tensor, "rows steps vocabulary"]:
        """Return the logits from which each row is continued, greedily."""
        model: Any = self.loaded.model
        ids, attention = pad_rows(rows, self.loaded.tokenizer.pad_token_id, left=True)
        output = model.generate(
            input_ids=ids.to(self.loaded.device),
            attention_mask=attention.to(self.loaded.device),
            max_new_tokens=STEPS,
            min_new_tokens=STEPS,
            do_sample=False,
            num_beams=1,
            pad_token_id=self.loaded.tokenizer.pad_token_id,
            return_dict_in_generate=True,
            output_logits=True,
        )
        return torch.stack(output.logits, dim=1).float()

    def read(self, rows: Sequence[Tokens]) -> Float[Tensor, "rows 1 vocabulary"]:
        """Return the logits after each row's last token."""
        ids, _ = pad_rows(rows, 0, left=False)
        logits = last_logits(self.loaded.model, ids.to(self.loaded.device), len(rows[-1]) - 1)
        ends = torch.tensor([len(row) - len(rows[-1]) for row in rows], device=logits.device)
        return logits[torch.arange(len(rows), device=logits.device), ends][:, None].float()


def leaders_verdict(loaded: CutModel, holds: bool) -> bool:
    """Return the verdict of the process that leads, where several share the model."""
    return holds if loaded.team is None else bool(loaded.team.agree([float(holds)])[0])


def pad_rows(
    rows: Sequence[Tokens], pad: int, *, left: bool
) -> tuple[Int[Tensor, "rows longest"], Int[Tensor, "rows longest"]]:
    """Put unlike rows into one batch; also 1 where one of a row's own tokens stands."""
    padded = partial(pad_sequence, batch_first=True, padding_side="left" if left else "right")
    ids = [torch.tensor(row, dtype=torch.long) for row in rows]
    return padded(ids, padding_value=pad), padded([torch.ones_like(row) for row in ids])


LOG = logging.getLogger(__name__)
UNLIMITED = 10**9
# What a generation config may say beside what makes no difference to greedy decoding.
HARMLESS = frozenset(
    "bos_token_id cache_implementation do_sample eos_token_id max_length max_new_tokens "
    "output_attentions output_hidden_states pad_token_id return_dict_in_generate temperature top_k "
    "top_p min_p transformers_version use_cache _from_model_config".split()
)
# Rotary positions that depend on the longest row of a batch.
MOVING_ROTARY = frozenset({"dynamic", "longrope"})
LAYERS_KNOWN = frozenset({"full_attention", "sliding_attention"})
PREFIX, OWN, AGAIN = 4, (3, 5), 2  # tokens of the proof: shared, each row's own, a step's
RECORDED = 2  # times that the step is repeated, so that the last is what a recorded one says
# Rows and padding of plain batches that show what rounding does. In bfloat16 they differ from a row
# by itself by .03 to .14 of the logits' spread (SmolLM2, Gemma 3 270M), packed rows by up to 1.8
# times as much; rows whose mask is not heeded by .24 to 2.1.
SHAPES, ROUNDING = ((2, 3), (3, 8), (8, 24)), 2.5
Shaped = Callable[[int, int], Tensor]


def packed_model(loaded: CutModel) -> PackedModel | None:
    """Make the model ready for packed rows, or return None if they would not give its answers.

    Shown on a few random tokens: rows of different lengths packed end to end, a shared prefix under
    each row's own mask, a start above the first layer and steps that go on from kept keys must give
    the logits of plain forward passes; with a narrow last layer, or else with a whole one.
    """
    longest = longest_packed(loaded.model)
    if longest < PREFIX + max(OWN) + AGAIN:
        return None
    for narrows in (True, False):
        packed = PackedModel(loaded, longest, narrows=narrows)
        if packed.stack.layers and leaders_verdict(loaded, _serves(packed)):
            return packed
    LOG.info("%s is served the plain way", loaded.name)
    return None


def _serves(packed: PackedModel) -> bool:
    try:
        return gives_plain_logits(packed)
    # the ways in which a model can be built otherwise than packed rows suppose
    except (Unsupported, TypeError, ValueError, RuntimeError, IndexError, AttributeError) as error:
        LOG.info("%s: packed rows failed: %s", packed.loaded.name, error)
        return False


def longest_packed(model: PreTrainedModel) -> int:
    """Find the longest row that packed rows can serve: none for some models, a window for others.

    Packed rows attend to everything before them, so that a row must fit a sliding window whole.
    """
    config: Any = text_config(model)
    kinds = set(getattr(config, "layer_types", None) or ())
    if kinds - LAYERS_KNOWN or moves_rotary(model):
        return 0
    windows = [window for window in stated(config, "sliding_window") if window]
    used = getattr(config, "use_sliding_window", True) and kinds != {"full_attention"}
    return min(windows) if windows and used else UNLIMITED


def moves_rotary(model: PreTrainedModel) -> bool:
    """Tell whether a row's rotary positions depend on the longest row of its batch."""
    rotary = getattr(text_config(model), "rope_parameters", None) or {}
    # some models have a set of rotary parameters for each kind of layer
    every = [rotary, *(part for part in rotary.values() if isinstance(part, dict))]
    return any(part.get("rope_type") in MOVING_ROTARY for part in every)


def greedy_only(model: PreTrainedModel, options: dict[str, Any]) -> bool:
    """Tell whether these arguments ask for the likeliest token each time and nothing else."""
    config = deepcopy(model.generation_config)
    unknown: Any = config.update(**greedy_options(options))
    said = {name for name, value in config.to_diff_dict().items() if value is not None}
    return not unknown and not said - HARMLESS


def end_tokens(model: PreTrainedModel, options: dict[str, Any]) -> list[int]:
    """List the tokens that end an answer."""
    ends: Any = options.get("eos_token_id", model.generation_config.eos_token_id)
    return [] if ends is None else list(ends) if isinstance(ends, list | tuple) else [int(ends)]


@torch.inference_mode()
def gives_plain_logits(packed: PackedModel) -> bool:
    """Tell whether packed rows give the logits of plain forward passes.

    In two bytes a number, where real models' logits move with a batch's shape: nearly as well as
    plain passes of other shapes do.
    """
    generator = torch.Generator().manual_seed(0)
    vocabulary = text_config(packed.model).vocab_size

    def draw(count: int) -> list[int]:
        return torch.randint(vocabulary, (count,), generator=generator).tolist()

    prefix, own, again = draw(PREFIX), [draw(n) for n in OWN], [draw(AGAIN) for _ in OWN]
    masks = [_one_head(packed, layer) for layer in (0, packed.depth - 1)]
    got = packed_logits(packed, prefix, own, again, masks)
    errors, allowed, rows = list[float](), tolerance(packed.model), list[Shaped]()
    for row, mask in enumerate(masks):
        tokens, heads = [*prefix, *own[row], *again[row]], torch.from_numpy(mask)
        rows.append(partial(plain_logits, packed.loaded, tokens, heads, 1 + AGAIN))
        errors.append(_relative_error(got[row].float().cpu(), rows[row](1, 0)))
    if max(errors) <= allowed or packed.model.dtype.itemsize > 2:
        return max(errors) <= allowed
    moved = [_relative_error(plain(*shape), plain(1, 0)) for plain in rows for shape in SHAPES]
    return max(errors) <= ROUNDING * max(moved)


@torch.inference_mode()
def plain_logits(
    loaded: CutModel, tokens: Tokens, heads: Tensor, count: int, rows: int = 1, padding: int = 0
) -> Float[Tensor, "said vocabulary"]:
    """Compute the last `count` logits of a text under a mask, in float32 on the host.

    It is read in a batch of so many such rows, with so much padding after each.
    """
    ids = torch.tensor([[*tokens, *[0] * padding]] * rows, device=loaded.device)
    read = (torch.arange(ids.shape[1], device=loaded.device) < len(tokens)).long().expand_as(ids)
    with knocked_out(loaded.projections, loaded.grid, heads.expand(rows, -1)):
        logits: Tensor = loaded.model(input_ids=ids, attention_mask=read, use_cache=False).logits
    return logits[0, len(tokens) - count : len(tokens)].float().cpu()


def _relative_error(found: Tensor, truth: Tensor) -> float:
    """Return the root mean square of an error as a share of how far the truth is spread."""
    error = float((found - truth).square().mean().sqrt() / truth.std())
    return error if math.isfinite(error) else math.inf


def _one_head(packed: PackedModel, layer: int) -> Mask:
    """Mask one head, in the first layer from `layer` on (or back) that has heads."""
    slices = packed.loaded.grid.layer_slices
    order = [*range(layer, packed.depth), *reversed(range(layer))]
    mask = np.zeros(packed.loaded.grid.size, dtype=bool)
    mask[next(slices[n].start for n in order if slices[n].stop > slices[n].start)] = True
    return mask


def packed_logits(
    packed: PackedModel,
    prefix: list[int],
    own: list[list[int]],
    again: list[list[int]],
    masks: list[Mask],
) -> list[Float[Tensor, "said vocabulary"]]:
    """Return each row's logits after its own last token, and after each token of a step."""
    numbers, every = MaskNumbers(packed.loaded.grid), tuple(range(1, packed.depth))
    rows = [PlannedRow(n, n, numbers.number(mask)) for n, mask in enumerate(masks)]
    shape = len(own), AGAIN, UNLIMITED, UNLIMITED
    plan = BatchPlan((tuple(prefix),), (0,) * len(own), every, (), *shape, smallest=True)
    intact = IntactRecords(packed, plan, numbers.all)
    before = intact.prefix_segment(0)
    recorded = [Chunk(tokens, numbers.all[INTACT], [len(tokens) - 1], before) for tokens in own]
    intact.record(range(len(own)), recorded, every)
    spare = int(reads_stacks(packed.device))  # a slot for what pads a step
    room = KeySlots(len(own) + spare, max(map(len, own)) + AGAIN, packed.depth)
    segments, first = intact.segments(rows), []
    for number, row in enumerate(rows):
        record, length, start = intact.records[number], len(own[number]), intact.start(row)
        chunk = Chunk(own[number], numbers.all[row.mask], [length - 1], segments[number])
        chunk.residual = record.residual.get(start)
        keeper = packed.into_slots(room, [number], [chunk])
        first.append(packed.read(intact.table, [chunk], start, keeper))
        room.share(start, [number], record.segment)
    fed = [
        FedRow(again[number], numbers.all[row.mask], len(own[number]), segments[number])
        for number, row in enumerate(rows)
    ]
    stacks, graphs = SegmentStacks(packed.depth), packed.step_graphs(numbers.all)
    stacks.keep([*segments, before])
    shared = stacks.readers(segments, packed.rows_run(fed, room))
    step = packed.step(intact.table, room, fed, shared, graphs.layers)
    logits = graphs.run(step.form, step.inputs, step.logits)
    for _ in range(RECORDED if graphs.recordable.may else 0):
        logits = graphs.run(step.form, step.inputs, step.logits)
    more = logits[: len(own) * AGAIN].reshape(len(own), AGAIN, -1)
    return [torch.cat(pair) for pair in zip(first, more, strict=True)]


ZERO_ONLY = "knocks heads out to zero only"
NOT_GREEDY = "decodes greedily and by no other options"
OWN_TOKENS, SAID_TOKENS = (3, 5), 3  # tokens of the proof: each prompt's own, and those said


@dataclass(frozen=True)
class Continued:
    """The tokens said after a prompt, and their log-probabilities where they were wanted."""

    tokens: list[int]
    logprobs: list[float]


# (prompts, masks, the number of each prompt's mask) -> what was said to each
Continues = Callable[[Sequence[tuple[int, ...]], MaskNumbers, Sequence[int]], list[Continued]]


class ProvenBackend(ABC):
    """Answers under zeroed heads, texts greedily, once its own predictions are the model's."""

    def __init__(
        self,
        loaded: CutModel,
        encoder: RequestEncoder,
        sizer: BatchSizer,
        stopping: Callable[[Settings], Stops],
        greedy: Callable[[str], bool],
    ) -> None:
        """Answer with this model; `greedy` tells whether options, as JSON, ask for no more.

        `shares` says whether rows of one mask share blocks of keys, `salts` whether those of
        other masks are kept from them, as they must be.
        """
        self.loaded, self.encoder, self.sizer = loaded, encoder, sizer
        self.stopping, self.greedy = stopping, greedy
        self.shares = self.salts = True

    @property
    def grid(self) -> Grid[Any]:
        return self.loaded.grid

    @property
    @abstractmethod
    def trouble(self) -> str | None:
        """Say why it does not serve this model, as the end of a sentence; None if it does."""

    def refusal(self, ask: Ask) -> str | None:
        if ask.source is not None and ask.knocked_out.any():
            return ZERO_ONLY
        request = ask.request
        if isinstance(request, Generate) and not self.greedy(self.encoder.prompt(request).options):
            return NOT_GREEDY
        return self.trouble


def gives_plain_tokens(loaded: CutModel, continues: Continues, page: int) -> str | None:
    """Say why an engine does not give a model's own log-probabilities; None if it does.

    Shown on random tokens: prompts of different lengths after one prefix that fills a page of keys,
    each under no mask, and under two that cut half of the heads each. An error is held against what
    the cut changes, so that an engine that reads nothing of a prompt but its end cannot pass.
    """
    masks = MaskNumbers(loaded.grid)
    generator, config = np.random.default_rng(0), text_config(loaded.model)
    window = getattr(config, "max_position_embeddings", None) or page + 32
    length = max(1, min(page + 2, window - max(OWN_TOKENS) - SAID_TOKENS))
    prefix = generator.integers(config.vocab_size, size=length).tolist()
    half = np.arange(loaded.grid.size) % 2 == 0
    tails = [generator.integers(config.vocab_size, size=own).tolist() for own in OWN_TOKENS]
    cases = list(product((np.zeros_like(half), half, ~half), tails))
    numbers = [masks.number(mask) for mask, _ in cases]
    prompts = [(*prefix, *tail) for _, tail in cases]
    try:
        found = continues(prompts, masks, numbers)
    # the ways in which a model can be built otherwise than an engine supposes
    except (TypeError, ValueError, RuntimeError, IndexError, AttributeError, KeyError) as error:
        return f"fails on this model ({type(error).__name__}: {' '.join(str(error).split())[:120]})"
    first, errors = list[Tensor](), list[float]()  # the logits after each prompt
    for prompt, number, said in zip(prompts, numbers, found, strict=True):
        heads = masks.all[number].heads
        logits = plain_logits(loaded, [*prompt, *said.tokens[:-1]], heads, len(said.tokens))
        wanted = torch.tensor(said.tokens)[:, None]
        truth = logits.log_softmax(-1).gather(1, wanted)[:, 0]
        errors.append(root_mean_square(torch.tensor(said.logprobs) - truth))
        first.append(logits[0])
    intact, cut = first[: len(tails)], first[len(tails) :]
    moved = [root_mean_square(a - b) for a, b in zip(cut, cycle(intact), strict=False)]
    effect = max(0.0, *moved)
    if not max(errors) <= tolerance(loaded.model) * effect:
        return "does not give this model's own predictions, to rounding"
    return None
