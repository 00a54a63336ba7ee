"""Facts from files, and every mistake told with its place."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caploc.errors import BadData
from papers.cnl.facts import Fact, FactPrompt, check_names, read_facts
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
    return path


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
        ('{"name": "1"}\n{"name": ', "facts, line 1 has no field 'prompt'"),
        ("\n{oops", "line 2 is not valid JSON"),
        ("3", "line 1 is no JSON object but int"),
        ("[{oops", "facts is not valid JSON"),
        ([{**COUNTERFACT, "requested_rewrite": {}}], "record 0 has no field 'subject'"),
        ([3], "record 0 is not of the form expected"),
        ([COUNTERFACT, COUNTERFACT], "Two facts are named '3'"),
        ([], "There is no fact"),
    ],
)
def test_a_mistake_is_told_with_its_place(tmp_path, content, said):
    with pytest.raises(BadData, match=said):
        read_facts(written(tmp_path, content))


def test_what_is_not_known_may_be_left_out(tmp_path):
    line = {"name": 7, "prompt": {"text": "a b", "target": " c"}, "rewrites": [
        {"text": "so, a b", "target": " c"}]}  # fmt: skip
    (fact,) = read_facts(written(tmp_path, json.dumps(line)))
    rewrite = FactPrompt("so, a b", None, " c")
    assert fact == Fact("7", None, FactPrompt("a b", None, " c"), (rewrite,))


def test_a_file_that_is_not_there_is_one_sentence(tmp_path):
    with pytest.raises(BadData, match="cannot be read"):
        read_facts(tmp_path / "none.jsonl")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (("", None, " a"), "lacks one of the two"),
        (("Who?", None, ""), "lacks one of the two"),
        (("Who?", "Bob", " a"), "'Bob' does not occur"),
        (("Who?", "", " a"), "'' does not occur"),
        (("Who?", None, " a", " a"), "both as its answer"),
    ],
)
def test_a_prompt_that_cannot_be_asked_is_refused(fields, said):
    with pytest.raises(BadData, match=said):
        FactPrompt(*fields)


def test_facts_need_names_of_their_own():
    fact = demo_facts("quiz", 1)[0]
    with pytest.raises(BadData, match="Two facts are named"):
        check_names((fact, fact))


FIELDS = st.sampled_from("name prompt text target rewrites requested_rewrite subject".split())
VALUES = st.recursive(
    st.none() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS, inner, max_size=4),
    max_leaves=8,
)


@given(st.text(max_size=40) | VALUES.map(json.dumps))
def test_any_text_is_facts_or_one_sentence(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "any-facts"
    path.write_text(content, encoding="utf-8", errors="replace")
    try:
        assert read_facts(path)
    except BadData as refused:
        assert str(path) in str(refused) or "fact" in str(refused)
