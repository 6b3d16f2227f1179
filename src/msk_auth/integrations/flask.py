"""The Flask adapter.

::

    app = Flask(__name__)
    auth = FlaskAuth(authenticator, app)
    app.register_blueprint(auth.key_routes(url_prefix="/api/keys"))


    @app.get("/tasks")
    @auth.require("tasks:read")
    def tasks():
        return {"owner": auth.current_principal.owner.id}

The guard is below the route. Above the route, it would guard a function that no route calls: `auth.check(app)` finds this mistake,
and no request is answered.

You can guard a whole blueprint or application: `auth.protect(blueprint, require("tasks:read"),
unsafe=require("tasks:write"))` guards all of its views, and `auth.protect(blueprint)` requires that each of them declares a
policy, or `@auth.public`. `auth.check(app)` and the first request find views that do not. A guard covers every method of its
rule, including the OPTIONS that Flask answers itself, except for CORS preflights: they have no credentials, and call no view.
"""

from __future__ import annotations

import atexit
import functools
import inspect
import operator
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import timedelta
from typing import (
    Any,
    Final,
    Generic,
    ParamSpec,
    Protocol,
    Self,
    TypeAlias,
    TypeVar,
    cast,
    overload,
)
from weakref import ref

from flask import (
    Blueprint,
    Flask,
    Request,
    Response,
    after_this_request,
    current_app,
    has_app_context,
    request,
)
from flask.typing import ResponseReturnValue
from werkzeug.datastructures import Headers
from werkzeug.exceptions import ClientDisconnected, HTTPException, default_exceptions
from werkzeug.routing import Rule

from msk_auth._async.authenticator import AsyncAuthenticator
from msk_auth._route_audit import AuditedRoute, RouteKind, register_reader
from msk_auth._sync.authenticator import Authenticator
from msk_auth._sync.users import Users
from msk_auth._sync.watch import Watch
from msk_auth.core.authentication import bearer_of_key
from msk_auth.core.errors import ConfigurationError, Problem
from msk_auth.core.logins import RequestLogins
from msk_auth.core.model import Login, Principal, UserT
from msk_auth.core.policy import Policy
from msk_auth.http._sync.admission import admit, load_user_once
from msk_auth.http._sync.routes import (
    Exchange,
    admin_key_routes,
    key_routes,
    leak_route,
    respond,
    revocation_route,
)
from msk_auth.http.admission import (
    ADMITTED,
    AUTHENTICATED,
    Authorization,
    keep_session,
    known_principal,
    loading,
    loading_in,
    users_of,
)
from msk_auth.http.answers import Answer, ContentTooLarge, Errors
from msk_auth.http.routes import AdminKeyOperation, KeyOperation, broken_body
from msk_auth.http.routes import Route as Row
from msk_auth.users import AnyUsers, RequestSession

from ._adapter import Adapter, check_function, declare, declare_guard
from ._flask_views import (
    DeclaredViews,
    guards_itself,
    hide,
    is_exposed,
    is_outermost,
    methods_of,
)

__all__ = ["FlaskAuth"]

P = ParamSpec("P")
T = TypeVar("T")

_EXTENSION: Final = "msk_auth"

LoginOfRequest: TypeAlias = Callable[[Request], Login | None]
"""Finds a login in a request, such as in its session, or returns None."""

Throttle: TypeAlias = Callable[[Request], object]
"""Counts a request that needs no login, and raises :class:`~msk_auth.errors.TooManyAttempts` over the limit."""


class Decorator(Protocol):
    """The result of :meth:`FlaskAuth.require`: it decorates views, async or not, and keeps their types."""

    def __call__(self, view: Callable[P, T], /) -> Callable[P, T]: ...


