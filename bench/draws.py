"""How often heads are found, by many draws from what every head was seen to do: no model runs.

    python bench/draws.py                  a table of recall, coverage and rows
    python bench/draws.py --draws 200

The truth is every head alone on 150 examples (bench/census.py). What right answers' likelihoods
lose, their stop included, is that of 40 examples (`*.signal.npz`). Masks of several heads are not
among it: css, csb, greedy and sets are compared by bench/real.py, which runs the model.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from pyarrow import parquet
from scipy import stats

from caploc.recovery import CONFIDENCE, falls_of_each, paired
from caploc.search.scan import LEVEL, deal, log_odds

FILES = Path(__file__).parent / "census"
TASKS = ("past", "upper", "digits")  # SmolLM2's, on which the constants were chosen
TOP = 5


@dataclass(frozen=True)
class Stored:
    """What every head alone does to outcomes (heads x examples), and to right answers' signals."""

    change: np.ndarray
    before: np.ndarray
    signal: np.ndarray  # change of the log-probability
    kept: np.ndarray

    @classmethod
    def read(cls, task: str) -> "Stored":
        """Of a task of SmolLM2."""
        table = parquet.read_table(FILES / f"smollm2-{task}.parquet").to_pandas()
        intact = table[table["part"] == "intact"].set_index("example")["outcome"]
        alone = table[table["part"] == "alone"]
        head = alone["knocked_out"].map(lambda columns: columns[0])
        outcome = alone.assign(head=head).pivot(index="head", columns="example", values="outcome")
        change = outcome.to_numpy() - intact[outcome.columns].to_numpy()
        told = np.load(FILES / f"smollm2-{task}.signal.npz")
        return cls(change, told["before"], told["change"], told["greedy"])

    @property
    def truth(self) -> np.ndarray:
        """Each head's effect alone."""
        effect: np.ndarray = self.change.mean(axis=1)
        return effect

    def recall(self, first: list[int]) -> float:
        """Share of the first five found; heads within their error of the fifth count as it."""
        truth, count = self.truth, self.change.shape[1]
        error = np.sqrt(np.maximum(self.change.var(axis=1), 1 / count) / count)
        return float(np.mean([truth[c] <= np.sort(truth)[TOP - 1] + error[c] for c in first[:TOP]]))

    def fall(self, by: str) -> np.ndarray:
        """What a scan ranks by, heads x examples."""
        if by == "odds":
            after = log_odds(self.before + self.signal)
            return log_odds(np.broadcast_to(self.before, after.shape)) - after
        return 1 - np.exp(np.minimum(self.signal, 0)) if by == "lost" else 1.0 - self.kept


@dataclass(frozen=True)
class Drawn:
    """One draw of a method: its first heads, rows, and whether intervals hold, by stratum."""

    first: list[int]
    rows: int
    held: dict[str, list[bool]]
    named: int = 0


Draw = Callable[[Stored, np.random.Generator], Drawn]


def scanned(stored: Stored, random: np.random.Generator, count: int, by: str) -> list[int]:
    """All heads in the order of a scan, each on examples of its own."""
    fall = stored.fall(by)
    heads, examples = fall.shape
    place = np.empty((heads, count), dtype=int)
    place[random.permutation(heads)] = deal(random.permutation(examples), heads, count)
    means = np.take_along_axis(fall, place, axis=1).mean(axis=1)
    order: list[int] = np.argsort(-means, kind="stable").tolist()
    return order


