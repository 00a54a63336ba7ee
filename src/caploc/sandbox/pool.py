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
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from caploc.errors import BadOption, RunFailed
from caploc.sandbox import protocol
from caploc.sandbox.protocol import MIB, Limits, Profile, list_profiles, remove_folder
from caploc.sandbox.witness import open_witness

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
EXECUTABLE = sys.executable
# No site-packages (-S, -s), no working directory on the path (-P), UTF-8 whatever the locale.
OPTIONS = ["-P", "-s", "-S", "-X", "utf8"]
# One seed for hashes: the order of a set must not change a verdict from run to run.
ENVIRONMENT = {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
# Some Pythons are not found by the system's loader without these.
KEPT = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
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
STOPPED = {
    "timeout": "still running after {limits.wall_seconds:g} seconds",
    "memory": "more than {limits.memory_bytes} bytes of memory",
    "output": "printed more than {limits.output_bytes} bytes",
    "killed": "more than {limits.processes} processes",
}


@dataclass(frozen=True, slots=True)
class Program:
    """A candidate program and the code that tests it.

    The tests are statements that raise unless the program is right; what they name and do not
    define is the program's.
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


class Worker:
    """One process that judges one program after another.

    Attributes:
        open_ways: for each capability, the ways to it that its rehearsal found open.
        granted: whether its programs have users of their own.
    """

    def __init__(self, limits: Limits, profile: Profile) -> None:
        """Start it; the thread that does so must live as long as the worker.

        Raises WorkerFailed if the profile cannot be had, or does not hold what it must.
        """
        if not EXECUTABLE:
            raise WorkerFailed("this Python does not say where its executable is")
        self._limits, self._patience = limits, limits.wall_seconds + ANSWER_PATIENCE
        self._control, theirs = socket.socketpair()
        self._folder = None if profile.namespaces else tempfile.mkdtemp(prefix="caploc-")
        if self._folder is not None:
            os.chmod(self._folder, 0o711)  # programs may run as another user
        with theirs, open_witness() as witness:
            settings = {
                "driver": os.getpid(),
                "limits": asdict(limits),
                "profile": asdict(profile),
                "folder": self._folder,
                "offer": asdict(witness.offer),
            }
            command = [EXECUTABLE, *OPTIONS, "-c", START, str(PACKAGE), str(theirs.fileno())]
            self._process = subprocess.Popen(
                [*command, json.dumps(settings)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
                env=ENVIRONMENT | {name: os.environ[name] for name in KEPT if name in os.environ},
                cwd="/",
                # The terminal's Ctrl-C is for the driver.
                start_new_session=True,
            )
            theirs.close()
            self._control.settimeout(START_PATIENCE)
            try:
                greeting = self._greet()
                self.granted, self.open_ways = greeting["granted"], greeting["open_ways"]
                for capability in witness.list_reached():
                    self.open_ways[capability].append("the witness was reached")
                check_rehearsal(profile, self.open_ways)
            except BaseException:
                self.stop()
                raise
        self._control.settimeout(self._patience)

    def _greet(self) -> dict[str, Any]:
        assert self._process.stderr is not None
        with self._process.stderr as printed:
            greeting: dict[str, Any] | None = receive_or_none(self._control)
            if greeting is None:
                self._process.kill()
                said = printed.read().decode(errors="replace").splitlines()
                raise WorkerFailed(f"the sandbox's worker died: {['it said nothing', *said][-1]}")
        if "error" in greeting:
            raise WorkerFailed(greeting["error"])
        return greeting

    def judge(self, program: Program) -> Verdict:
        """Have one program judged; raises WorkerFailed or NotIsolated."""
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                try:
                    socket.send_fds(self._control, [b"."], [theirs.fileno()])
                except OSError as error:
                    raise WorkerFailed("the sandbox's worker died") from error
            ours.settimeout(self._patience)
            # A judge that ends before it has read everything says so by how it ends.
            with suppress(OSError):
                protocol.send(ours, asdict(program))
            record = receive_or_none(self._control)
            if record is None:
                raise WorkerFailed("the sandbox's worker died")
            if record["isolated"] < 2:
                raise NotIsolated("a process could not be isolated")
            return conclude(receive_or_none(ours), record, self._limits)

    def interrupt(self) -> None:
        """Have whoever waits for it fail at once; from any thread."""
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)

    def stop(self) -> None:
        """End it and all that it started."""
        self._control.close()  # as a sign to leave nothing behind
        try:
            self._process.wait(STOP_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._folder is not None:
            remove_folder(self._folder)


def check_rehearsal(profile: Profile, open_ways: dict[str, list[str]]) -> None:
    """Raise WorkerFailed if the library could be changed, or anything got out of full isolation."""
    if open_ways["library"]:
        raise WorkerFailed(
            f"programs could change Python's own library, {os.path.dirname(os.__file__)} (by "
            f"{open_ways['library'][0]}), which belongs to whoever runs them"
        )
    leaks = [f"{each}: {ways[0]}" for each, ways in open_ways.items() if ways]
    if profile.full and leaks:
        raise WorkerFailed(f"a rehearsal got out of it ({', '.join(leaks)})")


def receive_or_none(connection: socket.socket) -> Any:
    """Return the next message; None if there is none, or nothing sensible."""
    try:
        return protocol.receive(connection)
    except (OSError, protocol.Gone, protocol.Malformed):
        return None


def write_verdict(reason: str, detail: str = "") -> Verdict:
    """Return a verdict whose detail is short, and harmless on a terminal."""
    line = " ".join(detail.split())
    shown = "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in line)
    if len(shown) > LONGEST_DETAIL:
        shown = shown[: LONGEST_DETAIL - 1] + "…"
    return Verdict(reason == "passed", reason, shown)


def conclude(report: Any, record: dict[str, Any], limits: Limits) -> Verdict:
    """Return the verdict from the judge's report, if it sent one, and how both processes ended.

    That is the worker's `record`, made by `caploc.sandbox.zygote.ChildWatch.wait`.
    """
    stopped = record["stopped"]
    if stopped:
        return write_verdict(stopped, STOPPED[stopped].format(limits=limits))
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


# "full": namespaces and the filter, and every way out that is tried is closed. "weak": the best
# that the machine gives.
Isolation = Literal["full", "weak"]
# Capability that a rehearsal tries → what is said of it if it is out of reach, and if it is not.
CAPABILITIES = {
    "network": ("the network", "the network can be reached"),
    "sockets": ("local sockets", "local sockets of other programs can be reached"),
    "reading": ("the user's files", "files that the user may read can be read"),
    "stat": ("names and dates of files", "names, sizes and dates of files can be seen"),
    "writing": ("writing files", "files that the user may write can be written"),
    "attributes": ("modes and attributes", "modes, dates and attributes of files can be changed"),
    "library": ("Python's library", "Python's own library can be changed"),
    "signals": ("signals", "other processes of the user can be signalled"),
    "processes": ("other processes' memory", "other processes of the user can be looked into"),
    "kernel": ("rare system calls", "rarely used parts of the kernel can be reached"),
    "rights": ("more rights", "nothing stops set-user-id programs"),
    "memory": ("memory beyond the limit", "memory is only counted now and then"),
}
REMEDY = (
    "Run caploc in a virtual machine or container that allows user namespaces, on Ubuntu have "
    "kernel.apparmor_restrict_unprivileged_userns set to 0, or accept it by name: "
    "--isolation weak (docs/security.md)."
)
required: Isolation = "full"


@dataclass(frozen=True, slots=True)
class Protection:
    """What stands around a program here, in the strongest profile that this machine gives."""

    profile: Profile | None  # None where programs cannot be run
    out_of_reach: tuple[str, ...]  # what a rehearsal tried in that isolation and could not have
    missing: tuple[str, ...]  # what it could, as a person would say it; empty in full isolation
    obstacle: str  # why it is not a stronger profile

    @property
    def full(self) -> bool:
        """Tell whether isolation is full."""
        return self.profile is not None and self.profile.full

    @property
    def statement(self) -> str:
        """Say all of it in one or two sentences."""
        if self.profile is None:
            return self.obstacle
        around = [
            *(["namespaces"] if self.profile.namespaces else []),
            *(["a system-call filter"] if self.profile.filter else []),
            *(["Landlock"] if self.profile.landlock else []),
            "resource limits",
        ]
        said = f"Model-written code runs in processes of its own behind {enumerate_words(around)}"
        if self.out_of_reach:
            said += f"; tried there and out of reach: {enumerate_words(self.out_of_reach)}"
        if self.full:
            return f"{said}."
        refused = "" if required == "weak" else " So it is refused."
        return f"{said}. But {enumerate_words(self.missing)} ({self.obstacle}).{refused} {REMEDY}"


def require_isolation(isolation: str) -> None:
    """Set what every sandbox of this process requires that does not say itself.

    Only who runs the process may say "weak": no run folder, study or task file can. Raises
    BadOption if it is neither "full" nor "weak".
    """
    global required
    if isolation not in ("full", "weak"):
        raise BadOption(f"--isolation must be full or weak; got {isolation!r}.")
    required = "full" if isolation == "full" else "weak"


def protection() -> Protection:
    """Say what this machine gives, tried once by a worker that is started for it."""
    try:
        return explore()
    except RunFailed as error:
        return Protection(None, (), ("programs cannot be run",), str(error))


def enumerate_words(parts: Sequence[str]) -> str:
    """Join words in a row: a, b and c."""
    *most, last = parts
    return f"{', '.join(most)} and {last}" if most else last


def choose_profile(isolation: Isolation | None = None) -> Profile:
    """Return the strongest profile that can be had here.

    `isolation` is what is required, by default what `require_isolation` said. Raises BadOption if
    it is weaker than that; RunFailed if no program can be run at all.
    """
    found = explore()
    assert found.profile is not None
    if not found.full and (isolation or required) != "weak":
        raise BadOption(
            "Programs that a model wrote are not run here, because isolation would be weak "
            f"({found.obstacle}): {enumerate_words(found.missing)}. {REMEDY}"
        )
    return found.profile


@cache
def explore() -> Protection:
    """Start a worker by each profile, strongest first, until one holds; else raise RunFailed."""
    if not hasattr(os, "fork"):
        raise RunFailed("Programs that a model wrote cannot be run here: this system has no fork.")
    obstacle = failure = ""
    for profile in list_profiles():
        try:
            worker = Worker(Limits(), profile)
        except (WorkerFailed, OSError) as error:
            failure = str(error)
            obstacle = obstacle or failure
            continue
        worker.stop()
        ways = worker.open_ways
        return Protection(
            profile,
            tuple(name for key, (name, _) in CAPABILITIES.items() if not ways[key]),
            tuple(said for key, (_, said) in CAPABILITIES.items() if ways[key]),
            obstacle or "this system has no namespaces and no filter that caploc knows",
        )
    raise RunFailed(f"Programs that a model wrote cannot be run here: {failure}.")


# Verdicts kept, so that the same program is judged once: at most some 20 MiB.
REMEMBERED = 32_768
# The most characters that a program or its tests may have.
LONGEST = 2 * MIB
# How often a worker is started, or a program tried that could not be isolated.
ATTEMPTS = 3


class Sandbox:
    """Judges programs that nobody trusts, several at a time, each in processes of its own.

    Workers start with the first programs and then wait, idle, for more. Any thread may ask. The
    same program with the same tests is judged once; asking again gives the same verdict.
    """

    def __init__(
        self,
        limits: Limits = Limits(),  # noqa: B008
        workers: int | None = None,
        isolation: Isolation | None = None,
    ) -> None:
        """Open the sandbox; nothing runs yet.

        Args:
            limits: what each program may use.
            workers: how many programs at a time; None for one a core.
            isolation: "full", or "weak" to take the best that this machine gives; None for what
                `require_isolation` last said in this process, which is "full" unless it did.

        Raises:
            BadOption: if there are to be no workers.
        """
        if workers is not None and workers < 1:
            raise BadOption(f"workers must be 1 or more; got {workers}.")
        self._limits, self._isolation = limits, isolation
        # A thread lives until the sandbox is closed, as the worker must that it starts.
        self._threads = ThreadPoolExecutor(workers or available_cores(), "caploc sandbox")
        self._own = threading.local()
        self._lock, self._closed = threading.Lock(), False
        self._known: OrderedDict[bytes, Verdict | Future[Verdict]] = OrderedDict()
        self._workers: set[Worker] = set()
        atexit.register(self.close)

    def judge(self, programs: Sequence[Program]) -> list[Verdict]:
        """Return the verdict on each program, in order.

        Raises:
            BadOption: if isolation is weaker here than what was asked for.
            RunFailed: if this machine cannot run programs, or the sandbox is or was closed.
        """
        asked: list[Verdict | Future[Verdict]] = []
        verdicts = []
        try:
            asked += map(self._ask, programs)
            for program, found in zip(programs, asked, strict=True):
                while isinstance(found, Future):
                    # Cancelled by a thread that asked the same and left, it is asked again.
                    with suppress(CancelledError):
                        found = found.result()  # noqa: PLW2901
                        break
                    found = self._ask(program)  # noqa: PLW2901
                verdicts.append(found)
        except BaseException:
            for each in asked:
                if isinstance(each, Future):
                    each.cancel()
            raise
        return verdicts

    def close(self) -> None:
        """End every worker and program now; whoever still waits for a verdict gets RunFailed."""
        with self._lock:
            self._closed = True
            workers = list(self._workers)
        for worker in workers:
            worker.interrupt()
        for worker in workers:
            worker.stop()
        self._threads.shutdown(cancel_futures=True)
        atexit.unregister(self.close)

    def __enter__(self) -> "Sandbox":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _ask(self, program: Program) -> "Verdict | Future[Verdict]":
        if max(len(program.text), len(program.tests)) > LONGEST:
            return write_verdict("refused", f"longer than {LONGEST} characters")
        key = digest_program(program)
        with self._lock:
            if self._closed:
                raise RunFailed("The sandbox is closed; open another one.")
            found = self._known.get(key)
            if found is None or isinstance(found, Future) and found.cancelled():
                found = self._known[key] = self._threads.submit(self._judge, key, program)
            self._known.move_to_end(key)
            while len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        return found

    def _judge(self, key: bytes, program: Program) -> Verdict:
        verdict = None
        try:
            for _ in range(ATTEMPTS):
                try:
                    verdict = self._worker().judge(program)
                    return verdict
                except NotIsolated:
                    self._dismiss()
                except WorkerFailed as error:
                    self._dismiss()
                    return write_verdict("killed", str(error))
            return write_verdict("killed", "it could not be isolated")
        finally:
            with self._lock:
                if verdict is None:  # what came of it says something about the worker
                    self._known.pop(key, None)
                elif key in self._known:
                    self._known[key] = verdict

    def _worker(self) -> Worker:
        """Return this thread's own worker, started if need be."""
        worker: Worker | None = getattr(self._own, "worker", None)
        if worker is None:
            profile = choose_profile(self._isolation)
            worker = start_worker(self._limits, profile)
            with self._lock:
                self._workers.add(worker)
            self._own.worker = worker
        if self._closed:
            worker.stop()
            raise RunFailed("The sandbox was closed before the verdict.")
        return worker

    def _dismiss(self) -> None:
        worker = self._own.worker
        self._own.worker = None
        self._workers.discard(worker)
        worker.stop()
        if self._closed:
            raise RunFailed("The sandbox was closed before the verdict.")


def start_worker(limits: Limits, profile: Profile) -> Worker:
    """Start a worker, at the third attempt if need be; raises RunFailed if none starts."""
    for attempt in range(ATTEMPTS):
        try:
            return Worker(limits, profile)
        except (WorkerFailed, OSError) as error:
            if attempt == ATTEMPTS - 1:
                raise RunFailed(f"The sandbox's workers do not start: {error}.") from error
    raise AssertionError


def digest_program(program: Program) -> bytes:
    """Tell one program and its tests from any other."""
    return hashlib.blake2b(repr(program).encode(), digest_size=16).digest()


def available_cores() -> int:
    """Count the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
