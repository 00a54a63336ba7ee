"""Templates of tasks are confined, and give the same text as plain Jinja."""

from datetime import date, datetime
from decimal import Decimal

from jinja2 import Environment, StrictUndefined
from lm_eval import utils

from caploc.tasks import catalog  # noqa: F401  (confines lm-eval's templates)


def test_they_render_as_plain_jinja_does():
    source = (
        "{{ q }} {{ day.isoformat() }} {{ at }} {{ price + 1 }} {{ raw }} {{ nested['x'][0].y }}"
        "{{ choices.index(q) if q in choices else choices|length }} {{ none }}"
        "{{ a|regex_replace('b', 'c') }}{% set n = namespace(x=1) %}{% set n.x = 2 %}{{ n.x }}\n"
    )
    values = {
        "q": "\u00fc\ud800 \x00\n", "a": "b", "choices": ["x", "y"], "none": None, "raw": b"\xff",
        "day": date(2020, 2, 29), "at": datetime(2020, 1, 2, 3), "price": Decimal("1.10"),
        "nested": {"x": [{"y": 1.5}]},
    }  # fmt: skip
    plain = Environment(undefined=StrictUndefined, keep_trailing_newline=True)
    plain.filters["regex_replace"] = utils.regex_replace
    assert utils.apply_template(source, values) == plain.from_string(source).render(values)
