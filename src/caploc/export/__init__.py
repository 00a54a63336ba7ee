"""Hand a finding on: a checkpoint, an adapter or a file of heads, with a card that says why."""

from caploc.export.export import KINDS, Export, Exported

__all__ = ["KINDS", "Export", "Exported"]
