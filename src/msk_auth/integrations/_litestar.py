"""Parts of the Litestar adapter: answers to errors, logins by Litestar's own JWT authentication, policies by path.

Every error is a problem document, on HTTP and before a websocket's handshake. Litestar calls no handler for exceptions of
websockets: it closes with its own code (4500). So the adapter remembers the exception, and changes the following close to
the code and reason of the problem.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, Final, cast

from litestar import MediaType, Request, Response
from litestar.connection import ASGIConnection
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
from litestar.security.jwt import BaseJWTAuth, Token
from litestar.types import Message, Scope, Send

from msk_auth._route_audit import OwnGuard
from msk_auth.core.errors import ConfigurationError, FieldError, InputInvalid, Problem
from msk_auth.core.model import Login
from msk_auth.core.policy import Policy
from msk_auth.core.tokens import check_opaque
from msk_auth.http.admission import Memory
from msk_auth.http.answers import Answer, Errors, ProblemRenderer

from ._asgi import noting_messages, refuse_websocket

_INTERNAL: Final = 500
_MAX_ERRORS: Final = 50
_RAISED: Final = "msk_auth.raised"
"""The key of a websocket's scope for the answer to its handler's exception."""
# The exceptions for which an application may have a handler.
_KINDS: Final[Mapping[int, type[HTTPException]]] = {
    400: ClientException,
    401: NotAuthorizedException,
    403: PermissionDeniedException,
    404: NotFoundException,
    413: RequestEntityTooLarge,
    429: TooManyRequestsException,
    503: ServiceUnavailableException,
}

# The functions of this module are not completely typed.
_untyped_responses: Final = cast("Any", litestar_responses)


class ErrorAnswers:
    """The exception handlers of an application.

    Args:
        renderer: Writes the documents.
        errors: With `all` also answers exceptions that are not problems; with `http` answers problems as Litestar's HTTP errors.
    """

    def __init__(self, renderer: ProblemRenderer, errors: Errors) -> None:
        self._renderer = renderer
        self._errors = errors

    def add_to(self, handlers: dict[Any, Any]) -> None:
        """Answer exceptions for which the application has no handler."""
        as_http = self._errors == "http"
        handlers.setdefault(Problem, self.on_problem_as_http if as_http else self.on_problem)
        if self._errors != "all":
            return
        handlers.setdefault(HTTPException, self.on_http_exception)
        if _INTERNAL not in handlers:
            handlers.setdefault(Exception, self.on_exception)

    def on_problem(self, _request: Request[Any, Any, Any], error: Problem) -> Response[bytes]:
        """Answer a problem with its document."""
        return to_response(self._renderer.answer(error))

    def on_problem_as_http(self, request: Request[Any, Any, Any], error: Problem) -> Response[Any]:
        """Answer a problem like Litestar's HTTP error of the same status, with the application's handler if any."""
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
        """Answer an `HTTPException` of Litestar or of a handler."""
        if error.status_code == _INTERNAL:
            return self.on_exception(request, error)
        headers = dict(error.headers or {})
        if error.status_code < 400:
            # Not an error, such as a redirect.
            return Response(
                b"", status_code=error.status_code, headers=headers, media_type=MediaType.TEXT
            )
        return to_response(self._answer(error).with_headers(headers.items()))

    def on_exception(self, request: Request[Any, Any, Any], error: Exception) -> Response[Any]:
        """Answer an unexpected exception. The application's `logging_config` decides whether it is logged."""
        if request.app.debug:
            shown: Response[Any] = _untyped_responses.create_debug_response(request, error)
            return shown
        return to_response(self._renderer.http_error(_INTERNAL))

    async def remember(self, error: Exception, scope: Scope) -> None:
        """Called by Litestar for an exception, before it closes a websocket."""
        memory = cast("Memory", scope)
        if memory["type"] != "websocket":
            return
        if isinstance(error, ExceptionGroup):
            # The task group of a `websocket_stream` wraps what the stream raises.
            error, *_ = cast("ExceptionGroup[Exception]", error).exceptions
        if isinstance(error, Problem):
            memory[_RAISED] = self._renderer.answer(error)
        elif (
            self._errors == "all"
            and isinstance(error, HTTPException)
            and error.status_code != _INTERNAL
        ):
            memory[_RAISED] = self._answer(error)

    def closing_with_codes(self, scope: Memory, send: Send) -> Send:
        """A `send` for a websocket that closes like the other adapters after an exception of its handler."""
        note_and_send = noting_messages(scope, send)

        async def send_or_refuse(message: Message) -> None:
            closes = message["type"] == "websocket.close"
            answer: Answer | None = scope.pop(_RAISED, None) if closes else None
            if answer is None:
                await note_and_send(message)
            else:
                await refuse_websocket(scope, send, answer)

        return send_or_refuse

    def _answer(self, error: HTTPException) -> Answer:
        if isinstance(error, ValidationException):
            return self._renderer.answer(InputInvalid(_fields(error)))
        if isinstance(error.__cause__, SerializationException):
            return self._renderer.answer(InputInvalid.of("", "The body is not valid JSON."))
        # The default text of some of Litestar's errors only repeats their status.
        default = getattr(type(error), "detail", None)
        detail = None if error.detail == default else error.detail
        members = {} if error.extra is None else {"context": error.extra}
        return self._renderer.http_error(error.status_code, detail, members=members)


