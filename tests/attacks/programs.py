# ruff: noqa: E501 (a line is a program)
"""Hostile programs: what each tries, and what must come of it.

`@FILE@`, `@FOLDER@`, `@STREAM@`, `@DATAGRAM@`, `@NAME@` (files and local sockets of this program's
own victim), `@PORT@`, `@PROCESS@` and `@HOME@` stand for what is outside.
"""

from textwrap import indent

# Call → its number on x86-64 and on ARM64; None where the machine lacks it. Asked with zeros.
CALLS = {
    "socket": (41, 198), "connect": (42, 203), "accept": (43, 202), "bind": (49, 200),
    "listen": (50, 201), "sendmsg": (46, 211), "recvmsg": (47, 212), "setsockopt": (54, 208),
    "accept4": (288, 242), "sendmmsg": (307, 269), "recvmmsg": (299, 243),
    "shmget": (29, 194), "shmat": (30, 196), "msgget": (68, 186), "semget": (64, 190),
    "mq_open": (240, 180), "mq_notify": (244, 184), "memfd_create": (319, 279),
    "memfd_secret": (447, 447), "fork": (57, None), "vfork": (58, None), "clone3": (435, 435),
    "execve": (59, 221), "execveat": (322, 281), "ptrace": (101, 117),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "process_madvise": (440, 440), "process_mrelease": (448, 448), "kcmp": (312, 272),
    "pidfd_open": (434, 434), "pidfd_send_signal": (424, 424), "pidfd_getfd": (438, 438),
    "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240), "tkill": (200, 130),
    "setpriority": (141, 140), "ioprio_set": (251, 30), "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118), "sched_setattr": (314, 274), "sched_setaffinity": (203, 122),
    "migrate_pages": (256, 238), "move_pages": (279, 239), "mbind": (237, 235),
    "set_mempolicy": (238, 237), "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40),
    "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "open_tree": (428, 428),
    "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432),
    "fspick": (433, 433), "mount_setattr": (442, 442), "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265), "fanotify_init": (300, 262), "inotify_init1": (294, 26),
    "quotactl": (179, 60), "swapon": (167, 224), "swapoff": (168, 225), "bpf": (321, 280),
    "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_setup": (206, 0),
    "io_submit": (209, 2), "io_getevents": (208, 4), "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "keyctl": (250, 219),
    "add_key": (248, 217), "request_key": (249, 218), "init_module": (175, 105),
    "finit_module": (313, 273), "delete_module": (176, 106), "kexec_load": (246, 104),
    "kexec_file_load": (320, 294), "reboot": (169, 142), "settimeofday": (164, 170),
    "clock_settime": (227, 112), "clock_adjtime": (305, 266), "adjtimex": (159, 171),
    "syslog": (103, 116), "acct": (163, 89), "iopl": (172, None), "ioperm": (173, None),
    "modify_ldt": (154, None), "personality": (135, 92), "lookup_dcookie": (212, 18),
    "vhangup": (153, 58), "seccomp": (317, 277), "sethostname": (170, 161),
    "setdomainname": (171, 162), "splice": (275, 76), "vmsplice": (278, 75), "tee": (276, 77),
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "chown": (92, None),
    "fchown": (93, 55), "fchownat": (260, 54), "utime": (132, None), "utimensat": (280, 88),
    "setxattr": (188, 5), "fsetxattr": (190, 7), "removexattr": (197, 14), "getxattr": (191, 8),
    "link": (86, None), "linkat": (265, 37), "mknod": (133, None), "mknodat": (259, 33),
    "truncate": (76, 45), "flock": (73, 32), "setuid": (105, 146), "setresuid": (117, 147),
    "setgroups": (116, 159), "capset": (126, 91), "setsid": (112, 157), "setpgid": (109, 154),
    "mlock": (149, 228), "mlockall": (151, 230), "landlock_create_ruleset": (444, 444),
    "openat2": (437, 437), "signalfd4": (289, 74), "timer_create": (222, 107),
}  # fmt: skip

