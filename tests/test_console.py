"""Where progress and errors are drawn."""

import io

import pytest
import rich.console

from caploc import console


@pytest.mark.parametrize("installed", [True, False])
def test_a_notebook_without_ipywidgets_gets_plain_text_and_no_warning(installed, monkeypatch):
    monkeypatch.setattr(rich.console, "_is_jupyter", lambda: True)
    spec = object() if installed else None
    monkeypatch.setattr(console, "find_spec", {"ipywidgets": spec}.get)
    drawing = console.standard_error()
    assert drawing.is_jupyter == installed
    if not installed:
        drawing.file = io.StringIO()
        monkeypatch.setattr(console, "stderr", drawing)
        with console.bars(quiet=False) as shown:
            shown.start("Intact", 3)
            shown.advance(3, 30)
        assert "Intact" in drawing.file.getvalue()
