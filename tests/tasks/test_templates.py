"""The renderer of templates: the same text as plain Jinja, and an end to every template."""

import os
import resource
import threading
from datetime import date, datetime, time
from decimal import Decimal
from time import monotonic

import pytest
from jinja2 import Environment, StrictUndefined
from jinja2.exceptions import SecurityError, TemplateNotFound, TemplateSyntaxError, UndefinedError

from caploc.errors import BadData
from caploc.tasks import templates
from caploc.tasks.templates import Confined

LOOPS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"


@pytest.fixture
def confined(monkeypatch):
    monkeypatch.setattr(templates, "SECONDS", 0.5)
    made = Confined()
    yield made
    if made.renderer:
        made.renderer.end()


@pytest.mark.parametrize(
    "source",
    [
        "{{ q }} = {{ a|upper }}\n",
        "{% for c in choices %}{{ loop.index }} {{ c }}{{ '' if loop.last else ', ' }}{% endfor %}",
        "{{ choices.index(q) if q in choices else choices|length }}",
        "{{ day.year }} {{ day.isoformat() }} {{ at }} {{ hour.hour }} {{ price + 1 }} {{ raw }}",
        "{{ nested['x'][0].y }} {{ none }} {{ number / 3 }} {{ nan }}",
        "no names at all",
    ],
)
def test_it_renders_what_jinja_does(confined, source):
    values = {
        "q": "ü\ud800 \x00\n", "a": "b", "choices": ["x", "y"], "none": None, "number": 2**70,
        "day": date(2020, 2, 29), "at": datetime(2020, 1, 2, 3), "hour": time(4), "raw": b"\xff",
        "price": Decimal("1.10"), "nested": {"x": [{"y": 1.5}]}, "nan": float("nan"),
    }  # fmt: skip
    plain = Environment(undefined=StrictUndefined, keep_trailing_newline=True)
    assert confined.from_string(source).render(**values) == plain.from_string(source).render(values)


def test_a_text_is_rendered_once_and_a_mistake_or_other_values_anew(confined, monkeypatch):
    asked, ask = [], templates.Renderer.ask
    monkeypatch.setattr(
        templates.Renderer, "ask", lambda self, line: asked.append(line) or ask(self, line)
    )
    template = confined.from_string("{{ q }}={{ a }}")
    assert [template.render(q=q, a=1, unread=q) for q in "xyx"] == ["x=1", "y=1", "x=1"]
    assert len(asked) == 2
    for _ in range(2):
        with pytest.raises(UndefinedError):
            template.render(q="x")
    assert len(asked) == 4
    monkeypatch.setattr(templates, "KEPT", 2)
    for q in "zxyz":
        assert template.render(q=q, a=1) == f"{q}=1"
        assert len(confined.kept) <= 2


def test_mistakes_are_jinjas_own(confined):
    for source, error in (
        ("{{ x }}", UndefinedError), ("{% if %}", TemplateSyntaxError),
        ("{{ 1|nosuch }}", TemplateSyntaxError), ("{{ 1 is nosuch }}", TemplateSyntaxError),
        ("{% include 'x' %}", TemplateNotFound),
    ):  # fmt: skip
        with pytest.raises(error):
            confined.from_string(source).render()
    with pytest.raises(SecurityError):
        confined.from_string("{{ ''.__class__.__mro__ }}").render()


@pytest.mark.parametrize(
    "source",
    [LOOPS, "{{ 'a' * 10**10 }}", "{{ ('a' * 40)|regex_replace('(a+)+b', '') }}", "x" * 300_000],
)
def test_every_template_ends(confined, source):
    start = monotonic()
    with pytest.raises(BadData, match="A template"):
        confined.from_string(source).render()
    assert monotonic() - start < 30
    assert confined.from_string("{{ q }}").render(q="next") == "next"


def test_it_ends_in_a_thread_too(confined):
    said = []

    def render():
        with pytest.raises(BadData) as error:
            confined.from_string(LOOPS).render()
        said.append(str(error.value))

    thread = threading.Thread(target=render)
    thread.start()
    thread.join(60)
    assert "takes more than 0.5 seconds" in said[0]


def test_a_renderer_that_says_nothing_is_ended(confined, monkeypatch):
    monkeypatch.setattr(templates, "WAIT", 0.5)
    monkeypatch.setattr(templates, "SECONDS", 600.0)
    start = monotonic()
    with pytest.raises(BadData, match="A template takes more"):
        confined.from_string(LOOPS).render()
    assert monotonic() - start < 30


def test_it_renders_where_many_files_are_open(confined):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        assert confined.from_string("{{ q }}").render(q="text") == "text"
    finally:
        for each in opened:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_value_that_has_no_text_of_its_own_makes_no_prompt(confined):
    template = confined.from_string("{{ q }}")
    with pytest.raises(BadData, match="it reads a value of the type object; name other columns"):
        template.render(q=object())
    assert template.render(q="text", other=object()) == "text"
