"""Ten minutes on one GPU: are answers right there, and how fast are they?

    python bench/gpu_check.py                   on the first CUDA device; ends with 1 without one
    python bench/gpu_check.py --shapes llama-3.2-1b --repeats 1

Three things in bfloat16 on the shapes of Llama 3. *Right*: under masks caploc's packed rows are as
near to what the same model says in float32 as batches of rows and rows read one at a time are: in
bfloat16 near ties fall either way with the batch. *Waiting*: CUDA warns wherever the host waits for
the device. *Fast*: caploc, the hook loop and row-batched generation on prompts that share a prefix
and on prompts that share nothing, with the share of the card's peak that useful tokens take.
"""

import argparse
import json
import sys
import warnings
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch

import figures
import models
import workloads
from caploc.engine.api import Ask
from caploc.models.loading import LoadedModel
from caploc.models.projections import find_projections
from caploc.tasks.task import Generate, options_json
from clock import Stopwatch
from contenders import Batched, Caploc, Contender
from measuring import Responses, Timing, measure, pinned, say
from workloads import Size, Workload

SLACK = 0.05  # of the words, by which packed rows may agree less than batches of rows do
WORSE = 1.25  # times the others' error that a packed row's log-probability may have
PLANS = {"a": Size(8, 64), "l": Size(8, 16)}
CHECKED, WORDS = Size(4, 24), 8  # few and short: float32 and rows read one at a time take longest
BATCH = 64  # rows
PACKED, BATCHED, SINGLE = "packed", "in batches", "one by one"
SIDE, MULTIPLICATIONS, RUNS = 8192, 20, 5  # of the matrix product that shows the card's peak


@dataclass(frozen=True)
class Agreements:
    """How far rows in bfloat16 say what the model says in float32, by how they are read.

    `words` are the shares of words that are the same, up to each answer's first other one, since
    those after it continue another text; `errors` those of log-probabilities, root mean square, in
    nats.
    """

    words: dict[str, float]
    errors: dict[str, float]

    @property
    def sound(self) -> bool:
        """Whether packed rows are as right as others."""
        others = [error for name, error in self.errors.items() if name != PACKED]
        close = self.errors[PACKED] <= WORSE * max(others)
        return close and self.words[PACKED] >= self.words[BATCHED] - SLACK


def agreements(loaded: LoadedModel, caploc: Contender, size: Size) -> Agreements:
    """Hold packed, batched and single rows against float32, on texts (a) and choices (c)."""
    texts = [shortened(ask) for ask in workloads.build("a", loaded, size).asks]
    choices = workloads.build("c", loaded, size).asks
    exact = Batched(in_full(loaded), one_mask=False, batch=BATCH)
    standards = [pinned(1, exact, asks).responses for asks in (texts, choices)]
    del exact  # at 8B it holds 32 GB
    torch.cuda.empty_cache()
    words, errors = dict[str, float](), dict[str, float]()
    for name, contender in {
        PACKED: caploc,
        BATCHED: Batched(loaded, one_mask=False, batch=BATCH),
        SINGLE: Batched(loaded, one_mask=False, batch=1),
    }.items():
        said, scored = (pinned(1, contender, asks).responses for asks in (texts, choices))
        words[name] = same_words(said, standards[0])
        errors[name] = error_of(scored, standards[1])
    return Agreements(words, errors)


def in_full(loaded: LoadedModel) -> LoadedModel:
    """The same model in float32."""
    model = deepcopy(loaded.model).float()
    projections, grid = find_projections(model)
    return replace(loaded, model=model, projections=projections, grid=grid, dtype="float32")


def error_of(responses: Responses, standard: Responses) -> float:
    """How far log-probabilities are from the standard's, root mean square, in nats."""
    pairs: list[tuple[Any, Any]] = [(said, standard[key]) for key, said in responses.items()]
    return fmean((said.logprob - expected.logprob) ** 2 for said, expected in pairs) ** 0.5


