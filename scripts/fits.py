"""Write the tables of docs/large_models.md: what runs at a time, by model and card.

    python scripts/fits.py            write it
    python scripts/fits.py --check    say whether it is up to date

The sizes are those that the engine's planner sees, of models on torch's `meta` device, which has no
values: no GPU is asked, and none is needed.
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from caploc.engine.encoding import Span
from caploc.engine.neurons import Batcher, PassMemory, tuning_bytes
from caploc.engine.planning import (
    CUDA_SHARE,
    MOST_ROWS,
    MOST_TOKENS,
    PASS_ELSEWHERE,
    BatchSizer,
    PlannedRow,
    PlannedWork,
    plan_batches,
)
from caploc.neurons.attribution import METHODS, Attribution

PAGE = Path(__file__).parents[1] / "docs" / "large_models.md"
BEGIN, END = "<!-- written by scripts/fits.py: {} -->\n", "<!-- end -->\n"
CARDS = (24, 80, 141)  # GB
CONTEXT = 1.5e9  # bytes that CUDA takes for itself, and libraries for their workspaces
LEAST = 32  # rows below which a card more is worth it
DRAFTED, EXAMPLES, MASKS = 16, 300, 8
# Tokens that prompts share, each one's own, and the longest answer: few-shot examples that change
# with the question (gsm8k as lm-eval asks it), and that do not (gsm8k_cot).
PROMPTS = {
    f"{what}, answers to {answer:,}": (shared, own, answer)
    for what, shared, own in (("nothing shared", 0, 1000), ("800 shared", 800, 100))
    for answer in (256, 2048)
}
# Lengths of 300 answers that were seen: 100 tokens in the mean, nine of ten within 150.
SEEN = [round(100 + 39 * NormalDist().inv_cdf((n + 0.5) / 300)) for n in range(300)]
SEEN = [min(max(length, 1), 256) for length in SEEN]


@dataclass(frozen=True)
class Shape:
    """A Llama 3's sizes."""

    hidden: int
    inner: int
    layers: int
    heads: int
    tied: bool = False

    def model(self) -> LlamaForCausalLM:
        """The model in bfloat16, without values."""
        config = LlamaConfig(
            vocab_size=128_256,
            hidden_size=self.hidden,
            intermediate_size=self.inner,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=8,
            tie_word_embeddings=self.tied,
        )
        with torch.device("meta"):
            return LlamaForCausalLM(config).to(torch.bfloat16)


SHAPES = {
    "1B": Shape(2048, 8192, 16, 32, tied=True),
    "8B": Shape(4096, 14336, 32, 32),
    "70B": Shape(8192, 28672, 80, 64),
}


def work(shared: int, own: int, answer: int) -> PlannedWork:
    """Prompts of so many tokens, all under as many masks, of whose answers none was seen."""
    prompts = [
        tuple(range(shared)) + tuple(10_000 * (n + 1) + k for k in range(own))
        for n in range(EXAMPLES)
    ]
    wanted = [
        PlannedRow(mask * EXAMPLES + n, n, mask) for mask in range(MASKS) for n in range(EXAMPLES)
    ]
    lengths = [len(prompt) for prompt in prompts]
    return PlannedWork([prompt[:-1] for prompt in prompts], lengths, answer, [0] * MASKS, wanted)


def slots(model: LlamaForCausalLM, card: float, cards: int, asked: PlannedWork) -> int:
    """Rows at a time on so many cards of so many bytes; 0 if the weights do not fit."""
    model._tp_size = cards
    free = card - CONTEXT - 2 * model.num_parameters() / cards
    if free <= 0:
        return 0
    sizer = BatchSizer(model, MOST_ROWS["cuda"], int(CUDA_SHARE * free))
    sizes = replace(sizer.sizes(DRAFTED), most_tokens=MOST_TOKENS["cuda"], alone=PASS_ELSEWHERE)
    return plan_batches(asked, sizes).slots


def cell(model: LlamaForCausalLM, card: int, asked: PlannedWork) -> str:
    """Rows at a time on the fewest cards with room for a batch; then, once answers are seen."""
    for cards in (1, 2, 4, 8):
        rows = slots(model, card * 1e9, cards, asked)
        if rows >= LEAST:
            then = slots(model, card * 1e9, cards, replace(asked, seen=SEEN))
            both = f"{rows:,}" if then == rows else f"{rows:,}, then {then:,}"
            return both if cards == 1 else f"{both} on {cards}"
    return "more than 8 cards"