class FlaskAuth(Adapter[Authenticator[UserT], Decorator, Request], DeclaredViews, Generic[UserT]):
    """Guards, error handlers and key routes for Flask, with an `Authenticator`.

    A guard is a decorator of views, below the route, on functions or on the methods of a class-based view; for a
    whole class write `decorators = [auth.require(…)]`.

    In a module write `auth = FlaskAuth()` and decorate the views; in the factory of the application write
    `auth.init_app(app, authenticator)`. Each application may have its own authenticator.

    Args:
        authenticator: The authenticator. None: each application gets its own with :meth:`init_app`.
        app: Passed to :meth:`init_app` at once.
        errors: As for :meth:`init_app`.
        logins: Functions that find a login in a request without a bearer credential, such as in its session: each takes the
            request, and returns a :class:`~msk_auth.Login` or None. They are called in this order.
        own_csrf_protection: True: the application's own protection against cross-site request forgery covers every guarded
            route, including the key routes. By default such a login is accepted for an unsafe method only if the browser shows
            that a page of the same origin sent the request.
        header: The name of a header in which clients may send a key in place of `Authorization`, such as `X-API-Key`. A request
            with both is malformed, and tokens in this header are refused. None: keys are read only from `Authorization`.
        session: Returns the session of the current request, such as `db.session` of Flask-SQLAlchemy.
            :class:`~msk_auth.Users` read the user in it, for guards and for :meth:`user`.

    Raises:
        ConfigurationError: `authenticator` is not an `Authenticator`, or does not read users in a session, or :meth:`init_app`
            raises.
    """

    def __init__(
        self,
        authenticator: Authenticator[UserT] | None = None,
        app: Flask | None = None,
        *,
        errors: Errors = "problems",
        logins: Sequence[LoginOfRequest] = (),
        own_csrf_protection: bool = False,
        header: str | None = None,
        session: Callable[[], object] | None = None,
    ) -> None:
        super().__init__(
            authenticator,
            logins=logins,
            own_csrf_protection=own_csrf_protection,
            header=header,
            session=None if session is None else lambda _request: session(),
        )
        DeclaredViews.__init__(self)
        if app is not None:
            self.init_app(app, errors=errors)

    @property
    def authenticator(self) -> Authenticator[UserT]:
        """The authenticator; if each application has its own, the authenticator of the current application.

        Raises:
            ConfigurationError: The extension has no authenticator yet, or there is no current application.
        """
        return self._bound_here()._authenticator

    def _serving_here(self) -> Self | None:
        installed = current_app.extensions.get(_EXTENSION) if has_app_context() else None
        return installed if self.shares_guards_with(installed) else None

    def init_app(
        self,
        app: Flask,
        authenticator: Authenticator[UserT] | None = None,
        *,
        errors: Errors = "problems",
    ) -> None:
        """Add guards and error handlers to the application, and write times of last use.

        Every :class:`~msk_auth.errors.Problem` is answered with a problem document, unless the application has a handler for
        it. Times of last use are written at most once a minute, after a response is sent.

        Args:
            app: The application.
            authenticator: The application's own, if the adapter was made without one.
            errors: The errors to answer. By default only problems; other errors of the framework and the application stay
                unchanged. `http` answers refusals as Werkzeug's own `HTTPException` of the same status, with the
                application's handler for it, if any. `all` also answers HTTP errors and unexpected exceptions with problem
                documents, unless the application has a handler for them.

        Raises:
            ConfigurationError: The application already has an adapter, there is no authenticator, or there are two.
        """
        bound = self._bound_to(
            authenticator, "auth.init_app(app, authenticator)", app.extensions.get(_EXTENSION)
        )
        app.extensions[_EXTENSION] = bound
        # Before all other functions of the application.
        app.before_request_funcs.setdefault(None, []).insert(0, bound._admitting(app))
        handlers = app.error_handler_spec[None][None]
        if Problem not in handlers:
            on_problem = bound._on_problem_as_http if errors == "http" else bound._on_problem
            app.register_error_handler(Problem, on_problem)
        # With TRAP_HTTP_EXCEPTIONS Flask looks for a handler of this exception, as of every other.
        app.register_error_handler(_Refused, operator.attrgetter("response"))
        if errors == "all" and HTTPException not in handlers:
            app.register_error_handler(HTTPException, bound._on_http_exception)
        # Flask has no hook for the end of an application.
        atexit.register(_flush_at_exit, ref(app))

    @property
    def current_principal(self) -> Principal[UserT]:
        """The principal of the current request.

        Raises:
            ConfigurationError: The view has no guard.
        """
        return known_principal(request.environ, self.authenticator)

    @property
    def is_admitted(self) -> bool:
        """True in a view whose guards have admitted the request, so that there is a :attr:`current_principal`.

        For a decorator of the application that stays on its views, such as one of Flask-HTTPAuth. In guarded views it must not
        verify again::

            @token_auth.verify_token
            def verify_token(token: str) -> User | None:
                return current_user() if auth.is_admitted else find_user_of_token(token)
        """
        return request.environ.get(ADMITTED) is self.authenticator

    @overload
    def user(self, load_user: Users[Any, str, T, UserT], /) -> Callable[[], T]: ...
    @overload
    def user(self, load_user: Callable[[str], T | None], /) -> Callable[[], T]: ...
    def user(self, load_user: Any, /) -> Callable[[], Any]:
        """A function that returns the application's user in views: `current_user = auth.user(users)`.

        The user is loaded once per request, in the request's session. With the authenticator's :class:`~msk_auth.Users`,
        and an extension with a `session`, it is loaded when the request is verified. Otherwise decorate the
        function that loads the user::

            @auth.user
            def current_user(owner_id: str) -> User | None:
                return db.session.get(User, int(owner_id))


            @app.get("/me")
            @auth.require()
            def me():
                return {"email": current_user().email}

        If no user is found, the request is refused like that of a deleted owner: `owner_disabled` for a key, `token_revoked`
        for a login. The view needs a guard, as for :attr:`current_principal`.

        Args:
            load_user: `Users`, or a function that takes the id of the principal's owner.

        Raises:
            ConfigurationError: `load_user` is `Users`, and the extension has no `session`. Or the function is async: nothing
                would await it.
        """
        users = self._users_given(load_user)
        if users is not None:
            return lambda: self._load_in_session(users)
        if inspect.iscoroutinefunction(load_user):
            raise ConfigurationError(
                f"{load_user!r} is async, and Flask's sessions are not. Write a plain function."
            )

        @functools.wraps(load_user)
        def current_user() -> Any:
            return load_user_once(*loading(request.environ, self.current_principal, load_user))

        return current_user

    def _load_in_session(self, users: AnyUsers) -> Any:
        bound = self._installed()
        principal = known_principal(request.environ, bound._authenticator)
        users = users_of(bound._authenticator, users)
        return load_user_once(*loading_in(bound._request_session(), users, principal))

    def _request_session(self) -> RequestSession:
        find = cast("Callable[[Request], object]", self._find_session)
        return keep_session(request.environ, self._authenticator, lambda: find(request))

    def protect(
        self,
        scope: Blueprint | Flask,
        policy: Policy | None = None,
        *,
        unsafe: Policy | None = None,
    ) -> None:
        """Guard a blueprint, including nested blueprints, or an application.

        Args:
            scope: A blueprint that is not registered yet, or an application after :meth:`init_app`.
            policy: The policy of every view that is not `@auth.public`, including static files, in addition to
                the view's own: :func:`~msk_auth.require` or
                :func:`~msk_auth.require_interactive`. None requires that each view declares a policy.
            unsafe: The policy for methods other than GET, HEAD, OPTIONS and TRACE. None: the same policy.

        Raises:
            ConfigurationError: `scope` is an application without the adapter. :meth:`check` finds views that declare
                nothing.
        """
        if isinstance(scope, Blueprint):
            # An application without this adapter would register the blueprint without a guard.
            scope.before_request(self._check_installed)
        elif not self.shares_guards_with(scope.extensions.get(_EXTENSION)):
            raise ConfigurationError("Call auth.init_app(app) before auth.protect(app).")
        self._found.clear()
        self._protected[scope] = (policy, policy if unsafe is None else unsafe)

    def key_routes(
        self,
        *,
        url_prefix: str = "/api/keys",
        operations: Collection[KeyOperation] | None = None,
    ) -> Blueprint:
        """A blueprint with which people manage their own keys. Its guards cannot be removed.

        Args:
            url_prefix: The routes' prefix.
            operations: The operations to mount: `list_keys`, `create_key`, `get_key`, `update_key`, `rotate_key`, `revoke_key`,
                `delete_key`. By default all. In place of a missing operation the application can add its own route.

        Returns:
            A blueprint with the name `api_keys`. Give it another one when you register it: `register_blueprint(…, name=…)`.
        """
        return self._blueprint("api_keys", key_routes(operations), url_prefix)

    def admin_key_routes(
        self,
        permission: str,
        *,
        max_age: timedelta | None = None,
        url_prefix: str = "/api/admin/keys",
        operations: Collection[AdminKeyOperation] | None = None,
    ) -> Blueprint:
        """A blueprint with which administrators list and revoke the keys of all owners. Its guards cannot be removed.

        Each requires an interactive login with the permission. They cannot create or extend keys, or show their values.

        Args:
            permission: The permission of administrators.
            max_age: The greatest age of their login; None means any.
            url_prefix: The routes' prefix.
            operations: The operations to mount: `list_all_keys`, `revoke_any_keys`, `revoke_any_key`. By default all.

        Returns:
            A blueprint with the name `admin_keys`.
        """
        return self._blueprint(
            "admin_keys", admin_key_routes(permission, max_age, operations), url_prefix
        )

    def revocation_route(
        self, *, path: str = "/api/revoke", throttle: Throttle | None
    ) -> Blueprint:
        """A blueprint that revokes the key in the body, without a login: `POST` with `token=…` as a form, or as JSON.

        The answer is the same for existing and unknown keys (RFC 7009, section 2.2). An incomplete key is refused, without a
        look-up.

        Args:
            path: The path of the route.
            throttle: Called first with each request; raises :class:`~msk_auth.errors.TooManyAttempts` over the limit.
                Pass None if a proxy already limits requests.

        Returns:
            A blueprint with the name `revocation`.
        """
        return self._blueprint("revocation", [revocation_route(path)], throttle=throttle)

    def leak_route(
        self,
        fetch_keys: Callable[[str], bytes],
        *,
        path: str = "/api/leaks/github",
        throttle: Throttle | None,
    ) -> Blueprint:
        """A public blueprint that receives signed reports of GitHub's secret scanning, and revokes the reported keys.

        Args:
            fetch_keys: Called with the address of GitHub's keys. It must return the body of a 200 response in bounded time, and
                raise on any other response. It may stop reading after 262,144 bytes: a longer list is refused.
            path: The path of the route.
            throttle: As for :meth:`revocation_route`.

        Returns:
            A blueprint with the name `leaks`.
        """
        return self._blueprint("leaks", [leak_route(path, fetch_keys)], throttle=throttle)

    def admit(self, policy: Policy) -> Principal[UserT]:
        """The principal of the current request, if it meets the policy.

        For code that chooses a policy at run time.

        Raises:
            Problem: The credentials are missing or refused, or the policy is not met.
            ConfigurationError: :meth:`init_app` was not called on this application.
        """
        return self._installed()._verify(policy)

    def answer(self, problem: Problem) -> Response:
        """The response to a problem: from the application's error handler, or the problem document.

        Guards, guarded views that raise a problem, and the routes of the library return this response.
        Flask-RESTful and Flask-RESTX handle the exceptions of their own classes in place of Flask, so problems of unguarded
        views in a class do not reach the error handlers. There, catch the problem and return `auth.answer(problem)`.

        Args:
            problem: The refusal of a request.

        Raises:
            ConfigurationError: :meth:`init_app` was not called on this application.
        """
        self._check_installed()
        # The method of the class: extensions replace the object's.
        handle = current_app.__class__.handle_user_exception
        return current_app.make_response(handle(current_app, problem))

    def verify_again(self, policy: Policy = AUTHENTICATED) -> Principal[UserT]:
        """The current principal of the request, if it meets the policy: verified again, or within a lease.

        For long requests; :meth:`admit` verifies only once during a request.

        Args:
            policy: The policy to meet; by default any accepted credential without scopes passes.

        Raises:
            Problem: The credentials are refused now, or the policy is not met.
            ConfigurationError: :meth:`init_app` was not called on this application.
        """
        return self._installed()._verify(policy, afresh=True)

    def watch(self, principal: Principal[UserT], policy: Policy | None = None) -> Watch[UserT]:
        """A watch that ends a streamed response within two seconds of a revocation.

        A view returns `Response(auth.watch(auth.current_principal).stream(events()))`.

        Args:
            principal: The admitted principal.
            policy: The policy that it must keep meeting. None: it must keep all its permissions.
        """
        return self.authenticator.watch(principal, policy)

    def _bind(self, authenticator: Authenticator[UserT]) -> None:
        if isinstance(cast("object", authenticator), AsyncAuthenticator):
            raise ConfigurationError(
                "FlaskAuth needs an Authenticator: Flask has no event loop for an AsyncAuthenticator. Write Authenticator(…) with"
                " a sync store and a find_owner without async. Async views work with it too."
            )
        self._authenticator = authenticator
        super()._bind(authenticator)

    def _guard(self, policy: Policy) -> Decorator:
        def decorate(view: Callable[..., Any]) -> Callable[..., Any]:
            check_function(view)
            guarded = declare_guard(self._guarded(view, policy), view, policy)
            hide(view)
            return guarded

        return cast("Decorator", declare(decorate, policy))

    def _guarded(self, view: Callable[..., Any], policy: Policy) -> Callable[..., Any]:
        # The request was already admitted, and admitting it again costs nothing. But a view may
        # be called without Flask's knowledge, through a decorator that hides this one.
        if inspect.iscoroutinefunction(view):
            # No class of an extension calls an async view, so its exceptions reach Flask's handlers.

            @functools.wraps(view)
            async def guarded_async(*args: Any, **kwargs: Any) -> Any:
                self._installed()._verify(policy)
                return await view(*args, **kwargs)

            return guarded_async

        @functools.wraps(view)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            try:
                self._installed()._verify(policy)
                return view(*args, **kwargs)
            except Problem as problem:
                response = self.answer(problem)
            if is_outermost(guarded, current_app.view_functions, request):
                return response
            # A decorator above this guard would cache or marshal the response like the view's.
            raise _Refused(response=response)

        return guarded

    def _blueprint(
        self,
        name: str,
        rows: Sequence[Row],
        url_prefix: str | None = None,
        throttle: Throttle | None = None,
    ) -> Blueprint:
        blueprint = Blueprint(name, __name__, url_prefix=url_prefix)
        for row in rows:
            # For before_request and the route audit: the view checks its policy itself.
            view = declare(
                self._view(row, throttle), *(() if row.policy is None else (row.policy,))
            )
            rule = row.path.replace("{", "<").replace("}", ">")
            blueprint.add_url_rule(rule, row.name, view, methods=[row.method])
        return blueprint

    def _view(self, row: Row, throttle: Throttle | None) -> Callable[..., Response]:
        def view(key_id: str = "") -> Response:
            bound = self._installed()
            exchange = Exchange(
                authenticator=bound._authenticator,
                query=request.query_string,
                path=request.root_path + request.path,
                key_id=key_id,
                # Servers join several headers with commas, and no header of the library's routes may contain a comma.
                header=request.headers.get,
                admit=functools.partial(bound._verify, in_session=False),
                read_body=_read_body,
                call=operator.call,
                throttle=None if throttle is None else functools.partial(throttle, request),
            )
            try:
                return _to_response(respond(row, exchange))
            except Problem as problem:
                return self.answer(problem)

        return view

    def _verify(
        self, policy: Policy, *, afresh: bool = False, in_session: bool = True
    ) -> Principal[UserT]:
        # Bytes read as Latin-1 (PEP 3333). A server joins several headers with commas; the reader of the header refuses
        # such a value. The framework's own parsed value is not used: it decodes leniently.
        given = request.headers.get("authorization")
        authorization: Authorization = () if given is None else (given,)
        if self._key_header is not None:
            key = request.headers.get(self._key_header)
            authorization = bearer_of_key(
                () if key is None else (key,), authorization, self._authenticator.rules.key_format
            )
        elsewhere = self._ask_elsewhere() if self._login_sources.functions else None
        reads_in_session = in_session and self._find_session is not None
        # Kept in the environment and not in Flask's `g`, which belongs to the application context: a pushed context outlives a
        # request, and a principal must never pass to the next request.
        return admit(
            request.environ,
            self._authenticator,
            authorization,
            policy,
            address=request.environ.get("REMOTE_ADDR"),
            path=request.view_args or {},
            afresh=afresh,
            elsewhere=elsewhere,
            session=self._request_session() if reads_in_session else None,
        )

    def _ask_elsewhere(self) -> RequestLogins:
        # A server joins several headers of the same name, and none of these headers may contain a comma.
        headers = [
            (name.encode(), value.encode("latin-1"))
            for name in ("host", "origin", "sec-fetch-site")
            if (value := request.headers.get(name)) is not None
        ]
        return self._login_sources.ask(
            request,
            method=request.method,
            scheme=request.environ["wsgi.url_scheme"],
            headers=headers,
        )

    def _installed(self) -> Self:
        """The copy of this adapter for the current application."""
        installed = current_app.extensions.get(_EXTENSION)
        if installed is not self and not self.shares_guards_with(installed):
            raise ConfigurationError(
                "A guarded view is served by an application without its FlaskAuth. Call"
                " auth.init_app(app) on the application that the view belongs to."
            )
        return cast("Self", installed)

    def _check_installed(self) -> None:
        self._installed()

    def _admitting(self, app: Flask) -> Callable[[], Response | None]:
        """Verifies a request before its view is called; Flask calls it for each request of an application."""

        def admit_request() -> Response | None:
            policies = self._checks_of(app, request.endpoint, request.method)
            if self._authenticator.is_flush_due:
                after_this_request(functools.partial(self._flush_after, app))
            if request.method == "OPTIONS" and _is_preflight(request.url_rule):
                return None
            # A route of the library must not occupy the application's session while the store waits for its own connection.
            view = app.view_functions.get(request.endpoint or "")
            in_session = getattr(view, "__module__", None) != __name__
            try:
                for policy in policies:
                    self._verify(policy, in_session=in_session)
            except Problem as problem:
                return self.answer(problem)
            if policies:
                request.environ[ADMITTED] = self._authenticator
            return None

        return admit_request

    def _flush_after(self, app: Flask, response: Response) -> Response:
        response.call_on_close(functools.partial(_flush, app, self._authenticator.flush_if_due))
        return response

    def _on_problem(self, error: Problem) -> Response:
        # The frames refer to each other and to the credentials, and would stay until the garbage collector runs.
        error.__traceback__ = None
        return _to_response(self._renderer.answer(error))

    def _on_problem_as_http(self, error: Problem) -> Response:
        error.__traceback__ = None
        kind = default_exceptions.get(error.status, HTTPException)
        raised = kind(description=error.detail)
        raised.code = error.status
        raised.__cause__ = error
        # This finds the handlers of blueprints, too.
        response = current_app.make_response(current_app.handle_http_exception(raised))
        for name, value in error.response_headers(self._renderer.realm).items():
            response.headers.setdefault(name, value)
        return response

    def _on_http_exception(self, error: HTTPException) -> ResponseReturnValue:
        if error.response is not None or error.code is None or error.code < 400:
            # The application's own response, or a redirect.
            return error
        default = default_exceptions.get(error.code, HTTPException).description
        detail = None if error.description is None else str(error.description)
        response = _to_response(
            self._renderer.http_error(error.code, None if detail == default else detail)
        )
        # All headers of an error, such as `Allow`; the document has its own type.
        more = Headers(error.get_headers(request.environ))
        more.remove("content-type")
        response.headers.update(more)
        return response


