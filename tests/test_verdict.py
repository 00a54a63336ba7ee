"""The verdict: one rule for each, from the record alone."""

import copy

import pytest

from caploc.contents import TaskScores
from caploc.naming import ZERO_SHOT
from caploc.report.card import (
    HEADINGS,
    OPEN,
    UNSTABLE,
    cells,
    headline,
    write_html,
    write_markdown,
    write_text,
)
from caploc.result import SCHEMA, Result, RowKind, RunCost, Said, Score, TaskComparison, Verdict
from caploc.tables import tell_losses
from caploc.verdict import EXAMPLES_ALONE, SENTENCES, first_said, make_card
from doubles import least_result

RESULT = least_result(
    task={"name": "words/antonym", "metric": "acc", "higher_is_better": True},
    method={"name": "scan"},
    grid={"layers": 2, "heads": [4, 4]},
    intact={"score": 0.6, "examples": 100},
    heads=[{"head": "L0H1", "layer": 0, "index": 1, "effect": -0.5}],
    top=["L0H1"],
    validation={
        "task": {"name": "words/antonym"},
        "controls": {"draws": 2, "scores": [0.55, 0.6], "mean": 0.575, "chosen": 0.1},
        "held_out": {"fresh": True, "examples": 60, "intact": 0.6, "knocked_out": 0.1},
        "other_tasks": [],
    },
)
CHANGES = {
    "lost": {"outcome": -0.5, "low": -0.6, "high": -0.4, "verdict": "changed"},
    "rises": {"outcome": 0.5, "low": 0.4, "high": 0.6, "verdict": "changed"},
    "kept": {"outcome": 0.0, "low": -0.01, "high": 0.01, "verdict": "unchanged", "margin": 0.03},
    "open": {"outcome": -0.01, "low": -0.1, "high": 0.08, "verdict": "open", "margin": 0.03},
    "powerless": {"outcome": 0.0, "low": 0.0, "high": 0.0, "verdict": "unchanged", "margin": 0.03},
    "hurt": {"outcome": -0.1, "low": -0.15, "high": -0.05, "verdict": "changed"},
}


def found(own="lost", others="", twins="", **changes):
    """A result whose task, other tasks and twins changed so."""
    content = copy.deepcopy(RESULT)
    content["validation"]["held_out"]["change"] = CHANGES[own]
    for kind, twin in ((others, False), (twins, True)):
        for number, change in enumerate(kind.split()):
            moved = CHANGES[change]
            before = 0.0 if change == "powerless" else 1.0
            scores = {"intact": {"score": before, "examples": 100}}
            scores["knocked_out"] = {"score": before + min(0.0, moved["outcome"])}
            name = "words/antonym_twin" if twin else f"words/other{number}"
            entry = {"name": name, "metric": "acc", "twin": twin, "change": moved, **scores}
            content["validation"]["other_tasks"].append(entry)
    for name, value in changes.items():
        content["validation"][name] = value
    return content


def card(content):
    return make_card(Result.model_validate(content))


def test_a_score_that_is_no_share_of_right_answers_may_be_low_and_has_something_to_lose():
    for metric, said in (("acc", Said.POWERLESS), ("mcc", Said.LOST), ("f1", Said.LOST)):
        content = found(others="lost")
        (other,) = content["validation"]["other_tasks"]
        other |= {"metric": metric, "intact": {"score": 0.01, "examples": 100}}
        other["change"] = CHANGES["lost"] | {"margin": 0.03}
        other["knocked_out"] = {"score": 0.0 if metric != "mcc" else -0.2}
        (row,) = [row for row in card(content).rows if row.kind is RowKind.OTHER_TASK]
        assert row.said is said


@pytest.mark.parametrize(
    ("content", "verdict"),
    [
        (found(others="kept"), Verdict.SPECIFIC),
        (found(others="kept rises"), Verdict.SPECIFIC),
        (found(others="kept", twins="lost"), Verdict.SPECIFIC),
        (found(others="open", twins="open"), Verdict.SPECIFIC),
        (found(others="powerless"), Verdict.NOT_CHECKED),
        (found(others="powerless kept", twins="powerless"), Verdict.SPECIFIC),
        (found(others="powerless lost lost"), Verdict.NEEDED_BY_EVERYTHING),
        (found(others="kept lost"), Verdict.SHARED),
        (found(others="lost"), Verdict.SHARED),  # a single one says nothing of every one
        (found(others="hurt hurt"), Verdict.SHARED),  # much less than the task
        (found(others="lost lost"), Verdict.NEEDED_BY_EVERYTHING),
        (found(others="lost lost lost lost kept"), Verdict.NEEDED_BY_EVERYTHING),
        (found(others="lost lost lost kept kept"), Verdict.SHARED),
        (found(others="kept", twins="kept"), Verdict.PROMPT_BOUND),
        (found(others="lost lost", twins="kept"), Verdict.PROMPT_BOUND),
        (found(own="open", others="kept"), Verdict.LIKE_RANDOM),
        (found(own="rises", others="kept"), Verdict.LIKE_RANDOM),
        (found(), Verdict.NOT_CHECKED),
        (found(others="kept", controls=None), Verdict.NOT_CHECKED),
        (found(others="kept", held_out=None), Verdict.NOT_CHECKED),
        (found(others="kept") | {"top": []}, Verdict.NOT_FOUND),
        (
            found(others="lost") | {"search": {"universal": ["L0H1"]}},
            Verdict.NEEDED_BY_EVERYTHING,
        ),
    ],
)
def test_each_verdict_has_its_rule(content, verdict):
    assert card(content).verdict is verdict


