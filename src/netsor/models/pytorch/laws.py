"""The laws of PyTorch parameters, recorded during construction: the last fill of a tensor is its law."""

# pyright: reportMissingImports=false

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import numpy as np
import torch
from scipy.stats import norm, truncnorm
from torch.utils._python_dispatch import TorchDispatchMode

from netsor.arguments import a_type
from netsor.errors import BuildError
from netsor.models.laws import MIXED, Law, ParameterRow, at_two_widths, measured_law
from netsor.models.scalars import Size


@dataclass(frozen=True)
class Fill:
    """The last fill of a tensor: mean, variance, and the name of the law.

    bounds  bounds of a uniform law, which `erfinv_` turns into a truncated normal law
    """

    mean: float
    var: float
    name: str
    bounds: tuple[float, float] | None = None

    def affine(self, factor: float, shift: float = 0.0) -> Fill:
        bounds = None if self.bounds is None else (self.bounds[0] * factor, self.bounds[1] * factor)
        return replace(self, mean=self.mean * factor + shift, var=self.var * factor**2, bounds=bounds)


UNKNOWN = Fill(math.nan, math.nan, "unknown")
IN_PARTS = Fill(math.nan, math.nan, MIXED)


def uniform(low: float, high: float) -> Fill:
    return Fill((low + high) / 2, (high - low) ** 2 / 12, "uniform", (low, high))


def truncated(u: Fill, factor: float) -> Fill:
    """factor * erfinv(u) for a uniform u: a truncated normal law of scale factor / sqrt(2)."""
    assert u.bounds is not None
    z = truncnorm(norm.ppf((1 + u.bounds[0]) / 2), norm.ppf((1 + u.bounds[1]) / 2))
    std = factor / math.sqrt(2)
    return Fill(float(z.mean()) * std, float(z.var()) * std**2, "truncated normal")


class Recorder(TorchDispatchMode):
    """Records how tensors are filled."""

    def __init__(self) -> None:
        super().__init__()
        self.fills: dict[int, Fill] = {}
        self.kept: list[torch.Tensor] = []  # keep tensors alive, so that no address is reused

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")
        values = _arguments(func, args, kwargs or {})
        if name.endswith("_") and args and isinstance(args[0], torch.Tensor):
            self.record(args[0], self.in_place(name, args[0], values))
        elif isinstance(out, torch.Tensor) and out.is_floating_point():
            self.record(out, self.functional(name, out, values))
        return out

    def record(self, t: torch.Tensor, fill: Fill | None) -> None:
        if fill is not None:
            self.fills[_address(t)] = fill
            self.kept.append(t)

    def of(self, t: Any) -> Fill | None:
        return self.fills.get(_address(t)) if isinstance(t, torch.Tensor) else None

    def in_place(self, name: str, t: torch.Tensor, values: dict[str, Any]) -> Fill | None:
        """The law after an in-place operation."""
        old = self.of(t)
        if name in ("clamp_", "detach_", "requires_grad_", "set_", "data"):
            return old
        fill = _filled(name, values)
        if fill is not None:
            whole = t.numel() * t.element_size() == t.untyped_storage().nbytes()
            same = old is not None and fill.var == 0 and old.var == 0 and old.mean == fill.mean
            # a row of zeros in an embedding (padding) is seen in the values; anything else is no single law
            return fill if whole or same else old if fill.mean == 0 == fill.var else IN_PARTS
        if old is None or math.isnan(old.mean):
            return old or UNKNOWN
        number = values.get("other")
        if name == "erfinv_" and old.bounds:
            return replace(old, name="erfinv")
        if not isinstance(number, int | float):
            return UNKNOWN
        if name == "mul_":
            return truncated(old, number) if old.name == "erfinv" else old.affine(number)
        return _AFFINE[name.rstrip("_")](old, number) if name.rstrip("_") in _AFFINE else UNKNOWN

    def functional(self, name: str, out: torch.Tensor, values: dict[str, Any]) -> Fill | None:
        """The law of a new tensor, such as torch.randn(...) * 0.02."""
        match name.removesuffix("_like"):
            case "randn":
                return Fill(0.0, 1.0, "normal")
            case "rand":
                return uniform(0.0, 1.0)
            case "zeros":
                return Fill(0.0, 0.0, "constant")
            case "ones":
                return Fill(1.0, 0.0, "constant")
        if name in ("full", "full_like", "new_full"):
            return Fill(float(values["fill_value"]), 0.0, "constant")
        source: Any = values.get("self")
        number: Any = values.get("other")
        old = self.of(source)
        if old is None or source is None:
            return None
        if name in ("_to_copy", "clone", "to", "detach", "alias", "contiguous"):
            return old
        if isinstance(number, torch.Tensor) and number.dim() == 0:
            number = float(number)
        if name in _AFFINE and isinstance(number, int | float) and not math.isnan(old.mean):
            return _AFFINE[name](old, number)
        return None if _address(out) == _address(source) else UNKNOWN


