"""What `make docs` does beside mkdocs: links to files beside `docs/`; a page loads nothing from elsewhere.

On GitHub a link from a page to code works as it is. The site has only `docs/`: there it leads to the
repository whose address OTTLA_SOURCE_URL has (`https://…/blob/COMMIT`, set by the workflow), and without one
it is its text alone. A warning fails the build, which is strict.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\(((?:\.\./)+[^)\s]+)\)")
ELEMENT = re.compile(r"<(?:script|img|iframe|source|video|link|object|embed)\b[^>]*>", re.IGNORECASE)
FOREIGN = re.compile(r"""(?:src|href|data|srcset)=["']?((?:https?:)?//[^"'\s>]+)""", re.IGNORECASE)
NAVIGATION = re.compile(r"""rel=["']?(?:canonical|prev|next|alternate)\b""")
CSS = re.compile(r"""(?:url\(\s*["']?|@import\s+["'])((?:https?:)?//[^"')]+)""")
log = logging.getLogger("mkdocs.ottla")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
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


def on_post_page(output: str, page: Any, **_: Any) -> str:
    for address in foreign(output):
        log.warning("%s loads %s: the site loads nothing from elsewhere", page.file.src_uri, address)
    return output


def on_post_build(config: Any, **_: Any) -> None:
    for file in Path(config.site_dir).rglob("*.css"):
        for address in CSS.findall(file.read_text()):
            log.warning("%s loads %s: the site loads nothing from elsewhere", file.name, address)


def foreign(html: str) -> Iterator[str]:
    """The addresses from which a page loads scripts, styles or pictures; the theme has Mermaid at a CDN."""
    for element in ELEMENT.findall(html):
        if not NAVIGATION.search(element):
            yield from FOREIGN.findall(element)
    yield from CSS.findall(html)
    if re.search(r"""class=["']?mermaid\b""", html):
        yield "Mermaid"
