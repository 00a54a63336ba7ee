"""Task files, run folders and files of studies that someone sent: what they may and may not do."""

import json
import os
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import lm_eval
import pytest
from typer.testing import CliRunner

from caploc.cli import app, options
from caploc.errors import BadData, BadOption, FolderTaken, UserError
from caploc.finished import FinishedRun
from caploc.folder import claim, refuse_links
from caploc.neurons.study import read_study
from caploc.report.page import rewrite_page
from caploc.sandbox import Protection
from caploc.search import Settings
from caploc.studies import read_studies
from caploc.study import Study, run_study
from caploc.tasks import taskfiles
from caploc.tasks.catalog import load_task
from caploc.tasks.taskfiles import code_in
from caploc.workbench import Allowed, ModelOptions

EVIL = "!function evil.text"
SOUND = Path(__file__).parents[1] / "fuzz" / "sound"
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


def test_a_template_still_renders(tmp_path):
    file = task(
        tmp_path, json.dumps("{{ prompt.upper() }}{% for i in range(2) %}{{ i }}{% endfor %}")
    )
    (request,) = load_task(file).requests(0)
    assert request.prompt == "A01"


def test_tasks_of_our_own_are_trusted_where_they_lie_behind_a_link(tmp_path):
    """Definitions are read where they really lie; a home or an environment may be a link."""
    (tmp_path / "link").symlink_to(Path(taskfiles.__file__).resolve().parent)
    place = tmp_path / "link" / "taskfiles.py"
    linked = spec_from_file_location("linked", place).loader
    module = module_from_spec(spec_from_file_location("linked", place))
    sys.modules["linked"] = module
    linked.exec_module(module)
    del sys.modules["linked"]
    assert module.is_trusted(Path(taskfiles.__file__).resolve())


def test_code_that_a_task_file_names_is_seen(tmp_path):
    assert code_in(task(tmp_path)) is None
    assert code_in(task(tmp_path, "!function mine.text")) == "!function mine.text"
    assert code_in("demo/addition") is None
    deep = tmp_path / "deep"
    deep.mkdir()
    (deep / "base.yaml").write_text("process_docs: !function other.docs\n")
    (deep / "task.yaml").write_text("task: b\ninclude: base.yaml\ndataset_path: json\n")
    assert code_in(str(deep / "task.yaml")) == "!function other.docs"


def prompt_of(file):
    return load_task(file).requests(0)[0].prompt


def write_evil(folder):
    """Write `evil.py`, which leaves a mark when it is imported; where the mark would be."""
    mark = folder / "canary"
    (folder / "evil.py").write_text(
        f"open({str(mark)!r}, 'w').close()\ndef text(doc): return 'evil'\n"
    )
    return mark


@pytest.mark.parametrize(
    "claim",
    ["task: mine", "task: other\ntag: mine", "task: other\ntag: [a, mine]", "group: mine", "GROUP"],
)
def test_no_file_beside_a_task_takes_its_name(tmp_path, claim):
    """lm-eval's index gives the name to the first file of the folder that claims it."""
    mark = write_evil(tmp_path)
    clean, evil = task(tmp_path, file="z.yaml"), Path(task(tmp_path, EVIL, file="a.yaml"))
    if claim == "GROUP":
        evil.write_text(f"group: mine\ntask: [{{task: other, doc_to_text: {EVIL}}}]\n")
    else:
        evil.write_text(evil.read_text().replace("task: mine", claim))
    assert code_in(clean) is None
    Allowed().check_task("run.json", clean)
    assert prompt_of(clean) == "a"
    assert not mark.exists()


