"""What every head alone, and css's masks, do to programs and sums that Qwen2.5-Coder-0.5B writes.

    python bench/benchmarks_census.py DATA --intact      scores of the intact model, asked two ways
    python bench/benchmarks_census.py DATA               the census: days of one CPU core
    python bench/benchmarks_census.py DATA --cuts RUN    what the first heads take together
    python bench/benchmarks_census.py DATA --compare     what the published methods' heads take
    python bench/benchmarks_census.py DATA --summary     what the stored rows say so far

DATA is a folder with the rows of HumanEval, MBPP, GSM8K, ARC and MMLU as files named such as
humaneval_test.jsonl, in the columns of their data sets on the Hub. Answers are written and judged
as the benchmarks do, programs in the sandbox. Rows are kept in build/benchmarks and asked once; the
same command goes on where it was stopped. All heads are asked on few examples before any is asked
on more. After every step all rows are written to bench/census/benchmarks-TASK.parquet, and scores
of the intact model to bench/census/benchmarks.json.

RUN is the folder of `caploc locate qwen2.5-coder-0.5b --goal set` on one of the tasks. Its heads,
the first of its scan, css's by the stored masks, and random ones are knocked out on other tasks,
where nobody searched; outcomes are written to bench/census/benchmarks_cuts.json.

--compare gives each published method some 1,500 rows of HumanEval and scores its first heads on
the examples that `caploc locate` holds out. A method and seed is asked once; outcomes are written
to bench/census/benchmarks_compared.json.
"""

import argparse
import json
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TQDM_DISABLE", "1")

import lm_eval
import numpy as np
import pandas as pd
import yaml
from pyarrow import parquet

from caploc import designs
from caploc.components import Heads
from caploc.console import progress
from caploc.declaration import ModelOptions
from caploc.engine.batch import BatchEngine
from caploc.measurement import Meter, Meters, as_measurements, search
from caploc.models.loading import load_model
from caploc.options import Settings, TaskOptions
from caploc.recovery import Measurements, fit_paper_lasso
from caploc.search import METHODS, Plan, Problem, column_mask
from caploc.session import add_signal
from caploc.store import Store
from caploc.tasks.catalog import load_task
from census import FILES, write

MODEL = "qwen2.5-coder-0.5b"
ROWS = Path("build/benchmarks")
HARNESS = Path(lm_eval.__file__).parent / "tasks"
STEPS = (2, 4, 8, 12, 16, 24, 32, 40)  # examples asked so far, which the intact model gets right
MASKS, RATE = 100, 0.02  # of css, as the paper has them
AT_ONCE = 24  # rows in a batch
MEMORY = 2 * 2**30  # bytes beside the weights
LONGEST = 256  # tokens of an answer; the longest right ones have two thirds of that
CHAT = "-chat"  # how the name of a task ends that is asked with the chat template
# A task is lm-eval's own with what is changed here: local data, and answers that end.
CODE_ENDS = ["\nclass", "\ndef", "\n#", "\nif", "\nprint", "\n```"]
WHOLE = [{"name": "whole", "filter": [{"function": "take_first"}]}]
LAST_NUMBER = [
    {
        "name": "last-number",
        "filter": [
            {
                "function": "regex",
                "group_select": -1,
                "regex_pattern": r"(-?[$0-9.,]{2,})|(-?[0-9]+)",
            },
            {"function": "take_first"},
        ],
    }
]
LETTERED = (
    "{{question.strip()}}\n{% for text in choices.text %}{{choices.label[loop.index0]}}. {{text}}\n"
    "{% endfor %}Answer:"
)
LENGTH_NORMED = [{"metric": "acc_norm", "aggregation": "mean", "higher_is_better": True}]
TASKS: dict[str, dict[str, Any]] = {
    "humaneval": {"include": "humaneval/humaneval.yaml", "until": CODE_ENDS},
    "humaneval-chat": {"include": "humaneval/humaneval_instruct.yaml", "until": CODE_ENDS},
    "mbpp": {"include": "mbpp/mbpp.yaml", "until": ["[DONE]", "[BEGIN]"]},
    "mbpp-chat": {
        "include": "mbpp/mbpp_instruct.yaml",
        "num_fewshot": 0,
        "until": ["\n```", "\nassert", "\n# Test", "\nprint"],  # its own tests are cut off
        "filter_list": WHOLE,
    },
    "gsm8k": {
        "include": "gsm8k/gsm8k.yaml",
        "num_fewshot": 4,
        "fewshot_config": {"sampler": "first_n"},
        "until": ["Question:", "\n\n"],
        "filter_list": LAST_NUMBER,
    },
    "gsm8k-chat": {
        "include": "gsm8k/gsm8k.yaml",
        "num_fewshot": 0,
        "until": ["Question:"],
        "longest": 320,  # it thinks aloud
        "filter_list": LAST_NUMBER,
    },
    "arc_challenge": {"include": "arc/arc_challenge.yaml", "metric_list": LENGTH_NORMED},
    "arc_challenge-chat": {
        "include": "arc/arc_challenge.yaml",
        "doc_to_text": LETTERED,
        "doc_to_choice": "{{choices.label}}",
    },
    "mmlu": {"include": "mmlu/default/_default_template_yaml", "num_fewshot": 0},
    "mmlu-chat": {"include": "mmlu/default/_default_template_yaml", "num_fewshot": 0},
}
WRITTEN, CHOSEN = 60, 200  # examples of an intact score: of written answers, of choices
SEARCHED = ("humaneval-chat", "mbpp-chat", "gsm8k")
TOP, RANDOM = 5, 3  # heads of a cut; random sets of any layers, and of its own layers
CUT_ON = range(100, 180)  # examples asked under cuts; the census takes the first ones
CUT_TASKS = ("words/antonym", "words/capital", "mbpp-chat", "humaneval-chat")
# Methods at some 1,500 rows each: by tests, or by the likelihood of the model's own right answer;
# on how many right examples. The scan divides them itself and tries by tests.
COMPARED: dict[str, tuple[str, int | None]] = {
    "css": ("tests", 15),
    "csb": ("tests", 15),
    "one-shot": ("likelihood", 4),
    "greedy": ("likelihood", 1),
    "scan": ("tests", None),
}
BUDGET = 1_500
SEEDS = 3
HELD_OUT = slice(109, 136)  # of HumanEval's 164 in the order of seed 0


