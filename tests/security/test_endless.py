"""What has no end: Ctrl-C pressed on."""

import signal
import subprocess
import sys
import time

import pytest

from caploc.console import KEPT
from worlds import DEMO

# Ctrl-C is heard though the tests run in the background, and comes when Python itself has started.
STARTED = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from caploc.__main__ import main
print("started", flush=True)
main()
"""


@pytest.mark.parametrize("wait", [0.2, 2.0])
def test_ctrl_c_pressed_on_prints_no_traceback(tmp_path, wait):
    command = ["locate", DEMO, "--task", "demo/addition", "--out", str(tmp_path / "run")]
    with subprocess.Popen(
        [sys.executable, "-c", STARTED, *command],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    ) as started:  # fmt: skip
        assert started.stdout.readline() == "started\n"
        time.sleep(wait)
        for _ in range(3):
            if started.poll() is None:
                started.send_signal(signal.SIGINT)
                time.sleep(0.1)
        said, _ = started.communicate(timeout=60)
    assert "Traceback" not in said
    assert started.returncode in (130, -signal.SIGINT)


# C++ that runs Python while it is initialized turns an exception into an abort, or into another.
IMPORTING = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from contextlib import nullcontext
from caploc.console import interruptible
from caploc.process import install_interrupt
install_interrupt()
with {block}:
    try:
        import interrupted
    except BaseException:
        raise ImportError("initialization failed") from None
"""


@pytest.mark.parametrize(
    ("block", "number", "said"),
    [
        ("nullcontext()", signal.SIGINT, "Stopped."),
        ("interruptible()", signal.SIGINT, f"Stopped. {KEPT}"),
        ("interruptible()", signal.SIGTERM, f"Terminated. {KEPT}"),
    ],
)
def test_a_signal_during_an_import_ends_the_process_at_once(tmp_path, block, number, said):
    source = f"import signal\nsignal.raise_signal({int(number)})\n"
    (tmp_path / "interrupted.py").write_text(source)
    script = IMPORTING.replace("{block}", block)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path
    )
    assert (done.returncode, done.stderr) == (128 + number, f"{said}\n")
