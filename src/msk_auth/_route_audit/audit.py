"""The way in: the readers that adapters registered, and which of them reads an application."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final, TypeAlias

from msk_auth.core.errors import ConfigurationError

from .report import AuditedRoute, RouteAuditFailed, RouteReport, judge

Reader: TypeAlias = Callable[[Any, str], Iterator[AuditedRoute]]

_readers: Final[dict[type, Reader]] = {}


def register_reader(kind: type, reader: Reader) -> None:
    """Register the function that lists the routes of a framework's applications or routers. An adapter calls it when it is imported.

    Args:
        kind: Their class; subclasses are read the same way.
        reader: Called with one of them and the path that it is mounted under.
    """
    _readers[kind] = reader


def audit_routes(
    app: object,
    *,
    public: Collection[str] = (),
    own_guard: Collection[str] = (),
    accepted: Collection[str] = (),
) -> RouteReport:
    """Check that every route of an application declares whom it is for; for a test of the application.

    ::

        def test_no_route_is_open_by_mistake():
            audit_routes(app, public=["/healthz", "POST /login"])

    Routes that change something (by their method) and look like administration of credentials or users, by a
    word of their path or permissions, have to demand an interactive login as well.

    Args:
        app: A FastAPI, Starlette, Flask or Litestar application. What is mounted in it is read too.
        public: Routes that need no credentials and declare nothing: paths exactly as in the application, with a
            method in front (`POST /login`) or without, which means all methods.
        own_guard: Paths, written the same way, that the application guards itself, for example with a dependency of its own.
            The audit cannot look into such a guard.
        accepted: Paths, written the same way, that look like administration and need no interactive login.

    Returns:
        All routes, none with a problem.

    Raises:
        RouteAuditFailed: A route declares nothing, or looks like administration and lets API keys pass; or
            `public`, `own_guard` or `accepted` name what needs no mention. It is an `AssertionError`.
        ConfigurationError: No adapter reads applications of this kind.
    """
    report = list_routes(app, public=public, own_guard=own_guard, accepted=accepted)
    if not report.ok:
        raise RouteAuditFailed(report)
    return report


def list_routes(
    app: object,
    *,
    public: Collection[str] = (),
    own_guard: Collection[str] = (),
    accepted: Collection[str] = (),
) -> RouteReport:
    """What :func:`audit_routes` finds, without failing.

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
            " FastAPI, Starlette, Flask or Litestar application itself, without what wraps it."
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
    """Import the adapter for a framework, so that it registers its reader: it has the name of the framework's package.

    It loads no framework: a program that has an application of one has loaded it.
    """
    name = f"msk_auth.integrations.{framework}"
    if not framework.startswith("_") and find_spec(name) is not None:
        import_module(name)
