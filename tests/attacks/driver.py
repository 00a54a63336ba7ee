"""Judges hostile programs as whoever runs this file, beside victims that it looks at afterwards.

It reads JSON, {"source", "profile", "programs": {name: [text, tests]}}, and writes JSON:
{"refused"} if the profile cannot be had, else {"verdicts", "harm", "common harm", "seconds"}.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

asked = json.load(sys.stdin)
sys.path.insert(0, asked["source"])

from caploc.sandbox import Limits, Program, Sandbox, pool  # noqa: E402
from caploc.sandbox.pool import Worker, WorkerFailed  # noqa: E402

LIMITS = Limits(
    cpu_seconds=1,
    wall_seconds=4,
    memory_bytes=256 << 20,
    output_bytes=1 << 16,
    processes=8,
    file_bytes=1 << 20,
)
LIBRARY = Path(os.__file__).parent


class Victim:
    """A folder with a file, and local sockets, that one program may attack."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.folder.mkdir()
        self.folder.chmod(0o777)
        self.file = self.folder / "file"
        self.file.write_text("contents")
        self.file.chmod(0o666)
        self.name = f"\0{folder}"
        self.sockets = []
        for kind, address in (
            (socket.SOCK_STREAM, str(self.folder / "stream")),
            (socket.SOCK_DGRAM, str(self.folder / "datagram")),
            (socket.SOCK_DGRAM, self.name),
        ):
            with socket.socket(socket.AF_UNIX, kind) as each:
                each.bind(address)
                each.setblocking(False)
                if kind == socket.SOCK_STREAM:
                    each.listen()
                if address[0] != "\0":
                    os.chmod(address, 0o777)
                self.sockets.append((kind, os.dup(each.fileno())))
        self.before = self.state()

    def state(self):
        found = self.file.lstat() if os.path.lexists(self.file) else None
        return [
            sorted(os.listdir(self.folder)),
            found
            and [found.st_mode, found.st_mtime_ns, found.st_size, found.st_nlink, found.st_gid],
            os.listxattr(self.file) if found else None,
            self.file.read_text() if found else None,
        ]

    def harm(self):
        found = []
        if self.state() != self.before:
            found.append(f"{self.before} became {self.state()}")
        for kind, file in self.sockets:
            with socket.socket(fileno=file) as each:
                try:
                    each.accept() if kind == socket.SOCK_STREAM else each.recv(9)
                except BlockingIOError:
                    continue
                found.append(f"its socket of kind {kind} was reached")
        return found


def library_state():
    files = [LIBRARY, *LIBRARY.glob("*.py"), *LIBRARY.glob("__pycache__/*")]
    states = {str(each): each.stat() for each in files}
    return {name: (s.st_mode, s.st_mtime_ns, s.st_size) for name, s in states.items()}


def open_bystander():
    """A process that says which signals reach it."""
    code = (
        "import signal, time\n"
        "def say(number, frame): print(number, flush=True)\n"
        "for number in set(range(1, 32)) - {9, 17, 18, 19}: signal.signal(number, say)\n"
        "print('ready', flush=True)\n"
        "while True: time.sleep(60)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout.readline() == "ready\n"
    return process


def fill(text, victim, port, process, home):
    """The program with what it is after in place."""
    places = {
        "@FILE@": repr(str(victim.file)),
        "@FOLDER@": repr(str(victim.folder)),
        "@STREAM@": repr(str(victim.folder / "stream")),
        "@DATAGRAM@": repr(str(victim.folder / "datagram")),
        "@NAME@": repr(victim.name),
        "@PORT@": str(port),
        "@PROCESS@": str(process),
        "@HOME@": repr(str(home)),
    }
    for place, value in places.items():
        text = text.replace(place, value)
    return text


def reached(waiting):
    """Which of these sockets something has come to."""
    found = []
    for name, receive in waiting.items():
        try:
            receive()
            found.append(f"{name} was reached")
        except BlockingIOError:
            continue
    return found


def judge(programs, folder):
    pool.choose_profile = lambda isolation=None: asked["profile"]
    victims = {name: Victim(f"{folder}/{n}") for n, name in enumerate(programs)}
    home = Path(folder, "home")
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "key").write_text("secret")
    bystander = open_bystander()
    library = library_state()
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(type=socket.SOCK_DGRAM) as udp,
        Sandbox(LIMITS, workers=2) as sandbox,
    ):
        udp.bind(tcp.getsockname())
        tcp.setblocking(False)
        udp.setblocking(False)

        port = tcp.getsockname()[1]
        texts = [
            Program(fill(text, victims[name], port, bystander.pid, home), tests)
            for name, (text, tests) in programs.items()
        ]
        started = time.monotonic()
        verdicts = sandbox.judge(texts)
        seconds = time.monotonic() - started
        common = reached({"TCP": tcp.accept, "UDP": lambda: udp.recv(9)})
    if bystander.poll() is not None:
        common.append(f"the bystander ended with {bystander.returncode}")
    bystander.send_signal(signal.SIGKILL)
    if said := bystander.communicate()[0].split():
        common.append(f"the bystander got the signals {said}")
    if library_state() != library:
        common.append("Python's library was changed")
    return {
        "verdicts": {
            name: [verdict.passed, verdict.reason, verdict.detail]
            for name, verdict in zip(programs, verdicts, strict=True)
        },
        "harm": {name: victim.harm() for name, victim in victims.items()},
        "common harm": common,
        "seconds": seconds,
    }


try:
    Worker(LIMITS, asked["profile"]).stop()
except WorkerFailed as error:
    found = {"refused": str(error)}
else:
    with tempfile.TemporaryDirectory(prefix="victims-") as folder:
        os.chmod(folder, 0o755)
        found = judge(asked["programs"], folder)
json.dump(found, sys.stdout)
