"""What workers bring, and what the driver costs.

    python bench/workers.py                         all parts, some ten minutes on two cores
    python bench/workers.py --only pair,driver      part of it

`pair`: two workers of one thread each against one, on the random 25 M model. `driver`: what a row
costs the driver, with workers that answer at once. `many`: up to 256 workers that sleep for as long
as they would take; they are coroutines in a few Ray actors, for so many processes do not fit here.
`fleet`: many studies at once on 64 made-up GPUs, without Ray.
"""

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
import psutil

import models
import workloads
from caploc import designs
from caploc.cost import Cost
from caploc.engine import Answer, Ask
from caploc.errors import CaplocError
from caploc.heads import HeadGrid
from caploc.measurement import Meter
from caploc.models.loading import load_model
from caploc.progress import Silent
from caploc.search import Plan
from caploc.store import Question, Store
from caploc.tasks.catalog import load_task
from caploc.tasks.task import Generated
from caploc.workers import DistributedEngine, Workers
from caploc.workers.distributed import (
    AskBatch,
    ModelIdentity,
    Replica,
    WorkerRecipe,
)
from caploc.workers.ray_backend import PoolWorker, WorkerPool, connect_ray
from fixtures import World
from fleet import EIGHT, SEVENTY, recorded, simulate

PARTS = ("pair", "driver", "many", "fleet")
GRID = HeadGrid((32,) * 32, (4,) * 32)  # of a model of eight billion parameters
ROWS, MASKS = 100_000, 100  # of the driver's part
RATE, SECONDS = 5.0, 60.0  # a sleeping worker's rows a second, and how long all of them work
CREWS, HOSTS = (16, 64, 256), 4
STUDIES, KINDS_SEEN = 200, ("real", "strong", "weak", "inter")
PAIR_MASKS, PAIR_EXAMPLES = 72, 24
PAIR_RATE = 0.05  # of the heads, so that no mask comes twice


class Instant(Replica):
    """Says the same word to everything, at once."""

    def load(self) -> tuple[ModelIdentity | CaplocError, str]:
        """No model."""
        import ray

        node = str(ray.get_runtime_context().get_node_id())
        return ModelIdentity("none", "none", "float32", "cpu", GRID, "0"), node

    def answer(self, bundle: AskBatch, seconds: float) -> Iterator[list[Answer] | CaplocError]:
        """A word an ask."""
        yield said_at_once(bundle)


class Host(Instant):
    """Many workers that sleep, in one process."""

    async def load(self) -> tuple[ModelIdentity | CaplocError, str]:  # type: ignore[override]
        """No model."""
        return super().load()

    async def answer(  # type: ignore[override]
        self, bundle: AskBatch, seconds: float
    ) -> AsyncIterator[list[Answer]]:
        """Answer a few rows at a time, after as long as they would take."""
        answers, some = said_at_once(bundle), max(1, int(RATE * seconds))
        for first in range(0, len(answers), some):
            await asyncio.sleep(len(answers[first : first + some]) / RATE)
            yield answers[first : first + some]


def said_at_once(bundle: AskBatch) -> list[Answer]:
    """The same word to every ask."""
    return [Answer(key, Generated("42", 1), 0.001, 20.0, 21) for key, *_ in bundle.asked]


@dataclass
class Sleepers(WorkerPool):
    """Workers that share a few actors."""

    def __post_init__(self) -> None:
        """Start the actors."""
        super().__post_init__()
        host = self.connection.ray.remote(Host).options(num_cpus=0, max_concurrency=1000)
        self.hosts = [host.remote(self.shared) for _ in range(HOSTS)]

    def start(self) -> None:
        """A place in one of the actors."""
        number = next(self.numbers)
        actor = self.hosts[number % HOSTS]
        self.workers[number] = PoolWorker(actor)
        self.calls[actor.load.remote()] = number

    def dismiss(self, worker: int) -> None:
        """Only the place is given up."""
        self.workers.pop(worker, None)


