"""The lowest versions that pyproject.toml allows, as constraints for pip.

python .ci/lowest.py > constraints.txt
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

PROJECT = Path(__file__).parents[1] / "pyproject.toml"
TOOLS = {"import-linter", "pyright", "ruff"}  # they judge the source, and no test runs with them
BOUND = re.compile(r"([A-Za-z0-9._-]+)>=([0-9.]+)")


def constraints() -> Iterator[str]:
    """`name==lowest` for each dependency, of the package and of its extras."""
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    extras = [text for texts in project["optional-dependencies"].values() for text in texts]
    bounds: dict[str, str] = {}
    for text in [*project["dependencies"], *extras]:
        if text.startswith(project["name"] + "["):  # an extra that is made of others
            continue
        match = BOUND.fullmatch(text)
        if match is None:
            raise SystemExit(f"{text!r} has no lower bound of the form name>=version")
        name, lowest = match.groups()
        if bounds.setdefault(name, lowest) != lowest:
            raise SystemExit(f"{name} has two lower bounds: {bounds[name]} and {lowest}")
    return (f"{name}=={lowest}" for name, lowest in bounds.items() if name not in TOOLS)


if __name__ == "__main__":
    print("\n".join(constraints()))
