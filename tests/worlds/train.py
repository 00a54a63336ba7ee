"""Train the demo model from nothing, on text that `worlds.tasks.data` generates.

    python tests/worlds/train.py --out build/demo-model

Seeded; on the CPU of a laptop it takes under two hours. The folder it writes loads with plain
`AutoModelForCausalLM.from_pretrained`; copied over `tests/worlds/demo` it is the tests' model.
"""

import argparse
import json
import math
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TextIO

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tasks import data

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
    data.choose_named: 0.08,
    data.statement: 0.04,
    data.recall: 0.08,
    data.sorting: 0.05,
    data.sentences: 0.05,
    data.prose: 0.02,
}


@dataclass(frozen=True)
class Stage:
    """A stretch of training with its own optimizer, learning rate and mixture.

    `schedule` is the length of the learning rate's cosine; a stage may end before it does. During
    the first `boosted_steps` the `boosted` texts have `boost` times their share.
    """

    steps: int
    schedule: int
    peak: float
    boosted: tuple[data.Draw, ...]
    boosted_steps: int
    boost: float


STAGES = [
    # Finding things in the text is learned late, or not at all when it is rare at first.
    Stage(2100, 3000, 3e-3, (data.recall, data.choose_named), boosted_steps=750, boost=4.0),
    # Everything but the quizzes is known by now.
    Stage(1000, 1000, 2e-3, (data.capitals, data.elements, data.choose_named), 1000, boost=3.0),
]
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

    def __init__(self, tokenizer: PreTrainedTokenizerFast, seed: int, stage: Stage) -> None:
        """Measure how long each capability's examples are, to mix them by tokens."""
        self.tokenizer, self.rng = tokenizer, random.Random(seed)
        self.streams = [data.stream(draw, "train", self.rng) for draw in SHARES]
        lengths = [
            np.mean([len(e.prompt + e.answer) for e in data.draw_distinct(draw, "train", 50)])
            for draw in SHARES
        ]
        self.odds = [share / length for share, length in zip(SHARES.values(), lengths, strict=True)]
        self.boosted_odds = [
            odds * (stage.boost if draw in stage.boosted else 1.0)
            for draw, odds in zip(SHARES, self.odds, strict=True)
        ]
        self.boosted_steps = stage.boosted_steps

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
            odds = self.boosted_odds if step < self.boosted_steps else self.odds
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
    for example in data.draw_distinct(draw, "test", examples):
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
    """Train stage by stage; write the model, its tokenizer and the log."""
    torch.set_num_threads(arguments.threads)
    arguments.out.mkdir(parents=True, exist_ok=True)
    tokenizer = build_tokenizer()
    torch.manual_seed(arguments.seed)
    model = build_model(len(tokenizer))
    if arguments.start > 1:
        model = LlamaForCausalLM.from_pretrained(arguments.out)
    log = (arguments.out / "training_log.jsonl").open("a" if arguments.start > 1 else "w")
    for number, stage in enumerate(STAGES[arguments.start - 1 :], arguments.start):
        texts = Texts(tokenizer, arguments.seed + number - 1, stage)
        train_stage(stage, model, texts, arguments, lambda line: write_line(log, line))
        model.save_pretrained(arguments.out)
        tokenizer.save_pretrained(arguments.out)


def train_stage(
    stage: Stage,
    model: LlamaForCausalLM,
    texts: Texts,
    arguments: argparse.Namespace,
    write: Callable[[dict[str, float]], None],
) -> None:
    """Take the stage's steps, with a report now and then."""
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.1)
    started = time.monotonic()
    for step, batch in zip(range(stage.steps), texts.batches(arguments.rows), strict=False):
        if step % arguments.report == 0:
            write(
                {"step": step, "seconds": round(time.monotonic() - started)}
                | held_out(model, texts.tokenizer)
            )
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step / stage.schedule, stage.peak)
        for part in batch.parts(arguments.parts):
            (part.loss(model) / arguments.parts).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    write(
        {"step": stage.steps, "seconds": round(time.monotonic() - started)}
        | held_out(model, texts.tokenizer)
    )


def held_out(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> dict[str, float]:
    """How well the model answers held-out examples by now."""
    model.eval()
    scores = {d.__name__: round(teacher_forced(model, tokenizer, d), 3) for d in data.HELD_OUT}
    model.train()
    return scores


def write_line(log: TextIO, line: dict[str, float]) -> None:
    """Print a report and keep it."""
    print(json.dumps(line), flush=True)
    log.write(json.dumps(line) + "\n")
    log.flush()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=40, help="packed rows of a step")
    parser.add_argument("--parts", type=int, default=4, help="parts that a step's rows are run in")
    parser.add_argument("--start", type=int, default=1, help="stage to begin with, from --out")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--report", type=int, default=150, help="steps between reports")
    train(parser.parse_args())
