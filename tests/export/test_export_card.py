"""A card shows hostile text as text, in its metadata and in its body."""

from dataclasses import replace

import yaml
from huggingface_hub import ModelCard
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from caploc.components import ALONE, Head, HeadFile, Heads
from caploc.export.card import CardContent, read_licence, write_card
from caploc.export.weights import LogitAgreement
from caploc.models.sources import ModelSource
from caploc.result import (
    Estimand,
    GridShape,
    HeadEffect,
    LocatedTask,
    MethodSettings,
    Model,
    Result,
    RunCost,
    Score,
    TaskComparison,
    Validation,
)

GRID = Heads((16,) * 6)
AGREEMENT = LogitAgreement("float32", 0.0, 0.0)
HOSTILE = (
    '<script>alert(1)</script>\n# Title\n---\nlicense: mine\n| a | b |\n```\n[x](javascript:1) "q" '
    "![i](http://e.x/i.png) @someone #1 $x$ \x1b[0m \u202e {{ 7 * 7 }} {% raw %}"
)


def story(text, *, licence=None, commit=None, **changes):
    part = Score(score=0.5, stderr=0.1, examples=100)
    head = {"head": "L0H1", "layer": 0, "index": 1, "effect": -0.5, "low": -0.6, "high": -0.4}
    scores = {"name": text, "metric": text, "higher_is_better": True, **changes}
    both = TaskComparison(
        intact=part, knocked_out=part, **{k: v for k, v in scores.items() if k != "outcome"}
    )
    result = Result(
        model=Model(name=text, dtype=text),
        task=LocatedTask(**scores),
        method=MethodSettings(name=text),
        grid=GridShape(layers=6, heads=[16] * 6),
        estimand=Estimand(heads=ALONE, top=ALONE),
        heads=[HeadEffect(**head, q=0.01)],
        top=["L0H1"],
        validation=Validation(task=both, other_tasks=[both]),
        seed=0,
        cost=RunCost(rows=10),
        command=text,
    )
    file = HeadFile((Head(0, 1),), GRID, text, text)
    source = ModelSource(text, "/place", None, commit, ())
    return CardContent(
        kind="checkpoint", source=source, file=file, result=result, licence=licence or {},
        agreement=AGREEMENT, command=text,
    )  # fmt: skip


def parts(card):
    front, body = card.removeprefix("---\n").split("\n---\n", 1)
    return yaml.safe_load(front), body


def tokens(body):
    for token in MarkdownIt("gfm-like", {"linkify": False}).parse(body):
        yield token
        yield from token.children or []


PLAIN = [token.type for token in tokens(parts(write_card(story("name")))[1])]


@settings(max_examples=10)
@given(st.text().map("x{}".format) | st.just(HOSTILE))
def test_text_from_elsewhere_is_text_whatever_is_in_it(text):
    front, body = parts(write_card(story(text)))
    assert set(front) == {"library_name", "pipeline_tag", "tags"}
    found = list(tokens(body))
    # the same headings, tables and code blocks as with a harmless name, and no HTML, link or image
    structure = [token.type for token in found if token.type not in ("text", "text_special")]
    assert structure == [kind for kind in PLAIN if kind not in ("text", "text_special")]


@settings(max_examples=10)
@given(st.text() | st.just(HOSTILE))
def test_metadata_stays_metadata(text):
    licence = {"license": "other", "license_name": text}
    front, _ = parts(write_card(story("org/model", licence=licence, commit="abc")))
    assert set(front) == {
        "base_model", "base_model_relation", "library_name", "license", "license_name",
        "pipeline_tag", "tags",
    }  # fmt: skip
    assert front["license"] == "other" and front["base_model"] == "org/model"
    # YAML knows other line ends than Python does
    assert front["license_name"].split() == text.split()
    assert front["base_model_relation"] == "finetune" and "caploc" in front["tags"]


def test_a_seed_is_a_name_and_no_quantity():
    told = story("name")
    for seed, said in ((20260101, "seed 20260101,"), (None, "seed not recorded,")):
        found = told.result.model_copy(update={"seed": seed, "cost": RunCost(rows=12345)})
        card = write_card(replace(told, result=found))
        assert said in card and "12,345 rows" in card


def test_the_hub_can_read_it():
    card = ModelCard(write_card(story("org/model", licence={"license": "mit"}, commit="abc")))
    assert card.data.license == "mit" and card.data.library_name == "transformers"


def test_a_licence_is_taken_from_a_card_and_nothing_else_is():
    assert read_licence("---\nlicense: mit\ntags: [a]\n---\nwords") == {"license": "mit"}
    for strange in ("license: [a, b]", ": : :", "- a", "license: 3", "license: &a [*a]"):
        assert read_licence(f"---\n{strange}\n---\n") == {}
    assert read_licence("") == read_licence("no metadata") == {}


def test_a_licence_that_is_not_stated_is_said_to_be_unknown():
    assert "state no licence that could be read" in write_card(story("org/model"))
