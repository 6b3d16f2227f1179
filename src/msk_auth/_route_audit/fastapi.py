"""Reads the routes of FastAPI: Starlette's, with the guards among their dependencies.

Newer versions of FastAPI keep an included router as one entry of its table, and the files of a front end in a table
of their own; older ones have neither. Both are asked for by name, so that every version is read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, TypeGuard

import fastapi.routing
from fastapi import APIRouter, FastAPI

from msk_auth.core.policy import Policy
from msk_auth.integrations.fastapi import Guard

from .report import AuditedRoute
from .starlette import Entry, read_default, read_entries


def read(app: FastAPI | APIRouter, prefix: str) -> Iterator[AuditedRoute]:
    """The routes of a FastAPI application or a router."""
    router = app.router if isinstance(app, FastAPI) else app
    # A guard that a test has replaced guards nothing.
    replaced = app.dependency_overrides if isinstance(app, FastAPI) else {}
    yield from read_entries(_entries(router, replaced), prefix)
    yield from _front_ends(router, replaced, prefix)
    yield from read_default(router, prefix)


def _entries(router: APIRouter, replaced: Collection[object]) -> Iterator[Entry]:
    flatten = getattr(fastapi.routing, "iter_route_contexts", None)
    if flatten is None:
        for route in router.routes:
            yield Entry(route, route, _guards(route, replaced))
        return
    for context in flatten(router.routes):
        yield Entry(context.original_route, context, _guards(context, replaced))


def _front_ends(
    router: APIRouter, replaced: Collection[object], prefix: str
) -> Iterator[AuditedRoute]:
    groups: Any = getattr(router, "_iter_low_priority_routes", tuple)
    for group in groups():
        above = prefix + getattr(group, "frontend_prefix", "").rstrip("/")
        guards = _guards(group, replaced)
        for front_end in getattr(group, "original_route", group).routes:
            path = above + front_end.path
            methods = tuple(sorted(front_end.methods))
            yield AuditedRoute(path, methods, "mount", "frontend", guards or None)


def _guards(route: Any, replaced: Collection[object]) -> tuple[Policy, ...]:
    dependant = getattr(route, "dependant", None)
    pending: list[Any] = [] if dependant is None else [dependant]
    found: dict[Policy, None] = {}
    while pending:
        dependant = pending.pop(0)
        call: object = dependant.call
        if _is_guard(call) and call not in replaced:
            found[call.policy] = None
        pending.extend(dependant.dependencies)
    return tuple(found)


def _is_guard(value: object) -> TypeGuard[Guard[Any]]:
    return isinstance(value, Guard)
