"""The driver's side: what isolation this machine gives, one worker, and a few for many programs."""

import atexit
import hashlib
import json
import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from typing import Any

from caploc.errors import BadOption, RunFailed
from caploc.sandbox import protocol
from caploc.sandbox.protocol import CALLS, MIB, PROFILES, Limits, Profile, remove_folder

PACKAGE = Path(__file__).parent.parent
# A bare Python knows no installed package: the two that hold ours are put in place by hand.
START = """
import sys, types
package, control, settings = sys.argv[1:]
for name, path in (("caploc", package), ("caploc.sandbox", package + "/sandbox")):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [path]
from caploc.sandbox.zygote import main
main(int(control), settings)
"""
REHEARSAL = Path(__file__).with_name("rehearsal.py")
EXECUTABLE = sys.executable
# No site-packages (-S, -s), no working directory on the path (-P), UTF-8 whatever the locale.
OPTIONS = ["-P", "-s", "-S", "-X", "utf8"]
# One seed for hashes: the order of a set must not change a verdict from run to run.
ENVIRONMENT = {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
# The system's loader does not find the libraries of some Pythons without it.
KEPT = "LD_LIBRARY_PATH"
# Seconds: for a worker to start on a busy machine, to answer beyond the wall limit, to leave.
START_PATIENCE = 60.0
ANSWER_PATIENCE = 30.0
STOP_PATIENCE = 10.0

LONGEST_DETAIL = 200
# Reason → what it means.
REASONS = {
    "passed": "the tests ran to their end",
    "failed": "an assertion of the tests did not hold",
    "error": "program or tests raised an exception, could not be read, or ended early",
    "timeout": "it took more processor time or more time by the clock than allowed",
    "memory": "it needed more memory than allowed",
    "output": "it printed more than allowed",
    "killed": "the system ended it, or the sandbox's worker died",
    "refused": "it is too long, or what program and tests say to each other is not plain data",
}


@dataclass(frozen=True, slots=True)
class Program:
    """A candidate program and the code that tests it: statements that raise unless it is right.

    What these name and do not define is the program's.
    """

    text: str
    tests: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a program."""

    passed: bool  # whether the tests ran to their end
    reason: str  # a key of `REASONS`
    detail: str  # one short printable line for a person; empty for a pass


class WorkerFailed(Exception):
    """The worker could not start, or died."""


class NotIsolated(WorkerFailed):
    """A program did not run, because its process could not be isolated."""


@contextmanager
def open_witness() -> Iterator[tuple[dict[str, Any], set[str]]]:
    """Offer everyone what a program could be after, and look at the end what was reached.

    Yields "folders", the first of which everyone may write, a "file" in it that everyone may read,
    "sockets" of this machine (family, kind and address) and a "process" of the user; and a set that
    gets the capabilities of `caploc.sandbox.rehearsal` that somebody used on them. Raises OSError.
    """
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="caploc-"))
        os.chmod(folder, 0o777)
        # It ends by the first signal that reaches it; else when we close it or die, removing the
        # folder, so that nothing is left whenever we are killed.
        command = ["sh", "-c", 'read line; rm -rf "$0"', folder]
        bystander = stack.enter_context(
            subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        )
        file = f"{folder}/file"
        Path(file).touch()
        os.chmod(file, 0o644)
        kinds = (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET)
        addresses: list[Any] = [(kind, ("127.0.0.1", 0)) for kind in kinds[:2]]
        addresses += [(kind, f"{at}{folder}/{int(kind)}") for kind in kinds for at in ("", "\0")]
        sockets = [stack.enter_context(open_socket(*each)) for each in addresses]
        offer = {
            "folders": [folder, "/etc", os.path.expanduser("~")],
            "file": file,
            "process": bystander.pid,
            "sockets": [(int(each.family), int(each.type), each.getsockname()) for each in sockets],
        }
        reached: set[str] = set()
        before = [*os.stat(file)[:7], os.stat(file).st_mtime_ns, os.listxattr(file)]
        yield offer, reached
        if before != [*os.stat(file)[:7], os.stat(file).st_mtime_ns, os.listxattr(file)]:
            reached.add("modes and attributes")
        if bystander.poll() == -signal.SIGUSR1:
            reached.add("signals")
        with DefaultSelector() as selector:
            for each in sockets:
                capability = "local sockets" if each.family == socket.AF_UNIX else "the network"
                selector.register(each, EVENT_READ, capability)
            reached |= {key.data for key, _ in selector.select(0)}


def open_socket(kind: int, address: Any) -> socket.socket:
    """Open a socket that everyone may reach."""
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    opened = socket.socket(family, kind)
    opened.bind(address)
    if kind != socket.SOCK_DGRAM:
        opened.listen(9)
    if address[0] == "/":
        os.chmod(address, 0o777)
    return opened


class Worker:
    """One process that judges one program after another.

    `open_ways` are, for each capability, the ways to it that a rehearsal found open.
    """

    def __init__(self, limits: Limits, profile: Profile) -> None:
        """Start it, and rehearse; the thread that does so must live as long as the worker.

        Raises WorkerFailed if the profile cannot be had, or does not hold what it must.
        """
        if not EXECUTABLE:
            raise WorkerFailed("this Python does not say where its executable is")
        self._limits, self._patience = limits, limits.wall_seconds + ANSWER_PATIENCE
        self._control, theirs = socket.socketpair()
        self._folder = None if profile == "namespaces" else tempfile.mkdtemp(prefix="caploc-")
        if self._folder is not None:
            os.chmod(self._folder, 0o711)  # programs may run as another user
        settings = {"driver": os.getpid(), "limits": asdict(limits)}
        settings |= {"profile": profile, "folder": self._folder}
        command = [EXECUTABLE, *OPTIONS, "-c", START, str(PACKAGE), str(theirs.fileno())]
        with theirs:
            self._process = subprocess.Popen(
                [*command, json.dumps(settings)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
                env=ENVIRONMENT | ({KEPT: os.environ[KEPT]} if KEPT in os.environ else {}),
                cwd="/",
                # The terminal's Ctrl-C is for the driver.
                start_new_session=True,
            )
        try:
            self._control.settimeout(START_PATIENCE)
            self._greet()
            self._control.settimeout(self._patience)
            self.open_ways = self._rehearse()
            check_rehearsal(profile, self.open_ways)
        except BaseException:
            self.stop()
            raise

    def _greet(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as printed:
            greeting = receive_or_none(self._control)
            if greeting is None:
                self._process.kill()
                said = printed.read().decode(errors="replace").splitlines()
                raise WorkerFailed(f"the sandbox's worker died: {['it said nothing', *said][-1]}")
        if "error" in greeting:
            raise WorkerFailed(greeting["error"])

    def _rehearse(self) -> dict[str, list[str]]:
        """Have a program of our own try every way out; return for each capability which led."""
        with open_witness() as (offer, reached):
            asked = {**offer, "package": __file__}, CALLS["unusual"], self._limits.memory_bytes
            tests = f"import json\nways = find_open_ways{asked}\nassert False, json.dumps(ways)"
            report, record = self._run(Program(REHEARSAL.read_text("utf-8"), tests))
        if not report or report["reason"] != "failed":
            verdict = conclude(report, record, self._limits)
            raise WorkerFailed(f"a rehearsal did not end well: {verdict.detail}")
        open_ways: dict[str, list[str]]
        open_ways = json.loads(report["detail"].partition("AssertionError: ")[2])
        for capability in reached:
            open_ways[capability].append("the witness was reached")
        return open_ways

    def judge(self, program: Program) -> Verdict:
        """Have one program judged; raises WorkerFailed or NotIsolated."""
        return conclude(*self._run(program), self._limits)

    def _run(self, program: Program) -> tuple[Any, dict[str, Any]]:
        """Have a program run: the judge's report, if any, and the worker's record of its end."""
        ours, theirs = socket.socketpair()
        with ours:
            with theirs, suppress(OSError):  # one that has died does not answer either
                socket.send_fds(self._control, [b"."], [theirs.fileno()])
            ours.settimeout(self._patience)
            # A judge that ends before it has read everything says so by how it ends.
            with suppress(OSError):
                protocol.send(ours, asdict(program))
            record = receive_or_none(self._control)
            if record is None:
                raise WorkerFailed("the sandbox's worker died")
            if receive_or_none(ours) != "isolated":
                raise NotIsolated("it could not be isolated")
            return receive_or_none(ours), record

    def stop(self) -> None:
        """End it and all that it started, from any thread; whoever waits for it fails at once."""
        with suppress(OSError):  # its sign to leave nothing behind
            self._control.shutdown(socket.SHUT_RDWR)
        self._control.close()
        try:
            self._process.wait(STOP_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._folder is not None:
            remove_folder(self._folder)


def check_rehearsal(profile: Profile, open_ways: dict[str, list[str]]) -> None:
    """Raise WorkerFailed if a rehearsal got at more than the profile leaves open."""
    if ways := open_ways["Python's library"]:
        raise WorkerFailed(
            f"programs could change Python's own library, {os.path.dirname(os.__file__)} (by "
            f"{ways[0]}), which belongs to whoever runs them"
        )
    leaks = [f"{each}: {ways[0]}" for each, ways in open_ways.items() if ways]
    leaks = [each for each in leaks if each.split(":")[0] not in EXPOSED[profile]]
    if leaks:
        raise WorkerFailed(f"a rehearsal got out of it ({', '.join(leaks)})")


def receive_or_none(connection: socket.socket) -> Any:
    """Return the next message; None if there is none, or nothing sensible."""
    try:
        return protocol.receive(connection)
    except (OSError, protocol.Malformed):
        return None


def write_verdict(reason: str, detail: str = "") -> Verdict:
    """Return a verdict whose detail is short, and harmless on a terminal."""
    line = " ".join(detail.split())
    shown = "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in line)
    if len(shown) > LONGEST_DETAIL:
        shown = shown[: LONGEST_DETAIL - 1] + "…"
    return Verdict(reason == "passed", reason, shown)


def conclude(report: Any, record: dict[str, Any], limits: Limits) -> Verdict:
    """Return the verdict from the judge's report, if it sent one, and what `zygote.watch` found."""
    match record["stopped"]:
        case "timeout":
            return write_verdict("timeout", f"still running after {limits.wall_seconds:g} seconds")
        case "output":
            return write_verdict("output", f"printed more than {limits.output_bytes} bytes")
    match report:
        case {"reason": str(reason), "detail": str(detail)} if reason in REASONS:
            return write_verdict(reason, detail)
        case {"reason": "lost"}:
            who, (code, seconds) = "the program", record["candidate"]
        case _:
            who, (code, seconds) = "the test code", record["judge"]
    if code is None:
        return write_verdict("error", f"{who} closed its connection to the tests")
    if code >= 0:
        return write_verdict("error", f"{who} ended itself before the tests were over")
    # Nobody else kills it but a system out of memory, which it does not take much time to be. The
    # kernel's own clock for the limit is coarse: on a busy machine the two differ by a third.
    if -code == signal.SIGKILL and seconds > math.ceil(limits.cpu_seconds) / 2:
        used = f"{who} used {limits.cpu_seconds:g} seconds of processor time"
        return write_verdict("timeout", used)
    return write_verdict("killed", f"{who} was ended by {signal.Signals(-code).name}")


# What is said of the capabilities of a rehearsal that profiles may leave open, and which each may.
MISSING = {
    "the user's files": "files that the user may read can be read",
    "names and dates of files": "names, sizes and dates of files can be seen",
    "other processes' memory": "other processes of the user can be looked into",
}
EXPOSED: dict[Profile, list[str]] = {
    "namespaces": [], "landlock": ["names and dates of files"], "filter": [*MISSING],
}  # fmt: skip
WALLS = {"namespaces": ["namespaces"], "landlock": ["Landlock"], "filter": []}
REMEDY = (
    "Run caploc in a virtual machine or container that allows user namespaces, on Ubuntu have "
    "kernel.apparmor_restrict_unprivileged_userns set to 0, or accept it by name: "
    "--isolation weak (docs/security.md)."
)
required = "full"  # isolation: namespaces beside the filter; "weak": the best the machine gives


@dataclass(frozen=True, slots=True)
class Protection:
    """What stands around a program here, in the strongest profile that this machine gives."""

    profile: Profile | None  # None where programs cannot be run
    out_of_reach: tuple[str, ...]  # what a rehearsal tried in that isolation and could not have
    missing: tuple[str, ...]  # what it could, as a person would say it; empty in full isolation
    obstacle: str  # why it is not a stronger profile

    @property
    def statement(self) -> str:
        """Say all of it in one or two sentences."""
        if self.profile is None:
            return self.obstacle
        walls = [*WALLS[self.profile], "a system-call filter", "resource limits"]
        said = (
            f"Model-written code runs in processes of its own behind {enumerate_words(walls)}; "
            f"tried there and out of reach: {enumerate_words(self.out_of_reach)}"
        )
        if self.profile == "namespaces":
            return f"{said}."
        refused = "" if required == "weak" else " So it is refused."
        return f"{said}. But {enumerate_words(self.missing)} ({self.obstacle}).{refused} {REMEDY}"


def require_isolation(isolation: str) -> None:
    """Set what every sandbox of this process requires.

    Only who runs the process may say "weak": no run folder, study or task file can. Raises
    BadOption if it is neither "full" nor "weak".
    """
    global required
    if isolation not in ("full", "weak"):
        raise BadOption(f"--isolation must be full or weak; got {isolation!r}.")
    required = isolation


@cache
def protection() -> Protection:
    """Say what this machine gives: a worker is started by each profile until one holds."""
    cannot, failures = "Programs that a model wrote cannot be run here:", []
    for profile in PROFILES if sys.platform == "linux" else ():
        try:
            worker = Worker(Limits(), profile)
        except (WorkerFailed, OSError) as error:
            failures.append(str(error))
            continue
        worker.stop()
        return Protection(
            profile,
            tuple(each for each, ways in worker.open_ways.items() if not ways),
            tuple(said for each, said in MISSING.items() if worker.open_ways[each]),
            "".join(failures[:1]),
        )
    why = ["that needs Linux, in a virtual machine or container, say", *failures][-1]
    return Protection(None, (), ("programs cannot be run",), f"{cannot} {why}.")


def enumerate_words(parts: Sequence[str]) -> str:
    """Join words in a row: a, b and c."""
    *most, last = parts
    return f"{', '.join(most)} and {last}" if most else last


def choose_profile() -> Profile:
    """Return the strongest profile that can be had here.

    Raises BadOption if it is weaker than what `require_isolation` said; RunFailed if no program
    can be run at all.
    """
    found = protection()
    if found.profile is None:
        protection.cache_clear()  # it may have been chance, on a busy machine
        raise RunFailed(found.obstacle)
    if found.profile != "namespaces" and required != "weak":
        raise BadOption(
            "Programs that a model wrote are not run here, because isolation would be weak "
            f"({found.obstacle}): {enumerate_words(found.missing)}. {REMEDY}"
        )
    return found.profile


# Verdicts kept, so that the same program is judged once: at most some 20 MiB.
REMEMBERED = 16_384
# The most characters that a program or its tests may have.
LONGEST = 2 * MIB
CLOSED = "The sandbox was closed before the verdict."
# How often a worker is started, or a program tried that could not be isolated.
ATTEMPTS = 3


class Sandbox(AbstractContextManager["Sandbox"]):
    """Judges programs that nobody trusts, several at a time, each in processes of its own.

    Workers start with the first programs and then wait, idle, for more. Any thread may ask. The
    same program with the same tests is judged once; asking again gives the same verdict.
    """

    def __init__(self, limits: Limits = Limits(), workers: int | None = None) -> None:  # noqa: B008
        """Open the sandbox for programs with these limits, so many at a time or one a core."""
        self._limits = limits
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        # A thread lives until the sandbox is closed, as the worker must that it starts.
        self._threads = ThreadPoolExecutor(workers or cores, "caploc sandbox")
        self._workers: dict[int, Worker] = {}  # by thread
        self._lock, self._closed = threading.Lock(), False
        self._known: OrderedDict[bytes, Future[Verdict]] = OrderedDict()
        self._owner = os.getpid()
        atexit.register(self.close)

    def judge(self, programs: Sequence[Program]) -> list[Verdict]:
        """Return the verdict on each program, in order.

        Raises BadOption and RunFailed as `choose_profile`; RunFailed if it is or was closed, too.
        """
        asked: list[Future[Verdict]] = []
        try:
            asked += map(self._ask, programs)
            return [each.result() for each in asked]
        except BaseException as error:
            for each in asked:
                each.cancel()
            if isinstance(error, CancelledError):  # by a thread that asked the same
                raise RunFailed(CLOSED) from error
            raise

    def close(self) -> None:
        """End every worker and program now; whoever still waits for a verdict gets RunFailed."""
        if os.getpid() != self._owner:  # a forked child leaves, which owns none of them
            return
        with self._lock:
            self._closed = True
            workers = list(self._workers.values())
        for worker in workers:
            worker.stop()
        self._threads.shutdown(cancel_futures=True)
        atexit.unregister(self.close)

    def __exit__(self, *error: object) -> None:
        self.close()

    def _ask(self, program: Program) -> "Future[Verdict]":
        key = hashlib.blake2b(repr(program).encode(), digest_size=16).digest()
        with self._lock:
            if self._closed:
                raise RunFailed("The sandbox is closed; open another one.")
            found = self._known.get(key)
            if found is None or found.cancelled() or found.done() and found.exception():
                found = self._known[key] = self._threads.submit(self._judge, key, program)
            self._known.move_to_end(key)
            while len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        return found

    def _judge(self, key: bytes, program: Program) -> Verdict:
        if max(len(program.text), len(program.tests)) > LONGEST:
            return write_verdict("refused", f"longer than {LONGEST} characters")
        failure = WorkerFailed()
        for _ in range(ATTEMPTS):
            worker = self._worker()
            try:
                return worker.judge(program)
            except WorkerFailed as error:
                failure = error
            self._workers.pop(threading.get_ident()).stop()
            if self._closed:
                raise RunFailed(CLOSED)
            if not isinstance(failure, NotIsolated):
                break
        with self._lock:  # what came of it says something about the worker
            self._known.pop(key, None)
        return write_verdict("killed", str(failure))

    def _worker(self) -> Worker:
        """Return this thread's own worker, started if need be."""
        worker = self._workers.get(threading.get_ident())
        if worker is None:
            worker = start_worker(self._limits, choose_profile())
            with self._lock:
                self._workers[threading.get_ident()] = worker
            if self._closed:
                worker.stop()
        return worker


def start_worker(limits: Limits, profile: Profile) -> Worker:
    """Start a worker, at the third attempt if need be; raises RunFailed if none starts."""
    failure: Exception = WorkerFailed()
    for _ in range(ATTEMPTS):
        try:
            return Worker(limits, profile)
        except (WorkerFailed, OSError) as error:
            failure = error
    raise RunFailed(f"The sandbox's workers do not start: {failure}.") from failure
