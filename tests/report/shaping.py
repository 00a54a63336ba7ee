"""What tests write as dictionaries, as commands read it from files."""

from caploc.contents import check_contents


def shaped(content, name="result.json"):
    """Read a file's content; nothing may be wrong with it."""
    found, wrong = check_contents(name, content)
    assert not wrong, wrong
    return found


def shaped_answers(answers):
    """Read the answers of a run."""
    return shaped(answers, "answers.json").root


def shaped_curve(curve):
    """Read the content of curve.json."""
    return shaped(curve, "curve.json")
