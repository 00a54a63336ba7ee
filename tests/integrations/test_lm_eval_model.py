"""lm-eval's model `caploc` scores as `caploc evaluate` does."""

import json
import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from lm_eval.api.instance import Instance
from lm_eval.api.registry import Registry

from caploc.components import read_heads
from caploc.errors import BadData, BadOption
from caploc.integrations.lm_eval import KnockedOut
from worlds import DEMO

pytestmark = pytest.mark.filterwarnings("ignore")  # lm-eval's own evaluator warns of its own


@pytest.fixture(scope="module")
def model(heads_file):
    return KnockedOut(DEMO, str(heads_file), batch_size=1, device="cpu")


def generation(prompt, **options):
    return Instance("generate_until", {}, (prompt, options), 0, ("a task", 0, 1))


def test_answers_come_in_the_order_of_their_requests(model):
    prompts = [f"{number}+{number}=" for number in (11, 3, 27)]
    asked = [generation(prompt, until=["\n"], max_gen_toks=6) for prompt in prompts]
    together = model.generate_until(asked)
    assert together == [model.generate_until([one])[0] for one in asked]
    assert len(set(together)) > 1


@pytest.mark.parametrize("options", [{"do_sample": True, "temperature": 0.7}, {"num_beams": 3}])
def test_sampling_is_refused(options, model):
    with pytest.raises(BadOption, match="caploc decodes greedily"):
        model.generate_until([generation("1+1=", until=["\n"], **options)])


def test_mistakes_are_one_sentence(other_shape, tmp_path):
    with pytest.raises(BadData, match="cannot be read as a file of heads"):
        KnockedOut(DEMO, str(tmp_path / "none.json"))
    with pytest.raises(BadOption, match="2 layers of 4 heads each, and this model has 6 layers"):
        KnockedOut(DEMO, str(other_shape))
    for nothing in (None, ""):
        with pytest.raises(BadOption, match="pretrained=MODEL"):
            KnockedOut(nothing, str(other_shape))


def test_lm_evals_results_say_what_was_cut(model, heads_file):
    assert model.get_model_info()["knocked_out"] == sorted(read_heads(heads_file).names)


def test_the_entry_point_fits_lm_evals_registry():
    (found,) = entry_points(group="lm_eval.models", name="caploc")
    registry = Registry("model")
    registry.register(found.name, target=found)
    assert registry.get("caploc") is KnockedOut


TASKS = {
    "choices": "output_type: multiple_choice\ndoc_to_text: text\ndoc_to_choice: choices\n"
    "doc_to_target: gold\nmetric_list: [{metric: acc}]",
    "words": "output_type: generate_until\ndoc_to_text: text\ndoc_to_target: answer\n"
    'generation_kwargs: {until: ["\\n"], max_gen_toks: 8, do_sample: false}\n'
    "metric_list: [{metric: exact_match}]",
    "prose": 'output_type: loglikelihood_rolling\ndoc_to_text: ""\ndoc_to_target: text\n'
    "metric_list: [{metric: word_perplexity}]",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three tasks of one's own, with their data."""
    place = tmp_path_factory.mktemp("tasks")
    sums = [(a, b) for a in range(12, 20) for b in (5, 31)]
    rows = [
        {
            "text": f"{a}+{b}=",
            "answer": str(a + b),
            "choices": [str(a + b), "99"],
            "gold": 0,
        }
        for a, b in sums
    ]
    (place / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for name, text in TASKS.items():
        data = f"dataset_path: json\ndataset_kwargs: {{data_files: {{test: {place}/rows.jsonl}}}}\n"
        (place / f"{name}.yaml").write_text(f"task: my_{name}\n{data}test_split: test\n{text}\n")
    return place


@pytest.mark.slow
def test_lm_evals_command_equals_caplocs_on_tasks_of_ones_own(folder, heads_file, tmp_path):
    tasks = [f"my_{name}" for name in TASKS]
    done = run(
        "caploc.integrations.lm_eval", "--model", "caploc",
        "--model_args", f"pretrained={DEMO},knockout={heads_file}",
        "--include_path", folder, "--tasks", ",".join(tasks), "--output_path", tmp_path / "out",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (written,) = Path(tmp_path / "out").rglob("results*.json")
    theirs = json.loads(written.read_text())
    heads = ",".join(read_heads(heads_file).names)
    files = ",".join(str(folder / f"{name}.yaml") for name in TASKS)
    ours = run("caploc", "evaluate", DEMO, "--heads", heads, "--task", files, "--json",
               "--out", tmp_path / "ours")  # fmt: skip
    assert ours.returncode == 0, ours.stderr
    scores = [row["knocked_out"]["score"] for row in json.loads(ours.stdout)["tasks"]]
    keys = ["acc,none", "exact_match,none", "word_perplexity,none"]
    assert scores == [theirs["results"][task][key] for task, key in zip(tasks, keys, strict=True)]
    assert theirs["config"]["knocked_out"] == sorted(read_heads(heads_file).names)


def run(module, *arguments):
    return subprocess.run(
        [sys.executable, "-m", module, *map(str, arguments)],
        capture_output=True, text=True, timeout=300, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
