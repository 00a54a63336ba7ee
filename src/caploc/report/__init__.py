"""The findings for a reader: one page a run, one over several runs, figures.

A page is one file: style and script are inside, nothing is fetched, and it prints.
"""
