"""Run programs that a language model wrote, in bubblewrap or not at all."""

from caploc.sandbox.bubblewrap import Limits, Program, ProgramResult, run_program
from caploc.sandbox.pool import Sandbox, check_isolation, describe_isolation, require_isolation

__all__ = [
    "Limits", "Program", "Sandbox", "ProgramResult", "check_isolation", "describe_isolation",
    "require_isolation", "run_program",
]  # fmt: skip
