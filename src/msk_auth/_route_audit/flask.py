"""Reads the rules of Flask."""

from __future__ import annotations

from collections.abc import Iterator

from flask import Flask
from werkzeug.routing import Rule

from msk_auth.core.errors import ConfigurationError
from msk_auth.core.policy import Policy
from msk_auth.integrations._flask_views import declared_policies, is_exposed
from msk_auth.integrations.flask import FlaskAuth

from .report import AuditedRoute, RouteKind


def read(app: Flask, prefix: str) -> Iterator[AuditedRoute]:
    """The rules of a Flask application, method by method."""
    for rule in app.url_map.iter_rules():
        host = rule.host or rule.subdomain
        path = f"{prefix}//{host}{rule.rule}" if host else prefix + rule.rule
        exposed = is_exposed(app.view_functions.get(rule.endpoint))
        problems = ("its guard stands above the route and protects nothing.",) if exposed else ()
        for method in sorted(rule.methods or {"GET"}):
            policies = None if exposed else _policies(app, rule, method)
            methods = () if rule.websocket else (method,)
            kind: RouteKind = "websocket" if rule.websocket else "route"
            yield AuditedRoute(path, methods, kind, rule.endpoint, policies, problems)


def _policies(app: Flask, rule: Rule, method: str) -> tuple[Policy, ...] | None:
    auth = app.extensions.get("msk_auth")
    if not isinstance(auth, FlaskAuth):
        return declared_policies(app.view_functions.get(rule.endpoint), method)
    try:
        return auth.policies_of(app, rule.endpoint, method)
    except ConfigurationError:
        return None
