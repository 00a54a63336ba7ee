"""MIB's protocol at head level: how well the k best heads alone carry a task.

    python bench/outside.py --models smollm2 --tasks ioi,addition --seeds 3
    python bench/outside.py --models qwen2.5-coder-0.5b --dtype bfloat16 --arc arc_challenge.jsonl
    python bench/outside.py --models qwen2.5-coder-1.5b --dtype bfloat16 --arc ... --most 48
    python bench/outside.py --page                     the tables, from the JSON

All heads but the k that a contender ranks first hand on what they do on the corrupted prompt; the
feed-forward blocks run on what they get. Faithfulness is the difference of two logits, 0 with no
head kept and 1 with all. CPR is the area under it over the share of heads kept, CMD that between it
and 1 (arXiv 2504.13151). For CPR heads are kept by their scores, for CMD by the sizes of these: a
head that works against the answer belongs to what the model does. Contenders rank on examples of
their own, others for every seed; all are judged on the same ones. What was measured is kept in
bench/outside.json and not measured again.
"""

import argparse
import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AttentionInterface

import figures
from caploc import designs
from caploc.models.cutting import knocked_out
from caploc.models.hooks import temporary_hooks
from caploc.models.loading import LoadedModel, load_model
from caploc.options import Settings
from caploc.recovery import Measurements
from caploc.search import Plan, Problem
from caploc.search.scan import Sizes as ScanSizes
from caploc.search.scan import scan_heads, split
from clock import Stopwatch
from measuring import say
from pairs import TASKS, Pair, arc, draw

FIGURES = Path(__file__).with_suffix(".json")
SHARES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)  # of the heads, kept
JUDGED, SEARCHED = 40, 60  # examples; half and half where there are few
BY_GRADIENT, EXACT = 32, 8  # of those searched
LIKELIHOOD = "log-probability"  # the probe
STEPS = 5  # of the integral
SOFTER = 2.0  # temperature of a softmax's gradient
FITTED, FITTED_ON, RATE, PULL = 40, 4, 0.2, 0.01  # steps of a fit, examples of each; Adam; lambda
TOLD = "told apart"  # what of the pairs drawn is kept, in the JSON
FORWARD_AND_BACK = 3  # passes that one forward and backward counts as
BATCH = 24
BOOTSTRAPS = 1000
TRIES = 4000  # pairs drawn to find so many that the model tells apart


