"""Facts located on the demo model, once each; again nothing is measured."""

import json

import pytest

from caploc.errors import BadData
from caploc.neurons.ledger import Cache
from papers.cnl.__main__ import Experiments
from papers.cnl.preset import CnlPreset, Facts
from worlds import DEMO
from worlds.tasks.data import CAPITALS, ELEMENTS

pytestmark = pytest.mark.slow


def stated(relation, subject, answer):
    """A fact as a line of a file has it, in the demo model's wording."""

    def asked(lead, subject=subject, answer=answer):
        text = f"{lead}{relation} of {subject} is "
        return {"text": text, "subject": subject, "target": answer, "other": "Zz"}

    fact = {"name": subject, "relation": relation, "prompt": asked("")}
    return fact | {"rewrites": [asked("\n")], "neighbours": [asked("", *CAPITALS[5])]}


@pytest.fixture(scope="module")
def preset(tmp_path_factory):
    facts = [stated("capital", *pair) for pair in CAPITALS[:4]]
    facts += [stated("symbol", *pair) for pair in ELEMENTS[:2]]
    facts.append(stated("capital", "Chile", "Qq"))  # which the model does not know
    folder = tmp_path_factory.mktemp("facts")
    (folder / "facts.jsonl").write_text("".join(json.dumps(each) + "\n" for each in facts))
    (folder / "texts.txt").write_text("\n".join(f"capital of {a} is {b}" for a, b in CAPITALS[:24]))
    sets, texts = (str(folder / "facts.jsonl"),), str(folder / "texts.txt")
    return CnlPreset(
        about="facts",
        model=DEMO,
        tasks=("demo/addition", "demo/elements"),
        facts=Facts(sets=sets, draws=5, circuit_steps=2, neuron_steps=2, texts=texts),
    )


def test_facts_are_located_by_all_methods_and_changed(preset, tmp_path, monkeypatch):
    experiments = Experiments(preset, tmp_path)
    tables = {table.name: table for table in experiments.run(["fidelity"])}
    found = experiments.numbers["fidelity"]["facts"]
    assert found["known"]["facts"] == 7 and found["facts"] == 6
    row = tables["fidelity"].frame.iloc[0]
    assert (row["located by"], row["measure"]) == ("knowledge neurons", "overlap")
    own = found["methods"]["neurons"]["arms"]["rewrites"]["largest"]["mean"]
    assert row["rewrites"].number == own
    assert sum(tables["fidelity-layers"].frame["facts"]) == 6
    tables = {table.name for table in experiments.run(["reliability"])}
    assert tables >= {
        "fidelity", "reliability-neurons", "reliability-edits", "reliability-circuits",
    }  # fmt: skip
    changed = experiments.numbers["reliability"]["facts"]["methods"]
    suppressed = changed["neurons"]["suppress"]["fact"]
    assert suppressed["located"]["mean"] < suppressed["random"]["mean"]
    monkeypatch.setattr(Cache, "write", lambda *told: pytest.fail("measured again"))
    again = Experiments(preset, tmp_path)
    again.run(["reliability"])
    assert again.numbers["reliability"]["facts"]["methods"] == changed


def test_too_few_texts_are_told(preset, tmp_path):
    (tmp_path / "texts.txt").write_text("one\n\ntwo")
    texts = {"texts": str(tmp_path / "texts.txt"), "methods": ("tracing",)}
    few = preset.model_copy(update={"facts": preset.facts.model_copy(update=texts)})
    with pytest.raises(BadData, match="needs 20 texts or more"):
        Experiments(few, tmp_path / "run").run(["reliability"])
