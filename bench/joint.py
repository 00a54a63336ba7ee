"""What heads do together, on the models: sets, and searches that knock out several heads at once.

    python bench/joint.py                                    what is missing: hours; resumes
    python bench/joint.py --tasks antonym --methods css,set --seeds 2
    python bench/joint.py --methods drawn,rates              of what bench/draws.py draws

A seed's run searches on some of a task's examples and is judged on others: by the share of the
intact score that its five heads take together. *drawn* judges the first five heads of the first
draws of bench/draws.py on one set of examples. *rates* times a row of each kind. Rows are kept in
build/census and asked once; figures go to docs/bench/joint.json, from which bench/draws.py makes
its page.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import draws
import figures
from caploc import designs
from caploc.declaration import ModelOptions
from caploc.measurement import Meter, Meters, as_measurements
from caploc.options import Settings, TaskOptions
from caploc.progress import Silent
from caploc.recovery import Measurements
from caploc.search import METHODS, Plan, Problem, Search
from caploc.session import add_signal
from caploc.store import Store
from census import CASES, ROWS, Case, read_rows
from clock import Stopwatch
from measuring import say

TOP = 5
JUDGED, COMPARED = 100, 60  # examples to judge on, of 40 in 100 at most; to compare sets on
MASKS, CROSSED, RATE = 100, 25, 0.05  # of css and csb: every head is gone in five masks or more
GREEDY = {"smollm2": 12}  # right answers of each of its rounds; 40 of small models
DRAWN = 5  # draws of each method whose first heads are judged together
TIMED = 100  # rows of each kind that are timed
ASKED = {"signal": 4, "one head": 25, "several heads": 25}  # examples a mask, as methods ask them
SAMPLE = 7  # seed of the examples that all draws are judged on


@dataclass
class Bench:
    """A case's model, probes and truth."""

    case: Case
    stored: draws.Stored
    probes: dict[str, Meter]
    probe: str
    signal: str
    intact: dict[int, float]

    @classmethod
    def open(cls, case: Case, model: ModelOptions, engine: Any, store: Store) -> "Bench":
        """Ask the intact model all examples."""
        bench = Meters(engine, store)
        (task,) = model.tasks([case.task], TaskOptions())
        probes = {task.name: bench.meter(task)}
        nothing = np.zeros(engine.grid.size, dtype=bool)
        rows = probes[task.name].under(nothing, [*range(task.size)], Silent(), "intact")
        signal = add_signal(bench, probes, task.name, rows)
        intact = {row.number: float(row.outcome) for row in rows}
        return cls(case, draws.Stored.read(case.name), probes, task.name, signal, intact)

    @property
    def heads(self) -> int:
        """Of the model."""
        return len(self.stored.kept)

    @property
    def rate(self) -> float:
        """Of css and csb: a head a mask at least."""
        return max(RATE, 1 / self.heads)

    def split(self, seed: int) -> tuple[list[int], list[int], list[int]]:
        """Examples to judge on, to compare sets on, and to search on."""
        order = designs.generator(seed).permutation(len(self.intact)).tolist()
        judged = min(JUDGED, 2 * len(order) // 5)
        compared = min(COMPARED, len(order) // 4)
        return order[:judged], order[judged : judged + compared], order[judged + compared :]

    def answer(self, plan: Plan) -> Measurements:
        """Outcomes of single heads from the census, where it has them; all else is measured."""
        fingerprint = self.probes[self.probe].engine.loaded.fingerprint  # type: ignore[attr-defined]
        part = "alone" if plan.probe == self.probe else "signal"
        known = read_rows(self.case, part, fingerprint)
        gone = [tuple(np.flatnonzero(mask).tolist()) for mask in plan.masks]
        keys = [(gone[m], e) for m, e in zip(plan.mask, plan.example.tolist(), strict=True)]
        found = np.array([known.get(key, (np.nan, np.nan)) for key in keys], dtype=float)
        open_rows = np.isnan(found[:, 0])
        if open_rows.any():
            asked = replace(plan, mask=plan.mask[open_rows], example=plan.example[open_rows])
            rows = self.probes[plan.probe].measure(asked, Silent(), plan.what)
            measured = as_measurements(asked, rows)
            found[open_rows, 0] = measured.outcome
            found[open_rows, 1] = measured.kept_or_unknown
        return Measurements(plan.masks, plan.mask, plan.example, *found.T)

    def damage(self, columns: Sequence[int], examples: Sequence[int]) -> float:
        """Of the intact score, the share that is lost without these heads."""
        mask = np.zeros((1, self.heads), dtype=bool)
        mask[0, list(columns)] = True
        plan = Plan.crossed(self.probe, mask, examples)
        left = self.answer(plan).outcome
        return float(1 - left.mean() / np.mean([self.intact[each] for each in examples]))

    def problem(self, method: str, seed: int) -> Problem:
        """What a method is given."""
        _, fresh, searching = self.split(seed)
        settings = Settings(seed=seed, top=TOP)
        if method == "set":
            settings = Settings(seed=seed, top=TOP, goal="set")
        elif method in ("css", "csb"):
            settings = Settings(seed=seed, top=TOP, masks=MASKS, rate=self.rate)
            searching = searching[:CROSSED]
        elif method == "greedy":
            right = [example for example in searching if self.intact[example]]
            searching = right[: GREEDY.get(self.case.model, 40)]
        signal = self.signal if method == "set" else self.probe
        return Problem(
            self.heads, searching, settings, fresh=fresh, probe=self.probe, signal=signal
        )

    def run(self, method: str, seed: int) -> dict[str, Any]:
        """Search, and judge what was found."""
        problem = self.problem(method, seed)
        search: Callable[[Problem], Search] = METHODS["scan" if method == "set" else method].search
        done = draws.drive(search(problem), self.answer)
        first = done.found.chosen if method == "set" else done.found.ranking[:TOP]
        return {
            "heads": first,
            "rows": dict(done.asked),
            "recall": self.stored.recall(done.found.ranking),
            "damage": self.damage(first, self.split(seed)[0]),
        }

    def drawn(self) -> dict[str, Any]:
        """The joint damage of the first heads of some draws of every method."""
        judged = self.split(SAMPLE)[0]
        return {
            name: {
                str(seed): {"heads": first, "damage": self.damage(first, judged)}
                for seed in range(DRAWN)
                for first in [method.run(self.stored, seed).first]
            }
            for name, method in draws.methods(self.stored).items()
        }

    def rates(self) -> dict[str, float]:
        """CPU seconds of a row of each kind."""
        random = designs.generator(int(time.time()))
        draw = int(random.integers(9**9))
        several = designs.stratified(self.heads, TIMED, rate=self.rate, seed=draw)
        singles = designs.singles(self.heads)
        right = [example for example, outcome in self.intact.items() if outcome]
        kinds = {"signal": (self.signal, singles), "one head": (self.probe, singles)}
        kinds["several heads"] = (self.probe, several)
        found = {}
        for kind, (probe, masks) in kinds.items():
            each = min(ASKED[kind], len(right))
            chosen = random.choice(len(masks), size=TIMED // each, replace=False)
            mask = np.repeat(chosen, each)
            example = np.tile(random.choice(right, size=each, replace=False), len(chosen))
            plan = Plan(probe, masks, mask, example, "timed")
            meter = self.probes[probe]
            _, todo = meter.planned(plan)
            watch = Stopwatch()
            meter.measure(plan, Silent(), plan.what)
            found[kind] = watch.read().cpu / max(len(todo), 1)
        return found


METHODS_RUN = ("rates", "drawn", "set", "css", "csb", "greedy")


def run_case(case: Case, bench: Bench, method: str, asked: Any, kept: dict[str, Any]) -> None:
    """A method on a case, as far as it was not run before."""
    runs = kept.setdefault(case.name, {})
    if method in ("rates", "drawn"):
        if method not in runs:
            runs[method] = getattr(bench, method)()
            say(f"{case.name}: {method} {runs[method] if method == 'rates' else ''}")
    else:
        for seed in range(asked.seeds):
            done = runs.setdefault(method, {})
            if str(seed) not in done:
                done[str(seed)] = bench.run(method, seed)
                say(f"{case.name}, {method}, seed {seed}: {done[str(seed)]}")
                figures.write(draws.JOINT, kept)
    figures.write(draws.JOINT, kept)


def main() -> None:
    """Run what was asked for: a method on all cases before the next method."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--tasks", type=lambda text: text.split(","), help="such as past,addition")
    add("--methods", type=lambda text: text.split(","), default=METHODS_RUN)
    add("--seeds", type=int, default=5)
    asked = parser.parse_args()
    kept = figures.read(draws.JOINT)
    engines: dict[tuple[str, str], Any] = {}
    names = (*draws.TEST, *draws.DEVELOPMENT)
    cases = {case.name: case for case in CASES}
    for method in asked.methods:
        for case in (cases[name] for name in names):
            if asked.tasks and case.name.split("-", 1)[1] not in asked.tasks:
                continue
            model = ModelOptions(case.model, device="cpu", dtype=case.dtype)
            key = case.model, case.dtype
            if key not in engines:
                engines.clear()
                engines[key] = model.engine()
            with Store(ROWS / case.name / "rows.sqlite") as store:
                run_case(case, Bench.open(case, model, engines[key], store), method, asked, kept)


if __name__ == "__main__":
    main()
