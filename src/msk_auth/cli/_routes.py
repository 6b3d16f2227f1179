"""`msk-auth routes`: lists the routes of an application with their policies."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from msk_auth._route_audit import AuditedRoute, RouteReport, list_routes

from ._terminal import CommandFailed, Commands, shown, write_error, write_line


def add_routes(commands: Commands) -> None:
    """Add the command."""
    routes = commands.add(
        "routes",
        summary="list every route of an application with its policy, and fail on open ones",
        examples=(
            "  msk-auth routes main:app --public /healthz --public 'POST /login'\n"
            "  msk-auth routes --factory shop.web:create_app --format json\n\n"
            "The module is imported: run this only on code that you would run.\n"
            "Exit code 1 means that a route declares no policy, or looks like administration of credentials\n"
            "or users and lets API keys pass."
        ),
    )
    routes.add_argument("app", metavar="MODULE:APP", help="the application, as for uvicorn")
    routes.add_argument("--factory", action="store_true", help="APP is a function that makes it")
    routes.add_argument("--app-dir", default=".", help="where the module is (.)")
    routes.add_argument(
        "--public",
        action="append",
        default=[],
        metavar="[METHOD ]PATH",
        help="a public route, exactly as listed; may be repeated",
    )
    routes.add_argument(
        "--own-guard",
        action="append",
        default=[],
        metavar="[METHOD ]PATH",
        help="a route that the application guards itself; may be repeated",
    )
    routes.add_argument(
        "--accept",
        action="append",
        default=[],
        metavar="[METHOD ]PATH",
        help="a route that looks like administration and needs no interactive login; may be repeated",
    )
    routes.add_argument("--format", choices=["table", "json"], default="table")
    routes.set_defaults(run=_run)


def _run(given: argparse.Namespace) -> int:
    app = _load(given.app, given.app_dir, factory=given.factory)
    report = list_routes(app, public=given.public, own_guard=given.own_guard, accepted=given.accept)
    if given.format == "json":
        write_line(_as_json(report))
    else:
        write_line(_as_table(report))
        for problem in report.problems:
            write_error(shown(problem))
    return 0 if report.ok else 1


def _load(target: str, folder: str, *, factory: bool) -> object:
    module_name, _, names = target.partition(":")
    if not module_name or not names:
        raise CommandFailed(f"{target!r} is not of the form MODULE:APP, such as main:app.")
    folder = str(Path(folder).resolve())
    sys.path.insert(0, folder)
    try:
        # The output of the application during its import is not part of the report.
        with redirect_stdout(sys.stderr):
            app: Any = importlib.import_module(module_name)
            for name in names.split("."):
                app = getattr(app, name)
            return app() if factory else app
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the application may raise anything
        reason = " ".join(str(error).split())
        raise CommandFailed(
            f"{target} cannot be loaded: {type(error).__name__}: {shown(reason)}"
        ) from None
    finally:
        sys.path.remove(folder)


def _as_table(report: RouteReport) -> str:
    rows = [("METHODS", "PATH", "POLICY", "ENDPOINT")]
    rows += [
        (_methods(route), shown(route.path), route.policy, shown(route.name))
        for route in report.routes
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]])
        for row in rows
    ]
    bad = len(report.undeclared)
    lines.append(f"\n{len(report.routes)} routes, {bad} undeclared, {len(report.flagged)} flagged")
    return "\n".join(lines)


def _methods(route: AuditedRoute) -> str:
    return "WEBSOCKET" if route.kind == "websocket" else ",".join(route.methods)


def _as_json(report: RouteReport) -> str:
    return json.dumps(
        {
            "ok": report.ok,
            "routes": [
                {
                    "path": route.path,
                    "methods": list(route.methods),
                    "kind": route.kind,
                    "endpoint": route.name,
                    "access": route.access.value,
                    "permissions": list(route.permissions),
                    "max_age_seconds": route.max_age_seconds,
                    "problems": list(route.problems),
                }
                for route in report.routes
            ],
            "unused": list(report.unused),
        },
        indent=2,
    )
