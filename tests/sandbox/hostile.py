"""Hostile programs. Each would pass its tests if it got what it is after, or was believed.

`@FILE@`, `@FOLDER@`, `@PORT@` and `@PROCESS@` stand for what is outside and belongs to others:
everyone may read and write the file and the folder.
"""

# Name → program and tests. What a program tries in `f` must raise, or return something false.
PROGRAMS = {
    "a connection to this machine": """
import socket
def f(): return socket.create_connection(("127.0.0.1", @PORT@), 1)
""",
    "a name looked up": """
import socket
def f(): return socket.getaddrinfo("pypi.org", 80)
""",
    "a file outside that is read": "def f(): return open(@FILE@).read()",
    "other processes": "import os\ndef f(): return os.listdir('/proc')",
    "a file outside that is written": "def f(): return open(@FILE@, 'w').write('evil')",
    "a file outside that is made": "def f(): return open(@FOLDER@ + '/new', 'w').write('evil')",
    "a signal to a process outside": "import os\ndef f(): os.kill(@PROCESS@, 9); return True",
    "a signal to everybody": "import os\ndef f(): os.kill(-1, 9); return False",
    "a fork bomb": """
import os
while True:
    try: os.fork()
    except OSError: pass
""",
    "threads without end": """
import threading, time
while True: threading.Thread(target=time.sleep, args=(99,)).start()
""",
    "memory": "x = [bytearray(2**20) for _ in range(2**9)]\ndef f(): return True",
    "a number without end": "x = 9 ** 9 ** 9\ndef f(): return True",
    "output without end": "while True: print('x' * 10_000, flush=True)",
    "a false report to every file": """
import os
for file in range(64):
    try: os.write(file, b"passed\\n" + b"0" * 32 + b" passed\\n")
    except OSError: pass
def f(): return False
""",
    "the mark in arguments, environment, input and files": """
import os, re, sys
def f():
    texts = [*sys.argv, *sys.orig_argv[:-1], *map(str, os.environ.items()), repr(globals())]
    texts += [str(vars(sys.modules["__main__"]))]
    for path in ("/proc/self/cmdline", "/proc/self/mem", "/dev/stdin"):
        try: texts.append(open(path).read())
        except OSError: pass
    return any(re.search("[0-9a-f]{32}", text) for text in texts)
""",
    "sys.exit": "import sys\nsys.exit(0)",
    "os._exit when asked": "import os\ndef f(): os._exit(0)",
    "another program in its place": "import os\nos.execv('/usr/bin/true', ['true'])",
    "a loop without end": "while True: pass",
    "a loop that ignores the signal of its end": """
import signal
signal.signal(signal.SIGXCPU, signal.SIG_IGN)
while True: pass
""",
    "a sleep without end": "import time\ntime.sleep(10_000)",
    "children left behind": """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0: time.sleep(10_000)
    os._exit(0)
def f(): return False
""",
    "one file that fills /tmp": "open('big', 'wb').write(bytes(2**25))\ndef f(): return True",
    "files that fill /tmp": """
for n in range(64): open(str(n), 'wb').write(bytes(2**20))
def f(): return True
""",
    "higher limits": """
import resource
def f(): resource.setrlimit(resource.RLIMIT_AS, (-1, -1)); return True
""",
    "a namespace of its own, to mount": """
import ctypes
def f(): return ctypes.CDLL(None).unshare(0x10000000) == 0
""",
}  # fmt: skip
# What only a limit of time ends.
ENDLESS = {
    "a fork bomb",
    "a number without end",
    "output without end",
    "a loop without end",
    "a loop that ignores the signal of its end",
    "a sleep without end",
}
TESTS = "assert f()"
