"""Programs that want out, or to do harm: each is judged, and the harm looked for."""

import os
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from profiles import TIGHT, forced, processes_of

import caploc
from caploc.sandbox import Program, Sandbox, Verdict
from caploc.sandbox.protocol import MIB, PROFILES

FILES_HIDDEN = ["namespaces", "landlock"]


def through(names):
    """Run a test in each of these profiles."""
    return pytest.mark.parametrize("behind", names, indirect=True)


def workers_of(behind):
    """The processes of this sandbox's one worker, daemons too: it inherits them."""
    (worker,) = behind.sandbox._workers.values()
    first = psutil.Process(worker._process.pid)
    return [first, *first.children(recursive=True)]


def settled(behind):
    """The worker's processes, once what it judged is gone: one, and one inside the namespaces."""
    expected = 2 if behind.profile == "namespaces" else 1
    deadline = time.monotonic() + 5
    while len(found := workers_of(behind)) != expected and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(found) == expected
    return {each.pid for each in found}


@pytest.fixture
def unharmed(behind):
    """The same worker serves before and after, alone, and no directory of it is left."""
    before = settled(behind)
    yield
    assert settled(behind) == before
    assert behind.verdict(f"x = {time.time()}", "assert x").passed
    assert behind.left_behind() == []


@pytest.fixture
def bystander():
    """A process of the same user."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


DEAF = """
import signal, threading
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
threading.Thread(target=lambda: [None for _ in iter(int, 1)]).start()
while True: pass
"""


@pytest.mark.parametrize("name", ["namespaces"])
def test_processor_time_is_limited_whatever_is_ignored(opened, name):
    opened(name)  # or skip
    patient = replace(TIGHT, wall_seconds=60)
    programs = [Program(DEAF, ""), Program("", "while True: pass")]
    with forced(name), Sandbox(patient, workers=2) as sandbox:
        verdicts = sandbox.judge(programs)
    assert [each.reason for each in verdicts] == ["timeout"] * 2
    who = ["the program", "the test code"]
    assert [each.detail for each in verdicts] == [
        f"{w} used 1 seconds of processor time" for w in who
    ]


@pytest.mark.parametrize("name", FILES_HIDDEN)
def test_sleepers_are_woken(opened, name):
    opened(name)
    hasty = replace(TIGHT, wall_seconds=0.5)
    started = time.monotonic()
    with forced(name), Sandbox(hasty, workers=1) as sandbox:
        (verdict,) = sandbox.judge([Program("import time\ntime.sleep(600)", "")])
    assert verdict == Verdict(False, "timeout", "still running after 0.5 seconds")
    assert time.monotonic() - started < 20


@through(FILES_HIDDEN)
def test_memory_ends_soon_and_can_be_had_up_to_the_limit(behind, unharmed):
    used = "x = []\nwhile True: x.append(bytearray(10 ** 6))"
    assert behind.verdict(used).reason == "memory"
    assert behind.verdict("x = [0] * 10 ** 12").reason == "memory"
    assert behind.verdict("x = 'a' * 10 ** 8", "assert len(x) == 10 ** 8").reason != "passed"
    assert behind.verdict("x = 'a' * 10 ** 8\ny = len(x)", "assert y == 10 ** 8").passed
    assert behind.verdict("", "x = []\nwhile True: x.append(bytearray(10 ** 6))").reason == "memory"


def test_a_memory_bomb_never_holds_more_than_its_limit():
    code = f"""
import resource
from caploc.sandbox import *
with Sandbox(Limits(memory_bytes={128 * MIB}), workers=1) as sandbox:
    verdict, = sandbox.judge([Program("x = []\\nwhile True: x.append(bytearray(10 ** 6))", "")])
