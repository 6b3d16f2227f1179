"""No route of the service is open by mistake, and what is open is written down here (ASVS 5.0, 8.2.1)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from examples.task_service.tests.service_support import Service

from msk_auth.cli import main
from msk_auth.testing import audit_routes

pytestmark = pytest.mark.anyio

# What is public for machines and for clients without a login.
OPEN = [
    "POST /api/auth/login",
    "POST /api/auth/set-password",
    "POST /api/auth/password-link",
    "GET /healthz",
    "GET /readyz",
    "GET /metrics",
    "GET /openapi.json",
]

# They check the login themselves, and redirect to the form without one.
PAGES = [
    "/",
    "/login",
    "/logout",
    "/set-password",
    "/tasks",
    "/tasks/{task_id}",
    "/runs",
    "/keys",
    "/keys/{key_id}",
    "/account",
    "/admin/config",
    "/admin/users",
    "/admin/keys",
    "/admin/keys/{key_id}",
    "/admin/audit",
    "/admin/service-accounts",
    "/admin/service-accounts/{account_id}",
    "/admin/service-accounts/{account_id}/keys/{key_id}",
    "/admin/system",
    "/docs",
    "/docs/operations",
    "/static/{version}/{path:path}",
    "/vendor/{version}/{path:path}",
    "/favicon.ico",
]


async def test_every_route_declares_its_guard(service: Service) -> None:
    report = audit_routes(service.app, public=[*OPEN, *PAGES])

    # A report of nothing would be fine as well.
    access = {str(route): route.access for route in report.routes}
    assert access["POST /api/keys"] == "interactive"
    assert access["POST /api/tasks/{taskId}/run"] == "permissions"
    assert access["* /api/admin/{rest:path}"] == "interactive"


async def test_an_api_key_gets_to_nothing_that_administers(service: Service) -> None:
    report = audit_routes(service.app, public=[*OPEN, *PAGES])
    administration = [route for route in report.routes if route.path.startswith("/api/admin")]
    assert administration
    assert {route.access for route in administration} == {"interactive"}


def test_the_command_passes_on_the_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TASK_SERVICE_DATA_DIR", str(tmp_path / "data"))
    opened = [word for path in (*OPEN, *PAGES) for word in ("--public", path)]
    code = main(["routes", "--factory", "task_service.app:create_app", *opened])
    printed = capsys.readouterr()
    assert (code, printed.err) == (0, "")
    policy = re.escape("permissions: tasks:run; resource: task:{taskId}")
    assert re.search(rf"(?m)^POST +/api/tasks/{{taskId}}/run +{policy} ", printed.out)
    assert printed.out.rstrip().endswith("0 undeclared, 0 flagged")
