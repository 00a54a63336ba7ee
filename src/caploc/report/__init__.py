"""The findings for a reader: one page a run, one over several runs, figures, the papers' tables.

A page is one file: style and script are inside, nothing is fetched, and it prints.
"""

from caploc.report.overview import ComparedRun, write_comparison
from caploc.report.page import rewrite_page, write_report

__all__ = ["ComparedRun", "rewrite_page", "write_comparison", "write_report"]