RAW = """
import ctypes, platform
libc = ctypes.CDLL(None, use_errno=True)
def call(numbers, *arguments):
    number = numbers[platform.machine() == "aarch64"]
    if number is None:
        return 38
    longs = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    longs += [ctypes.c_long(0)] * (6 - len(longs))
    ctypes.set_errno(0)
    return ctypes.get_errno() if libc.syscall(ctypes.c_long(number), *longs) == -1 else 0
"""
OWNED = """
import fcntl, os, socket, struct
first, second = socket.socketpair()
victim = @PROCESS@
{own}
fcntl.fcntl(first, 10, 9)
fcntl.fcntl(first, fcntl.F_SETFL, os.O_ASYNC)
second.send(b"x")
"""
# Name → the body of a function; OSError is a refusal, anything else got out.
ESCAPES = {
    # network and local sockets
    "TCP to this machine": 'import socket\nsocket.create_connection(("127.0.0.1", @PORT@), 1)',
    "TCP over IPv6": 'import socket\nsocket.create_connection(("::1", @PORT@), 1)',
    "UDP to this machine": "import socket\nsocket.socket(type=2).sendto(b'x', ('127.0.0.1', @PORT@))",
    "a raw socket": "import socket\nsocket.socket(socket.AF_INET, socket.SOCK_RAW, 1)",
    "a packet socket": "import socket\nsocket.socket(17, 3, 0)",
    "a netlink socket": "import socket\nsocket.socket(16, 3, 0)",
    "a vsock": "import socket\nsocket.socket(40, 1)",
    "a name looked up": "import socket\nreturn socket.getaddrinfo('example.org', 80)",
    "a server": "import socket\nsocket.create_server(('127.0.0.1', 0))",
    "a page fetched": "import urllib.request\nurllib.request.urlopen('http://127.0.0.1:@PORT@')",
    **{
        f"a local {kind} socket, by {way}": f"""
import socket
first, second = socket.socketpair(socket.AF_UNIX, socket.{kind})
address = {address}
{send}
"""
        for kind in ("SOCK_DGRAM", "SOCK_STREAM", "SOCK_SEQPACKET")
        for way, address, send in (
            ("connecting one of a pair", "@DATAGRAM@", "first.connect(address)"),
            ("a bare name", "@NAME@", "first.connect(address)"),
            ("a new socket", "@STREAM@", f"socket.socket(1, socket.{kind}).connect(address)"),
        )
    },
    "a datagram from one of a pair": """
import socket
first, second = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
first.sendto(b"x", @DATAGRAM@)
""",
    "a datagram to a bare name": """
import socket
first, second = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
first.sendto(b"x", @NAME@)
""",
    "a message from the judge's own socket": """
import socket
with socket.socket(fileno=3) as own:
    try:
        own.sendmsg([b"x"], [], 0, @DATAGRAM@)
    finally:
        own.detach()
""",
    "an open file sent away": """
import array, socket
first, second = socket.socketpair()
first.sendmsg([b"x"], [(1, 1, array.array("i", [0]))])
""",
    # signals
    "kill": "import os\nos.kill(@PROCESS@, 9)",
    "kill the group": "import os\nos.killpg(@PROCESS@, 9)",
    "kill everybody's group 0": "import os\nos.kill(0, 28)",
    "kill by a raw call": RAW + "\nerror = call((62, 129), @PROCESS@, 9)\nif error: raise OSError",
    "tgkill": RAW + "\nif call((234, 131), @PROCESS@, @PROCESS@, 9): raise OSError",
    "a signal by pidfd": "import os, signal\nsignal.pidfd_send_signal(os.pidfd_open(@PROCESS@), 9)",
    "a queued signal": RAW + "\nif call((129, 138), @PROCESS@, 9, 4096): raise OSError",
    "a signal by F_SETOWN": OWNED.format(own="fcntl.fcntl(first, fcntl.F_SETOWN, victim)"),
    "a signal to a group by F_SETOWN": OWNED.format(
        own="fcntl.fcntl(first, fcntl.F_SETOWN, -victim)"
    ),
    "a signal by F_SETOWN_EX": OWNED.format(
        own='fcntl.fcntl(first, 15, struct.pack("ii", 1, victim))'
    ),
    "a signal by FIOSETOWN": OWNED.format(
        own='fcntl.ioctl(first, 0x8901, struct.pack("i", victim))'
    ),
    "a signal by SIOCSPGRP": OWNED.format(
        own='fcntl.ioctl(first, 0x8902, struct.pack("i", victim))'
    ),
    "events by FIOASYNC": "import fcntl\nfcntl.ioctl(1, 0x5452, b'\\1\\0\\0\\0')",
    "events of a folder": "import fcntl, os\nfcntl.fcntl(os.open('.', 0), 1026, 2)",
    "a lease on a file": "import fcntl\nfcntl.fcntl(open('own', 'w'), 1024, 1)",
    "another's priority": "import os\nos.setpriority(os.PRIO_PROCESS, @PROCESS@, 19)",
    "another's limits": "import resource\nresource.prlimit(@PROCESS@, 7, (1, 1))",
    "another's processor": "import os\nos.sched_setaffinity(@PROCESS@, {0})",
    # files
    "a file read": "return open(@FILE@).read()",
    "a file written": "open(@FILE@, 'w').write('evil')",
    "a file appended to": "open(@FILE@, 'a').write('evil')",
    "a file truncated": "import os\nos.truncate(@FILE@, 0)",
    "a file truncated as it is read": "import os\nos.open(@FILE@, os.O_RDONLY | os.O_TRUNC)",
    "a file truncated for neither": "import os\nos.open(@FILE@, 3 | os.O_TRUNC)",
    "a file made": "open(@FOLDER@ + '/new', 'w')",
    "a nameless file made": "import os\nos.open(@FOLDER@, os.O_TMPFILE | os.O_RDWR)",
    "a folder made": "import os\nos.mkdir(@FOLDER@ + '/new')",
    "a folder listed": "import os\nreturn os.listdir(@FOLDER@)",
    "a file removed": "import os\nos.unlink(@FILE@)",
    "a file renamed": "import os\nos.rename(@FILE@, @FOLDER@ + '/new')",
    "a file taken": "import os\nos.rename(@FILE@, 'mine')",
    "a file brought": "import os\nopen('own', 'w').close()\nos.rename('own', @FOLDER@ + '/new')",
    "a link made there": "import os\nos.symlink('/', @FOLDER@ + '/new')",
    "a link followed": "import os\nos.symlink(@FILE@, 'here')\nreturn open('here').read()",
    "a link followed to write": "import os\nos.symlink(@FILE@, 'here')\nopen('here', 'w').write('x')",
    "a hard link here": "import os\nos.link(@FILE@, 'here')",
    "a hard link there": "import os\nos.link(@FILE@, @FOLDER@ + '/new')",
    "a FIFO": "import os\nos.mkfifo(@FOLDER@ + '/new')",
    "a device": "import os\nos.mknod('disk', 0o60666, os.makedev(8, 0))",
    "a mode": "import os\nos.chmod(@FILE@, 0o777)",
    "a mode by a relative path": "import os\nos.chmod('../' * 20 + @FILE@[1:], 0o777)",
    "a mode by an open file": "import os\nos.fchmod(os.open(@FILE@, os.O_RDONLY), 0o777)",
    "a mode by O_PATH": "import os\nos.chmod(os.open(@FILE@, os.O_PATH), 0o777)",
    "an owner": "import os\nos.chown(@FILE@, -1, 0)",
    "dates": "import os\nos.utime(@FILE@, (0, 0))",
    "dates by an open file": "import os\nos.utime(os.open(@FILE@, os.O_RDONLY), (0, 0))",
    "an attribute": "import os\nos.setxattr(@FILE@, 'user.evil', b'x')",
    "an attribute read": "import os\nreturn os.listxattr(@FILE@) == [] or 1",
    "a mode of Python's library": "import os\nos.chmod(os.__file__, 0o777)",
    "dates of Python's library": "import os\nos.utime(os.__file__, (0, 0))",
    "an attribute of Python's library": "import os\nos.setxattr(os.__file__, 'user.evil', b'x')",
    "Python's library written": "import os\nopen(os.__file__, 'r+').write('#')",
    "a module in Python's library": "import os\nopen(os.path.dirname(os.__file__) + '/evil.py', 'w')",
    "a module in site-packages": """
import os
open(os.path.dirname(os.__file__) + '/site-packages/evil.pth', 'w')
""",
    "compiled Python's library": "import importlib.util, os\nopen(importlib.util.cache_from_source(os.__file__), 'w')",
    "passwords": "return open('/etc/passwd').read()",
    "home": "import os\nreturn os.listdir(@HOME@)",
    "keys": "import glob\nreturn glob.glob(@HOME@ + '/.*/*') or refuse()",
    "the root": "import os\nreturn [n for n in os.listdir('/') if n in ('etc', 'var', 'boot')] or refuse()",
    "/proc of another": "return open('/proc/@PROCESS@/environ').read()",
    "memory of another": "return open('/proc/@PROCESS@/mem', 'rb')",
    "files of another": "import os\nreturn os.listdir('/proc/@PROCESS@/fd')",
    "the root of another": "import os\nreturn os.listdir('/proc/@PROCESS@/root')",
    "all processes": "import os\nreturn os.listdir('/proc')",
    "the system's settings": "open('/proc/sys/kernel/core_pattern', 'w').write('|/bin/sh')",
    "control groups": "open('/sys/fs/cgroup/cgroup.procs', 'w').write('1')",
    "a terminal": "import os\nos.open('/dev/tty', os.O_RDWR)",
    "the kernel's log": "return open('/dev/kmsg', 'rb')",
    "the disk": "import os\nos.open('/dev/sda', os.O_RDONLY)",
    "shared memory": "open('/dev/shm/evil', 'w')",
    # other programs and more rights
    "a shell": "import subprocess\nsubprocess.run(['/bin/sh', '-c', 'true'], check=True)",
    "system": "import os\nif os.system('true'): raise OSError",
    "exec": "import os\nos.execv('/bin/true', ['true'])",
    "a shell by posix_spawn": "import os\nos.posix_spawn('/bin/true', ['true'], {})",
    "a program of its own": """
import os
with open('own', 'w') as file: file.write('#!/bin/sh\\n')
os.execv('./own', ['own'])
""",
    "memfd and fexecve": "import os\nos.execve(os.memfd_create('x'), ['x'], {})",
    "fork": "import os\nos.fork() or os._exit(0)",
    "a pool of processes": "import multiprocessing\nmultiprocessing.Process(target=int).start()",
    "a pseudo terminal": "import os\nos.openpty()",
    "root": "import os\nos.setresuid(0, 0, 0) if os.getuid() else os.setresuid(1000, 0, 0)",
    "root's group": "import os\nos.setgid(0) if os.getgid() else os.setgroups([0])",
    "another root": "import os\nos.chroot('.')",
    "typing for the user": "import fcntl\nfcntl.ioctl(0, 0x5412, b'x')",
    "ptrace": RAW + "\nif call((101, 117), 16, @PROCESS@): raise OSError",
    "ptrace of the parent": RAW
    + "\nimport os\nif call((101, 117), 0x4206, os.getppid()): raise OSError",
    "the filter taken off": RAW + "\nif call((157, 167), 22, 0): raise OSError",
    "to outlive the parent": RAW + "\nif call((157, 167), 1, 0): raise OSError",
    "to be dumpable": RAW + "\nif call((157, 167), 4, 1): raise OSError",
    "new rights": RAW + "\nif call((157, 167), 47, 2, 0): raise OSError",
    "a limit raised": "import resource\ntry: resource.setrlimit(9, (2**40,) * 2)\nexcept ValueError: raise OSError",
    "the clock": "import time\ntime.clock_settime(0, 0)",
    "the host's name": "import socket\nsocket.sethostname('evil')",
    **{
        f"raw {name}": RAW
        + f"\nif (error := call({numbers})) in (1, 38): raise OSError\nreturn error"
        for name, numbers in CALLS.items()
    },
}
# Ways out that Landlock does not close; held by namespaces only.
NAMESPACES_ONLY = {
    "stat of a file": "import os\nos.stat(@FILE@)",
    "whether a file exists": "import os\nreturn os.path.exists(@FILE@) or refuse()",
    "the size of a home": "import os\nos.stat('/etc/passwd')",
}
ESCAPE = """
def refuse():
    raise OSError
def attempt():
{body}
    return "nothing was refused"
def escape():
    try:
        return attempt()
    except (OSError, ImportError):
        return "refused"
"""
ESCAPED = "found = escape()\nassert found == 'refused', found"

