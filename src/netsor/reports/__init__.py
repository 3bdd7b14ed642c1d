"""A report of a network: one page of HTML that stands alone. Needs the extra `report`.

| idea | where |
| --- | --- |
| what is computed for a report, and how long it takes | findings |
| charts, as specifications of Vega-Lite | charts |
| the page | page, page.html |
"""

from netsor.reports.findings import Findings, find
from netsor.reports.page import render, report

__all__ = ["Findings", "find", "render", "report"]
