"""The neurons paper (CNL, arXiv 2502.20992): its experiments, and tables of what they found."""