def _handler_of(
    request: Request[Any, Any, Any], error: HTTPException
) -> Callable[[Any, Any], Response[Any]]:
    """The handler of an HTTP error that Litestar would choose."""
    # Litestar's types are not complete.
    route_handler: Any = request.scope["route_handler"]
    handlers: dict[object, Any] = route_handler.resolve_exception_handlers()
    kinds = (error.status_code, *type(error).__mro__)
    found = [handlers[kind] for kind in kinds if kind in handlers]
    default: Callable[[Any, Any], Response[Any]] = _untyped_responses.create_exception_response
    return found[0] if found else default


def to_response(answer: Answer) -> Response[Any]:
    """The answer as Litestar's response."""
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
        # Litestar's own text repeats the query, which may contain anything.
        return [FieldError(str(error.__cause__.args[0]), "This parameter is required.")]
    return [FieldError("", error.detail)]


def _field(entry: object) -> FieldError:
    members: Mapping[str, object] = (
        cast("Mapping[str, object]", entry) if isinstance(entry, Mapping) else {"message": entry}
    )
    return FieldError(
        str(members.get("key", "")), str(members.get("message", "This is not acceptable."))
    )


class JWTLogin:
    """Accepts the tokens of Litestar's own JWT authentication as logins.

    Put it into both lists of `logins`: the authenticator calls it for bearer credentials, and the adapter for requests
    with the token in the cookie of `JWTCookieAuth` or `OAuth2PasswordBearerAuth`::

        login = JWTLogin(jwt_auth)
        authenticator = AsyncAuthenticator(store, find_owner=users, logins=[login])
        auth = LitestarAuth(authenticator, logins=[login], own_auth=jwt_auth)

    Verifies a token like `jwt_auth`, with its audiences, its issuers and its required claims, and reads it with
    :meth:`~msk_auth.Login.from_claims`. `retrieve_user_handler` is not called: `find_owner` must refuse the users that this
    handler refuses. A token with an `aud` is refused unless `jwt_auth` names accepted audiences (RFC 7519, section 4.1.3): it may
    have been issued for another purpose, such as the second step of a login.

    Args:
        jwt_auth: The application's own authentication.
        subject: The claim with the owner's id, if `sub` has another value, such as an email address.

    Raises:
        ConfigurationError: `jwt_auth` is of another kind, or has a `revoked_token_handler`, which takes the connection of one
            request, although requests share a verified login.
    """

    def __init__(self, jwt_auth: BaseJWTAuth[Any, Any], *, subject: str = "sub") -> None:
        if not isinstance(cast("object", jwt_auth), BaseJWTAuth):
            raise ConfigurationError(
                f"JWTLogin takes a JWTAuth, JWTCookieAuth or OAuth2PasswordBearerAuth, not {type(jwt_auth).__name__}. Write a"
                " function for other logins."
            )
        # The types of `jwt_auth` are not complete.
        self._jwt_auth: Any = jwt_auth
        if self._jwt_auth.revoked_token_handler is not None:
            raise ConfigurationError(
                "JWTLogin cannot call a revoked_token_handler, which takes a connection. Write a function that verifies the"
                " token and looks it up, and put it into `logins`."
            )
        self._subject = subject

    def __call__(self, source: str | ASGIConnection[Any, Any, Any, Any]) -> Login | None:
        """The login of a bearer credential, or in the cookie of a request; None if there is none."""
        jwt_auth = self._jwt_auth
        encoded = source if isinstance(source, str) else self._find(source)
        try:
            token: Token = jwt_auth.token_cls.decode(
                encoded_token=encoded,
                secret=jwt_auth.token_secret,
                algorithm=jwt_auth.algorithm,
                audience=jwt_auth.accepted_audiences,
                issuer=jwt_auth.accepted_issuers,
                require_claims=jwt_auth.require_claims,
                verify_exp=jwt_auth.verify_expiry,
                verify_nbf=jwt_auth.verify_not_before,
                strict_audience=jwt_auth.strict_audience,
            )
        except NotAuthorizedException:
            return None
        if token.aud is not None and not jwt_auth.accepted_audiences:
            return None
        # A token class of the application may have its own fields for claims.
        claims = token.extras | {each.name: getattr(token, each.name) for each in fields(token)}
        claims["exp"] = token.exp.timestamp()
        return Login.from_claims(claims, subject=self._subject)

    def _find(self, connection: ASGIConnection[Any, Any, Any, Any]) -> str:
        cookie = connection.cookies.get(getattr(self._jwt_auth, "key", ""), "")
        # Litestar writes the scheme into the cookie.
        encoded = cookie.rpartition(" ")[-1]
        # An authenticator has refused such a bearer credential already.
        check_opaque(encoded)
        return encoded