def scan(
    stored: Stored, random: np.random.Generator, *, count: int, tried: int, trial: int, by: str
) -> Drawn:
    """Scan, then trial, as the default search does."""
    heads = scanned(stored, random, count, by)[:tried]
    change = stored.change[heads][:, random.integers(stored.change.shape[1], size=trial)]
    q = stats.false_discovery_control(falls_of_each(change, binary=True))
    ends = [paired(each, binary=True, level=CONFIDENCE)[:3] for each in change]
    order = np.argsort([mean for mean, _, _ in ends], kind="stable").tolist()
    named = [place for place in order if q[place] < LEVEL and ends[place][2] < 0][:TOP]
    held: dict[str, list[bool]] = {"named": [], "five points": [], "all": []}
    for place, (head, (_, low, high)) in enumerate(zip(heads, ends, strict=True)):
        inside = bool(low <= stored.truth[head] <= high)
        held["all"].append(inside)
        held["named"] += [inside] if place in named else []
        held["five points"] += [inside] if stored.truth[head] <= -0.05 else []
    first = [heads[place] for place in order]
    return Drawn(first, count * len(stored.truth) + tried * trial, held, len(named))


def one_shot(stored: Stored, random: np.random.Generator, *, rows: int) -> Drawn:
    """Every head alone on the same examples."""
    heads, examples = stored.change.shape
    asked = random.choice(examples, rows // heads, replace=False)
    order = np.argsort(stored.change[:, asked].mean(axis=1), kind="stable").tolist()
    return Drawn(order, rows // heads * heads, {})


def one_shot_by_signal(stored: Stored, random: np.random.Generator, *, count: int) -> Drawn:
    """Every head alone on the same right examples, ranked by log-odds."""
    fall = stored.fall("odds")
    asked = random.choice(fall.shape[1], count, replace=False)
    order = np.argsort(-fall[:, asked].mean(axis=1), kind="stable").tolist()
    return Drawn(order, count * len(fall), {})


METHODS: dict[str, Draw] = {
    "scan 4, trial 15 x 100 (default)": partial(scan, count=4, tried=15, trial=100, by="odds"),
    "scan 2, trial 15 x 60": partial(scan, count=2, tried=15, trial=60, by="odds"),
    "scan 4, trial 15 x 60": partial(scan, count=4, tried=15, trial=60, by="odds"),
    "scan 8, trial 15 x 60": partial(scan, count=8, tried=15, trial=60, by="odds"),
    "scan 4, trial 20 x 60": partial(scan, count=4, tried=20, trial=60, by="odds"),
    "scan 4 by probability, trial 15 x 60": partial(scan, count=4, tried=15, trial=60, by="lost"),
    "scan 4 by right or wrong, trial 15 x 60": partial(
        scan, count=4, tried=15, trial=60, by="broken"
    ),
    "one-shot, 2,580 rows": partial(one_shot, rows=2580),
    "one-shot by log-odds, 9 examples": partial(one_shot_by_signal, count=9),
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--draws", type=int, default=100)
    draws = parser.parse_args().draws
    print(f"| method | rows | {' | '.join(TASKS)} | mean | named | intervals that hold |")
    print("|---" + "|--:" * (len(TASKS) + 3) + "|---|")
    tasks = {task: Stored.read(task) for task in TASKS}
    for name, draw in METHODS.items():
        recalls, errors = list[float](), list[float]()
        held, named, rows = dict[str, list[bool]](), list[int](), 0
        for stored in tasks.values():
            random = np.random.default_rng(0)
            runs = [draw(stored, random) for _ in range(draws)]
            found = [stored.recall(run.first) for run in runs]
            recalls.append(float(np.mean(found)))
            errors.append(float(np.std(found, ddof=1)) / len(runs) ** 0.5)
            named += [run.named for run in runs if run.held]
            rows = runs[0].rows
            for run in runs:
                for stratum, each in run.held.items():
                    held.setdefault(stratum, []).extend(each)
        shares = ", ".join(f"{name} {np.mean(each):.3f}" for name, each in held.items())
        error = float(np.linalg.norm(errors)) / len(errors)
        cells = [f"{recall:.2f}" for recall in recalls]
        cells.append(f"{np.mean(recalls):.3f} ± {error:.3f}")
        count = f"{np.mean(named):.1f}" if named else ""
        print(f"| {name} | {rows:,} | {' | '.join(cells)} | {count} | {shares} |", flush=True)


if __name__ == "__main__":
    main()
