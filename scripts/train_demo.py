"""Train the demo model from nothing, on text that `caploc.tasks.demo.data` generates.

    python scripts/train_demo.py --out build/demo-model --minutes 60

Seeded; on the CPU of a laptop it takes under two hours. The folder it writes loads with plain
`AutoModelForCausalLM.from_pretrained`; copying it over `src/caploc/models/demo` ships it.
"""

import argparse
import json
import math
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from caploc.tasks.demo import data

END, PAD = "<|end|>", "<|pad|>"
SHARES = {  # share of the training tokens
    data.addition: 0.08,
    data.subtraction: 0.10,
    data.code: 0.10,
    data.rhyming: 0.08,
    data.cursing: 0.04,
    data.courtesy: 0.02,
    data.capitals: 0.13,
    data.elements: 0.13,
    data.pick: 0.08,
    data.statement: 0.04,
    data.recall: 0.08,
    data.sorting: 0.05,
    data.sentences: 0.05,
    data.prose: 0.02,
}
LOOKUPS = (data.recall, data.pick)
EARLY = 4.0  # times their share in the first quarter: finding things in the text is learned late
CONTEXT = 160  # holds the longest text
PROMPT_WEIGHT = 0.1  # a random sum is not worth predicting; its answer is


def build_tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte, and two more: the end of a text (also its start) and padding."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([END, PAD, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{END} $A", pair=f"{END} $A $B", special_tokens=[(END, 0)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=END,
        eos_token=END,
        pad_token=PAD,
        model_max_length=2048,
        clean_up_tokenization_spaces=False,
    )


def build_model(vocabulary: int) -> LlamaForCausalLM:
    """Six layers of 16 heads, two query heads to a key-value head; 1.5 million parameters.

    Heads are wider than hidden / heads: with 8 values a head, most of them turned by the rotary
    embedding, looking things up by content was not learned.
    """
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=128,
            intermediate_size=384,
            num_hidden_layers=6,
            num_attention_heads=16,
            num_key_value_heads=8,
            head_dim=16,
            max_position_embeddings=2048,
            tie_word_embeddings=True,
            bos_token_id=0,
            eos_token_id=0,
            pad_token_id=1,
        )
    )


@dataclass(frozen=True)
class Batch:
    """Packed texts, each a (rows, CONTEXT + 1) tensor."""

    ids: torch.Tensor
    weights: torch.Tensor  # of predicting each token
    places: torch.Tensor  # position within its own text
    texts: torch.Tensor  # which text of the row a token belongs to

    def parts(self, count: int) -> "list[Batch]":
        """The batch in equal parts, to run one after another in less memory."""
        split = zip(
            *(t.chunk(count) for t in (self.ids, self.weights, self.places, self.texts)),
            strict=True,
        )
        return [Batch(*tensors) for tensors in split]

    def attention(self) -> torch.Tensor:
        """(rows, 1, CONTEXT, CONTEXT), True where a token may look: back, within its own text."""
        texts = self.texts[:, :-1]
        same = texts[:, :, None] == texts[:, None, :]
        return (same & torch.ones_like(same).tril()).unsqueeze(1)

    def loss(self, model: LlamaForCausalLM) -> torch.Tensor:
        """Weighted mean cross-entropy of the next token."""
        logits = model(
            self.ids[:, :-1],
            attention_mask=self.attention(),
            position_ids=self.places[:, :-1],
            use_cache=False,
        ).logits
        losses = cross_entropy(logits.flatten(0, 1), self.ids[:, 1:].flatten(), reduction="none")
        weights = self.weights[:, 1:].flatten()
        return (losses * weights).sum() / weights.sum()


