"""How fast rows are answered: caploc against what others do, answers compared row by row.

    python bench/engine.py --data FOLDER                    everything: about an hour on a CPU
    python bench/engine.py --models 25m --workloads a,b     part of it

The folder holds the rows of GSM8K, ARC-Challenge and MBPP. Each workload replaces its own entry in
engine.json, and the page is written from all. `make gpu-check` times large shapes on a GPU.
"""

import argparse
import logging
import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

# before torch and the libraries that read them are imported
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import datasets
import transformers

import models
import workloads
from caploc.models.loading import LoadedModel
from contenders import PREFIXED, Batched, Caploc, Contender, Prefixed, Reference
from measuring import measure, say
from table import Results, entry
from workloads import Size

# Masks x examples: such that the slowest rival takes about two minutes on one core of 2024.
SIZES = {
    "25m": {"a": Size(5, 20), "b": Size(10, 24), "c": Size(8, 24), "e": Size(10, 12)},
    "smollm2": {"g": Size(6, 40), "h": Size(4, 3), "j": Size(4, 20), "k": Size(10, 24)},
    "qwen2.5-coder-0.5b": {"m": Size(4, 6)},
}
# Rows in a batch of the row-batched contender: the fastest of those tried, or within 8 % of it. It
# matters little where rows are long: one already fills a core.
BATCHES = {"a": 16, "b": 4, "c": 16, "e": 16, "g": 32, "h": 4, "j": 8, "k": 32, "m": 12}
# The same of the hook loop with prefix cache, which is timed where all prompts share a prefix.
PREFIX_BATCHES = {"a": 16, "b": 4, "e": 16, "g": 40, "k": 24, "m": 6}
CONTENDERS = ("reference", PREFIXED, "rows", "caploc")
REFERENCE_MASKS, REFERENCE_ROWS = 2, 4  # timed by the reference procedure, which is then scaled


def main() -> None:
    """Measure what was asked for."""
    arguments = parse()
    logs: Any = transformers.utils.logging
    logs.set_verbosity_error()
    logs.disable_progress_bar()
    datasets.disable_progress_bars()
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    results = Results(arguments.out)
    for name in arguments.models:
        names = [each for each in SIZES[name] if each in (arguments.workloads or SIZES[name])]
        if names:
            run_workloads(name, names, arguments, results)
    print(results.markdown())


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--workloads", type=names_of(workloads.RECIPES), help="such as a,b (see the table)")
    add("--models", type=names_of(SIZES), default=list(SIZES), help=", ".join(SIZES))
    add("--contenders", type=names_of(CONTENDERS), default=CONTENDERS, help=", ".join(CONTENDERS))
    add("--repeats", type=int, default=3)
    add("--threads", type=int, default=1, help="more swing where cores are shared")
    add("--masks", type=int, help="override the number of masks")
    add("--examples", type=int, help="override the number of examples")
    add("--batch", type=int, help="override the batches of rows and of the prefix cache")
    add("--data", type=Path, help="folder with gsm8k_test.jsonl and the like, as on the Hub")
    add("--out", type=Path, default=Path("docs/bench"), help="folder of the results")
    return parser.parse_args()


def names_of(known: Collection[str]) -> Callable[[str], list[str]]:
    """Make a reader of comma-separated names that refuses unknown ones."""

    def read(text: str) -> list[str]:
        found = text.split(",")
        unknown = [name for name in found if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"no {unknown[0]!r}; known: {', '.join(known)}")
        return found

    return read


def run_workloads(
    name: str, names: Collection[str], arguments: argparse.Namespace, results: Results
) -> None:
    """Time all contenders on workloads of one model."""
    loaded = models.load(name)
    contenders = [contender_of(each, name, loaded) for each in arguments.contenders]
    for workload_name in names:
        size = SIZES[name][workload_name]
        size = Size(arguments.masks or size.masks, arguments.examples or size.examples)
        workload = workloads.build(workload_name, loaded, size, arguments.data)
        say(f"{name}/{workload_name}: {workload.title}, {size.masks} x {size.examples}")
        fit = [c for c in contenders if c.name != PREFIXED or workload_name in PREFIX_BATCHES]
        batches = {}
        for contender in fit:
            if isinstance(contender, Batched):
                chosen = PREFIX_BATCHES if contender.one_mask else BATCHES
                contender.batch = arguments.batch or chosen[workload_name]
                batches[contender.name] = contender.batch
        timings, character = measure(workload, fit, arguments.repeats, arguments.threads)
        found = entry(loaded, workload, timings, character) | {"batches": batches}
        results.put(f"{name}/{workload_name}", found, arguments.threads)


def contender_of(wanted: str, name: str, loaded: LoadedModel) -> Contender:
    """Make a contender; caploc gets a copy of the model that no one else touches."""
    if wanted == "reference":
        return Reference(loaded, REFERENCE_MASKS, REFERENCE_ROWS)
    if wanted == "caploc":
        return Caploc(models.load(name))
    return Prefixed(loaded) if wanted == PREFIXED else Batched(loaded, one_mask=False)


if __name__ == "__main__":
    main()
