"""The results: a JSON file that a later run updates in part, and the Markdown table made of it."""

import json
import os
import platform
import time
from collections.abc import Iterator
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import torch

from caploc.models.loading import LoadedModel
from measuring import Character, Timing
from workloads import Workload

Entry = dict[str, Any]
HEADER = (
    "| workload | contender | rows/s | seconds (range) "
    "| against rows | against reference | answers as rows |\n"
    "|---|---|--:|--:|--:|--:|---|"
)


def setting(threads: int) -> Entry:
    """Where and with what it was measured."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "machine": gpu or f"{processor()}, {os.cpu_count()} cores",
        "threads": threads,
        "memory_kept": "MALLOC_TRIM_THRESHOLD_" in os.environ,
        "torch": torch.__version__,
        "transformers": version("transformers"),
        "caploc": version("caploc"),
        "date": time.strftime("%Y-%m-%d"),
    }


def processor() -> str:
    """The CPU's name."""
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def entry(
    loaded: LoadedModel, workload: Workload, timings: dict[str, Timing], character: Character
) -> Entry:
    """What is kept of one workload on one model."""
    return {
        "title": workload.title,
        "masks": workload.size.masks,
        "examples": workload.size.examples,
        "rows": workload.rows,
        "parameters": sum(p.numel() for p in loaded.model.parameters()),
        "layers": loaded.grid.layers,
        "heads": loaded.grid.size,
        "answers": asdict(character),
        "contenders": {name: asdict(timing) for name, timing in timings.items()},
    }


class Results:
    """Workloads by "model/workload"; saved after each, so none is lost."""

    def __init__(self, folder: Path) -> None:
        """Go on from what engine.json in the folder has."""
        self.file = folder / "engine.json"
        kept = json.loads(self.file.read_text()) if self.file.is_file() else {}
        self.workloads: dict[str, Entry] = kept

    def put(self, name: str, found: Entry, threads: int) -> None:
        """Replace one entry; write the JSON and the Markdown beside it."""
        kept = self.workloads | {name: found | {"setting": setting(threads)}}
        order = sorted(kept, key=lambda each: (each.startswith("25m"), each))  # real models first
        self.workloads = {each: kept[each] for each in order}
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_text(json.dumps(self.workloads, indent=1) + "\n")
        self.file.with_suffix(".md").write_text(self.markdown())

    def markdown(self) -> str:
        """Everything measured, model by model."""
        parts = ["# The engine's benchmark", INTRODUCTION]
        for model in dict.fromkeys(name.split("/")[0] for name in self.workloads):
            chosen = {n: e for n, e in self.workloads.items() if n.split("/")[0] == model}
            parts.append(section(model, chosen))
        return "\n\n".join(parts) + "\n"


INTRODUCTION = """\
Written by `bench/engine.py`; the numbers, CPU seconds too, are in the JSON file beside it. *25m* is
a Llama with random weights.

- *reference*: the paper's procedure. Reload the model for every mask, zero the heads' weights, one
  prompt at a time. Timed on a few masks and rows, and scaled.
- *hook loop with prefix cache*: one mask a call, where all prompts begin with the same tokens.
  These are read once for each mask, and every batch goes on from a copy of their key-value cache,
  as transformers documents.
- *rows*: what an expert does without that cache. Rows of many masks in one `generate` or forward
  pass, sorted by length, in the fastest batch size of those tried on 25m, or one within 8 % of it.
- *caploc*: a new engine for every run, so that nothing is kept from the last one. It is made before
  the clock starts, as the models of all but the reference are loaded before.

All but *caploc* read the choices of one token off one pass. Seconds are medians over repeats in
which the contenders took turns, with the range, or those of one run; below each table stands how
many repeats there were. The last column counts the texts equal to those of *rows*, or gives the
largest difference of a log-probability from theirs, in nats."""


def section(model: str, chosen: dict[str, Entry]) -> str:
    """One model's table, and what its workloads are."""
    first = next(iter(chosen.values()))
    size = f"{first['parameters'] / 1e6:,.0f} M parameters"
    shape = f"{first['layers']} layers, {first['heads']} heads"
    lines = [f"## {model}: {size}, {shape}", "", HEADER]
    lines += [row for name, found in chosen.items() for row in rows(name.split("/")[1], found)]
    lines += [""] + [f"- {caption(name.split('/')[1], found)}" for name, found in chosen.items()]
    lines += ["", *measured_on(chosen)]
    return "\n".join(lines)


def rows(workload: str, found: Entry) -> Iterator[str]:
    """A line for each contender, the slowest first."""
    timings = {name: found["contenders"][name] for name in slowest_first(found)}
    for name, timing in timings.items():
        wall = timing["wall"]
        cells = [
            workload,
            f"**{name}**" if name == "caploc" else name,
            f"{found['rows'] / median(wall):,.2f}",
            f"{median(wall):,.1f} ({span(wall)})",
            *(against(timings, timing, rival) for rival in ("rows", "reference")),
            agreement(timing["agreement"]),
        ]
        yield f"| {' | '.join(cells)} |"


def span(wall: list[float]) -> str:
    """The range of the seconds, where there is one."""
    return f"{min(wall):,.1f}-{max(wall):,.1f}" if len(wall) > 1 else "one run"


def slowest_first(found: Entry) -> list[str]:
    """The contenders by their seconds."""
    contenders = found["contenders"]
    return sorted(contenders, key=lambda name: -median(contenders[name]["wall"]))


def against(timings: dict[str, Entry], timing: Entry, rival: str) -> str:
    """How many times as fast as the rival."""
    if rival not in timings:
        return "–"
    return f"{median(timings[rival]['wall']) / median(timing['wall']):,.2f}x"


def agreement(found: Entry | None) -> str:
    """Equal texts, and the largest difference of scores."""
    if found is None:
        return "–"
    parts = []
    if found["texts"]:
        parts.append(f"{found['equal']} of {found['texts']}")
    if found["scores"]:
        parts.append(f"within {found['difference']:.1g} ({found['scores']})")
    return ", ".join(parts)


def caption(workload: str, found: Entry) -> str:
    """What was asked, and what the answers are like."""
    answers = found["answers"]
    repeats = max(len(timing["wall"]) for timing in found["contenders"].values())
    parts = [
        f"**{workload}** {found['title']}: {found['masks']} masks x {found['examples']} examples",
        f"{repeats} repeats" if repeats > 1 else "one run",
    ]
    if answers["mean_tokens"] is not None:
        parts.append(
            f"answers of {answers['mean_tokens']:.0f} tokens in the mean "
            f"(intact {answers['mean_tokens_intact']:.0f}), "
            f"{answers['as_intact']:.0%} as the intact model's"
        )
    return "; ".join(parts) + "."


def measured_on(chosen: dict[str, Entry]) -> Iterator[str]:
    """A sentence for each setting, with the workloads that were measured in it."""
    settings: dict[str, list[str]] = {}
    for name, found in chosen.items():
        place = found["setting"]
        said = (
            f"{place['machine']}, {place['threads']} of its threads, "
            f"{'freed memory kept' if place['memory_kept'] else 'allocator as it comes'}, "
            f"torch {place['torch']}, transformers {place['transformers']}, {place['date']}"
        )
        settings.setdefault(said, []).append(name.split("/")[1])
    for said, workloads in settings.items():
        yield f"Measured on ({', '.join(workloads)}): {said}."
