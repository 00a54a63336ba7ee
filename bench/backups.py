"""Who finds backups: heads that are needed once other heads are gone?

    python bench/backups.py --planted          worlds whose backups are known: a minute
    python bench/backups.py                    two tasks of SmolLM2: an hour; resumes
    python bench/backups.py --page             the table, from the JSON

A primary set is gone, and every other head is scored: by its fall of log-odds beside that set on a
few examples, as `caploc interactions` scans; by the same alone; and by the difference of both. The
effect of a head after a primary set is gone is CoAx's measure (arXiv 2607.01940), which takes out
the whole set at once; caploc passes over heads after which too little is left. The area under the
ROC curve says how well a score puts the true backups first. Planted worlds know them; on SmolLM2 a
head is one if it costs so many points more beside the set than alone, both on the same examples,
which no score has seen. Figures go to bench/backups.json.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import rankdata

import figures
from caploc.declaration import ModelOptions
from caploc.interactions import primary_set
from caploc.measurement import Meters, as_measurements
from caploc.options import Settings, TaskOptions
from caploc.progress import Silent
from caploc.recovery import Measurements
from caploc.recovery.estimate import right_of
from caploc.search import Plan, Problem, column_mask
from caploc.search.plan import Asking, intact_plan
from caploc.search.scan import deal, log_odds
from caploc.session import add_signal
from caploc.store import Store
from census import CASES
from driving import drive
from joint import Bench
from measuring import say

ROOT = Path(__file__).parents[1]
FIGURES = Path(__file__).with_suffix(".json")
TASKS = ("smollm2-antonym", "smollm2-past")
WORLDS = 10
SCANNED = 4, 12  # examples a head; the second is what three times the rows buy
PRIMARY = 3  # heads that are most needed alone
JUDGED = 50  # examples that say which heads are backups
BACKUP = 0.1  # of the score, by which a backup costs more beside the primary set
Answer = Callable[[Plan], Measurements]
Figures = dict[str, Any]


def area(score: np.ndarray, backups: np.ndarray) -> float:
    """The area under the ROC curve: the chance that a backup stands before another head."""
    ranks, found = rankdata(score), int(backups.sum())
    below = ranks[backups].sum() - found * (found + 1) / 2
    return float(below / (found * (len(score) - found)))


def falls(
    problem: Problem, base: Sequence[int], others: Sequence[int], right: Sequence[int], count: int
) -> Asking[np.ndarray]:
    """The mean fall of the answer's log-odds that each head brings beside a base."""
    start = yield Plan.crossed(problem.signal, problem.without_each([base]), right, "before")
    before = start.by_example()
    masks = problem.without_each([(*base, column) for column in others])
    dealt = deal(right, len(others), min(count, len(right))).ravel()
    mask = np.repeat(np.arange(len(others)), len(dealt) // len(others))
    after = yield Plan(problem.signal, masks, mask, dealt, "scan")
    was = np.array([before[example] for example in dealt.tolist()])
    return (log_odds(was) - log_odds(after.outcome)).reshape(len(others), -1).mean(axis=1)


def judge(
    problem: Problem, primary: Sequence[int], backups: Sequence[int], answer: Answer
) -> Figures:
    """The area of every score, by its name."""

    def ask(base: Sequence[int], examples: Sequence[int], count: int) -> np.ndarray:
        return drive(falls(problem, base, others, examples, count), answer).found

    base, left = drive(primary_set(problem, primary), answer).found
    intact = drive(only(intact_plan(problem, problem.probe, problem.examples)), answer).found
    right = right_of(intact.by_example())
    others = [c for c in problem.eligible if c not in primary]
    true = np.isin(others, backups)
    found: Figures = {"primary": list(map(int, primary)), "base": list(map(int, base))}
    for count in SCANNED:
        alone, whole = ask((), right, count), ask(primary, right, count)
        scores = {
            "alone": alone,
            "beside the heads that leave enough (caploc)": ask(base, left, count),
            "beside the whole set (CoAx)": whole,
            "beside the whole set, less alone": whole - alone,
        }
        found |= {f"{name}, {count}": round(area(each, true), 4) for name, each in scores.items()}
    return found


def only(plan: Plan) -> Asking[Measurements]:
    """A search of one plan."""
    return (yield plan)


def planted(seed: int) -> Figures:
    """A planted world: five needed heads, three of them with a backup."""
    sys.path.append(str(ROOT / "tests"))
    from worlds.planted import Planted, write_planted

    with tempfile.TemporaryDirectory() as folder:
        plan = Planted(layers=6, heads=12, needed=5, backups=3, examples=200, seed=seed)
        truth = write_planted(Path(folder) / "model", plan)
        model = ModelOptions(str(Path(folder) / "model"), device="cpu")
        engine = model.engine()
        (task,) = model.tasks([str(Path(folder) / "model" / "planted.yaml")], TaskOptions())
        with Store(Path(folder) / "rows.sqlite") as store:
            meters = Meters(engine, store)
            probes = {task.name: meters.meter(task)}
            grid = meters.grid
            rows = probes[task.name].under(
                column_mask(grid.size, []), [*range(task.size)], Silent(), ""
            )
            signal = add_signal(meters, probes, task.name, rows)
            settings = Settings(seed=seed)
            problem = Problem(
                grid.size, [*range(task.size)], settings, probe=task.name, signal=signal
            )

            def answer(plan: Plan) -> Measurements:
                return as_measurements(plan, probes[plan.probe].measure(plan, Silent(), plan.what))

            primary = grid.columns(map(str, truth.needed))
            return judge(problem, primary, grid.columns(map(str, truth.backups)), answer)


def real(name: str) -> Figures:
    """A task of SmolLM2: the heads most needed alone are gone; what all others then do is asked."""
    case = next(case for case in CASES if case.name == name)
    model = ModelOptions(case.model, device="cpu", dtype=case.dtype)
    with Store(ROOT / "build" / "backups" / name / "rows.sqlite") as store:
        bench = Bench.open(case, model, model.engine(), store)
        judged, _, searched = bench.split(0)
        judged = judged[:JUDGED]
        problem = replace(bench.problem("set", 0), examples=searched)
        primary = np.argsort(bench.stored.truth)[:PRIMARY].tolist()
        base, _ = drive(primary_set(problem, primary), bench.answer).found
        others = [c for c in range(bench.heads) if c not in primary]
        beside = bench.answer(
            Plan.crossed(
                bench.probe,
                problem.without_each([base, *[(*base, c) for c in others]]),
                judged,
                name,
            )
        ).outcome.reshape(len(others) + 1, -1)
        alone = bench.answer(
            Plan.crossed(
                bench.probe, problem.without_each([(), *[(c,) for c in others]]), judged, name
            )
        ).outcome.reshape(len(others) + 1, -1)
        more = ((beside[0] - beside[1:]) - (alone[0] - alone[1:])).mean(axis=1)
        backups = [c for c, cost in zip(others, more, strict=True) if cost >= BACKUP]
        found = {"left": round(float(beside[0].mean() / alone[0].mean()), 3)}
        found["backups"] = {str(c): round(float(more[others.index(c)]), 3) for c in backups}
        return found | judge(problem, primary, backups, bench.answer)


def page(kept: Figures) -> str:
    """The table of docs/results/outside.md."""
    worlds = [each for name, each in kept.items() if name.startswith("planted")]
    rows = []
    for score in [name for name in worlds[0] if name[-1].isdigit()]:
        areas = [each[score] for each in worlds]
        spread = f"{np.mean(areas):.2f} ± {np.std(areas, ddof=1) / len(areas) ** 0.5:.2f}"
        real = [f"{kept[name][score]:.2f}" if name in kept else "" for name in TASKS]
        rows.append([f"{score} examples", spread, *real])
    return "\n".join(figures.table(["score", "planted worlds", *TASKS], rows))


def main() -> None:
    """Measure what is missing, or print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--planted", action="store_true")
    parser.add_argument("--page", action="store_true")
    asked = parser.parse_args()
    kept = figures.read(FIGURES)
    worlds = {f"planted-{seed}": lambda seed=seed: planted(seed) for seed in range(WORLDS)}
    tasks = {} if asked.planted else {name: lambda name=name: real(name) for name in TASKS}
    for name, work in ({} if asked.page else worlds | tasks).items():
        if name not in kept:
            kept[name] = work()
            say(f"{name}: {kept[name]}")
            figures.write(FIGURES, kept)
    print(page(kept))


if __name__ == "__main__":
    main()
