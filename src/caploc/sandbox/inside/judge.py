"""The process of the test code: it asks the program's process, compares, and has the last word."""

import ast
import builtins
import os
import socket
import traceback

from caploc.sandbox.inside import frames
from caploc.sandbox.inside.remote import Link, Names, Unfit

NAME = "<tests>"
LONGEST_DETAIL = 1000


def main(channel_file: int, report_file: int) -> None:
    """Read text and tests, judge, report, and end at once."""
    with socket.socket(fileno=report_file) as driver, socket.socket(fileno=channel_file) as channel:
        request = frames.receive(driver)
        reason, detail = judge(request["text"], request["tests"], Link(channel))
        frames.send(driver, {"reason": reason, "detail": detail[:LONGEST_DETAIL]})
    os._exit(0)


def judge(text: str, tests: str, link: Link) -> tuple[str, str]:
    """Run the program, then its tests: a reason of `caploc.sandbox.verdicts`, or "lost".

    "lost" says that the program's process ended; why is for the one who started it to tell.
    """
    try:
        reason, detail = tried(text, tests, link)
    except MemoryError:
        reason, detail = "memory", "the tests ran out of memory"
    # Even if the tests caught the exception and went on.
    if link.trouble == "refused":
        return "refused", "the program sent something that is not plain data"
    return (link.trouble, "") if link.trouble else (reason, detail)


def tried(text: str, tests: str, link: Link) -> tuple[str, str]:
    """Reason and detail, unless the program's process is in trouble."""
    try:
        tree = ast.parse(tests, NAME)
        code = compile(tree, NAME, "exec")
    except (SyntaxError, ValueError, RecursionError) as error:
        return "error", f"the tests cannot be read: {described(error)}"
    names = Names(link, override=only_builtins(tree))
    try:
        link.load(text)
        exec(code, names)
    except Unfit as error:
        return "refused", str(error)
    except BaseException as error:  # SystemExit too: nothing but reaching the end is a pass
        return reason_for(error, link), where(error, tests) + described(error)
    return "passed", ""


def reason_for(error: BaseException, link: Link) -> str:
    """Which reason an exception that ended the tests is."""
    if isinstance(error, MemoryError):
        return "memory"
    by_the_tests = error is not link.raised
    return "failed" if isinstance(error, AssertionError) and by_the_tests else "error"


def where(error: BaseException, tests: str) -> str:
    """The line of the tests that an exception came from, with a separator; or nothing."""
    lines = tests.splitlines()
    numbers = [
        line
        for frame, line in traceback.walk_tb(error.__traceback__)
        if frame.f_code.co_filename == NAME
    ]
    if not numbers or numbers[-1] > len(lines):
        return ""
    return f"{lines[numbers[-1] - 1].strip()}: "


def described(error: BaseException) -> str:
    """Type and text of an exception, in one line."""
    kind = "".join(getattr(error, "__notes__", [])[:1]) or type(error).__name__
    try:
        text = str(error)
    except BaseException:  # an argument may be an object of the program's
        text = ""
    return f"{kind}: {text}" if text else kind


def only_builtins(tree: ast.AST) -> bool:
    """Whether all that the tests take from elsewhere has the name of a builtin."""
    nodes = list(ast.walk(tree))
    own = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    own |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    own |= {
        (alias.asname or alias.name).split(".")[0]
        for node in nodes
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    named = [node for node in nodes if isinstance(node, ast.Name)]
    own |= {node.id for node in named if not isinstance(node.ctx, ast.Load)}
    taken = {node.id for node in named} - own
    return all(hasattr(builtins, name) for name in taken)
