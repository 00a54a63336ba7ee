"""What tests write as dictionaries, as commands read it from files."""

from pathlib import Path

from caploc.contents import FORMS, check_contents


def shaped(content, name="result.json"):
    """Read a file's content, without the parts that are None."""
    if isinstance(content, dict):
        content = {part: value for part, value in content.items() if value is not None}
    return check_contents(Path(name), FORMS[name], content)


def shaped_curve(curve):
    """Read the content of curve.json."""
    return shaped(curve, "curve.json")
