"""How fast rows are answered: caploc against what others do, answers compared row by row.

    python bench/engine.py                                  everything that a CPU can show
    python bench/engine.py --models 25m --workloads a,b     part of it
    python bench/engine.py --only hooks,masks,fresh         what rows per second do not show
    python bench/engine.py --gpu                            large shapes in bfloat16

Each part replaces its own entry in engine.json, and the table and the plot are drawn from all.
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

import extras
import gpu
import models
import peers
import plot
import workloads
from caploc.models.loading import LoadedModel
from contenders import LOOP_BATCH, Batched, Caploc, Contender, Prefixed, Reference
from measuring import measure, say
from table import Results, entry
from workloads import Size, Workload

# Masks x examples: such that the slowest rival takes about two minutes on one core of 2024.
SIZES = {
    "25m": {
        "a": Size(5, 20),
        "b": Size(10, 24),
        "c": Size(8, 24),
        "e": Size(10, 12),
        "l": Size(5, 12),
    },
    "140m": {"a": Size(3, 6), "b": Size(3, 10), "c": Size(3, 6)},
    "demo": {"d": Size(40, 80), "f": Size(20, 16)},
    "smollm2": {
        "g": Size(6, 40),
        "h": Size(4, 3),
        "i": Size(3, 6),
        "j": Size(4, 20),
        "k": Size(10, 24),
    },
    "qwen2.5-coder-1.5b": {"g": Size(3, 16)},
}
GPU_SIZES = {
    name: {
        "a": Size(4, 64),
        "b": Size(4, 64),
        "c": Size(4, 64),
        "e": Size(16, 16),
        "l": Size(8, 32),
    }
    for name in models.ON_DEVICE
}
PEER_SIZES = {"25m": {"p": Size(12, 8), "a": Size(2, 4)}}
OTHER_SIZE = Size(4, 8)  # of a workload asked for on a model that has it not among its own
# Rows in a batch of the row-batched contenders: the fastest of those tried (`--only batches`), or
# within 8 % of it. On a CPU it matters little where rows are long: one already fills a core.
BATCHES = {"a": 16, "b": 4, "c": 16, "d": 64, "e": 16, "f": 64, "p": 64} | {
    "g": 32,
    "h": 4,
    "i": 8,
    "j": 8,
    "k": 32,
    "l": 4,
}
# The same of the hook loop with prefix cache, which is timed where all prompts share a prefix:
# on these workloads. In (a) and (e) the hook loop's, within 3 % of the fastest tried.
PREFIX_BATCHES = {"a": LOOP_BATCH, "b": 4, "e": LOOP_BATCH, "g": 40, "i": 8, "k": 24}
GPU_BATCH = 64  # of both; not tuned
TRIED = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CONTENDERS = ("reference", "hook loop", "hook loop with prefix cache", "rows", "caploc")
# Where a row takes many seconds the loop is left out: it is a little slower than rows everywhere.
FEWER_CONTENDERS = {"140m": ("reference", "hook loop with prefix cache", "rows", "caploc")}
# The loop takes as long as rows do or longer: unless it is named, these have it.
LOOPED = ("a", "d", "f", "p")
REFERENCE_MASKS, REFERENCE_ROWS = 2, 4  # timed by the reference procedure, which is then scaled
EXTRAS = ("hooks", "masks", "fresh")
PARTS = ("workloads", *EXTRAS, "batches")


def main() -> None:
    """Measure what was asked for."""
    arguments = parse()
    quiet()
    if arguments.gpu:
        gpu.check()
    results = Results(arguments.out, "peers" if arguments.peers else "engine")
    for name, names in chosen(arguments).items():
        if "workloads" in arguments.only and names:
            run_workloads(name, names, arguments, results)
        if "batches" in arguments.only and names:
            try_batches(name, names, arguments)
    run_extras(arguments, results)
    if results.workloads:
        plot.draw(results.workloads, results.file.with_suffix(".png"))
        print(results.markdown())


def parse() -> argparse.Namespace:
    """The command line; without --only, all parts, or the workloads alone if some are named."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--workloads", type=names_of(workloads.RECIPES), help="such as a,b (see the table)")
    add("--models", type=names_of(models.NAMES), help=", ".join(models.NAMES))
    add("--contenders", type=names_of(CONTENDERS), help=", ".join(CONTENDERS))
    add("--only", type=names_of(PARTS), help=", ".join(PARTS))
    add("--repeats", type=int, default=3)
    add("--threads", type=int, default=1, help="more swing where cores are shared")
    add("--masks", type=int, help="override the number of masks")
    add("--examples", type=int, help="override the number of examples")
    add("--batch", type=int, help="override the batches of rows and of the prefix cache")
    add("--peers", action="store_true", help="also TransformerLens, nnsight and pyvene")
    add("--gpu", action="store_true", help="the large shapes, on the first CUDA device")
    add("--data", type=Path, help="folder with gsm8k_test.jsonl and the like, as on the Hub")
    add("--out", type=Path, default=Path("docs/bench"), help="folder of the results")
    arguments = parser.parse_args()
    named = arguments.workloads or arguments.models or arguments.gpu or arguments.peers
    arguments.only = arguments.only or (["workloads"] if named else ["workloads", *EXTRAS])
    return arguments


