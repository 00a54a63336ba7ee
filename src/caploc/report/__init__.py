"""The findings for a reader: one page a run, one page over several runs, and figure files.

A page is one file: style and script are inside, nothing is fetched, and it prints.
"""

from caploc.report.overview import write_overview
from caploc.report.page import write_report

__all__ = ["write_overview", "write_report"]
