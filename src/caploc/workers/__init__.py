"""Replicas of a model in other processes, on one machine or on a cluster, run by Ray."""

from caploc.options import Workers
from caploc.workers.distributed import DistributedEngine

__all__ = ["DistributedEngine", "Workers"]