def table() -> Iterator[str]:
    """The table's lines."""
    yield "| model, bfloat16 | weights | prompts | " + " | ".join(f"{c} GB" for c in CARDS) + " |"
    yield "|---|--:|---|" + "--:|" * len(CARDS)
    asked = {name: work(*tokens) for name, tokens in PROMPTS.items()}
    for name, shape in SHAPES.items():
        model = shape.model()
        weights = f"{2 * model.num_parameters() / 1e9:.1f} GB"
        for what, wanted in asked.items():
            cells = " | ".join(cell(model, card, wanted) for card in CARDS)
            yield f"| {name} | {weights} | {what} | {cells} |"


GPU = torch.device("cuda")
TEXT = Span(tuple(range(512)), (7,) * 64)  # an example that neurons are found or tuned on
SHARE = 0.0015  # of the neurons, as the paper's of the parameters


def llama_2_7b() -> LlamaForCausalLM:
    """The model in bfloat16, without values."""
    config = LlamaConfig(intermediate_size=11008, max_position_embeddings=4096)
    with torch.device("meta"):
        return LlamaForCausalLM(config).to(torch.bfloat16)


def batcher_on(
    model: LlamaForCausalLM, card: int, taken: float, needs: PassMemory | None = None
) -> Batcher | None:
    """What cuts batches for a card with so many bytes taken; None if not one example fits."""
    room = int(CUDA_SHARE * (card * 1e9 - CONTEXT - 2 * model.num_parameters() - taken))
    found = Batcher(model, None, max(room, 1), needs, GPU)
    return found if room > 0 and found.fitting(TEXT) >= 1 else None


def scored(model: LlamaForCausalLM, method: str) -> str:
    """What scoring by one method takes, and how much of it goes at a time."""
    asked, layers = Attribution(method), model.config.num_hidden_layers
    needs, cells = asked.needs(model, waits=False), []
    for card in CARDS[:2]:
        found = batcher_on(model, card, 0.0, needs)
        rows = found.rows(TEXT, asked.copies) if found else 0
        points = found.at_once(TEXT, rows, asked.copies) if found else 0
        several = f"{points} of {asked.copies} points" if asked.copies > 1 else f"{rows} examples"
        cells.append(several if points else "no")
    own = needs.row(len(TEXT.inputs), len(TEXT.continuation)) / 1e9
    return _line(f"scoring, `{method}`", f"{asked.passes(layers):,}", f"{own:.1f} GB", *cells)


def tuned(
    model: LlamaForCausalLM, what: str, trained: int, passes: int, *, checkpointing: bool = True
) -> str:
    """What tuning so many values takes, and how many examples go at a time."""
    needs, fixed = PassMemory.of(model, checkpointing=checkpointing), tuning_bytes(trained, model)
    found = [batcher_on(model, card, fixed, needs) for card in CARDS[:2]]
    cells = [f"{each.rows(TEXT, 1)} examples" if each else "no" for each in found]
    own = fixed + needs.row(len(TEXT.inputs), len(TEXT.continuation))
    return _line(f"tuning, {what}", str(passes), f"{own / 1e9:.1f} GB", *cells)


def neuron_table() -> Iterator[str]:
    """The lines of the table for neurons."""
    model = llama_2_7b()
    config, sizer = model.config, BatchSizer(model)
    feed_forward = 3 * config.num_hidden_layers * config.hidden_size * config.intermediate_size
    yield _line("Llama-2-7B, bfloat16", "passes", "beside 13.5 GB", "24 GB", "80 GB")
    yield "|---|--:|--:|--:|--:|"
    for method in METHODS:
        yield scored(model, method)
    cells = []
    for card in CARDS[:2]:
        sizer.most = MOST_ROWS["cuda"]
        sizer.memory = int(CUDA_SHARE * (card * 1e9 - CONTEXT - 2 * model.num_parameters()))
        cells.append(f"{sizer.rows(len(TEXT.inputs)):,} rows")
    row = sizer.token_bytes * len(TEXT.inputs) / 1e9
    yield _line("erasing", "1", f"{row:.1f} GB", *cells)
    some = int(SHARE * feed_forward)
    yield tuned(model, "located, random, lowest or LoRA", some, 2, checkpointing=False)
    yield tuned(model, "the same, `--checkpointing`", some, 3)
    yield tuned(model, "complement, `--checkpointing`", feed_forward - some, 4)
    yield tuned(model, "full, `--checkpointing`", model.num_parameters(), 4)


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


TABLES = {"heads": table, "neurons": neuron_table}


def main() -> None:
    """Write the tables, or compare them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true")
    page = written = PAGE.read_text()
    for name, lines in TABLES.items():
        before, rest = written.split(BEGIN.format(name))
        after = rest.split(END, 1)[1]
        written = before + BEGIN.format(name) + "\n".join(lines()) + "\n" + END + after
    if parser.parse_args().check:
        sys.exit(written != page)
    PAGE.write_text(written)


if __name__ == "__main__":
    main()
