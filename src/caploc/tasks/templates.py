"""The templates of tasks, rendered where they can run nothing.

lm-eval renders `doc_to_text` and its like with plain Jinja, in which a template reaches all of
Python (`{{ cycler.__init__.__globals__.os ... }}`). A task's YAML may come from anyone; Jinja's
sandbox renders the same text and refuses what leads out.
"""

from functools import lru_cache

from jinja2 import BaseLoader, StrictUndefined
from jinja2.sandbox import SandboxedEnvironment
from lm_eval import utils


def confine_templates() -> None:
    """Let lm-eval render templates in Jinja's sandbox, from now on in this process."""
    if isinstance(utils.env, SandboxedEnvironment):
        return
    confined = SandboxedEnvironment(
        loader=BaseLoader(), undefined=StrictUndefined, keep_trailing_newline=True
    )
    confined.filters.update(utils.env.filters)
    # lm-eval has a template compiled for every example that it renders, most of the time it takes
    # to build a task's prompts.
    setattr(confined, "from_string", lru_cache(maxsize=256)(confined.from_string))  # noqa: B010
    utils.env = confined
