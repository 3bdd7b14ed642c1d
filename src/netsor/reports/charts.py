"""Charts as specifications of Vega-Lite; the page gives them width, height and colours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from netsor.reports.findings import Along
from netsor.verify import Verification

__all__ = ["along_chart", "convergence_chart", "matrix_chart", "spectrum_chart"]

MOST_CELLS = 100  # along an axis; larger matrices are shown as means of blocks
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
    axis = {
        "labels": len(value) <= 40,
        "ticks": False,
        "title": "row" if step == 1 else f"row, {step} to a cell",
    }
    order = {"type": "ordinal", "sort": None, "axis": axis}
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
            "x": {**order, "field": "j"},
            "y": {**order, "field": "i"},
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
    return {
        "data": {"values": values},
        "mark": {"type": "line", "point": {"size": 28}},
        "encoding": {
            "x": _log("number", "number of the eigenvalue"),
            "y": _log("share", "share of the sum"),
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
            "inputs": f"{a.inputs[0]} and {a.inputs[1]}",
        }
        for a in along
        for k, (name, c) in enumerate(zip(a.names, a.values, strict=True))
    ]
    return {
        "data": {"values": values},
        "mark": {"type": "line", "point": {"size": 28}},
        "encoding": {
            "x": {
                "field": "place",
                "type": "quantitative",
                "title": "output or layer, in order",
                "axis": {"tickMinStep": 1, "format": "d"},
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
    x, y = _log("width", "width"), _log("distance", "relative distance to the limit")
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
                "encoding": {
                    "x": x,
                    "y": _log("low", "relative distance to the limit"),
                    "y2": {"field": "high"},
                },
            },
            {
                "data": {"values": rows},
                "mark": {"type": "line", "point": {"size": 46}},
                "encoding": {"x": x, "y": y, "tooltip": _told("width", "distance", "low", "high")},
            },
        ],
    }


def _log(field: str, title: str) -> dict[str, Any]:
    scale = {"type": "log", "nice": False, "padding": 8}
    return {"field": field, "type": "quantitative", "scale": scale, "title": title}


def _series(field: str) -> dict[str, Any]:
    colours = {"range": ["#2a78d0", "#c2570c", "#178a4f"]}
    return {"field": field, "type": "nominal", "scale": colours, "legend": {"orient": "top", "title": None}}


def _told(*fields: str) -> list[dict[str, str]]:
    return [{"field": f, "type": "nominal"} for f in fields]
