from typing import Any

from litestar import Request, Response
from litestar.exceptions import ClientException, HTTPException


class Refused(ClientException):
    """What the club refuses, in its own words."""


def answer(status: int, message: str, headers: dict[str, str] | None = None) -> Response[Any]:
    content = {"ok": False, "message": message}
    return Response(content, status_code=status, headers=headers, media_type="application/json")


def on_http_exception(_: Request[Any, Any, Any], error: HTTPException) -> Response[Any]:
    return answer(error.status_code, error.detail, error.headers)
