"""Replicas of a model in other processes, on one machine or on a cluster, run by Ray."""

from caploc.workers.distributed import DistributedEngine
from caploc.workers.ray_backend import Workers

__all__ = ["DistributedEngine", "Workers"]
