"""Hooks of MkDocs: generated pages, links to files outside of docs/, formulas as MathML."""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from website.commands import commands_page  # noqa: E402  (our own folder, put on the path above)
from website.notebooks import notebook_pages  # noqa: E402
from website.reference import PAGES, definition  # noqa: E402

PROJECT = (
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "tests/README.md",
    "tests/before_after/README.md",
    "tests/hostile/README.md",
)
LINK = re.compile(r"(!?\[[^\]]*\])\(([^)\s#]+)(#[^)]*)?\)")
FORMULA = re.compile(r'<(div|span) class="arithmatex">(.*?)</\1>', re.S)
LANGUAGES = {".py": "python", ".netsor": "text", ".json": "json", ".txt": "text"}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The pages of the reference in the navigation."""
    pages: list[Any] = [f"reference/{page.file}.md" for page in PAGES]
    section = next(item for item in config.nav or [] if "Reference" in item)
    section["Reference"] = ["reference/index.md", *pages, "reference/commands.md"]
    books = next(item for item in config.nav or [] if "Notebooks" in item)
    books["Notebooks"] = list(notebook_pages(ROOT / "notebooks"))
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The reference, and the files of the repository that documents link to."""
    made = {f"reference/{page.file}.md": page.text for page in PAGES}
    made |= {"reference/index.md": _contents(), "reference/commands.md": commands_page()}
    made |= {name: (ROOT / name).read_text() for name in PROJECT}
    for path in sorted((ROOT / "examples").rglob("*")):
        name = path.relative_to(ROOT).as_posix()
        if path.suffix in LANGUAGES:
            made[f"{name}.md"] = f"# {name}\n\n```{LANGUAGES[path.suffix]}\n{path.read_text()}```\n"
        elif path.suffix == ".md":
            made[name] = path.read_text()
    made |= notebook_pages(ROOT / "notebooks")
    for name, content in made.items():
        files.append(File.generated(config, name, content=content))
    return files


def _contents() -> str:
    rows = []
    for page in PAGES:
        names = ", ".join(
            f"[`{name.rpartition('.')[2]}`]({page.file}.md#{definition(name)})" for name in page.names
        )
        rows.append(f"| [{page.title}]({page.file}.md) | {names} |")
    return "\n".join(
        [
            "# Reference",
            "",
            "Every public name. The [commands](commands.md) have a page of their own.",
            "",
            "| page | names |",
            "| --- | --- |",
            *rows,
            "",
        ]
    )


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Links are written for the repository; here they lead to the same file on the site."""
    source = page.file.src_uri
    generated = source in PROJECT or source.startswith("examples/")
    place = posixpath.dirname(source if generated else f"docs/{source}")

    def moved(match: re.Match[str]) -> str:
        label, target, anchor = match.groups()
        if "://" in target or source.startswith("reference/"):
            return match[0]
        there = _on_site(posixpath.normpath(posixpath.join(place, target)))
        return f"{label}({posixpath.relpath(there, posixpath.dirname(source) or '.')}{anchor or ''})"

    parts = re.split(r"(^```.*?^```)", markdown, flags=re.S | re.M)  # code is left alone
    return "".join(part if part.startswith("```") else LINK.sub(moved, part) for part in parts)


def _on_site(path: str) -> str:
    """Where a file of the repository is on the site."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path == "README.md":
        return "index.md"
    if path.endswith(".ipynb"):
        return f"{path.removesuffix('.ipynb')}.md"
    if (ROOT / path).is_dir():
        return f"{path}/README.md"
    return f"{path}.md" if Path(path).suffix in LANGUAGES else path


def on_page_content(html: str, **_: Any) -> str:
    """Formulas as MathML, which browsers draw by themselves."""

    def drawn(match: re.Match[str]) -> str:
        block, formula = match[1] == "div", re.sub(r"^\\[(\[]|\\[)\]]$", "", match[2].strip())
        formula = formula.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
        formula = formula.replace("{aligned}", "{split}")  # the converter's name for the same
        made = convert(formula, display="block" if block else "inline")
        if "<mi>&</mi>" in made or "\\" in made:
            raise ValueError(f"the formula {formula} is not understood")
        return f'<div class="formula">{made}</div>' if block else made

    return FORMULA.sub(drawn, html)
