"""How well heads are found, against rows and seconds: caploc's methods and their rivals.

    python bench/recovery.py --simulator --worlds 20 --jobs 2     worlds whose truth is known
    python bench/recovery.py --simulator --kinds weak --methods "flat rows,halving"
    python bench/recovery.py --planted --jobs 2                   models whose heads were planted
    python bench/recovery.py --demo --jobs 2                      the demo model's capabilities
    python bench/recovery.py                                      the page again, from the JSON

Each part replaces its own cells in recovery.json; the page and the picture are drawn from all.
"""

import argparse
import os

# before numpy and torch are imported: jobs run beside each other, a core each
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TQDM_DISABLE", "1")

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import capabilities
import planting
import simulator
from engine import names_of, quiet
from measuring import say
from tallies import METHODS, Results
from truths import Scores, cells

WITH_HEADS = ("strong", "weak", "inter", "fragile", "lowbase")
IDLE_KINDS = tuple(kind + simulator.IDLE for kind in WITH_HEADS)
LIKE_NETWORKS = ("real", "rescue")
ALL_KINDS = (*WITH_HEADS, *LIKE_NETWORKS, "null", *IDLE_KINDS)
# Only these say which heads they are sure of, which is what worlds with idle heads are for.
SURE = (
    "adaptive (heads)",
    "adaptive (set)",
    "adaptive (masks)",
    "adaptive (own stop)",
    "flat rows",
    "one-shot",
)


def main() -> None:
    """Measure what was asked for."""
    arguments = parse()
    quiet()
    results = Results(arguments.out)
    if arguments.simulator:
        simulate(arguments, results)
    if arguments.planted:
        plant(arguments, results)
    if arguments.demo:
        ask_demo(arguments, results)
    results.save()
    print(results.file.with_suffix(".md").read_text())


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--simulator", action="store_true", help="simulated worlds")
    add("--planted", action="store_true", help="planted models")
    add("--demo", action="store_true", help="the demo model")
    add("--jobs", type=int, default=1, help="processes")
    add("--methods", type=names_of(METHODS), default=[], help=", ".join(METHODS))
    add("--out", type=Path, default=Path("docs/bench"), help="folder of the results")
    add("--worlds", type=int, default=20, help="of each kind")
    add("--kinds", type=names_of(ALL_KINDS), default=ALL_KINDS, help=", ".join(ALL_KINDS))
    add("--budgets", type=numbers, help="rows, such as 1000,2000")
    add("--needed", type=numbers, default=planting.NEEDED, help="heads to plant, such as 1,5")
    add("--layers", type=int, default=planting.LAYERS, help="of the planted models")
    add("--heads", type=int, default=planting.HEADS, help="in each of these layers")
    add("--capabilities", type=names_of(capabilities.NAMES), default=capabilities.NAMES)
    add("--seeds", type=int, default=5, help="for each capability")
    add("--truth", type=int, default=512, help="examples that every single head is tried on")
    return parser.parse_args()


def numbers(text: str) -> tuple[int, ...]:
    """Comma-separated numbers."""
    return tuple(int(part) for part in text.split(","))


def simulate(arguments: argparse.Namespace, results: Results) -> None:
    """Worlds of every kind; a kind is written when its last world is done."""
    seeds = range(simulator.FIRST_SEED, simulator.FIRST_SEED + arguments.worlds)
    budgets = arguments.budgets or simulator.BUDGETS
    for kind in arguments.kinds:
        methods = arguments.methods
        if kind in IDLE_KINDS:
            methods = [name for name in SURE if not methods or name in methods]
        calls = {seed: (kind, seed, methods, budgets) for seed in seeds}
        runs: dict[tuple[str, str], list[Scores]] = {}
        for found in in_order(simulator.run_world, calls, arguments.jobs):
            for method, setting, each in found:
                runs.setdefault((method, setting), []).append(each)
        results.put("simulator", kind, {"cells": cells(runs)})


def plant(arguments: argparse.Namespace, results: Results) -> None:
    """A planted model for every number of heads."""
    size = (arguments.layers, arguments.heads, tuple(arguments.methods))
    calls = {needed: (needed, *size) for needed in arguments.needed}
    for needed, found in spread(planting.run_planted, calls, arguments.jobs):
        results.put("planted", str(needed), found)


def ask_demo(arguments: argparse.Namespace, results: Results) -> None:
    """Every capability of the demo model, each in a process of its own."""
    extent = capabilities.Extent(
        seeds=arguments.seeds,
        budgets=arguments.budgets or capabilities.BUDGETS,
        truth=arguments.truth,
        methods=tuple(arguments.methods),
    )
    calls = {name: (name, extent) for name in arguments.capabilities}
    for name, found in spread(capabilities.run_capability, calls, arguments.jobs):
        results.put("demo", name, found)


def in_order(work: Callable[..., Any], calls: dict[Any, Sequence[Any]], jobs: int) -> Iterator[Any]:
    """What every call returns, in the order of the calls, so that a mean never depends on luck."""
    found = dict(spread(work, calls, jobs))
    yield from (found[name] for name in calls)


def spread(
    work: Callable[..., Any], calls: dict[Any, Sequence[Any]], jobs: int
) -> Iterator[tuple[Any, Any]]:
    """Names of calls and what they return, as they end; several processes if `jobs` says so."""
    if jobs == 1:
        for name, arguments in calls.items():
            yield name, work(*arguments)
            say(f"{name} done")
        return
    with ProcessPoolExecutor(jobs, get_context("spawn"), quiet) as pool:
        waiting = {pool.submit(work, *arguments): name for name, arguments in calls.items()}
        for done in as_completed(waiting):
            yield waiting[done], done.result()
            say(f"{waiting[done]} done")


if __name__ == "__main__":
    main()
