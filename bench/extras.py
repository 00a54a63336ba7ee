"""What rows per second do not show: the price of hooks, of many masks and of fresh masks."""

from collections.abc import Callable
from contextlib import nullcontext
from statistics import median
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

import models
import workloads
from answering import Ask
from caploc.models.cutting import knocked_out
from caploc.models.loading import LoadedModel
from clock import Stopwatch
from contenders import Caploc
from measuring import pinned, say
from workloads import Size

Found = dict[str, Any]
HOOK_ROWS, HOOK_TOKENS, HOOK_RUNS = 8, 64, 41
PASSES = 10  # in a run: one of two milliseconds is too short to time
MORE = 10  # times the masks
MASKS, EXAMPLES = Size(8, 80), Size(2, 32)  # of the dearer masks, and of fresh masks


@torch.inference_mode()
def hooks(name: str, threads: int) -> Found:
    """A hook on every layer and a mask that knocks nothing out, against the plain forward."""
    torch.set_num_threads(threads)
    loaded = models.load(name)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(3, 250, (HOOK_ROWS, HOOK_TOKENS), generator=generator)
    ids = ids.to(loaded.device)
    reading = overhead(loaded, lambda: loaded.model(ids, use_cache=False, logits_to_keep=1))
    speaking = overhead(loaded, step(loaded, ids))
    return {
        "reading": reading,
        "speaking": speaking,
        "sentence": f"**Hooks** on every layer of {name}, knocking nothing out, cost "
        f"{reading:+.1%} of a forward pass of {HOOK_ROWS} x {HOOK_TOKENS} tokens and "
        f"{speaking:+.1%} of a step of {HOOK_ROWS} x 1 (median of {HOOK_RUNS} pairs of {PASSES}).",
    }


def step(loaded: LoadedModel, ids: Tensor) -> Callable[[], object]:
    """One decoding step after `ids`, any number of times."""
    cache = DynamicCache(config=loaded.model.config)
    loaded.model(ids, past_key_values=cache, logits_to_keep=1)

    def again() -> None:
        loaded.model(ids[:, :1], past_key_values=cache, logits_to_keep=1)
        cache.crop(-1)

    return again


def overhead(loaded: LoadedModel, work: Callable[[], object]) -> float:
    """The hooks' share of the time: the median over pairs of runs, one with and one without."""
    empty = torch.zeros((HOOK_ROWS, loaded.grid.size), dtype=torch.bool)
    ratios = []
    for number in range(HOOK_RUNS + 1):
        seconds = {}
        for hooked in (True, False) if number % 2 else (False, True):
            hooking = knocked_out(loaded.projections, loaded.grid, empty, every_layer=True)
            with hooking if hooked else nullcontext():
                seconds[hooked] = timed(loaded, work)
        ratios.append(seconds[True] / seconds[False])
    return median(ratios[1:]) - 1  # the first pair is the warm-up


def timed(loaded: LoadedModel, work: Callable[[], object]) -> float:
    """Wall seconds, the device's work included."""
    watch = Stopwatch()
    for _ in range(PASSES):
        work()
    if loaded.device.type == "cuda":
        torch.cuda.synchronize()
    return watch.read().wall


def masks(name: str, threads: int, repeats: int, size: Size | None = None) -> Found:
    """The same number of rows of (a) with ten times the masks."""
    loaded, few = models.load(name), size or MASKS
    many = Size(few.masks * MORE, few.examples // MORE)
    cases = {
        "few": workloads.build("a", loaded, few).asks,
        "many": workloads.build("a", loaded, many).asks,
    }
    seconds = turns(loaded, cases, threads, repeats)
    ratio = seconds["many"] / seconds["few"]
    return {
        "seconds": seconds,
        "ratio": ratio,
        "sentence": f"**Ten times the masks** at equal rows of (a) on {name}: {many.masks} masks x "
        f"{many.examples} examples cost {ratio:.2f} times {few.masks} x {few.examples}.",
    }


def fresh(name: str, threads: int, repeats: int, size: Size | None = None) -> Found:
    """The same number of rows of (a), a mask of its own for each: no prefix is shared."""
    loaded, shared = models.load(name), size or EXAMPLES
    rows = shared.masks * shared.examples
    examples = workloads.gsm8k(loaded, shared.examples)
    own = workloads.random_heads(loaded.grid.size, rows)
    cases = {
        "crossed": workloads.build("a", loaded, shared).asks,
        "fresh": workloads.paired(own, examples),
    }
    seconds = turns(loaded, cases, threads, repeats)
    each = {case: wall / rows for case, wall in seconds.items()}
    return {
        "seconds": seconds,
        "sentence": f"**A fresh mask for every row** of (a) on {name} costs {each['fresh']:.3f} s "
        f"a row, where masks crossed with {shared.examples} examples cost {each['crossed']:.3f} s.",
    }


def turns(
    loaded: LoadedModel, cases: dict[str, list[Ask]], threads: int, repeats: int
) -> dict[str, float]:
    """Median wall seconds of caploc on each case, the cases taking turns."""
    contender = Caploc(loaded)
    wall: dict[str, list[float]] = {case: [] for case in cases}
    pinned(threads, contender, next(iter(cases.values()))[:2])
    for _ in range(repeats):
        for case, asks in cases.items():
            wall[case].append(pinned(threads, contender, asks).seconds.wall)
            say(f"  {case}: {wall[case][-1]:.1f} s")
    return {case: median(times) for case, times in wall.items()}