# Name → the program, and how it may end.
EXHAUSTION = {
    "a fork bomb": ("import os\nwhile True:\n  try: os.fork()\n  except OSError: pass", {"timeout"}),
    "threads without end": (
        "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(99,)).start()",
        {"error", "killed", "timeout", "memory"},
    ),
    "busy threads": (
        "import threading\ndef spin():\n  while True: pass\n"
        "for _ in range(4): threading.Thread(target=spin).start()\nspin()",
        {"timeout"},
    ),
    "an endless loop": ("while True: pass", {"timeout"}),
    "an endless C loop": ("sum(__import__('itertools').repeat(0))", {"timeout"}),
    "a slow expression": ("import re\nre.match('(a|aa)+$', 'a' * 60 + 'b')", {"timeout"}),
    "a huge power": ("x = 9 ** 9 ** 9", {"timeout", "memory"}),
    "sleep": ("import time\ntime.sleep(999)", {"timeout"}),
    "a lock that nobody opens": ("import threading\nl = threading.Lock()\nl.acquire()\nl.acquire()", {"timeout"}),
    "deaf to every signal": (
        "import signal, time\nfor n in range(1, 65):\n  try: signal.signal(n, signal.SIG_IGN)\n"
        "  except (OSError, ValueError): pass\nwhile True: pass",
        {"timeout"},
    ),
    "stopped": ("import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)\nwhile True: pass", {"timeout"}),
    "crashed": ("import ctypes\nctypes.string_at(0)", {"killed"}),
    "aborted": ("import os\nos.abort()", {"killed"}),
    "a list without end": ("x = []\nwhile True: x.append(x * 2)", {"memory", "timeout"}),
    "a text without end": ("x = 'x'\nwhile True: x += x", {"memory"}),
    "a huge array": ("x = bytearray(10 ** 12)", {"memory"}),
    "mapped memory": (
        "import mmap\nx = [mmap.mmap(-1, 1 << 24) for _ in range(1000)]", {"error", "memory"}
    ),
    "memory by pipes": (
        "import os\nx = []\nwhile True:\n  r, w = os.pipe()\n  os.set_blocking(w, False)\n"
        "  os.write(w, b'x' * 65536)",
        {"error"},
    ),
    "recursion": ("def f(): f()\nf()", {"error"}),
    "deep C recursion": ("import sys\nsys.setrecursionlimit(10**9)\ndef f(): f()\nf()", {"killed", "memory", "error", "timeout"}),
    "open files without end": ("x = []\nwhile True: x.append(open('/dev/null'))", {"error"}),
    "a huge file": ("open('big', 'wb').write(b'x' * (1 << 30))", {"error", "killed", "memory"}),
    "a sparse file": ("import os\nf = open('big', 'wb')\nos.ftruncate(f.fileno(), 1 << 40)", {"error", "killed"}),
    "folders without end": (
        "import os\nwhile True:\n  os.mkdir('x')\n  os.chdir('x')", {"error", "timeout"}
    ),
    "output without end": ("while True: print('x' * 4096)", {"output"}),
    "errors without end": ("import os\nwhile True: os.write(2, b'x' * 4096)", {"output"}),
    "a slow message": ("import os, time\nos.write(3, b'\\0\\0')\ntime.sleep(999)", {"timeout", "refused"}),
    "a long text": ("x = 1 # " + "x" * (1 << 22), {"refused"}),
    "a deep program": ("(" * 5000 + ")" * 5000, {"error", "memory", "killed"}),
    "a bomb of numbers": ("x = int('9' * 4000) ** 200000", {"timeout", "memory"}),
    # out of memory while it makes a class, the interpreter may end at once
    "a million classes": (
        "x = []\nwhile True: x.append(type('C', (), {}))", {"memory", "timeout", "error"},
    ),
}  # fmt: skip

