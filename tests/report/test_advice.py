"""What a reader is told to do next."""

from shaping import shaped

from caploc.report.sentence import next_steps


def told(result):
    return " ".join(f"{step.why} {step.command}" for step in next_steps(shaped(result), None))


def test_a_set_is_not_told_that_its_ranking_is_unsure(sure):
    assert "The ranking is less sure" in told(sure)
    sure["search"]["goal"] = "set"
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