def _read_body(limit: int) -> bytes:
    """The body of the current request.

    Raises:
        RequestMalformed: The body is incomplete.
        ContentTooLarge: The body is longer than `limit`.
        Problem, HTTPException: The application's own limits, or its wrapper of the stream.
    """
    body = bytearray()
    try:
        # One byte more than allowed shows that there are too many.
        while len(body) <= limit and (chunk := request.stream.read(limit + 1 - len(body))):
            body += chunk
    except ClientDisconnected:
        raise broken_body() from None
    except (Problem, HTTPException):
        raise
    except Exception:  # noqa: BLE001 - whatever a server raises
        raise broken_body() from None
    if len(body) > limit:
        raise ContentTooLarge(limit)
    # gunicorn and granian only end the stream when a client disconnects.
    if len(body) < (request.content_length or 0):
        raise broken_body()
    return bytes(body)


def _is_preflight(rule: Any) -> bool:
    """True for a CORS preflight (Fetch standard, "HTTP extensions") that Flask answers itself."""
    return (
        getattr(rule, "provide_automatic_options", False)
        and "Origin" in request.headers
        and "Access-Control-Request-Method" in request.headers
    )


def _to_response(answer: Answer) -> Response:
    response = Response(answer.body, answer.status, Headers(answer.headers))
    if answer.media_type is None:
        # Without Flask's default type.
        del response.headers["content-type"]
    return response