@dataclass
class Subject:
    """A model on some pairs: what it reads, under masks that patch or zero heads.

    Values of the corrupted prompts and the inputs of every layer on clean ones are kept, so that a
    mask costs only the layers from its first cut on. `passes` counts readings of a prompt.
    """

    loaded: LoadedModel
    pairs: Sequence[Pair]
    passes: int = 0
    sources: dict[int, list[Tensor]] = field(default_factory=dict)
    entered: dict[int, list[Tensor]] = field(default_factory=dict)
    given: dict[int, dict[str, Any]] = field(default_factory=dict)  # by length of prompt
    known: dict[bytes, np.ndarray] = field(default_factory=dict)  # differences, by mask

    @property
    def decoder(self) -> Any:
        """The stack of layers."""
        return self.loaded.model.get_decoder()

    def handed_on(self, ids: Tensor) -> list[Tensor]:
        """What each layer's heads hand to its projection: examples x tokens x values."""
        seen: list[Tensor] = []
        with temporary_hooks(
            each.register_forward_pre_hook(lambda _, args: seen.append(args[0].detach()))
            for each in self.projections
        ):
            self.decoder(ids, use_cache=False)
        self.passes += len(ids)
        return seen

    @property
    def projections(self) -> list[Any]:
        """The output projections, all of which have heads."""
        return [each for each in self.loaded.projections if each is not None]

    @torch.no_grad()
    def prepare(self) -> None:
        """Read every prompt once, clean and corrupted."""
        for number, pair in enumerate(self.pairs):
            corrupted = self.handed_on(torch.tensor([pair.corrupted]))
            self.sources[number] = [each[0] for each in corrupted]
            inputs: list[Tensor] = []

            def note(
                _: Any, args: Any, kwargs: Any, inputs: Any = inputs, pair: Any = pair
            ) -> None:
                inputs.append(args[0] if args else kwargs["hidden_states"])
                self.given[len(pair.clean)] = {
                    name: value for name, value in kwargs.items() if name != "hidden_states"
                }

            with temporary_hooks(
                layer.register_forward_pre_hook(note, with_kwargs=True)
                for layer in self.decoder.layers
            ):
                self.decoder(torch.tensor([pair.clean]), use_cache=False)
            self.entered[number] = inputs
            self.passes += 1

    @torch.no_grad()
    def read(
        self, masks: np.ndarray, examples: Sequence[int], *, patch: bool
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Row by row: the logits' difference, log-probability of the answer, whether likeliest."""
        found = np.zeros((3, len(masks)))
        rows = defaultdict(list)
        for row, (mask, example) in enumerate(zip(masks, examples, strict=True)):
            cut = [columns for columns in self.loaded.grid.layer_slices if mask[columns].any()]
            first = self.loaded.grid.layer_slices.index(cut[0]) if cut else 0
            rows[first, len(self.pairs[example].clean)].append(row)
        for (first, _), alike in rows.items():
            for start in range(0, len(alike), BATCH):
                part = alike[start : start + BATCH]
                chosen = [examples[row] for row in part]
                logits = self.run(masks[part], chosen, first, patch)
                found[:, part] = self.outcomes(logits, chosen)
        self.passes += len(masks)
        return found[0], found[1], found[2]

    def run(self, masks: np.ndarray, chosen: list[int], first: int, patch: bool) -> Tensor:
        """Logits after prompts of one length, from the first layer that is cut on."""
        length = len(self.pairs[chosen[0]].clean)
        hidden = torch.cat([self.entered[number][first] for number in chosen])

        def corrupted(layer: int, per_head: Tensor) -> Tensor:
            values = torch.stack([self.sources[number][layer] for number in chosen])
            return values.reshape(per_head.shape)

        cut = torch.from_numpy(masks)
        with knocked_out(
            self.loaded.projections, self.loaded.grid, cut, corrupted if patch else None
        ):
            for layer in self.decoder.layers[first:]:
                hidden = layer(hidden, **self.given[length])
        return self.logits(hidden[:, -1])

    def logits(self, last: Tensor) -> Tensor:
        """The logits of normed hidden states."""
        head: Any = self.loaded.model.get_output_embeddings()
        return head(self.decoder.norm(last))

    def outcomes(self, logits: Tensor, chosen: Sequence[int]) -> np.ndarray:
        """See `read`."""
        logprobs = logits.double().log_softmax(-1)
        place = torch.arange(len(chosen))
        answer = torch.tensor([self.pairs[number].answer for number in chosen])
        other = torch.tensor([self.pairs[number].other for number in chosen])
        right, wrong = logprobs[place, answer], logprobs[place, other]
        likeliest = (logprobs.argmax(-1) == answer).double()
        return torch.stack([right - wrong, right, likeliest]).numpy()

    def crossed(self, masks: np.ndarray, examples: Sequence[int]) -> np.ndarray:
        """Differences of logits under every mask on every example, patched: masks x examples."""
        each = np.repeat(masks, len(examples), axis=0)
        return self.read(each, [*examples] * len(masks), patch=True)[0].reshape(len(masks), -1)

    def judged(self, mask: np.ndarray) -> np.ndarray:
        """The same on all examples, asked once for each mask."""
        if mask.tobytes() not in self.known:
            self.known[mask.tobytes()] = self.crossed(mask[None], range(len(self.pairs)))[0]
        return self.known[mask.tobytes()]


Scores = np.ndarray  # of every head, the larger the more its patching takes from the difference


def scanned(subject: Subject, seed: int, *, patch: bool) -> Scores:
    """The scan of caploc's default search: falls of the log-odds of the answer.

    It asks examples on which the answer's logit is the larger of the two, which all are. A head is
    zeroed, as by default, or patched.
    """
    heads = subject.loaded.grid.size
    problem = Problem(heads, range(len(subject.pairs)), Settings(seed=seed), signal=LIKELIHOOD)

    def answer(plan: Plan) -> Measurements:
        examples = plan.example.tolist()
        difference, logprob, _ = subject.read(plan.masks[plan.mask], examples, patch=patch)
        kept = (difference > 0).astype(float)
        return Measurements(plan.masks, plan.mask, plan.example, logprob, kept)

    sizes = ScanSizes.of(problem)
    part, _ = split(problem, sizes.trial)
    scanning, measured = scan_heads(problem, sizes, part), None
    while True:
        try:
            plan = next(scanning) if measured is None else scanning.send(measured)
        except StopIteration as end:
            return end.value.mean_fall
        measured = answer(plan)


def exact(subject: Subject, seed: int) -> Scores:
    """Patch each head alone: by how much the difference falls."""
    examples = range(EXACT)
    heads = subject.loaded.grid.size
    intact = subject.crossed(np.zeros((1, heads), dtype=bool), examples)
    alone = subject.crossed(designs.singles(heads), examples)
    return (intact - alone).mean(axis=1)


def at_random(subject: Subject, seed: int) -> Scores:
    """Any order."""
    return designs.generator(seed).permutation(subject.loaded.grid.size) + 1.0


@contextmanager
def watching(modules: Sequence[Any]) -> Iterator[list[Tensor]]:
    """Branch off the input of each module, so that its gradient is that of this branch alone."""
    seen: list[Tensor] = []

    def branch(_: Any, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        own = args[0].clone()
        own.retain_grad()
        seen.append(own)
        return own, *args[1:]

    with temporary_hooks(each.register_forward_pre_hook(branch) for each in modules):
        yield seen


def gradients(subject: Subject, number: int, modules: Sequence[Any], steps: int) -> list[Tensor]:
    """Gradients of the difference at each module's input, from clean embeddings on (1 step), or
    as the mean along the way from the corrupted ones."""
    pair = subject.pairs[number]
    model: Any = subject.loaded.model
    with torch.no_grad():
        clean, corrupted = (
            model.get_input_embeddings()(torch.tensor([ids]))
            for ids in (pair.clean, pair.corrupted)
        )
    total: list[Tensor] = []
    for step in range(1, steps + 1):
        with torch.enable_grad(), watching(modules) as seen:
            start = (corrupted + step / steps * (clean - corrupted)).requires_grad_()
            hidden = subject.decoder(inputs_embeds=start, use_cache=False).last_hidden_state
            logits = model.get_output_embeddings()(hidden[0, -1])
            (logits[pair.answer] - logits[pair.other]).backward()
        read = [each.grad / steps for each in seen]
        total = [a + b for a, b in zip(total, read, strict=True)] if total else read
        subject.passes += FORWARD_AND_BACK
    return total


def changes(subject: Subject, number: int) -> list[Tensor]:
    """What patching changes in what each layer's heads hand on: tokens x values."""
    with torch.no_grad():
        clean = subject.handed_on(torch.tensor([subject.pairs[number].clean]))
    subject.passes += 1  # the corrupted prompt was read before
    return [new - old[0] for new, old in zip(subject.sources[number], clean, strict=True)]


def halved(values: Tensor) -> Tensor:
    """The same values, half of their gradient."""
    return values / 2 + values.detach() / 2


def attend_gently(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, scaling: float, **_: Any
) -> tuple[Tensor, None]:
    """Attend to all before, the gradients as GIM has them: see `gently`."""
    groups = query.shape[1] // key.shape[1]
    key, value = (each.repeat_interleave(groups, dim=1) for each in (key, value))
    logits = halved(query @ key.mT * scaling)
    later = torch.ones(logits.shape[-2:], dtype=torch.bool).triu(1)
    logits = logits.masked_fill(later, torch.finfo(logits.dtype).min)
    soft = SOFTER * (logits / SOFTER).softmax(-1)
    pattern = logits.softmax(-1).detach() + soft - soft.detach()
    return halved(pattern @ value).transpose(1, 2).contiguous(), None


AttentionInterface.register("gim", attend_gently)


@contextmanager
def gently(subject: Subject) -> Iterator[None]:
    """Gradients as GIM has them (Edin et al., 2025, arXiv 2505.17630), values as ever.

    Of a product either factor gets half; a softmax's are taken at a higher temperature, without
    the factor of that; a norm counts as a constant factor. The factors of a gated feed-forward
    block are among the products, which the package of GIM's makers left out up to 0.1.4.
    """
    model: Any = subject.loaded.model
    before = model.config._attn_implementation

    def scale(_: Any, args: tuple[Tensor, ...], out: Tensor) -> Tensor:
        return args[0] * torch.where(args[0] == 0, 0, out / args[0]).detach()

    norms = [each for name, each in model.named_modules() if name.endswith("norm")]
    model.set_attn_implementation("gim")
    try:
        with temporary_hooks(
            [
                *(each.register_forward_hook(scale) for each in norms),
                *(
                    layer.mlp.down_proj.register_forward_pre_hook(lambda _, args: halved(args[0]))
                    for layer in subject.decoder.layers
                ),
            ]
        ):
            yield
    finally:
        model.set_attn_implementation(before)


def gentle_attribution(subject: Subject, seed: int) -> Scores:
    """NAP with GIM's gradients."""
    with gently(subject):
        return attribution(subject, seed)


def learned_gates(subject: Subject, seed: int) -> Scores:
    """Causal head gating (CHG; Nam et al., 2025, arXiv 2505.13737), gates of patches.

    A gate lets a head's value through in part, the rest is what it does on the corrupted prompt
    (theirs is zero). The gates are fitted to the answer's log-probability; from there once more
    with a pull up and once with one down. A head scores what is left of it under both, in log-odds.
    """
    rng, heads = random.Random(seed), subject.loaded.grid.size
    head: Any = subject.loaded.model.get_output_embeddings()

    def fit(start: Tensor, pull: float) -> Tensor:
        odds = start.clone().requires_grad_()
        adam = torch.optim.Adam([odds], lr=RATE)
        for _ in range(FITTED):
            for number in rng.sample(range(len(subject.pairs)), FITTED_ON):
                pair = subject.pairs[number]

                def gate(layer: int, args: Any, number: int = number) -> tuple[Tensor, ...]:
                    part = odds[subject.loaded.grid.layer_slices[layer]].sigmoid()
                    part = part.repeat_interleave(args[0].shape[-1] // len(part)).to(args[0].dtype)
                    return part * args[0] + (1 - part) * subject.sources[number][layer], *args[1:]

                with temporary_hooks(
                    each.register_forward_pre_hook(lambda _, args, n=n, gate=gate: gate(n, args))
                    for n, each in enumerate(subject.projections)
                ):
                    hidden = subject.decoder(torch.tensor([pair.clean]), use_cache=False)
                    logits = head(hidden.last_hidden_state[0, -1])
                (-logits.float().log_softmax(-1)[pair.answer] / FITTED_ON).backward()
                subject.passes += FORWARD_AND_BACK
            odds.grad -= pull
            adam.step()
            adam.zero_grad()
        return odds.detach()

    with torch.enable_grad():
        free = fit(torch.zeros(heads), 0.0)
        return (fit(free, PULL) + fit(free, -PULL)).double().numpy()


def attribution(subject: Subject, seed: int, *, steps: int = 1) -> Scores:
    """Node attribution patching (NAP; Nanda, 2023), or with integrated gradients (NAP-IG)."""
    effect = np.zeros(subject.loaded.grid.size)
    examples = range(min(BY_GRADIENT, len(subject.pairs)))
    for number in examples:
        slopes = gradients(subject, number, subject.projections, steps)
        for layer, change in enumerate(changes(subject, number)):
            columns = subject.loaded.grid.layer_slices[layer]
            each = (change * slopes[layer][0]).unflatten(-1, (columns.stop - columns.start, -1))
            effect[columns] += each.sum(dim=(0, 2)).double().numpy()
    return -effect / len(examples)


def edges(subject: Subject, seed: int) -> Scores:
    """EAP-IG (Hanna et al., 2024): the sizes of a head's edges, summed.

    An edge leads to what a later attention or feed-forward block reads, or to the logits. Summed
    with their signs, edges would give NAP-IG: all that a head writes goes through them.
    """
    layers = list(subject.decoder.layers)
    readers = [
        each for layer in layers for each in (layer.input_layernorm, layer.post_attention_layernorm)
    ]
    readers.append(subject.decoder.norm)
    heads, grid = subject.loaded.grid.size, subject.loaded.grid
    effect = np.zeros((heads, len(readers)))
    examples = range(min(BY_GRADIENT, len(subject.pairs)))
    for number in examples:
        slopes = gradients(subject, number, readers, STEPS)
        for layer, change in enumerate(changes(subject, number)):
            columns = grid.layer_slices[layer]
            weight = subject.projections[layer].weight
            later = torch.cat(slopes[2 * layer + 1 :])  # readers x tokens x hidden
            each = (later @ weight) * change
            each = each.unflatten(-1, (columns.stop - columns.start, -1)).sum(dim=(1, 3))
            effect[columns, 2 * layer + 1 :] += each.T.double().numpy()
    return np.abs(effect).sum(axis=1) / len(examples)


CONTENDERS: dict[str, Callable[[Subject, int], Scores]] = {
    "caploc's scan": lambda subject, seed: scanned(subject, seed, patch=False),
    "caploc's scan, patched": lambda subject, seed: scanned(subject, seed, patch=True),
    "NAP": attribution,
    "NAP-IG": lambda subject, seed: attribution(subject, seed, steps=STEPS),
    "EAP-IG, summed": edges,
    "GIM": gentle_attribution,
    "CHG": learned_gates,
    "exact patching": exact,
    "random": at_random,
}


def sizes(heads: int) -> list[int]:
    """Heads kept at each of the protocol's sizes."""
    return [int(share * heads) for share in SHARES]


def judge(subject: Subject, scores: Scores) -> list[list[float]]:
    """Differences of logits at each size on each example; none kept stands first."""
    heads = subject.loaded.grid.size
    ranking = np.argsort(-scores, kind="stable")
    wanted = sorted({0, *sizes(heads)})
    masks = np.ones((len(wanted), heads), dtype=bool)
    for mask, kept in zip(masks, wanted, strict=True):
        mask[ranking[:kept]] = False
    read = dict(zip(wanted, map(subject.judged, masks), strict=True))
    return [np.round(read[kept], 4).tolist() for kept in (0, *sizes(heads))]


def areas(differences: np.ndarray) -> tuple[float, float]:
    """CPR and CMD of differences, sizes x examples; the first row has no head kept."""
    mean = differences.mean(axis=-1)
    faithful = (mean[1:] - mean[0]) / (mean[-1] - mean[0])
    return (
        float(np.trapezoid(faithful, SHARES)),
        float(np.trapezoid(np.abs(1 - faithful), SHARES)),
    )


def select(loaded: LoadedModel, task: str, count: int) -> list[Pair]:
    """The first pairs both prompts of which the model answers as they call for.

    Of the two answers the right one has the larger logit. Fewer come back if there are fewer. The
    numbers of those taken are kept, and the clean prompts' differences of all that were asked.
    """
    kept: dict[str, Any] = figures.read(FIGURES)
    case = kept.get(TOLD, {}).get(f"{loaded.name} {task}", {"taken": [], "clean": []})
    taken, clean = set(case["taken"]), list(case["clean"])
    found: list[Pair] = []
    for number, pair in zip(range(TRIES), draw(task, loaded.tokenizer), strict=False):
        if len(found) == count:
            break
        if number >= len(clean):
            with torch.no_grad():
                hidden = loaded.model.get_decoder()(
                    torch.tensor([pair.clean, pair.corrupted]), use_cache=False
                ).last_hidden_state[:, -1]
                logits: Any = loaded.model.get_output_embeddings()(hidden)  # type: ignore[misc]
            apart = logits[:, pair.answer] - logits[:, pair.other]
            clean.append(round(float(apart[0]), 3))
            if apart[0] > 0 > apart[1]:
                taken.add(number)
        if number in taken:
            found.append(pair)
    kept.setdefault(TOLD, {})[f"{loaded.name} {task}"] = {"taken": sorted(taken), "clean": clean}
    FIGURES.write_text(json.dumps(kept, separators=(",", ":")) + "\n")
    return found


def run(
    loaded: LoadedModel, task: str, seeds: int, methods: Sequence[str], most: int | None
) -> None:
    """Measure what is missing, seed by seed."""
    kept: dict[str, Any] = figures.read(FIGURES)
    case = kept.setdefault(f"{loaded.name} {task}", {})
    missing = [
        (seed, name)
        for seed in range(seeds)
        for name in methods
        if str(seed) not in case.get(name, {})
    ]
    if not missing:
        return
    pairs = select(loaded, task, most or JUDGED + seeds * SEARCHED)
    say(f"{loaded.name} {task}: {len(pairs)} pairs")
    judged = min(JUDGED, len(pairs) // 2)
    judging = Subject(loaded, pairs[:judged])
    judging.prepare()
    for seed in sorted({seed for seed, _ in missing}):
        mine = pairs[judged + seed * SEARCHED :][:SEARCHED]
        source = Subject(loaded, mine)
        source.prepare()
        for name in (name for number, name in missing if number == seed):
            source.passes, watch = 0, Stopwatch()
            scores = CONTENDERS[name](source, seed)
            took = watch.read()
            signed = judge(judging, scores)
            entry = {
                "passes": source.passes,
                "cpu": round(took.cpu, 1),
                "scores": [float(f"{score:.4g}") for score in scores],
                "signed": signed,
                "sizes": judge(judging, np.abs(scores)) if (scores < 0).any() else signed,
            }
            kept = figures.read(FIGURES)
            kept.setdefault(f"{loaded.name} {task}", {}).setdefault(name, {})[str(seed)] = entry
            FIGURES.write_text(json.dumps(kept, separators=(",", ":")) + "\n")
            cpr, cmd = areas(np.array(signed))[0], areas(np.array(entry["sizes"]))[1]
            say(f"  {seed} {name}: CPR {cpr:.2f} CMD {cmd:.2f} {source.passes} passes")


def interval(tables: np.ndarray, which: int) -> tuple[float, float, float]:
    """CPR (0) or CMD (1), mean over seeds, and its 95 % interval over examples and seeds.

    `tables` is seeds x sizes x examples; the bootstrap draws examples, and seeds, anew.
    """
    rng = random.Random(0)
    seeds, _, examples = tables.shape
    drawn = []
    for _ in range(BOOTSTRAPS):
        part = rng.choices(range(examples), k=examples)
        each = [areas(tables[rng.randrange(seeds)][:, part])[which] for _ in range(seeds)]
        drawn.append(np.mean(each))
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(np.mean([areas(each)[which] for each in tables])), float(low), float(high)


def page() -> None:
    """Print a table for each model and task."""
    kept = figures.read(FIGURES)
    told_apart = kept.pop(TOLD, {})
    for case, contenders in kept.items():
        clean = np.array(told_apart.get(case, {"clean": []})["clean"])
        print(f"\n**{case}**\n")
        print(
            f"{len(clean)} pairs drawn, {np.mean(clean > 0):.2f} right (difference "
            f"{clean.mean():.2f}), {len(told_apart[case]['taken'])} told apart\n"
            if len(clean)
            else ""
        )
        print("| | CMD | CPR | passes | CPU s | seeds |\n|---|--:|--:|--:|--:|--:|")
        lines = []
        for name, seeds in contenders.items():
            cpr, cmd = (
                interval(np.array([each[order] for each in seeds.values()]), which)
                for which, order in enumerate(("signed", "sizes"))
            )
            cells = (f"{mean:.2f} ({low:.2f}–{high:.2f})" for mean, low, high in (cmd, cpr))
            passes, cpu = (
                np.mean([each[cost] for each in seeds.values()]) for cost in ("passes", "cpu")
            )
            told = " | ".join(cells)
            lines.append(
                (cmd[0], f"| {name} | {told} | {passes:,.0f} | {cpu:.0f} | {len(seeds)} |")
            )
        print("\n".join(line for _, line in sorted(lines)))


def main() -> None:
    """Run what is missing, or print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="smollm2")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--tasks", default="ioi,addition,choice")
    parser.add_argument("--arc", type=Path, help="ARC's questions, JSON lines: a task, arc")
    parser.add_argument("--methods", default="/".join(CONTENDERS), help="joined by /")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--most", type=int, help="pairs of a task, half of them to judge on")
    parser.add_argument("--page", action="store_true")
    asked = parser.parse_args()
    if asked.page:
        return page()
    torch.set_num_threads(1)
    if asked.arc:
        TASKS["arc"] = partial(arc, asked.arc)
    for model in asked.models.split(","):
        loaded = load_model(model, device="cpu", dtype=asked.dtype)
        loaded.model.requires_grad_(False)
        for task in asked.tasks.split(","):
            run(loaded, task, asked.seeds, asked.methods.split("/"), asked.most)


if __name__ == "__main__":
    main()
