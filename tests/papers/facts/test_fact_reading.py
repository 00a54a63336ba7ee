"""Facts from files, and every mistake told with its place."""

import json

import pytest

from caploc.errors import BadData
from papers.cnl.facts import Fact, FactPrompt, read_facts
from worlds.facts import demo_facts

COUNTERFACT = {
    "case_id": 3,
    "requested_rewrite": {
        "prompt": "The tongue of {} is",
        "relation_id": "P103",
        "target_new": {"str": "English", "id": "Q1860"},
        "target_true": {"str": "French", "id": "Q150"},
        "subject": "Marie Curie",
    },
    "paraphrase_prompts": ["Rain fell. Marie Curie spoke", "What she spoke was"],
    "neighborhood_prompts": ["The tongue of Balzac is"],
    "attribute_prompts": [],
    "generation_prompts": [],
}


def written(tmp_path, content):
    path = tmp_path / "facts"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


def test_counterfact_is_read_as_rome_writes_it(tmp_path):
    (fact,) = read_facts(written(tmp_path, [COUNTERFACT]))
    assert fact == Fact(
        name="3",
        relation="P103",
        prompt=FactPrompt("The tongue of Marie Curie is", "Marie Curie", " French", " English"),
        rewrites=(
            FactPrompt("Rain fell. Marie Curie spoke", "Marie Curie", " French", " English"),
            FactPrompt("What she spoke was", None, " French", " English"),
        ),
        neighbours=(FactPrompt("The tongue of Balzac is", None, " French", " English"),),
    )


def test_our_own_lines_give_back_what_was_written(tmp_path):
    facts = demo_facts("statement", 5)
    lines = "\n\n".join(json.dumps(fact.as_dict()) for fact in facts)
    assert read_facts(written(tmp_path, lines)) == facts


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"name": "1"}', "prompt"),
        ("{oops", "Invalid JSON"),
        ([{**COUNTERFACT, "requested_rewrite": {}}], "'subject'"),
        ([3], "not subscriptable"),
    ],
)
def test_a_mistake_is_told(tmp_path, content, said):
    with pytest.raises(BadData, match=said):
        read_facts(written(tmp_path, content))


def test_a_file_that_is_not_there_is_one_sentence(tmp_path):
    with pytest.raises(BadData, match="cannot be read"):
        read_facts(str(tmp_path / "none.jsonl"))


@pytest.mark.parametrize(
    "fields",
    [("", None, " a"), ("Who?", None, ""), ("Who?", "Bob", " a"), ("Who?", "", " a"),
     ("Who?", None, " a", " a")],
)  # fmt: skip
def test_a_prompt_that_cannot_be_asked_is_refused(fields):
    with pytest.raises(ValueError, match="cannot be asked"):
        FactPrompt(*fields)
