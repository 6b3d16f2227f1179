"""What an application's routes demand, and what is wrong with that."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, Literal, TypeAlias

from msk_auth.core.policy import Policy

from .sensitive import sensitive_word

RouteKind: TypeAlias = Literal["route", "websocket", "mount"]

ANY_METHOD: Final = "*"
"""Stands for every method, where the framework does not look at it."""

_READING: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})  # RFC 9110, section 9.2.1


class Access(Enum):
    """Who gets through to a route."""

    PUBLIC = "public"
    ANY_CREDENTIAL = "any credential"
    AUTHENTICATED = "authenticated"
    PERMISSIONS = "permissions"
    INTERACTIVE = "interactive"
    KEY = "API key"
    OWN_GUARD = "the application's own guard"
    UNDECLARED = "undeclared"


@dataclass(frozen=True, slots=True)
class AuditedRoute:
    """One route as the application serves it.

    Attributes:
        path: As the framework writes it, with the paths it is mounted under. A route of one host begins
            with `//` and the host.
        methods: Sorted; `*` for all of them; empty for a websocket.
        kind: A `mount` is an application that cannot be looked into, such as static files.
        name: The endpoint's, to find it by.
        policies: All of them have to be met; empty if the route is public, None if it says nothing.
        problems: What is wrong with it, in words; usually nothing.
        own_guard: Whether the application says that it guards the route itself, here or with a mark.
    """

    path: str
    methods: tuple[str, ...]
    kind: RouteKind
    name: str
    policies: tuple[Policy, ...] | None
    problems: tuple[str, ...] = ()
    own_guard: bool = False

    @property
    def access(self) -> Access:
        """Who gets through."""
        if self.own_guard:
            return Access.OWN_GUARD
        if self.policies is None:
            return Access.UNDECLARED
        if not self.policies:
            return Access.PUBLIC
        if any(policy.interactive for policy in self.policies):
            return Access.INTERACTIVE
        if any(policy.key for policy in self.policies):
            return Access.KEY
        if self.permissions:
            return Access.PERMISSIONS
        if any(policy.any_credential for policy in self.policies):
            return Access.ANY_CREDENTIAL
        return Access.AUTHENTICATED

    @property
    def permissions(self) -> tuple[str, ...]:
        """All permissions that are needed, sorted."""
        return tuple(sorted(frozenset[str]().union(*(p.permissions for p in self.policies or ()))))

    @property
    def max_age_seconds(self) -> float | None:
        """The greatest age of the login, if there is a limit."""
        ages = [p.max_age.total_seconds() for p in self.policies or () if p.max_age is not None]
        return min(ages, default=None)

    @property
    def policy(self) -> str:
        """What it demands, in one line."""
        words = [self.access.value]
        if self.permissions:
            listed = f"permissions: {', '.join(self.permissions)}"
            words = [listed] if self.access is Access.PERMISSIONS else [*words, listed]
        if self.max_age_seconds is not None:
            words.append(f"login at most {self.max_age_seconds:g} s old")
        return "; ".join(words)

    def __str__(self) -> str:
        how = "WEBSOCKET" if self.kind == "websocket" else ",".join(self.methods)
        return f"{how} {self.path}"


@dataclass(frozen=True, slots=True)
class RouteReport:
    """Everything that an application serves.

    Attributes:
        routes: In the order of the framework's routing.
        unused: What the caller declared about routes that do not exist, or need no declaration.
    """

    routes: tuple[AuditedRoute, ...]
    unused: tuple[str, ...] = ()

    @property
    def undeclared(self) -> tuple[AuditedRoute, ...]:
        """Routes that declare no policy, and of which the caller declares nothing either."""
        return tuple(route for route in self.routes if route.access is Access.UNDECLARED)

    @property
    def flagged(self) -> tuple[AuditedRoute, ...]:
        """Routes of which something is declared, and with something wrong."""
        return tuple(
            route
            for route in self.routes
            if route.access is not Access.UNDECLARED and route.problems
        )

    @property
    def problems(self) -> tuple[str, ...]:
        """Everything that is wrong, one line each."""
        return (
            *(f"{route}: {each}" for route in self.routes for each in route.problems),
            *(
                f"{entry!r} is declared, but no route needs it. Take it off."
                for entry in self.unused
            ),
        )

    @property
    def ok(self) -> bool:
        """True if nothing is wrong."""
        return not self.problems


class RouteAuditFailed(AssertionError):
    """The route audit found routes with problems.

    Attributes:
        report: All of its routes.
    """

    def __init__(self, report: RouteReport) -> None:
        self.report = report
        listed = "\n".join(f"  {problem}" for problem in report.problems)
        super().__init__(f"the route audit found {len(report.problems)} problem(s):\n{listed}")


def judge(
    routes: Iterable[AuditedRoute],
    *,
    public: Collection[str] = (),
    own_guard: Collection[str] = (),
    accepted: Collection[str] = (),
) -> RouteReport:
    """Apply what the caller declares, and find what is wrong.

    Args:
        routes: As a reader found them; `problems` are what it came across.
        public: Paths that need no credentials, such as `/healthz` or `POST /login`.
        own_guard: Paths that the application guards itself.
        accepted: Paths of credential or user administration that need no interactive login.
    """
    used: set[str] = set()
    judged: list[AuditedRoute] = []
    for route in _by_method(routes):
        opened = _entries_for(route, public) if not route.policies else set[str]()
        guarded = (
            _entries_for(route, own_guard)
            if route.policies is None and not route.own_guard
            else set[str]()
        )
        settled = _entries_for(route, accepted)
        policies = () if opened else route.policies
        # A guard of the library counts more than what the application says of its own.
        guards_itself = not policies and (bool(guarded) or route.own_guard)
        is_contradiction = guards_itself and policies is not None
        candidate = replace(
            route, policies=policies, own_guard=guards_itself and not is_contradiction
        )
        used |= opened | guarded
        problems = list(route.problems)
        if _is_impassable(route.policies or ()):
            problems.append(
                "demands an API key and a login, so no request passes. Take off one of the two."
            )
        if is_contradiction:
            problems.append("is declared public, and guarded by the application. Decide.")
        elif candidate.access is Access.UNDECLARED:
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


def _is_impassable(policies: Collection[Policy]) -> bool:
    return any(each.key for each in policies) and any(each.interactive for each in policies)


def _administration(route: AuditedRoute) -> str | None:
    if route.access is Access.INTERACTIVE or (route.methods and set(route.methods) <= _READING):
        return None
    word = sensitive_word(route.path, route.permissions)
    if word is None:
        return None
    return (
        f"looks like administration of credentials or users ({word!r}), and"
        " API keys pass. Use require_interactive, or accept it by name."
        if route.policies
        else f"looks like administration of credentials or users ({word!r}), and is public."
        " Use require_interactive, or accept it by name."
    )


def _entries_for(route: AuditedRoute, entries: Collection[str]) -> set[str]:
    names = {route.path}
    for method in route.methods:
        names.add(f"{method} {route.path}")
        if method == "HEAD":
            names.add(f"GET {route.path}")
    if route.methods == ("OPTIONS",):
        # It is answered about another method: a declaration of that one covers it too.
        names |= {entry for entry in entries if entry.partition(" ")[2] == route.path}
    return {entry for entry in entries if entry in names}


def _by_method(routes: Iterable[AuditedRoute]) -> Iterator[AuditedRoute]:
    for route in routes:
        for method in sorted(route.methods):
            yield replace(route, methods=(method,))
        if not route.methods:
            yield route


def _joined(routes: Iterable[AuditedRoute]) -> Iterator[AuditedRoute]:
    """Those that differ in nothing but their method, as one again."""
    methods: dict[AuditedRoute, set[str]] = {}
    for route in routes:
        methods.setdefault(replace(route, methods=()), set()).update(route.methods)
    for route, answered in methods.items():
        yield replace(route, methods=tuple(sorted(answered)))
