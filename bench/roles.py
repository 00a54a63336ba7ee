"""Heads with a role by definition, without any knockout, beside the heads that a search names.

    python bench/roles.py --models smollm2,gemma3-270m,qwen2.5-coder-0.5b
    python bench/roles.py --page                     the tables, from the JSON

Roles of attention are read on random tokens that are repeated once: an induction head attends to
the token after the earlier occurrence, a duplicate-token head to that occurrence, a previous-token
head to the token before (Olsson et al., 2022, arXiv 2209.11895; Wang et al., 2022, arXiv
2211.00593). A successor head turns a word of a series into the next by its weights alone: embedding
and first feed-forward block in, values and outputs of the head, unembedding out (Gould et al.,
2023, arXiv 2312.09230). A task that needs such heads is then searched, every head with a role is
knocked out alone, and all of a role together beside as many others of the same layers. Figures go
to bench/roles.json; rows are kept in build/roles and asked once.
"""

import argparse
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

import figures
from caploc import designs
from caploc.components import Masks
from caploc.console import progress
from caploc.declaration import ModelOptions, Study
from caploc.measurement import Meter, Meters, as_measurements
from caploc.models.loading import LoadedModel
from caploc.options import Settings, TaskOptions
from caploc.pairs import write_task
from caploc.search import Plan
from caploc.search.plan import column_mask
from caploc.store import Store
from caploc.study import run_study
from caploc.verdict import make_card
from measuring import say
from pairs import KINDS, NAMES, PLACES, THINGS

FIGURES = Path(__file__).with_suffix(".json")
ROWS = Path("build/roles")
LENGTH, TEXTS = 32, 32  # tokens that are repeated, and how many such texts
STRONG = 0.3  # a role's least attention, or share of the series that a head continues
WORDS, SHOWN, EXAMPLES = 12, (4, 9), 240  # of a repeated list; words of its second half; lists
JUDGED = 100  # examples of every head alone
LOSS = 0.1  # of the score, by which a head is needed alone: two standard errors and more
OTHERS = 5  # random sets beside all heads of a role
SERIES = (
    "Monday Tuesday Wednesday Thursday Friday Saturday Sunday",
    "January February March April May June July August September October November December",
    "one two three four five six seven eight nine ten eleven twelve",
    "first second third fourth fifth sixth seventh eighth ninth tenth",
    "1 2 3 4 5 6 7 8 9",
    "A B C D E F G H I J K L M N O P Q R S T U V W X Y Z",
)
TASKS = {
    "repeated words": ("induction", "previous token", "duplicate token"),
    "words/copy": ("induction", "previous token"),
    "words/next": ("successor",),
}


def repeated_words() -> Path:
    """Write lists of words that are said twice, up to the word that is asked for, as a task."""
    rng = random.Random(0)
    words = sorted({*NAMES, *PLACES, *THINGS, *(word for kind in KINDS.values() for word in kind)})
    pairs = []
    for _ in range(EXAMPLES):
        said, cut = rng.sample(words, WORDS), rng.randint(*SHOWN)
        pairs.append((f"{' '.join(said)}\n{' '.join(said[:cut])}", f" {said[cut]}"))
    return write_task(pairs, ROWS, "repeated")


@torch.inference_mode()
def attention_roles(loaded: LoadedModel) -> dict[str, np.ndarray]:
    """Mean attention of each head, by column, to the places that define the roles."""
    model: Any = loaded.model
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    draw = torch.Generator().manual_seed(0)
    start = loaded.tokenizer.bos_token_id
    first = 0 if start is None else 1
    there = torch.arange(first + LENGTH, first + 2 * LENGTH)  # of the second time
    found: dict[str, list[np.ndarray]] = {}
    for _ in range(TEXTS):
        once = torch.randint(1000, len(loaded.tokenizer) - 1000, (LENGTH,), generator=draw).tolist()
        tokens = torch.tensor([[start] * first + once + once])
        layers = model(tokens, output_attentions=True, use_cache=False).attentions
        looked = torch.cat([layer[0] for layer in layers]).float()  # heads, from, to
        places = {
            "induction": there - LENGTH + 1,
            "duplicate token": there - LENGTH,
            "previous token": there - 1,
        }
        for role, to in places.items():
            found.setdefault(role, []).append(looked[:, there, to].mean(-1).numpy())
    model.set_attn_implementation(before)
    return {role: np.mean(scores, axis=0) for role, scores in found.items()}