def _address(t: torch.Tensor) -> int:
    return t.untyped_storage().data_ptr()


def _arguments(func: Any, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any]:
    names = [a.name for a in func._schema.arguments]
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _filled(name: str, values: dict[str, Any]) -> Fill | None:
    """The law of a fill."""
    match name:
        case "uniform_":
            return uniform(float(values.get("from", 0.0)), float(values.get("to", 1.0)))
        case "normal_":
            mean, std = float(values.get("mean", 0.0)), float(values.get("std", 1.0))
            return Fill(mean, std * std, "normal")
        case "zero_":
            return Fill(0.0, 0.0, "constant")
        case "fill_":
            return Fill(float(values["value"]), 0.0, "constant")
    return None


_AFFINE: dict[str, Callable[[Fill, float], Fill]] = {
    "mul": lambda f, c: f.affine(c),
    "div": lambda f, c: f.affine(1 / c),
    "add": lambda f, c: f.affine(1.0, c),
    "sub": lambda f, c: f.affine(1.0, -c),
}


@contextmanager
def _truncated_fills(recorder: Recorder) -> Iterator[None]:
    """Record calls of `trunc_normal_`, whose rejection sampling is no single fill."""
    original = getattr(torch.nn.init, "_no_grad_trunc_normal_", None)
    if original is None:
        yield
        return

    def watched(
        tensor: Any, mean: float, std: float, a: float, b: float, *arguments: Any, **options: Any
    ) -> Any:
        out = original(tensor, mean, std, a, b, *arguments, **options)
        z = truncnorm((a - mean) / std, (b - mean) / std, loc=mean, scale=std)
        recorder.record(tensor, Fill(float(z.mean()), float(z.var()), "truncated normal"))
        return out

    with mock.patch.object(torch.nn.init, "_no_grad_trunc_normal_", watched):
        yield


def built(make: Callable[[int], Any], width: int) -> tuple[Any, dict[str, Law]]:
    """Build the model at a width; return it with the laws of its parameters at that width."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        with Recorder() as recorder, _truncated_fills(recorder):
            model = make(width)
        if not isinstance(model, torch.nn.Module):
            raise BuildError(
                f"make({width}) returns {a_type(model)}, not a torch.nn.Module",
                remedy="Give a function that builds the model at a width: lambda n: "
                "nn.Sequential(nn.Linear(5, n), ...).",
            )
        laws = {name: _law(p, recorder.of(p)) for name, p in model.named_parameters()}
        if any(law is None for law in laws.values()):
            models = [dict(make(width).named_parameters()) for _ in range(4)]
            for name in [name for name, law in laws.items() if law is None]:
                values = np.concatenate([m[name].detach().double().numpy().ravel() for m in models])
                laws[name] = measured_law(values)
    return model, {name: law for name, law in laws.items() if law is not None}


def _law(p: torch.Tensor, fill: Fill | None) -> Law | None:
    """The recorded law, None without one, and MIXED if the numbers contradict it."""
    in_parts = Law(0.0, (1.0, 1.0), MIXED)
    if fill is IN_PARTS:
        return in_parts
    if fill is None or fill is UNKNOWN or fill.name == "erfinv":
        return None
    values = p.detach().double().numpy()
    zero_rows = ()
    if fill.var and values.ndim == 2:
        zero_rows = tuple(int(i) for i in np.flatnonzero((values == 0).all(1)))
        values = np.delete(values, zero_rows, axis=0)
    n, centred = values.size, values - fill.mean
    if n and abs(centred.mean()) > 6 * math.sqrt(fill.var / n) + 1e-6 * abs(fill.mean):
        return in_parts
    if n > 1 and fill.var and abs((centred**2).mean() / fill.var - 1) > 6 * math.sqrt(3 / n):
        return in_parts
    return Law(fill.mean, (fill.var, fill.var), fill.name, zero_rows=zero_rows)


def read_rows(one: Any, laws: dict[str, Law], two: Any, laws2: dict[str, Law]) -> list[ParameterRow]:
    """Read the parameters of the model at its two widths."""
    parameters2 = dict(two.named_parameters())
    rows = []
    for name, p in one.named_parameters():
        if name not in parameters2 or p.dim() != parameters2[name].dim():
            raise BuildError(
                f"the parameter `{name}` is not in the models of both widths",
                remedy="make(n) builds one architecture, in which only sizes depend on n.",
            )
        shape: tuple[Size, ...] = tuple(zip(p.shape, parameters2[name].shape, strict=True))
        law = at_two_widths(name, laws[name], laws2[name])
        rows.append(ParameterRow(name, shape, law, p.requires_grad))
    return rows
