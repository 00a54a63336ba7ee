"""The one place where the benchmark meets caploc's engine."""

from caploc.engine import Ask, BatchEngine

__all__ = ["Ask", "BatchEngine"]
