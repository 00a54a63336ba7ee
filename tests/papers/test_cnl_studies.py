"""Facts located and items decoupled on the demo model, once each; again nothing is measured."""

import json

import pytest

import worlds.contrasts  # noqa: F401  (names its sets)
from caploc.cache import Cache
from caploc.errors import BadData, FolderTaken
from caploc.stats.threshold import Rule
from caploc.workbench import ModelOptions
from papers.cnl import fact_study
from papers.cnl.decoupling import DecouplingStudy, measure_decoupling
from papers.cnl.fact_study import FIDELITY, METHODS, RELIABILITY, FactStudy, measure_facts
from worlds import DEMO
from worlds.tasks.data import CAPITALS, ELEMENTS

pytestmark = pytest.mark.slow
MODEL = ModelOptions(DEMO, device="cpu")


def stated(relation, subject, answer):
    """A fact as a line of a file has it, in the demo model's wording."""

    def asked(lead, subject=subject, answer=answer):
        text = f"{lead}{relation} of {subject} is "
        return {"text": text, "subject": subject, "target": answer, "other": "Zz"}

    fact = {"name": subject, "relation": relation, "prompt": asked("")}
    return fact | {"rewrites": [asked("\n")], "neighbours": [asked("", *CAPITALS[5])]}


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    facts = [stated("capital", *pair) for pair in CAPITALS[:4]]
    facts += [stated("symbol", *pair) for pair in ELEMENTS[:2]]
    facts.append(stated("capital", "Chile", "Qq"))  # which the model does not know
    folder = tmp_path_factory.mktemp("facts")
    (folder / "facts.jsonl").write_text("".join(json.dumps(each) + "\n" for each in facts))
    texts = folder / "texts.txt"
    texts.write_text("\n".join(f"capital of {a} is {b}" for a, b in CAPITALS[:24]))
    name = str(folder / "facts.jsonl")
    return FactStudy(MODEL, name, draws=5, steps=2, neuron_steps=2, texts=str(texts))


def test_facts_are_located_by_all_methods_and_changed(study, tmp_path, monkeypatch):
    result, shown = measure_facts(FIDELITY, study, tmp_path / "run")
    assert result["known"]["facts"] == 7 and result["facts"] == 6
    found, frame = result["methods"], shown[0].frame.set_index("locator, measure")
    own = frame.loc["knowledge neurons, overlap", "rewrites"]
    assert own.number == found["neurons"]["arms"]["rewrites"]["largest"]["mean"]
    assert sum(shown[1].frame["facts"]) == 6  # peaks of tracing
    assert (tmp_path / "run" / "fidelity" / "fidelity.png").is_file()
    changed, tables = measure_facts(RELIABILITY, study, tmp_path / "run")
    assert {table.name for table in tables} >= {
        "reliability-neurons", "reliability-edits", "reliability-circuits", "common-metric",
    }  # fmt: skip
    suppressed = changed["methods"]["neurons"]["suppress"]["fact"]
    assert suppressed["located"]["mean"] < suppressed["random"]["mean"]
    monkeypatch.setattr(Cache, "write", lambda *told: pytest.fail("measured again"))
    again, _ = measure_facts(RELIABILITY, study, tmp_path / "run")
    assert again["methods"] == changed["methods"] and set(found) == set(METHODS)


def test_too_few_texts_are_told_before_a_model_is_loaded(study, tmp_path, monkeypatch):
    (tmp_path / "texts.txt").write_text("one\n\ntwo")
    monkeypatch.setattr(fact_study, "load_model", lambda **told: pytest.fail("loaded"))
    few = FactStudy(MODEL, study.facts, texts=str(tmp_path / "texts.txt"))
    with pytest.raises(BadData, match="needs 20 texts or more"):
        measure_facts(RELIABILITY, few, tmp_path / "run")


def test_items_are_decoupled_and_another_study_does_not_take_the_folder(tmp_path):
    study = DecouplingStudy(MODEL, "demo/sums", 4, ("gradient",), rule=Rule(share=0.01))
    result, (table,) = measure_decoupling(study, tmp_path)
    (effects,) = (each["effects"] for each in result["locators"].values())
    mean = {arm: each["mean"] for arm, each in effects["similarity"].items()}
    assert effects["commonality"]["mean"] == pytest.approx(mean["SC"] - mean["DD"])
    (row,) = table.frame.to_dict("records")
    assert row["commonality effect"].number == effects["commonality"]["mean"]
    assert measure_decoupling(study, tmp_path)[0]["locators"] == result["locators"]
    with pytest.raises(FolderTaken, match="items 4, not 3"):
        measure_decoupling(DecouplingStudy(MODEL, "demo/sums", 3), tmp_path)
