"""What watches over the service: health, readiness, metrics, public keys."""

from __future__ import annotations

import json
import logging
import re
import shutil
from pathlib import Path
from unittest import mock

import pytest
from examples.task_service.tests.service_support import (
    Caller,
    Service,
    expect,
    problem,
    running_service,
    secrets_in,
)
from examples.task_service.tests.waiting import eventually

from msk_auth import SigningKey
from msk_auth.errors import StoreUnavailable
from task_service.observability import ACCESS_LOGGER

pytestmark = pytest.mark.anyio


async def test_a_service_with_a_database_is_ready(service: Service) -> None:
    for path in ("/healthz", "/readyz"):
        assert expect(await service.caller().get(path), 200) == {"status": "ok"}


async def test_a_service_without_its_database_is_healthy_and_not_ready(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object) -> None:
        raise StoreUnavailable

    monkeypatch.setattr(type(service.services.db), "read", gone)
    anonymous = service.caller()
    # Counts of before the outage would mislead.
    service.services.metrics.set_runs({"queued": 3})
    expect(await anonymous.get("/healthz"), 200)
    assert problem(await anonymous.get("/readyz")) == (503, "store_unavailable")
    metrics = await anonymous.get("/metrics")
    assert metrics.status_code == 200
    assert "task_service_runs{state=" not in metrics.text


async def test_a_monitor_that_gets_what_it_expects_leaves_no_line_at_info(
    service: Service, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, ACCESS_LOGGER)
    anonymous = service.caller()
    for path in ("/healthz", "/readyz", "/metrics"):
        assert (await anonymous.get(path)).status_code == 200
    assert not [each for each in caplog.records if each.name == ACCESS_LOGGER]
    monkeypatch.setattr(type(service.services.db), "read", mock.Mock(side_effect=StoreUnavailable))
    expect(await anonymous.get("/readyz"), 503)
    (line,) = (vars(each) for each in caplog.records if each.name == ACCESS_LOGGER)
    assert (line["route"], line["status"], line["levelname"]) == ("/readyz", 503, "INFO")


async def test_the_metrics_name_no_user(service: Service, user: Caller, user_key: Caller) -> None:
    task = await user.new_task()
    run = expect(await user_key.post(f"/api/tasks/{task['id']}/run"), 202)
    # It is counted after its outcome is written.
    ended = b'task_service_runs_ended_total{state="succeeded"} 1.0'
    await eventually(lambda: ended in service.services.metrics.render())
    await service.caller("msk_wrong").get("/api/tasks")
    await user.get("/keys")
    response = await service.caller().get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    text = response.text
    for line in (
        'task_service_requests_total{method="POST",route="/api/tasks/{taskId}/run",status="202"} 1.0',
        'task_service_requests_total{method="POST",route="/api/keys",status="201"} 1.0',
        'task_service_requests_total{method="GET",route="/keys",status="200"} 1.0',
        'task_service_auth_refusals_total{code="key_malformed"} 1.0',
        "task_service_run_seconds_count 1.0",
        "task_service_run_wait_seconds_count 1.0",
        'task_service_runs{state="queued"} 0.0',
        "task_service_requests_in_flight 1.0",
        "task_service_database_connections_in_use ",
        'task_service_runs{state="running"} 0.0',
    ):
        assert line in text
    # Those that have ended are many: they are counted as they end, not in the database.
    assert 'task_service_runs{state="succeeded"}' not in text
    me = await user.me()
    for name in (task["id"], run["id"], me["user"]["id"], "ulf", "127.0.0.1"):
        assert name not in text
    assert not secrets_in(text)
    assert not re.search(r"msk_", text)


async def test_symmetric_keys_are_not_shown(service: Service) -> None:
    assert problem(await service.caller().get("/.well-known/jwks.json")) == (404, "not_found")


async def test_asymmetric_keys_are_public(template: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(template, tmp_path / "asymmetric"))
    key = SigningKey.generate("new", "Ed25519")
    file = other / "secrets.json"
    content = json.loads(file.read_text())
    content["token_keys"].insert(
        0, {"kid": "new", "algorithm": "Ed25519", "key": key.export().decode()}
    )
    file.write_text(json.dumps(content))
    file.chmod(0o600)
    async with running_service(other, tmp_path / "data") as service:
        (shown,) = expect(await service.caller().get("/.well-known/jwks.json"), 200)["keys"]
        assert (shown["kid"], shown["kty"]) == ("new", "OKP")
        assert "d" not in shown
        ada = await service.log_in("ada", "a quiet river bends")
        expect(await ada.get("/api/auth/me"), 200)