def main() -> None:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default=",".join(PARTS), help=",".join(PARTS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("docs/bench"))
    arguments = parser.parse_args()
    file = arguments.out / "workers.json"
    arguments.out.mkdir(parents=True, exist_ok=True)
    found = json.loads(file.read_text()) if file.is_file() else {}
    parts = arguments.only.split(",")
    # one cluster for all parts that need one, with room for three workers of a core
    with ExitStack() as stack:
        if set(parts) != {"fleet"}:
            stack.callback(connect_ray(Workers(3, cpus=1)).close)
        for part in parts:
            print(f"{part} ...", flush=True)
            measured = MEASURED[part](arguments.repeats)
            found[part] = measured | {
                "date": datetime.now(UTC).date().isoformat(),
                "load": round(os.getloadavg()[0], 1),
                "cores": os.cpu_count(),
            }
            print(json.dumps(found[part], indent=1), flush=True)
            file.write_text(json.dumps(found, indent=1) + "\n")
            file.with_suffix(".md").write_text(page(found))


def pair(repeats: int) -> dict[str, Any]:
    """Rows a second of one worker and of two, turn by turn."""
    folder = models.saved("25m")
    loading = {"name": str(folder.absolute()), "device": "cpu"}
    loaded = load_model(**loading)
    masks = designs.stratified(loaded.grid.size, PAIR_MASKS, rate=PAIR_RATE, seed=0)
    asks = workloads.crossed(masks, workloads.mmlu(loaded, PAIR_EXAMPLES))
    rows = len({ask.key[0] for ask in asks})
    speeds: dict[int, list[float]] = {1: [], 2: []}
    machine = []
    engines: dict[int, DistributedEngine] = {}
    teams: dict[int, list[psutil.Process]] = {}
    for count in speeds:
        engines[count] = DistributedEngine(
            WorkerPool(Workers(count, cpus=1), WorkerRecipe(loading), "cpu")
        )
        settle(engines[count])
        others = [process for team in teams.values() for process in team]
        teams[count] = [process for process in replicas() if process not in others]
        answer(engines[count], asks[: len(asks) // 4])  # rates are learned
    shares = memory(teams[2][0])
    busiest: dict[int, list[float]] = {1: [], 2: []}
    work: dict[int, list[float]] = {1: [], 2: []}
    for turn in range(repeats):
        machine.append(two_against_one())
        for count, engine in engines.items():
            before = [cpu(process) for process in teams[count]]
            seconds, _, tokens = answer(engine, asks)
            spent = [cpu(p) - past for p, past in zip(teams[count], before, strict=True)]
            busiest[count].append(max(spent))
            work[count].append(tokens)
            speeds[count].append(rows / seconds)
            print(f"{turn}: {count} workers, {rows / seconds:.2f} rows/s, CPU {spent}", flush=True)
    ratios = [two / one for one, two in zip(speeds[1], speeds[2], strict=True)]
    by_cpu = [one / two for one, two in zip(busiest[1], busiest[2], strict=True)]
    return {
        "by_cpu": spread(by_cpu),
        "work": spread([two / one for one, two in zip(work[1], work[2], strict=True)]),
        "rows": rows,
        "one": spread(speeds[1]),
        "two": spread(speeds[2]),
        "ratio": spread(ratios),
        "machine": spread(machine),
        "memory": shares,
    }


def settle(engine: DistributedEngine) -> None:
    """Wait until every worker has its model."""
    while len(engine.idle) < engine.initial:
        engine.turn()


def answer(engine: DistributedEngine, asks: Sequence[Ask]) -> tuple[float, float, float]:
    """Seconds and the driver's CPU seconds until all asks are answered; tokens run for them."""
    began, own = time.perf_counter(), time.process_time()
    tokens = [answer.forward_tokens for batch in engine.answer(asks) for answer in batch]
    assert len(tokens) == len(asks)
    return time.perf_counter() - began, time.process_time() - own, sum(tokens)


def two_against_one() -> float:
    """What this machine gives a second process: work of two over work of one, ideally 2."""
    import subprocess
    import sys

    code = (
        "import time, numpy as np\n"
        "a = np.random.default_rng(0).random((256, 256), dtype='f4')\n"
        "end, n = time.time() + 3, 0\n"
        "while time.time() < end: a @ a; n += 1\n"
        "print(n)"
    )
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

    def work(count: int) -> int:
        started = [
            subprocess.Popen(
                [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment
            )
            for _ in range(count)
        ]
        return sum(int(process.communicate()[0]) for process in started)

    one = work(1)
    return work(2) / one


def replicas() -> list[psutil.Process]:
    """The processes of all workers."""
    below = psutil.Process().children(recursive=True)
    return [process for process in below if process.name().startswith("ray::Replica")]


def cpu(process: psutil.Process) -> float:
    """CPU seconds that a process has had."""
    times = process.cpu_times()
    return float(times.user + times.system)


def memory(process: psutil.Process) -> dict[str, float]:
    """Megabytes of a process: resident, and of them its own."""
    info = process.memory_full_info()
    return {"resident": info.rss / 2**20, "own": info.uss / 2**20}


def driver(repeats: int) -> dict[str, Any]:
    """Milliseconds a row: of the engine, of the store, of all that the driver does."""
    task = load_task("demo/addition")
    masks = np.random.default_rng(0).random((MASKS, GRID.size)) < 0.02
    examples = [n % task.size for n in range(ROWS // MASKS)]
    whole = len(set(examples)) * MASKS
    asks = [
        Ask((m * len(examples) + n, 0), task.requests(example)[0], mask)
        for m, mask in enumerate(masks)
        for n, example in enumerate(examples)
    ]
    times: dict[str, list[float]] = {"fleet": [], "fleet_cpu": [], "store": [], "all": []}
    with DistributedEngine(
        WorkerPool(Workers(2, cpus=1), WorkerRecipe({}), "cpu", Instant)
    ) as engine:
        settle(engine)
        for _ in range(repeats):
            seconds, own, _ = answer(engine, asks)
            times["fleet"].append(1000 * seconds / ROWS)
            times["fleet_cpu"].append(1000 * own / ROWS)
            with tempfile.TemporaryDirectory() as folder, Store(Path(folder) / "rows") as store:
                meter = Meter(engine, store, task, question(task), Cost())
                began = time.perf_counter()
                plan = Plan.crossed(masks, sorted(set(examples)))
                rows = meter.measure(plan, Silent(), "all")
                times["all"].append(1000 * (time.perf_counter() - began) / whole)
                copy = store.question_id(replace(question(task), mode="again"))
                began = time.perf_counter()
                for first in range(0, len(rows), 1000):
                    store.add(copy, rows[first : first + 1000])
                times["store"].append(1000 * (time.perf_counter() - began) / whole)
    return {"rows": ROWS, "measured": whole} | {name: spread(t) for name, t in times.items()}


def question(task: Any) -> Question:
    """A question of no model."""
    return Question("none", "float32", task.name, task.version, task.outcome_kind)


def many(repeats: int) -> dict[str, Any]:
    """Rows a second of sleeping workers, over what they could do without a driver."""
    task = load_task("demo/addition")
    found = {}
    for size in CREWS:
        rows = int(size * RATE * SECONDS)
        masks = np.random.default_rng(0).random((rows // 100 + 1, GRID.size)) < 0.02
        asks = [
            Ask((n, 0), task.requests(n % 100)[0], masks[n // 100]) for n in range(rows)
        ]  # fmt: skip
        with DistributedEngine(Sleepers(Workers(size, "auto"), WorkerRecipe({}), "cpu")) as engine:
            settle(engine)
            seconds, own, _ = answer(engine, asks)
        found[str(size)] = {
            "rows": rows,
            "seconds": round(seconds, 2),
            "efficiency": round(rows / (size * RATE) / seconds, 4),
            "driver_busy": round(own / seconds, 3),
        }
        print(size, found[str(size)], flush=True)
    return {"crews": found, "rate": RATE}


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, least and most."""
    return {
        "median": round(statistics.median(values), 4),
        "least": round(min(values), 4),
        "most": round(max(values), 4),
        "times": len(values),
    }


def said(numbers: dict[str, float], digits: int = 2) -> str:
    """A median and its spread."""
    least, most = (f"{numbers[end]:.{digits}f}" for end in ("least", "most"))
    return f"{numbers['median']:.{digits}f} ({least} to {most}, {numbers['times']} times)"


def page(found: dict[str, Any]) -> str:
    """The results as a page."""
    lines = ["# Workers, measured", "", "Made by `make bench-workers`; median (least to most).", ""]
    if part := found.get("pair"):
        lines += [
            "Two workers of one thread against one, random 25 M Llama, questions of workload b of "
            f"[the engine's benchmark](engine.md), {part['rows']} rows; {place(part)}:",
            "",
            f"- one worker: {said(part['one'])} rows/s",
            f"- two workers: {said(part['two'])} rows/s",
            f"- two over one: **{said(part['ratio'])}**",
            "- CPU time of one worker alone over that of the busier of two, which is what two "
            f"would bring on cores that nobody else uses: **{said(part['by_cpu'])}**",
            "- tokens run by two over those run by one, for each group has what its rows share "
            f"computed again: {said(part['work'])}",
            "- two plain processes over one on this machine, multiplying matrices just before: "
            f"{said(part['machine'])}",
            f"- a worker's memory: {part['memory']['resident']:.0f} MB resident, "
            f"{part['memory']['own']:.0f} MB of it its own",
            "",
        ]
    if part := found.get("driver"):
        lines += [
            f"What a row costs the driver, with workers that answer at once; {place(part)}:",
            "",
            f"- the engine, {part['rows']:,} rows: **{said(part['fleet'], 3)} ms** a row, of "
            f"which the driver's own CPU time {said(part['fleet_cpu'], 3)} ms",
            f"- writing rows to the store: {said(part['store'], 3)} ms a row",
            f"- all that the driver does ({part['measured']:,} rows: planning, the engine, "
            f"scoring, storing): {said(part['all'], 3)} ms a row",
            "",
        ]
    if part := found.get("many"):
        lines += [
            f"Workers that sleep {1 / part['rate']:.1f} s a row, as coroutines in {HOSTS} Ray "
            f"actors, a minute of work each; {place(part)}:",
            "",
            "| workers | rows | seconds | efficiency | driver busy |",
            "| ---: | ---: | ---: | ---: | ---: |",
            *(
                f"| {size} | {one['rows']:,} | {one['seconds']} | {100 * one['efficiency']:.1f} % "
                f"| {100 * one['driver_busy']:.0f} % of a core |"
                for size, one in part["crews"].items()
            ),
            "",
        ]
    if part := found.get("fleet"):
        lines += [
            "Made-up GPUs that take as long as an engine would, driven by the real scheduler on a "
            "clock of its own (`bench/fleet.py`): each study asks, round by round, the rows of one "
            f"of {part['plans']} adaptive searches in simulated worlds of 192 heads, on a task of "
            "its own (64 workers are cards with a model of 8 billion parameters, 8 are eight cards "
            "each with one of 70); a row that was answered is not asked again. *Beforehand* says "
            "whether rows that a search will probably want are asked while it waits for others: "
            "*rows* are those that it wanted in the end, *asked* all. *Busy* is the share of the "
            "time that a GPU had rows; *best* what came of it in rows wanted, over what a GPU does "
            "with groups of ten thousand. The driver's own computing "
            f"takes no time on this clock; {place(part)}:",
            "",
            "| studies | of world | at a time | workers | beforehand | rows | asked | groups "
            "| seconds | busy | best |",
            "| ---: | --- | ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
            *(
                f"| {one['studies']} | {one['world']} | {one['abreast']} | {one['workers']} | "
                f"{'yes' if one['beforehand'] else 'no'} | {one['rows']:,} | "
                f"{one['asked']:,} | {one['groups']:,} | {one['seconds']:,.0f} | "
                f"{100 * one['busy']:.1f} % | {100 * one['of_best']:.0f} % |"
                for one in part["runs"]
            ),
            "",
        ]
    return "\n".join(lines)


def place(part: dict[str, Any]) -> str:
    """When, and on what."""
    return f"{part['date']}, {part['cores']} shared cores, load {part['load']} at the end"


def fleet(repeats: int) -> dict[str, Any]:
    """How busy 64 made-up GPUs are over many studies, and over one in shards; see `fleet.py`."""
    plans = [
        recorded(World.of_kind(kind, seed=seed, layers=24, width=8), seed)
        for seed, kind in enumerate(KINDS_SEEN)
    ]
    many = [plans[n % len(plans)] for n in range(STUDIES)]
    waiting = [[replace(plan, ahead=()) for plan in each] for each in plans]
    single = [
        simulate([each], 8, SEVENTY, abreast=1) | {"world": kind}
        for kind, *both in zip(KINDS_SEEN, waiting, plans, strict=True)
        for each in both
    ]
    found = [
        simulate(many[: STUDIES // 10], 64, EIGHT, abreast=1) | {"world": "all"},
        simulate(many, 64, EIGHT, abreast=256) | {"world": "all"},
        *single,
    ]
    return {"runs": found, "plans": len(plans)}


MEASURED = {"pair": pair, "driver": driver, "many": many, "fleet": fleet}

if __name__ == "__main__":
    main()
