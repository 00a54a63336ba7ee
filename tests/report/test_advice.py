"""What a reader is told to do next."""

from shaping import shaped

from caploc.report.advice import next_steps


def told(result):
    steps = next_steps(shaped(result), None, "runs/a")
    return " ".join(f"{step.why} {step.command}" for step in steps)


def test_where_nothing_was_searched_no_rows_are_advised(sure):
    sure["top"], sure["search"] = [], {}
    for entry in sure["heads"]:
        entry["effect"] = None
    assert "Nothing was searched" in told(sure) and "--budget" not in told(sure)


def test_nothing_is_advised_that_was_done(sure):
    sure["top"] = []
    assert "--outcome logprob" in told(sure) and "--goal set" in told(sure)
    sure["task"]["outcome"], sure["search"]["goal"] = "logprob", "set"
    assert "--outcome logprob" not in told(sure) and "--goal set" not in told(sure)


def test_interactions_are_not_advised_once_they_were_looked_at(sure):
    sure["validation"]["held_out"]["together"] = {"ratio": 0.5, "low": 0.4, "high": 0.6}
    both = (next_steps(shaped(sure), None, "run", together=each) for each in (False, True))
    assert ["caploc interactions" in str(steps) for steps in both] == [True, False]


def test_a_set_that_leaves_what_was_hurt_alone_is_looked_for(sure):
    sure["model"]["name"], sure["command"] = "a model; rm x", "caploc locate"
    other = sure["validation"]["other_tasks"][0]
    other |= {"name": "words/plural", "change": {"outcome": -0.5, "verdict": "changed"}}
    wanted = (
        "caploc locate 'a model; rm x' --task demo/addition --goal specific --spare words/plural "
        "--quick --out runs/a-specific"
    )
    assert wanted in told(sure)
    sure["command"] = "caploc.locate('demo', 'demo/addition', budget=900)"
    assert wanted in told(sure)
    more = "goal='specific', spare=['words/plural'], out='runs/a-specific')"
    sure["command"] = "caploc.locate(model, tokenizer, examples)"
    assert wanted not in told(sure)
    assert f"caploc.locate(model, tokenizer, examples, {more}" in told(sure)
    sure["command"] = "caploc.locate(model, tokenizer, examples, goal='set', out='a')"
    assert f"caploc.locate(..., {more}" in told(sure)
    other["twin"] = True
    assert "--goal specific" not in told(sure)


def test_where_nothing_else_was_scored_that_is_advised(sure):
    sure["validation"]["other_tasks"] = []
    assert "caploc evaluate" in told(sure) and "--task OTHER-TASK" in told(sure)


def test_a_part_that_costs_other_tasks_less_comes_first(result):
    def effect(value):
        return {"effect": value, "low": value - 0.1, "high": value + 0.1}

    part = {
        "heads": ["L1H3"],
        "damage": effect(-0.4),
        "breaks": True,
        "within": False,
        "keeps": 0.05,
        "twins": [],
        "spared": [{"task": "demo/sentences", "effect": effect(-0.01), "examples": 40}],
    }
    result["validation"]["frontier"] = {"price": 0.02, "examples": 40, "sets": [part]}
    change = {"outcome": -0.3, "low": -0.4, "high": -0.2, "verdict": "changed"}
    result["validation"]["other_tasks"][0]["change"] = change
    first, *_ = next_steps(shaped(result), None, "runs/a")
    assert first.why.replace("\u00a0", " ").startswith(
        "L1H3 alone takes −40.0 points (−50.0 to −30.0) of the task, and at worst −1.0 points "
        "elsewhere (demo/sentences), where all named heads take −30.0 points (demo/sentences)."
    )
    assert first.command == (
        "caploc evaluate demo --heads L1H3 --task demo/addition,demo/sentences"
    )
    change["outcome"] = -0.01  # all of them cost no more
    assert "alone takes" not in next_steps(shaped(result), None, "runs/a")[0].why