class Census:
    """The benchmarks on one model, its rows in a store."""

    def __init__(self, data: Path, store: Store, model: str = MODEL) -> None:
        engine = BatchEngine(
            load_model(model, device="cpu", dtype="bfloat16"), AT_ONCE, MEMORY, "packed"
        )
        self.model = model
        self.data, self.bench = data, Meters(engine, store)
        self.loaded, self.heads = engine.loaded, engine.grid.size
        self.found = defaultdict[str, list[tuple[str, Measurements]]](
            list
        )  # by task: part and rows

    def meter(self, name: str) -> Meter:
        """Load a task on the data's rows, or one of caploc's own."""
        if name not in TASKS:
            return self.bench.meter(load_task(name))
        file = ROWS / f"{name}.yaml"
        file.write_text(yaml.safe_dump(definition(name, self.data)))
        options = TaskOptions(allow_code=True, chat_template=name.endswith(CHAT))
        (task,) = ModelOptions(self.model, device="cpu").tasks([str(file)], options)
        return self.bench.meter(task)

    def ask(self, name: str, meter: Meter, plan: Plan) -> Measurements:
        """Have a plan's rows measured, if the store has them not."""
        with progress(quiet=False) as watched:
            rows = meter.measure(plan, watched, f"{name}, {plan.what}")
        found = as_measurements(plan, rows)
        self.found[name].append((plan.what, found))
        return found

    def intact(self, name: str, meter: Meter, examples: Sequence[int]) -> dict[int, float]:
        """Ask the intact model; the outcome of each example."""
        masks = column_mask(self.heads, [])[None]
        outcomes = self.ask(name, meter, Plan.crossed(name, masks, examples, "intact")).by_example()
        return {example: outcomes[example] for example in examples}

    def right(self, name: str, meter: Meter) -> Iterator[int]:
        """Examples that the intact model gets right, in the order of the file."""
        for first in range(0, meter.task.size, AT_ONCE):
            examples = range(first, min(first + AT_ONCE, meter.task.size))
            outcomes = self.intact(name, meter, examples)
            yield from (example for example, outcome in outcomes.items() if outcome)

    def write(self) -> None:
        """Write all rows so far, a small file for each task."""
        for name, parts in self.found.items():
            write(f"benchmarks-{name}", self.model, self.meter(name), *zip(*parts, strict=True))


def read(task: str) -> pd.DataFrame:
    """The rows of a task."""
    return parquet.read_table(FILES / f"benchmarks-{task}.parquet").to_pandas()


