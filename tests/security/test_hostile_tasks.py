"""Task files, run folders and files of studies that someone sent: what they may and may not do."""

import json
import re
from contextlib import nullcontext
from pathlib import Path

import datasets.packaged_modules as packaged
import pytest
from typer.testing import CliRunner

from caploc.cli import app
from caploc.declaration import Allowed, ModelOptions
from caploc.errors import BadData, BadOption
from caploc.finished import FinishedRun
from caploc.neurons.study import read_study
from caploc.studies import read_studies
from caploc.tasks.catalog import load_task
from caploc.tasks.taskfiles import find_code
from worlds import DEMO

EVIL = "!function evil.text"
SOUND = Path(__file__).parent / "sound"
TASK = """\
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder}/data.jsonl}}}}
test_split: test
output_type: generate_until
doc_to_text: {text}
doc_to_target: answer
metric_list: [{{metric: exact_match}}]
generation_kwargs: {{until: ["\\n"], do_sample: false}}
"""


def task(folder, text="prompt", name="mine", file="task.yaml"):
    (folder / "data.jsonl").write_text('{"prompt": "a", "answer": "b"}\n')
    (folder / file).write_text(TASK.format(name=name, folder=folder, text=text))
    return str(folder / file)


@pytest.mark.parametrize(
    "way",
    [
        "cycler.__init__.__globals__.os.mknod('CANARY')",
        "''.__class__.__mro__[1].__subclasses__()",
        "self.__init__.__globals__",
        "prompt.__class__.__base__",
        "'{0.__class__}'.format(prompt)",
    ],
)
def test_a_template_reaches_nothing(tmp_path, way):
    """lm-eval's own Jinja would run every one of these."""
    file = task(
        tmp_path, json.dumps("{{ " + way.replace("CANARY", str(tmp_path / "canary")) + " }}")
    )
    try:
        (request,) = load_task(file).requests(0)
    except BadData as error:
        assert "unsafe" in str(error) or "undefined" in str(error)
    else:  # what is unsafe is undefined, and prints as nothing
        assert "class" not in request.prompt
    assert not (tmp_path / "canary").exists()


def write_evil(folder):
    """Write `evil.py`, which leaves a mark when it is imported; where the mark would be."""
    mark = folder / "canary"
    (folder / "evil.py").write_text(
        f"open({str(mark)!r}, 'w').close()\ndef text(doc): return 'evil'\n"
    )
    return mark


def test_a_file_that_you_name_runs_its_code(tmp_path):
    mark = write_evil(tmp_path)
    (request,) = load_task(task(tmp_path, EVIL)).requests(0)
    assert request.prompt == "evil" and mark.exists()


@pytest.mark.parametrize(
    "more",
    [
        "",
        "x: " + EVIL,
        f"{EVIL}: 1",
        f"doc_to_choice: {EVIL}\ndoc_to_choice: answer",
        f"more: !!pairs [a: {EVIL}]",
        "more: !<!function> evil.text",
        "more: !f%75nction evil.text",
        "include: [7, deep/base.yaml]",
        "loop: &loop [*loop]\ninclude: deep/base.yaml",
        "metric_list: [{metric: someone/evil}]",
        "metric_list: [{metric: acc, hf_evaluate: true}]",
    ],
)
def test_code_is_seen_however_it_is_spelled(tmp_path, more):
    """lm-eval imports a function where it reads its name, also one that no value keeps."""
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "base.yaml").write_text("include: ../far/base.yaml\n")
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "base.yaml").write_text(f"process_docs: {EVIL}\n")
    (tmp_path / "own").mkdir()
    file = Path(task(tmp_path / "own"))
    more = more.replace("deep/", "../deep/")
    file.write_text(f"{file.read_text()}{more}\n", encoding="utf-16")  # PyYAML tells by its start
    assert bool(find_code(str(file))) == bool(more)
    with nullcontext() if not more else pytest.raises(BadOption, match="add --trust-remote-code"):
        Allowed().check_task("run.json", str(file))
    Allowed(remote_code=True).check_task("run.json", str(file))


