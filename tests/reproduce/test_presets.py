"""Presets: what is read, what is refused and in which words, and what narrowing leaves."""

from pathlib import Path

import pytest
from labs import SMALL, written

from caploc.errors import BadData, BadOption, UnknownName, UserError
from caploc.reproduce import read_preset
from caploc.reproduce.preset import Preset
from worlds import DEMO

HEAD = 'name = "mine"\nabout = "mine"\nmain = "CSS"\n'
MODEL = '[[model]]\nlabel = "demo"\nname = "demo"\n'
SEARCH = '[[search]]\nlabel = "CSS"\nmethod = "css"\n'
ADD = '[[benchmark]]\nlabel = "Add"\ntask = "demo/addition"\ngroup = "math"\nlocalize = true\n'
GENERAL = '[[benchmark]]\nlabel = "Gen"\ntask = "demo/sentences"\ngroup = "general"\n'
WHOLE = HEAD + MODEL + SEARCH + ADD + GENERAL


def read(folder, text):
    file = folder / "mine.toml"
    file.write_text(text)
    return read_preset(str(file))


def test_both_presets_of_the_package_are_read():
    real, paper = read_preset("real"), read_preset("paper")
    assert [search.label for search in paper.searches] == ["Greedy", "1S-Greedy", "CSB", "CSS"]
    assert len(paper.models) == 6 and len(paper.benchmarks) == 13
    assert {model.grid.size for model in read_preset(str(SMALL)).models} == {96} and real.models


def test_files_are_given_for_splits_of_a_benchmark(tmp_path):
    file = tmp_path / "rows:1.jsonl"
    preset = read(tmp_path, WHOLE).with_data([f"Add:test={file}", "Add:train=few.jsonl"])
    add, general = preset.benchmarks
    assert add.options(False).data == {
        "test": str(file),
        "train": str(Path("few.jsonl").absolute()),
    }
    assert general.data == {}
    with pytest.raises(UnknownName, match="There is no benchmark 'Ad'"):
        preset.with_data(["Ad:test=x.jsonl"])
    for text in ("test=x.jsonl", "Add:x.jsonl"):
        with pytest.raises(BadOption, match=f"--data takes .*; got .*{text.split(':')[-1]}"):
            preset.with_data([text])


def test_a_preset_of_ones_own_is_read(tmp_path):
    preset = read(tmp_path, WHOLE)
    assert preset.leader.label == "demo" and preset.top == 5 and preset.limit is None
    assert [benchmark.label for benchmark in preset.general] == ["Gen"]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("localize", "localise", "benchmark 'Add': There is no key 'localise'. Did you mean 'loc"),
        ('about = "mine"', 'abot = "mine"', "There is no key 'abot'. Did you mean 'about'?"),
        ('about = "mine"\n', "", "about is missing"),
        ('method = "css"', 'method = "cs"', "search 'CSS': There is no method 'cs'."),
        ('method = "css"', 'method = "css"\nrate = 2', "search 'CSS': rate Input should be less"),
        (
            'method = "css"',
            'method = "css-search"\nrates = [0.2, 0.1]',
            "search 'CSS': rates must be above 0 and below 1, each larger",
        ),
        (
            'method = "css"',
            'method = "css-search"\nmask_counts = [0]',
            "search 'CSS': mask_counts must be 1 to 100,000",
        ),
        ('main = "CSS"', 'main = "CSB"', "main = 'CSB' is no search's label"),
        ('main = "CSS"', 'main = "CSS"\nlead = "x"', "lead = 'x' is no model's label"),
        ("localize = true", "localize = false", "no benchmark has localize = true"),
        ('group = "general"', 'group = "else"', 'no benchmark has group = "general"'),
        ('label = "Gen"', 'label = "Add"', "2 tables [[benchmark]] have the label 'Add'"),
        ('label = "Gen"', 'label = ""', "benchmark number 2: label String should have at least"),
        ('name = "mine"', 'name = "a/b"', "name String should match pattern"),
    ],
)
def test_a_mistake_is_named_in_the_words_of_the_file(tmp_path, old, new, said):
    assert old in WHOLE
    with pytest.raises(BadData) as error:
        read(tmp_path, WHOLE.replace(old, new, 1))
    told = str(error.value)
    assert said in told and told.startswith(f"{tmp_path}/mine.toml is not a preset: ")
    assert told.endswith(".") and "\n" not in told


def test_all_mistakes_are_named_at_once(tmp_path):
    with pytest.raises(BadData) as error:
        read(tmp_path, WHOLE.replace('"CSS"', '"X"', 1).replace("localize = true", "", 1))
    assert "main = 'X'" in str(error.value) and "localize = true" in str(error.value)


