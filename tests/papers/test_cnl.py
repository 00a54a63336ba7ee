"""Every experiment of CNL: the presets, and one small run of everything."""

import json
from collections import Counter
from pathlib import Path

import pytest

from caploc.declaration import ModelOptions
from caploc.errors import BadOption, CaplocError
from caploc.neurons.cache import ArrayCache
from caploc.neurons.ledger import Cache
from caploc.neurons.options import NeuronStudy
from papers.cnl.__main__ import NUMBERS, Experiments
from papers.cnl.preset import CnlPreset
from worlds import DEMO

SMALL = Path(__file__).parent / "cnl_small.toml"


def changed(tmp_path, *changes):
    """The small preset with some lines of text changed, as a file."""
    text = SMALL.read_text().replace("../worlds/demo", DEMO)
    text = text.replace('"statements.jsonl"', f'"{SMALL.parent}/statements.jsonl"')
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    path = tmp_path / "changed.toml"
    path.write_text(text)
    return str(path)


@pytest.mark.usefixtures("as_if_fetched")
def test_the_real_preset_plans_the_default_command(tmp_path):
    preset = CnlPreset.read("real")
    Experiments(preset, tmp_path)
    study, asked = preset.study(None), preset.cuts()
    assert study == NeuronStudy(ModelOptions("smollm2"), preset.tasks, examples=60, judged=0)
    assert asked.draws == 19
    assert preset.start.tasks == preset.tuning.tasks and preset.start.options.fewshot == 1


@pytest.mark.parametrize("name", ["real", "paper"])
def test_a_preset_names_the_kind_of_each_task(name):
    preset = CnlPreset.read(name)
    assert set(preset.kinds) == set(preset.tasks)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (('method = "gradient"', 'method = "gradients"'), "gradients"),
        (('tasks = ["demo/addition"]', 'tasks = ["demo/additoin"]'), "'demo/additoin'"),
        (("least = 0.5", "most = 0.5"), "is no preset.*most"),
    ],
)
def test_mistakes_are_named_before_a_model_is_loaded(tmp_path, change, said):
    with pytest.raises(CaplocError, match=said):
        Experiments(CnlPreset.read(changed(tmp_path, change)), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_small_run_of_everything_and_again(tmp_path, monkeypatch):
    folder, preset = tmp_path / "run", CnlPreset.read(str(SMALL))
    exhibits = Experiments(preset, folder).run(preset.steps)
    names = Counter(exhibit.name for exhibit in exhibits)
    assert set(names.values()) == {1}
    assert {"sets", "erasure", "yardstick", "fidelity"} <= set(names)
    for exhibit in exhibits:
        assert (folder / f"{exhibit.name}.md").stat().st_size > 0
    numbers = (folder / NUMBERS).read_text()
    scores = {"gradient", "gradient, of the question", "integrated"}
    assert set(json.loads(numbers)["yardstick"]) == scores
    monkeypatch.setattr(Cache, "write", lambda *told: pytest.fail("measured again"))
    monkeypatch.setattr(ArrayCache, "keep", lambda *told: pytest.fail("scored again"))
    repeated = Experiments(preset, folder).run(preset.steps)
    assert [each.markdown() for each in repeated] == [each.markdown() for each in exhibits]
    assert (folder / NUMBERS).read_text() == numbers
    with pytest.raises(BadOption, match="another preset"):
        Experiments(preset.model_copy(update={"seed": 1}), folder)
