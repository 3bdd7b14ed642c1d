"""Mutated programs in text form: whatever the text is, reading it ends in a program or in a NetsorError.

`python tests/hostile/fuzz.py 50000 --seed 0` tries so many; every program that is read is also shown, read
back, lowered and expanded, and simulated if it is small.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np

import netsor as ns
from netsor.lang.functions import ARITHMETIC, FUNCTIONS, MIXINGS
from netsor.lang.lower import VARIANTS

PROGRAMS = Path(__file__).parents[2] / "examples" / "programs"
WORDS = [
    *(
        "Input",
        "Output",
        "Data",
        "MatMul",
        "Moment",
        "Nonlin",
        "None",
        "sum",
        "sqrt",
        "N",
        "T",
        "G(n)",
        "H(n)",
        "C",
    ),
    *(
        "A(n, n)",
        "A(n, 3)",
        "G(n)[2]",
        "G(m)",
        "[2, 2]",
        "[0]",
        "[-1]",
        "[:, None]",
        "[]",
        "axis=0",
        "axis=[0, 1]",
    ),
    *(
        ":=",
        "::",
        "~",
        "^",
        "^T",
        "/",
        "*",
        "+",
        "-",
        "(",
        ")",
        "[",
        "]",
        ",",
        ";",
        ":",
        "=",
        ".",
        "#",
        "@",
        '"',
        "\\",
    ),
    *(
        "0",
        "1",
        "-1",
        "2.5",
        "1e308",
        "1e999",
        "nan",
        "inf",
        "-0",
        "9" * 30,
        "0.1e-400",
        "x",
        "n",
        "W",
        "\x00",
        "\u00e9",
    ),
    *FUNCTIONS,
    *ARITHMETIC,
    *MIXINGS,
    *(
        "at",
        "take",
        "reshape",
        "transpose",
        "stack",
        "concat",
        "contract",
        "window",
        "patches",
        "avgpool",
        "mean",
    ),
    *(
        'padding="same"',
        "dims=1",
        "size=[2]",
        "stride=[1]",
        "indices=[0, 0]",
        "shape=[4]",
        "axes=[1, 0]",
        "eps=0.1",
    ),
]


def sources() -> list[str]:
    """The programs of the paper, and short ones with every kind of statement."""
    found = [path.read_text(encoding="utf-8") for path in sorted(PROGRAMS.glob("*.netsor"))]
    small = """Data x = [[1, 0], [1, 1]]
Input U :: A(n, 2) ~ N(0, 1/2)
Input W :: A(n, n)[3] ~ N(0, 1/n)
Input Ux :: G(n)[2] ~ MatMul(U, x)
Input b :: G(n) ~ N(0.5, 2)
Input c :: G(n)[2] ~ N([1, 2], [[1, 0.5], [0.5, 1]], b: [0.1, 0.2])
Input v :: G(n) ~ N(0, 1)
h := Ux + 0.5*b - c[::-1] :: G(n)[2]
m := Moment(h*h)
a := relu(h)/sqrt(m + 1) + max(h, axis=0)
g := MatMul(W, a)
y := window(g, dims=1, padding="same")
z := mean(batchnorm(y, axis=[0], eps=0.1), axis=[0])
Output v^T z / sqrt(n) + 2
"""
    return [text for text in found if len(text) < 4000] + [small] * 5


def mutated(text: str, rng: random.Random) -> str:
    """A text with a few places changed."""
    lines = text.splitlines()
    for _ in range(rng.choice((1, 1, 2, 3, 6))):
        i = rng.randrange(len(lines))
        line = lines[i]
        j, k = sorted((rng.randrange(len(line) + 1), rng.randrange(len(line) + 1)))
        match rng.randrange(9):
            case 0:
                lines[i] = line[:j] + rng.choice(WORDS) + line[j:]
            case 1:
                lines[i] = line[:j] + line[k:]
            case 2:
                lines[i] = line[:j] + rng.choice(WORDS) + line[min(j + 3, len(line)) :]
            case 3:
                lines[i] = line[:k] + line[j:]
            case 4:
                lines.insert(rng.randrange(len(lines)), line)
            case 5:
                other = rng.choice(lines)
                lines[i] = line[:j] + other[rng.randrange(len(other) + 1) :]
            case 6:
                words = line.split(" ")
                words[rng.randrange(len(words))] = rng.choice(WORDS)
                lines[i] = " ".join(words)
            case 7:
                lines[i] = line[:j] + chr(rng.choice((0, 9, 13, 34, 92, 127, 160, 955, 0x1F600))) + line[j:]
            case 8 if len(lines) > 1:
                del lines[i]
    return "\n".join(lines)


def read(text: str, rng: random.Random) -> bool:
    """Read a text in every way; whether it is a program. Nothing but a NetsorError may stop it."""
    try:
        program = ns.parse(text)
    except ns.NetsorError:
        return False
    assert ns.parse(program.show()) == program
    repr(program), program.canonical()
    with suppress(ns.NetsorError):
        program.lower(rng.choice(VARIANTS)).check()
        program.expand().check()
    if program.outputs and rng.random() < 0.1:
        with suppress(ns.NetsorError):
            ns.simulate(program, width=2, seed=0)
    return True


def fuzz(count: int, seed: int) -> Iterator[tuple[str, bool]]:
    """Mutated texts, and whether each is a program."""
    rng, texts = random.Random(seed), sources()
    for _ in range(count):
        text = mutated(rng.choice(texts), rng)
        try:
            with warnings.catch_warnings(), np.errstate(all="raise"):
                warnings.simplefilter("error")
                yield text, read(text, rng)
        except BaseException as error:
            error.add_note(f"the program was:\n{text}")
            raise


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int, nargs="?", default=500)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    start, good = time.perf_counter(), 0
    for _, fine in fuzz(options.count, options.seed):
        good += fine
    print(f"{options.count} texts, {good} programs, {time.perf_counter() - start:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
