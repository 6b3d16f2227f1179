"""Lists the routes of an application with their policies; public through `msk_auth.testing`.

One rule: unreadable routes count as undeclared. Each adapter registers a reader, which knows its framework's routing
tables and the adapter's marks; `judge` checks the routes. This module knows no framework.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final, Literal, TypeAlias, TypeVar

from msk_auth.core.errors import ConfigurationError
from msk_auth.core.policy import SAFE_METHODS, Policy

T = TypeVar("T")

_MARK: Final = "msk_auth_own_guard"


class OwnGuard:
    """Marks the application's own guards. The only instance is :data:`msk_auth.own_guard`."""

    def __call__(self, guard: T) -> T:
        """Mark a guard or a guarded function; a decorator.

        Args:
            guard: In FastAPI a dependency or an endpoint; in Litestar a guard or the function of a handler; in Flask a view or a
                `before_request` function; in Starlette an endpoint, or a mounted application.

        Returns:
            The argument.

        Raises:
            ConfigurationError: The object cannot be marked.
        """
        try:
            # A bound method takes no attributes.
            setattr(getattr(guard, "__func__", guard), _MARK, True)
        except AttributeError:
            raise ConfigurationError(
                f"{guard!r} cannot be marked. Mark your own function that guards, or the route's function."
            ) from None
        return guard

    def __repr__(self) -> str:
        return "own_guard"


own_guard: Final = OwnGuard()
"""Marks a route as guarded by the application itself, with a guard that this library does not know.

The route audit lists such routes as `the application's own guard`, and cannot look into the guard. The mark changes nothing for
requests, and a guard of the library on the same route overrides it.
"""


def has_own_guard(function: object) -> bool:
    """True if a function, or a function that it wraps, is marked."""
    return any(getattr(layer, _MARK, False) is True for layer in layers(function))


def layers(function: Any) -> Iterator[Any]:
    """A function and the functions that decorators and partials wrap: any of them may have a mark."""
    while function is not None:
        yield function
        if isinstance(function, partial):
            function = function.func
        else:
            function = getattr(function, "__wrapped__", None)


# Words of routes that look like administration of credentials or of users, in English.
_WORDS: Final = frozenset(
    [
        "account",
        "admin",
        "administration",
        "administrator",
        "apikey",
        "apitoken",
        "credential",
        "grant",
        "impersonate",
        "impersonation",
        "invitation",
        "invite",
        "key",
        "membership",
        "mfa",
        "otp",
        "owner",
        "passkey",
        "passphrase",
        "passwd",
        "password",
        "permission",
        "privilege",
        "pwd",
        "recovery",
        "role",
        "secret",
        "session",
        "signup",
        "superuser",
        "sudo",
        "token",
        "totp",
        "user",
        "webauthn",
    ]
)
_PLACEHOLDER: Final = re.compile(r"\{[^}]*\}|<[^>]*>")
_WORD: Final = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")


def sensitive_word(path: str, permissions: Iterable[str]) -> str | None:
    """The first word of the path or the permissions that means credentials or users, or None.

    Placeholders of a path do not count: `/tasks/{user_id}` is about tasks.
    """
    for text in (_PLACEHOLDER.sub(" ", path), *permissions):
        for match in _WORD.finditer(text):
            word = match[0].lower()
            if word in _WORDS or word.removesuffix("s") in _WORDS:
                return word
    return None


RouteKind: TypeAlias = Literal["route", "websocket", "mount"]

ANY_METHOD: Final = "*"
"""Means every method, if the framework does not check the method."""


Access: TypeAlias = Literal[
    "public",
    "any credential",
    "authenticated",
    "permissions",
    "interactive",
    "login",
    "API key",
    "the application's own guard",
    "undeclared",
]


