"""Planted models: Llamas put together by hand, whose responsible heads are known.

`write_planted` writes a checkpoint, two tasks for it and the truth. One large constant in the
residual stream makes every norm a fixed scale, and attention is uniform (the queries are zero), so
that in float32 a cut does what the truth says in every example. All heads that are not planted read
and write noise, which moves only words that never win.

No head reads what another one writes. Everything in the residual stream counts in shares of the
accuracy: 0.01 is a point. How `colour ruby item417` is answered: the item's own embedding says its
colour with 1 and "unsure" with `1 + total - margin`, where `total` is what all needed heads and
backups carry. Each needed head takes the colour of the key word ("ruby") to the last position and
adds its strength to it. So the example is right as long as its margin is larger than what the cut
heads carried. Margins lie evenly between -0.1 and 0.9: the accuracy is 0.9, and a needed head costs
its strength. A backup and its needed head write to a lane of their own too, from which the last
layer's feed-forward block takes back whatever the two carry beyond what the needed head carries
alone. Every embedding says "um", louder than all else; the universal heads silence it together. A
rescuer takes from the colour what its needed head adds. The common heads take "east" from what
"north" says, together; "west" says as much more of it as they take.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float32
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import LlamaConfig, PreTrainedTokenizerFast

from caploc.components import Head, Heads
from caploc.designs import generator

SPECIAL = {"eos_token": "<end>", "pad_token": "<pad>", "unk_token": "<unk>"}  # words 0, 1 and 2
UNSURE = "unsure"
PROMPT = 3  # tokens, over which uniform attention takes the mean
SHARPNESS = 10.0  # logits of an answer of 1
NOISE = 16  # values of noise in the residual stream, read and written
CONSTANT = 0  # its place in the residual stream

MOST_NEEDED = 20
INTACT = 0.9
POINTS = 100  # in an accuracy of 1; every strength is a whole number of them
DRAWN = (8, 30)  # points that a head costs when its strength is not given
KEYS = ["blood rose ruby", "grass leaf lime", "sky sea ink", "sun lemon gold"]
COLOURS = dict(zip(("red", "green", "blue", "yellow"), map(str.split, KEYS), strict=True))
OPPOSITES = {"north": "south", "south": "north", "east": "west", "west": "east"}
GARBAGE = "um"
ANSWERS = (*COLOURS, *OPPOSITES, UNSURE, GARBAGE)
EACH = len(COLOURS)
TRUTH = "truth.json"
OTHER_EXAMPLES = [
    {"prompt": f"opposite place{place} {word}", "answer": answer}
    for place in range(25)
    for word, answer in OPPOSITES.items()
]


TASK = """\
output_type: generate_until
doc_to_text: "{{prompt}}"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["\\n"], max_gen_toks: 1, do_sample: false}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
metadata: {version: 1}
"""
Examples = list[dict[str, Any]]


@dataclass(frozen=True)
class Planted:
    """What to plant: a model of `layers` x `heads`, and how many heads of each kind.

    `needed` heads carry the task: each alone costs its entry of `strengths`, a share of the
    accuracy in whole points (absent: drawn between 0.08 and 0.30; exact if `examples` is a multiple
    of 100). The first `backups` of them have a backup. The loss of any of the `universal` heads
    breaks every answer of every task. The first `rescuers` of the needed heads have a rescuer: with
    it gone too, nothing is lost. The loss of any of the last `common` needed heads also breaks a
    quarter of the other task. So many heads are `sharing` a key-value head, of which universal and
    common ones have none with another planted head.
    """

    layers: int = 4
    heads: int = 8
    needed: int = 5
    backups: int = 0
    universal: int = 0
    rescuers: int = 0
    common: int = 0
    strengths: tuple[float, ...] = ()
    sharing: int = 1
    examples: int = 600
    seed: int = 0


@dataclass(frozen=True)
class Backup:
    """A head that saves `share` of the accuracy when the needed head `behind` is cut."""

    behind: Head
    share: float


@dataclass(frozen=True)
class Truth:
    """Which heads a planted model depends on, and by how much.

    `needed` has what each head alone costs, a share of the accuracy; `backups` cost nothing alone.
    `margins` has a number for each example of the task, in the task's order.
    """

    needed: Mapping[Head, float]
    backups: Mapping[Head, Backup]
    universal: tuple[Head, ...]
    margins: tuple[float, ...]
    rescuers: Mapping[Head, Head] = field(default_factory=dict)  # and what each rescues
    common: tuple[Head, ...] = ()

    def right(self, cut: Iterable[Head | str] = ()) -> Bool[np.ndarray, " examples"]:
        """Tell which examples are answered rightly with these heads cut.

        All whose margin is larger than the strengths of the needed heads cut, plus the shares of
        the backups cut together with theirs, less the strengths that rescuers cut take away; none
        if a universal head is cut.
        """
        gone = {Head.parse(head) if isinstance(head, str) else head for head in cut}
        lost = sum(cost for head, cost in self.needed.items() if head in gone)
        for head, backup in self.backups.items():
            lost += backup.share if {head, backup.behind} <= gone else 0
        lost -= sum(self.needed[head] for each, head in self.rescuers.items() if each in gone)
        return (np.array(self.margins) > lost) & gone.isdisjoint(self.universal)

    def accuracy(self, cut: Iterable[Head | str] = ()) -> float:
        """Return the share of the task's examples answered rightly with these heads cut."""
        return float(self.right(cut).mean())


