"""Scripts and styles under a path that changes with their content, so that browsers may cache them for a year.

The digest is a folder of the path, not a query: modules import each other by relative paths, and so stay within
one version without a build step.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.staticfiles import StaticFiles

_FOREVER = "public, max-age=31536000, immutable"


class Assets:
    """The files of one folder.

    Args:
        folder: The folder.
        base: The path of the files, without a trailing slash.

    Attributes:
        route: The path pattern for :meth:`serve`.
        modules: The shared scripts, which a page preloads so that the browser fetches them all at once.
    """

    def __init__(self, folder: Path, base: str) -> None:
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        digest = hashlib.sha256()
        for file in files:
            content = file.read_bytes()
            digest.update(b"%s\0%d\0%s" % (bytes(file.relative_to(folder)), len(content), content))
        self._version = digest.hexdigest()[:12]
        paths = [file.relative_to(folder).as_posix() for file in files]
        self._files = StaticFiles(directory=folder)
        self._base = base
        self.route = f"{base}/{{version}}/{{path:path}}"
        self.modules = [path for path in paths if path.endswith(".js") and "/" not in path]

    def url(self, path: str) -> str:
        """The URL path of a file, by its path in the folder."""
        return f"{self._base}/{self._version}/{path}"

    async def serve(self, request: Request) -> Response:
        """Answer a request for a file.

        An open page of an older version gets the present file, but must not cache it under the old path.
        """
        response = await self._files.get_response(request.path_params["path"], request.scope)
        current = request.path_params["version"] == self._version
        response.headers["cache-control"] = _FOREVER if current else "no-cache"
        return response
