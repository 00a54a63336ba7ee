"""Rows a second by one process and by workers of this machine, on the same asks.

    python bench/workers.py --workers 2

Each worker has an equal part of the cores, and so has the one process that it is compared with.
"""

import argparse
import os
import time

import numpy as np
import torch

from caploc.engine.api import Ask
from caploc.tasks.catalog import load_task
from caploc.workbench import ModelOptions
from caploc.workers import Workers


def draw_asks(task: str, heads: int, masks: int, examples: int) -> list[Ask]:
    """Draw masks of a tenth of the heads, each on every example."""
    loaded, random = load_task(task), np.random.default_rng(0)
    return [
        Ask((mask * examples + example, 0), loaded.requests(example)[0], knocked_out)
        for mask, knocked_out in enumerate(random.random((masks, heads)) < 0.1)
        for example in range(examples)
    ]


def main() -> None:
    """Measure as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--task", default="words/past")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--masks", type=int, default=40)
    parser.add_argument("--examples", type=int, default=20)
    given = parser.parse_args()
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // given.workers))
    for workers in (None, Workers(given.workers)):
        with ModelOptions(given.model, workers=workers).answering() as engine:
            asks = draw_asks(given.task, engine.grid.size, given.masks, given.examples)
            list(engine.answer(asks[: given.examples]))
            start = time.perf_counter()
            rows = sum(len(answers) for answers in engine.answer(asks))
            rate = rows / (time.perf_counter() - start)
        print(f"{'one process' if workers is None else f'{given.workers} workers'}: {rate:.0f}/s")


if __name__ == "__main__":
    main()
