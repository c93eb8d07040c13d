"""Reports: runs side by side, accuracy against communication, as in the paper's figures 3 to 5.

From run folders to a page: `runs` finds and reads runs, `groups` says which may be compared and
which are on the frontier, `table`, `page` and `figures` show them, and `write` puts it on the disk.
"""

from fetchsgd.errors import UserError
from fetchsgd.report.runs import (
    ResultsSummary,
    Run,
    find_runs,
    load_run,
    read_results,
    write_results,
)
from fetchsgd.report.table import summary_table, table_text
from fetchsgd.report.write import ReportSummary, write_report

ReportError = UserError  # the name that callers of this package know

__all__ = [
    "ReportError",
    "ReportSummary",
    "ResultsSummary",
    "Run",
    "find_runs",
    "load_run",
    "read_results",
    "summary_table",
    "table_text",
    "write_report",
    "write_results",
]
