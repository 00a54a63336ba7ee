"""Running and judging programs that a language model wrote, none of which is trusted."""

from caploc.sandbox.limits import Limits
from caploc.sandbox.pool import Sandbox
from caploc.sandbox.protection import Protection, protection
from caploc.sandbox.verdicts import REASONS, Program, Verdict

__all__ = ["REASONS", "Limits", "Program", "Protection", "Sandbox", "Verdict", "protection"]
