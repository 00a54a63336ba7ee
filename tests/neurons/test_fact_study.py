"""Facts from files, located in the demo model: what is used, what is kept, what is refused."""

import json
from dataclasses import replace

import pytest
from small_runs import MODEL, counted, lasting, undrawn

from caploc.errors import BadData, BadOption, FolderTaken, UnknownName
from caploc.neurons import fact_study
from caploc.neurons import study as studies
from caploc.neurons.fact_study import (
    FactStudy,
    fidelity_headline,
    margin_of,
    measure_fidelity,
    measure_reliability,
)
from caploc.report.tabulation import ranged
from worlds.tasks.data import CAPITALS, ELEMENTS

pytestmark = pytest.mark.slow  # whole studies


@pytest.fixture(autouse=True)
def without_pages(monkeypatch):
    monkeypatch.setattr(studies, "write_exhibits", undrawn)


def stated(relation, subject, answer, false="Zz", leads=("\n",)):
    """A fact as a line of a file has it, in the demo model's wording."""

    def asked(lead):
        text = f"{lead}{relation} of {subject} is "
        return {"text": text, "subject": subject, "target": answer, "other": false}

    return {
        "name": subject,
        "relation": relation,
        "prompt": asked(""),
        "rewrites": list(map(asked, leads)),
        "neighbours": [],
    }


KNOWN = [stated("capital", *pair) for pair in CAPITALS[:4]]
WRONG = [stated("capital", name, "Zz", "Xx") for name in ("Chile", "Peru")]
SYMBOLS = [stated("symbol", *pair) for pair in ELEMENTS[:2]]


def write(path, records):
    path.write_text("".join(json.dumps(each) + "\n" for each in records))
    return str(path)


@pytest.fixture
def facts(tmp_path):
    return write(tmp_path / "facts.jsonl", KNOWN + WRONG)


