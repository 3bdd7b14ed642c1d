"""Print the size and the vocabulary of the package, room by room, beside those of the last release.

    python .ci/habits.py            # a table; exit 1 if a limit is exceeded
    python .ci/habits.py --report   # the table alone; never fails
    python .ci/habits.py --release  # keep today's numbers as those of the last release

The limits are those that the project holds itself to; see "Habits" in CONTRIBUTING.md.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "src" / "netsor"
RELEASE = Path(__file__).with_name("habits.json")
EMPTY_NAMES = {"found", "made", "own", "known", "some", "others", "rest"}
CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]*$")

# At most: lines outside `models` (see docs/design/size.md), lines of a function without its docstring, and
# rates per 1,000 lines.
LIMITS = {"lines": 39_000, "longest": 60, "constants": 5.0, "empty_names": 2.0, "repeated_classes": 7}


@dataclass
class Counts:
    """What is counted in a set of files."""

    files: int = 0
    lines: int = 0
    code: int = 0  # lines without blank ones, docstrings, comments and imports
    docstrings: int = 0
    comments: int = 0
    constants: int = 0
    empty_names: int = 0
    annotations: int = 0
    any_annotations: int = 0
    longest: int = 0
    longest_name: str = ""
    classes: Counter[str] = field(default_factory=Counter)
    modules: Counter[str] = field(default_factory=Counter)

    def add(self, path: Path) -> None:
        text = path.read_text(encoding="utf8")
        tree = ast.parse(text)
        self.files += 1
        self.lines += text.count("\n")
        self.comments += _comment_lines(text)
        docstrings = set(_docstring_lines(tree))
        self.docstrings += len(docstrings)
        imports = {n for s in tree.body if isinstance(s, ast.Import | ast.ImportFrom) for n in _span(s)}
        for number, line in enumerate(text.splitlines(), 1):
            is_code = line.strip() and not line.lstrip().startswith("#")
            self.code += bool(is_code and number not in docstrings | imports)
        self.constants += sum(1 for name in _module_level_names(tree) if CONSTANT.match(name))
        if path.stem != "__init__":
            self.modules[path.stem] += 1
        for node in ast.walk(tree):
            self._add_node(node, path)

    def _add_node(self, node: ast.AST, path: Path) -> None:
        if isinstance(node, ast.ClassDef):
            self.classes[node.name] += 1
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = _lines(node) - (_lines(node.body[0]) if ast.get_docstring(node, clean=False) else 0)
            if length > self.longest:
                self.longest, self.longest_name = length, f"{path.stem}.{node.name}"
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            for annotation in [a.annotation for a in arguments] + [node.returns]:
                if annotation is not None:
                    self.annotations += 1
                    self.any_annotations += any(
                        isinstance(part, ast.Name) and part.id == "Any" for part in ast.walk(annotation)
                    )
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            self.empty_names += node.id in EMPTY_NAMES

    @property
    def repeated_classes(self) -> list[str]:
        return sorted(name for name, count in self.classes.items() if count > 1)

    @property
    def repeated_modules(self) -> list[str]:
        return sorted(name for name, count in self.modules.items() if count > 1)

    def rates(self) -> dict[str, float]:
        """The numbers of a row of the table."""
        thousands = max(self.lines, 1) / 1000
        return {
            "files": self.files,
            "lines": self.lines,
            "code": self.code,
            "docstrings": self.docstrings,
            "longest": self.longest,
            "constants": round(self.constants / thousands, 1),
            "empty_names": round(self.empty_names / thousands, 1),
            "comments %": round(100 * self.comments / max(self.lines, 1), 1),
            "Any %": round(100 * self.any_annotations / max(self.annotations, 1), 1),
            "repeated_classes": len(self.repeated_classes),
            "repeated_modules": len(self.repeated_modules),
        }


def _span(node: ast.stmt) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def _lines(node: ast.stmt) -> int:
    return len(_span(node))


def _docstring_lines(tree: ast.Module) -> Iterator[int]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, kinds) and ast.get_docstring(node, clean=False) is not None:
            yield from _span(node.body[0])


def _comment_lines(text: str) -> int:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return len({token.start[0] for token in tokens if token.type == tokenize.COMMENT})


def _module_level_names(tree: ast.Module) -> Iterator[str]:
    for statement in tree.body:
        targets = (
            statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        )
        for target in targets:
            for node in ast.walk(target) if target is not None else ():
                if isinstance(node, ast.Name):
                    yield node.id


def room_of(path: Path) -> str:
    """The package that a file belongs to; those of `limits` and `expect` count by themselves."""
    parts = path.relative_to(PACKAGE).parts[:-1]
    return "/".join(parts[:2] if parts and parts[0] in ("limits", "expect", "gp") else parts[:1]) or "netsor"


def count() -> dict[str, Counts]:
    rooms: dict[str, Counts] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        rooms.setdefault(room_of(path), Counts()).add(path)
    rooms["all"] = Counts()
    rooms["all without models"] = Counts()
    for path in sorted(PACKAGE.rglob("*.py")):
        rooms["all"].add(path)
        if room_of(path) != "models":
            rooms["all without models"].add(path)
    return rooms


def exceeded(rooms: dict[str, Counts]) -> list[str]:
    """The limits that are exceeded, in words."""
    rates = rooms["all"].rates() | {"lines": rooms["all without models"].lines}
    return [
        f"{name}: {rates[name]}, at most {limit}" for name, limit in LIMITS.items() if rates[name] > limit
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--release", action="store_true", help="keep today's numbers as those of the last release"
    )
    parser.add_argument("--report", action="store_true", help="print the table without judging it")
    options = parser.parse_args()
    rooms = count()
    rows = {name: counts.rates() for name, counts in rooms.items()}
    if options.release:
        RELEASE.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf8")
        return
    before = json.loads(RELEASE.read_text(encoding="utf8")) if RELEASE.exists() else {}
    columns = list(rows["all"])
    print(f"{'room':22}" + "".join(f"{c.replace('_', ' '):>18}" for c in columns) + "   (last release)")
    for name in dict.fromkeys([*rows, *before]):
        now, then = rows.get(name, {}), before.get(name, {})
        cells = (f"{now.get(c, '-')} ({then.get(c, '-')})" for c in columns)
        print(f"{name:22}" + "".join(f"{cell:>18}" for cell in cells))
    whole = rooms["all"]
    print(f"\nlongest function: {whole.longest_name}, {whole.longest} lines")
    print(f"class names in several modules: {', '.join(whole.repeated_classes)}")
    print(f"file names in several folders: {', '.join(whole.repeated_modules)}")
    problems = exceeded(rooms)
    if problems and not options.report:
        sys.exit("exceeded: " + "; ".join(problems))


if __name__ == "__main__":
    main()
