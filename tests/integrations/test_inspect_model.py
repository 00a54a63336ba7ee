"""inspect_ai's provider `caploc` answers as the knocked-out model does."""

import subprocess
import sys
from importlib.metadata import entry_points

import anyio
import pytest

from caploc.components import read_heads
from caploc.engine.api import Ask
from caploc.engine.batch import BatchEngine
from caploc.models.loading import load_model
from caploc.tasks.task import Generate, options_json
from worlds import DEMO

inspect_ai = pytest.importorskip("inspect_ai")

from inspect_ai._util.error import PrerequisiteError  # noqa: E402
from inspect_ai.dataset import Sample  # noqa: E402
from inspect_ai.model import GenerateConfig, get_model  # noqa: E402
from inspect_ai.scorer import match  # noqa: E402

pytestmark = [
    pytest.mark.slow,  # inspect_ai takes seconds to import
    pytest.mark.filterwarnings("ignore"),  # of its own dependencies
]

SUMS = [(a, b) for a in (11, 27, 38, 45) for b in (3, 16, 52)]
LIMITS = {"until": ["\n"], "max_gen_toks": 6, "do_sample": False}


@pytest.fixture(scope="module")
def said(heads_file):
    """What caploc's engine says to each sum, knocked out."""
    engine = BatchEngine(load_model(DEMO, device="cpu"))
    mask = engine.grid.mask(read_heads(heads_file).heads)
    asks = [
        Ask((row, 0), Generate(f"{a}+{b}=", options_json(LIMITS)), mask)
        for row, (a, b) in enumerate(SUMS)
    ]
    answers = {done.key[0]: done.response for batch in engine.answer(asks) for done in batch}
    return [answers[row] for row in range(len(SUMS))]


def evaluated(folder, **model_args):
    samples = [Sample(input=f"{a}+{b}=", target=str(a + b)) for a, b in SUMS]
    config = GenerateConfig(max_tokens=6, stop_seqs=["\n"])
    task = inspect_ai.Task(dataset=samples, scorer=match(location="exact"), config=config)
    (log,) = inspect_ai.eval(
        task, model=f"caploc/{DEMO}", model_args=model_args, log_dir=str(folder), display="none"
    )
    assert log.status == "success", log.error
    return log


def test_an_evaluation_says_and_scores_what_the_engine_does(heads_file, said, tmp_path):
    log = evaluated(tmp_path, knockout=str(heads_file))
    samples = sorted(log.samples, key=lambda sample: sample.id)
    assert [sample.output.completion for sample in samples] == [answer.text for answer in said]
    ended = ["max_tokens" if answer.end is None else "stop" for answer in said]
    assert [sample.output.stop_reason for sample in samples] == ended
    right = sum(each.text.strip() == str(a + b) for each, (a, b) in zip(said, SUMS, strict=True))
    accuracy = log.results.scores[0].metrics["accuracy"].value
    assert accuracy == right / len(SUMS) < 1
    usage = samples[0].output.usage
    assert usage.output_tokens > 0 and usage.input_tokens == len("^11+3=")  # a start token


def test_without_a_file_the_model_is_intact(tmp_path):
    log = evaluated(tmp_path)
    assert log.results.scores[0].metrics["accuracy"].value == 1


def test_the_entry_point_is_this_provider():
    (found,) = entry_points(group="inspect_ai", name="caploc")
    module = "caploc.integrations.inspect_ai"
    assert found.load().__name__ == module
    code = f"import sys, {module}; print('torch' in sys.modules)"  # as for any other provider
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]
    with pytest.raises(PrerequisiteError, match="cannot be read as a file of heads"):
        get_model(f"caploc/{DEMO}", knockout="none.json", memoize=False)


async def generated(config, **given):
    model = get_model(f"caploc/{DEMO}", memoize=False)
    return await model.generate("1+1=", config=config, **given)


@pytest.mark.parametrize("setting", [{"temperature": 0.7}, {"num_choices": 2}, {"logprobs": True}])
def test_what_greedy_decoding_cannot_do_is_refused(setting):
    with pytest.raises(Exception, match="caploc decodes greedily"):
        anyio.run(generated, GenerateConfig(**setting))
