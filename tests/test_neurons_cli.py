"""The neuron commands from the outside: help, mistakes, one run of each that is quick."""

import json
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from caploc import cli
from caploc.cli import app
from caploc.declaration import ModelOptions
from caploc.models.loading import load_model
from doubles import write_lines
from worlds import DEMO

LOCATE = ["neurons", "locate", DEMO, "--task", "demo/addition"]


@pytest.fixture
def typed(monkeypatch, capsys, tmp_path):
    """Run a command in this process; exit code and what it said."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "hush", lambda: None)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["caploc", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = capsys.readouterr()
        return ended.value.code, said.out, " ".join(said.err.split())

    return run


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([*LOCATE[:-1], "demo/additon"], "Did you mean 'demo/addition'?"),
        ([*LOCATE, "--method", "gradients"], "no neuron score 'gradients'"),
        ([*LOCATE, "--sigma", "-1"], "--sigma must be greater than 0; got -1."),
        ([*LOCATE, "--examples", "1"], "--examples must be at least one for each of 5 subsets"),
        ([*LOCATE, "--kind", "x"], "NAME=TASK,TASK; got 'x'."),
        ([*LOCATE, "--kind", "a=gsm8k"], "--kind names gsm8k, which is no task of the run"),
        (["neurons", "erase", "nowhere"], "holds no run of `caploc neurons locate`"),
        (["neurons", "overlap", "nowhere"], "There is no folder 'nowhere'; name the folder of"),
        ([*LOCATE, "--examples", "5000", "--subsets", "5000"], "too few for 5000 subsets"),
    ],
)
def test_mistakes_are_one_sentence_and_exit_code_2(typed, monkeypatch, tmp_path, arguments, said):
    monkeypatch.setattr(ModelOptions, "engine", lambda self: pytest.fail("the model was loaded"))
    code, _, printed = typed(*arguments)
    assert code == 2
    assert printed.startswith("caploc: ") and said in printed
    assert not (tmp_path / "runs").exists()


@pytest.fixture(scope="module")
def located(tmp_path_factory):
    """Neurons of two tasks, by the command itself."""
    folder = tmp_path_factory.mktemp("neurons")
    wanted = ["--task", "demo/addition", "--task", "demo/elements", "--share", "0.01"]
    few = ["--examples", "24", "--least", "0.5", "--subsets", "2", "--judged", "0"]
    options = [*few, "--out", str(folder), "--quiet"]
    done = CliRunner().invoke(app, ["neurons", "locate", DEMO, *wanted, *options])
    assert done.exit_code == 0, done.output
    assert done.output.strip().endswith(str(folder / "report.html"))
    return folder


def test_locate_names_neurons_and_writes_a_page(located):
    result = json.loads((located / "neurons.json").read_text())
    assert [task["task"] for task in result["tasks"]] == ["demo/addition", "demo/elements"]
    for task in result["tasks"]:
        assert len(task["subsets"]) == 2 and all(len(names) == 23 for names in task["subsets"])
        assert sum(task["layers"]) == len(task["neurons"]) > 0
        assert all(row["neuron"].startswith("L") for row in task["neurons"])
    page = (located / "report.html").read_text()
    assert "demo/elements" in page and "<script src" not in page


def test_overlap_of_a_run_with_itself_is_refused_and_of_two_tasks_is_a_matrix(typed, located):
    code, _, said = typed("neurons", "overlap", str(located), str(located))
    assert code == 2 and "is named twice" in said
    code, printed, _ = typed("neurons", "overlap", str(located), "--json")
    told = json.loads(printed)
    assert code == 0 and told["datasets"] == ["demo/addition", "demo/elements"]
    assert set(told["rates"]) == {"reference", "largest", "iou"}


def test_neurons_of_changed_training_examples_are_not_erased(typed, tmp_path):
    files = []
    for split, count in (("train", 30), ("test", 12)):
        rows = [{"text": f"i feel {split} {n}", "label": n % 6} for n in range(count)]
        write_lines(tmp_path / f"{split}.jsonl", rows)
        files += ["--data", f"{split}={tmp_path / split}.jsonl"]
    few = ["--examples", "10", "--subsets", "2", "--judged", "0", "--share", "0.01", "--quiet"]
    code, _, said = typed(
        "neurons", "locate", DEMO, "--task", "emotion", *files, *few, "--out", "run"
    )
    assert code == 0, said
    rows = [{"text": f"i feel other {n}", "label": n % 6} for n in range(30)]
    write_lines(tmp_path / "train.jsonl", rows)
    code, _, said = typed("neurons", "erase", "run", "--draws", "5", "--limit", "4", "--quiet")
    assert code == 2 and "examples of emotion (training) are not those" in said


def test_a_file_of_pairs_is_a_task_as_for_heads(typed, tmp_path):
    lines = [json.dumps({"prompt": f"{n}+{n}=", "answer": str(2 * n)}) for n in range(12)]
    (tmp_path / "sums.jsonl").write_text("\n".join(lines))
    few = ["--examples", "4", "--subsets", "2", "--judged", "0", "--share", "0.01", "--quiet"]
    code, _, said = typed("neurons", "locate", DEMO, "--task", "sums.jsonl", *few)
    assert code == 0, said
    (folder,) = (tmp_path / "runs").iterdir()
    (told,) = json.loads((folder / "neurons.json").read_text())["tasks"]
    assert told["examples"] == 4 and told["task"].endswith("sums.yaml")
    for name in ("sums.jsonl", "sums", told["task"]):
        named = ["--task", name, "--draws", "5", "--limit", "4", "--quiet"]
        code, _, said = typed("neurons", "erase", str(folder), *named)
        assert code == 0, said
    assert typed("neurons", "erase", str(folder), "--task", "sum")[0] == 2


@pytest.mark.slow
def test_erase_holds_located_neurons_against_draws(typed, located):
    few = ["--limit", "12", "--draws", "5", "--json"]
    code, printed, _ = typed("neurons", "erase", str(located), *few, "--task", "demo/elements",
                             "--neurons", "L0N1,L1N2")  # fmt: skip
    told = json.loads(printed)
    assert code == 0 and [task["task"] for task in told["tasks"]] == ["demo/elements"]
    assert told["neurons"] == ["L0N1", "L1N2"] and told["tasks"][0]["neurons"] == 2
    code, printed, _ = typed("neurons", "erase", str(located), *few)
    told = json.loads(printed)
    assert code == 0
    for task in told["tasks"]:
        arms = [arm["arm"] for arm in task["own"]["arms"]]
        assert {arm: arms.count(arm) for arm in arms} == {
            "located": 1, "random": 5, "random in layers": 5,
        }  # fmt: skip
        assert [other["judged"] for other in task["others"]] == [
            name for name in ("demo/addition", "demo/elements") if name != task["task"]
        ]
    assert (located / "erasure" / "report.html").exists()


def test_a_run_of_heads_is_no_run_of_neurons(typed, tmp_path):
    folder = tmp_path / "heads"
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps({"study": {"task": "x"}, "command": ""}))
    code, _, said = typed("neurons", "enhance", str(folder))
    assert code == 2 and "holds no run of `caploc neurons locate`" in said


def test_another_study_does_not_take_the_folder(typed, located):
    code, _, said = typed(*LOCATE, "--seed", "3", "--out", str(located), "--quiet")
    assert code == 2 and "belongs to another run" in said


@pytest.mark.slow
def test_tuned_neurons_are_saved_as_a_checkpoint_of_plain_transformers(typed, located, tmp_path):
    tuned = ["--task", "demo/elements", "--arm", "none", "--arm", "located"]
    quick = ["--steps", "3", "--rates", "1e-2,3e-2", "--limit", "8", "--quiet"]
    save = ["--save", str(tmp_path / "tuned")]
    assert typed("neurons", "enhance", str(located), *tuned, *quick, *save)[0] == 0
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "tuned" / "demo-elements")
    demo, tokens = load_model(DEMO, device="cpu").model, torch.arange(8)[None]
    with torch.no_grad():
        assert not torch.equal(plain.eval()(tokens).logits, demo(tokens).logits)
    found, own = (dict(each.named_parameters()) for each in (plain, demo))
    changed = {name for name in own if not torch.equal(own[name], found[name])}
    assert changed and all(".mlp." in name for name in changed)

    code, _, said = typed("neurons", "enhance", str(located), *tuned, *quick, *save)
    assert code == 2 and "exists and is not empty" in said
    again = ["--arm", "none", "--save", str(tmp_path / "again")]
    code, _, said = typed("neurons", "enhance", str(located), *quick, *again)
    assert code == 2 and "--save writes the arm 'located'" in said
