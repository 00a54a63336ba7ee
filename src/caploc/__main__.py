"""The command `caploc`, also as `python -m caploc`."""

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
    sys.excepthook = report_error
    from caploc.cli import main as run

    run()


if __name__ == "__main__":
    main()
