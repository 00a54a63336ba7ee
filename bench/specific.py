"""Specific sets on planted worlds: what is found, beside the best that exists.

    python bench/specific.py --worlds 20
    pip install "optuna>=4.5"
    python bench/specific.py --kinds entangled --rows 24 --price 0.05 --optuna

Of the kind `entangled` most of the strongest heads cost another task a share of what they do.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from caploc import designs
from caploc.recovery import Measurements
from caploc.search import METHODS, Found, Plan, Problem, Settings
from caploc.search.plan import OtherTask, column_mask
from caploc.search.specific import EXCESS
from fixtures import KINDS, World

SPARED = 3  # tasks
UNIVERSAL, SHARED = 3, 4  # heads that all tasks need; heads of the task that one more task needs
ENTANGLED, OFTEN, LEAST = 12, 0.7, 0.15  # strongest heads, how many are shared, least share
SEARCHED = 200  # examples of each task
TOP = 5
EACH = 15  # examples of each task for a set that Optuna tries


@dataclass(frozen=True)
class Tasks:
    """Planted tasks on the same heads; the first is the one to break."""

    worlds: list[World]

    @classmethod
    def related(cls, kind: str, seed: int, layers: int = 16, width: int = 32) -> "Tasks":
        """Tasks with heads of their own, universal heads, and heads that two of them share."""
        random = designs.generator(seed)
        worlds = [draw_world(kind, 100 * seed + task, layers, width) for task in range(1 + SPARED)]
        universal = random.choice(2 * width, UNIVERSAL, replace=False)
        strongest = np.argsort(-worlds[0].shifts)
        common = [world.shifts.copy() for world in worlds]
        for place, column in enumerate(strongest[: 2 * SHARED : 2]):
            common[1 + place % SPARED][column] = worlds[0].shifts[column]
        for column in strongest[: ENTANGLED if kind == "entangled" else 0]:
            if random.random() < OFTEN:
                share = random.uniform(LEAST, 1)
                common[1 + random.integers(SPARED)][column] = share * worlds[0].shifts[column]
        breaking = random.uniform(5, 9, UNIVERSAL)
        for shifts in common:
            shifts[universal] = breaking
        columns = tuple(int(column) for column in universal)
        return cls(
            [
                replace(world, shifts=shifts, universal=columns)
                for world, shifts in zip(worlds, common, strict=True)
            ]
        )

    def answer(self, plan: Plan) -> Measurements:
        """The plan's rows; tasks beyond the last are the same with log-probabilities."""
        task = plan.task % len(self.worlds)
        world = self.worlds[task]
        ask = world.logprobs if plan.task >= len(self.worlds) else world.outcomes
        outcomes = ask(plan.masks[plan.mask], plan.example)
        return Measurements(plan.masks, plan.mask, plan.example, outcomes)

    def search(self, settings: Settings) -> tuple[Found, int]:
        """What the search finds, and the rows it took, intact ones apart."""
        count = len(self.worlds)
        problem = Problem(
            self.worlds[0].heads,
            range(SEARCHED),
            settings,
            likelihood=count,
            sides=[OtherTask(task, range(SEARCHED), task + count) for task in range(1, count)],
        )
        searching, rows = METHODS["adaptive"].search(problem), 0
        plan = next(searching)
        while True:
            rows += int(plan.masks[plan.mask].any(axis=1).sum())
            try:
                plan = searching.send(self.answer(plan))
            except StopIteration as end:
                return end.value, rows

    def sample(self, price: float, rows: int, seed: int) -> list[int]:
        """What Optuna's tree-structured estimator finds in so many rows, a set of heads a trial."""
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        heads, examples = self.worlds[0].heads, np.arange(EACH)
        tried: dict[tuple[int, ...], float] = {}

        def score(columns: Sequence[int]) -> np.ndarray:
            masks = np.tile(column_mask(heads, columns), (EACH, 1))
            return np.array([world.outcomes(masks, examples).mean() for world in self.worlds])

        intact = score(())

        def objective(trial: optuna.Trial) -> float:
            chosen = tuple(
                sorted({trial.suggest_int(f"head {n}", 0, heads - 1) for n in range(TOP)})
            )
            lost = intact - score(chosen)
            tried[chosen] = lost[0] - EXCESS * max(0.0, lost[1:].max() - price)
            return tried[chosen]

        sampler = optuna.samplers.TPESampler(seed=seed)
        study = optuna.create_study(direction="maximize", sampler=sampler)
        study.optimize(objective, n_trials=rows // (EACH * len(self.worlds)))
        best = max(tried, key=tried.__getitem__)
        return list(best) if tried[best] > 0 else []

    def worth(self, columns: Sequence[int], price: float) -> float:
        """What the set truly does, less twenty times what it costs another task over the price."""
        beyond = max(0.0, self.loss(columns) - price)
        return self.worlds[0].damage_of(list(columns)) - EXCESS * beyond

    def loss(self, columns: Sequence[int]) -> float:
        """What the spared task loses that loses most."""
        return max(world.damage_of(list(columns)) for world in self.worlds[1:])

    def best(self, size: int, price: float, candidates: int = 14) -> list[int]:
        """The most damaging set within the price, of heads that cost little alone."""
        first = self.worlds[0]
        gain = -first.single_effects()
        lost = np.max([-world.single_effects() for world in self.worlds[1:]], axis=0)
        cheap = np.where(lost <= price, gain, -np.inf)
        pool = [int(c) for c in np.argsort(-cheap)[:candidates]]
        pairs = [c for each in first.interactions for c in each.columns if lost[c] <= price]
        pool = list(dict.fromkeys([*pool, *pairs]))[: candidates + 2]
        best, most = [], 0.0
        for some in range(1, size + 1):
            for columns in combinations(pool, some):
                damage = first.damage_of(columns)
                if damage > most and self.loss(columns) <= price:
                    best, most = list(columns), damage
        return best


def draw_world(kind: str, seed: int, layers: int, width: int) -> World:
    """One task without universal heads; `planted`: ten heads of like effect, and nothing else."""
    if kind == "planted":
        world = World.planted(layers * width, 10, drop=0.1, seed=seed)
        return replace(world, noise=KINDS["real"].noise)
    plain = replace(KINDS["real" if kind == "entangled" else kind], universal=0)
    return World.of_kind(plain, seed=seed, layers=layers, width=width)


def main() -> None:
    """Search worlds of each kind, and print what came of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--worlds", type=int, default=20)
    add("--kinds", type=lambda text: text.split(","), default=["planted", "real", "strong"])
    add("--rows", type=int, default=8, help="a head")
    add("--price", type=float, default=0.02)
    add("--optuna", action="store_true", help="beside it, in as many rows")
    arguments = parser.parse_args()
    price = arguments.price
    for kind in arguments.kinds:
        passed, worth, sampled = 0, list[float](), list[float]()
        for seed in range(arguments.worlds):
            tasks = Tasks.related(kind, seed)
            first = tasks.worlds[0]
            budget = arguments.rows * first.heads
            settings = Settings(goal="specific", seed=seed, budget=budget, price=price)
            found, rows = tasks.search(settings)
            best = tasks.best(TOP, price)
            damage, possible = first.damage_of(found.chosen), first.damage_of(best)
            loss = tasks.loss(found.chosen)
            passed += damage >= 0.95 * possible and loss <= price
            worth.append(tasks.worth(found.chosen, price))
            if arguments.optuna:
                sampled.append(tasks.worth(tasks.sample(price, budget, seed), price))
            print(
                f"{kind} {seed}: {damage:.3f} of {possible:.3f} ({damage / possible:.2f}), loss "
                f"{loss:.3f}, {rows} rows, {sorted(found.chosen)} beside {sorted(best)}",
                flush=True,
            )
        told = [f"{name} {mean(each)}" for name, each in (("worth", worth), ("Optuna", sampled))]
        print(f"{kind}: {passed} of {arguments.worlds}; {', '.join(told)}")


def mean(values: Sequence[float]) -> str:
    """The mean in points with its standard error; a dash if there is none."""
    if not values:
        return "-"
    error = np.std(values) / max(len(values) - 1, 1) ** 0.5
    return f"{100 * np.mean(values):+.1f} ± {100 * error:.1f}"


if __name__ == "__main__":
    main()
