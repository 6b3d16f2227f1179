"""The way in: which reader an application takes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from importlib import import_module
from typing import Any, Final, TypeAlias

from msk_auth.core.errors import ConfigurationError

from .report import AuditedRoute, RouteAuditFailed, RouteReport, judge

Reader: TypeAlias = Callable[[Any, str], Iterator[AuditedRoute]]

# By the class that a framework's applications descend from. Naming it loads no framework: whoever has an
# application has loaded its framework.
_READERS: Final = {
    "fastapi.applications.FastAPI": "fastapi",
    "fastapi.routing.APIRouter": "fastapi",
    "starlette.applications.Starlette": "starlette",
    "starlette.routing.Router": "starlette",
    "flask.app.Flask": "flask",
    "litestar.app.Litestar": "litestar",
}


def audit_routes(
    app: object, *, public: Collection[str] = (), accepted: Collection[str] = ()
) -> RouteReport:
    """Demand that every route of an application says whom it is for; for a test of the application.

    ::

        def test_no_route_is_open_by_mistake():
            audit_routes(app, public=["/healthz", "POST /login"])

    Routes that change something (by their method) and look like administration of credentials or users, by a
    word of their path or permissions, have to demand an interactive login as well.

    Args:
        app: A FastAPI, Starlette, Flask or Litestar application. What is mounted in it is read too.
        public: What is for everybody and does not say so itself: paths exactly as in the application, with a
            method in front (`POST /login`) or without, which means all methods.
        accepted: Paths, written the same way, that look like administration and need no interactive login.

    Returns:
        All routes, none with a problem.

    Raises:
        RouteAuditFailed: A route declares nothing, or looks like administration and lets API keys pass; or
            `public` or `accepted` name what needs no mention. It is an `AssertionError`.
        ConfigurationError: It is no application of a framework that is known here.
    """
    report = list_routes(app, public=public, accepted=accepted)
    if not report.ok:
        raise RouteAuditFailed(report)
    return report


def list_routes(
    app: object, *, public: Collection[str] = (), accepted: Collection[str] = ()
) -> RouteReport:
    """What :func:`audit_routes` finds, without failing.

    Raises:
        ConfigurationError: It is no application of a framework that is known here.
    """
    for name, given in (("public", public), ("accepted", accepted)):
        if isinstance(given, str):
            raise ConfigurationError(f"{name} is a list of paths: write [{given!r}].")
    found = read_routes(app, "")
    if found is None:
        raise ConfigurationError(
            f"The routes of {type(app).__module__}.{type(app).__qualname__} cannot be read. Pass the"
            " FastAPI, Starlette, Flask or Litestar application itself, without what wraps it."
        )
    return judge(found, public, accepted)


def read_routes(app: object, prefix: str) -> Iterator[AuditedRoute] | None:
    """The routes of an application, or None if it cannot be looked into."""
    for ancestor in type(app).__mro__:
        reader = _READERS.get(f"{ancestor.__module__}.{ancestor.__qualname__}")
        if reader is not None:
            read: Reader = import_module(f"{__package__}.{reader}").read
            return read(app, prefix)
    return None
