"""What heads can cut out and leave the rest alone, beside an optimizer's search and a trained edit.

    pip install "optuna>=4.5" peft
    python bench/cuts.py --models smollm2 --tasks capital,antonym,country
    python bench/cuts.py --page                              the page again, from the JSON

On every task: the five heads that matter most alone, the set that breaks it most, the specific set
that the search puts first when it has as many rows as Optuna and nothing is checked, what Optuna's
sampler finds, and a LoRA trained to make right answers unlikely and leave everything else as it was
(in the manner of arXiv 2601.07411). A task that has a twin (the same in other words) must be cut
out in both. All are judged on the same examples, which none of them saw. Rows are kept in
build/cuts and asked once.
"""

import argparse
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TQDM_DISABLE", "1")

import numpy as np
import torch

from caploc import designs
from caploc.declaration import ModelOptions
from caploc.measurement import Meter, Meters
from caploc.options import Settings, TaskOptions
from caploc.progress import Silent
from caploc.search import METHODS, Found, Problem, column_mask
from caploc.search.plan import OtherTask, Plan
from caploc.store import Store
from caploc.tasks.catalog import list_twins
from caploc.tasks.task import LogLikelihood, Task
from caploc.validation import Check
from driving import metered
from measuring import say

ROWS = Path("build/cuts")
SIDES = ("past", "upper", "plural", "digits", "third_person")  # the first three others are spared
SPARED = 3
# Examples of the spared tasks; of those to cut out twice as many are searched, half of all at most.
SEARCHED, CHECKED = 60, 110
TOP, PRICE = 5, 0.05  # a price of .02 takes 150 examples to promise that a set keeps it
ROWS_A_HEAD = 8
EXCESS = 20.0  # what a point beyond the price weighs against a point of damage
ELSEWHERE = 24  # examples of each other task, to tell heads that break everything
AS_MANY = 3  # times the rows of a search
EACH = 15  # examples of each task for a set that Optuna tries
RANK, STEPS, BATCH, RATE = 8, 120, 8, 5e-4  # of the LoRA
ENOUGH = -6.0  # nats a token; a right answer less likely than this is not pushed down further
KEEPING = 4.0  # weight of what is to stay as it was


def likely(name: str) -> str:
    """Name the probe of how likely a task's right answers are."""
    return f"{name}.likelihood"


