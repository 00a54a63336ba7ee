"""The one place where the benchmark meets caploc's engine."""

from caploc.engine.api import Ask
from caploc.engine.batch import BatchEngine

__all__ = ["Ask", "BatchEngine"]