def definition(name: str, data: Path) -> dict[str, Any]:
    """The YAML of a task: lm-eval's, on these files."""
    change = dict(TASKS[name])
    plain = name.removesuffix(CHAT)
    splits = {"test": "test"} | ({"train": "train"} if plain == "gsm8k" else {})
    found = {
        "task": f"{name}-census",
        "include": str(HARNESS / change.pop("include")),
        "dataset_path": "json",
        "dataset_name": None,
        "dataset_kwargs": {
            "data_files": {
                split: str(data / f"{plain}_{file}.jsonl") for split, file in splits.items()
            }
        },
        "training_split": "train" if "train" in splits else None,
        "validation_split": None,
        "fewshot_split": "train" if "train" in splits else None,
        "tag": None,
    }
    if "until" in change:
        ends, longest = change.pop("until"), change.pop("longest", LONGEST)
        found["generation_kwargs"] = {"until": ends, "max_gen_toks": longest, "do_sample": False}
    return found | change


def score_intact(census: Census, names: Sequence[str]) -> None:
    """Score the intact model on every task; outcomes and scores are written after each."""
    file = FILES / "benchmarks.json"
    scores = json.loads(file.read_text()) if file.is_file() else {}
    for name in names:
        meter = census.meter(name)
        last = meter.task.size - 1
        # files of choices are sorted by subject
        examples = range(WRITTEN) if "until" in TASKS[name] else np.linspace(0, last, CHOSEN)
        outcomes = [*census.intact(name, meter, [*map(int, examples)]).values()]
        score = {"examples": len(outcomes), "score": float(np.mean(outcomes))}
        scores[name if census.model == MODEL else f"{census.model} {name}"] = score
        file.write_text(json.dumps(scores, indent=1) + "\n")
        print(name, score, flush=True)


def take(census: Census, names: Sequence[str]) -> Iterator[None]:
    """Ask every head alone, and css's masks, on ever more right examples."""
    meters = {name: census.meter(name) for name in names}
    right = {name: census.right(name, meter) for name, meter in meters.items()}
    drawn = designs.stratified(census.heads, MASKS, rate=RATE, seed=0)
    for before, count in pairwise((0, *STEPS)):
        for name, meter in meters.items():
            examples = list(islice(right[name], count - before))
            for what, masks in (("alone", designs.singles(census.heads)), ("css", drawn)):
                if examples:
                    census.ask(name, meter, Plan.crossed(name, masks, examples, what))
                    yield


def named_heads(run: Path, task: str, grid: Heads) -> dict[str, list[int]]:
    """The columns that each method names for a task, from what is stored."""
    result = json.loads((run / "result.json").read_text())
    lost = {row["head"]: row["lost"] for row in result["heads"] if row.get("lost") is not None}
    rows = read(task).query("part == 'css'")
    masks, mask = np.unique(
        [column_mask(grid.size, cut) for cut in rows["knocked_out"]], axis=0, return_inverse=True
    )
    seen = Measurements(masks, mask, rows["example"].to_numpy(), rows["outcome"].to_numpy())
    rng = np.random.default_rng(0)
    found = grid.columns([*result["top"], *result["validation"]["unconfirmed"]])
    matched = designs.layer_matched_masks(
        column_mask(grid.size, found), grid.layer_slices, RANDOM, seed=0
    )
    return (
        {
            "intact": [],
            "set": found,
            "named": grid.columns(result["top"]),
            "one-shot": grid.columns(sorted(lost, key=lambda head: -lost[head])[:TOP]),
            "css": fit_paper_lasso(seen, {}).order()[:TOP],
        }
        | {f"random {n}": rng.choice(grid.size, TOP, replace=False).tolist() for n in range(RANDOM)}
        | {f"same layers {n}": np.flatnonzero(mask).tolist() for n, mask in enumerate(matched)}
    )


def cut(census: Census, run: Path, task: str, names: Sequence[str]) -> None:
    """Knock out each method's heads on other tasks than their own; written after each."""
    file = FILES / "benchmarks_cuts.json"
    told = json.loads(file.read_text()) if file.is_file() else {}
    grid = census.loaded.grid
    named = named_heads(run, task, grid)
    for name in names:
        meter = census.meter(name)
        examples = [example for example in CUT_ON if example < meter.task.size]
        masks = np.array([column_mask(grid.size, columns) for columns in named.values()])
        plan = Plan.crossed(name, masks, examples, f"cuts of {task}")
        outcomes = census.ask(name, meter, plan).outcome.reshape(len(named), len(examples))
        told.setdefault(task, {})[name] = {
            method: {
                "heads": [str(grid.component(column)) for column in columns],
                "outcomes": values.astype(int).tolist(),
            }
            for (method, columns), values in zip(named.items(), outcomes, strict=True)
        }
        file.write_text(json.dumps(told) + "\n")
        scores = dict(zip(named, outcomes.mean(axis=1).round(3).tolist(), strict=True))
        print(task, name, scores, flush=True)


