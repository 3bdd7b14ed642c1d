"""A report of a network: one page of HTML that stands alone. Needs the extra `report`.

| file | what it holds |
| --- | --- |
| `page`, `page.html` | what is computed for a report, and the page |
"""

from netsor.reports.page import find, render, report

__all__ = ["find", "render", "report"]