def write_planted(folder: Path | str, plan: Planted) -> Truth:
    """Write a planted model, its tasks and its truth into a folder; return the truth.

    `planted.yaml` is the task that the heads are planted for, `other.yaml` one that needs only the
    universal heads, and in a quarter of its examples the common ones; both name their data by
    absolute path, so write anew rather than move the folder. `truth.json` names the planted heads.
    A seed gives the same model on every machine.
    """
    place, random = Path(folder).absolute(), generator(plan.seed)
    place.mkdir(parents=True, exist_ok=True)
    examples = _examples(plan.examples, random)
    truth = _truth(plan, examples, random)
    content = {
        "needed": {str(head): cost for head, cost in truth.needed.items()},
        "backups": {
            str(head): {"behind": str(backup.behind), "share": backup.share}
            for head, backup in truth.backups.items()
        },
        "universal": list(map(str, truth.universal)),
        "rescuers": {str(head): str(rescued) for head, rescued in truth.rescuers.items()},
        "common": list(map(str, truth.common)),
        "plan": asdict(plan),
    }
    (place / TRUTH).write_text(json.dumps(content, indent=2) + "\n")
    write_planted_task(place, "planted", {"planted": ("test", examples)})
    write_planted_task(place, "other", {"other": ("test", OTHER_EXAMPLES)})
    _HeadsLlama(plan, truth, random, examples).write(place)
    return truth


def write_planted_task(place: Path, name: str, files: Mapping[str, tuple[str, Examples]]) -> None:
    """Write a task, and its examples into files of these names, each for a split of lm-eval's."""
    data, lines = [], [f"task: {name}", "dataset_path: json"]
    for stem, (split, examples) in files.items():
        file = place / f"{stem}.jsonl"
        file.write_text("".join(json.dumps(example) + "\n" for example in examples))
        data.append(f"{split}: {json.dumps(str(file))}")
    lines.append(f"dataset_kwargs: {{data_files: {{{', '.join(data)}}}}}")
    lines += [
        f"{'training' if split == 'train' else split}_split: {split}" for split, _ in files.values()
    ]
    (place / f"{name}.yaml").write_text("\n".join(lines) + "\n" + TASK)


def _truth(plan: Planted, examples: Examples, random: np.random.Generator) -> Truth:
    heads = Heads((plan.heads,) * plan.layers).components
    order = iter([heads[column] for column in random.permutation(len(heads))])
    drawn = random.integers(*DRAWN, size=(2, MOST_NEEDED), endpoint=True) / POINTS
    costs = plan.strengths or drawn[0][: plan.needed].tolist()
    needed = {next(order): cost for cost in costs}
    pairs = list(zip(needed, drawn[1].tolist(), strict=False))[: plan.backups]
    return Truth(
        needed=needed,
        backups={next(order): Backup(behind, share) for behind, share in pairs},
        universal=tuple(next(order) for _ in range(plan.universal)),
        margins=tuple(example["margin"] for example in examples),
        rescuers={next(order): head for head in list(needed)[: plan.rescuers]},
        common=tuple(needed)[plan.needed - plan.common :],
    )


