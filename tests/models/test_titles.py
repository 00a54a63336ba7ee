"""What a model in a folder is called where people read it."""

import json

import pytest

from caploc.models.sources import title_of
from caploc.naming import model_folder


@pytest.mark.parametrize("name", ["smollm2", "ORG/NAME", "no/such/folder"])
def test_a_name_says_itself(name):
    assert title_of(name) is None


def test_a_fetched_model_has_its_short_name_and_one_of_the_hubs_cache_its_id(tmp_path, monkeypatch):
    monkeypatch.setenv("CAPLOC_CACHE", str(tmp_path))
    model_folder("smollm2").mkdir(parents=True)
    assert title_of(str(model_folder("smollm2"))) == "smollm2"
    kept = tmp_path / "models--Org--Some-1B" / "snapshots" / ("0" * 40)
    kept.mkdir(parents=True)
    assert title_of(str(kept)) == "Org/Some-1B"


def test_a_folder_tells_what_it_was_made_from_and_its_own_name(tmp_path):
    folder = tmp_path / "snapshot-1"
    folder.mkdir()
    assert title_of(str(folder)) is None

    def say(own):
        (folder / "config.json").write_text(json.dumps({"_name_or_path": own}))
        return title_of(str(folder))

    assert say("Org/Some-1B") == "Org/Some-1B (snapshot-1)"
    assert say("/a/path of/somebody") is None and say(5) is None and say("<b>") is None