print(verdict.reason, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    reason, most = done.stdout.split()
    unit = 1 if sys.platform == "darwin" else 1024
    assert reason == "memory"
    assert 64 * MIB < int(most) * unit < 128 * MIB


@through(FILES_HIDDEN)
def test_endless_output_ends(behind, unharmed):
    assert behind.verdict("while True: print('x' * 1000)").reason == "output"
    assert behind.verdict("import sys\nwhile True: sys.stderr.write('x' * 1000)").reason == "output"
    assert behind.verdict("", "while True: print('x' * 1000)").reason == "output"
    assert behind.verdict("print('x' * 60_000)").passed


@through(PROFILES)
def test_no_process_can_be_started(behind, unharmed):
    text = """
import os, time
def f():
    made = 0
    while made < 40:
        try:
            if os.fork() == 0:
                time.sleep(60)
        except OSError:
            break
        made += 1
    time.sleep(0.3)
    return made
"""
    assert behind.verdict(text, "assert f() == 0").passed


@pytest.mark.parametrize("name", ["namespaces"])
def test_a_fork_bomb_goes_out(opened, name):
    opened(name)
    text = """
import os
while True:
    try:
        os.fork()
    except OSError:
        pass
"""
    hasty = replace(TIGHT, wall_seconds=0.6)
    with forced(name), Sandbox(hasty, workers=1) as sandbox:
        before = len(processes_of())
        (verdict,) = sandbox.judge([Program(text, "")])
        assert verdict.reason == "timeout"
        assert len(processes_of()) == before + 2
        assert sandbox.judge([Program("", "")])[0].passed


@through(FILES_HIDDEN)
def test_threads_are_few(behind, unharmed):
    text = """
import threading, time
def f():
    made = 0
    try:
        for made in range(1000):
            threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    except RuntimeError:
        pass
    return made
"""
    verdict = behind.verdict(text, "assert f() < 300, f()")
    assert verdict.passed, verdict
    if os.geteuid() == 0 or behind.profile == "namespaces":
        assert behind.verdict(text, "assert f() < 8, f()").passed


@through(PROFILES)
def test_the_network_is_out_of_reach(behind, unharmed):
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(type=socket.SOCK_DGRAM) as datagrams,
    ):
        port = server.getsockname()[1]
        datagrams.bind(("127.0.0.1", port))
        text = """
import os, socket
def f(port):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
            try:
                with socket.socket(family, kind) as connection:
                    connection.connect((address, port))
                    connection.send(b"hello")
                    return kind, family
            except OSError as error:
                pass
    try:
        return socket.gethostbyname("localhost") and socket.create_connection(("localhost", port))
    except OSError:
        return "out of reach"
"""
        verdict = behind.verdict(text, f"assert f({port}) == 'out of reach', f({port})")
        assert verdict.passed, verdict
        for each in (server, datagrams):
            each.settimeout(0.1)
            with pytest.raises(TimeoutError):
                each.accept() if each is server else each.recv(9)


READ = """
import os
def f(paths):
    found = []
    for path in paths:
        try:
            found.append(open(path, "rb").read(20) if not os.path.isdir(path) else os.listdir(path))
        except OSError:
            pass
    return [each for each in found if each]
"""


