"""The heads paper (arXiv 2603.03335) on ordinary runs: its tables, its figures, what it claims."""
