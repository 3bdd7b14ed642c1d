"""Activations that are short expressions in the language's functions, with the names of neural-tangents.

All act on a vector or a block h.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from netsor.build.array_functions import dot
from netsor.build.layers.dense import number
from netsor.build.source_lines import fail
from netsor.lang.functions import erf_gate, exp, gaussian, piecewise, polynomial, sin, sqrt, tanh

__all__ = ["abrelu", "exp_normalized", "gabor", "gelu_tanh", "hermite", "monomial", "rbf"]
__all__ += ["rectified_monomial", "sigmoid_like"]


def _degree(degree: object) -> int:
    if type(degree) is int and 0 <= degree <= 24:
        return degree
    raise fail(f"degree={degree!r:.60}", "A degree is an integer from 0 to 24.")


def abrelu(h: object, low: float, high: float) -> Any:
    """Compute low h where h < 0, else high h.

    Parameters
    ----------
    h
        A vector or a block.
    low, high
        The slopes below and above 0.
    """
    return piecewise(h, knots=(0.0,), pieces=((0.0, number("low", low)), (0.0, number("high", high))))


def exp_normalized(h: object, gamma: float = 1.0, shift: float = -1.0) -> Any:
    """Compute s exp(sqrt(gamma) h / s + gamma (shift - 1) / 2) with s^2 = E[h^2].

    For a centred Gaussian h, E[f f'] = s s' exp(gamma (cos + shift)) with the cosine c / (s s').

    Parameters
    ----------
    gamma
        Rate at which the kernel decays with the angle, >= 0.
    shift
        The kernel has a factor exp(gamma shift).

    References
    ----------
    Shankar et al. 2020, "Neural Kernels Without Tangents".

    Examples
    --------
    >>> import netsor as ns
    >>> U, v = ns.Matrix(), ns.Matrix(rows=1)
    >>> net = ns.network(lambda x: v @ ns.exp_normalized(U @ x))
    >>> ns.kernel(net)([[1.0, 0.0], [0.0, 3.0]]).round(4)  # 1/2, 3/2 exp(-1), 9/2
    array([[0.5   , 0.5518],
           [0.5518, 4.5   ]])
    """
    root = number("gamma", gamma)
    if root < 0:
        raise fail(f"gamma={gamma!r}", "exp(gamma cos) is a kernel for gamma >= 0.")
    s = sqrt(dot(h, h))
    return s * exp(math.sqrt(root) * (h / s) + root * (number("shift", shift) - 1) / 2)


def gabor(h: object) -> Any:
    """Compute exp(-h^2) sin(h)."""
    return gaussian(h) * sin(h)


def gelu_tanh(h: Any) -> Any:
    """Compute h (1 + tanh(sqrt(2/pi) (h + 0.044715 h^3))) / 2, the usual approximation of gelu."""
    return 0.5 * h * (1.0 + tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * (h * h * h))))


def hermite(h: object, degree: int) -> Any:
    """Compute the normalised Hermite polynomial He_degree(h) / sqrt(degree!).

    E[f f'] = c^degree where h has variance 1.

    Parameters
    ----------
    h
        A vector or a block.
    degree
        An integer from 0 to 24.

    Examples
    --------
    >>> import netsor as ns
    >>> U, v = ns.Matrix(), ns.Matrix(rows=1)
    >>> net = ns.network(lambda x: v @ ns.hermite(U @ x, 3))
    >>> ns.kernel(net)([[1.0, 1.0], [1.4, 0.2]]).round(4)  # 1, 0.8^3
    array([[1.   , 0.512],
           [0.512, 1.   ]])
    """
    power = np.polynomial.hermite_e.herme2poly([0] * _degree(degree) + [1])
    return polynomial(h, coefs=tuple(float(c) for c in power / math.sqrt(math.factorial(degree))))


def monomial(h: object, degree: int) -> Any:
    """Compute h^degree, for a degree from 0 to 24."""
    return polynomial(h, coefs=(0.0,) * _degree(degree) + (1.0,))


def rbf(h: Any, gamma: float = 1.0) -> Any:
    """Compute sqrt(2) sin(sqrt(2 gamma) h + pi/4), whose kernel is Gaussian.

    E[f f'] = exp(-gamma E[(h - h')^2]) for centred Gaussians.

    Parameters
    ----------
    gamma
        The inverse of twice the squared length scale, > 0.

    Examples
    --------
    >>> import netsor as ns
    >>> U, v = ns.Matrix(), ns.Matrix(rows=1)
    >>> ns.kernel(ns.network(lambda x: v @ ns.rbf(U @ x)))([[1.0], [2.0]]).round(4)  # exp(-1)
    array([[1.    , 0.3679],
           [0.3679, 1.    ]])
    """
    if not number("gamma", gamma) > 0:
        raise fail(f"gamma={gamma!r}", "Give a number above 0.")
    return math.sqrt(2) * sin(math.sqrt(2 * gamma) * h + math.pi / 4)


def rectified_monomial(h: object, degree: int) -> Any:
    """Compute h^degree where h > 0, else 0, whose kernels are the arc-cosine kernels.

    Parameters
    ----------
    h, degree
        As for `hermite`.

    References
    ----------
    Cho and Saul 2009, "Kernel Methods for Deep Learning".
    """
    return piecewise(h, knots=(0.0,), pieces=((0.0,), (0.0,) * _degree(degree) + (1.0,)))


def sigmoid_like(h: Any) -> Any:
    """Compute (1 + erf(h / 2.402...)) / 2, the least-squares approximation of the sigmoid on [-5, 5]."""
    return erf_gate(h / 2.4020563531719796)