def test_a_file_that_you_name_runs_its_code_and_a_warning_says_which(tmp_path, capsys):
    mark = write_evil(tmp_path)
    file = task(tmp_path, EVIL)
    options.tell_of_code([file])
    assert f"names Python code ({EVIL})" in " ".join(capsys.readouterr().err.split())
    assert prompt_of(file) == "evil" and mark.exists()


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_task_that_gains_code_after_it_was_checked_is_refused(tmp_path, when):
    mark = write_evil(tmp_path)
    clean = task(tmp_path) if when == "before" else str(tmp_path / "task.yaml")
    Allowed().check_task("run.json", clean)
    task(tmp_path, EVIL)
    with pytest.raises(BadOption, match="add --trust-remote-code"):
        load_task(clean)
    assert not mark.exists()
    Allowed(remote_code=True).check_task("run.json", clean)
    assert prompt_of(clean) == "evil" and mark.exists()


def test_functions_of_lm_evals_own_that_load_what_a_task_names_are_code(tmp_path):
    """They take tokenizers, with their Python, from wherever the metadata says."""
    own = Path(lm_eval.__file__).parent / "tasks"
    file = tmp_path / "task.yaml"
    file.write_text(
        f"include: {own}/ruler/niah_single_1.yaml\ntask: mine\nmetadata: {{pretrained: /evil}}\n"
    )
    assert "custom_dataset: !function" in code_in(str(file))
    with pytest.raises(BadOption, match="add --trust-remote-code"):
        Allowed().check_task("run.json", str(file))


def test_functions_of_lm_evals_own_that_read_documents_are_trusted(tmp_path):
    own = Path(lm_eval.__file__).parent / "tasks"
    file = tmp_path / "task.yaml"
    file.write_text(f"include: {own}/hellaswag/hellaswag.yaml\ntask: mine\ndataset_path: json\n")
    assert code_in(str(file)) is None
    assert code_in(f"{own}/ruler/niah_single_1.yaml") is None  # nothing of it is someone else's


def test_prompts_from_a_yaml_or_another_library_are_code(tmp_path):
    file = Path(task(tmp_path))
    file.write_text(file.read_text() + "use_prompt: /evil.yaml:one\n")
    assert code_in(str(file)) == "use_prompt: /evil.yaml:one"


def test_a_member_that_two_files_define_is_nobodys(tmp_path):
    for name in ("a.yaml", "b.yaml"):
        task(tmp_path, name="member", file=name)
    (tmp_path / "group.yaml").write_text("group: all\ntask: [member]\n")
    with pytest.raises(BadData, match="both define 'member'; rename one"):
        load_task(str(tmp_path / "group.yaml"))


def test_a_mixture_leads_to_no_file_elsewhere(tmp_path):
    (tmp_path / "far").mkdir()
    evil = task(tmp_path / "far", EVIL)
    (tmp_path / "m.yaml").write_text(
        f"group: m\ntask: [{evil}, demo/addition]\nmetadata: {{mixture: true}}\n"
    )
    with pytest.raises(BadData, match="put it beside the mixture"):
        load_task(str(tmp_path / "m.yaml"))


def test_code_in_the_files_of_a_group_is_seen(tmp_path):
    task(tmp_path, "!function evil.text", name="member")
    (tmp_path / "group.yaml").write_text("group: all\ntask: [member]\n")
    assert code_in(str(tmp_path / "group.yaml")) == "!function evil.text"


def test_a_metric_from_elsewhere_is_code(tmp_path):
    file = tmp_path / "task.yaml"
    file.write_text("task: t\ndataset_path: json\nmetric_list: [{metric: someone/evil}]\n")
    assert code_in(str(file)) == "metric someone/evil"


def test_code_in_a_file_of_another_encoding_is_seen(tmp_path):
    """PyYAML tells UTF-16 by its first bytes, and lm-eval opens files as bytes."""
    file = Path(task(tmp_path, EVIL))
    file.write_bytes(file.read_text().encode("utf-16"))
    assert code_in(str(file)) == EVIL


@pytest.mark.parametrize("depth", [3, 40])
def test_code_is_seen_however_deep_files_include_one_another(tmp_path, depth):
    first = task(tmp_path)
    for number in range(depth):
        file = tmp_path / ("task.yaml" if not number else f"part{number}.yaml")
        said = file.read_text() if not number else ""
        file.write_text(f"{said}include: part{number + 1}.yaml\n")
    (tmp_path / f"part{depth}.yaml").write_text(f"process_docs: {EVIL}\n")
    assert code_in(first) == EVIL


