"""What a reader is told to do next."""

from shaping import shaped

from caploc.report.sentence import next_steps


def told(result):
    steps = next_steps(shaped(result), None, "runs/a")
    return " ".join(f"{step.why} {step.command}" for step in steps)


def test_a_set_is_not_told_that_its_ranking_is_unsure(sure):
    assert "The ranking is less sure" in told(sure)
    for goal in ("set", "specific"):
        sure["search"]["goal"] = goal
        assert "The ranking is less sure" not in told(sure)


def test_options_are_added_to_a_command_that_has_them(sure):
    sure["command"] = "caploc locate demo --task demo/addition"
    assert "add --budget 4000 and a new --out to the command below" in told(sure)
    sure["command"] = "caploc demo"
    assert "as `caploc locate` does with --budget 4000" in told(sure)
    assert "command below" not in told(sure)


def test_nothing_is_advised_that_was_done(sure):
    sure["top"] = []
    assert "--outcome logprob" in told(sure) and "--goal set" in told(sure)
    sure["task"]["outcome"], sure["search"]["goal"] = "logprob", "set"
    assert "--outcome logprob" not in told(sure) and "--goal set" not in told(sure)


def test_more_rows_are_not_advised_where_every_example_was_asked(sure):
    sure["search"]["stopped_by"] = "examples"
    assert "more rows cannot help" in told(sure) and "--budget" not in told(sure)


def test_a_set_that_leaves_what_was_hurt_alone_is_looked_for(sure):
    sure["model"]["name"], sure["command"] = "a model; rm x", "caploc locate"
    other = sure["validation"]["other_tasks"][0]
    other |= {"name": "words/plural", "change": {"outcome": -0.5, "verdict": "changed"}}
    wanted = (
        "caploc locate 'a model; rm x' --task demo/addition --goal specific --spare words/plural"
    )
    assert wanted in told(sure)
    sure["command"] = "caploc.locate(model, tokenizer, examples)"
    assert wanted not in told(sure) and "leaves words/plural alone" in told(sure)
    other["twin"] = True
    assert "--goal specific" not in told(sure)


def test_where_nothing_else_was_scored_that_is_advised(sure):
    sure["validation"]["other_tasks"] = []
    assert "caploc evaluate" in told(sure) and "--task OTHER-TASK" in told(sure)