@dataclass
class Cutting:
    """A model, the task to cut out and those to leave alone, each with its examples."""

    engine: Any
    names: list[str]  # of the task and the spared ones
    meters: dict[str, Meter]  # by probe
    targets: int  # of the tasks, the first so many are to be cut out
    searching: list[list[int]]
    checking: list[list[int]]
    judging: list[list[int]]

    @classmethod
    def prepare(cls, bench: Meters[Any], tasks: Sequence[Task], targets: int) -> "Cutting":
        """Split every task's examples in three."""
        meters = {task.name: bench.meter(task) for task in tasks} | {
            likely(task.name): bench.meter(task.with_outcome("logprob")) for task in tasks
        }
        parts: tuple[list[list[int]], ...] = ([], [], [])
        for number, task in enumerate(tasks):
            order = designs.generator(7).permutation(task.size).tolist()
            first = min(SEARCHED if number >= targets else 2 * SEARCHED, task.size // 2)
            cuts = np.split(order, [first, first + min(CHECKED, (task.size - first) // 2)])
            for part, cut in zip(parts, cuts, strict=True):
                part.append(cut.tolist())
        return cls(bench.engine, [task.name for task in tasks], meters, targets, *parts)

    @property
    def count(self) -> int:
        """Tasks."""
        return len(self.searching)

    @property
    def heads(self) -> int:
        """Of the model."""
        return int(self.engine.grid.size)

    @property
    def budget(self) -> int:
        """Rows of a search."""
        return ROWS_A_HEAD * self.heads

    def problem(self, settings: Settings) -> Problem:
        """What a search is given."""
        sides = [
            OtherTask(name, self.searching[number], likely(name), twin=number < self.targets)
            for number, name in enumerate(self.names)
            if number
        ]
        return Problem(
            self.heads,
            self.searching[0],
            settings,
            fresh=self.checking[0],
            elsewhere={
                name: part[:ELSEWHERE]
                for name, part in zip(
                    self.names[self.targets :], self.searching[self.targets :], strict=True
                )
            },
            probe=self.names[0],
            signal=likely(self.names[0]),
            sides=sides,
        )

    def search(self, seed: int, goal: str, times: int = 1) -> tuple[Found, int]:
        """What caploc finds in so many times the rows of a search, and the rows it took."""
        budget = times * self.budget
        settings = Settings(goal=goal, seed=seed, budget=budget, price=PRICE, top=TOP)
        done = metered(METHODS["scan"].search(self.problem(settings)), self.meters)
        return done.found, done.rows

    def check(self, number: int, examples: Sequence[int]) -> Check:
        """Outcomes of a task on some examples."""
        grid = self.engine.loaded.grid
        return Check(self.meters[self.names[number]], grid, examples, True, 0, 0, Silent())

    def outcomes(
        self, sets: Sequence[Sequence[int]], parts: Sequence[Sequence[int]]
    ) -> list[np.ndarray]:
        """Outcomes of these examples of each task, intact and by each set: sets + 1 x examples."""
        masks = np.stack([column_mask(self.heads, each) for each in ((), *sets)])
        return [
            self.check(number, examples).outcomes(masks, "sets")
            for number, examples in enumerate(parts)
        ]

    def changes(self, sets: Sequence[Sequence[int]], parts: Sequence[Sequence[int]]) -> np.ndarray:
        """Mean change of every task's score by every set, on these examples: sets x tasks."""
        scores = np.array([each.mean(axis=1) for each in self.outcomes(sets, parts)]).T
        changed: np.ndarray = scores[1:] - scores[0]
        return changed

    def worth(self, change: np.ndarray) -> float:
        """The least that a target loses, less what the spared tasks lose beyond the price."""
        damage = -change[: self.targets].max()
        return float(damage - EXCESS * np.maximum(-change[self.targets :] - PRICE, 0).sum())


Arm = tuple[list[int], int]  # the heads, and the rows it took to find them


def top_five(cutting: Cutting, seed: int) -> Arm:
    """The heads that matter most alone."""
    found, rows = cutting.search(seed, "heads")
    return found.chosen, rows


def most_damaging(cutting: Cutting, seed: int) -> Arm:
    """The set that breaks the task most."""
    found, rows = cutting.search(seed, "set")
    return found.chosen, rows


def unchecked(cutting: Cutting, seed: int) -> Arm:
    """The set that is best by what that search saw, in as many rows as Optuna has."""
    found, rows = cutting.search(seed, "specific", AS_MANY)
    return found.chosen, rows


def sampled(cutting: Cutting, seed: int) -> Arm:
    """What Optuna's tree-structured estimator finds, a set of heads a trial."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    examples = [part[:EACH] for part in cutting.searching]
    a_trial = sum(map(len, examples))
    tried: dict[tuple[int, ...], float] = {}

    def objective(trial: Any) -> float:
        columns = {trial.suggest_int(f"head {n}", 0, cutting.heads - 1) for n in range(TOP)}
        chosen = tuple(sorted(columns))
        tried[chosen] = cutting.worth(cutting.changes([chosen], examples)[0])
        return tried[chosen]

    sampler = optuna.samplers.TPESampler(seed=seed)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    trials = AS_MANY * cutting.budget // a_trial
    study.optimize(objective, n_trials=trials)
    best = max(tried, key=tried.__getitem__)
    return list(best) if tried[best] > 0 else [], trials * a_trial


ARMS: dict[str, Callable[[Cutting, int], Arm]] = {
    "first five": top_five,
    "set": most_damaging,
    "specific unchecked": unchecked,
    "Optuna": sampled,
}
LORA = "LoRA"


def train_lora(cutting: Cutting, model: Any, tokenizer: Any, seed: int) -> None:
    """Make right answers of the task unlikely, and leave those of other tasks as likely."""
    import peft

    torch.manual_seed(seed)
    random = designs.generator(seed)
    config = peft.LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules="all-linear")
    adapted = peft.get_peft_model(model, config)
    optimizer = torch.optim.AdamW(
        (weight for weight in adapted.parameters() if weight.requires_grad), lr=RATE
    )
    for _ in range(STEPS):
        pushed = [
            nats(adapted, tokenizer, likelihood(cutting, target, each))
            for target in range(cutting.targets)
            for each in random.choice(
                cutting.searching[target], BATCH // cutting.targets, replace=False
            )
        ]
        loss = torch.stack([(each - ENOUGH).clamp(min=0).mean() for each in pushed]).mean()
        numbers = random.integers(cutting.targets, cutting.count, BATCH // 2)
        for number in numbers:
            request = likelihood(cutting, number, int(random.choice(cutting.searching[number])))
            with torch.no_grad(), adapted.disable_adapter():
                before = logits(adapted, tokenizer, request)
            after = logits(adapted, tokenizer, request)
            kept = torch.nn.functional.kl_div(
                after.log_softmax(-1), before.log_softmax(-1), log_target=True, reduction="none"
            )
            loss = loss + KEEPING * kept.sum(-1).mean() / len(numbers)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    adapted.merge_and_unload()


def likelihood(cutting: Cutting, number: int, example: int) -> LogLikelihood:
    """The request for a right answer's likelihood."""
    (request,) = cutting.meters[likely(cutting.names[number])].task.requests(example)
    assert isinstance(request, LogLikelihood)
    return request


def logits(model: Any, tokenizer: Any, request: LogLikelihood) -> torch.Tensor:
    """Of every token of a prompt and its right answer, what the model says comes next."""
    ids = tokenizer(request.context + request.continuation, return_tensors="pt")["input_ids"]
    said: torch.Tensor = model(ids).logits[0, :-1].float()
    return said


def nats(model: Any, tokenizer: Any, request: LogLikelihood) -> torch.Tensor:
    """The log-probability of each token of the right answer."""
    text = request.context + request.continuation
    ids = torch.tensor(tokenizer(text)["input_ids"])
    first = len(tokenizer(request.context)["input_ids"])
    said = logits(model, tokenizer, request).log_softmax(-1)
    chosen: torch.Tensor = said.gather(1, ids[1:, None])[first - 1 :, 0]
    return chosen


def run_lora(
    cutting: Cutting, options: ModelOptions, tasks: Sequence[str], seed: int
) -> list[np.ndarray]:
    """Outcomes of the examples for judgement, intact and by the trained edit: 2 x examples each."""
    loaded = cutting.engine.loaded
    intact = [each[0] for each in cutting.outcomes([], cutting.judging)]
    with TemporaryDirectory() as place:
        loaded.model.save_pretrained(place)
        loaded.tokenizer.save_pretrained(place)
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32)
        train_lora(cutting, model, loaded.tokenizer, seed)
        model.save_pretrained(place)
        edited = ModelOptions(place, device="cpu")
        with Store(Path(place) / "rows.sqlite") as store:
            bench = Meters(edited.engine(), store)
            after = [
                bench.meter(task).measure(
                    Plan.crossed(task.name, column_mask(cutting.heads, ())[None], part),
                    Silent(),
                    "edited",
                )
                for task, part in zip(
                    edited.tasks(tasks, TaskOptions()), cutting.judging, strict=True
                )
            ]
    return [
        np.stack([before, [row.outcome for row in rows]])
        for rows, before in zip(after, intact, strict=True)
    ]


def run_case(name: str, task: str, arguments: argparse.Namespace, kept: dict[str, Any]) -> None:
    """Every arm on a model and a task that was not run before."""
    options = ModelOptions(name, device="cpu")
    twin = list_twins(f"words/{task}")
    sides = [f"words/{side}" for side in SIDES if side != task][:SPARED]
    tasks = [f"words/{task}", *twin, *sides]
    place = ROWS / f"{name}-{task}"
    place.mkdir(parents=True, exist_ok=True)
    runs = kept.setdefault(f"{name}-{task}", {"tasks": tasks, "runs": []})
    done = {(run["arm"], run["seed"]) for run in runs["runs"]}
    with Store(place / "rows.sqlite") as store:
        bench = Meters(options.engine(), store)
        built = options.tasks(tasks, TaskOptions())
        cutting = Cutting.prepare(bench, built, 1 + len(twin))
        for arm, seed in product(arguments.arms, range(arguments.seeds)):
            if (arm, seed) in done:
                continue
            if arm == LORA:
                chosen, rows = None, STEPS * (BATCH + BATCH // 2 * 2)
                found = run_lora(cutting, options, tasks, seed)
            else:
                columns, rows = ARMS[arm](cutting, seed)
                chosen = [str(cutting.engine.loaded.grid.components[column]) for column in columns]
                found = cutting.outcomes([columns], cutting.judging)
            changes = [each[1] - each[0] for each in found]
            run = {
                "arm": arm,
                "seed": seed,
                "heads": chosen,
                "rows": rows,
                "intact": [float(each[0].mean()) for each in found],
                "change": [float(each.mean()) for each in changes],
                "error": [float(each.std(ddof=1) / len(each) ** 0.5) for each in changes],
                "worth": cutting.worth(np.array([each.mean() for each in changes])),
            }
            runs["runs"].append(run)
            say(f"{name}, {task}: {arm}, seed {seed}: {np.round(run['change'], 3)} {chosen}")
            arguments.file.write_text(json.dumps(kept, indent=1) + "\n")


ABOUT = """\
# Cutting a task out: heads, an optimizer, a trained edit

Written by `bench/cuts.py`. Points of accuracy that each way takes from the task, from its twin (the
same in other words) and from the tasks to be left alone, with standard errors, on the same examples
that none of them saw. *Rows* is what was asked to find it: a mask on one example; of the LoRA,
texts of its training. *Worth* is the smaller of the first two losses, less twenty times what others
lose beyond five points: what Optuna was told to look for. *Specific unchecked* is the set that the
search for a specific set puts first with as many rows as Optuna has, taken as it is, as Optuna's
is: here the two can be compared.
"""


def page(kept: dict[str, Any]) -> str:
    """A table a case."""
    lines = [ABOUT]
    for name, case in kept.items():
        titles = [each.removeprefix("words/") for each in case["tasks"]]
        intact = [
            f"{title} ({100 * case['runs'][0]['intact'][n]:.0f})" for n, title in enumerate(titles)
        ]
        lines += [f"## {name}\n", f"| way | seed | rows | worth | {' | '.join(intact)} | heads |"]
        lines.append("|---" + "|--:" * (len(titles) + 3) + "|---|")
        for run in sorted(case["runs"], key=lambda run: [*ARMS, LORA].index(run["arm"])):
            both = zip(run["change"], run["error"], strict=True)
            cells = [f"{100 * change:+.1f} ± {100 * error:.1f}" for change, error in both]
            heads = "all weights" if run["heads"] is None else " ".join(run["heads"]) or "none"
            worth = f"{100 * run['worth']:+z.0f}"
            told = [run["arm"], str(run["seed"]), f"{run['rows']:,}", worth, *cells, heads]
            lines.append(f"| {' | '.join(told)} |")
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    """Run what was asked for and write the page from all that is known."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--models", type=lambda text: text.split(","), default=["smollm2"])
    add("--tasks", type=lambda text: text.split(","), default=["capital", "antonym"])
    add("--arms", type=lambda text: text.split(","), default=[*ARMS, LORA])
    add("--seeds", type=int, default=1)
    add("--page", action="store_true", help="run nothing")
    add("--out", type=Path, default=Path("docs/bench"))
    arguments = parser.parse_args()
    arguments.file = arguments.out / "cuts.json"
    kept = json.loads(arguments.file.read_text()) if arguments.file.is_file() else {}
    for model in [] if arguments.page else arguments.models:
        for task in arguments.tasks:
            run_case(model, task, arguments, kept)
    arguments.file.with_suffix(".md").write_text(page(kept))


if __name__ == "__main__":
    main()
