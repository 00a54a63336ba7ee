"""Where progress and errors are drawn."""

import io
import re
from dataclasses import dataclass, field

import pytest
import rich.console

from caploc import console
from caploc.progress import InTurn, Silent, Tally, format_clock, lead, tell_once


@pytest.mark.parametrize("installed", [True, False])
def test_a_notebook_without_ipywidgets_gets_plain_text_and_no_warning(installed, monkeypatch):
    monkeypatch.setattr(rich.console, "_is_jupyter", lambda: True)
    spec = object() if installed else None
    monkeypatch.setattr(console, "find_spec", {"ipywidgets": spec}.get)
    drawing = console.stderr_console()
    assert drawing.is_jupyter == installed
    if not installed:
        drawing.file = io.StringIO()
        monkeypatch.setattr(console, "stderr", drawing)
        with console.progress_bars(quiet=False) as shown:
            shown.start("Intact", 3)
            shown.advance(3, 30)
            shown.write()
        assert "Intact" in drawing.file.getvalue()


@pytest.fixture
def log(monkeypatch):
    """What is written to standard error where it is a file."""
    drawing = console.stderr_console()
    drawing.file = io.StringIO()
    monkeypatch.setattr(console, "stderr", drawing)
    return drawing.file


def test_a_file_gets_a_line_a_minute_and_one_at_the_end(log, monkeypatch):
    now = 0.0
    monkeypatch.setattr(console.time, "monotonic", lambda: now)
    with console.progress_bars(quiet=False) as shown:
        shown.start("words", 2000)
        shown.advance(500, 0)
        for _ in range(130):  # a row a second
            now += 1
            shown.advance(1, 3.0)
    lines = log.getvalue().splitlines()
    assert lines[0] == (
        "caploc: 0:01:00 words, 560 of 2,000, 1.0 rows/s, 0:24:00 left (of this stage)"
    )
    assert lines[1].startswith("caploc: 0:02:00 words, 620 of 2,000, ")
    assert lines[2:] == ["caploc: 0:02:10 done, 130 rows measured"]


def test_a_measurement_that_fails_has_no_last_line(log):
    with pytest.raises(RuntimeError), console.progress_bars(quiet=False):
        raise RuntimeError
    assert log.getvalue() == ""


def test_a_command_says_at_once_that_it_has_begun(log):
    console.say_begun(quiet=True)
    assert not log.getvalue()
    console.say_begun(quiet=False)
    assert log.getvalue() == "caploc: getting ready ...\n"


def test_rows_that_were_stored_do_not_count_as_speed():
    lines = console.Lines()
    lines.start("masks", 1000)
    lines.advance(1000, 0)
    assert lines.line().endswith("1,000 of 1,000")


def test_a_stage_in_a_log_cannot_steer_the_terminal(log):
    with console.progress_bars(quiet=False) as shown:
        shown.start("\x1b[31m[red]evil[/red]", 3)
        shown.write()
    assert "\x1b" not in log.getvalue() and "[red]evil[/red]" in log.getvalue()


def test_stages_are_told_without_the_folders_of_their_tasks():
    assert console.without_folders("study 1 of 3, a: intact") == "study 1 of 3, a: intact"
    assert console.without_folders("/runs/a b/sums.yaml, curve") == "sums.yaml, curve"
    assert console.without_folders("study: whole sets, /runs/sums.yaml") == (
        "study: whole sets, sums.yaml"
    )
    assert console.without_folders("words/past, knocked out") == "words/past, knocked out"


def test_no_time_left_is_never_told_while_something_is_done(monkeypatch):
    now = 0.0
    monkeypatch.setattr(console.time, "monotonic", lambda: now)
    lines = console.Lines()
    lines.expect(100)
    lines.start("words", 150)
    now = 50.0
    lines.advance(100, 400.0)
    assert lines.line().endswith("100 of at most 100 rows in all, nearly done")
    lines.advance(50, 400.0)
    assert lines.line().endswith("150 of at most 100 rows in all, nearly done")


def test_a_long_time_left_is_told_in_hours():
    assert format_clock(3723.4) == "1:02:03"


def test_a_terminal_is_told_that_a_run_is_getting_ready_until_its_first_stage(monkeypatch):
    drawing = rich.console.Console(file=io.StringIO(), force_terminal=True, width=120)
    monkeypatch.setattr(console, "stderr", drawing)
    with console.progress_bars(quiet=False) as shown:
        shown.progress.refresh()
        assert console.READY in drawing.file.getvalue()
        shown.start("masks", 3)
        shown.advance(2, 9.0)
        shown.start("words", 8)
        (bar,) = shown.progress.tasks  # one, of the stage that is under way
        assert (bar.description, bar.completed, bar.total) == ("words", 0, 8)


def test_a_log_counts_the_whole_over_all_stages(log, monkeypatch):
    monkeypatch.setattr(console, "LINE_SECONDS", 60)
    with console.progress_bars(quiet=False) as shown:
        shown.expect(400)
        shown.tell("so far: [red]L0H1")
        shown.start("/runs/a b/task.yaml, intact", 100)
        shown.advance(100, 0)  # stored before
        shown.start("words", 200)
        shown.advance(150, 900.0)
        shown.write()
        shown.expect(50)
        shown.write()
    lines = log.getvalue().splitlines()
    assert lines[0] == "caploc: so far: [red]L0H1"
    assert re.search(
        r"words, 150 of 200, .*, 250 of at most 400 rows in all, nearly done$", lines[1]
    )
    assert ", 250 of at most 300 rows in all, " in lines[2]
    assert lines[3].endswith("done, 150 rows measured")


