"""Runs the little functions that the demo model writes, without ever executing Python.

The text is parsed, checked against a short list of what a demo program may contain, and walked
node by node on integers. Nothing else is reachable: no names but `x`, no calls, no attributes.
"""

import ast
import operator
from collections.abc import Callable
from typing import Any

INPUTS = (-3, -1, 0, 1, 2, 5)
OPERATIONS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}


class BadProgram(Exception):
    """The text is not a demo program."""


def interpret(program: str, x: int) -> int:
    """Return `f(x)` of a program of the form `def f(x): ... return ...`; raises BadProgram."""
    for statement in body(program):
        match statement:
            case ast.Assign(targets=[ast.Name(id="x")], value=value):
                x = compute(value, x)
            case ast.Return(value=ast.expr() as value):
                return compute(value, x)
            case _:
                raise BadProgram(f"{type(statement).__name__} is not allowed")
    raise BadProgram("nothing is returned")


def body(program: str) -> list[ast.stmt]:
    """The statements of the one function in `program`."""
    try:
        statements = ast.parse(program).body
    except (SyntaxError, ValueError) as error:
        raise BadProgram(f"not Python: {error}") from error
    match statements:
        case [ast.FunctionDef(name="f", args=ast.arguments(args=[ast.arg(arg="x")])) as function]:
            return function.body
    raise BadProgram("not one function f(x)")


def compute(expression: ast.expr, x: int) -> int:
    """The value of an expression in `x`."""
    match expression:
        case ast.Name(id="x"):
            return x
        case ast.Constant(value=int() as value) if not isinstance(value, bool):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -compute(operand, x)
        case ast.BinOp(left=left, op=operation, right=right) if type(operation) in OPERATIONS:
            return OPERATIONS[type(operation)](compute(left, x), compute(right, x))
    raise BadProgram(f"{type(expression).__name__} is not allowed")


def runs_right(doc: dict[str, Any], results: list[str]) -> dict[str, float]:
    """1 if the function written returns on every input what the reference returns."""
    header = doc["prompt"].splitlines()[-1] + "\n"
    reference, written = header + doc["answer"], header + results[0]
    try:
        right = all(interpret(written, x) == interpret(reference, x) for x in INPUTS)
    except BadProgram:
        right = False
    return {"acc": float(right)}
