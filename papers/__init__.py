"""The experiments of both papers, on ordinary runs of caploc: `python -m papers.heads table2`."""
