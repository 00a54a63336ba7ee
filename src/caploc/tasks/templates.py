"""The templates of tasks, rendered in Jinja's sandbox.

lm-eval renders `doc_to_text` and its like with plain Jinja, in which a template reaches all of
Python (`{{ cycler.__init__.__globals__.os ... }}`). The sandbox gives the same texts without that.
"""

from functools import lru_cache
from types import SimpleNamespace

from jinja2 import BaseLoader, StrictUndefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from lm_eval import utils

SANDBOX = ImmutableSandboxedEnvironment(
    loader=BaseLoader(), undefined=StrictUndefined, keep_trailing_newline=True
)
SANDBOX.filters["regex_replace"] = utils.regex_replace


def confine_templates() -> None:
    """Let lm-eval render templates in the sandbox, from now on in this process.

    Each is compiled once, though lm-eval hands the source over for every document.
    """
    utils.env = SimpleNamespace(from_string=lru_cache(maxsize=256)(SANDBOX.from_string))
