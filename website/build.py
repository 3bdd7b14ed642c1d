"""Build the site into out/site. Warnings, broken links and files from other servers are errors."""

from __future__ import annotations

import logging
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

from mkdocs.commands.build import build
from mkdocs.config import load_config

ROOT = Path(__file__).parents[1]
LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}


class Links(HTMLParser):
    """What a page loads and links to, and its anchors."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.targets: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {key: value or "" for key, value in attrs}
        self.anchors |= {found[key] for key in ("id", "name") if key in found}
        if tag in LOADED and LOADED[tag] in found and found.get("rel") != "canonical":
            self.loaded.append(found[LOADED[tag]])
        if tag == "a" and "href" in found:
            self.targets.append(found["href"])


def problems(site: Path) -> list[str]:
    """Find broken links and files from other servers."""
    pages = {
        path: Links(path.read_text()) for path in sorted(site.rglob("*.html")) if path.name != "404.html"
    }
    found = []
    for path, links in pages.items():
        place = path.relative_to(site)
        found += [f"{place} loads {url}" for url in links.loaded if re.match(r"(https?:)?//", url)]
        for target in {*links.targets, *links.loaded}:
            file, _, anchor = target.partition("#")
            if re.match(r"\w+:|//", target):
                continue
            there = (path.parent / unquote(file)).resolve() if file else path
            if not there.exists():
                found.append(f"{place} links to {target}, which is not there")
            elif anchor and there in pages and unquote(anchor) not in pages[there].anchors:
                found.append(f"{place} links to {target}, which has no such place")
    return found


def main() -> int:
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    build(load_config(str(ROOT / "mkdocs.yml"), strict=True))
    site = ROOT / "out" / "site"
    wrong = problems(site)
    print("\n".join(wrong or [f"{len(list(site.rglob('*.html')))} pages in {site.relative_to(ROOT)}"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
