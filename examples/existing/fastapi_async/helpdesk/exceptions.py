from typing import ClassVar

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException


class AppError(Exception):
    status: ClassVar[int] = 400
    code: ClassVar[str]
    message: ClassVar[str]


class NotAuthenticated(AppError):
    status = 401
    code = "not_authenticated"
    message = "Log in first."


class PermissionDenied(AppError):
    status = 403
    code = "permission_denied"
    message = "You may not do this."


class NotFound(AppError):
    status = 404
    code = "not_found"
    message = "There is nothing here."


def answer(
    status: int, code: str, message: str, headers: dict[str, str] | None = None
) -> JSONResponse:
    content = {"error": {"code": code, "message": message}}
    return JSONResponse(content, status, headers)


def on_app_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, AppError)
    headers = {"WWW-Authenticate": "Bearer"} if error.status == 401 else None
    return answer(error.status, error.code, error.message, headers)


def on_http_exception(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    headers = None if error.headers is None else dict(error.headers)
    return answer(error.status_code, "http_error", error.detail, headers)


def on_invalid(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    (first, *_rest) = error.errors()
    return answer(422, "invalid", f"{'.'.join(map(str, first['loc']))}: {first['msg']}")


def add_handlers(app: FastAPI) -> None:
    app.add_exception_handler(AppError, on_app_error)
    app.add_exception_handler(HTTPException, on_http_exception)
    app.add_exception_handler(RequestValidationError, on_invalid)
