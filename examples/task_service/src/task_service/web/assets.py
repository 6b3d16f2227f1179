"""Scripts and styles under a path that changes with their content, so that browsers may cache them for a year.

They are served without comments and indentation, and compressed if the client accepts that.

The digest is a folder of the path rather than a query: modules import each other by relative paths and so stay within
one version without a build step. The files are small, so they are read once and served from memory; a requested path is
looked up in a table and never becomes a path on the disk.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import re
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

_FOREVER = "public, max-age=31536000, immutable"
_MEDIA_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}

# The tokens of a script: literals that stay as they are (strings, templates, regular expressions), comments, and gaps.
# A slash begins a regular expression only where a value is expected; elsewhere it is a division.
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
# A line that ends or begins with one of these continues, or its end is a statement's end anyway.
_GOES_ON = frozenset("{([,;:?&|=>")
_CONTINUES = frozenset("})].,;:?&|=")
_STYLE_COMMENT = re.compile(r"/\*[\s\S]*?\*/")
_AROUND_MARKS = re.compile(r"\s*([{};,])\s*|(?<=:)\s+")


class Assets:
    """The files of one folder, as they were when the service started.

    Args:
        folder: The folder.
        base: The path they are served under, without a trailing slash.
        ours: Whether they are scripts and styles of this project, which are served lean.

    Attributes:
        version: A digest of every file's name and content.
        route: The path pattern for :meth:`serve`.
        modules: The scripts that pages share; a page preloads them so that the browser fetches them all at once.
        stylesheets: Those of every page, in the order in which they apply.
    """

    def __init__(self, folder: Path, base: str = "/static", *, ours: bool = True) -> None:
        self._files = {
            file.relative_to(folder).as_posix(): (
                lean(file.suffix, file.read_text("utf-8")).encode() if ours else file.read_bytes()
            )
            for file in sorted(folder.rglob("*"))
            if file.suffix in _MEDIA_TYPES
        }
        self._base = base
        self._compressed: dict[str, bytes] = {}
        digest = hashlib.sha256()
        for path, content in self._files.items():
            digest.update(b"%s\0%d\0%s" % (path.encode(), len(content), content))
        self.version = digest.hexdigest()[:12]
        self.route = f"{base}/{{version}}/{{path:path}}"
        self.modules = tuple(
            path for path in self._files if path.endswith(".js") and "/" not in path
        )
        self.stylesheets = tuple(path for path in self._files if path.startswith("style/"))

    def url(self, path: str) -> str:
        """The URL path of a file.

        Args:
            path: The path in the folder.

        Raises:
            KeyError: There is no such file.
        """
        if path not in self._files:
            raise KeyError(path)
        return f"{self._base}/{self.version}/{path}"

    async def serve(self, request: Request) -> Response:
        """Answer a request for a file.

        An open page of an older version gets the present file, but must not cache it under the old path.

        Raises:
            HTTPException: 404, there is no such file.
        """
        path: str = request.path_params["path"]
        content = self._files.get(path)
        if content is None:
            raise HTTPException(status_code=404)
        current = request.path_params["version"] == self.version
        headers = {
            "Cache-Control": _FOREVER if current else "no-cache",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Vary": "Accept-Encoding",
            "X-Content-Type-Options": "nosniff",
        }
        if "gzip" in request.headers.get("accept-encoding", ""):
            content = await self._compress(path)
            headers["Content-Encoding"] = "gzip"
        return Response(content, media_type=_MEDIA_TYPES[Path(path).suffix], headers=headers)

    async def _compress(self, path: str) -> bytes:
        """A file, compressed at the first request for it: the renderer of the API reference has more than a megabyte."""
        if path not in self._compressed:
            self._compressed[path] = await asyncio.to_thread(
                gzip.compress, self._files[path], mtime=0
            )
        return self._compressed[path]


def lean(suffix: str, source: str) -> str:
    """A file without comments and insignificant white space.

    Names are kept, and a line of a script ends where it ended unless it obviously continues, so the script's meaning is
    the same. This requires that no template literal contains another one and that no string in a stylesheet has
    punctuation; tests check both.

    Args:
        suffix: The type of file, such as `.js`.
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
    """The white space that must stay between two characters."""
    if not before or not gap:
        return ""
    if "\n" in gap:
        return "" if before in _GOES_ON or after in _CONTINUES else "\n"
    if before in "+-" and after in "+-":
        return " "
    return "" if before in _MARKS or after in _MARKS else " "
