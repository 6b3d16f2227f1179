"""Scripts and styles under an address that changes with their content, so that browsers keep them for a year.

What is served is what a browser needs of a file: comments and indentation stay here, for whoever reads the sources.

The digest is a folder of the address and not a query: modules import each other by relative addresses and so stay
within one version without a build step. All files together are smaller than one photograph, so they are read once and
served from memory; an address is looked up in a table and never becomes a path of the disk.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

_FOREVER = "public, max-age=31536000, immutable"
_MEDIA_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}

# What a script is taken apart into: what stays as it is (strings, templates, regular expressions), comments, and gaps.
# A slash begins a regular expression only where a value is expected; elsewhere it divides.
_SCRIPT = re.compile(
    r"""
    (?P<kept> "(?:[^"\\\n]|\\.)*" | '(?:[^'\\\n]|\\.)*' | `(?:[^`\\]|\\.)*`
      | (?:(?<=[(=:,!&|?>\[])|(?<=[(=:,!&|?>\[]\ )|(?<=return\ )) /(?![/*])(?:[^/\\\n\[]|\\.|\[(?:[^\]\\\n]|\\.)*\])+/ )
    | (?P<comment> //[^\n]* | /\*[\s\S]*?\*/ )
    | (?P<gap> \s+ )
    """,
    re.VERBOSE,
)
_MARKS = frozenset("{}()[]<>=,;:?&|!*%+-/.\"'`")
# A line that ends or begins with one of these goes on, or its end is a statement's end anyway.
_GOES_ON = frozenset("{([,;:?&|=>")
_CONTINUES = frozenset("})].,;:?&|=")
_STYLE_COMMENT = re.compile(r"/\*[\s\S]*?\*/")
_AROUND_MARKS = re.compile(r"\s*([{};,])\s*|(?<=:)\s+")


class Assets:
    """The files of one folder, as they were when the service started.

    Args:
        folder: Where they lie.
        base: The path they are served under, without a slash at the end.

    Attributes:
        version: A digest of every file's name and content.
        route: The path pattern for :meth:`serve`.
        modules: The scripts that pages share; a page names them so that the browser fetches them all at once.
        stylesheets: In the order in which they apply.
    """

    def __init__(self, folder: Path, base: str = "/static") -> None:
        self._files = {
            file.relative_to(folder).as_posix(): lean(file.suffix, file.read_text("utf-8")).encode()
            for file in sorted(folder.rglob("*"))
            if file.suffix in _MEDIA_TYPES
        }
        self._base = base
        digest = hashlib.sha256()
        for path, content in self._files.items():
            digest.update(b"%s\0%d\0%s" % (path.encode(), len(content), content))
        self.version = digest.hexdigest()[:12]
        self.route = f"{base}/{{version}}/{{path:path}}"
        self.modules = tuple(
            path for path in self._files if path.endswith(".js") and "/" not in path
        )
        self.stylesheets = tuple(path for path in self._files if path.endswith(".css"))

    def url(self, path: str) -> str:
        """The address of a file.

        Args:
            path: Where it lies in the folder.

        Raises:
            KeyError: There is no such file.
        """
        if path not in self._files:
            raise KeyError(path)
        return f"{self._base}/{self.version}/{path}"

    async def serve(self, request: Request) -> Response:
        """Answer a request for a file.

        A page of an older version that is still open gets today's file, but must not keep it under the old address.

        Raises:
            HTTPException: 404, there is no such file.
        """
        path: str = request.path_params["path"]
        content = self._files.get(path)
        if content is None:
            raise HTTPException(status_code=404)
        current = request.path_params["version"] == self.version
        return Response(
            content,
            media_type=_MEDIA_TYPES[Path(path).suffix],
            headers={
                "Cache-Control": _FOREVER if current else "no-cache",
                "Cross-Origin-Resource-Policy": "same-origin",
                "X-Content-Type-Options": "nosniff",
            },
        )


def lean(suffix: str, source: str) -> str:
    """A file without its comments and without the gaps that mean nothing.

    Names stay names, and a line of a script ends where it ended unless it obviously goes on, so a script means what it
    meant. That holds as long as no template of a script has another one inside and no string in a stylesheet holds
    punctuation; tests see to both.

    Args:
        suffix: What kind of file it is, such as `.js`.
        source: Its text.
    """
    if suffix == ".svg":
        return source
    if suffix == ".css":
        return _AROUND_MARKS.sub(r"\1", _STYLE_COMMENT.sub("", source)).strip().replace(";}", "}")
    return _lean_script(source)


def _lean_script(source: str) -> str:
    parts: list[str] = []
    before, gap = "", "\n"  # the last character that was kept, and what has been left out since
    at = 0
    for found in _SCRIPT.finditer(source):
        for text in (source[at : found.start()], found["kept"] or ""):
            if text:
                parts.append(_needed(before, gap, text[0]) + text)
                before, gap = text[-1], ""
        gap += found["gap"] or ""
        if found["comment"]:
            gap += " "
        at = found.end()
    if source[at:]:
        parts.append(_needed(before, gap, source[at]) + source[at:])
    return "".join(parts) + "\n"


def _needed(before: str, gap: str, after: str) -> str:
    """What must stay of a gap between two characters."""
    if not before or not gap:
        return ""
    if "\n" in gap:
        return "" if before in _GOES_ON or after in _CONTINUES else "\n"
    if before in "+-" and after in "+-":
        return " "
    return "" if before in _MARKS or after in _MARKS else " "