def study(facts, **changes):
    fields = {"methods": ("neurons",), "count": 3, "draws": 5, "steps": 2} | changes
    return FactStudy(MODEL, facts, **fields)


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """Fidelity by all three methods, then again with every measurement counted."""
    folder = tmp_path_factory.mktemp("facts")
    asked = study(write(folder / "facts.jsonl", KNOWN + SYMBOLS + WRONG), count=None)
    asked = replace(asked, methods=fact_study.METHODS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(studies, "write_exhibits", undrawn)
        result, exhibits = measure_fidelity(asked, folder / "run", command="first")
        calls = counted(patch, fact_study, "wording_fidelity")
        again, _ = measure_fidelity(asked, folder / "run", command="second")
    return result, exhibits, again, calls


def test_only_facts_that_the_model_knows_are_located(everything):
    result, _, _, _ = everything
    assert result["known"]["facts"] == 8 and result["known"]["facts_known"] == result["facts"] == 6
    assert result["known"]["rewrites"] == 8 and result["known"]["rewrites_known"] == 6
    assert set(result["methods"]) == set(fact_study.METHODS)


def test_a_second_call_measures_nothing(everything):
    result, _, again, calls = everything
    assert not calls
    assert lasting(again) == lasting(result)
    assert (result["command"], again["command"]) == ("first", "second")


def test_the_tables_and_the_headline_are_what_the_file_says(everything):
    result, exhibits, _, _ = everything
    found, tables = result["methods"], {each.name: each for each in exhibits}
    headline = fidelity_headline(found)
    assert all(ranged(margin_of(each)) in headline for each in found.values())
    rows = {row[0]: row for row in tables["fidelity"].rows}
    assert len(rows) == 9
    for name, title in (("neurons", "knowledge neurons"), ("circuits", "knowledge circuits")):
        row = rows[f"{title}, overlap"]
        assert row[1] == str(found[name]["facts"])
        assert row[2].number == pytest.approx(found[name]["size"])
        assert row[3] == ranged(found[name]["arms"]["rewrites"]["largest"])
        assert row[7] == ranged(found[name]["margin"]["largest"])
    agreed = found["tracing"]["arms"]["rewrites"]["agreement"]
    assert rows["causal tracing (ROME), same layer"][3] == ranged(agreed)
    peaks = [int(row[1]) for row in tables["fidelity-layers"].rows]
    assert peaks == list(found["tracing"]["peaks"]) and sum(peaks) == 6


def test_methods_are_told_apart_in_the_ledger_and_share_a_folder(facts, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    alone, _ = measure_fidelity(study(facts), folder)
    calls = counted(monkeypatch, fact_study, "wording_fidelity")
    both, _ = measure_fidelity(study(facts, methods=("neurons", "tracing")), folder)
    assert [told[0].name for told, _ in calls] == ["causal tracing"]
    assert both["methods"]["neurons"] == json.loads(json.dumps(alone["methods"]["neurons"]))


def test_a_run_killed_between_two_methods_goes_on_with_the_second(facts, tmp_path, monkeypatch):
    folder, asked = tmp_path / "run", study(facts, methods=("neurons", "tracing"))

    inner = fact_study.wording_fidelity

    def killed(locator, *told, **options):
        if locator.name == "causal tracing":
            raise KeyboardInterrupt
        return inner(locator, *told, **options)

    with monkeypatch.context() as patch:
        patch.setattr(fact_study, "wording_fidelity", killed)
        with pytest.raises(KeyboardInterrupt):
            measure_fidelity(asked, folder)
    assert not (folder / "fidelity.json").exists()
    calls = counted(monkeypatch, fact_study, "wording_fidelity")
    result, _ = measure_fidelity(asked, folder)
    assert [told[0].name for told, _ in calls] == ["causal tracing"]
    assert len(result["methods"]) == 2


def test_facts_edited_in_their_file_are_measured_anew(facts, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    before, _ = measure_fidelity(study(facts), folder)
    calls = counted(monkeypatch, fact_study, "wording_fidelity")
    write(tmp_path / "facts.jsonl", SYMBOLS + WRONG)
    after, _ = measure_fidelity(study(facts), folder)
    assert len(calls) == 1
    assert (before["facts"], after["facts"]) == (3, 2)
    assert after["methods"]["neurons"]["facts"] <= 2


def test_another_study_does_not_take_the_folder(facts, tmp_path):
    folder = tmp_path / "run"
    measure_fidelity(study(facts), folder)
    with pytest.raises(FolderTaken, match="seed 0, not 1"):
        measure_fidelity(study(facts, seed=1), folder)


def test_rewrites_of_a_file_stand_in_for_the_facts_own(facts, tmp_path):
    first, second, *others = (each["name"] for each in KNOWN)
    rewrites = write(
        tmp_path / "rewrites.jsonl",
        [
            *({"fact": name, "prompts": [f". capital of {name} is "]} for name in others),
            {"fact": first, "prompts": [f". capital of {first} is ", "capital of somewhere is "]},
            {"fact": second, "prompts": [f" capital of  {second} is "]},
            {"fact": "nobody", "prompts": ["capital of nobody is "]},
        ],
    )
    result, _ = measure_fidelity(study(facts, rewrites=rewrites, count=None), tmp_path / "run")
    told = result["rewrites"]
    assert told["given"] == 5 and 0 < told["kept"] <= 3
    assert result["known"]["rewrites"] == result["known"]["rewrites_known"] == told["kept"] > 0
    assert result["methods"]["neurons"]["without_rewrites"] == 4 - told["kept"]


def test_reliability_holds_located_sets_against_controls(facts, tmp_path, monkeypatch):
    asked = study(facts, methods=("neurons", "circuits"))
    result, exhibits = measure_reliability(asked, tmp_path / "run")
    suppressed = result["methods"]["neurons"]["suppress"]["fact"]
    assert suppressed["located"]["mean"] < 0  # the answer is less likely without them
    assert suppressed["located"]["mean"] < suppressed["random"]["mean"]
    arms = {arm["name"]: arm for arm in result["methods"]["circuits"]["arms"]}
    assert {"located", "complement", "random"} <= set(arms)
    tables = {each.name: each for each in exhibits}
    rows = {row[0]: row for row in tables["reliability-neurons"].rows}
    assert rows["suppress, on the fact"][1] == ranged(suppressed["located"])
    assert [row[0] for row in tables["reliability-circuits"].rows] == list(arms)
    common = [row[0] for row in tables["common-metric"].rows]
    assert common[0] == "knowledge neurons, suppressed" and len(common) > 1
    fewer, _ = measure_fidelity(replace(asked, methods=("neurons",)), tmp_path / "run")
    assert fewer["methods"]["neurons"]["facts"] == 3  # one folder for both questions
    calls = counted(monkeypatch, fact_study, "intervention_reliability")
    calls_too = counted(monkeypatch, fact_study, "circuit_reliability")
    again, _ = measure_reliability(asked, tmp_path / "run")
    assert not calls and not calls_too and lasting(again) == lasting(result)


def test_fewer_than_two_known_facts_are_refused(tmp_path):
    facts = write(tmp_path / "facts.jsonl", KNOWN[:1] + WRONG)
    with pytest.raises(BadData, match="/demo answers 1 of 3 facts rightly; .* Give others."):
        measure_fidelity(study(facts), tmp_path / "run")


def test_too_few_texts_are_told_before_anything_is_loaded(facts, tmp_path, monkeypatch):
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(["one", "", "two"]))
    monkeypatch.setattr(fact_study, "load_model", lambda **told: pytest.fail("loaded"))
    with pytest.raises(BadData, match="needs 20 texts or more .* there are 2. Name a file with"):
        measure_reliability(study(facts, texts=str(texts)), tmp_path / "run")
    with pytest.raises(BadData, match="--texts .*none.txt cannot be read"):
        study(facts, texts=str(tmp_path / "none.txt")).check()


def test_too_few_prompts_for_an_edit_are_told_before_anything_is_measured(
    facts, tmp_path, monkeypatch
):
    calls = counted(monkeypatch, fact_study, "intervention_reliability")
    with pytest.raises(BadData, match="needs 20 texts or more"):
        measure_reliability(study(facts, methods=("neurons", "tracing")), tmp_path / "run")
    assert not calls


def test_counterfact_as_it_is_distributed_is_read_by_the_command(tmp_path):
    records = [
        {
            "case_id": number,
            "requested_rewrite": {
                "prompt": "capital of {} is", "relation_id": "P36", "subject": subject,
                "target_true": {"str": answer}, "target_new": {"str": "Zz"},
            },
            "paraphrase_prompts": [f". capital of {subject} is"],
            "neighborhood_prompts": [],
        }
        for number, (subject, answer) in enumerate(CAPITALS[:3])
    ]  # fmt: skip
    path = tmp_path / "counterfact.json"
    path.write_text(json.dumps(records))
    result, _ = measure_fidelity(study(str(path)), tmp_path / "run")
    assert result["known"]["facts"] == result["facts"] == 3
    path.write_text(json.dumps(records[:1]))
    assert [fact.name for fact in study(str(path)).check().read()] == ["0"]
    with pytest.raises(BadData, match="answers 1 of 1 facts rightly"):
        measure_fidelity(study(str(path)), tmp_path / "one")


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"methods": ("neuron",)}, UnknownName, "Did you mean 'neurons'?"),
        ({"count": 1}, BadOption, "--count must be 2 or more facts; got 1."),
        ({"draws": 4}, BadOption, "--draws must be 5 or more; got 4."),
        ({"share": 0.0}, BadOption, "--share must be above 0 and at most 1; got 0."),
        ({"steps": 0}, BadOption, "--steps and --neuron-steps must be 1 or more; got 0 and 20."),
        ({"neuron_share": 2.0}, BadOption, "--neuron-share must be above 0 and at most 1; got 2."),
        ({"neuron_rule": "middle"}, UnknownName, "no rule for the points"),
        ({"facts": "words/riddles"}, UnknownName, "Known: words/facts"),
        ({"facts": "nowhere.jsonl"}, BadData, "nowhere.jsonl cannot be read"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_mistakes_are_told_before_the_folder_is_claimed(
    facts, tmp_path, monkeypatch, changes, error, said
):
    monkeypatch.setattr(fact_study, "load_model", lambda **told: pytest.fail("loaded"))
    with pytest.raises(error) as refused:
        measure_fidelity(replace(study(facts), **changes), tmp_path / "run")
    assert said in str(refused.value)
    assert not (tmp_path / "run").exists()
