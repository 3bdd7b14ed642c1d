"""Models that must be refused: the message names the module, the operation, the user's line, and the remedy.

`python tests/models/test_torch_refused.py` writes the messages anew.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from refused_models import REFUSED  # noqa: E402

import netsor as ns  # noqa: E402

MESSAGES = Path(__file__).parent / "refused.txt"
WITHOUT_MODULE = {  # the whole model does it, or torch.export itself stops
    *("function of an output", "softmax of an output", "no readout", "branch on values", "pixel shuffle"),
    "dropout of data",
}


@cache
def error_of(name: str) -> ns.NetsorError:
    case = REFUSED[name]
    try:
        ns.program(ns.from_torch(case.make, width=16, **case.options), case.x)
    except ns.NetsorError as error:
        return error
    raise AssertionError(f"{name} is accepted")


def messages() -> dict[str, str]:
    parts = re.split(r"^# (.*)\n", MESSAGES.read_text(encoding="utf-8"), flags=re.M)[1:]
    return {name: text.strip() for name, text in zip(parts[::2], parts[1::2], strict=True)}


def test_there_are_at_least_twenty():
    assert len(REFUSED) >= 20
    assert set(messages()) == set(REFUSED)


@pytest.mark.parametrize("name", REFUSED)
def test_message(name):
    error = error_of(name)
    assert str(error) == messages()[name]
    assert error.place is not None
    assert error.place.file == "refused_models.py"
    assert error.place.text.strip()
    assert len(error.remedy) > 20
    if name not in WITHOUT_MODULE:
        assert re.match(r"`[\w.]+`, aten\.", error.what)


if __name__ == "__main__":
    text = "\n".join(f"# {name}\n{error_of(name)}\n" for name in REFUSED)
    MESSAGES.write_text(text, encoding="utf-8")