def _flush(app: Flask, flush: Callable[[], None]) -> None:
    """Write times of last use after a request, in a new context: a store may need one to find its engine."""
    with app.app_context():
        flush()


class _Refused(HTTPException):
    """Carries the response to a problem past the decorators above a guard."""


def _flush_at_exit(app: ref[Flask]) -> None:
    alive = app()
    if alive is not None:
        _flush(alive, alive.extensions[_EXTENSION].authenticator.flush)


# The route audit.


def _read(app: Flask, prefix: str) -> Iterator[AuditedRoute]:
    """The rules of a Flask application, method by method."""
    for rule in app.url_map.iter_rules():
        if rule.build_only:
            continue
        host = rule.host or rule.subdomain
        path = f"{prefix}//{host}{rule.rule}" if host else prefix + rule.rule
        exposed = is_exposed(app.view_functions.get(rule.endpoint))
        problems = ("its guard is above the route and protects nothing.",) if exposed else ()
        for method in methods_of(rule):
            policies = None if exposed else _read_policies(app, rule, method)
            methods = () if rule.websocket else (method,)
            kind: RouteKind = "websocket" if rule.websocket else "route"
            own_guard = not exposed and guards_itself(app, rule.endpoint, method)
            yield AuditedRoute(path, methods, kind, rule.endpoint, policies, problems, own_guard)


def _read_policies(app: Flask, rule: Rule, method: str) -> tuple[Policy, ...] | None:
    views: DeclaredViews = app.extensions.get(_EXTENSION) or DeclaredViews()
    try:
        return views.policies_of(app, rule.endpoint, method)
    except ConfigurationError:
        return None


register_reader(Flask, _read)
