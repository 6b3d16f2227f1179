"""What happens while a site is built: generated parts, diagrams, `llms.txt`, and words for the search.

A page says `<!-- generated: http-api -->` where a part is made from the code. What is made here
cannot go stale, and what cannot be made stops the build.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mkdocs.structure.files import File

# MkDocs loads this file by its path, from wherever it was started.
sys.path.insert(0, str(Path(__file__).parents[2]))

from docs.tools import (
    diagrams,
    first_route,
    http_api_page,
    llms,
    search_index,
)

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.nav import Navigation
    from mkdocs.structure.pages import Page

_MARKER: Final = re.compile(r"<!-- generated: ([a-z-]+) -->")
# A picture of a page of the service, wide and light; the others are beside it.
_PICTURE: Final = re.compile(
    r"^!\[(.+)\]\((assets/pages/[a-z-]+)-wide-light\.webp\)$", re.MULTILINE
)

GENERATED: Final[dict[str, Callable[[], str]]] = {
    "first-route": cache(first_route.render),
    "http-api": cache(http_api_page.render_service),
    "key-routes": cache(http_api_page.render_library),
}
"""From the name in a marker to what takes its place."""

_pages: dict[str, llms.Source] = {}


def fill_in(markdown: str) -> str:
    """The page with every marker replaced.

    Raises:
        KeyError: A marker names nothing that can be made.
    """
    return _MARKER.sub(lambda match: GENERATED[match[1]](), markdown)


def on_files(files: Files, *, config: MkDocsConfig, **_: Any) -> Files:
    """Give the handbook of the service the looks of the library's pages."""
    for name in ("assets/site.css", "assets/site.js"):
        if files.get_file_from_path(name) is None:
            source = Path(__file__).parents[1] / name
            files.append(File.generated(config, name, abs_src_path=str(source)))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Fill in what is generated, show each picture in both sizes and schemes, and put diagrams into the page itself."""
    filled = _PICTURE.sub(_in_both_sizes_and_schemes, fill_in(markdown))
    _pages[page.file.src_uri] = llms.Source(
        title=str(page.title), url=page.url, markdown=filled, meta=dict(page.meta)
    )
    return diagrams.inline(filled)


def _in_both_sizes_and_schemes(match: re.Match[str]) -> str:
    return "\n".join(
        f"![{match[1]}, {screen}, by {scheme}]({match[2]}-{size}-{scheme}.webp#only-{scheme})"
        f'{{ .{size} width="{width}" height="700" loading="lazy" }}'
        for size, screen, width in (
            ("wide", "on a wide screen", 1120),
            ("phone", "on a phone", 390),
        )
        for scheme in ("light", "dark")
    )


def on_post_page(output: str, **_: Any) -> str:
    """Give the theme's search a name for screen readers, and leave no header of a table empty."""
    return _accessible(output)


def on_post_template(output: str, **_: Any) -> str:
    """Likewise on the page for what is not there."""
    return _accessible(output)


def _accessible(output: str) -> str:
    named = output.replace(' role="dialog">', ' role="dialog" aria-label="Search">')
    return named.replace("<th></th>", "<td></td>")


def on_nav(nav: Navigation, **_: Any) -> Navigation:
    """Remember the order of the pages for `llms.txt`."""
    llms.ORDER[:] = llms.sections(nav.items)
    return nav


def on_post_build(*, config: MkDocsConfig, **_: Any) -> None:
    """Write `llms.txt` and `llms-full.txt`, and finish the search of the library's pages."""
    site = Path(config.site_dir)
    (site / "llms.txt").write_text(
        llms.index(config.site_name, str(config.site_url), _pages), "utf-8"
    )
    (site / "llms-full.txt").write_text(llms.everything(config.site_name, _pages), "utf-8")
    if "reference/api/index.md" not in _pages:
        return
    searched = site / "search" / "search_index.json"
    words = json.loads(searched.read_text("utf-8"))
    search_index.finish(words)
    search_index.extend_worker(site)
    searched.write_text(json.dumps(words, separators=(",", ":")), "utf-8")
