"""What an export says of a run, and which heads it takes from one."""

import json

import pytest
import torch

import caploc
from caploc.components import Head
from caploc.declaration import ModelOptions
from caploc.errors import BadOption, UnknownName, UserError
from caploc.export import Export
from worlds import DEMO


def asked(source, target, **changes):
    fields = {"model": ModelOptions(""), "top": None, "heads": None, "kind": "heads"}
    return Export.find(str(source), target=target, **fields | changes)


def written(source, target, **changes):
    asked(source, target, **changes).write()
    return (target / "README.md").read_text(), json.loads((target / "heads.json").read_text())


def test_a_twins_fall_is_no_side_effect(finished, tmp_path):
    folder = finished()
    result = json.loads((folder / "result.json").read_text())
    result["validation"]["other_tasks"][0] |= {"twin": True, "name": "/home/me/sentences.yaml"}
    (folder / "result.json").write_text(json.dumps(result))
    card, _ = written(folder, tmp_path / "out")
    assert "| in other words, sentences |" in " ".join(card.split())


def test_the_card_of_the_runs_own_heads_has_its_scores(finished, tmp_path):
    card, file = written(finished(), tmp_path / "out")
    assert file["heads"] == ["L0H10", "L0H15"]
    for said in (
        "| demo/addition, held out | 100 % | 20 % |",
        "| demo/sentences |",
        "| demo/addition, 2 random heads | 100 % | 90 % |",
        "Checked on 90 held-out examples.",
        "3,033 rows",
        "    caploc locate demo --task demo/addition",
    ):
        assert said in " ".join(card.split()) or said in card, said
    assert "not the heads that the run named" not in card


@pytest.mark.parametrize("changes", [{"top": 1}, {"heads": "L2H3"}], ids=str)
def test_scores_of_another_set_are_not_passed_off_as_measured(changes, finished, tmp_path):
    card, _ = written(finished(), tmp_path / "out", **changes)
    assert "These are not the heads that the run named (L0H10, L0H15)" in card
    assert "25" not in card.split("## Evidence")[1].split("##")[0]


def test_missing_evidence_is_said_and_not_made_up(finished, tmp_path):
    run = finished()
    result = json.loads((run / "result.json").read_text())
    result["validation"] = {"task": result["validation"]["task"], "controls": None,
                            "held_out": {}, "other_tasks": []}  # fmt: skip
    for row in result["heads"]:
        row |= {"effect": None, "low": None, "high": None, "q": None}
    (run / "result.json").write_text(json.dumps(result))
    card, _ = written(run, tmp_path / "out")
    assert "**NOT CHECKED** L0H10 and L0H15 may be needed" in card


def test_heads_named_by_hand_have_no_evidence(tmp_path):
    card, file = written(DEMO, tmp_path / "out", heads="L0H10,L5H1")
    assert file["heads"] == ["L0H10", "L5H1"]
    assert "Nothing was measured for this export" in card


def test_the_file_is_what_knockout_reads(finished, tmp_path):
    written(finished(), tmp_path / "out")
    heads = caploc.read_heads(tmp_path / "out" / "heads.json")
    model = caploc.load_model(DEMO)
    tokens = torch.arange(8, 20)[None]
    with torch.no_grad(), caploc.knockout(model, heads):
        got = model.model(tokens).logits
    with torch.no_grad(), caploc.knockout(model, ["L0H10", "L0H15"]):
        assert torch.equal(got, model.model(tokens).logits)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"top": 0}, "--top must be 1 or more"),
        ({"top": 2, "heads": "L0H1"}, "give one of both"),
        ({"heads": ""}, "There is no head to export"),
        ({"heads": "L9H0"}, "There is no head L9H0: the model has layers L0 to L5"),
    ],
    ids=str,
)
def test_mistakes_are_one_sentence(changes, words, finished, tmp_path):
    with pytest.raises(UserError, match=words):
        asked(finished(), tmp_path / "out", **changes).write()
    assert not (tmp_path / "out").exists()


def test_a_model_needs_heads_and_a_run_must_name_some(finished, tmp_path):
    with pytest.raises(BadOption, match="demo is no finished run; name the folder of one"):
        asked(DEMO, tmp_path / "out")
    with pytest.raises(UserError, match="named no head"):
        asked(finished(top=[]), tmp_path / "out")
    with pytest.raises(UnknownName):
        asked(tmp_path / "nowhere", tmp_path / "out", heads="L0H0").write()


def test_a_model_that_has_changed_since_the_run_is_refused(finished, tmp_path):
    run = finished(model={"name": DEMO, "fingerprint": "another"})
    with pytest.raises(UserError, match="has changed since the run"):
        asked(run, tmp_path / "out").write()


def test_what_a_run_fixed_cannot_be_changed(finished, tmp_path):
    run, model = finished(), ModelOptions("", dtype="bfloat16", device="cpu")
    changed = asked(run, tmp_path / "out", model=model)
    assert (changed.model.name, changed.model.dtype, changed.model.device) == (
        DEMO, "bfloat16", "cpu",
    )  # fmt: skip
    assert changed.heads == (Head(0, 10), Head(0, 15))
    with pytest.raises(BadOption, match="--revision is the run's own"):
        asked(run, tmp_path / "out", model=ModelOptions("", revision="main"))
