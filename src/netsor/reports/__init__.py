"""A report of a network: one page of HTML that stands alone. Needs the extra `report`.

| file | what it holds |
| --- | --- |
| `findings` | what is computed for a report, and how long it takes |
| `page`, `page.html` | the page |
"""

from netsor.reports.findings import Findings, find
from netsor.reports.page import render, report

__all__ = ["Findings", "find", "render", "report"]
