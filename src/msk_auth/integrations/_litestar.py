"""What the Litestar adapter is made of: its answers to errors, logins by Litestar's own JWT authentication, policies by path.

Every error is a problem document, on HTTP and before a websocket's handshake. Litestar hands exceptions of websockets to no
handler: it closes with a code of its own (4500). So what is raised there is remembered as it passes, and the close that follows
gets the code and reason of the problem.
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


class JWTLogin:
    """Accepts the tokens of Litestar's own JWT authentication as logins, as they are.

    It belongs into both lists of `logins`: an authenticator asks it about bearer credentials, and the adapter about requests
    without one, whose token is in the cookie of `JWTCookieAuth` or `OAuth2PasswordBearerAuth`::

        login = JWTLogin(jwt_auth)
        authenticator = AsyncAuthenticator(store, find_owner=users, logins=[login])
        auth = LitestarAuth(authenticator, logins=[login], own_auth=jwt_auth)

    A token is verified as `jwt_auth` verifies it, with its audiences, its issuers and its required claims, and is read by
    :meth:`~msk_auth.Login.from_claims`. `retrieve_user_handler` is not called: what it refuses, `find_owner`
    has to refuse. A token with an `aud` is no login unless `jwt_auth` names accepted audiences (RFC 7519, section 4.1.3): it may
    have been issued for something else, such as the second step of a login.

    Args:
        jwt_auth: The application's own authentication.
        subject: The claim that has the owner's id, where `sub` has something else, such as an email address.

    Raises:
        ConfigurationError: It is of another kind, or has a `revoked_token_handler`: that takes the connection of one request,
            and a verified login serves others as well.
    """

    def __init__(self, jwt_auth: BaseJWTAuth[Any, Any], *, subject: str = "sub") -> None:
        given = cast("object", jwt_auth)
        if not isinstance(given, BaseJWTAuth):
            raise ConfigurationError(
                f"JWTLogin takes a JWTAuth, JWTCookieAuth or OAuth2PasswordBearerAuth, not {type(given).__name__}. Write a"
                " function for other logins."
            )
        # The types of its members are not complete.
        self._jwt_auth: Any = jwt_auth
        if self._jwt_auth.revoked_token_handler is not None:
            raise ConfigurationError(
                "JWTLogin cannot call a revoked_token_handler, which takes a connection. Write a function that verifies the"
                " token and looks it up, and put it into `logins`."
            )
        self._subject = subject

    def __call__(self, source: str | ASGIConnection[Any, Any, Any, Any]) -> Login | None:
        """The login that a bearer credential is, or that a request has in its cookie; None if there is none."""
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
        # A token class of the application may have fields of its own for claims.
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
    """What handlers demand by their path: for those of other plugins, which take neither guards nor an `opt`.

    The paths are those that handlers are registered under. The paths of requests play no part.

    Args:
        policies: The entry `/jobs` is for that path alone, `/jobs/*` for it and all below it. None means public, `own_guard` that
            the application guards it itself.

    Raises:
        ConfigurationError: An entry has another form, or no policy.
    """

    def __init__(self, policies: Mapping[str, Policy | OwnGuard | None]) -> None:
        for entry, policy in cast("Mapping[object, object]", policies).items():
            if not isinstance(entry, str) or not _ENTRY.fullmatch(entry):
                raise ConfigurationError(
                    f"{entry!r} in paths is no path. Write '/jobs' for one path as the route audit lists it, or"
                    " '/jobs/*' for it and all below it. For every handler there is default=…."
                )
            check_policy(policy, f"paths[{entry!r}]")
        self._policies = dict(policies)

    def find(self, path: str) -> tuple[Policy, ...] | OwnGuard | None:
        """What the handlers of a path demand: empty if they are public, None if no entry is for them.

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
    """Check an argument that is a policy, `own_guard` or None.

    Raises:
        ConfigurationError: It is something else.
    """
    if policy is not None and not isinstance(policy, Policy | OwnGuard):
        raise ConfigurationError(
            f"{name} is no policy: {policy!r}. Write require(…), require_interactive(…) or own_guard of msk_auth, or None."
        )