def test_where_nothing_is_named_the_heads_that_other_tasks_need_too_are():
    content = found(others="kept") | {"top": [], "search": {"universal": ["L0H1", "L1H2"]}}
    assert card(content).heading == (
        "Only heads that break another task too are needed for words/antonym: L0H1 and L1H2"
    )


def test_a_random_head_that_does_as_much_makes_it_no_finding():
    content = found(others="kept")
    content["validation"]["controls"]["scores"] = [0.1, *[0.6] * 19]
    assert card(content).verdict is Verdict.SPECIFIC  # one of twenty
    content["validation"]["controls"]["scores"] = [0.1, *[0.6] * 18]
    assert card(content).verdict is Verdict.LIKE_RANDOM


def test_examples_of_the_search_check_nothing():
    content = found(others="kept")
    content["validation"]["held_out"]["fresh"] = False
    assert card(content).verdict is Verdict.NOT_CHECKED and card(content).held_out == 0


def test_few_examples_and_open_rows_are_told():
    assert not card(found(others="kept")).few_examples
    assert card(found(others="open")).few_examples  # which may be lost as well
    assert not card(found(others="lost open")).few_examples  # the verdict stands either way
    content = found(others="kept")
    content["validation"]["held_out"]["examples"] = 20
    assert card(content).few_examples


def test_what_a_reader_must_know_beside_the_table_is_noted():
    content = found(others="kept")
    assert card(content).notes == []
    content["validation"] |= {"unconfirmed": ["L1H2"], "costly": ["L1H3"]}
    content["task"]["copies"] = 40
    content["model"]["uncovered"] = ["model.layers.0.mixer"]
    notes = card(content).notes
    for said in ("L1H2", "L1H3", "40 examples", "model.layers.0.mixer"):
        assert sum(said in note for note in notes) == 1
        assert said in write_text(card(content)) and said in write_html(card(content))


def test_heads_left_out_for_breaking_another_task_are_told():
    content = found(others="kept") | {"search": {"universal": ["L0H1", "L3H2"]}}
    assert any(note.endswith("breaks another task too: L3H2.") for note in card(content).notes)
    assert not any("another task" in note for note in card(found(others="kept")).notes)


def test_a_finding_that_holds_with_examples_alone_says_so():
    content = found(others="kept", twins="kept")
    assert card(content).heading.endswith("but not in every wording")
    for each in content["validation"]["other_tasks"]:
        if each["twin"]:
            each["name"] = f"words/antonym{ZERO_SHOT}"
    one = card(content)
    assert one.verdict is Verdict.PROMPT_BOUND
    assert one.heading.endswith("where the prompt gives examples, not without them")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("log-probability -0.60 (its first choice)", "Europe"),
        ("log-probability -1.75 (its first choice is ' Asia')", " Asia"),
        ("log-probability -1.75", "another answer"),
        ("Africa", "Africa"),
    ],
)
def test_of_an_answer_read_off_log_probabilities_the_first_choice_is_shown(answer, said):
    assert first_said(answer, "Europe") == said


def test_where_nothing_is_found_the_card_says_what_to_try():
    nothing = found() | {"top": []}
    notes = {
        goal: " ".join(card(nothing | {"method": {"name": "scan", "goal": goal}}).notes)
        for goal in ("heads", "set")
    }
    assert all("More examples" in text for text in notes.values())
    assert "--goal set" in notes["heads"] and "--goal set" not in notes["set"]
    assert not any("More examples" in note for note in card(found()).notes)
    hopeless = found() | {"top": [], "heads": [RESULT["heads"][0] | {"effect": None}]}
    assert not any("More examples" in note for note in card(hopeless).notes)  # none was tried


def test_a_shared_finding_counts_the_tasks_that_fall():
    assert card(found(others="kept lost")).heading.endswith("and for 1 of 2 other tasks too")


def test_heads_that_resampled_examples_name_otherwise_are_unstable_and_that_is_told():
    for stability, unstable in ((0.0, True), (0.4, True), (0.9, False), (None, False)):
        one = card(found() | {"search": {"stability": stability}})
        assert one.unstable is unstable and (UNSTABLE in write_text(one)) is unstable


def test_an_open_row_is_explained_where_there_is_one():
    assert OPEN in write_text(card(found(others="open")))
    assert OPEN not in write_text(card(found(others="kept")))


WORDS = {"heads": "L9H3", "kind": "heads", "task": "x", "are": "is", "them": "it"}
WORDS |= {"lost": "1", "others": "2"}


def test_no_sentence_has_more_than_twenty_words():
    assert set(SENTENCES) == set(Verdict)
    for sentence in (*SENTENCES.values(), EXAMPLES_ALONE):
        assert len(sentence.format_map(WORDS).split()) <= 20


