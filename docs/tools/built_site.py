"""Looks at the site as it was built: what MkDocs does not check by itself."""

from __future__ import annotations

from collections.abc import Iterator
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

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if tag in _FETCHED and values.get(_FETCHED[tag]):
            self.fetched.append(values[_FETCHED[tag]])
        elif tag == "link" and set(values.get("rel", "").split()) & _FETCHED_LINKS:
            self.fetched.append(values["href"])
        elif tag == "a" and values.get("href"):
            self.linked.append(values["href"])


def problems(site: Path, base: str) -> list[str]:
    """What is wrong with the pages of a built site, one line each.

    A page must not make a browser ask another host for anything, and what it points at on this site
    must be there.

    Args:
        site: The folder with the pages.
        base: The address under which they will be served.
    """
    found: list[str] = []
    for path in sorted(site.rglob("*.html")):
        name = path.relative_to(site).as_posix()
        found += [
            f"{name}: {each}" for each in _problems_of(path.read_text("utf-8"), name, site, base)
        ]
    return found


def _problems_of(html: str, name: str, site: Path, base: str) -> Iterator[str]:
    references = _References()
    references.feed(html)
    here = urljoin(base, name)
    for reference in references.fetched:
        address = urljoin(here, reference)
        if urlsplit(address).scheme == "data":
            continue
        if not address.startswith(base):
            yield f"loads {reference} from another host"
        elif not _is_there(address, site, base):
            yield f"loads {reference}, which is not there"
    for reference in references.linked:
        address = urljoin(here, reference)
        if address.startswith(base) and not _is_there(address, site, base):
            yield f"links to {reference}, which is not there"


def _is_there(address: str, site: Path, base: str) -> bool:
    path = site / unquote(urlsplit(address).path.removeprefix(urlsplit(base).path).lstrip("/"))
    return (path / "index.html").is_file() if path.is_dir() else path.is_file()
