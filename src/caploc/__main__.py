"""The command `caploc`, also as `python -m caploc`."""

import atexit
import gc
import sys
from types import TracebackType

from caploc.process import install_interrupt


def report_error(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Print no traceback for Ctrl-C, wherever it strikes; for other errors the usual one."""
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)


def main() -> None:
    """Run a command; Ctrl-C prints no traceback while modules are imported either."""
    install_interrupt()
    # Imported libraries are half a million objects that stay: to look through them for garbage
    # again and again, and once more at the end, takes a third of a short command's time.
    gc.set_threshold(10_000)
    atexit.register(gc.freeze)
    sys.excepthook = report_error
    from caploc.cli import main as run

    run()


if __name__ == "__main__":
    main()
