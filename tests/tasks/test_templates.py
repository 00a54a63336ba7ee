"""Templates of tasks: the same text as plain Jinja gives, and the same mistakes."""

from datetime import date, datetime, time
from decimal import Decimal

import pytest
from jinja2 import Environment, StrictUndefined
from jinja2.exceptions import SecurityError, TemplateNotFound, TemplateSyntaxError, UndefinedError
from lm_eval import utils

from caploc.tasks import catalog  # noqa: F401  (confines lm-eval's templates)


@pytest.mark.parametrize(
    "source",
    [
        "{{ q }} = {{ a|upper }}\n",
        "{% for c in choices %}{{ loop.index }} {{ c }}{{ '' if loop.last else ', ' }}{% endfor %}",
        "{{ choices.index(q) if q in choices else choices|length }}",
        "{{ day.year }} {{ day.isoformat() }} {{ at }} {{ hour.hour }} {{ price + 1 }} {{ raw }}",
        "{{ nested['x'][0].y }} {{ none }} {{ number / 3 }} {{ nan }}",
        "{{ a|regex_replace('b', 'c') }}{% set n = namespace(x=1) %}{% set n.x = 2 %}{{ n.x }}",
        "no names at all",
    ],
)
def test_they_render_as_plain_jinja_does(source):
    values = {
        "q": "\u00fc\ud800 \x00\n", "a": "b", "choices": ["x", "y"], "none": None, "number": 2**70,
        "day": date(2020, 2, 29), "at": datetime(2020, 1, 2, 3), "hour": time(4), "raw": b"\xff",
        "price": Decimal("1.10"), "nested": {"x": [{"y": 1.5}]}, "nan": float("nan"),
    }  # fmt: skip
    plain = Environment(undefined=StrictUndefined, keep_trailing_newline=True)
    plain.filters["regex_replace"] = utils.regex_replace
    assert utils.apply_template(source, values) == plain.from_string(source).render(values)


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("{{ x }}", UndefinedError),
        ("{% if %}", TemplateSyntaxError),
        ("{{ 1|nosuch }}", TemplateSyntaxError),
        ("{% include 'x' %}", TemplateNotFound),
        ("{{ ''.__class__.__mro__ }}", SecurityError),
    ],
)
def test_mistakes_are_jinjas_own(source, error):
    with pytest.raises(error):
        utils.apply_template(source, {})