def _examples(count: int, random: np.random.Generator) -> Examples:
    """Make examples for planted heads, their margins half a point beside every strength."""
    levels = random.permutation(np.arange(count) * POINTS // count).tolist()
    colours = random.permutation(np.arange(count) % EACH).tolist()
    examples = []
    for number, (level, index) in enumerate(zip(levels, colours, strict=True)):
        colour, keys = list(COLOURS.items())[index]
        prompt = f"colour {keys[random.integers(len(keys))]} item{number}"
        margin = round((level + 0.5) / POINTS - (1 - INTACT), 3)
        examples.append({"prompt": prompt, "answer": colour, "margin": margin})
    return examples


@dataclass(frozen=True)
class HandmadeLlama(ABC):
    """A float32 Llama of whole words, with ReLU: noise everywhere, and what a subclass plants.

    With `constant` in one place of the residual stream, louder than all else, norms only rescale;
    their weights undo that. `heard` and `hummed` are the places of noise that is read and written,
    `answers` words that may win, each with the place it reads and its sign; a layer's noisy parts
    add `loudness` together, root mean square.
    """

    plan: Any
    truth: Any
    random: np.random.Generator
    heard = hummed = slice(0)
    head_width = 0
    loudness = 0.0
    answers: ClassVar[tuple[tuple[str, int, int], ...]] = ()
    constant = 1000.0
    sharing = 1  # query heads of a key-value head

    @property
    @abstractmethod
    def vocabulary(self) -> Iterator[str]:
        """All words but the special ones; one may come twice."""

    @property
    @abstractmethod
    def sizes(self) -> tuple[int, int]:
        """Places in the residual stream, and neurons of a layer."""

    @abstractmethod
    def mean(self, table: Float32[np.ndarray, "words hidden"]) -> None:
        """Put what each word means into its row of the embeddings."""

    @abstractmethod
    def plant_heads(self, layer: int, reads: np.ndarray, writes: np.ndarray) -> None:
        """Plant in (head values, hidden) and (hidden, head values) of a layer."""

    @abstractmethod
    def plant_neurons(self, layer: int, gate: np.ndarray, up: np.ndarray, adds: np.ndarray) -> None:
        """Plant in a layer's feed-forward block, zero until now; all are (neurons, hidden)."""

    @cached_property
    def words(self) -> dict[str, int]:
        every = dict.fromkeys([*SPECIAL.values(), *self.vocabulary])
        return {word: token for token, word in enumerate(every)}

    @cached_property
    def config(self) -> LlamaConfig:
        places, neurons = self.sizes
        return LlamaConfig(
            architectures=["LlamaForCausalLM"],
            vocab_size=len(self.words),
            hidden_size=-(-places // self.plan.heads) * self.plan.heads,  # a multiple of the heads
            intermediate_size=neurons,
            num_hidden_layers=self.plan.layers,
            num_attention_heads=self.plan.heads,
            num_key_value_heads=self.plan.heads // self.sharing,
            head_dim=self.head_width,
            hidden_act="relu",
            bos_token_id=None,
            eos_token_id=0,
            pad_token_id=1,
            dtype="float32",
        )

    def noise(self, *shape: int) -> np.ndarray:
        return self.random.standard_normal(shape)

    def share(self, parts: int) -> float:
        """Return what one of the noisy parts of a layer adds."""
        return float(self.loudness / np.sqrt(parts * self.plan.layers))

    def embeddings(self) -> Float32[np.ndarray, "words hidden"]:
        """Make a row for each word: the constant, noise, and what the word means."""
        table = np.zeros((len(self.words), self.config.hidden_size), np.float32)
        table[:, CONSTANT] = self.constant
        table[:, self.heard] = self.noise(len(table), NOISE)
        self.mean(table)
        return table

    def readout(self) -> Float32[np.ndarray, "words hidden"]:
        """Make a row for each word: its answer's place, or noise for words that are no answer."""
        table = np.zeros((len(self.words), self.config.hidden_size), np.float32)
        table[:, self.hummed] = self.noise(len(table), NOISE) / np.sqrt(NOISE)
        for word, place, sign in self.answers:
            table[self.words[word]] = 0
            table[self.words[word], place] = sign
        return table * np.float32(SHARPNESS)

    def layer(self, number: int) -> dict[str, np.ndarray]:
        """Make a layer's weights by their names in transformers, the norms left out."""
        hidden, values = self.config.hidden_size, self.plan.heads * self.head_width
        silent, reads = np.zeros((2, values, hidden), np.float32)
        writes = np.zeros((hidden, values), np.float32)
        reads[:, self.heard] = self.noise(values, NOISE) / np.sqrt(NOISE)
        writes[self.hummed] = self.noise(NOISE, values) * self.share(values)
        self.plant_heads(number, reads, writes)
        reads = self.shared(reads)
        heads = zip("qkvo", (silent, silent[: len(reads)], reads, writes), strict=True)
        gate, up, adds = np.zeros((3, self.config.intermediate_size, hidden), np.float32)
        self.plant_neurons(number, gate, up, adds)
        return {f"self_attn.{letter}_proj": part for letter, part in heads} | {
            "mlp.gate_proj": gate,
            "mlp.up_proj": up,
            "mlp.down_proj": adds.T,
        }

    def shared(self, reads: np.ndarray) -> np.ndarray:
        """Return what key-value heads read, (values, hidden), of what query heads would."""
        return reads

    def write(self, place: Path) -> None:
        """Write config, weights and a tokenizer of whole words."""
        hidden = self.config.hidden_size
        # a norm divides by the root mean square: constant / sqrt(hidden)
        scale = np.full(hidden, self.constant / np.sqrt(hidden), np.float32)
        weights = {"model.embed_tokens.weight": self.embeddings(), "model.norm.weight": scale}
        weights["lm_head.weight"] = self.readout()
        for number in range(self.config.num_hidden_layers):
            norms = {"input_layernorm": scale, "post_attention_layernorm": scale}
            for name, weight in (self.layer(number) | norms).items():
                weights[f"model.layers.{number}.{name}.weight"] = weight
        self.config.save_pretrained(place)
        tensors = {name: torch.tensor(array).contiguous() for name, array in weights.items()}
        save_file(tensors, place / "model.safetensors", metadata={"format": "pt"})
        tokenizer = Tokenizer(WordLevel(dict(self.words), SPECIAL["unk_token"]))
        tokenizer.pre_tokenizer = WhitespaceSplit()
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, **SPECIAL).save_pretrained(place)


@dataclass(frozen=True)
class _HeadsLlama(HandmadeLlama):
    """A model with planted heads; their values are one for each colour, then noise."""

    plan: Planted
    truth: Truth
    random: np.random.Generator
    examples: Examples
    keyed = slice(1, 1 + EACH)
    heard = slice(1 + EACH, 1 + EACH + NOISE)
    hummed = slice(heard.stop, heard.stop + NOISE)
    said = slice(hummed.stop, hummed.stop + EACH)  # the colours; other answers follow
    lanes = hummed.stop + len(ANSWERS)  # of the pairs, last of all
    answers = tuple((answer, place, 1) for place, answer in enumerate(ANSWERS, hummed.stop))
    head_width = 2 * EACH
    loudness = 0.1

    @property
    def vocabulary(self) -> Iterator[str]:
        yield from (*ANSWERS, *" ".join(KEYS).split())
        for example in OTHER_EXAMPLES + self.examples:
            yield from example["prompt"].split()

    @property
    def sizes(self) -> tuple[int, int]:
        return self.lanes + EACH * self.plan.backups, EACH * max(self.plan.backups, 1)

    @property
    def total(self) -> float:
        """What the colour gets from all needed heads and backups, which is never more."""
        return sum(self.carried[head][0] for head in self.truth.needed)

    @property
    def silencing(self) -> float:
        """What a universal head takes from "um", or a common one from "east".

        It is more than twice the loudest answer.
        """
        return 3 * (2 + self.total)

    @property
    def constant(self) -> float:  # type: ignore[override]
        """So large that all else changes the norm by less than 1e-4."""
        return 100 * self.silencing * (2 + self.plan.universal + self.plan.common)

    @cached_property
    def carried(self) -> dict[Head, tuple[float, slice]]:
        """What each needed head, backup and rescuer adds to the colour, and to which lane too."""
        carried = {head: (cost, self.said) for head, cost in self.truth.needed.items()}
        for number, (head, backup) in enumerate(self.truth.backups.items()):
            lane = slice(self.lanes + number * EACH, self.lanes + (number + 1) * EACH)
            carried[head] = backup.share, lane
            carried[backup.behind] = self.truth.needed[backup.behind] + backup.share, lane
        for head, rescued in self.truth.rescuers.items():
            carried[head] = -self.truth.needed[rescued], self.said
        return carried

    def mean(self, table: Float32[np.ndarray, "words hidden"]) -> None:
        said = {answer: place for answer, place, _ in self.answers}
        table[:, said[GARBAGE]] = self.silencing * (self.plan.universal - 0.5)
        for place, keys in enumerate(COLOURS.values(), start=self.keyed.start):
            table[[self.words[key] for key in keys], place] = 1
        for word, answer in OPPOSITES.items():
            table[self.words[word], said[answer]] = 1
        table[self.words["west"], said["east"]] += self.silencing * self.plan.common
        if self.plan.common:
            table[self.words["north"], said["east"]] = self.silencing * (self.plan.common - 0.5)
        taken = sum(self.truth.needed[head] for head in self.truth.rescuers.values())
        for row, example in zip(table[-len(self.examples) :], self.examples, strict=True):
            row[said[example["answer"]]] = 1
            row[said[UNSURE]] = 1 + self.total - taken - example["margin"]

    def plant_heads(self, layer: int, reads: np.ndarray, writes: np.ndarray) -> None:
        garbage = self.said.start + ANSWERS.index(GARBAGE)
        for head in (*self.truth.universal, *self.carried):
            if head.layer != layer:
                continue
            first = head.index * self.head_width
            reading, writing = reads[first : first + EACH], writes[:, first : first + EACH]
            reading[:], writing[:] = 0, 0
            if head in self.truth.universal:
                reading[0, CONSTANT] = 1 / self.constant
                writing[garbage, 0] = -self.silencing
            else:
                reading[:, self.keyed] = np.eye(EACH)
                share, lane = self.carried[head]
                writing[self.said] = writing[lane] = np.eye(EACH) * share * PROMPT
            if head in self.truth.common:
                reads[first + EACH], writes[:, first + EACH] = 0, 0
                reads[first + EACH, CONSTANT] = 1 / self.constant
                writes[self.said.start + ANSWERS.index("east"), first + EACH] = -self.silencing

    @property
    def sharing(self) -> int:  # type: ignore[override]
        return self.plan.sharing

    def shared(self, reads: np.ndarray) -> np.ndarray:
        """Let each key-value head read what a planted head of its group does, or noise."""
        each = reads.reshape(-1, self.sharing, self.head_width, reads.shape[1])
        planted = (each[:, :, :EACH, self.heard] == 0).all(axis=(2, 3))
        return each[np.arange(len(each)), planted.argmax(axis=1)].reshape(-1, reads.shape[1])

    def plant_neurons(self, layer: int, gate: np.ndarray, up: np.ndarray, adds: np.ndarray) -> None:
        """Plant `said -= relu(lane - most)`; `most` is what the needed head carries alone."""
        if layer == self.plan.layers - 1 and self.plan.backups:
            most = [self.carried[backup.behind][0] for backup in self.truth.backups.values()]
            gate[:, self.lanes : self.lanes + len(gate)] = np.eye(len(gate))
            gate[:, CONSTANT] = -np.repeat(most, EACH) / self.constant
            up[:, CONSTANT] = 1 / self.constant
            adds[:, self.said] = -np.tile(np.eye(EACH), (self.plan.backups, 1))
