"""Where progress and errors are drawn."""

import io

import pytest
import rich.console

from caploc import console
from caploc.progress import InTurn, format_clock


@pytest.mark.parametrize("installed", [True, False])
def test_a_notebook_without_ipywidgets_gets_plain_text_and_no_warning(installed, monkeypatch):
    monkeypatch.setattr(rich.console, "_is_jupyter", lambda: True)
    spec = object() if installed else None
    monkeypatch.setattr(console, "find_spec", {"ipywidgets": spec}.get)
    assert console.stderr_console().is_jupyter == installed


@pytest.fixture
def log(monkeypatch):
    """What is written to standard error where it is a file."""
    drawing = console.stderr_console()
    drawing.file = io.StringIO()
    monkeypatch.setattr(console, "stderr", drawing)
    return drawing.file


@pytest.fixture
def clock(monkeypatch):
    """The time that passes: its first item, in seconds."""
    now = [0.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: now[0])
    return now


def test_a_file_gets_a_line_a_minute_and_one_at_the_end(log, clock):
    with console.progress_bars(quiet=False) as shown:
        shown.start("words", 2000)
        shown.advance(500, 0)
        for _ in range(130):  # a row a second
            clock[0] += 1
            shown.advance(1, 3.0)
    lines = log.getvalue().splitlines()
    assert lines[0] == (
        "caploc: 0:01:00 words, 560 of 2,000 rows, 1.0 rows/s, 0:24:00 left (of this stage)"
    )
    assert lines[1].startswith("caploc: 0:02:00 words, 620 of 2,000 rows, ")
    assert lines[2:] == ["caploc: 0:02:10 done"]


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
    lines = console.ProgressDisplay(None)
    lines.start("masks", 1000)
    lines.advance(1000, 0)
    assert lines.figures() == "1,000 of 1,000 rows"


def test_a_stage_in_a_log_cannot_steer_the_terminal(log):
    with console.progress_bars(quiet=False) as shown:
        shown.start("\x1b[31m[red]evil[/red]", 3)
        shown.write(shown.stage)
    assert "\x1b" not in log.getvalue() and "[red]evil[/red]" in log.getvalue()


def test_stages_are_told_without_the_folders_of_their_tasks():
    assert console.without_folders("study 1 of 3, a: intact") == "study 1 of 3, a: intact"
    assert console.without_folders("/runs/a b/sums.yaml, curve") == "sums.yaml, curve"
    assert console.without_folders("words/past, knocked out") == "words/past, knocked out"


def test_a_long_time_left_is_told_in_hours():
    assert format_clock(3723.4) == "1:02:03"


def test_the_time_left_is_of_the_whole_by_the_rows_that_came(clock):
    lines = console.ProgressDisplay(None)
    lines.expect(1000)
    clock[0] = 60.0  # the model is loaded meanwhile
    lines.start("words", 300)
    lines.advance(200, 0)  # stored before, in no time
    lines.advance(19, 1)
    clock[0] = 90.0
    assert lines.figures() == "219 of at most 1,000 rows, 0.6 rows/s"  # too few to go by
    lines.advance(81, 1)
    assert lines.figures() == "300 of at most 1,000 rows, 3.3 rows/s, at most 0:03:30 left"
    lines.expect(1050)
    assert lines.figures() == "300 of at most 1,350 rows, 3.3 rows/s, at most 0:05:15 left"


def test_a_terminal_has_one_bar_for_the_whole_once_its_rows_are_known(monkeypatch):
    drawing = rich.console.Console(file=io.StringIO(), force_terminal=True, width=120)
    monkeypatch.setattr(console, "stderr", drawing)
    with console.progress_bars(quiet=False) as shown:
        shown.bars.refresh()
        assert console.READY in drawing.file.getvalue()
        shown.expect(300)
        shown.start("intact", 100)
        shown.advance(100, 0)
        shown.start("/runs/task.yaml, knocked out", 200)
        shown.advance(50, 900.0)
        shown.tell("so far: [red]L0H1")
        (bar,) = shown.bars.tasks
        assert (bar.description, bar.completed, bar.total) == ("task.yaml, knocked out", 150, 300)
        shown.expect(50)
        assert bar.total == 200
    assert "so far: [red]L0H1" in drawing.file.getvalue()


def test_studies_in_turn_take_those_to_come_to_be_as_large(log):
    lines = console.ProgressDisplay(None)
    first, second = (InTurn(lines, name, place, 3) for place, name in ((1, "a"), (2, "b")))
    first.expect(100)
    assert lines.tally.rows == 300
    first.start("intact", 10)
    assert lines.stage == "study 1 of 3, a: intact"
    first.advance(40, 1)
    first.expect(20)  # its search ended early
    assert lines.tally.rows == 40 + 20 + 200
    first.advance(20, 1)
    second.expect(300)
    assert lines.tally.rows == 60 + 600
    second.tell("so far: L0H1")
    assert "study 2 of 3, so far: L0H1" in log.getvalue()
