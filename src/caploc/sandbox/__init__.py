"""Running and judging programs that a language model wrote, none of which is trusted.

The driver, any process of caploc, has `pool`. Worker, judge and program are bare Pythons with the
standard library, which know `protocol` and the rest of this folder only.
"""

from caploc.sandbox.pool import (
    REASONS,
    Program,
    Protection,
    Sandbox,
    Verdict,
    choose_profile,
    protection,
    require_isolation,
)
from caploc.sandbox.protocol import Limits

__all__ = [
    "REASONS", "Limits", "Program", "Protection", "Sandbox", "Verdict",
    "choose_profile", "protection", "require_isolation",
]  # fmt: skip
