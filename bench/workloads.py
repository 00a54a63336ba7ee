"""What is asked of every contender: requests under masks, every mask on every example."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from caploc import designs
from caploc.components import Masks
from caploc.engine.api import Ask
from caploc.models.loading import LoadedModel
from caploc.options import TaskOptions
from caploc.tasks.catalog import load_task
from caploc.tasks.task import Generate, LogLikelihood, Request, options_json
from models import STOP, kept_words

RATE = 0.02  # of the heads in a mask
QUESTION = (60, 120)  # tokens, least and most
LETTERS = 4
Row = tuple[Request, ...]  # what one example asks


@dataclass(frozen=True)
class Size:
    """How many masks, and on how many examples each."""

    masks: int
    examples: int


@dataclass(frozen=True)
class Workload:
    """All that is asked; `intact` asks every example once with no head knocked out."""

    name: str
    title: str
    size: Size
    asks: list[Ask]
    intact: list[Ask]

    @property
    def rows(self) -> int:
        """Rows of measurement: the choices of one question are one row."""
        return len({ask.key[0] for ask in self.asks})


@dataclass(frozen=True)
class Recipe:
    """How a workload is made: its examples, and the design its masks come from."""

    title: str
    examples: "Callable[[LoadedModel, int], list[Row]] | Task"
    masks: Callable[[int, int], Masks]


@dataclass(frozen=True)
class Task:
    """A task as lm-eval asks it; `files` are those of the data folder that hold its splits."""

    name: str
    files: Mapping[str, str] = field(default_factory=dict)

    def examples(self, count: int, data: Path | None) -> list[Row]:
        """The requests of the first examples."""
        if self.files and data is None:
            raise SystemExit(f"{self.name} needs --data, a folder with {', '.join(self.files)}")
        splits = {split: str((data or Path()) / file) for split, file in self.files.items()}
        task = load_task(self.name, TaskOptions(data=splits, allow_code=True))  # none is run
        return [task.requests(example) for example in range(count)]


def build(name: str, loaded: LoadedModel, size: Size, data: Path | None = None) -> Workload:
    """Masks of the model's heads crossed with examples: real ones, or in words that it knows."""
    recipe = RECIPES[name]
    if isinstance(recipe.examples, Task):
        examples = recipe.examples.examples(size.examples, data)
    else:
        examples = recipe.examples(loaded, size.examples)
    masks = recipe.masks(loaded.grid.size, size.masks)
    intact = np.zeros((1, loaded.grid.size), dtype=bool)
    return Workload(name, recipe.title, size, crossed(masks, examples), crossed(intact, examples))


def crossed(masks: Masks, examples: Sequence[Row]) -> list[Ask]:
    """Every mask on every example; the key is (row, choice)."""
    return [
        Ask((number * len(examples) + example, choice), request, mask)
        for number, mask in enumerate(masks)
        for example, requests in enumerate(examples)
        for choice, request in enumerate(requests)
    ]


def random_heads(heads: int, masks: int) -> Masks:
    """Stratified masks of RATE of the heads."""
    return designs.stratified(heads, masks, rate=RATE, seed=0)


def spread_heads(heads: int, masks: int) -> Masks:
    """Single heads, evenly spread over the grid, so that every depth has its share."""
    count = min(masks, heads)
    columns = ((np.arange(count) + 0.5) * heads / count).astype(int)
    singles: Masks = designs.singles(heads)[columns]
    return singles


def gsm8k(loaded: LoadedModel, count: int) -> list[Row]:
    """Eight worked examples before every question, answered in free text."""
    texts = Texts(loaded)
    prefix = texts.words(800)
    return [(texts.generate(f"{prefix} {texts.words(*QUESTION)}", 128),) for _ in range(count)]


def unshared(loaded: LoadedModel, count: int) -> list[Row]:
    """Other worked examples before every question, so that two prompts share nothing."""
    texts = Texts(loaded)
    return [(texts.generate(texts.words(860, 960), 128),) for _ in range(count)]


def mmlu(loaded: LoadedModel, count: int) -> list[Row]:
    """Five worked questions before every question, answered with one of four letters."""
    texts = Texts(loaded)
    prefix, letters = texts.words(600), texts.words(LETTERS).split()
    return [texts.choices(f"{prefix} {texts.words(*QUESTION)}", letters) for _ in range(count)]


def hellaswag(loaded: LoadedModel, count: int) -> list[Row]:
    """A paragraph with four long endings, and nothing before it."""
    texts = Texts(loaded)
    return [
        texts.choices(texts.words(*QUESTION), [texts.words(20, 40) for _ in range(LETTERS)])
        for _ in range(count)
    ]


class Texts:
    """Random words of a model's own vocabulary, the same for every run.

    On a GPU answers run to a fixed length: in bfloat16 contenders soon say different words, and
    with a stop string would stop at different times.
    """

    def __init__(self, loaded: LoadedModel) -> None:
        """Draw from the words that the model's tokenizer knows."""
        self.kept = kept_words(len(loaded.tokenizer))
        self.random = np.random.default_rng(0)
        self.fixed_length = loaded.device.type == "cuda"

    def words(self, least: int, most: int | None = None) -> str:
        """So many words, or `least` to `most` of them."""
        count = self.random.integers(least, (most or least) + 1)
        return " ".join(self.random.choice(self.kept, size=count))

    def generate(self, prompt: str, limit: int) -> Generate:
        """An answer of at most `limit` tokens that ends with the first full stop."""
        if self.fixed_length:
            options = {"until": [], "max_gen_toks": limit // 2, "do_sample": False}
        else:
            options = {"until": [STOP], "max_gen_toks": limit, "do_sample": False}
        return Generate(prompt, options_json(options))

    def choices(self, context: str, endings: Sequence[str]) -> Row:
        """How likely is each ending?"""
        return tuple(LogLikelihood(context, f" {ending}") for ending in endings)


GSM8K = Task("gsm8k", {"test": "gsm8k_test.jsonl", "train": "gsm8k_train.jsonl"})
ARC = Task("arc_challenge", {"test": "arc_challenge_test.jsonl"})
MBPP = Task("mbpp", {"test": "mbpp_test.jsonl"})
RECIPES = {
    "a": Recipe("gsm8k-shaped: prefix 800, question 60-120, answer to 128", gsm8k, random_heads),
    "b": Recipe("mmlu-shaped: prefix 600, question 60-120, four letters", mmlu, random_heads),
    "c": Recipe("hellaswag-shaped: context 60-120, four endings 20-40", hellaswag, random_heads),
    "e": Recipe("one-shot greedy: single heads on the examples of (a)", gsm8k, spread_heads),
    "g": Recipe("few-shot words: past tense, six shots", Task("words/past"), random_heads),
    "h": Recipe("gsm8k as lm-eval asks it: five other examples each", GSM8K, random_heads),
    "j": Recipe("ARC-Challenge: four choices, no examples before", ARC, random_heads),
    "k": Recipe("one-shot: single heads on the examples of (g)", Task("words/past"), spread_heads),
    "m": Recipe("MBPP as lm-eval asks it: the same three examples each", MBPP, random_heads),
    "l": Recipe("gsm8k-shaped: 860-960 of its own, answer to 128", unshared, random_heads),
}
