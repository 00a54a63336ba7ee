"""Rewrites from a file: what is kept, and what is dropped."""

import json

from papers.cnl.facts import Fact, FactPrompt, read_rewrites, with_rewrites

FACTS = (
    Fact("one", "r", FactPrompt("The capital of Peru is", "Peru", " Lima", " Rome")),
    Fact("two", "r", FactPrompt("The capital of Chad is", "Chad", " Ndjamena")),
)
TEXTS = {
    "one": (
        "the  capital of Peru IS",  # the prompt but for case and spacing
        "Peru is governed from",
        "Peru  is governed from",  # the one before it
        "Its capital is",  # no subject
        "In Peru presidents live in",
    ),
    "three": ("Whatever",),
}


def test_each_rewrite_is_kept_or_dropped_for_one_reason():
    facts, counts = with_rewrites(FACTS, TEXTS)
    assert [each.text for each in facts[0].rewrites] == [
        "Peru is governed from",
        "In Peru presidents live in",
    ]
    assert all(each.target == " Lima" and each.other == " Rome" for each in facts[0].rewrites)
    assert counts == {"given": 5, "kept": 2}


def test_a_rewrite_the_model_answers_wrongly_is_dropped():
    facts, counts = with_rewrites(FACTS, TEXTS, right=lambda prompt: "live" in prompt.text)
    assert [each.text for each in facts[0].rewrites] == ["In Peru presidents live in"]
    assert counts["kept"] == 1


def test_lines_of_one_fact_add_up(tmp_path):
    path = tmp_path / "rewrites.jsonl"
    lines = [{"fact": 1, "prompts": ["a", "b"]}, {"fact": "1", "prompts": ["c"]}]
    path.write_text("\n".join(map(json.dumps, lines)))
    assert read_rewrites(path) == {"1": ["a", "b", "c"]}
