"""What notebooks and reports draw with: HTML and SVG as text, from plain values, without any library.

| idea | where |
| --- | --- |
| panels, tables, folded parts | html |
| heat maps, curves on logarithmic axes | charts |
| graphs in layers | graphs |

Colours have a contrast of 3.8 to 1 or more on white and on dark paper, so that a drawing fits either theme.
"""

from netsor.display.charts import curves, heat_map
from netsor.display.graphs import Edge, Node, draw
from netsor.display.html import KINDS, error_bar, fold, panel, table

__all__ = ["KINDS", "Edge", "Node", "curves", "draw", "error_bar", "fold", "heat_map", "panel", "table"]