def test_files_that_include_themselves_many_times_are_read_once(tmp_path):
    file = Path(task(tmp_path))
    file.write_text(file.read_text() + "include: [" + "base.yaml, " * 50 + "task.yaml]\n")
    (tmp_path / "base.yaml").write_text(f"include: [{'base.yaml, ' * 50} task.yaml]\n")
    with pytest.raises(BadData, match="includes itself"):
        code_in(str(file))


@pytest.mark.parametrize(
    "content",
    ["task: [", "task: a\ninclude: absent.yaml\n", "- a\n", "task: a\nx: \x00\n", "a: !b c\n"],
)
def test_a_file_that_cannot_be_read_is_refused(tmp_path, content):
    (tmp_path / "task.yaml").write_text(content)
    with pytest.raises(BadData, match="is not a task YAML"):
        code_in(str(tmp_path / "task.yaml"))


def test_another_file_that_cannot_be_read_is_none_of_the_tasks(tmp_path):
    file = task(tmp_path)
    (tmp_path / "other.yaml").write_text("a: 1\n---\nb: 2\n")
    assert code_in(file) is None


@pytest.mark.parametrize(
    "more",
    [
        f"{EVIL}: 1\n",
        f"doc_to_choice: {EVIL}\ndoc_to_choice: answer\n",
        f"old: &old {{x: {EVIL}}}\nnew: {{<<: *old, x: 1}}\n",
        f"more: !!pairs [a: {EVIL}]\n",
        "more: !<!function> evil.text\n",
    ],
)
def test_code_that_no_value_keeps_is_seen(tmp_path, more):
    """lm-eval imports a function where it reads its name."""
    file = Path(task(tmp_path))
    file.write_text(file.read_text() + more)
    assert code_in(str(file)) == EVIL


def test_a_member_is_found_where_an_included_file_names_it(tmp_path):
    (tmp_path / "named.yaml").write_text("task: same\n")
    (tmp_path / "another.yaml").write_text(
        f"include: named.yaml\ndataset_path: json\nprocess_docs: {EVIL}\n"
    )
    (tmp_path / "group.yaml").write_text("group: all\ntask: [same]\n")
    assert code_in(str(tmp_path / "group.yaml")) == EVIL


def test_an_include_is_seen_from_where_a_link_leads(tmp_path):
    (tmp_path / "far").mkdir()
    file = Path(task(tmp_path / "far"))
    file.write_text(file.read_text() + "include: base.yaml\n")
    (tmp_path / "far" / "base.yaml").write_text(f"process_docs: {EVIL}\n")
    (tmp_path / "base.yaml").write_text("test_split: test\n")
    os.symlink(file, tmp_path / "task.yaml")
    assert code_in(str(tmp_path / "task.yaml")) == EVIL


def test_a_metric_of_a_task_inside_a_group_is_code(tmp_path):
    (tmp_path / "group.yaml").write_text(
        "group: all\ntask: [{task: t, metric_list: [{metric: someone/evil}]}]\n"
    )
    assert code_in(str(tmp_path / "group.yaml")) == "metric someone/evil"


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


def test_a_run_with_a_task_of_its_own_code_is_refused(tmp_path):
    (tmp_path / "run").mkdir()
    file = task(tmp_path, "!function evil.text")
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'canary')!r}, 'w')\n")
    folder = received(tmp_path / "run", task=file, other_tasks=[])
    with pytest.raises(BadOption, match="runs Python code .!function evil.text."):
        FinishedRun.read(folder)
    said = CliRunner().invoke(app, ["curve", str(folder)])
    assert isinstance(said.exception, BadOption)
    assert not (tmp_path / "canary").exists()


