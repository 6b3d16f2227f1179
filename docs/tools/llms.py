"""`llms.txt` (llmstxt.org): the pages of the site with a sentence about each, for programs that read."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from mkdocs.structure.nav import Section
from mkdocs.structure.pages import Page

ORDER: Final[list[tuple[str, list[str]]]] = []
"""From the title of a section to the source files of its pages, as the navigation has them."""

_BLOCK: Final = re.compile(r"^(#|```|\||<|!|-|:::|\d\.|>)")
_LINK: Final = re.compile(r"\[([^\]]+)\]\([^)]*\)")


@dataclass(frozen=True, slots=True)
class Source:
    """A page before it is rendered."""

    title: str
    url: str
    markdown: str
    meta: Mapping[str, Any] = field(default_factory=dict)


def sections(items: Sequence[Any]) -> list[tuple[str, list[str]]]:
    """The navigation as titles of sections, each with its pages; single pages are one of their own."""
    found: list[tuple[str, list[str]]] = []
    for item in items:
        if isinstance(item, Section):
            found.append((str(item.title), list(_pages_of(item.children))))
        elif isinstance(item, Page):
            found.append(("", [item.file.src_uri]))
    return found


def _pages_of(items: Sequence[Any]) -> list[str]:
    found: list[str] = []
    for item in items:
        if isinstance(item, Page):
            found.append(item.file.src_uri)
        elif isinstance(item, Section):
            found += _pages_of(item.children)
    return found


def summary(markdown: str) -> str:
    """The first paragraph of a page, on one line and without links."""
    for paragraph in re.split(r"\n\s*\n", markdown):
        text = " ".join(paragraph.split())
        if text and _BLOCK.match(text) is None:
            return _LINK.sub(r"\1", text)
    return ""


def index(name: str, base: str, pages: Mapping[str, Source]) -> str:
    """The list of pages."""
    lines = [f"# {name}", ""]
    if "index.md" in pages:
        lines += [f"> {summary(pages['index.md'].markdown)}", ""]
    for title, sources in ORDER:
        listed = [pages[source] for source in sources if source in pages]
        if not title or not listed:
            continue
        lines += [f"## {title}", ""]
        lines += [
            f"- [{page.title}]({base}{page.url}): {summary(page.markdown)}" for page in listed
        ]
        lines.append("")
    return "\n".join(lines)


def everything(name: str, pages: Mapping[str, Source]) -> str:
    """All pages in one text, in the order of the navigation."""
    parts = [f"# {name}"]
    for _, sources in ORDER:
        parts += [pages[source].markdown for source in sources if source in pages]
    return "\n\n---\n\n".join(parts) + "\n"
