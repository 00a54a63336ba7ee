"""Statistics of parts: intervals, sets beside chance, sets of several data sets, trends. No model.

Whatever the parts are (heads, key-value groups, neurons, edges), a set of them is a boolean array
with a column for each. What several data sets' sets have in common follows Huang et al.,
"Capability Localization: Capabilities Can be Localized rather than Individual Knowledge" (ICLR
2025, arXiv 2502.20992); not all of its formulas are known to us, and each module says what is ours.
"""