@torch.inference_mode()
def successor_role(loaded: LoadedModel) -> np.ndarray:
    """Share of the series' words that each head turns into the next one, among all of its series.

    The word itself is left out: every copying head would answer with it.
    """
    model: Any = loaded.model
    decoder, config = model.get_decoder(), model.config
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    shared = config.num_attention_heads // config.num_key_value_heads
    whole = [
        [
            ids[0]
            for word in words.split()
            if len(ids := loaded.tokenizer.encode(f" {word}", add_special_tokens=False)) == 1
        ]
        for words in SERIES
    ]
    series = [tokens for tokens in whole if len(tokens) > 2]
    given = [token for tokens in series for token in tokens]
    entered = model.get_input_embeddings()(torch.tensor(given))
    block = decoder.layers[0]
    norm = getattr(block, "pre_feedforward_layernorm", block.post_attention_layernorm)
    entered = entered + block.mlp(norm(entered))
    scores = []
    for layer in decoder.layers:
        attention = layer.self_attn
        values = attention.v_proj(layer.input_layernorm(entered))
        for head in range(config.num_attention_heads):
            own = slice(head // shared * size, head // shared * size + size)
            out = attention.o_proj.weight[:, head * size : (head + 1) * size]
            said = model.get_output_embeddings()(decoder.norm(values[:, own] @ out.T)).float()
            scores.append(continued(said, series))
    return np.array(scores)


def continued(said: torch.Tensor, series: Sequence[Sequence[int]]) -> float:
    """The share of words whose successor is the likeliest of its series, the word left out."""
    right, line = [], 0
    for tokens in series:
        among = said[line : line + len(tokens)][:, torch.tensor(tokens)]
        among.fill_diagonal_(-torch.inf)
        right += [
            int(among[place].argmax()) == after for place, after in pairwise(range(len(tokens)))
        ]
        line += len(tokens)
    return float(np.mean(right))


@dataclass
class Subject:
    """A model on a task: what masks take from its score."""

    meter: Meter

    def __post_init__(self) -> None:
        """Score the intact model."""
        self.examples = self.meter.task.first(JUDGED)
        self.size = self.meter.grid.size
        self.intact = self.scores(np.zeros((1, self.size), dtype=bool))[0]

    def scores(self, masks: Masks) -> np.ndarray:
        """The score under each mask."""
        plan = Plan.crossed(self.meter.task.name, masks, self.examples, "roles")
        with progress(quiet=True) as silent:
            answered = as_measurements(plan, self.meter.measure(plan, silent, plan.what))
        return answered.outcome.reshape(len(masks), -1).mean(axis=1)

    def losses(self, sets: Sequence[Sequence[int]]) -> list[float]:
        """What each set of columns takes, in points of the score."""
        masks = np.array([column_mask(self.size, each) for each in sets])
        return [round(float(each), 4) for each in self.intact - self.scores(masks)]


def judge_role(subject: Subject, columns: Sequence[int], found: Sequence[Any]) -> dict[str, Any]:
    """What the heads of a role do alone and together, and which of those needed were found."""
    grid = subject.meter.grid
    alone = dict(zip(columns, subject.losses([[each] for each in columns]), strict=True))
    needed = [column for column in columns if alone[column] >= LOSS]
    rng = designs.generator(0)
    per_layer = grid.counts(column_mask(grid.size, columns))
    free = [
        [c for c in range(part.start, part.stop) if c not in columns] for part in grid.layer_slices
    ]
    others = [
        [
            int(column)
            for layer, count in zip(free, per_layer, strict=True)
            for column in rng.choice(layer, size=min(count, len(layer)), replace=False)
        ]
        for _ in range(OTHERS)
    ]
    return {
        "alone": {str(grid.component(column)): lost for column, lost in alone.items()},
        "together": subject.losses([list(columns)])[0],
        "others": subject.losses(others),
        "needed": [str(grid.component(column)) for column in needed],
        "tried": [str(grid.component(c)) for c in needed if c in {*found[0], *found[1]}],
        "named": [str(grid.component(c)) for c in needed if c in found[0]],
    }


def run(name: str, kept: dict[str, Any]) -> None:
    """A model's roles, its searches, and what came of the heads with a role."""
    model = ModelOptions(name, device="cpu")
    engine = model.engine()
    loaded: Any = engine.loaded
    scores = attention_roles(loaded) | {"successor": successor_role(loaded)}
    grid = loaded.grid
    entry = kept.setdefault(name, {"heads": grid.size, "tasks": {}})
    entry["roles"] = {
        role: {
            str(grid.component(int(column))): round(float(each[column]), 3)
            for column in np.argsort(-each)
            if each[column] >= STRONG
        }
        for role, each in scores.items()
    }
    for task, roles in TASKS.items():
        if task in entry["tasks"]:
            continue
        file = str(repeated_words()) if task == "repeated words" else task
        folder = ROWS / f"{name}-{Path(file).stem}"
        study = Study(model, file, settings=Settings(seed=0), quick=True, controls=0)
        result = run_study(study, folder / "search", engine=engine).result
        tried = [each.head for each in result.heads if each.low is not None]
        found = [grid.columns(result.top), grid.columns(tried)]
        (asked,) = model.tasks([file], TaskOptions(), loaded.tokenizer)
        with Store(folder / "roles.sqlite") as store:
            subject = Subject(Meters(engine, store).meter(asked))
            entry["tasks"][task] = {
                "intact": round(float(subject.intact), 4),
                "verdict": str(make_card(result).verdict),
                "rows": result.cost.rows,
                "named": list(result.top),
                "roles": {
                    role: judge_role(subject, grid.columns(entry["roles"][role]), found)
                    for role in roles
                    if entry["roles"][role]
                },
            }
        say(f"{name}, {task}: {json.dumps(entry['tasks'][task])}")
        figures.write(FIGURES, kept)


def page(kept: dict[str, Any]) -> str:
    """The tables of docs/results/outside.md."""
    lines = [
        "| model, task | intact | role | heads | together | others | needed alone | tried "
        "| named |",
        "|---|--:|---|--:|--:|--:|---|--:|--:|",
    ]
    for model, entry in kept.items():
        for task, case in entry["tasks"].items():
            for role, each in case["roles"].items():
                others = f"{100 * min(each['others']):.0f} to {100 * max(each['others']):.0f}"
                needed = ", ".join(each["needed"]) or "none"
                lines.append(
                    f"| {model}, {task} | {case['intact']:.0%} | {role} | {len(each['alone'])} | "
                    f"{100 * each['together']:.0f} | {others} | {needed} | {len(each['tried'])} | "
                    f"{len(each['named'])} |"
                )
    return "\n".join(lines)


def main() -> None:
    """Measure what is missing, or print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", type=lambda text: text.split(","), default=["smollm2"])
    parser.add_argument("--page", action="store_true")
    asked = parser.parse_args()
    kept = figures.read(FIGURES)
    for name in [] if asked.page else asked.models:
        run(name, kept)
    print(page(kept))


if __name__ == "__main__":
    main()
