"""Exhibits on a page: whatever a text says is shown as text, and nothing comes from outside."""

from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from caploc.report import charts
from caploc.report.exhibits import LINK, Exhibit, Value, lay_out, write_exhibits

HOSTILE = (
    "</script><script>alert(1)</script>\"'><img src=x onerror=alert(2)>\x00\x1b\u202e\ud800&lt;"
)
SEEN = HOSTILE.replace("\x00", "␀").replace("\x1b", "␛").replace("\u202e", "⟨U+202E⟩")
SEEN = SEEN.replace("\ud800", "⟨U+D800⟩")
FETCHING = {"src", "srcset", "href", "data", "poster", "background", "action", "formaction"}


class Page(HTMLParser):
    """A page as a browser takes it apart: elements, and the text that is shown."""

    def __init__(self, path):
        super().__init__()
        self.elements, self.texts, self.inside = [], [], []
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self.inside.append(tag)

    def handle_endtag(self, tag):
        if tag in self.inside:
            while self.inside.pop() != tag:
                pass

    def handle_data(self, data):
        if not {"script", "style"} & set(self.inside):
            self.texts.append(data)

    def having(self, tag):
        """The attributes of all elements of a kind."""
        return [attributes for name, attributes in self.elements if name == tag]


def exhibit(text="plain", draw=None, rows=1):
    return Exhibit("x", text, (text, "b"), [(text, Value(0.5))] * rows, [text], draw)


def drawn():
    return charts.draw_matrix(["a"], ["b"], np.array([[0.5]]), label="share")


def written(folder, exhibits, text="plain"):
    return Page(write_exhibits(folder, text, text, [text], exhibits, text))


def test_hostile_text_is_text_wherever_it_stands(tmp_path):
    page = written(tmp_path, [exhibit(HOSTILE, drawn)], HOSTILE)
    plain = written(tmp_path / "plain", [exhibit("plain", drawn)])
    # no element more than on the page of a harmless text, and no attribute
    assert [tag for tag, _ in page.elements] == [tag for tag, _ in plain.elements]
    assert [set(each) for _, each in page.elements] == [set(each) for _, each in plain.elements]
    # headline, line, exhibit's title, its column, its row's name, its note, the command
    assert sum(SEEN in text for text in page.texts) >= 7
    assert any((each.get("aria-label") or "").startswith(SEEN) for each in page.having("div"))
    assert not set("\x00\x1b\u202e\ud800") & set(page.source)


@given(text=st.text(max_size=40))
def test_any_text_comes_back_as_it_is_shown(tmp_path_factory, text):
    folder = tmp_path_factory.mktemp("any")
    page = written(folder, [exhibit(text)])
    shown = lay_out(exhibit(text))
    # HTML knows no carriage return, and ours are drawn
    title = shown["title"]
    assert title == "" or any(title in each for each in page.texts)
    assert shown["rows"] == [[title, "0.500"]]


def test_nothing_is_loaded_from_elsewhere_and_figures_lie_inside(tmp_path):
    page = written(tmp_path, [exhibit("first", drawn), exhibit("second")])
    for _, attributes in page.elements:
        for name in FETCHING & set(attributes):
            assert attributes[name].startswith(("data:", "#"))
    assert not page.having("iframe") and not page.having("object")
    assert "@import" not in page.source and "url(http" not in page.source
    (policy,) = [
        each["content"]
        for each in page.having("meta")
        if each.get("http-equiv", "").lower() == "content-security-policy"
    ]
    assert policy.startswith("default-src 'none'") and "img-src data:" in policy
    assert len(page.having("svg")) == 2  # for wide and narrow pages; the second has no figure
    (figure,) = (each for each in page.having("div") if each.get("role") == "img")
    assert figure["aria-label"].startswith("first; ")


def test_every_exhibit_has_its_link_its_table_and_its_notes(tmp_path):
    long = "A title that is longer than any link may be, by far"
    page = written(tmp_path, [exhibit(long), exhibit("short", rows=3)])
    links = [each["href"] for each in page.having("a")]
    assert [link for link in links if link.startswith("#part-")] == ["#part-1", "#part-2"]
    assert {"part-1", "part-2"} <= {each.get("id") for each in page.having("section")}
    assert len(page.having("table")) == 2 and len(page.having("tr")) == 2 + 1 + 3
    section = lay_out(exhibit(long))
    assert section["title"] == long and len(section["short"]) <= LINK
    assert section["short"].endswith("…")


def test_a_table_without_rows_says_so(tmp_path):
    page = written(tmp_path, [exhibit("empty", rows=0)])
    assert "nothing found" in page.texts


def test_a_command_that_was_not_recorded_is_told(tmp_path):
    page = Page(write_exhibits(tmp_path, "t", "h", [], [], ""))
    assert "not recorded" in page.texts and "h" in page.texts


def test_the_folder_is_made_and_a_file_in_its_way_is_an_error(tmp_path):
    assert write_exhibits(tmp_path / "a" / "b", "t", "h", [], [], "c").is_file()
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError):
        write_exhibits(tmp_path / "file", "t", "h", [], [], "c")
