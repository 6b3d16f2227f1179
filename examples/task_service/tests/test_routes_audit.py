"""No route of the service is open by mistake, and what is open is written down here (ASVS 5.0, 8.2.1)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from examples.task_service.tests.service_support import Service

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


def run_audit(data: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """The command, as in CI."""
    environment = {name: value for name, value in os.environ.items() if "TASK_SERVICE" not in name}
    command = "import sys; from msk_auth.cli import main; sys.exit(main())"
    return subprocess.run(
        [
            sys.executable,
            "-c",
            command,
            "routes",
            "--factory",
            "task_service.app:create_app",
            *options,
        ],
        env=environment | {"TASK_SERVICE_DATA_DIR": str(data)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_command_passes_on_the_service(tmp_path: Path) -> None:
    opened = [word for path in (*OPEN, *PAGES) for word in ("--public", path)]
    audited = run_audit(tmp_path / "data", *opened)
    assert (audited.returncode, audited.stderr) == (0, "")
    policy = re.escape("permissions: tasks:run; resource: task:{taskId}")
    assert re.search(rf"(?m)^POST +/api/tasks/{{taskId}}/run +{policy} ", audited.stdout)
    assert audited.stdout.rstrip().endswith("0 undeclared, 0 flagged")