@dataclass(frozen=True, slots=True)
class AuditedRoute:
    """A route of an application.

    Attributes:
        path: The path in the framework's notation, with the paths of mounts. A route of one host begins
            with `//` and the host.
        methods: The methods, sorted; `*` for all of them; empty for a websocket.
        kind: The kind. A `mount` is an application into which the audit cannot look, such as static files.
        name: The endpoint's name.
        policies: The policies, all of which apply; empty if the route is public, None if it declares nothing.
        problems: The problems of the route in words, usually none.
        own_guard: True if the application guards the route itself, by the caller's list or a mark.
        shadowed_by: The path of an earlier route that gets all of its requests, or None.
        is_documentation: True for the framework's page of its OpenAPI document.
    """

    path: str
    methods: tuple[str, ...]
    kind: RouteKind
    name: str
    policies: tuple[Policy, ...] | None
    problems: tuple[str, ...] = ()
    own_guard: bool = False
    shadowed_by: str | None = None
    is_documentation: bool = False

    @property
    def access(self) -> Access:
        """The accepted callers.

        One of `public`, `any credential`, `authenticated`, `permissions`, `interactive`, `login`, `API key`, `the application's
        own guard` and `undeclared`.
        """
        if self.own_guard:
            return "the application's own guard"
        if self.policies is None:
            return "undeclared"
        if not self.policies:
            return "public"
        if any(policy.interactive for policy in self.policies):
            return "interactive"
        if any(policy.login for policy in self.policies):
            return "login"
        if any(policy.key for policy in self.policies):
            return "API key"
        if self.permissions:
            return "permissions"
        if any(policy.any_credential for policy in self.policies):
            return "any credential"
        return "authenticated"

    @property
    def permissions(self) -> tuple[str, ...]:
        """All required permissions, sorted."""
        return tuple(sorted(frozenset[str]().union(*(p.permissions for p in self.policies or ()))))

    @property
    def max_age_seconds(self) -> float | None:
        """The greatest age of the login, if there is a limit."""
        ages = [p.max_age.total_seconds() for p in self.policies or () if p.max_age is not None]
        return min(ages, default=None)

    @property
    def policy(self) -> str:
        """The policy of the route, in one line."""
        words: list[str] = [self.access]
        if self.permissions:
            listed = f"permissions: {', '.join(self.permissions)}"
            words = [listed] if self.access == "permissions" else [*words, listed]
        words += [f"resource: {p.resource}" for p in self.policies or () if p.resource is not None]
        if any(p.any_resource for p in self.policies or ()):
            words.append("any resource")
        if self.max_age_seconds is not None:
            words.append(f"login at most {self.max_age_seconds:g} s old")
        return "; ".join(words)

    def __str__(self) -> str:
        return f"{','.join(self.methods) or 'WEBSOCKET'} {self.path}"


@dataclass(frozen=True, slots=True)
class RouteReport:
    """All routes of an application.

    Attributes:
        routes: The routes, in the order of the framework's routing.
        unused: The caller's entries for routes that do not exist, or need no declaration.
    """

    routes: tuple[AuditedRoute, ...]
    unused: tuple[str, ...] = ()

    @property
    def undeclared(self) -> tuple[AuditedRoute, ...]:
        """Routes that declare no policy and that the caller does not list."""
        return tuple(route for route in self.routes if route.access == "undeclared")

    @property
    def flagged(self) -> tuple[AuditedRoute, ...]:
        """Declared routes with a problem."""
        return tuple(
            route for route in self.routes if route.access != "undeclared" and route.problems
        )

    @property
    def problems(self) -> tuple[str, ...]:
        """All problems, one line each."""
        return (
            *(f"{route}: {each}" for route in self.routes for each in route.problems),
            *(f"{entry!r} is declared, but no route needs it. Remove it." for entry in self.unused),
        )

    @property
    def ok(self) -> bool:
        """True if there are no problems."""
        return not self.problems


def judge(
    routes: Iterable[AuditedRoute],
    *,
    public: Collection[str] = (),
    own_guard: Collection[str] = (),
    accepted: Collection[str] = (),
) -> RouteReport:
    """Apply the caller's declarations, and find problems.

    Args:
        routes: The routes from a reader, with its `problems`.
        public: Paths that need no credentials, such as `/healthz` or `POST /login`.
        own_guard: Paths that the application guards itself.
        accepted: Paths of credential or user administration that need no interactive login.
    """
    used: set[str] = set()
    judged: list[AuditedRoute] = []
    for route in _by_method(routes):
        is_undeclared = route.policies is None and not route.own_guard
        opened = _entries_for(route, () if route.policies else public)
        guarded = _entries_for(route, own_guard if is_undeclared else ())
        settled = _entries_for(route, accepted)
        policies = () if opened else route.policies
        # A guard of the library overrides the application's own guard.
        guards_itself = not policies and (bool(guarded) or route.own_guard)
        is_contradiction = guards_itself and policies is not None
        candidate = replace(
            route, policies=policies, own_guard=guards_itself and not is_contradiction
        )
        used |= opened | guarded
        problems = list(route.problems)
        takes_logins_only = any(each.interactive or each.login for each in route.policies or ())
        if takes_logins_only and any(each.key for each in route.policies or ()):
            problems.append(
                "requires an API key and a login, so no request passes. Remove one of the two."
            )
        if is_contradiction:
            problems.append(
                "is declared both public and guarded by the application. Remove one of the two."
            )
        elif candidate.access == "undeclared":
            problems.append(
                "declares no policy. Guard it, or declare it public or guarded by the application."
            )
        elif not opened and not guards_itself and (why := _administration(candidate)) is not None:
            used |= settled
            if not settled:
                problems.append(why)
        judged.append(replace(candidate, problems=tuple(problems)))
    unused = [entry for entry in (*public, *own_guard, *accepted) if entry not in used]
    return RouteReport(tuple(_joined(judged)), tuple(dict.fromkeys(unused)))


def _administration(route: AuditedRoute) -> str | None:
    takes_no_key = route.access in {"interactive", "login"}
    if takes_no_key or (route.methods and set(route.methods) <= SAFE_METHODS):
        return None
    word = sensitive_word(route.path, route.permissions)
    if word is None:
        return None
    how = "accepts API keys" if route.policies else "is public"
    return (
        f"looks like administration of credentials or users ({word!r}), and {how}."
        " Use require_interactive, or accept it by name."
    )


