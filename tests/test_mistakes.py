"""Mistakes that beginners make: each ends in one sentence with what was typed, and no traceback."""

import re
import sys
from functools import partial

import pytest

from caploc import cli
from caploc.cli import UNFORESEEN, exit_after
from caploc.models import gguf
from worlds.planted import Planted, write_planted

SMALL = "--method css --masks 3 --rate 0.3 --examples 5 --limit 5 --controls 0 --device cpu"
LOCATE = "locate model --task model/planted.yaml"
READ = f"{LOCATE} --out out {SMALL} --data test="
ROW = '{"prompt": "colour ruby item0", "answer": "red"}\n'
FILES = {
    "empty.jsonl": "",
    "blank.jsonl": "\n\n",
    "broken.jsonl": f'{ROW}{{"prompt": "colour\n',
    "page.jsonl": "<!doctype html><title>404</title>\n",
    "other.csv": "question,reply\n1,2\n",
    "pairs.csv": "prompt,answer\n" + "".join(f"{n} b, c\n" for n in range(12)),
    "twice.csv": "prompt,answer\n" + "".join(f"{n} b, c\n" for n in range(12)) + "3 b, d\n",
    "broken.yaml": "task: [unclosed",
    "nameless.yaml": "dataset_path: json\n",
    "dataless.yaml": "task: mine\n",
    "group.yaml": "group: all\ntask: [absent]\n",
    "broken.toml": "models = [",
    "rat.toml": 'models = ["model"]\ntasks = ["model/planted.yaml"]\nrat = 1\n',
    "model.gguf": "no model\n",
    "folder/README.md": "no model\n",
    "facts.jsonl": "no fact\n",
    "nothing/here.txt": "",
}
# What is typed, and what the sentence says of it.
MISTAKES = [
    # the model
    ("locate no/such/folder --task words/past", "There is no folder 'no/such/folder'"),
    ("locate Qwen/Qwen3-4BB --task words/past", "'Qwen/Qwen3-4BB' is neither a folder here nor"),
    ("locate folder --task pairs.csv", "folder has no config.json"),
    ("locate smolm2 --task words/past", "no model 'smolm2'. Did you mean 'smollm2'"),
    ("locate gemma3-270m --task words/past", "run `caploc models fetch gemma3-270m` first"),
    ("models model/config.json", "is a file; give the folder it is in"),
    ("locate nowhere.gguf --task words/past", "There is no file 'nowhere.gguf'"),
    ("models model.gguf", "model.gguf cannot be loaded .* not a GGUF file"),
    ("models model --revision main", "revision='main' was given, but .*model' is a folder"),
    ("models model --device gpu", "There is no device 'gpu'; choose auto, cpu"),
    ("models model --device cuda:7", "There is no device 'cuda:7' here"),
    ("models model --dtype float31", "no dtype 'float31'. Did you mean 'float32'"),
    # tasks and their data
    ("locate model --task words/pasd", "no task 'words/pasd'. Did you mean 'words/past'"),
    ("locate model --task hellaswagg", "no task 'hellaswagg'. Did you mean 'hellaswag'"),
    ("locate model", "Missing option '--task'"),
    ("locate model --task nowhere.yaml", "no task file 'nowhere.yaml'"),
    ("locate model --task words/past --task words/plural", "one task to locate; got words/past, w"),
    ("locate model --task broken.yaml", "broken.yaml is not a task YAML"),
    ("locate model --task nameless.yaml", "nameless.yaml names neither a task nor a group"),
    ("locate model --task dataless.yaml", "dataless.yaml does not say where its data are"),
    ("locate model --task group.yaml", "names the task 'absent', which no YAML beside it defines"),
    (
        "locate model --task other.csv",
        "other.csv, line 2 has no 'prompt': its columns are question, reply",
    ),
    (
        "locate model --task twice.csv",
        "In twice 1 of 13 examples cannot be asked as it stands: example 12 has another answer "
        "than example 3, which has the same prompt. Correct it, or leave it out with --leave-out",
    ),
    ("locate model --task empty.jsonl", "empty.jsonl is empty; give a line for each pair"),
    ("locate model --task broken.jsonl", "broken.jsonl, line 2 is no JSON"),
    ("locate model --task page.jsonl", "page.jsonl, line 1 is no JSON"),
    (f"{READ}nowhere.jsonl", "test=.*nowhere.jsonl: there is no such file"),
    (f"{READ}empty.jsonl", "empty.jsonl: the file is empty"),
    (f"{READ}blank.jsonl", "could not be read .*blank.jsonl must hold examples"),
    (f"{READ}broken.jsonl", "could not be read .line 2 is no JSON.*broken.jsonl"),
    (f"{READ}page.jsonl", "could not be read .line 1 is no JSON.*page.jsonl"),
    (f"{READ}other.csv", "lacks a column that its definition reads"),
    (f"{READ}broken.toml", "--data files end in .json, .jsonl, .csv, .parquet"),
    (f"{LOCATE} --metric bleu", "no metric 'bleu'. Known: exact_match"),
    # options
    (f"{LOCATE} --method scann", "no method 'scann'. Did you mean 'scan'"),
    (f"{LOCATE} --goal both", "no --goal 'both'. Known: heads, set, specific"),
    (f"{LOCATE} --method css --rate 1", "--rate must be less than 1; got 1"),
    (f"{LOCATE} --method css --rate some", "--rate must be a valid number.*'some'"),
    (f"{LOCATE} --budget 3", "--budget .*3"),
    (f"{LOCATE} --top 500", "--top .*500"),
    (f"{LOCATE} --rate .1", "--rate is for --method css, csb; got --method scan,"),
    (f"{LOCATE} --limit 0", "--limit must be greater than or equal to 1; got 0"),
    (f"{LOCATE} --fewshot -1", "--fewshot must be greater than or equal to 0; got -1"),
    (f"{LOCATE} --batch-size 0", "--batch-size must be greater than or equal to 1; got 0"),
    (f"{LOCATE} --workers many", "--workers .*'many'"),
    (f"{LOCATE} --engine page", "no engine 'page'"),
    (f"{LOCATE} --chat-template", "--chat-template: the tokenizer of .*model' has none"),
    (f"{LOCATE} --mask 5", "No such option.*--mask"),
    ("localise model", "No such command 'localise'"),
    ("evaluate model --task model/planted.yaml --heads L7H1", "no head L7H1: the model has layers"),
    ("evaluate model --task model/planted.yaml --heads L1H99", "no head L1H99"),
    ("evaluate model --task model/planted.yaml --heads 7", "'7'"),
    ("evaluate model --task , --heads L0H1", "--task names at least one"),
    # folders and files of studies
    ("curve nowhere", "There is no folder 'nowhere'"),
    ("models fetch", "fetch takes names of models: smollm2"),
    ("view nothing --write", "nothing holds no result.json"),
    (f"{LOCATE} --out empty.jsonl", "--out empty.jsonl is a file; name a folder"),
    ("run rat.toml", "rat is no key here"),
    ("view nowhere", "There is no folder 'nowhere'"),
    ("view model --port 70000", "--port must be 0 to 65535; got 70000"),
    ("view --model nowhere/at/all", "nowhere/at/all"),
    ("view --task words/pasd", "no task 'words/pasd'"),
    ("universal nowhere", "There is no folder 'nowhere'; name the folder of a"),
    ("export model --heads L0H1 --to cut --as head", "Did you mean 'heads'"),
    ("export model --heads L0H1 --to folder", "folder exists and is not empty"),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "model"
    plan = Planted(layers=2, heads=4, needed=2, strengths=(0.2, 0.1), examples=100, seed=3)
    write_planted(folder, plan)
    return folder


@pytest.fixture
def place(tmp_path, model, monkeypatch):
    """A folder with a model and with what beginners may have there."""
    (tmp_path / "model").symlink_to(model)
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CAPLOC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


def typed(monkeypatch, capsys, command):
    """Run a command in this process as `caploc` does; return the exit code and all it printed."""
    monkeypatch.setattr(sys, "argv", ["caploc", *command.split()])
    with pytest.raises(SystemExit) as ended:
        exit_after(partial(cli.app, prog_name="caploc", standalone_mode=False))
    said = capsys.readouterr()
    return ended.value.code, said.out + said.err


@pytest.mark.parametrize(("command", "said"), MISTAKES, ids=[row[0] for row in MISTAKES])
def test_a_mistake_is_one_sentence(place, monkeypatch, capsys, command, said):
    before = {*place.rglob("*")}
    code, printed = typed(monkeypatch, capsys, command)
    assert code == 2
    assert re.search(said, printed), printed
    # pairs are written into the folder of the run that was to come
    may_be_left = "runs" if command.endswith(".csv") else None
    assert all(may_be_left in path.parts for path in {*place.rglob("*")} - before)
    assert "Traceback" not in printed and UNFORESEEN not in printed


def test_a_package_that_is_missing_is_named(place, monkeypatch, capsys):
    monkeypatch.setattr(gguf.importlib.util, "find_spec", lambda name: None)
    code, printed = typed(monkeypatch, capsys, "models model.gguf")
    assert code == 2 and "pip install 'caploc[gguf]'" in printed