def test_what_is_no_toml_is_said(tmp_path):
    with pytest.raises(UserError, match=r"mine.toml cannot be read as TOML: .*line 1"):
        read(tmp_path, "= 3")


def test_an_unknown_preset_names_those_that_exist():
    with pytest.raises(UnknownName, match="no preset 'papr'; choose one of paper, real, or give"):
        read_preset("papr")


def test_files_and_folders_are_looked_for_beside_the_preset(tmp_path):
    (tmp_path / "weights").mkdir()
    (tmp_path / "test.jsonl").touch()
    (tmp_path / "own.yaml").touch()
    (tmp_path / "gsm8k").mkdir()
    text = WHOLE.replace('name = "demo"', 'name = "weights"')
    text = text.replace(
        '"demo/addition"', '"own.yaml"\ndata = { test = "test.jsonl", words = "x" }'
    )
    preset = read(tmp_path, text.replace('"demo/sentences"', '"gsm8k"'))
    add, general = preset.benchmarks
    assert preset.models[0].name == str(tmp_path / "weights")
    assert add.task == str(tmp_path / "own.yaml")
    assert add.data == {"test": str(tmp_path / "test.jsonl"), "words": "x"}
    assert general.task == "gsm8k"


def test_narrowing_forgets_what_was_left_out():
    paper = read_preset("paper")
    narrow = paper.narrowed(["GSM8K", "BoolQ"], [], 7)
    assert [b.label for b in narrow.benchmarks] == ["GSM8K", "BoolQ"]
    assert [b.label for b in narrow.general] == ["BoolQ"]
    assert [b.label for b in narrow.localized] == ["GSM8K"]
    assert narrow.limit == 7 and narrow.models == paper.models
    assert paper.narrowed([], [], None) == paper


@pytest.mark.parametrize(
    ("labels", "models", "limit", "said"),
    [
        (["GSM8k"], [], None, "no benchmark 'GSM8k'. Did you mean 'GSM8K'?"),
        (["GSM8K"], [], None, 'no benchmark has group = "general"'),
        (["BoolQ"], [], None, "no benchmark has localize = true"),
        ([], ["a/b", "c/b"], None, "2 tables [[model]] have the label 'b'"),
        ([], [], 0, "--limit must be 1 or more; got 0."),
    ],
)
def test_narrowing_to_nothing_is_refused(labels, models, limit, said):
    with pytest.raises((BadOption, UnknownName)) as error:
        read_preset("paper").narrowed(labels, models, limit)
    assert said in str(error.value)


def test_a_models_name_means_what_it_means_in_every_command(tmp_path, monkeypatch):
    """A folder named like a fetched model is not that model; a file is, like a folder, a path."""
    monkeypatch.chdir(tmp_path)
    for folder in ("smollm2", "mine"):
        (tmp_path / folder).mkdir()
    (tmp_path / "mine.gguf").touch()
    preset = read_preset(str(SMALL))
    names = [preset.renamed(f"one={name}").name for name in ("smollm2", "mine", "mine.gguf")]
    assert names == ["smollm2", str(tmp_path / "mine"), str(tmp_path / "mine.gguf")]


def test_models_are_chosen_replaced_and_added(tmp_path, monkeypatch):
    (tmp_path / "my=model").mkdir()
    monkeypatch.chdir(tmp_path)
    content = written(lead="demo")
    content["model"] = [
        {"label": "demo", "name": DEMO},
        {"label": "big", "name": "org/big", "revision": "v1", "dtype": "bfloat16"},
    ]
    preset = Preset.model_validate(content)
    texts = ["big=my=model", "my=model", "org/other", "big"]
    replaced, added, other, kept = (preset.renamed(text) for text in texts)
    assert (replaced.label, replaced.name) == ("big", str(tmp_path / "my=model"))
    assert (replaced.dtype, replaced.revision) == ("bfloat16", None)
    assert (added.label, added.name) == ("my=model", str(tmp_path / "my=model"))
    assert (other.label, other.name) == ("other", "org/other")
    assert kept == preset.models[1]
    narrow = preset.narrowed([], ["big", "org/other"], None)
    assert narrow.lead is None and narrow.leader.label == "big"


def test_a_model_alone_leads_only_if_it_led():
    content = written(lead="b")
    content["model"] = [{"label": label, "name": DEMO} for label in "ab"]
    preset = Preset.model_validate(content)
    first, second = preset.models
    assert preset.leader is second
    assert preset.alone(second).leads(second) and not preset.alone(first).leads(first)
