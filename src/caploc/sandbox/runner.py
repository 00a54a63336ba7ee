"""Run one program and its tests in this process; the sandbox starts it as `python -c` with this.

Arguments are the working directory and the limits, standard input holds the mark, the length of the
program in bytes, the program and its tests. What comes out is a line "ready", then a line with what
happened; only one that begins with the mark is a pass.
"""

# Every import here is paid for by each program.
import os
import resource
import sys


def set_limits(cpu: int, memory: int, file: int, processes: int, files: int) -> None:
    """Set limits that the program cannot raise again: seconds, bytes, bytes and counts."""
    for kind, value in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_FSIZE, file),
        (resource.RLIMIT_NPROC, processes),
        (resource.RLIMIT_NOFILE, files),
        (resource.RLIMIT_CORE, 0),
    ):
        try:
            resource.setrlimit(kind, (value, value))
        except (ValueError, OSError):  # another system than Linux, or a lower limit is set
            continue
    # The first limit names itself by its signal, which a program may ignore; the second kills.
    resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu + 1))


def run(text: str, tests: str) -> str:
    """Run a program, then its tests; return a reason and a detail, or "passed"."""
    module = type(sys)("program")
    sys.modules["program"] = module
    try:
        for source, name in ((text, "<program>"), (tests, "<tests>")):
            exec(compile(source, name, "exec", dont_inherit=True), module.__dict__)  # noqa: S102
    except MemoryError:
        return "memory needed more than allowed"
    except BaseException as error:
        reason = "failed" if isinstance(error, AssertionError) else "error"
        return f"{reason} {type(error).__name__}: {error}"
    return "passed"


def main() -> None:
    """Read the program, shut every way but the report, run it, and report."""
    folder, *limits = sys.argv[1:]
    with open(0, "rb", closefd=False) as stdin:
        head, body = stdin.read().split(b"\n", 1)
    mark, length = head.decode().split()
    text, tests = body[: int(length)].decode(), body[int(length) :].decode()
    report = os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for file in (0, 1, 2):
        os.dup2(null, file)
    os.chdir(folder)
    sys.argv[:] = [""]
    if "random" in text or "random" in tests:  # a verdict must not change from run to run
        import random

        random.seed(0)
    set_limits(*map(int, limits))
    os.write(report, b"ready\n")
    outcome = run(text, tests)
    if outcome == "passed":
        outcome = f"{mark} passed"
    line = " ".join(outcome[:1000].split()) + "\n"
    os.write(report, line.encode(errors="replace"))
    os._exit(0)  # whatever threads the program left


if __name__ == "__main__":
    main()
