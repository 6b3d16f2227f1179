"""Checks the built sites for what MkDocs does not check, links between the two among it: `python -m docs.tools.built_site site`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urljoin, urlsplit

# What a browser fetches by itself when it shows a page.
_FETCHED: Final = {
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "audio": "src",
    "embed": "src",
    "object": "data",
}
_FETCHED_LINKS: Final = {"stylesheet", "preload", "prefetch", "icon", "preconnect", "modulepreload"}


class _References(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.linked: list[str] = []
        self.silent: list[str] = []
        self.ids: set[str] = set()
        self.unlisted: list[str] = []
        self._in_paragraph = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.ids.add(values.get("id", ""))
        self._in_paragraph |= tag == "p"
        if tag == "img" and not values.get("alt"):
            self.silent.append(values.get("src", ""))
        if tag in _FETCHED and values.get(_FETCHED[tag]):
            self.fetched.append(values[_FETCHED[tag]])
        elif tag == "link" and set(values.get("rel", "").split()) & _FETCHED_LINKS:
            self.fetched.append(values["href"])
        elif tag == "a" and values.get("href"):
            self.linked.append(values["href"])

    def handle_endtag(self, tag: str) -> None:
        self._in_paragraph &= tag != "p"

    def handle_data(self, data: str) -> None:
        if self._in_paragraph and "\n- " in data:
            self.unlisted.append(data.partition("\n- ")[0].strip()[-40:])


def problems(site: Path, base: str) -> list[str]:
    """What is wrong with the pages of a built site, one line each.

    A page must not make a browser ask another host for anything. What it points at on this site must be there, down to the
    heading. An image needs a text. A list must not have become a part of the paragraph above it.

    Args:
        site: The folder with the pages.
        base: The address under which they will be served.
    """
    pages: dict[str, _References] = {}
    for path in sorted(site.rglob("*.html")):
        references = pages[path.relative_to(site).as_posix()] = _References()
        references.feed(path.read_text("utf-8"))
    return [f"{name}: {each}" for name in pages for each in _problems_of(name, pages, site, base)]


def _problems_of(
    name: str, pages: Mapping[str, _References], site: Path, base: str
) -> Iterator[str]:
    references = pages[name]
    here = urljoin(base, name)
    for reference in references.silent:
        yield f"shows {reference} without a text"
    for text in references.unlisted:
        yield f"shows a list as text, after {text!r}"
    for reference in references.fetched:
        address = urljoin(here, reference)
        if urlsplit(address).scheme == "data":
            continue
        if not address.startswith(base):
            yield f"loads {reference} from another host"
        elif _file(address, site, base) is None:
            yield f"loads {reference}, which is not there"
    for reference in references.linked:
        address = urljoin(here, reference)
        if not address.startswith(base):
            continue
        file = _file(address, site, base)
        heading = unquote(urlsplit(address).fragment)
        if file is None:
            yield f"links to {reference}, which is not there"
        elif heading and file in pages and heading not in pages[file].ids:
            yield f"links to {reference}, but the page has no such heading"


def _file(address: str, site: Path, base: str) -> str | None:
    """The file that an address of the site shows, from the folder of the site."""
    path = site / unquote(urlsplit(address).path.removeprefix(urlsplit(base).path).lstrip("/"))
    file = path / "index.html" if path.is_dir() else path
    return file.relative_to(site).as_posix() if file.is_file() else None


if __name__ == "__main__":
    found = problems(Path(sys.argv[1]), "https://msk-auth.readthedocs.io/en/stable/")
    sys.exit("\n".join(["The built site is not right:", *found]) if found else None)