def _entries_for(route: AuditedRoute, entries: Collection[str]) -> set[str]:
    names = {route.path}
    for method in route.methods:
        names.add(f"{method} {route.path}")
        if method == "HEAD":
            names.add(f"GET {route.path}")
    if route.methods == ("OPTIONS",):
        # OPTIONS and HEAD belong to another method, whose declaration covers them too.
        names |= {entry for entry in entries if entry.partition(" ")[2] == route.path}
    return {entry for entry in entries if entry in names}


def _by_method(routes: Iterable[AuditedRoute]) -> Iterator[AuditedRoute]:
    for route in routes:
        for method in sorted(route.methods):
            yield replace(route, methods=(method,))
        if not route.methods:
            yield route


def _joined(routes: Iterable[AuditedRoute]) -> Iterator[AuditedRoute]:
    """The routes, with those that differ only in their method joined."""
    methods: dict[AuditedRoute, set[str]] = {}
    for route in routes:
        methods.setdefault(replace(route, methods=()), set()).update(route.methods)
    for route, answered in methods.items():
        yield replace(route, methods=tuple(sorted(answered)))


Reader: TypeAlias = Callable[[Any, str], Iterator[AuditedRoute]]

_readers: Final[dict[type, Reader]] = {}


def register_reader(kind: type, reader: Reader) -> None:
    """Register the function that lists the routes of a framework's applications or routers. An adapter calls it when it is imported.

    Args:
        kind: Their class, including subclasses.
        reader: Called with an application and the path of its mount.
    """
    _readers[kind] = reader


def audit_routes(
    app: object,
    *,
    public: Collection[str] = (),
    own_guard: Collection[str] = (),
    accepted: Collection[str] = (),
) -> RouteReport:
    """Check that every route of an application declares its policy; for a test of the application.

    ::

        def test_no_route_is_open_by_mistake():
            audit_routes(app, public=["/healthz", "POST /login"])

    Routes with an unsafe method that look like administration of credentials or users, by a
    word of their path or permissions, must require an interactive login as well.

    Args:
        app: A FastAPI, Starlette, Flask or Litestar application, including mounted applications.
        public: Routes that need no credentials and declare nothing: paths exactly as in the application, with a
            method in front (`POST /login`), or without for all methods.
        own_guard: Paths, written the same way, that the application guards itself, for example with its own dependency.
            The audit cannot look into such a guard.
        accepted: Paths, written the same way, that look like administration and need no interactive login.

    Returns:
        A report whose `routes` are all routes, none with a problem.

    Raises:
        AssertionError: A route declares nothing, or looks like administration and accepts API keys; or
            `public`, `own_guard` or `accepted` have an entry that no route needs.
        ConfigurationError: No adapter reads applications of this kind.
    """
    report = list_routes(app, public=public, own_guard=own_guard, accepted=accepted)
    if not report.ok:
        listed = "\n".join(f"  {problem}" for problem in report.problems)
        raise AssertionError(f"the route audit found {len(report.problems)} problem(s):\n{listed}")
    return report


def list_routes(
    app: object,
    *,
    public: Collection[str] = (),
    own_guard: Collection[str] = (),
    accepted: Collection[str] = (),
) -> RouteReport:
    """The report of :func:`audit_routes`, without failing.

    Returns:
        A report. `routes` has an :class:`AuditedRoute` for each route, in the order of the framework's routing; `undeclared`
        the routes that declare no policy and that the call does not list; `flagged` the others with a problem. `unused` has the
        entries of the call that no route needs, `problems` all problems in words, and `ok` is True
        if there are none.

    Raises:
        ConfigurationError: No adapter reads applications of this kind.
    """
    for name, given in (("public", public), ("own_guard", own_guard), ("accepted", accepted)):
        if isinstance(given, str):
            raise ConfigurationError(f"{name} is a list of paths: write [{given!r}].")
    found = read_routes(app, "")
    if found is None:
        raise ConfigurationError(
            f"The routes of {type(app).__module__}.{type(app).__qualname__} cannot be read. Pass the"
            " FastAPI, Starlette, Flask or Litestar application itself, without a wrapper."
        )
    return judge(found, public=public, own_guard=own_guard, accepted=accepted)


def read_routes(app: object, prefix: str) -> Iterator[AuditedRoute] | None:
    """The routes of an application, or None if no adapter registered a reader for it."""
    for kind in type(app).__mro__:
        _import_adapter(kind.__module__.partition(".")[0])
        reader = _readers.get(kind)
        if reader is not None:
            return reader(app, prefix)
    return None


def _import_adapter(framework: str) -> None:
    """Import the adapter for a framework, which has the name of the framework's package, so that it registers its reader.

    This loads no framework: a program with an application has already loaded its framework.
    """
    name = f"msk_auth.integrations.{framework}"
    if not framework.startswith("_") and find_spec(name) is not None:
        import_module(name)