@through(FILES_HIDDEN)
def test_files_of_the_user_are_out_of_sight(behind, unharmed, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("secret")
    secret.chmod(0o644)
    paths = [
        str(secret),
        str(tmp_path),
        caploc.__file__,
        "/etc/passwd",
        "/etc",
        "/home",
        "/usr/bin",
    ]
    paths += [str(Path.home() / ".bashrc"), "/proc/1/environ", "/proc/self/maps", "/sys/kernel"]
    paths += [str(Path(pytest.__file__)), str(Path(pytest.__file__).parent)]
    assert behind.verdict(READ, f"assert f({paths!r}) == [], f({paths!r})").passed


@through(["namespaces"])
def test_the_root_holds_python_and_nothing_else(behind, unharmed):
    text = """
import os, sys
def f():
    files = [os.path.join(top, name) for top, _, names in os.walk("/") for name in names]
    roots = [os.path.realpath(path) + "/" for path in sys.path]
    return [path for path in files if not path.startswith((*roots, "/dev/"))], len(files) > 500
def packages():
    return [top for top, folders, names in os.walk("/") if "-packages" in top and folders + names]
"""
    assert behind.verdict(text, "assert f() == ([], True), f()\nassert packages() == []").passed


@through(FILES_HIDDEN)
def test_environment_and_open_files_are_not_inherited(behind, unharmed):
    os.environ["CAPLOC_TEST_SECRET"] = "secret"
    opened = os.open(__file__, os.O_RDONLY)
    os.set_inheritable(opened, True)
    text = """
import os, sys
def environment(): return dict(os.environ)
def files():
    found = []
    for file in range(64):
        try:
            found.append((file, oct(os.fstat(file).st_mode & 0o170000)))
        except OSError:
            pass
    return found
"""
    tests = """
assert environment() == {}
kinds = dict(files())
assert set(kinds) == {0, 1, 2, 3}, kinds
assert kinds[0] == '0o20000' and kinds[1] == kinds[2] == '0o10000' and kinds[3] == '0o140000'
"""
    try:
        assert behind.verdict(text, tests).passed
    finally:
        os.close(opened)
        del os.environ["CAPLOC_TEST_SECRET"]


@through(FILES_HIDDEN)
def test_nothing_is_written_outside(behind, unharmed, tmp_path):
    tmp_path.chmod(0o777)
    targets = [tmp_path / "evil", Path("/evil"), Path("/etc/evil"), Path("/usr/lib/evil")]
    targets += [Path("/tmp/caploc_test_evil"), Path(os.__file__).parent / "evil.py"]
    text = f"""
import os, sys
own = os.getcwd()
def f():
    for path in {[str(each) for each in targets]!r}:
        for attempt in (lambda: open(path, "w").write("evil"), lambda: os.mkdir(path),
                        lambda: os.symlink("/", path), lambda: os.chmod(os.__file__, 0o777)):
            try:
                attempt()
            except OSError:
                pass
    return sorted(os.listdir(own))
"""
    verdict = behind.verdict(text, "assert f() in ([], ['caploc_test_evil'])")
    assert verdict.passed, verdict
    assert not any(os.path.lexists(each) for each in targets)


@through(FILES_HIDDEN)
def test_the_disk_cannot_be_filled(behind, unharmed):
    text = """
import os
def f(files):
    written = 0
    for number in range(files):
        try:
            with open(f"file{number}", "wb", buffering=0) as file:
                while True:
                    written += file.write(b"x" * 65536)
        except OSError:
            pass
    return written
"""
    files = 20 if behind.profile == "namespaces" else 1
    assert behind.verdict(text, f"assert 0 < f({files}) <= {TIGHT.file_bytes}").passed


@through(FILES_HIDDEN)
def test_what_is_left_in_the_directory_goes(behind, unharmed):
    text = """
import os
for _ in range(200):
    os.mkdir("deep")
    os.chdir("deep")
open("file", "w").close()
os.symlink("/", "root")
os.mkdir("locked", 0)
"""
    assert behind.verdict(text).passed


@through(PROFILES)
def test_no_other_process_can_be_signalled(behind, unharmed, bystander):
    everyone = [bystander.pid, os.getpid(), *(each.pid for each in workers_of(behind))]
    # All at once only where all are but the program itself: a mistake would end this machine.
    more = [-1, 0, *range(2, 400)] if behind.profile == "namespaces" else []
    text = f"""
import os, signal
def f():
    reached = []
    for process in [os.getppid() or 2 ** 22, *{everyone + more!r}]:
        try:
            os.kill(process, signal.SIGTERM if process in {everyone!r} else signal.SIGKILL)
            reached.append(process)
        except OSError:
            pass
    return reached
"""
    verdict = behind.verdict(text, "assert set(f()) <= {-1, 0}, f()")
    assert verdict.passed, verdict
    assert bystander.poll() is None


@through(PROFILES)
def test_datagrams_reach_no_local_socket(behind, unharmed):
    """A pair of datagram sockets needs no socket(2) to be connected to others."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(1, socket.SOCK_DGRAM) as victim:
        os.chmod(folder, 0o755)
        victim.bind(address := f"{folder}/socket")
        os.chmod(address, 0o777)
        victim.setblocking(False)
        text = f"""
import socket
def f():
    reached = []
    for way in ("sendto", "connect"):
        try:
            first, second = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
            first.sendto(b"x", {address!r}) if way == "sendto" else first.connect({address!r})
            reached.append(way)
        except OSError:
            pass
    return reached
"""
        assert behind.verdict(text, "assert f() == [], f()").passed
        with pytest.raises(BlockingIOError):
            victim.recv(1)


@through(PROFILES)
def test_no_file_signals_another_process(behind, unharmed, bystander):
    text = f"""
import fcntl, socket, struct
def f():
    reached = []
    for command, how in ((8, {bystander.pid}), (15, struct.pack("ii", 1, {bystander.pid}))):
        try:
            first, second = socket.socketpair()
            fcntl.fcntl(first, 10, 15)
            fcntl.fcntl(first, command, how)
            fcntl.fcntl(first, fcntl.F_SETFL, 0x2000)
            second.send(b"x")
            reached.append(command)
        except OSError:
            pass
    return reached
"""
    assert behind.verdict(text, "assert f() == [], f()").passed
    assert bystander.poll() is None


@through(PROFILES)
def test_modes_dates_and_attributes_of_readable_files_stay(behind, unharmed):
    """Landlock knows no right for them; the file is anyone's, so that owners play no part."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        path = os.path.join(folder, "file")
        Path(path).touch(mode=0o666)
        before = os.stat(path)
        text = f"""
import os
def f():
    done = []
    for path in ({path!r},):
        for name, change in {{
            "chmod": lambda it: os.chmod(it, 0o640), "utime": lambda it: os.utime(it, (0, 0)),
            "setxattr": lambda it: os.setxattr(it, "user.x", b"x"),
        }}.items():
            for by_file in (False, True):
                try:
                    change(os.open(path, os.O_RDONLY) if by_file else path)
                    done.append((name, by_file, path))
                except OSError:
                    pass
    return done
"""
        assert behind.verdict(text, "assert f() == [], f()").passed
        after = os.stat(path)
        assert (after.st_mode, after.st_mtime_ns) == (before.st_mode, before.st_mtime_ns)


@through(PROFILES)
def test_old_asynchronous_input_and_output_is_refused(behind, unharmed):
    text = """
import ctypes, platform
libc = ctypes.CDLL(None, use_errno=True)
def f():
    context = ctypes.c_ulong(0)
    number = 0 if platform.machine() == "aarch64" else 206  # io_setup
    return libc.syscall(number, 1, ctypes.byref(context)), ctypes.get_errno()
"""
    assert behind.verdict(text, "assert f() == (-1, 1), f()").passed


@through(PROFILES)
def test_pythons_library_cannot_be_written(behind, unharmed):
    text = """
import os
def f():
    for flags in (os.O_WRONLY, os.O_RDWR):
        for path in (os.__file__, os.path.dirname(os.__file__) + "/evil.py"):
            try:
                os.close(os.open(path, flags | (os.O_CREAT if "evil" in path else 0)))
                return path
            except OSError:
                pass
"""
    assert behind.verdict(text, "assert f() is None, f()").passed


@through(FILES_HIDDEN)
def test_what_honest_programs_use_works(behind, unharmed):
    text = """
import asyncio, contextlib, os, queue, random, select, shutil, signal, tempfile, threading, time
def files():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "a")
        with open(path, "w") as file:
            file.write("x" * 10000)
        shutil.copyfile(path, path + "b")
        os.rename(path + "b", path + "c")
        os.symlink(path, path + "d")
        with tempfile.TemporaryFile() as other:
            other.write(b"x")
            other.truncate(0)
        return sorted(os.listdir(folder)), os.path.getsize(path + "c"), os.path.exists(path + "d")
def threads():
    results = queue.Queue()
    started = [threading.Thread(target=results.put, args=(n,)) for n in range(3)]
    for each in started: each.start()
    for each in started: each.join()
    return sorted(results.get() for _ in range(3))
def alarm():
    seen = []
    signal.signal(signal.SIGALRM, lambda *a: seen.append(1))
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    time.sleep(0.05)
    return seen
def event_loop():
    async def work():
        await asyncio.sleep(0.001)
        return await asyncio.to_thread(lambda: 5)
    return asyncio.run(work())
def rest():
    random.seed()
    os.urandom(8), os.getpid(), os.uname(), os.cpu_count(), time.time(), time.monotonic()
    with contextlib.suppress(OSError):
        os.get_terminal_size()
    reading, writing = os.pipe()
    os.write(writing, b"x")
    return select.select([reading], [], [], 1)[0] == [reading]
"""
    tests = """
assert files() == (["a", "ac", "ad"], 10000, True), files()
assert threads() == [0, 1, 2] and alarm() == [1] and event_loop() == 5 and rest()
"""
    verdict = behind.verdict(text, tests)
    assert verdict.passed, verdict


@through(FILES_HIDDEN)
def test_no_daemon_survives(behind, unharmed, tmp_path):
    tmp_path.chmod(0o777)
    late = tmp_path / "late"
    text = f"""
import os, time
def f():
    try:
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.setsid()
                for file in range(10):
                    try: os.close(file)
                    except OSError: pass
                time.sleep(0.4)
                open({str(late)!r}, "w").write("still here")
                time.sleep(600)
            os._exit(0)
    except PermissionError:
        return "refused"
    time.sleep(0.1)
    return "made"
"""
    assert behind.verdict(text, "assert f() == 'refused'").passed
    settled(behind)
    time.sleep(0.5)
    assert not late.exists()


@through(PROFILES)
def test_no_program_can_be_started(behind, unharmed):
    text = """
import os, subprocess
def f(path):
    for attempt in (lambda: subprocess.run([path]), lambda: os.execv(path, [path]),
                    lambda: os.posix_spawn(path, [path], {}), lambda: os.system(path)):
        try:
            if attempt() in (0, None):  # a shell would have ended well, or taken our place
                return attempt
        except OSError:
            pass
"""
    assert behind.verdict(text, "assert f('/bin/sh') is None").passed


@through(PROFILES)
def test_rights_cannot_be_had_again(behind, unharmed):
    text = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def attempts():
    flags = 0x10000000 | 0x20000 | 0x40000000
    return [
        libc.unshare(flags), libc.mount(b"none", b"/", b"tmpfs", 0, None), libc.chroot(b"/"),
        libc.umount2(b"/tmp", 2), libc.setuid(0) if os.getuid() else -1, libc.sethostname(b"x", 1),
        libc.ptrace(16, 1, 0, 0), libc.reboot(0), libc.swapoff(b"/"),
    ]
"""
    assert behind.verdict(text, "assert set(attempts()) == {-1}, attempts()").passed


@through(FILES_HIDDEN)
def test_limits_cannot_be_raised(behind, unharmed):
    text = """
import resource
def f():
    raised = []
    for name in ("CPU", "AS", "FSIZE", "NOFILE", "NPROC", "CORE"):
        kind = getattr(resource, "RLIMIT_" + name)
        soft, hard = resource.getrlimit(kind)
        try:
            resource.setrlimit(kind, (hard + 1, hard + 1))
            raised.append(name)
        except (OSError, ValueError):
            pass
    return raised
"""
    assert behind.verdict(text, "assert f() == [], f()").passed


@through(FILES_HIDDEN)
def test_judge_and_program_share_no_process_and_no_directory(behind, unharmed):
    text = """
import os
def mine(): return os.getpid(), os.getcwd(), os.getuid()
def look():
    try:
        return sorted(os.listdir())
    except OSError:
        return []
"""
    tests = """
import os
open("expectation", "w").write("42")
assert look() == []
assert os.path.exists("expectation")
"""
    assert behind.verdict(text, tests).passed
    users = behind.verdict(text, "import os\nassert mine()[2] != os.getuid()").passed
    assert users == (os.geteuid() == 0)


def test_no_process_is_left_but_the_workers(opened):
    expected = 0
    for name in PROFILES:
        try:
            expected += len(settled(opened(name)))
        except pytest.skip.Exception:
            continue
    assert len(processes_of()) == expected
