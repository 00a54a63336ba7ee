"""Workers: replicas of a model in other processes, on one machine or on a cluster, run by Ray.

`Fleet` answers asks as an engine does. It cuts them into groups (`grouping`, `dispatching`: pure),
which its crew (`crew`; `hands` on Ray) has answered by workers (`replica`).
"""

from caploc.workers.fleet import Fleet
from caploc.workers.options import Workers

__all__ = ["Fleet", "Workers"]
