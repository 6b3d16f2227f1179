"""Diagrams: SVG files that stand by themselves, and take on the site's colours in a page.

A file under `assets/diagrams` has a `<style>` of its own, so that it can be looked at anywhere, by
light and by dark. In a page the drawing is put into the document without it, and
`assets/site.css` gives the same classes the colours of the palette that the reader chose.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

_IMAGE: Final = re.compile(r"!\[([^\]]*)\]\(([^)]*assets/diagrams/[^)]+\.svg)\)")
_STYLE: Final = re.compile(r"\s*<style>.*?</style>", re.DOTALL)
_DECLARATION: Final = re.compile(r"^<\?xml[^>]*\?>\s*")


def inline(markdown: str, folder: Path) -> str:
    """The page with every diagram drawn in it.

    Args:
        markdown: The page.
        folder: The page's own, to which its links are relative.

    Raises:
        FileNotFoundError: A diagram is not there.
    """

    def drawn(match: re.Match[str]) -> str:
        svg = (folder / match[2]).read_text("utf-8")
        svg = _STYLE.sub("", _DECLARATION.sub("", svg))
        # Without blank lines, which would end the HTML block.
        lines = [line for line in svg.splitlines() if line.strip()]
        return '<figure class="diagram">\n' + "\n".join(lines) + "\n</figure>"

    return _IMAGE.sub(drawn, markdown)