def names_of(known: Collection[str]) -> Callable[[str], list[str]]:
    """A reader of comma-separated names that refuses unknown ones."""

    def read(text: str) -> list[str]:
        found = text.split(",")
        unknown = [name for name in found if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"no {unknown[0]!r}; known: {', '.join(known)}")
        return found

    return read


def quiet() -> None:
    """Leave standard error to the progress lines."""
    logs: Any = transformers.utils.logging
    logs.set_verbosity_error()
    logs.disable_progress_bar()
    datasets.disable_progress_bars()
    logging.getLogger("lm_eval").setLevel(logging.ERROR)


def chosen(arguments: argparse.Namespace) -> dict[str, dict[str, Size]]:
    """The workloads of each model, with their sizes."""
    sizes = GPU_SIZES if arguments.gpu else PEER_SIZES if arguments.peers else SIZES
    plan: dict[str, dict[str, Size]] = {}
    for model in arguments.models or sizes:
        own = sizes.get(model, {})
        for workload in arguments.workloads or own:
            if workloads.suits(workload, model):
                size = own.get(workload, OTHER_SIZE)
                plan.setdefault(model, {})[workload] = Size(
                    arguments.masks or size.masks, arguments.examples or size.examples
                )
    return plan


def run_workloads(
    name: str, sizes: dict[str, Size], arguments: argparse.Namespace, results: Results
) -> None:
    """All contenders on all workloads of one model."""
    loaded = models.load(name)
    contenders = contenders_for(name, loaded, arguments)
    for workload_name, size in sizes.items():
        workload = workloads.build(workload_name, loaded, size, arguments.data)
        say(f"{name}/{workload_name}: {workload.title}, {size.masks} x {size.examples}")
        fit = [
            contender
            for contender in contenders
            if peers.fits(contender, workload.asks) and belongs(contender, workload_name, arguments)
        ]
        batches = set_batches(fit, workload_name, arguments)
        timings, character = measure(workload, fit, arguments.repeats, arguments.threads)
        found = entry(loaded, workload, timings, character) | {"batches": batches}
        if arguments.gpu:
            found |= gpu.shares(loaded, timings)
        results.put("workloads", f"{name}/{workload_name}", found, arguments.threads)


def belongs(contender: Contender, workload: str, arguments: argparse.Namespace) -> bool:
    """Whether a contender is timed on the workload."""
    if isinstance(contender, Prefixed):
        return workload in PREFIX_BATCHES
    named = "hook loop" in (arguments.contenders or ())
    return contender.name != "hook loop" or named or workload in LOOPED