def compare(census: Census, name: str) -> None:
    """Score the first heads of each method and seed on examples held out; written after each.

    Heads found before are scored again: answers hang on the machine's rounding.
    """
    file = FILES / "benchmarks_compared.json"
    told = json.loads(file.read_text()) if file.is_file() else {}
    told["intact"] = {"heads": [], "rows": 0}
    meter, grid = census.meter(name), census.loaded.grid
    order = designs.draw_examples(meter.task.size, meter.task.size, seed=0)
    held, pool = order[HELD_OUT], order[: HELD_OUT.start] + order[HELD_OUT.stop :]
    with progress(quiet=False) as watched:
        rows = meter.under(column_mask(grid.size, []), pool, watched, f"{name}, intact")
        probes = {"tests": meter}
        probes["likelihood"] = probes[add_signal(census.bench, probes, "tests", rows)]
        right = [row.number for row in rows if row.outcome]

        def score(key: str) -> None:
            mask = column_mask(grid.size, grid.columns(told[key]["heads"]))
            left = meter.under(mask, held, watched, f"{name}, {key}")
            told[key]["outcomes"] = [int(row.outcome) for row in left]
            file.write_text(json.dumps(told) + "\n")
            print(key, told[key], sum(told[key]["outcomes"]), flush=True)

        for key in list(told):
            score(key)
        for seed in range(SEEDS):
            for method, (probe, count) in COMPARED.items():
                key = f"{method} {seed}"
                if key in told:
                    continue
                drawn = designs.draw_examples(len(right), count or len(right), seed=seed)
                settings = Settings(seed=seed, masks=MASKS, rate=RATE, top=TOP, budget=BUDGET)
                problem = Problem(
                    grid.size,
                    [right[at] for at in drawn],
                    settings,
                    probe=probe,
                    signal="likelihood",
                )
                found = search(probes, METHODS[method].search(problem), watched)
                told[key] = {
                    "heads": [str(grid.component(column)) for column in found.ranking[:TOP]],
                    "rows": found.stages.rows if found.stages else len(found.seen.outcome),
                }
                score(key)


def summary() -> Iterator[str]:
    """A line of Markdown for each task: what was right before, and is no longer."""
    yield "| task | a head alone | broken | heads that broke half | six heads | broken |"
    yield "|---|--:|--:|--:|--:|--:|"
    for task in sorted(SEARCHED):
        rows = read(task)
        alone, css = (rows[rows["part"] == part] for part in ("alone", "css"))
        by_head = alone["outcome"].groupby(alone["knocked_out"].str[0]).mean()
        yield (
            f"| {task} | {len(alone):,} | {1 - alone['outcome'].mean():.1%} "
            f"| {(by_head <= 0.5).sum()} of {len(by_head)} "
            f"| {len(css):,} | {1 - css['outcome'].mean():.1%} |"
        )


def main() -> None:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path, help="folder of the benchmarks' rows")
    parser.add_argument("--intact", action="store_true", help="the intact model alone")
    parser.add_argument("--cuts", type=Path, help="folder of a run of one of --tasks")
    parser.add_argument("--compare", action="store_true", help="published methods, HumanEval")
    parser.add_argument("--model", default=MODEL, help="of --intact (default %(default)s)")
    parser.add_argument("--summary", action="store_true", help="measure nothing")
    parser.add_argument("--tasks", type=lambda text: text.split(","), help=", ".join(TASKS))
    asked = parser.parse_args()
    if asked.summary:
        print(*summary(), sep="\n")
        return
    for folder in (ROWS, FILES):
        folder.mkdir(parents=True, exist_ok=True)
    with Store(ROWS / "rows.sqlite") as store:
        census = Census(asked.data.absolute(), store, asked.model)
        if asked.intact:
            score_intact(census, asked.tasks or list(TASKS))
            return
        if asked.compare:
            compare(census, "humaneval-chat")
            return
        if asked.cuts:
            if not asked.tasks or len(asked.tasks) > 1:
                parser.error("--cuts RUN needs --tasks NAME, the task on which the run searched")
            (task,) = asked.tasks
            cut(census, asked.cuts, task, [name for name in CUT_TASKS if name != task])
            return
        for _ in take(census, asked.tasks or SEARCHED):
            census.write()


if __name__ == "__main__":
    main()
