"""Errors as Litestar answers them: every one a problem document, on HTTP and before a websocket's handshake.

Litestar hands exceptions of websockets to no handler: it closes with a code of its own (4500). So what is raised there is
remembered as it passes, and the close that follows gets the code and reason of the problem.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from litestar import MediaType, Request, Response
from litestar.exceptions import (
    ClientException,
    HTTPException,
    NotAuthorizedException,
    NotFoundException,
    PermissionDeniedException,
    SerializationException,
    ServiceUnavailableException,
    TooManyRequestsException,
    ValidationException,
)
from litestar.exceptions import responses as litestar_responses
from litestar.exceptions.http_exceptions import RequestEntityTooLarge
from litestar.types import Message, Scope, Send

from msk_auth.core.errors import FieldError, InputInvalid, Problem
from msk_auth.http.admission import Memory
from msk_auth.http.answers import Answer, Errors, ProblemRenderer

from ._asgi import is_open, noting_handshake, refuse_websocket

_INTERNAL: Final = 500
_MAX_ERRORS: Final = 50
_RAISED: Final = "msk_auth.raised"
"""Where a websocket keeps the answer to what its handler raised."""

# Those that an application may have a handler for.
_KINDS: Final[Mapping[int, type[HTTPException]]] = {
    400: ClientException,
    401: NotAuthorizedException,
    403: PermissionDeniedException,
    404: NotFoundException,
    413: RequestEntityTooLarge,
    429: TooManyRequestsException,
    503: ServiceUnavailableException,
}

# Its functions are not completely typed.
_untyped_responses: Final = cast("Any", litestar_responses)


class ErrorAnswers:
    """The exception handlers of an application.

    Args:
        renderer: Writes the documents.
        errors: With `all` answers what others raise too; with `http` answers problems as Litestar's HTTP errors.
    """

    def __init__(self, renderer: ProblemRenderer, errors: Errors) -> None:
        self._renderer = renderer
        self._all_errors = errors == "all"
        self._on_problem = self.on_problem_as_http if errors == "http" else self.on_problem

    def add_to(self, handlers: dict[Any, Any]) -> None:
        """Answer what the application has no handler for."""
        handlers.setdefault(Problem, self._on_problem)
        if not self._all_errors:
            return
        handlers.setdefault(HTTPException, self.on_http_exception)
        if _INTERNAL not in handlers:
            handlers.setdefault(Exception, self.on_exception)

    def on_problem(self, _request: Request[Any, Any, Any], error: Problem) -> Response[bytes]:
        """A problem as its document."""
        return to_response(self._renderer.answer(error))

    def on_problem_as_http(self, request: Request[Any, Any, Any], error: Problem) -> Response[Any]:
        """A problem as Litestar answers an HTTP error of its status, with the handler that the application has for it."""
        headers = error.response_headers(self._renderer.realm)
        kind = _KINDS.get(error.status, ClientException if error.status < 500 else HTTPException)
        extra = {"code": error.code, **error.members()}
        raised = kind(error.detail, status_code=error.status, headers=headers, extra=extra)
        raised.__cause__ = error
        handler = _handler_of(request, raised)
        response: Response[Any] = handler(request, raised)
        present = {name.lower() for name in response.headers}
        response.headers.update({name: headers[name] for name in headers.keys() - present})
        return response

    def on_http_exception(
        self, request: Request[Any, Any, Any], error: HTTPException
    ) -> Response[bytes]:
        """An error that Litestar found by itself, or that a handler raised in its words."""
        if error.status_code == _INTERNAL:
            return self.on_exception(request, error)
        headers = dict(error.headers or {})
        if error.status_code < 400:
            # A redirect, say: no problem at all.
            return Response(
                b"", status_code=error.status_code, headers=headers, media_type=MediaType.TEXT
            )
        return to_response(self._answer(error).with_headers(headers.items()))

    def on_exception(self, request: Request[Any, Any, Any], error: Exception) -> Response[Any]:
        """An unexpected exception. Whether it is logged is up to the application's `logging_config`."""
        if request.app.debug:
            shown: Response[Any] = _untyped_responses.create_debug_response(request, error)
            return shown
        return to_response(self._renderer.http_error(_INTERNAL))

    async def remember(self, error: Exception, scope: Scope) -> None:
        """Called by Litestar for what was raised, before it closes a websocket."""
        memory = cast("Memory", scope)
        if memory["type"] != "websocket":
            return
        if isinstance(error, Problem):
            memory[_RAISED] = self._renderer.answer(error)
        elif (
            self._all_errors and isinstance(error, HTTPException) and error.status_code != _INTERNAL
        ):
            memory[_RAISED] = self._answer(error)

    def closing_with_codes(self, scope: Memory, send: Send) -> Send:
        """A `send` for a websocket that closes as the other adapters do when its handler raised something."""
        note_and_send = noting_handshake(scope, send)

        async def send_or_refuse(message: Message) -> None:
            closes = message["type"] == "websocket.close"
            answer: Answer | None = scope.pop(_RAISED, None) if closes else None
            if answer is None:
                await note_and_send(message)
            else:
                await refuse_websocket(scope, send, answer, is_accepted=is_open(scope))

        return send_or_refuse

    async def deny_websocket(self, scope: Memory, send: Send, problem: Problem) -> None:
        """Refuse a handshake: with the whole answer if the server can send it, else with a bare 403."""
        await refuse_websocket(scope, send, self._renderer.answer(problem), is_accepted=False)

    def _answer(self, error: HTTPException) -> Answer:
        if isinstance(error, ValidationException):
            return self._renderer.answer(InputInvalid(_fields(error)))
        if isinstance(error.__cause__, SerializationException):
            return self._renderer.answer(InputInvalid.of("", "The body is not valid JSON."))
        # Some of Litestar's errors have a text of their own that says no more than their status.
        default = getattr(type(error), "detail", None)
        detail = None if error.detail == default else error.detail
        members = {} if error.extra is None else {"context": error.extra}
        return self._renderer.http_error(error.status_code, detail, members=members)


def _handler_of(
    request: Request[Any, Any, Any], error: HTTPException
) -> Callable[[Any, Any], Response[Any]]:
    """What answers an HTTP error, as Litestar looks for it."""
    # Its types are not complete.
    route_handler: Any = request.scope["route_handler"]
    handlers: dict[object, Any] = route_handler.resolve_exception_handlers()
    kinds = (error.status_code, *type(error).__mro__)
    found = [handlers[kind] for kind in kinds if kind in handlers]
    default: Callable[[Any, Any], Response[Any]] = _untyped_responses.create_exception_response
    return found[0] if found else default


def to_response(answer: Answer) -> Response[Any]:
    """The answer as Litestar sends it."""
    return Response(
        answer.body or None,
        status_code=answer.status,
        headers=dict(answer.headers),
        media_type=answer.media_type,
    )


def _fields(error: ValidationException) -> list[FieldError]:
    if isinstance(error.extra, list):
        return [_field(each) for each in error.extra[:_MAX_ERRORS]]
    if isinstance(error.__cause__, KeyError):
        # Litestar's own text repeats the query, in which there might be anything.
        return [FieldError(str(error.__cause__.args[0]), "This parameter is required.")]
    return [FieldError("", error.detail)]


def _field(entry: object) -> FieldError:
    members: Mapping[str, object] = (
        cast("Mapping[str, object]", entry) if isinstance(entry, Mapping) else {"message": entry}
    )
    return FieldError(
        str(members.get("key", "")), str(members.get("message", "This is not acceptable."))
    )
