"""Ten minutes on one GPU: are answers right there, and how fast are they?

    python bench/gpu_check.py                   on the first CUDA device; ends with 1 without one
    python bench/gpu_check.py --shapes llama-3.2-1b

Three things in bfloat16 on the shapes of Llama 3. *Right*: caploc's packed rows say what rows read
one at a time say, under masks, as often as batches of rows do: in bfloat16 near ties fall either
way with the batch. *Waiting*: CUDA warns wherever the host waits for the device. *Fast*: caploc,
the hook loop and row-batched generation on prompts that share a prefix and on prompts that share
nothing, with the share of the card's peak that useful tokens take. Where vLLM is installed its
intact throughput on the same prompts stands beside them.
"""

import argparse
import json
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import torch

import gpu
import models
import workloads
from caploc.engine import Ask
from caploc.models.loading import LoadedModel
from contenders import Batched, Caploc, Contender
from measuring import Responses, compare, measure, pinned, say
from workloads import Size, Workload

SLACK = 0.05  # of the answers, by which packed rows may agree less than batches of rows do
PLANS = {"a": Size(8, 64), "l": Size(8, 32)}
CHECKED = Size(3, 8)  # rows read one at a time take longest
BATCH, REPEATS = 64, 2


@dataclass(frozen=True)
class Agreements:
    """The share of answers that are those of rows read one at a time; log-probabilities' gap."""

    packed: float
    batched: float
    scores: float
    batched_scores: float

    @property
    def sound(self) -> bool:
        """Whether packed rows are as right as batches of rows."""
        close = self.scores <= 2 * self.batched_scores + 0.05
        return self.packed >= self.batched - SLACK and close


def agreements(loaded: LoadedModel, caploc: Contender, size: Size) -> Agreements:
    """Hold packed and batched rows against single ones, texts (a) and choices (c)."""
    found = []
    for name in ("a", "c"):
        asks = workloads.build(name, loaded, size).asks
        alone = pinned(1, Batched(loaded, one_mask=False, batch=1), asks).responses
        each: list[Responses] = [
            pinned(1, contender, asks).responses
            for contender in (caploc, Batched(loaded, one_mask=False, batch=BATCH))
        ]
        found.append([compare(responses, alone) for responses in each])
    (packed, batched), (scored, batch_scored) = found
    return Agreements(
        packed.equal / packed.texts,
        batched.equal / batched.texts,
        scored.difference,
        batch_scored.difference,
    )


def waits(loaded: LoadedModel, caploc: Contender, asks: Sequence[Ask]) -> int:
    """Count how often the host waits for the device while some rows are answered."""
    if loaded.device.type != "cuda":
        return 0
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            caploc.run(asks[:64])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return len(caught)


def speeds(loaded: LoadedModel, caploc: Contender, workload: Workload, repeats: int) -> Any:
    """Rows a second of each contender, over row-batched generation's, and the share of peak."""
    loop = Batched(loaded, one_mask=True, batch=BATCH)
    rows = Batched(loaded, one_mask=False, batch=BATCH)
    timings, _ = measure(workload, [rows, loop, caploc], repeats, 1)
    walls = {name: median(timing.wall) for name, timing in timings.items()}
    found: dict[str, Any] = {
        "rows_per_second": {name: workload.rows / wall for name, wall in walls.items()},
        "over_rows": walls["rows"] / walls["caploc"],
    }
    if loaded.device.type == "cuda":
        found |= gpu.shares(loaded, timings)
    return found


def vllm_intact(loaded: LoadedModel, workload: Workload, folder: Path) -> float | None:
    """Rows a second of vLLM with no head knocked out; None where it is not installed."""
    if not find_spec("vllm"):
        return None
    from vllm import LLM, SamplingParams

    from clock import Stopwatch

    model: Any = loaded.model
    model.save_pretrained(folder)
    loaded.tokenizer.save_pretrained(folder)
    engine = LLM(str(folder), dtype="bfloat16", gpu_memory_utilization=0.4)
    prompts = [ask.request.prompt for ask in workload.asks]
    greedy = SamplingParams(temperature=0.0, max_tokens=128, stop=[models.STOP])
    watch = Stopwatch()
    engine.generate(prompts, greedy)
    return workload.rows / watch.read().wall


def check(name: str, loaded: LoadedModel, plans: dict[str, Size], repeats: int) -> dict[str, Any]:
    """All three things of one model."""
    caploc = Caploc(loaded)
    say(f"{name}: are answers right?")
    agreed = agreements(loaded, caploc, CHECKED)
    found: dict[str, Any] = {"agreements": vars(agreed), "sound": agreed.sound, "workloads": {}}
    for workload_name, size in plans.items():
        workload = workloads.build(workload_name, loaded, size)
        say(f"{name}: {workload.title}")
        speed = speeds(loaded, caploc, workload, repeats)
        speed["waits"] = waits(loaded, caploc, workload.asks)
        found["workloads"][workload_name] = speed
    return found


def page(found: dict[str, Any]) -> str:
    """The results as a table."""
    lines = [
        "| shape | workload | caploc, rows/s | rows | hook loop | over rows | share of peak |",
        "|---|---|--:|--:|--:|--:|--:|",
    ]
    for name, one in found.items():
        for workload, speed in one["workloads"].items():
            rate = speed["rows_per_second"]
            share = speed.get("shares", {}).get("caploc")
            lines.append(
                f"| {name} | {workload} | {rate['caploc']:.2f} | {rate['rows']:.2f} | "
                f"{rate['hook loop']:.2f} | {speed['over_rows']:.2f} | "
                f"{'-' if share is None else f'{share:.1%}'} |"
            )
    for name, one in found.items():
        agreed = one["agreements"]
        lines.append(
            f"\n{name}: {agreed['packed']:.1%} of packed and {agreed['batched']:.1%} of batched "
            f"answers are those of single rows; log-probabilities differ by at most "
            f"{agreed['scores']:.3f} and {agreed['batched_scores']:.3f}: "
            f"{'right' if one['sound'] else 'WRONG'}."
        )
    return "\n".join(lines)


def main() -> None:
    """Check and time each shape; end with 1 if answers are wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shapes", default=",".join(models.ON_DEVICE))
    parser.add_argument("--out", type=Path, default=Path("docs/bench/gpu.json"))
    arguments = parser.parse_args()
    gpu.check()
    found: dict[str, Any] = {}
    for name in arguments.shapes.split(","):
        loaded = models.load(name)
        found[name] = check(name, loaded, PLANS, REPEATS)
        folder = arguments.out.parent / "vllm"
        workload = workloads.build("a", loaded, PLANS["a"])
        found[name]["vllm_intact"] = vllm_intact(loaded, workload, folder)
        arguments.out.write_text(json.dumps(found, indent=1) + "\n")
        del loaded
        torch.cuda.empty_cache()
    print(page(found))
    if not all(one["sound"] for one in found.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
