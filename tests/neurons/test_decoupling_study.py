"""Capability and content apart, by the command: what it writes, keeps and refuses."""

import json
from dataclasses import replace

import pytest
from small_runs import MODEL, counted, lasting, undrawn

from caploc.errors import BadOption, FolderTaken, UnknownName
from caploc.neurons import decoupling
from caploc.neurons import study as studies
from caploc.neurons.decoupling import (
    DecouplingStudy,
    decoupling_headline,
    draw_contrasts,
    measure_decoupling,
)
from caploc.report.tabulation import ranged
from caploc.stats.threshold import Rule

pytestmark = pytest.mark.slow  # whole studies

STUDY = DecouplingStudy(MODEL, "demo/sums", 4, ("gradient", "activation"), rule=Rule(share=0.01))


@pytest.fixture(autouse=True)
def without_pages(monkeypatch):
    monkeypatch.setattr(studies, "write_exhibits", undrawn)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("decoupling")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(studies, "write_exhibits", undrawn)
        return folder, *measure_decoupling(STUDY, folder, command="caploc neurons decouple")


def test_the_table_is_what_the_file_says(done):
    folder, result, (table,) = done
    assert json.loads((folder / "decoupling.json").read_text()) == json.loads(json.dumps(result))
    assert [row[0] for row in table.rows] == list(result["locators"]) and len(table.rows) == 2
    for row, each in zip(table.rows, result["locators"].values(), strict=True):
        effects = each["effects"]
        assert row[1] == f"{each['right']} of {each['contrasts']}"
        assert row[2].number == pytest.approx(each["size"]) == 23
        told = [effects["similarity"][arm] for arm in ("SS", "SC", "CD", "DD")]
        told += [effects[name] for name in ("commonality", "individual", "content")]
        assert list(row[3:10]) == list(map(ranged, told))
        mean = {arm: effects["similarity"][arm]["mean"] for arm in ("SS", "SC", "CD", "DD")}
        assert effects["commonality"]["mean"] == pytest.approx(mean["SC"] - mean["DD"])
        assert effects["individual"]["mean"] == pytest.approx(mean["SS"] - mean["SC"])
        assert effects["content"]["mean"] == pytest.approx(mean["CD"] - mean["DD"])
    (name, first), *_ = result["locators"].items()
    assert f"({name})" in decoupling_headline(result["locators"])
    assert ranged(first["effects"]["commonality"]) in decoupling_headline(result["locators"])


def test_every_item_of_the_contrasts_was_drawn_from_the_seed(done):
    _, result, _ = done
    assert draw_contrasts("demo/sums", 4, seed=0) == draw_contrasts("demo/sums", 4, seed=0)
    assert draw_contrasts("demo/sums", 4, seed=0) != draw_contrasts("demo/sums", 4, seed=1)
    assert {each["contrasts"] for each in result["locators"].values()} == {4}


def test_a_second_call_measures_nothing(done, monkeypatch):
    folder, result, _ = done
    calls = counted(monkeypatch, decoupling, "decouple")
    again, _ = measure_decoupling(STUDY, folder, command="another")
    assert not calls and lasting(again) == lasting(result)


def test_a_run_killed_between_two_locators_goes_on_with_the_second(done, tmp_path, monkeypatch):
    _, expected, _ = done
    inner, calls = decoupling.decouple, []

    def killed(bench, contrasts, locator, **options):
        calls.append(str(locator))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return inner(bench, contrasts, locator, **options)

    monkeypatch.setattr(decoupling, "decouple", killed)
    with pytest.raises(KeyboardInterrupt):
        measure_decoupling(STUDY, tmp_path)
    assert not (tmp_path / "decoupling.json").exists()
    result, _ = measure_decoupling(STUDY, tmp_path)
    assert calls == [*expected["locators"], list(expected["locators"])[1]]
    assert lasting(result) == lasting(expected)


def test_another_study_does_not_take_the_folder(done):
    folder, _, _ = done
    with pytest.raises(FolderTaken, match="items 4, not 3"):
        measure_decoupling(replace(STUDY, items=3), folder)


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"contrasts": "demo/sum"}, UnknownName, "Did you mean 'demo/sums'?"),
        ({"items": 1}, BadOption, "--items must be 2 or more; got 1."),
        ({"methods": ("gradeint",)}, UnknownName, "Did you mean 'gradient'?"),
        ({"rule": Rule(share=2.0)}, BadOption, "--share must be above 0 and at most 1; got 2."),
        ({"methods": ("gradient", "gradient")}, BadOption, "--method names gradient twice"),
    ],
    ids=["contrasts", "items", "method", "rule", "twice"],
)
def test_mistakes_are_told_before_the_folder_is_claimed(
    tmp_path, monkeypatch, changes, error, said
):
    monkeypatch.setattr(type(MODEL), "engine", lambda self: pytest.fail("the model was loaded"))
    with pytest.raises(error) as refused:
        measure_decoupling(replace(STUDY, **changes), tmp_path / "run")
    assert said in str(refused.value)
    assert not (tmp_path / "run").exists()
