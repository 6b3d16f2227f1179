"""No route of the service is open by mistake, and what is open is written down here (ASVS 5.0, 8.2.1)."""

from __future__ import annotations

import pytest
from examples.task_service.tests.service_support import Service

from msk_auth.testing import Access, audit_routes

pytestmark = pytest.mark.anyio

# What a machine or a stranger may ask.
OPEN = [
    "POST /api/auth/login",
    "POST /api/auth/set-password",
    "GET /healthz",
    "GET /readyz",
    "GET /metrics",
    "GET /openapi.json",
]

# They look for the login themselves, and send whoever has none to the form.
PAGES = [
    "/",
    "/login",
    "/logout",
    "/set-password",
    "/tasks",
    "/tasks/{task_id}",
    "/keys",
    "/account",
    "/admin/config",
    "/admin/users",
    "/admin/audit",
    "/admin/system",
    "/static/{version}/{path:path}",
    "/favicon.ico",
]


async def test_every_route_says_whom_it_is_for(service: Service) -> None:
    report = audit_routes(service.app, public=[*OPEN, *PAGES])

    # A report of nothing would be fine as well.
    access = {str(route): route.access for route in report.routes}
    assert access["POST /api/keys"] is Access.INTERACTIVE
    assert access["POST /api/tasks/{taskId}/run"] is Access.PERMISSIONS
    assert access["* /api/admin/{rest:path}"] is Access.INTERACTIVE


async def test_an_api_key_gets_to_nothing_that_administers(service: Service) -> None:
    report = audit_routes(service.app, public=[*OPEN, *PAGES])
    administration = [route for route in report.routes if route.path.startswith("/api/admin")]
    assert administration
    assert {route.access for route in administration} == {Access.INTERACTIVE}
