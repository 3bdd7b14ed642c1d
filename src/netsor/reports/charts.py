"""Charts as specifications of Vega-Lite; the page gives them width, height and colours."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from netsor.display.charts import ticks
from netsor.reports.findings import Along
from netsor.verify import Verification

__all__ = ["along_chart", "convergence_chart", "matrix_chart", "spectrum_chart"]

MOST_CELLS = 100  # along an axis; larger matrices are shown as means of blocks
MOST_LABELS = 40  # beside rows and below columns
HOVER = {"condition": {"param": "hover", "value": 2.5, "empty": False}, "value": 0}


def _number(value: float, digits: int = 6) -> float:
    return float(f"{value:.{digits}g}")


def matrix_chart(value: np.ndarray, error: np.ndarray, labels: Sequence[str]) -> dict[str, Any]:
    """A matrix as coloured cells; the pointer shows row, column, value and error."""
    step = -(-max(value.shape) // MOST_CELLS)
    rows = []
    for i in range(0, value.shape[0], step):
        for j in range(0, value.shape[1], step):
            block = slice(i, i + step), slice(j, j + step)
            rows.append([i, j, _number(value[block].mean()), _number(error[block].max(), 2)])
    names = list(labels) if len(labels) == len(value) else []
    fields = [{"i": i, "j": j, "value": v, "error": e, **_named(names, i, j)} for i, j, v, e in rows]
    axis: dict[str, Any] = {"labels": len(value) <= MOST_LABELS, "ticks": False}
    if names:
        axis |= {"labelExpr": f"{json.dumps(names)}[datum.value]", "labelLimit": 70}
    cells = "" if step == 1 else f", {step} to a cell"

    def places_along(f: str, what: str) -> dict[str, Any]:
        return {"field": f, "type": "ordinal", "sort": None, "axis": {**axis, "title": what + cells}}

    told = [{"field": f, "type": "quantitative"} for f in ("value", "error")]
    places = [{"field": f, "type": "nominal", "title": t} for f, t in (("i", "row"), ("j", "column"))]
    if names:
        places = [{"field": f, "type": "nominal"} for f in ("row", "column")]
    return {
        "usermeta": {"square": True},
        "data": {"values": fields},
        "params": [
            {"name": "hover", "select": {"type": "point", "on": "pointerover", "clear": "pointerout"}}
        ],
        "mark": {"type": "rect"},
        "encoding": {
            "x": places_along("j", "column"),
            "y": places_along("i", "row"),
            "color": {
                "field": "value",
                "type": "quantitative",
                "scale": {"scheme": "viridis"},
                "title": None,
            },
            "strokeWidth": HOVER,
            "stroke": {"value": "#e4003a"},
            "tooltip": [*places, *told],
        },
        "config": {"scale": {"bandPaddingInner": 0, "bandPaddingOuter": 0}},
    }


def _named(names: list[str], i: int, j: int) -> dict[str, str]:
    return {"row": names[i], "column": names[j]} if names else {}


def spectrum_chart(kernels: dict[str, np.ndarray]) -> dict[str, Any]:
    """Eigenvalues as shares of their sum, on logarithmic axes."""
    values = []
    for name, K in kernels.items():
        found = np.linalg.eigvalsh((K + K.T) / 2)[::-1]
        shares = found / found.sum()
        values += [
            {"number": k + 1, "share": _number(s), "eigenvalue": _number(v), "kernel": name}
            for k, (s, v) in enumerate(zip(shares, found, strict=True))
            if s > 1e-15
        ]
    whole = [n for n in _round([v["number"] for v in values]) if n == int(n)]
    return {
        "data": {"values": values},
        "mark": {"type": "line", "point": {"size": 28}},
        "encoding": {
            "x": _log("number", "number of the eigenvalue", whole),
            "y": _log("share", "share of the sum", _round([v["share"] for v in values])),
            "color": _series("kernel"),
            "tooltip": _told("kernel", "number", "eigenvalue", "share"),
        },
    }


def along_chart(along: Sequence[Along]) -> dict[str, Any]:
    """Correlations of pairs of inputs at the vectors of the network."""
    values = [
        {
            "place": k + 1,
            "variable": name,
            "correlation": _number(c),
            "inputs": f"inputs {a.inputs[0]} and {a.inputs[1]}",
        }
        for a in along
        for k, (name, c) in enumerate(zip(a.names, a.values, strict=True))
    ]
    places = max(len(a.values) for a in along)
    return {
        "data": {"values": values},
        "mark": {"type": "line", "point": {"size": 28}},
        "encoding": {
            "x": {
                "field": "place",
                "type": "quantitative",
                "title": along[0].place,
                "axis": {"values": list(range(1, places + 1, -(-places // 12)))},
            },
            "y": {"field": "correlation", "type": "quantitative", "scale": {"zero": False}},
            "color": _series("inputs"),
            "tooltip": _told("variable", "inputs", "correlation"),
        },
    }


def convergence_chart(found: Verification) -> dict[str, Any]:
    """Distances of finite networks to the limit, with a line of slope -1/2."""
    logs = np.log(np.maximum(found.distances, np.finfo(float).tiny))
    means = np.exp(logs.mean(1))
    spread = np.exp(2 * logs.std(1, ddof=1) / np.sqrt(logs.shape[1]))
    rows = [
        {"width": w, "distance": _number(m), "low": _number(m / s), "high": _number(m * s)}
        for w, m, s in zip(found.widths, means, spread, strict=True)
    ]
    theory = [
        {"width": w, "distance": _number(means[-1] * np.sqrt(found.widths[-1] / w))} for w in found.widths
    ]
    shown = _round([r[end] for r in rows for end in ("low", "high")])
    x, y, low = (
        _log("width", "width", found.widths),
        *(_log(field, "relative distance to the limit", shown) for field in ("distance", "low")),
    )
    return {
        "layer": [
            {
                "data": {"values": theory},
                "mark": {"type": "line", "strokeDash": [5, 4], "color": "#80868f"},
                "encoding": {"x": x, "y": y},
            },
            {
                "data": {"values": rows},
                "mark": {"type": "rule", "strokeWidth": 1.5},
                "encoding": {"x": x, "y": low, "y2": {"field": "high"}},
            },
            {
                "data": {"values": rows},
                "mark": {"type": "line", "point": {"size": 46}},
                "encoding": {"x": x, "y": y, "tooltip": _told("width", "distance", "low", "high")},
            },
        ],
    }


def _log(field: str, title: str, marked: Sequence[float]) -> dict[str, Any]:
    """A logarithmic axis with these numbers on it."""
    scale = {"type": "log", "nice": False, "padding": 8}
    axis = {"values": list(marked), "labelExpr": "format(datum.value, datum.value < 0.001 ? '.0e' : '~g')"}
    return {"field": field, "type": "quantitative", "scale": scale, "title": title, "axis": axis}


def _round(values: Sequence[float]) -> list[float]:
    """A few round numbers between the ends of positive ones."""
    return ticks(math.log10(min(values)) - 0.02, math.log10(max(values)) + 0.02)


def _series(field: str) -> dict[str, Any]:
    colours = {"range": ["#2a78d0", "#c2570c", "#178a4f"]}
    return {"field": field, "type": "nominal", "scale": colours, "legend": {"orient": "top", "title": None}}


def _told(*fields: str) -> list[dict[str, str]]:
    return [{"field": f, "type": "nominal"} for f in fields]
