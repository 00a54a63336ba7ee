"""Write the table of docs/large_models.md: how many rows run at a time, by model and card.

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

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from caploc.engine.memory import CUDA_SHARE, MOST_ROWS, MOST_TOKENS, BatchSizer
from caploc.engine.planning import PlannedRow, PlannedWork, plan_batches

PAGE = Path(__file__).parents[1] / "docs" / "large_models.md"
BEGIN, END = "<!-- written by scripts/fits.py -->\n", "<!-- end -->\n"
CARDS = (24, 80, 141)  # GB
CONTEXT = 1.5e9  # bytes that CUDA takes for itself, and libraries for their workspaces
LEAST = 32  # rows below which a card more is worth it
ANSWER, DRAFTED, EXAMPLES, MASKS = 256, 16, 300, 8
# Tokens that prompts share, and each one's own: few-shot examples that change with the question
# (gsm8k as lm-eval asks it), and that do not (gsm8k_cot).
PROMPTS = {"nothing shared": (0, 1000), "800 shared": (800, 100)}


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


def work(shared: int, own: int) -> PlannedWork:
    """Prompts of so many tokens, all under as many masks."""
    prompts = [
        tuple(range(shared)) + tuple(10_000 * (n + 1) + k for k in range(own))
        for n in range(EXAMPLES)
    ]
    wanted = [
        PlannedRow(mask * EXAMPLES + n, n, mask) for mask in range(MASKS) for n in range(EXAMPLES)
    ]
    lengths = [len(prompt) for prompt in prompts]
    return PlannedWork([prompt[:-1] for prompt in prompts], lengths, ANSWER, [0] * MASKS, wanted)


def slots(model: LlamaForCausalLM, card: float, cards: int, asked: PlannedWork) -> int:
    """Rows at a time on so many cards of so many bytes; 0 if the weights do not fit."""
    model._tp_size = cards
    free = card - CONTEXT - 2 * model.num_parameters() / cards
    if free <= 0:
        return 0
    sizer = BatchSizer(model, MOST_ROWS["cuda"], int(CUDA_SHARE * free))
    sizes = replace(sizer.sizes(DRAFTED), most_tokens=MOST_TOKENS["cuda"])
    return plan_batches(asked, sizes).slots


def cell(model: LlamaForCausalLM, card: int, asked: PlannedWork) -> str:
    """Rows at a time on the fewest cards that have room for a batch."""
    for cards in (1, 2, 4, 8):
        rows = slots(model, card * 1e9, cards, asked)
        if rows >= LEAST:
            return f"{rows:,}" if cards == 1 else f"{rows:,} on {cards}"
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


def main() -> None:
    """Write the table, or compare it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true")
    page = PAGE.read_text()
    before, rest = page.split(BEGIN)
    after = rest.split(END)[1]
    written = before + BEGIN + "\n".join(table()) + "\n" + END + after
    if parser.parse_args().check:
        sys.exit(written != page)
    PAGE.write_text(written)


if __name__ == "__main__":
    main()
