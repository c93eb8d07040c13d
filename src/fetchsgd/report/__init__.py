"""Reports: runs side by side, accuracy against communication, as in the paper's figures 3 to 5.

A run folder in, a page out: `runs` reads folders, `tasks` puts together what may be compared,
`pareto` finds the runs that matter, `page` and `figures` show them.
"""

from fetchsgd.report.errors import ReportError
from fetchsgd.report.runs import Run, find_runs, load_run
from fetchsgd.report.table import summary_table, table_text
from fetchsgd.report.write import ReportSummary, write_report

__all__ = [
    "ReportError",
    "ReportSummary",
    "Run",
    "find_runs",
    "load_run",
    "summary_table",
    "table_text",
    "write_report",
]
