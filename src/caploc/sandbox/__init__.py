"""Running and judging programs that a language model wrote, none of which is trusted."""

from caploc.sandbox.isolation import Isolation
from caploc.sandbox.limits import Limits
from caploc.sandbox.pool import Sandbox
from caploc.sandbox.protection import Protection, choose_profile, protection, require_isolation
from caploc.sandbox.verdicts import REASONS, Program, Verdict

__all__ = [
    "REASONS",
    "Isolation",
    "Limits",
    "Program",
    "Protection",
    "Sandbox",
    "Verdict",
    "choose_profile",
    "protection",
    "require_isolation",
]
