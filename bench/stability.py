"""Would other examples name the same heads, and how many rows would settle it? No model runs.

    python bench/stability.py          search, store below bench/, print
    python bench/stability.py --page   the table, from bench/stability.json

The default search is answered from what every head was seen to do alone (bench/draws.py), with
trials of several sizes. *Told* is the Jaccard index that a run gives: of the heads named on
resampled examples of its own. *True* is that of two searches on examples drawn independently.
"""

import argparse
import json
from dataclasses import replace
from importlib import import_module
from itertools import combinations
from pathlib import Path

import numpy as np

from caploc.options import Settings
from caploc.search import METHODS, Problem
from caploc.search.settings import KNOBS
from draws import DEVELOPMENT, NUMBERED, SIGNAL, SOME, TEST, Answers, Stored
from driving import drive

SCAN = import_module("caploc.search.scan")  # the package has a function of that name
FIGURES = Path(__file__).with_suffix(".json")
DRAWS = 30
TRIALS = (60, 100, 200, 400)  # examples of the trial


def jaccard(one: set[int], other: set[int]) -> float:
    """The share that two sets have in common; two empty ones are alike."""
    return len(one & other) / len(one | other) if one | other else 1.0


def search(stored: Stored, trial: int) -> dict[str, float]:
    """The mean of many searches with a trial of so many examples."""
    vars(SCAN)["KNOBS"] = replace(KNOBS, trial=trial)
    told, named, rows = [], [], []
    for seed in range(DRAWS):
        settings = Settings(seed=seed)
        problem = Problem(len(stored.kept), range(NUMBERED), settings, signal=SIGNAL)
        done = drive(METHODS["scan"].search(problem), Answers(stored, seed))
        assert done.found.stages is not None
        told.append(done.found.stages.stability)  # None where nothing is named
        named.append({*done.found.chosen})
        rows.append(done.rows)
    true = np.mean([jaccard(*pair) for pair in combinations(named, 2)])
    return {
        "told": np.mean([each for each in told if each is not None]).item(),
        "true": true.item(),
        "rows": np.mean(rows).item(),
    }


def page() -> None:
    """Print a table."""
    print("| task | " + " | ".join(f"{trial} examples" for trial in TRIALS) + " |")
    print("|---|" + "--:|" * len(TRIALS))
    for name, by_trial in json.loads(FIGURES.read_text()).items():
        cells = [f"{c['told']:.2f} / {c['true']:.2f} ({c['rows']:,.0f})" for c in by_trial.values()]
        print(f"| {name} | " + " | ".join(cells) + " |")


def main() -> None:
    """Search, store, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--page", action="store_true")
    if not parser.parse_args().page:
        kept = {}
        for name in (*DEVELOPMENT, *TEST):
            stored = Stored.read(name)
            if (stored.truth <= SOME).any():
                kept[name] = {str(trial): search(stored, trial) for trial in TRIALS}
                FIGURES.write_text(json.dumps(kept, indent=1) + "\n")
    page()


if __name__ == "__main__":
    main()
