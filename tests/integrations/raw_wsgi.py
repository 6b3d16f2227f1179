"""A WSGI application that answers with the `Authorization` header as its server hands it on, or null."""

from __future__ import annotations

import json
from typing import Any


def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
    start_response("200 OK", [("Content-Type", "application/json")])
    return [json.dumps(environ.get("HTTP_AUTHORIZATION")).encode("ascii")]