def set_batches(
    contenders: list[Contender], workload: str, arguments: argparse.Namespace
) -> dict[str, int]:
    """Give contenders the batch sizes chosen for the workload; the rows in a batch of each."""
    batched = [each for each in contenders if isinstance(each, Batched | peers.Peer)]
    for contender in batched:
        prefixed = isinstance(contender, Prefixed)
        if prefixed or not contender.one_mask:
            chosen = (PREFIX_BATCHES if prefixed else BATCHES)[workload]
            contender.batch = arguments.batch or (GPU_BATCH if arguments.gpu else chosen)
    return {contender.name: contender.batch for contender in batched}


def contenders_for(
    name: str, loaded: LoadedModel, arguments: argparse.Namespace
) -> list[Contender]:
    """Those asked for; caploc and every peer get a copy of the model that no one else touches."""
    made: list[Contender] = []
    for wanted in arguments.contenders or FEWER_CONTENDERS.get(name, CONTENDERS):
        if wanted == "reference" and name in models.ON_DEVICE:
            say("reference: skipped, for there are no files that it could reload")
        elif wanted == "reference":
            made.append(Reference(loaded, REFERENCE_MASKS, REFERENCE_ROWS))
        elif wanted == "caploc":
            # two copies of the largest would not fit beside each other
            alone = name not in ("qwen2.5-coder-1.5b",)
            made.append(Caploc(models.load(name) if alone else loaded))
        elif wanted == "hook loop with prefix cache":
            made.append(Prefixed(loaded))
        else:
            made.append(Batched(loaded, one_mask=wanted == "hook loop"))
    if arguments.peers:
        made += peers.present(lambda: models.load(name))
    return made


def try_batches(name: str, sizes: dict[str, Size], arguments: argparse.Namespace) -> None:
    """Rows and the prefix cache at several batch sizes, to choose the best of each."""
    loaded = models.load(name)
    for workload_name, size in sizes.items():
        workload = workloads.build(workload_name, loaded, size, arguments.data)
        wanted = arguments.contenders or CONTENDERS
        tried = [each for each in at_sizes(loaded, workload) if each.name in wanted]
        for contender in tried:
            contender.name += f", batch {contender.batch}"
        timings, _ = measure(workload, tried, arguments.repeats, arguments.threads)
        for contender_name, timing in timings.items():
            speeds = ", ".join(f"{workload.rows / wall:.2f}" for wall in timing.wall)
            print(f"{name}/{workload_name} {contender_name}: {speeds} rows/s", flush=True)


def at_sizes(loaded: LoadedModel, workload: Workload) -> list[Batched]:
    """The contenders whose batches are chosen, at every size worth a try."""
    made = [Batched(loaded, one_mask=False, batch=size) for size in TRIED if size <= workload.rows]
    if workload.name in PREFIX_BATCHES:
        examples = workload.size.examples
        sizes = sorted({min(size, examples) for size in TRIED})
        made += [Prefixed(loaded, batch=size) for size in sizes]
    return made


def run_extras(arguments: argparse.Namespace, results: Results) -> None:
    """What rows per second do not show, on the 25 M model and, for hooks, the demo."""
    threads, repeats = arguments.threads, arguments.repeats
    size = Size(arguments.masks, arguments.examples) if arguments.masks else None
    names = arguments.models or ["25m", "demo"]
    if "hooks" in arguments.only:
        for name in names:
            say(f"hooks on {name}")
            results.put("extras", f"hooks {name}", extras.hooks(name, threads), threads)
    if "masks" in arguments.only:
        say("ten times the masks")
        results.put("extras", "masks", extras.masks(names[0], threads, repeats, size), threads)
    if "fresh" in arguments.only:
        say("a fresh mask for every row")
        results.put("extras", "fresh", extras.fresh(names[0], threads, repeats, size), threads)


if __name__ == "__main__":
    main()
