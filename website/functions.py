"""The entries of coordinatewise functions: formula, values, and how their kernels are computed."""

from __future__ import annotations

from netsor.lang.ops import Function
from website.examples import session

__all__ = ["FORMULAS", "function_entry", "function_example"]

FORMULAS = {
    "relu": r"\max(x, 0)",
    "leaky_relu": r"x \text{ for } x > 0, \quad \text{slope} \cdot x \text{ else}",
    "abs": r"|x|",
    "step": r"1 \text{ for } x > 0, \quad 0 \text{ else}",
    "sign": r"x / |x|, \quad 0 \text{ at } 0",
    "hard_tanh": r"\min(\max(x, \text{low}), \text{high})",
    "identity": r"x",
    "polynomial": r"\sum_k c_k x^k",
    "piecewise": r"\sum_k c_{ik} x^k \text{ between knots } i - 1 \text{ and } i",
    "erf": r"\frac{2}{\sqrt{\pi}} \int_0^x e^{-t^2} dt",
    "erf_gate": r"\frac{1 + \operatorname{erf}(x)}{2}",
    "tanh": r"\frac{e^x - e^{-x}}{e^x + e^{-x}}",
    "sigmoid": r"\frac{1}{1 + e^{-x}}",
    "gelu": r"\frac{x}{2} \left(1 + \operatorname{erf}\frac{x}{\sqrt{2}}\right)",
    "silu": r"\frac{x}{1 + e^{-x}}",
    "elu": r"x \text{ for } x > 0, \quad \alpha (e^x - 1) \text{ else}",
    "softplus": r"\log(1 + e^x)",
    "gaussian": r"e^{-\text{rate} \cdot x^2}",
    "sin": r"\sin x",
    "cos": r"\cos x",
    "exp": r"e^x",
    "log": r"\log x",
    "sqrt": r"\sqrt{x}",
    "maximum": r"\max(x, y)",
    "minimum": r"\min(x, y)",
}


def function_entry(f: Function) -> str:
    """A coordinatewise function: its signature, formula, values, and how its kernel is computed."""
    options = "".join(f", {key}={value:g}" for key, value in f.defaults.items() if isinstance(value, float))
    arguments = "x" if f.arity == 1 else "x, y"
    lines = [f"### ns.{f.name} {{ #netsor.{f.name} }}", f"```python\n{f.name}({arguments}{options})\n```"]
    lines += [f"$$ {FORMULAS[f.name]} $$", f"```pycon\n{session(function_example(f))}\n```"]
    return "\n\n".join(lines)


def function_example(f: Function) -> str:
    """Values of a function, and the kernel of a network with it."""
    if f.name in OWN_EXAMPLE:
        return OWN_EXAMPLE[f.name]
    values = f"ns.{f.name}(np.array([-1.0, 0.5, 2.0]))"
    kernel = (
        f"K = ns.kernel(ns.zoo.mlp(1, ns.{f.name}, var_b=0.0))\nfound = K.evaluate([[1.0, 1.0], [1.0, 0.0]])"
    )
    return f"{values}.round(4)\n{kernel}\nfound.value.round(4)\nprint(found.explain().splitlines()[1])"


# Functions of two arguments, with options that have no default, or that are not for vectors.
OWN_EXAMPLE = {
    "maximum": "ns.maximum(np.array([-1.0, 2.0]), np.array([0.0, 1.0]))",
    "minimum": "ns.minimum(np.array([-1.0, 2.0]), np.array([0.0, 1.0]))",
    "log": "ns.log(np.array([1.0, 2.0])).round(4)",
    "sqrt": "ns.sqrt(np.array([1.0, 2.0])).round(4)",
    "polynomial": "ns.polynomial(np.array([-1.0, 2.0]), coefs=(1.0, 0.0, 3.0))  # 1 + 3 x^2",
    "piecewise": "ns.piecewise(np.array([-1.0, 2.0]), knots=(0.0,), pieces=((0.0,), (0.0, 1.0)))  # relu",
}