def test_the_time_left_is_told_by_the_rows_that_came(monkeypatch):
    now = 0.0
    monkeypatch.setattr(console.time, "monotonic", lambda: now)
    lines = console.Lines()
    lines.expect(1000)
    now = 60.0  # the model is loaded meanwhile
    lines.start("words", 300)
    lines.advance(200, 0)  # stored before, in no time
    lines.advance(19, 1)
    now = 90.0
    assert lines.line().endswith("219 of at most 1,000 rows in all")  # too few to go by
    lines.advance(81, 1)
    assert lines.line().endswith("300 of at most 1,000 rows in all, at most 0:03:30 left")
    lines.expect(1050)
    assert lines.line().endswith(
        "300 of at most 1,350 rows in all, at most 0:05:15 left: more rows"
    )
    now = 120.0
    assert lines.line().endswith("at most 0:10:30 left: rows take longer now")
    lines.advance(500, 1)
    assert lines.line().endswith(" left") and "left:" not in lines.line()


def test_a_time_left_that_rises_little_by_little_has_its_reason_too(monkeypatch):
    now = 0.0
    monkeypatch.setattr(console.time, "monotonic", lambda: now)
    tally = Tally(1000)
    now = 30.0
    tally.add(100, 1)
    told = []
    for _ in range(300):  # as a terminal is drawn: ten times a second, and no row comes
        told.append((tally.left, tally.tell_left()))
        now += 0.1
    assert [left for left, _ in told] == sorted(left for left, _ in told)
    for left, text in told:
        assert text.endswith(": rows take longer now") is (left > 1.05 * told[0][0])
    tally.add(300, 1)
    assert tally.tell_left() == "0:01:30 left"


def test_an_export_or_the_like_tells_of_no_rows(log):
    with console.progress_bars(quiet=False) as shown:
        shown.start("writing", 0)
    assert log.getvalue().splitlines()[-1].endswith(" done")


def test_studies_in_turn_take_those_to_come_to_be_as_large(log):
    lines = console.Lines()
    first, second = (InTurn(lines, name, place, 3) for place, name in ((1, "a"), (2, "b")))
    first.expect(100)
    assert lines.whole.rows == 300
    first.start("intact", 10)
    assert "study 1 of 3, a: intact, " in lines.line()
    first.advance(40, 1)
    first.expect(20)  # its search ended early
    assert lines.whole.rows == 40 + 20 + 200
    first.advance(20, 1)
    second.expect(300)
    assert lines.whole.rows == 60 + 600
    second.tell("so far: L0H1")
    assert "study 2 of 3, so far: L0H1" in log.getvalue()


def test_what_every_study_of_a_run_would_say_is_said_once(log):
    for _ in range(2):  # of two runs each says it
        lines = console.Lines()
        for place in (1, 2, 3):
            study = InTurn(console.Interruptible(lines), f"study{place}", place, 3)
            tell_once(study, "Engine plain answers.")
            tell_once(study, f"{place} rows")
            tell_once(Silent(), "nobody hears")
    assert log.getvalue().count("Engine plain") == 2
    assert log.getvalue().count("study 1 of 3, Engine plain answers.") == 2
    assert log.getvalue().count(" rows") == 6


def test_a_terminal_has_one_bar_for_the_whole_once_its_rows_are_known(monkeypatch):
    drawing = rich.console.Console(file=io.StringIO(), force_terminal=True, width=120)
    monkeypatch.setattr(console, "stderr", drawing)
    with console.progress_bars(quiet=False) as shown:
        shown.expect(300)
        shown.start("intact", 100)
        shown.advance(100, 0)
        shown.start("/runs/task.yaml, knocked out", 200)
        shown.advance(50, 900.0)
        shown.tell("so far: L0H1")
        (bar,) = shown.progress.tasks
        assert (bar.description, bar.completed, bar.total) == ("task.yaml, knocked out", 150, 300)
        shown.expect(50)
        assert bar.total == 200
    assert "so far: L0H1" in drawing.file.getvalue()


def test_the_leading_heads_stand_below_the_bar_and_break_between_names(monkeypatch):
    drawing = rich.console.Console(file=io.StringIO(), force_terminal=True, width=60)
    monkeypatch.setattr(console, "stderr", drawing)
    heads = [f"L{layer}H{layer}" for layer in range(10, 18)]
    with console.progress_bars(quiet=False) as shown:
        shown.expect(300)
        shown.start("scan", 100)
        lead(InTurn(shown, "past", 1, 2), heads)
        *_, last = shown.progress.get_renderables()
        lines = [line.plain for line in last.wrap(drawing, 60)]
    assert len(lines) == 2 and " ".join(" ".join(lines).split()).endswith(" ".join(heads))
    assert all(part in ["", *heads] for part in lines[1].split(" "))


def test_a_log_says_which_heads_lead_until_the_end(log):
    with console.progress_bars(quiet=False) as shown:
        shown.start("scan", 10)
        lead(shown, ["L9H3", "L2H0"])
        shown.write()
    first, last = log.getvalue().splitlines()
    assert first.endswith("scan, 0 of 10, first in the scan so far: L9H3 L2H0")
    assert "L9H3" not in last


@dataclass
class Told(Silent):
    """Whoever watches need not be hashable, as no dataclass is."""

    lines: list[str] = field(default_factory=list)

    def expect(self, rows): ...
    def lead(self, heads): ...

    def tell(self, text):
        self.lines.append(text)


def test_every_watcher_is_told_once_whatever_it_is():
    for _ in range(2):
        watcher = Told()
        for _ in range(2):
            tell_once(watcher, "a line")
        assert watcher.lines == ["a line"]
