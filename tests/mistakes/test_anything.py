"""Whatever is typed, and whatever a run folder holds: a sentence, an exit code, no half file.

Everything is real up to the weights, which are not read: there commands end.
"""

import json
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from mistaking import PLANTED, inside, typed

from caploc.cli import UNFORESEEN, app
from caploc.errors import ModelRefused
from caploc.models.loading import Weights
from worlds.planted import write_planted

FUZZ = Path(__file__).parents[1] / "fuzz" / "sound"
ENDS = {0, 1, 2}
# Values for any option: of the right kind and of the wrong one.
VALUES = st.sampled_from([
    "", "0", "1", "-1", "3", "0.5", "nan", "inf", "1e999", "9" * 20, "x", "x=", "=x", "x=y", "demo",
    "demo/addition", "demo/prose", "demo/additon", "css", "adaptive", "metric", "logprob", "cpu",
    "cuda:9", "spread:cpu=x", "float32", "L0H0", "L0H0,L9H9", "0.1,0.2", "1,2,3", "zero", "heads",
    "scale=nan", "test=data.jsonl", "words=package", "data.jsonl", "task.yaml", "out", "..", "/",
    "\u00e9\u4e2d", "\x1b[2J", "model.layers.{layer}.x", "a" * 400, "run", "run/result.json",
    "$HOME", "~", "~nobody", "-", "--", "*",
])  # fmt: skip
# A name that no task of caploc's has makes lm-eval read all of its own, half a minute once.
NEAR = st.sampled_from(["demo/addition", "demo/prose", "demo/additon", "task.yaml", "no.yaml"])
TASKS = {"task", "tasks", "also", "text"}
ABSENT = {"ui", "view", "demo"}  # two serve until they are stopped, one runs the rest as they are


def commands():
    """Every command's words, and its parameters."""
    found = {}
    for name, command in typer.main.get_command(app).commands.items():
        inner = getattr(command, "commands", {"": command})
        found |= {(name, *filter(None, [sub])): each.params for sub, each in inner.items()}
    return {words: params for words, params in found.items() if words[0] not in ABSENT}


COMMANDS = commands()


@pytest.fixture(autouse=True)
def no_weights_are_read(monkeypatch):
    def end(self):
        raise ModelRefused("Here the weights would be read.")

    monkeypatch.setattr(Weights, "load", end)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    write_planted(tmp_path_factory.mktemp("planted") / "model", PLANTED)
    return tmp_path_factory.getbasetemp()


def made_up(draw, words, params, far):
    """Arguments of a command: some of its options, all of its arguments, values of any kind."""
    options = [each for each in params if each.param_type_name == "option" and each.name != "help"]
    arguments = []
    for each in params:
        if each.param_type_name == "argument":
            values = VALUES if far or each.name not in TASKS else NEAR
            arguments += draw(st.lists(values, min_size=1, max_size=2))
    chosen = draw(st.lists(st.sampled_from(options), max_size=5)) if options else []
    for each in [*chosen, *(each for each in options if each.required)]:
        arguments.append(each.opts[0])
        if not each.is_flag:
            arguments.append(draw(VALUES if far or each.name not in TASKS else NEAR))
    return [*words, *arguments]


def sound(said, folder, before):
    """One sentence and nothing half written."""
    assert said.code in ENDS, said
    assert UNFORESEEN not in said.sentence, said.sentence
    assert "Traceback" not in said.sentence + said.printed
    left = {str(path.relative_to(folder)) for path in folder.rglob("*")} - before
    assert not [path for path in left if path.endswith(".part")], left
    if said.code == 2:
        assert said.sentence.startswith("caploc: "), said


def listed(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def typed_anything(data, far):
    words = data.draw(st.sampled_from(sorted(COMMANDS)))
    arguments = made_up(data.draw, words, COMMANDS[words], far)
    with TemporaryDirectory() as place:
        folder = Path(place).resolve()
        (folder / "data.jsonl").write_text('{"prompt": "a", "answer": "b"}\n')
        (folder / "task.yaml").write_text("task: mine\n")
        shutil.copytree(FUZZ, folder / "run")
        before = listed(folder)
        with inside(folder):
            sound(typed(arguments), folder, before)


def of_runs(data, model):
    """A command on a run folder one file of which was spoilt."""
    with TemporaryDirectory() as place:
        folder = Path(place).resolve()
        shutil.copytree(FUZZ, folder / "run")
        for file in ("run.json", "result.json"):
            path = folder / "run" / file
            path.write_text(path.read_text().replace("/models/", f"{model}/planted0/"))
        spoil(data.draw, data.draw(st.sampled_from(sorted((folder / "run").iterdir()))))
        words = data.draw(st.sampled_from(READING)).split()
        before = listed(folder)
        with inside(folder):
            sound(typed(words), folder, before)


READING = [
    "report run", "compare run --out out", "doctor run", "curve run", "interactions run",
    "universal run --out out", "export run --as heads --to out", "rows run --to rows.csv",
    "neurons overlap run", "neurons erase run",
]  # fmt: skip


def spoil(draw, path):
    """Cut a file off, flip bits in it, put other JSON in its place, or change a value."""
    content = path.read_bytes()
    way = draw(st.sampled_from(["cut", "flip", "replace", "value", "gone"]))
    if way == "cut":
        path.write_bytes(content[: draw(st.integers(0, len(content)))])
    elif way == "flip":
        place = draw(st.integers(0, len(content) - 1))
        flipped = content[place] ^ (1 << draw(st.integers(0, 7)))
        path.write_bytes(content[:place] + bytes([flipped]) + content[place + 1 :])
    elif way == "replace":
        path.write_text(json.dumps(draw(ANY)))
    elif way == "gone":
        path.unlink()
    else:
        path.write_text(json.dumps(other(draw, json.loads(content))))


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


def other(draw, content):
    """The content with one value replaced, somewhere."""
    if not (isinstance(content, dict | list) and content) or draw(st.integers(0, 5)) == 0:
        return draw(ANY)
    keys = sorted(content) if isinstance(content, dict) else range(len(content))
    key = draw(st.sampled_from(keys))
    content[key] = other(draw, content[key])
    return content


@settings(max_examples=8)
@given(data=st.data())
def test_whatever_is_typed_gets_a_sentence(data):
    typed_anything(data, far=False)


@pytest.mark.slow
@settings(max_examples=1200)
@given(data=st.data())
def test_whatever_is_typed_gets_a_sentence_many_times(data):
    typed_anything(data, far=True)


@settings(max_examples=4)
@given(data=st.data())
def test_whatever_a_run_folder_holds_gets_a_sentence(model, data):
    of_runs(data, model)


@pytest.mark.slow
@settings(max_examples=600)
@given(data=st.data())
def test_whatever_a_run_folder_holds_gets_a_sentence_many_times(model, data):
    of_runs(data, model)


def test_every_command_is_tried():
    """Those left out are few, and none of them reads what the others do not."""
    top = typer.main.get_command(app).commands
    assert {words[0] for words in COMMANDS} == set(top) - ABSENT