_ENTRY: Final = re.compile(r"/|(/[^/*]+)+(/\*)?")


class PathPolicies:
    """The policies of handlers by path, for other plugins' handlers, which take neither guards nor an `opt`.

    The paths are those of the registration, not of requests.

    Args:
        policies: The entry `/jobs` is only for that path, `/jobs/*` for it and all paths below. None means public, `own_guard`
            that the application guards the handlers itself.

    Raises:
        ConfigurationError: An entry is malformed, or has no policy.
    """

    def __init__(self, policies: Mapping[str, Policy | OwnGuard | None]) -> None:
        for entry, policy in cast("Mapping[object, object]", policies).items():
            if not isinstance(entry, str) or not _ENTRY.fullmatch(entry):
                raise ConfigurationError(
                    f"{entry!r} in paths is not a path. Write '/jobs' for one path as the route audit lists it, or"
                    " '/jobs/*' for it and all paths below. For all handlers use default=…."
                )
            check_policy(policy, f"paths[{entry!r}]")
        self._policies = dict(policies)

    def find(self, path: str) -> tuple[Policy, ...] | OwnGuard | None:
        """The policies of the handlers of a path: empty if they are public, None if no entry matches.

        The longest entry counts.
        """
        entry, above = path, path
        while entry not in self._policies:
            if not above:
                return None
            entry, above = f"{above}/*", above.rpartition("/")[0]
        policy = self._policies[entry]
        if isinstance(policy, Policy):
            return (policy,)
        return () if policy is None else policy


def check_policy(policy: object, name: str) -> None:
    """Check that an argument is a policy, `own_guard` or None.

    Raises:
        ConfigurationError: The argument is something else.
    """
    if policy is not None and not isinstance(policy, Policy | OwnGuard):
        raise ConfigurationError(
            f"{name} is not a policy: {policy!r}. Write require(…), require_interactive(…) or own_guard of msk_auth, or None."
        )