def shortened(ask: Ask) -> Ask:
    """The same ask, for an answer of WORDS tokens."""
    assert isinstance(ask.request, Generate)
    options = json.loads(ask.request.options) | {"max_gen_toks": WORDS}
    return replace(ask, request=Generate(ask.request.prompt, options_json(options)))


def same_words(responses: Responses, standard: Responses) -> float:
    """The share of words that are the standard's, up to each answer's first other one."""
    same = compared = 0
    for key, said in responses.items():
        expected: Any = standard[key]
        pairs = list(zip_longest(said.text.split(), expected.text.split()))
        alike = [one == other for one, other in pairs]
        first = alike.index(False) if False in alike else len(alike)
        same, compared = same + first, compared + min(first + 1, len(alike))
    return same / max(compared, 1)


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
        found |= shares(loaded, timings)
    return found


def peak() -> float:
    """Measured TFLOP/s of a large bfloat16 matrix product."""
    one = torch.randn(SIDE, SIDE, device="cuda", dtype=torch.bfloat16)
    two = torch.randn_like(one)
    speeds = []
    for _ in range(RUNS + 1):
        torch.cuda.synchronize()
        watch = Stopwatch()
        for _ in range(MULTIPLICATIONS):
            one @ two
        torch.cuda.synchronize()
        speeds.append(MULTIPLICATIONS * 2 * SIDE**3 / watch.read().wall / 1e12)
    return median(speeds[1:])


def shares(loaded: LoadedModel, timings: dict[str, Timing]) -> dict[str, Any]:
    """The peak, and the share of it that each contender's useful tokens take.

    A token counts 2 operations for each weight of the layers; attention is not counted.
    """
    highest = peak()
    model: Any = loaded.model
    weights = sum(p.numel() for p in model.base_model.parameters())
    weights -= model.get_input_embeddings().weight.numel()
    used = {
        name: 2 * weights * timing.forward_tokens / median(timing.wall) / 1e12 / highest
        for name, timing in timings.items()
    }
    return {"peak": highest, "shares": used}


def check(
    name: str,
    loaded: LoadedModel,
    plans: dict[str, Size],
    repeats: int,
) -> dict[str, Any]:
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
        say(f"{name} {workload_name}: {json.dumps(speed)}")
        found["workloads"][workload_name] = speed
    return found


def page(found: dict[str, Any]) -> str:
    """The results as a table."""
    rows = []
    for name, one in found.items():
        for workload, speed in one["workloads"].items():
            rate, share = speed["rows_per_second"], speed.get("shares", {}).get("caploc")
            cells = [f"{rate[each]:.2f}" for each in ("caploc", "rows", "hook loop")]
            cells += [f"{speed['over_rows']:.2f}", "-" if share is None else f"{share:.1%}"]
            rows.append([name, workload, *cells, str(speed["waits"])])
    headings = "shape, workload, caploc rows/s, rows, hook loop, over rows, share of peak, waits"
    lines = figures.table(headings.split(", "), rows, texts=2)
    for name, one in found.items():
        agreed = one["agreements"]
        each = "; ".join(
            f"{way} {agreed['words'][way]:.1%} of the words, log-probabilities off by "
            f"{agreed['errors'][way]:.3f} nats"
            for way in agreed["words"]
        )
        lines.append(
            f"\n{name}, against the same weights in float32: {each}: "
            f"{'right' if one['sound'] else 'WRONG'}."
        )
    return "\n".join(lines)


def require_cuda() -> None:
    """Refuse to go on without a CUDA device."""
    if not torch.cuda.is_available():
        raise SystemExit("This benchmark needs a CUDA device, and torch finds none here.")


def main() -> None:
    """Check and time each shape; end with 1 if answers are wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shapes", default=",".join(models.ON_DEVICE))
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("docs/bench/gpu.json"))
    arguments = parser.parse_args()
    require_cuda()
    found: dict[str, Any] = {}
    for name in arguments.shapes.split(","):
        loaded = models.load(name)
        found[name] = check(name, loaded, PLANS, arguments.repeats)
        figures.write(arguments.out, found)
        del loaded
        torch.cuda.empty_cache()
    print(page(found))
    if not all(one["sound"] for one in found.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
