"""Workers: replicas of a model in other processes, on one machine or on a cluster, run by Ray.

`DistributedEngine` answers asks as an engine does. It cuts them into groups (`scheduling`: pure),
which a pool of workers answers (`ray_backend`), each with a replica of the model. Workers that
score neurons are looked after alike (`scoring`).
"""

from caploc.workers.distributed import DistributedEngine
from caploc.workers.ray_backend import Workers

__all__ = ["DistributedEngine", "Workers"]