def test_code_in_a_file_beside_counts_for_a_group_alone(tmp_path):
    """Members of a group are looked for in its folder; of a task's neighbours none is read."""
    mark, clean = write_evil(tmp_path), task(tmp_path, file="z.yaml")
    evil = Path(task(tmp_path, EVIL, file="a.yaml"))
    evil.write_text(evil.read_text().replace("task: mine", "task: other\ntag: mine"))
    assert find_code(clean) is None
    (request,) = load_task(clean).requests(0)
    assert request.prompt == "a" and not mark.exists()
    group = tmp_path / "group.yaml"
    group.write_text("group: both\ntask: [mine]\n")
    assert find_code(str(group)) == f"{EVIL} in a.yaml"


def test_no_reader_of_data_unpickles():
    """A task file may name any reader that `datasets` brings."""
    for file in Path(packaged.__file__).parent.rglob("*.py"):
        code = re.sub(r"#.*", "", file.read_text())
        assert not re.search(r"pickle\.load|read_pickle|allow_pickle=True|weights_only=False", code)


def received(folder, **changes):
    """A run folder as it may come by mail."""
    for file in SOUND.iterdir():
        (folder / file.name).write_text(file.read_text())
    written = json.loads((folder / "run.json").read_text())
    for place, value in changes.items():
        part, _, key = place.partition("__")
        if key:
            written["study"][part][key] = value
        else:
            written["study"][part] = value
    (folder / "run.json").write_text(json.dumps(written))
    return folder


@pytest.mark.parametrize(
    ("changes", "option", "consent"),
    [
        ({"model__trust_remote_code": True}, "--trust-remote-code", Allowed(remote_code=True)),
        ({"options__allow_code": True}, "--allow-code", Allowed(code=True)),
    ],
)
def test_a_run_does_not_say_itself_what_may_be_run(tmp_path, changes, option, consent):
    folder = received(tmp_path, **changes)
    with pytest.raises(BadOption, match=option):
        FinishedRun.read(folder)
    assert FinishedRun.read(folder, consent).folder == folder


def test_a_run_of_neurons_with_a_task_of_its_own_code_is_refused(tmp_path):
    from dataclasses import asdict

    from caploc.neurons.options import NeuronStudy

    study = NeuronStudy(ModelOptions(DEMO), (task(tmp_path, "!function evil.text"),))
    written = {"study": asdict(study) | {"kind": "neurons"}, "command": ""}
    (tmp_path / "run.json").write_text(json.dumps(written))
    with pytest.raises(BadOption, match="add --trust-remote-code"):
        read_study(tmp_path)
    assert read_study(tmp_path, Allowed(remote_code=True))[0].tasks == study.tasks


def test_a_mailed_run_whose_tasks_folder_holds_code_is_refused_by_every_command(tmp_path):
    """The code is its task's own, or that of a member beside a group without any."""
    folder = tmp_path / "run"
    (folder / "task").mkdir(parents=True)
    clean, mark = str(folder / "task" / "z.yaml"), write_evil(folder / "task")
    Path(clean).write_text("group: both\ntask: [mine]\n")
    own = task(folder / "task", EVIL, file="a.yaml")
    for file in (own, clean):
        received(folder, task=file, other_tasks=[])
        for command in ("curve", "interactions"):
            said = CliRunner().invoke(app, [command, str(folder)])
            assert isinstance(said.exception, BadOption), command
            assert f"can run Python code ({EVIL} in a.yaml)" in str(said.exception)
            assert "add --trust-remote-code" in str(said.exception)
    (tmp_path / "studies.toml").write_text(f'models = ["smollm2"]\ntasks = ["{clean}"]\n')
    with pytest.raises(BadOption, match="if you trust whoever made it"):
        read_studies(tmp_path / "studies.toml")
    assert not mark.exists()
