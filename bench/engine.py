"""How fast rows are answered: caploc against one mask a call, on the demo model.

    python bench/engine.py --masks 100 --examples 40

Both answer the same rows in one process on the same threads; the texts are checked equal. The hook
loop is what a careful user writes: per mask one `generate` over all examples, hooks on the output
projections. Times are medians over repeats, after one warm-up; the spread is the range.
"""

import argparse
import time
from collections.abc import Callable
from statistics import median

import numpy as np
import torch

from caploc import designs
from caploc.models.cutting import knocked_out
from caploc.models.engine import Ask, BatchEngine
from caploc.models.loading import LoadedModel, load_model
from caploc.tasks.catalog import load_task
from caploc.tasks.requests import Generate, Generated

Texts = dict[tuple[int, int], str]


def hook_loop(loaded: LoadedModel, masks: np.ndarray, requests: list[Generate]) -> Texts:
    """One mask a call, all examples in it."""
    tokenizer = loaded.tokenizer
    tokenizer.padding_side = "left"
    batch = tokenizer([request.prompt for request in requests], return_tensors="pt", padding=True)
    texts: Texts = {}
    for number, mask in enumerate(masks):
        with (
            torch.inference_mode(),
            knocked_out(loaded.projections, loaded.grid, torch.from_numpy(mask[None])),
        ):
            output = loaded.model.generate(
                **batch,
                max_new_tokens=16,
                do_sample=False,
                stop_strings=["\n"],
                tokenizer=tokenizer,
                pad_token_id=tokenizer.pad_token_id,
            )
        for example, tokens in enumerate(output[:, batch["input_ids"].shape[1] :]):
            text = tokenizer.decode(tokens, skip_special_tokens=True)
            texts[number, example] = text.split("\n")[0]
    return texts


def caploc_engine(engine: BatchEngine, masks: np.ndarray, requests: list[Generate]) -> Texts:
    """All rows at once, each under its own mask."""
    asks = [
        Ask((number, example), request, mask)
        for number, mask in enumerate(masks)
        for example, request in enumerate(requests)
    ]
    texts = {}
    for answers in engine.answer(asks):
        for answer in answers:
            assert isinstance(answer.response, Generated)
            texts[answer.key] = answer.response.text
    return texts


def timed(work: Callable[[], Texts], repeats: int) -> tuple[Texts, list[float]]:
    """The texts and the seconds of each repeat, after a warm-up."""
    texts, seconds = work(), []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return texts, seconds


def main() -> None:
    """Time both; print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--masks", type=int, default=100)
    parser.add_argument("--examples", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    loaded, task = load_model("demo"), load_task("demo/addition")
    masks = designs.stratified(loaded.grid.size, arguments.masks, rate=0.02, seed=0)
    requests = [task.requests(example)[0] for example in range(arguments.examples)]
    engine = BatchEngine(loaded)
    contenders = {
        "hook loop": lambda: hook_loop(loaded, masks, requests),
        "caploc": lambda: caploc_engine(engine, masks, requests),
    }
    rows = arguments.masks * arguments.examples
    reference: Texts | None = None
    base = 0.0
    print("| contender | rows/s | seconds (range) | speed | texts equal |\n|---|---|---|---|---|")
    for name, work in contenders.items():
        texts, seconds = timed(work, arguments.repeats)
        reference, base = reference or texts, base or median(seconds)
        equal = sum(texts[key] == reference[key] for key in texts)
        print(
            f"| {name} | {rows / median(seconds):,.0f} | {median(seconds):.2f} "
            f"({min(seconds):.2f}-{max(seconds):.2f}) | {base / median(seconds):.1f}x "
            f"| {equal} of {rows} |"
        )


if __name__ == "__main__":
    main()