def test_what_may_rise_and_surely_falls_by_less_than_the_margin_is_kept():
    may_rise = {"outcome": 0.01, "low": -0.02, "high": 0.04, "verdict": "open", "margin": 0.03}
    content = found(others="open")
    content["validation"]["other_tasks"][0]["change"] = may_rise
    assert [row.said for row in card(content).rows] == [Said.LOST, Said.KEPT, Said.CONTROL]


def test_a_rise_is_no_loss_and_random_heads_are_only_compared_with():
    rows = card(found(others="rises")).rows
    assert [row.said for row in rows] == [Said.LOST, Said.KEPT, Said.CONTROL]
    assert [row.without for row in rows] == [0.1, 1.0, 0.575]


def test_without_heads_only_intact_scores_are_shown():
    rows = card(found(others="kept") | {"top": []}).rows
    assert [cells(row)[1:] for row in rows] == [
        ("60\u00a0%", "–", "", "", ""),
        ("100\u00a0%", "–", "", "", ""),
    ]


def test_text_markdown_and_html_hold_the_same_cells():
    one = card(found(others="kept", twins="lost"))
    text, markdown, html = write_text(one, "report.html"), write_markdown(one), write_html(one)
    for row in one.rows:
        for cell in cells(row):
            assert cell in text and cell in html.replace("to\u00a0", "to ")
            assert cell.replace("\u00a0", " ") in markdown.replace("\\", "")
    assert text.startswith("SPECIFIC   L0H1 is needed") and text.endswith("Report: report.html")
    assert markdown.startswith("**SPECIFIC** L0H1 is needed") and "<table>" in html
    assert all(heading in text for heading in HEADINGS)
    assert headline(one) == f"SPECIFIC: {one.heading}"


def test_nothing_in_a_name_is_markup():
    content = found(others="kept")
    content["task"]["name"] = content["validation"]["other_tasks"][0]["name"] = "<b>|[x](y)"
    one = card(content)
    assert "<b>" not in write_html(one) and "[x](y)" not in write_markdown(one)


def test_of_several_heads_the_strongest_is_shown_alone_on_the_same_examples():
    def member(head, effect):
        change = {"effect": effect, "low": effect - 0.1, "high": effect + 0.1}
        return {"head": head, "alone": change, "within": change}

    members = {"heads": [member("L0H1", -0.3), member("L0H2", -0.45)]}
    heads = [*RESULT["heads"], {"head": "L0H2", "layer": 0, "index": 2, "effect": -0.4}]
    content = found(others="kept", members=members) | {"heads": heads, "top": ["L0H1", "L0H2"]}
    row = card(content).rows[1]
    assert (row.label, row.said, row.intact) == ("words/antonym, L0H2 alone", Said.LOST, 0.6)
    assert row.without == pytest.approx(0.15) and row.examples == 60
    assert card(content).verdict is Verdict.SPECIFIC
    content["task"]["higher_is_better"] = False
    assert card(content).rows[1].without == 1.0  # 60 % of errors and 45 more


def test_a_head_whose_own_part_is_open_is_told():
    sure, unsure = ({"effect": -0.3, "low": -0.5, "high": high} for high in (-0.1, 0.1))
    heads = [
        {"head": "L0H1", "alone": unsure, "within": sure},
        {"head": "L0H2", "alone": unsure, "within": unsure},
    ]
    (note,) = card(found(others="kept", members={"heads": heads})).notes
    assert "L0H2" in note and "L0H1" not in note


def test_ordinary_text_is_told_in_nats():
    surprise = {"intact": 3.0, "knocked_out": 3.25}
    text = {"tokens": 400, "nats": 0.125, "surprise": surprise}
    one = card(found(others="kept", text=text))
    row = next(row for row in one.rows if row.kind is RowKind.TEXT)
    assert cells(row) == (
        "ordinary text, nats a token (KL 0.12)", "3.00", "3.25", "+0.250", "", ""
    )  # fmt: skip
    assert one.verdict is Verdict.SPECIFIC


def test_scores_that_are_no_shares_keep_their_unit():
    content = found(others="kept")
    content["task"]["metric"] = "word_perplexity"
    content["task"]["higher_is_better"] = False
    content["validation"]["held_out"] |= {"intact": 12.0, "knocked_out": 40.5}
    first = card(content).rows[0]
    assert (first.unit, first.change_unit) == ("", "nats")
    assert cells(first)[1:4] == ("12.0", "40.5", "−0.500 nats")


@pytest.mark.parametrize(("score", "told"), [(0.0, True), (0.1, False)])
def test_a_task_of_which_no_answer_is_right_is_told_so(score, told):
    intact = Score(score=score, stderr=0.0, examples=20)
    row = TaskComparison(name="own", metric="acc", higher_is_better=True, intact=intact)
    scores = TaskScores(
        schema=SCHEMA, model="demo", heads=[], tasks=[row], engines=[], cost=RunCost(), versions={}
    )
    assert ("own: no answer is right to begin with" in " ".join(tell_losses(scores))) is told
