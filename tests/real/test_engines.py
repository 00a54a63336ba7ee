"""vLLM on a pretrained model gives the answers and findings of packed rows: make test-vllm."""

import json
import subprocess
import sys

import numpy as np
import pytest

from caploc import designs
from caploc.engine.api import Ask
from caploc.engine.batch import BatchEngine
from caploc.models.loading import load_model
from caploc.tasks.catalog import load_task
from caploc.tasks.task import LogLikelihood

NAME, EXAMPLES, MASKS = "smollm2", 40, 6
STUDY = "--task words/past --also words/plural --dtype float32 --budget 860 --limit 20 --quick"
NEAR = 1e-3  # nats
pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("default")]


@pytest.fixture(scope="module")
def float32():
    return load_model(NAME, device="cpu", dtype="float32")


@pytest.fixture(scope="module")
def asks(float32):
    """Six-shot prompts, each to be answered and with two endings, under every mask."""
    task, found = load_task("words/past"), []
    masks = designs.stratified(float32.grid.size, MASKS - 1, rate=0.02, seed=0)
    for place, mask in enumerate([np.zeros(float32.grid.size, dtype=bool), *masks]):
        for example in range(EXAMPLES):
            (request,) = task.requests(example)
            row = place * EXAMPLES + example
            found.append(Ask((row, 0), request, mask))
            for part, ending in enumerate((" walked", " had gone"), 1):
                found.append(Ask((row, part), LogLikelihood(request.prompt, ending), mask))
    return found


def answered(engine, asks):
    return {answer.key: answer for batch in engine.answer(asks) for answer in batch}


@pytest.fixture(scope="module")
def truth(float32, asks):
    return answered(BatchEngine(float32, backend="packed"), asks)


@pytest.fixture(scope="module")
def engine(float32):
    return BatchEngine(float32, backend="vllm")


def same(found, truth):
    """How many texts are equal, and how many log-probabilities to rounding."""
    texts = scores = 0
    for key, wanted in truth.items():
        got = found[key].response
        if key[1] == 0:
            texts += got == wanted.response
        else:
            near = got.logprob == pytest.approx(wanted.response.logprob, abs=NEAR)
            scores += near and got.greedy == wanted.response.greedy
    return texts, scores


def spared(found):
    """Tokens of texts that came from kept keys."""
    return sum(a.plain_tokens - a.forward_tokens for key, a in found.items() if key[1] == 0)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("shares", [True, False])
def test_answers_are_those_of_packed_rows(engine, asks, truth, shares):
    first = engine.backends[0]
    assert first.trouble is None
    first.shares = shares
    try:
        found = answered(engine, asks)
    finally:
        first.shares = True
    assert same(found, truth) == (MASKS * EXAMPLES, 2 * MASKS * EXAMPLES)
    assert {a.way.engine for key, a in found.items() if key[1] == 0} == {first.name}
    # of each mask's prefix one block of keys at least, where they may be kept
    assert (spared(found) > MASKS * EXAMPLES * 16) == shares
    assert len({a.response.text for key, a in found.items() if key[1] == 0}) > EXAMPLES


@pytest.mark.timeout(1800)
def test_a_study_finds_what_it_finds_with_packed_rows(tmp_path):
    found = {}
    for engine in ("packed", "vllm"):
        folder = tmp_path / engine
        asked = ["locate", NAME, *STUDY.split(), "--engine", engine, "--out", str(folder)]
        # in a process of its own: vLLM takes memory for one engine of a process
        command = [sys.executable, "-m", "caploc", *asked, "--controls", "2", "--quiet"]
        subprocess.run(command, check=True)
        found[engine] = json.loads((folder / "result.json").read_text())
    got, wanted = found["vllm"], found["packed"]
    assert got["top"] == wanted["top"] and got["intact"] == wanted["intact"]
    for one, other in zip(got["heads"], wanted["heads"], strict=True):
        assert (one["head"], one["selected"]) == (other["head"], other["selected"])
        assert one["effect"] == pytest.approx(other["effect"], abs=NEAR)