@pytest.mark.parametrize("beside", ["other_tasks", "spare", "twins"])
@pytest.mark.parametrize("command", [("doctor",), ("rows", "--to", "rows.csv")])
def test_no_task_beside_a_run_runs_code_when_its_rows_are_gone_through(
    tmp_path, monkeypatch, command, beside
):
    """The folder comes from somebody else, and names a file with code beside its task."""
    monkeypatch.chdir(tmp_path)
    study = Study(
        ModelOptions("demo", device="cpu"), "demo/recall", "css",
        settings=Settings(masks=2, rate=0.05, top=2), examples=3, controls=0, limit=3,
    )  # fmt: skip
    run_study(study, tmp_path / "run")
    file, mark = task(tmp_path, EVIL), write_evil(tmp_path)
    written = json.loads((tmp_path / "run" / "run.json").read_text())
    written["study"][beside] = [file]
    (tmp_path / "run" / "run.json").write_text(json.dumps(written))
    name, *options = command
    CliRunner().invoke(app, [name, str(tmp_path / "run"), *options])
    assert not mark.exists()


def test_a_run_of_neurons_with_a_task_of_its_own_code_is_refused(tmp_path):
    from dataclasses import asdict

    from caploc.neurons.study import NeuronStudy
    from caploc.workbench import ModelOptions

    study = NeuronStudy(ModelOptions("demo"), (task(tmp_path, "!function evil.text"),))
    written = {"study": asdict(study) | {"kind": "neurons"}, "command": ""}
    (tmp_path / "run.json").write_text(json.dumps(written))
    with pytest.raises(BadOption, match="add --trust-remote-code"):
        read_study(tmp_path)
    assert read_study(tmp_path, Allowed(remote_code=True))[0].tasks == study.tasks


def test_a_file_of_studies_with_a_task_of_its_own_code_is_refused(tmp_path):
    task(tmp_path, "!function evil.text")
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'canary')!r}, 'w')\n")
    (tmp_path / "studies.toml").write_text('models = ["demo"]\ntasks = ["task.yaml"]\n')
    with pytest.raises(BadOption, match="runs Python code"):
        read_studies(tmp_path / "studies.toml")
    assert not (tmp_path / "canary").exists()


@pytest.mark.parametrize(
    "command",
    [
        ["locate", "nowhere/at-all", "--task", "FILE"],
        ["erase", "NONE", "--also", "FILE"],
    ],
)
def test_commands_on_neurons_say_what_code_may_do(tmp_path, monkeypatch, command):
    weak = Protection("landlock", ("signals",), ("network is reachable",), "no namespaces")
    monkeypatch.setattr(options, "protection", lambda: weak)
    monkeypatch.setattr(options, "choose_profile", lambda: "landlock")
    places = {"FILE": task(tmp_path, EVIL), "NONE": str(tmp_path / "none")}
    typed = [places.get(word, word) for word in command]
    told = CliRunner().invoke(app, ["neurons", *typed, "--allow-code"])
    assert isinstance(told.exception, UserError)
    assert "But network is reachable" in " ".join(told.stderr.split())
    assert (f"names Python code ({EVIL})" in " ".join(told.stderr.split())) == ("FILE" in command)


def test_links_in_a_run_folder_lead_nowhere(tmp_path):
    folder, victim = tmp_path / "run", tmp_path / "victim"
    folder.mkdir()
    victim.write_text("precious")
    received(folder)
    for name in ("report.html", "result.json.part", "rows.sqlite", "figures"):
        os.symlink(victim, folder / name)
        with pytest.raises(FolderTaken, match="is a link"):
            rewrite_page(folder)
        with pytest.raises(FolderTaken, match="is a link"):
            claim(folder, {}, "")
        (folder / name).unlink()
    assert victim.read_text() == "precious"


def test_a_folder_that_is_itself_a_link_is_fine(tmp_path):
    (tmp_path / "far").mkdir()
    os.symlink(tmp_path / "far", tmp_path / "near")
    refuse_links(tmp_path / "near")
