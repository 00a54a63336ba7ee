"""What goes by name: search methods, estimators, engines. Every other place reads these three.

Names are known at once, and a module is imported when one of its names is asked for, so that help
and mistakes need none of them.
"""

from importlib import import_module
from typing import Any


class Registry(dict[str, Any]):
    """Objects by name, each written as `module:object` until it is asked for."""

    def __getitem__(self, name: str) -> Any:
        found = super().__getitem__(name)
        if isinstance(found, str):
            module, _, place = found.partition(":")
            found = self[name] = getattr(import_module(module), place)
        return found


METHODS = Registry(  # each a `Method`
    {
        "scan": "caploc.search:SCAN",
        "css": "caploc.search:CSS",
        "csb": "caploc.search:CSB",
        "css-search": "caploc.search:CSS_SEARCH",
        "csb-search": "caploc.search:CSB_SEARCH",
        "one-shot": "caploc.search:ONE_SHOT",
        "greedy": "caploc.search:GREEDY",
    }
)
ESTIMATORS = Registry(  # each an `Estimator`
    {"lasso": "caploc.recovery:fit_paper_lasso", "paired": "caploc.recovery:fit_paired"}
)
PACKED, VLLM, PLAIN = "packed", "vllm", "plain"
# An engine to ask for, and who answers: what one refuses goes to the next.
ENGINES = {PACKED: (PACKED, PLAIN), VLLM: (VLLM, PACKED, PLAIN), PLAIN: (PLAIN,)}
