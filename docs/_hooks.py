"""What `make docs` does beside mkdocs: links to files beside `docs/`; what a page loads exists, and is local.

On GitHub a link from a page to code works as it is. The site has only `docs/`: there it leads to the
repository whose address OTTLA_SOURCE_URL has (`https://…/blob/COMMIT`, set by the workflow), and without one
it is its text alone. A warning fails the build, which is strict.
"""

from __future__ import annotations

import itertools
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\(((?:\.\./)+[^)\s]+)\)")
ELEMENT = re.compile(r"<(?:script|img|iframe|source|video|link|object|embed)\b[^>]*>", re.IGNORECASE)
ADDRESS = re.compile(r"""\b(?:src|href|data|srcset)=["']?([^"'\s>]+)""", re.IGNORECASE)
FOREIGN = re.compile(r"(?:https?:)?//")
NAVIGATION = re.compile(r"""rel=["']?(?:canonical|prev|next|alternate)\b""")
CSS = re.compile(r"""(?:url\(\s*["']?|@import\s+["'])((?:https?:)?//[^"')]+)""")
SELDOM = ("adr/", "reference/protocol-messages")
"""Search shows these pages after others."""
log = logging.getLogger("mkdocs.ottla")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    if page.file.src_uri.startswith(SELDOM):
        page.meta["search"] = {"boost": 0.2}
    source = Path(page.file.abs_src_path)
    address = os.environ.get("OTTLA_SOURCE_URL", "")

    def link(match: re.Match[str]) -> str:
        text, target = match.groups()
        path, _, anchor = target.partition("#")
        file = (source.parent / path).resolve()
        if file.is_relative_to(ROOT / "docs"):
            return match.group(0)
        if not file.exists():
            log.warning("%s links to %s, which does not exist", page.file.src_uri, target)
        if not address:
            return text
        return f"[{text}]({address}/{file.relative_to(ROOT)}{'#' if anchor else ''}{anchor})"

    return LINK.sub(link, markdown)


def on_post_build(config: Any, **_: Any) -> None:
    for file in Path(config.site_dir).rglob("*.css"):
        for address in CSS.findall(file.read_text()):
            log.warning("%s loads %s: the site loads nothing from elsewhere", file.name, address)
    for file in Path(config.site_dir).rglob("*.html"):
        for problem in problems(file.read_text(), file.parent):
            log.warning("%s %s", file.relative_to(config.site_dir), problem)


def problems(html: str, folder: Path) -> Iterator[str]:
    """What is wrong with the scripts, styles and pictures of a page; the theme has Mermaid at a CDN."""
    loaded = [element for element in ELEMENT.findall(html) if not NAVIGATION.search(element)]
    for address in (*itertools.chain.from_iterable(map(ADDRESS.findall, loaded)), *CSS.findall(html)):
        if FOREIGN.match(address):
            yield f"loads {address}: the site loads nothing from elsewhere"
        elif not address.startswith(("data:", "/", "#")) and not (folder / address.split("#")[0]).exists():
            yield f"loads {address}, which does not exist"
    if re.search(r"""class=["']?mermaid\b""", html):
        yield "has a Mermaid drawing, whose script the theme loads from elsewhere: draw an SVG"
