"""What has no end: devices and pipes as files, numbers beyond reason, Ctrl-C pressed on."""

import json
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

import pytest

from caploc.components import Heads
from caploc.declaration import ModelOptions, Study
from caploc.errors import BadOption
from caploc.options import Settings
from worlds import DEMO


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"masks": 10**12}, "--masks must be less than or equal to 100000"),
        ({"budget": 10**30}, "--budget must be less than or equal to 10"),
        ({"mask_counts": (1, 10**12)}, "--mask-counts must be less than or equal to 100000"),
        ({"seed": 10**30}, "--seed must be less than or equal to 92"),
    ],
)
def test_a_number_beyond_reason_is_refused(settings, message):
    with pytest.raises(BadOption, match=message):
        Settings(**settings).check()


def test_a_budget_that_buys_too_many_masks_is_refused():
    study = Study(
        ModelOptions(DEMO), "demo/addition", method="css", settings=Settings(budget=10**11)
    )
    with pytest.raises(BadOption, match="and 100,000 are the most"):
        study.sized(Heads((8,) * 12))


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
from caploc.process import install_interrupt
install_interrupt()
try:
    import interrupted
except BaseException:
    raise ImportError("initialization failed") from None
"""


def test_ctrl_c_during_an_import_ends_the_process_at_once(tmp_path):
    (tmp_path / "interrupted.py").write_text("import signal\nsignal.raise_signal(signal.SIGINT)\n")
    done = subprocess.run(
        [sys.executable, "-c", IMPORTING], capture_output=True, text=True, cwd=tmp_path
    )
    assert (done.returncode, done.stderr) == (130, "Stopped.\n")


def test_a_visitor_who_leaves_prints_nothing(capfd, caplog, tmp_path):
    uvicorn = pytest.importorskip("uvicorn")
    from caploc.playground.app import Playgrounds
    from caploc.playground.playground import Playground
    from caploc.playground.runs import RunIndex
    from caploc.playground.serving import listen
    from caploc.playground.view import application

    model = ModelOptions(DEMO, device="cpu")
    playground = Playground(model, model.engine(), {})
    with listen(0) as listening:
        port = listening.getsockname()[1]
        app = application(Playgrounds(RunIndex(tmp_path), playground=playground), "secret")
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False))
        server.install_signal_handlers = lambda: None
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            body = json.dumps({"heads": ["L0H1"], "prompt": "1+1=", "new_tokens": 999}).encode()
            for path in ("answers", "example", "load"):
                leave(port, f"/play/model/{path}?token=secret", body, missing=100)
                leave(port, f"/play/model/{path}?token=secret", body, missing=0)
            time.sleep(1)
        finally:
            server.should_exit = True
            thread.join(30)
    said = capfd.readouterr()
    assert "Traceback" not in said.err + said.out
    assert not [record for record in caplog.records if record.exc_info]


def leave(port, path, body, missing):
    """Ask, and break the connection off before the answer; `missing` bytes are never sent."""
    with socket.create_connection(("127.0.0.1", port)) as asked:
        head = (
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        )
        asked.sendall(f"{head}Content-Length: {len(body) + missing}\r\n\r\n".encode() + body)
        asked.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