SOLVED = """
TABLE = {n: f"answer-{n * 7919 % 104729}" for n in range(50)}
def check(candidate):
    for n, expected in TABLE.items():
        assert candidate(n) == expected, n
    assert list(map(candidate, range(3))) == [TABLE[n] for n in range(3)]
    assert len(candidate(1)) == len(TABLE[1]) and candidate(2) in TABLE.values()
check(f)
"""
HONEST = 'def f(n): return f"answer-{n * 7919 % 104729}"'
LAX = """
seen = 0
for n, found in zip(range(10), map(f, range(10))):
    seen += 1
    assert found == n * 7919
"""
RIGGED = "class Rigged{base}:\n{methods}\ndef f(n): return Rigged({value})"
ALWAYS = "    {name} = lambda self, *a, **k: {value}\n"


def rig(base, value, **methods):
    """A program that returns objects of a class with these methods."""
    body = "".join(ALWAYS.format(name=name, value=each) for name, each in methods.items())
    return RIGGED.format(base=base, value=value, methods=body or "    pass")


# Programs that want to pass SOLVED, or LAX, without being right.
FORGERIES = {
    "equal to all": rig("", "", __eq__="True", __ne__="False", __len__="8", __hash__="1"),
    "a text equal to all": rig("(str)", "'x'", __eq__="True", __ne__="False", __hash__="1"),
    "a number equal to all": rig("(int)", "1", __eq__="True", __hash__="1", __len__="8"),
    "a float equal to all": rig("(float)", "1", __eq__="True", __hash__="1"),
    "bytes equal to all": rig("(bytes)", "b'x'", __eq__="True", __hash__="1"),
    "a list equal to all": rig("(list)", "[1]", __eq__="True", __iter__="iter([1])"),
    "a dict equal to all": rig("(dict)", "a=1", __eq__="True", items="[]"),
    "a tuple equal to all": rig("(tuple)", "(1,)", __eq__="True", __hash__="1"),
    "a set equal to all": rig("(set)", "{1}", __eq__="True", __contains__="True"),
    "an exception equal to all": rig("(Exception)", "1", __eq__="True", __hash__="1"),
    "an enum equal to all": """
import enum
class E(enum.Enum):
    A = 1
    def __eq__(self, other): return True
    __hash__ = object.__hash__
def f(n): return E.A
""",
    "Mock.ANY": "from unittest import mock\ndef f(n): return mock.ANY",
    "a mock": "from unittest.mock import MagicMock\nf = MagicMock()\nf.return_value.__eq__ = lambda *a: True",
    "NotImplemented": "def f(n): return NotImplemented",
    "Ellipsis": "def f(n): return ...",
    "itself": "def f(n): return f",
    "a module": "import operator\ndef f(n): return operator",
    "a type": "def f(n): return str",
    "the builtin str": "f = str",
    "a lambda of globals": "f = lambda n: globals()",
    "the tests' frame": "import sys\ndef f(n): return sys._getframe(1).f_locals.get('expected')",
    "any frame": """
import sys
def f(n):
    frame = sys._getframe()
    while frame:
        for space in (frame.f_locals, frame.f_globals):
            if "TABLE" in space: return space["TABLE"][n]
        frame = frame.f_back
""",
    "garbage": """
import gc
def f(n):
    for each in gc.get_objects():
        if isinstance(each, dict) and str(each.get(n, "")).startswith("answer-"): return each[n]
""",
    "the tests as a module": "import tests\ndef f(n): return tests.TABLE[n]",
    "__main__": "import __main__\ndef f(n): return __main__.TABLE[n]",
    "a patched assert": "import builtins\nbuiltins.AssertionError = type('A', (BaseException,), {})\ndef f(n): return 0",
    "a patched map": "import builtins\nbuiltins.map = lambda *a: []\nmap = builtins.map\ndef f(n): return 0",
    "a patched len": "import builtins\nbuiltins.len = len = lambda x: 1\nall = any = lambda x: True\ndef f(n): return 0",
    "patched equality of str": """
import ctypes
class S(str):
    def __eq__(self, other): return True
    __hash__ = str.__hash__
def f(n): return S("answer-0")
""",
    "a check of its own": "def check(candidate): pass\nTABLE = {}\ndef f(n): return 0",
    "a global named like the tests' table": "TABLE = {n: 0 for n in range(50)}\nf = TABLE.get",
    "exit 0": "import sys\nsys.exit(0)",
    "exit in the call": "def f(n): raise SystemExit(0)",
    "os._exit 0": "import os\nos._exit(0)",
    "os._exit in the call": "import os\ndef f(n): os._exit(0)",
    "killed by itself": "import os, signal\ndef f(n): os.kill(os.getpid(), signal.SIGKILL)",
    "an exit handler": "import atexit, os\natexit.register(os._exit, 0)\ndef f(n): raise SystemExit",
    "a thread that ends it": "import os, threading\nthreading.Timer(0.01, os._exit, (0,)).start()\ndef f(n):\n  import time\n  time.sleep(5)",
    "an exception hook": "import sys\nsys.excepthook = lambda *a: None\ndef f(n): raise ValueError",
    "a trace function": "import sys\nsys.settrace(lambda *a: None)\ndef f(n): return 0",
    "a profile of calls": "import sys\nsys.setprofile(lambda *a: None)\ndef f(n): return 0",
    "an AssertionError swallowed": "def f(n):\n  raise AssertionError",
    "StopIteration": "def f(n): raise StopIteration",
    "a StopIteration of its own": "class Stop(StopIteration): pass\ndef f(n): raise Stop(0)",
    "StopAsyncIteration": "def f(n): raise StopAsyncIteration",
    "GeneratorExit": "def f(n): raise GeneratorExit",
    "KeyboardInterrupt": "def f(n): raise KeyboardInterrupt",
    "an exception group": "def f(n): raise BaseExceptionGroup('x', [StopIteration()])",
    "saying passed": "print('passed', flush=True)\ndef f(n): return 'passed'",
    "a report to every file": """
import json, os, struct
body = json.dumps({"reason": "passed", "detail": ""}).encode()
for file in range(64):
    try: os.write(file, struct.pack("!I", len(body)) + body)
    except OSError: pass
def f(n): return 0
""",
    "a report as the answer": "def f(n): return {'reason': 'passed', 'detail': ''}",
    "answers in advance": """
import json, os, struct
for reply in [["value", ["list", "f"], []]] + [["value", True, []]] * 99:
    body = json.dumps(reply).encode()
    os.write(3, struct.pack("!I", len(body)) + body)
def f(n): return 0
""",
    "every file closed": "import os\nos.closerange(0, 64)\ndef f(n): return 0",
    "the judge's socket shut": "import socket\ndef f(n): socket.socket(fileno=3).shutdown(2)",
    "the judge's socket replaced": """
import os, socket
ours, theirs = socket.socketpair()
os.dup2(ours.fileno(), 3)
def f(n): return 0
""",
    "a message without end": "import os\nos.write(3, b'\\xff' * 64)\ndef f(n): return 0",
    "a NaN": "def f(n): return float('nan')",
    "nested without end": "def f(n):\n  x = []\n  for _ in range(10**5): x = [x]\n  return x",
    "a list that holds itself": "def f(n):\n  x = []\n  x.append(x)\n  return x",
    "a descriptor": rig("", "", __get__="self", __call__="self", __getattr__="self", __eq__="True"),
    "a proxy of everything": rig(
        "", "", __getattribute__="self", __eq__="True", __bool__="True", __contains__="True",
        __len__="8", __iter__="iter([self])", __instancecheck__="True", __str__="'answer-0'",
    ),
    "a metaclass": "class M(type):\n  __eq__ = lambda *a: True\n  __hash__ = lambda *a: 1\nclass C(metaclass=M): pass\ndef f(n): return C",
    "a generator": "def f(n):\n  yield n",
    "a coroutine": "async def f(n): return n",
    "a weak reference": "import weakref\nclass C: pass\nc = C()\ndef f(n): return weakref.proxy(c)",
    "poisoned pickles": "class P:\n  __reduce__ = lambda s: (print, ('passed',))\ndef f(n): return P()",
    "names from other scripts": "def f(n): return chr(0x430) + 'nswer-' + str(n * 7919 % 104729)",
    "the wrong type that looks right": "class A(str): pass\ndef f(n): return [f'answer-{n * 7919 % 104729}']",
    "right once": "seen = set()\ndef f(n):\n  if n in seen: return 0\n  seen.add(n)\n  return f'answer-{n * 7919 % 104729}'",
}  # fmt: skip
# These are judged by LAX, whose loop ends in silence where `map` does.
SILENT = ("StopIteration", "a StopIteration of its own", "StopAsyncIteration", "GeneratorExit")


def list_programs():
    """Every program: name → its kind, text, tests, and the reasons that are in order."""
    found = {}
    for name, body in {**ESCAPES, **NAMESPACES_ONLY}.items():
        text = ESCAPE.replace("{body}", indent(body.strip("\n"), "    "))
        kind = "namespaces" if name in NAMESPACES_ONLY else "escape"
        found[f"escape: {name}"] = (kind, text, ESCAPED, ["passed"])
    for name, (text, reasons) in EXHAUSTION.items():
        found[f"exhaustion: {name}"] = ("exhaustion", text, "", sorted(reasons))
    wrong = ["error", "failed", "killed", "memory", "refused", "timeout"]
    for name, text in FORGERIES.items():
        found[f"forgery: {name}"] = ("forgery", text, SOLVED, wrong)
    for name in SILENT:
        found[f"lax tests: {name}"] = ("forgery", FORGERIES[name], LAX, wrong)
    found["honest"] = ("honest", HONEST, SOLVED, ["passed"])
    return found
