"""Single facts: how earlier methods locate them, and whether what they find can be trusted.

Three families are held against each other by Huang et al. (ICLR 2025, arXiv 2502.20992): knowledge
neurons (a set of neurons), causal tracing (a layer) and knowledge circuits (a set of edges).
"""
