"""Reports: runs side by side, accuracy against communication, as in the paper's figures 3 to 5.

A run folder in, a page out: `runs` reads folders and `results` files of ended runs, `tasks` puts
together what may be compared, `pareto` finds the runs that matter, `page` and `figures` show them.
"""

from fetchsgd.report.errors import ReportError
from fetchsgd.report.find import find_runs
from fetchsgd.report.results import ResultsSummary, read_results, write_results
from fetchsgd.report.runs import Run, load_run
from fetchsgd.report.table import summary_table, table_text
from fetchsgd.report.write import ReportSummary, write_report

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