class Texts:
    """An endless row of training examples, as token ids with a weight each."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, seed: int, steps: int) -> None:
        """Measure how long each capability's examples are, to mix them by tokens."""
        self.tokenizer, self.rng = tokenizer, random.Random(seed)
        self.streams = [data.stream(draw, "train", self.rng) for draw in SHARES]
        lengths = [
            np.mean([len(e.prompt + e.answer) for e in data.distinct(draw, "train", 50)])
            for draw in SHARES
        ]
        self.odds = [share / length for share, length in zip(SHARES.values(), lengths, strict=True)]
        self.early_odds = [
            odds * (EARLY if draw in LOOKUPS else 1.0)
            for draw, odds in zip(SHARES, self.odds, strict=True)
        ]
        self.early_steps = steps // 4

    def example(self, odds: list[float]) -> tuple[list[int], list[float]]:
        """Token ids of one text, start and end included, and the weight of predicting each."""
        (stream,) = self.rng.choices(self.streams, odds)
        text = next(stream)
        prompt = self.tokenizer.encode(text.prompt)
        answer = self.tokenizer.encode(text.answer, add_special_tokens=False) + [0]
        weights = [0.0] + [PROMPT_WEIGHT] * (len(prompt) - 1) + [1.0] * len(answer)
        return prompt + answer, weights

    def batches(self, rows: int) -> Iterator[Batch]:
        """Batches of packed texts; each row starts at a text's start."""
        for step in count():
            odds = self.early_odds if step < self.early_steps else self.odds
            ids, weights, places, texts = np.zeros((4, rows, CONTEXT + 1))
            for row in range(rows):
                filled = 0
                while filled <= CONTEXT:
                    tokens, token_weights = self.example(odds)
                    room = slice(filled, filled + len(tokens))
                    here = len(ids[row, room])
                    ids[row, room], weights[row, room] = tokens[:here], token_weights[:here]
                    places[row, room], texts[row, room] = np.arange(here), filled
                    filled += here
            yield Batch(
                torch.tensor(ids, dtype=torch.long),
                torch.tensor(weights, dtype=torch.float32),
                torch.tensor(places, dtype=torch.long),
                torch.tensor(texts, dtype=torch.long),
            )


@torch.inference_mode()
def teacher_forced(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, draw: data.Draw, examples: int = 60
) -> float:
    """Share of held-out answers in which every token is the likeliest one.

    Exact where an answer is determined; an underestimate for rhymes, curses and prose, where
    several answers are right.
    """
    right = []
    for example in data.distinct(draw, "test", examples):
        prompt = tokenizer.encode(example.prompt)
        answer = tokenizer.encode(example.answer, add_special_tokens=False)
        if draw is data.recall:
            answer = answer[:1]
        logits = model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
        right.append(logits.argmax(-1).tolist() == answer)
    return float(np.mean(right))


def learning_rate(progress: float, peak: float) -> float:
    """Linear warm-up over the first 3 %, then a cosine down to a twentieth of the peak."""
    warm = min(1.0, progress / 0.03)
    return peak * warm * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * progress)))


def train(arguments: argparse.Namespace) -> None:
    """Train for a number of steps; write the model, its tokenizer and the log."""
    torch.manual_seed(arguments.seed)
    torch.set_num_threads(arguments.threads)
    tokenizer = build_tokenizer()
    model = build_model(len(tokenizer))
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.1)
    arguments.out.mkdir(parents=True, exist_ok=True)
    log = (arguments.out / "training_log.jsonl").open("w")
    started = time.monotonic()
    batches = Texts(tokenizer, arguments.seed, arguments.steps).batches(arguments.rows)
    for step, batch in zip(range(arguments.steps + 1), batches, strict=False):
        if step % arguments.report == 0:
            report(log, step, time.monotonic() - started, model, tokenizer)
            model.save_pretrained(arguments.out)
            tokenizer.save_pretrained(arguments.out)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step / arguments.steps, arguments.peak)
        for part in batch.parts(arguments.parts):
            (part.loss(model) / arguments.parts).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def report(log, step: int, seconds: float, model, tokenizer) -> None:
    """Write and print how well the model answers held-out examples by now."""
    model.eval()
    scores = {d.__name__: teacher_forced(model, tokenizer, d) for d in data.HELD_OUT}
    model.train()
    line = json.dumps({"step": step, "seconds": round(seconds), **scores})
    print(line, flush=True)
    log.write(line + "\n")
    log.flush()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--rows", type=int, default=40, help="packed rows of a step")
    parser.add_argument("--parts", type=int, default=4, help="parts that a step's rows are run in")
    parser.add_argument("--peak", type=float, default=3e-3, help="highest learning rate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--report", type=int, default=150, help="steps between reports")
    train(parser.parse_args())
