"""The experiments of Commonality Neuron Localization, one after another."""

from caploc.reproduce.cnl.preset import read_cnl_preset
from caploc.reproduce.cnl.run import reproduce_cnl

__all__ = ["read_cnl_preset", "reproduce_cnl"]
