"""Keep the numbers that today's code gives, and say later whether they are the same.

    python scripts/golden.py record build/golden
    python scripts/golden.py compare build/golden --only planted,past-heads

A case yields named figures: effects, scores, heads, digests. `record` writes them to
FOLDER/CASE.json; `compare` measures again, with the code that this Python imports, and exits with 1
if a figure differs. A figure that only one of both has is told and counts as no difference: what is
measured may change, its value may not. `figures_of_run` and its neighbours read the files of a run:
whoever changes a file's layout changes them alone. Cases on SmolLM2 need `caploc models fetch
smollm2`.
"""

import argparse
import json
import math
import os

# one thread adds up the same way at every run; nothing is fetched on the way
os.environ.update(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", TQDM_DISABLE="1")

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
MODEL = "smollm2"
ALIKE = 1e-4  # by which numbers may differ: kernels add up in other orders
TOLD = 20  # differences, and missing figures, that are printed
SMALL = "--limit 24 --controls 5 --quiet"
QUICK = f"--budget 800 {SMALL}"
PAPER = f"--masks 24 --rate 0.03 --examples 16 {SMALL}"
SPARE = f"--goal specific --spare words/plural,words/upper --budget 1100 {SMALL}"
LOCATE = {
    "past-heads": f"words/past --also words/plural {QUICK}",
    "past-set": f"words/past --goal set --also words/plural {QUICK}",
    "past-specific": f"words/past {SPARE}",
    "past-css": f"words/past --method css --also words/upper {PAPER}",
    "past-csb": f"words/past --method csb --also words/upper {PAPER}",
    "antonym-heads": f"words/antonym --also words/copy {QUICK}",
    "antonym-set": f"words/antonym --goal set --also words/copy {QUICK}",
    "antonym-specific": f"words/antonym {SPARE}",
}
CUT = "L8H1,L1H5,L20H5"  # of the exported checkpoint
Figures = dict[str, Any]


def flatten(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every number, truth value and text inside a value, with its place."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from flatten(inner, f"{place}.{name}" if place else str(name))
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            yield from flatten(inner, f"{place}[{number}]")
    elif isinstance(value, float):
        yield place, round(value, 6) if math.isfinite(value) else repr(value)
    elif value is not None:
        yield place, value


def pick(source: Mapping[str, Any] | None, *names: str) -> Figures:
    """Take the fields of these names, as far as there are any."""
    return {name: source[name] for name in names if source and source.get(name) is not None}


# --- planted searches: no model


@dataclass(frozen=True)
class Planted:
    """Worlds whose heads are known: the task, another one, and a related one to be spared."""

    kind: str
    seed: int

    def answer(self) -> Callable[[Any], Any]:
        """Answer plans: three worlds, and the likelihoods of two of them."""
        try:  # worlds lie with the tests, or in the package
            sys.path.insert(0, str(ROOT / "tests"))
            from worlds.simulate import World
        except ImportError:
            from caploc.simulate import World
        from caploc.recovery import Measurements

        task, other, spared = (
            World.of_kind(self.kind, seed=self.seed + each, layers=16, width=12)
            for each in (0, 1000, 2000)
        )
        strongest = np.argsort(-task.shifts)[:8:2]
        spared.shifts[strongest] = task.shifts[strongest]  # heads that both need
        asked = {
            "task": task.outcomes, "task.likelihood": task.logprobs, "other": other.outcomes,
            "spared": spared.outcomes, "spared.likelihood": spared.logprobs,
        }  # fmt: skip

        def outcomes(plan: Any) -> Measurements:
            found = asked[plan.probe](plan.masks[plan.mask], plan.example)
            return Measurements(plan.masks, plan.mask, plan.example, found)

        return outcomes

    def search(self, method: str, goal: str) -> Figures:
        """Run a search to its end; what it asked and what it found."""
        from caploc.options import Settings
        from caploc.search import METHODS, Problem
        from caploc.search.plan import OtherTask

        answer = self.answer()
        settings = Settings(seed=self.seed, goal=goal, mask_counts=(20, 40), rates=(0.02, 0.05))
        sides = [OtherTask("spared", range(200), "spared.likelihood")]
        problem = Problem(
            heads=16 * 12,
            examples=range(60 if method != "scan" else 400),
            settings=settings,
            fresh=range(400, 800),
            elsewhere={"other": range(24)},
            signal="task.likelihood",
            sides=sides if goal == "specific" else (),
        )
        searching, rows, measured = METHODS[method].search(problem), 0, None
        while True:
            try:
                plan = searching.send(measured)  # type: ignore[arg-type]
            except StopIteration as end:
                found = end.value
                break
            rows += len(plan.mask)
            measured = answer(plan)
        first = found.ranking[:10]
        return {
            "rows": rows,
            "chosen": found.chosen,
            "ranking": first,
            "effect": {column: float(found.estimate.effect[column]) for column in first},
            "low": {column: float(found.estimate.low[column]) for column in first},
            "high": {column: float(found.estimate.high[column]) for column in first},
            "critical": found.critical,
            "universal": found.universal,
        }


def planted() -> Figures:
    """Search worlds by every method and goal."""
    from caploc.search import METHODS

    figures = {}
    for kind in ("strong", "weak", "real", "rescue", "null"):
        world = Planted(kind, seed=7)
        for method in METHODS:
            for goal in ("heads", "set", "specific") if method == "scan" else ("heads",):
                figures[f"{kind} {method} {goal}"] = world.search(method, goal)
    return figures


# --- requests of tasks

ROWS: dict[str, tuple[str, list[dict[str, Any]]]] = {  # of lm-eval's tasks, written for this
    "gsm8k": (
        "train,test",
        [
            {"question": f"Ann has {n} pens and buys {n + 1}. How many?",
             "answer": f"{n} + {n + 1} = {2 * n + 1}\n#### {2 * n + 1}"}
            for n in range(3, 13)
        ],
    ),
    "arc_challenge": (
        "test",
        [{"id": "1", "question": "What melts?", "answerKey": "B",
          "choices": {"text": ["stone", "ice in the sun"], "label": ["A", "B"]}}],
    ),
    "hellaswag": (
        "validation",
        [{"ind": 1, "activity_label": "Baking", "ctx_a": "A cook opens the oven.", "ctx_b": "she",
          "endings": ["sings.", "takes out the bread.", "flies.", "naps."], "label": "1"}],
    ),
    "mmlu_anatomy": (
        "test",
        [{"question": "How many hands?", "subject": "anatomy", "choices": ["1", "2", "3", "4"],
          "answer": 1}],
    ),
    "mbpp": (
        "test",
        [{"task_id": 11, "text": "Write a function to add two numbers.", "code": "",
          "test_setup_code": "", "test_list": ["assert add(1, 2) == 3"] * 3,
          "challenge_test_list": []}],
    ),
    "humaneval": (
        "test",
        [{"task_id": "HumanEval/0", "prompt": "def add(a, b):\n", "entry_point": "add",
          "canonical_solution": "    return a + b\n",
          "test": "def check(candidate):\n    assert candidate(1, 2) == 3\n"}],
    ),
    "imdb": ("test,train", [{"text": "A fine film.", "label": 1}] * 3),
    "emotion": ("test", [{"text": "i feel fine", "label": 1}]),
    "metamath": ("train", [{"query": "What is 1 + 1?", "response": "The answer is: 2"}] * 3),
    "code25k": ("train", [{"instruction": "Print 1.", "output": "print(1)"}]),
}  # fmt: skip


def requests() -> Figures:
    """Digest what every packaged task, and a few of lm-eval's on rows of ours, ask."""
    from caploc.tasks.catalog import own_names

    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in own_names():
            if name.startswith(("words/", "rhyming", "swearing")):
                figures[name] = digest(name, {})
        for name, (splits, rows) in ROWS.items():
            file = Path(folder) / f"{name}.jsonl"
            file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
            figures[name] = digest(name, dict.fromkeys(splits.split(","), str(file)))
    return figures


def digest(name: str, data: dict[str, str]) -> Figures | None:
    """Count a task's examples, and digest what they ask; nothing if there is no such task."""
    from caploc.errors import UnknownName
    from caploc.options import TaskOptions
    from caploc.tasks.catalog import load_task

    try:
        task = load_task(name, TaskOptions(data=data, allow_code=True))
    except UnknownName:
        return None
    asked = [texts_of(request) for n in range(task.size) for request in task.requests(n)]
    text = json.dumps(asked).encode()
    return {"examples": task.size, "requests": len(asked), "digest": sha256(text).hexdigest()}


def texts_of(request: Any) -> list[str]:
    """The texts of a request, in the order of its fields."""
    values = [getattr(request, name) for name in type(request).__dataclass_fields__]
    return [value for value in values if isinstance(value, str)]


# --- answers under masks

WRITTEN = (
    "Present: walk\nPast: walked\n\nPresent: call\nPast: called\n\nPresent: play\nPast:",
    "The capital of France is Paris. The capital of Italy is",
    "one cat, many cats\none dog, many dogs\none house, many",
)
SCORED = (
    ("hot -> cold\nbig -> small\nwet ->", " dry"),
    ("The capital of France is Paris. The capital of Italy is", " Rome"),
)


def engine() -> Figures:
    """Ask SmolLM2, and a small random Llama, under masks of one and of several heads."""
    with tempfile.TemporaryDirectory() as folder:
        write_tiny(Path(folder))
        return {"tiny": answers(folder), MODEL: answers(MODEL)}


def write_tiny(folder: Path) -> None:
    """Write a Llama of 4 layers of 4 heads with random weights, and SmolLM2's tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from caploc.models.loading import load_tokenizer

    tokenizer = load_tokenizer(MODEL)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=96, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=2, initializer_range=0.2,
        eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def answers(model: str) -> Figures:
    """Write and score under no mask, 12 heads alone, and 12 random masks; float32, packed."""
    from caploc.engine.api import Ask
    from caploc.engine.batch import BatchEngine
    from caploc.models.loading import load_model
    from caploc.tasks.task import Generate, LogLikelihood, options_json

    engine = BatchEngine(load_model(model, device="cpu", dtype="float32"), backend="packed")
    heads, random = engine.grid.size, np.random.default_rng(3)
    masks = [np.zeros(heads, dtype=bool)]
    masks += [np.arange(heads) == each for each in np.linspace(0, heads - 1, 12).astype(int)]
    masks += [random.random(heads) < 0.05 for _ in range(12)]
    options = options_json({"until": ["\n\n"], "max_gen_toks": 16, "do_sample": False})
    asked = [Generate(prompt, options) for prompt in WRITTEN]
    asked += [LogLikelihood(*each) for each in SCORED]  # type: ignore[misc]
    asks = [
        Ask((number, place), request, mask)
        for number, mask in enumerate(masks)
        for place, request in enumerate(asked)
    ]
    return {
        f"mask {answer.key[0]} request {answer.key[1]}": {
            name: getattr(answer.response, name)
            for name in ("text", "logprob", "greedy")
            if hasattr(answer.response, name)
        }
        for batch in engine.answer(asks)
        for answer in batch
    }


# --- commands


def run(*words: str) -> None:
    """Run a command of caploc; its last words are shown if it fails."""
    done = subprocess.run(
        [sys.executable, "-m", "caploc", *words], capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"caploc {' '.join(words)} ended with {done.returncode}:\n{done.stderr[-3000:]}")


def located(words: str) -> Callable[[], Figures]:
    """Make a case of a `caploc locate` on SmolLM2."""

    def case() -> Figures:
        with tempfile.TemporaryDirectory() as folder:
            run("locate", MODEL, "--task", *words.split(), "--out", folder)
            return figures_of_run(json.loads((Path(folder) / "result.json").read_text()))

    return case


def figures_of_run(result: Mapping[str, Any]) -> Figures:
    """Read what a run found, from its result.json."""
    found = ("effect", "low", "high", "q", "selected", "critical", "universal")
    checks, change = result["validation"], ("outcome", "low", "high", "examples")
    scores = {
        task["name"]: {
            "intact": task["intact"]["score"],
            "knocked out": task["knocked_out"]["score"],
            "change": pick(task["change"], *change),
        }
        for task in (checks["task"], *checks["other_tasks"])
    }
    held_out = checks.get("held_out") or {}
    members = (checks.get("members") or {}).get("heads", [])
    return {
        "top": result["top"],
        "intact": result["intact"],
        "rows of the search": (result.get("search") or {}).get("rows"),
        "heads": {head["head"]: pick(head, *found) for head in result["heads"]},
        "scores": scores,
        "held out": pick(held_out, "intact", "knocked_out", "examples"),
        "change held out": pick(held_out.get("change"), *change),
        "controls": pick(checks.get("controls"), "scores", "mean", "sd"),
        "members": {one["head"]: pick(one, "alone", "within") for one in members},
        "frontier": checks.get("frontier"),
    }


def cnl() -> Figures:
    """Locate the neurons of two tasks, hold them against each other, erase them."""
    with tempfile.TemporaryDirectory() as folder:
        tasks = ("--task", "words/past", "--task", "words/plural")
        sizes = ("--examples", "60", "--judged", "20", "--quiet")
        run("neurons", "locate", MODEL, *tasks, *sizes, "--out", folder)
        run("neurons", "erase", folder, "--draws", "5", "--limit", "20", "--quiet")
        located, erased = (
            json.loads((Path(folder) / f"{name}.json").read_text())
            for name in ("neurons", "erasure")
        )
        return figures_of_neurons(located) | {"erased": figures_of_erasure(erased)}


def figures_of_neurons(found: Mapping[str, Any]) -> Figures:
    """Read the neurons of each task, and their overlap, from a run's neurons.json."""
    within = ("rates", "group", "pairwise", "halves", "sweep", "curve")
    return {
        "tasks": {
            task["task"]: {
                "neurons": {one["neuron"]: pick(one, "score", "stderr") for one in task["neurons"]},
                "subsets": task["subsets"],
                "within": pick(task["within"], *within),
                "erased": figures_of_arms(task["erased"]),
            }
            for task in found["tasks"]
        },
        "overlaps": found["overlaps"]["rates"],
        "cohesion": found.get("cohesion"),
    }


def figures_of_arms(judged: Mapping[str, Any] | None) -> Figures:
    """Read what each arm of an erasure leaves of a task."""
    gain = judged and judged["logprob_specificity"]
    return judged and {  # type: ignore[return-value]
        "intact": judged["intact"],
        "arms": judged["arms"],
        "gain": pick(gain, "excess", "pooled_gain", "p"),
    }


def figures_of_erasure(found: Mapping[str, Any]) -> Figures:
    """Read what each task loses, from a run's erasure.json."""
    return {
        task["task"]: {
            "own": figures_of_arms(task["own"]),
            "others": {each["judged"]: figures_of_arms(each) for each in task["others"]},
        }
        for task in found["tasks"]
    }


def checkpoint() -> Figures:
    """Export SmolLM2 without some heads; a digest of every tensor."""
    from safetensors import safe_open

    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "cut"
        run("export", MODEL, "--heads", CUT, "--to", str(target))
        with safe_open(target / "model.safetensors", "np") as file:
            names = list(file.keys())
            return {name: sha256(file.get_tensor(name).tobytes()).hexdigest() for name in names}


CASES: dict[str, Callable[[], Figures]] = {
    "planted": planted,
    "requests": requests,
    "engine": engine,
    "checkpoint": checkpoint,
    **{name: located(words) for name, words in LOCATE.items()},
    "cnl": cnl,
}


def same(before: Any, after: Any) -> bool:
    """Tell whether two figures are the same; numbers, but for how they were added up."""
    numbers = (int, float)
    if isinstance(before, numbers) and isinstance(after, numbers):
        return math.isclose(before, after, rel_tol=ALIKE, abs_tol=ALIKE)
    return bool(before == after)


def compare(case: str, before: Figures, after: Figures) -> bool:
    """Say what differs; whether anything does."""
    changed = [
        f"{name}: {value} is now {after[name]}"
        for name, value in before.items()
        if name in after and not same(value, after[name])
    ]
    shared = len(before.keys() & after.keys())
    for what, names in (("gone", before.keys() - after.keys()), ("new", after.keys() - before)):
        if names:
            print(f"{case}: {len(names)} figures are {what}: {listed(sorted(names))}")
    if changed or not shared:
        print(f"{case}: {len(changed)} of {shared} figures differ:", *changed[:TOLD], sep="\n  ")
        return True
    print(f"{case}: all {shared:,} figures equal", flush=True)
    return False


def listed(names: Sequence[str]) -> str:
    """The first names of many."""
    return ", ".join(names[:TOLD]) + (" ..." if len(names) > TOLD else "")


def main() -> None:
    """Record the cases, or compare them with what was recorded."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=["record", "compare"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default=",".join(CASES), help="cases, with commas")
    asked = parser.parse_args()
    cases = asked.only.split(",")
    if unknown := set(cases) - set(CASES):
        parser.error(f"no case {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    asked.folder.mkdir(parents=True, exist_ok=True)
    different = []
    for case in cases:
        file, begun = asked.folder / f"{case}.json", time.monotonic()
        figures = dict(flatten(CASES[case]()))
        print(f"{case}: {len(figures):,} figures, {time.monotonic() - begun:.0f} s", flush=True)
        if asked.what == "record":
            file.write_text(json.dumps(figures, indent=0) + "\n")
        elif compare(case, json.loads(file.read_text()), figures):
            different.append(case)
    sys.exit(f"Different: {', '.join(different)}." if different else 0)


if __name__ == "__main__":
    main()
