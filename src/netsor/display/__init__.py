"""HTML and SVG as text for notebooks and reports, from plain values and without any library.

| file | what it holds |
| --- | --- |
| `html`, `style.css` | panels, tables, folded parts |
| `charts` | heat maps and curves, with numbers under the pointer |
| `graphs` | graphs in layers |

Colours have a contrast of at least 3.8 to 1 on white and on dark paper, so that a drawing fits either theme.
"""

from netsor.display.charts import curves, heat_map
from netsor.display.graphs import Box, Edge, draw
from netsor.display.html import KINDS, error_bar, fold, panel, table

__all__ = ["KINDS", "Box", "Edge", "curves", "draw", "error_bar", "fold", "heat_map", "panel", "table"]
