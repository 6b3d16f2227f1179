"""What starts and ends with the service, and what it does when a part of it fails."""

from __future__ import annotations

import asyncio
import dataclasses
from datetime import timedelta
from pathlib import Path

import pytest
from examples.task_service.tests.service_support import (
    USER_PASSWORD,
    Caller,
    Service,
    expect,
    problem,
    running_service,
)

from msk_auth import StoreUnavailable
from task_service import app as app_module

pytestmark = pytest.mark.anyio


async def test_what_was_seen_is_written_when_the_service_stops(
    template: Path, tmp_path: Path
) -> None:
    """Keys' and sessions' last use are collected in memory; stopping loses none of it."""
    async with running_service(template, tmp_path / "first") as service:
        user = await service.log_in("ulf", USER_PASSWORD)
        key = await user.new_key()
        expect(await service.caller(key["key"]).get("/api/tasks"), 200)
        (listed,) = expect(await user.get("/api/keys"), 200)["items"]
        assert listed["last_used_at"] is None
    async with running_service(tmp_path / "first", tmp_path / "second") as service:
        user = await service.log_in("ulf", USER_PASSWORD)
        (listed,) = expect(await user.get("/api/keys"), 200)["items"]
        assert listed["last_used_at"] is not None


async def test_a_restart_keeps_keys_and_logins(template: Path, tmp_path: Path) -> None:
    async with running_service(template, tmp_path / "first") as service:
        user = await service.log_in("ulf", USER_PASSWORD)
        key = (await user.new_key())["key"]
        token = user.http.headers["authorization"].removeprefix("Bearer ")
    async with running_service(tmp_path / "first", tmp_path / "second") as service:
        for credential in (key, token):
            expect(await service.caller(credential).get("/api/tasks"), 200)


class FailingRunner:
    """A runner with a mistake that shows once."""

    def __init__(self) -> None:
        self.starts = 0
        self.runs = asyncio.Event()
        self.stopped = asyncio.Event()

    async def run(self) -> None:
        self.starts += 1
        if self.starts == 1:
            raise RuntimeError("a mistake in the runner")
        self.runs.set()
        await self.stopped.wait()

    def stop(self, grace: timedelta) -> None:
        self.stopped.set()


async def test_a_runner_that_failed_is_started_again(
    service: Service, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(app_module, "_RUNNER_PAUSE_SECONDS", 0.0)
    runner, stop = FailingRunner(), asyncio.Event()
    services = dataclasses.replace(service.services, runner=runner)
    async with asyncio.timeout(5):
        working = asyncio.create_task(services.execute_runs(stop))
        await runner.runs.wait()
        stop.set()
        await working
    assert runner.starts == 2
    assert "a mistake in the runner" in caplog.text


async def test_a_change_whose_entry_cannot_be_written_is_still_acknowledged(
    service: Service,
    user: Caller,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    task = await user.new_task()

    async def gone(*_: object, **__: object) -> None:
        raise StoreUnavailable

    monkeypatch.setattr(service.services.audit, "record", gone)
    expect(await user.patch(f"/api/tasks/{task['id']}", {"name": "renamed"}), 200)
    assert f"not in the audit log: task.changed of {task['id']}" in caplog.text


async def test_old_sessions_are_tidied_up_even_after_a_failure(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    purged, calls = asyncio.Event(), []

    async def purge() -> None:
        calls.append("purge")
        if len(calls) == 1:
            raise StoreUnavailable
        purged.set()

    monkeypatch.setattr(app_module, "_PURGE_SECONDS", 0.0)
    monkeypatch.setattr(service.services.sessions, "purge", purge)
    tidying = asyncio.create_task(app_module._tidy_for_ever(service.services.sessions))
    async with asyncio.timeout(5):
        await purged.wait()
    tidying.cancel()


async def test_a_page_without_its_database_is_a_503_and_not_a_login(
    service: Service, user: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def gone(*_: object) -> None:
        raise StoreUnavailable

    monkeypatch.setattr(service.services.authenticator._ports, "find_session", gone)
    page = await user.get("/tasks")
    assert page.status_code == 503
    assert "retry-after" in page.headers
    assert problem(await user.get("/api/tasks")) == (503, "store_unavailable")


async def test_logging_out_of_a_session_that_is_over_leads_to_the_login(
    service: Service, user: Caller
) -> None:
    token = user.http.headers["authorization"].removeprefix("Bearer ")
    headers = {"Cookie": f"__Host-task_session={token}", "Sec-Fetch-Site": "same-origin"}
    for _ in range(2):
        answered = await service.caller().post("/logout", headers=headers)
        assert (answered.status_code, answered.headers["location"]) == (303, "/login")


async def test_runs_are_given_back_when_the_service_stops(template: Path, tmp_path: Path) -> None:
    async with running_service(template, tmp_path / "first") as service:
        ada = await service.log_in("ada", "a quiet river bends")
        expect(await ada.patch("/api/admin/config", {"allowed_commands": ["sleep"]}), 200)
        task = await ada.new_task(params={"argv": ["sleep", "1"]})
        run = expect(await ada.post(f"/api/tasks/{task['id']}/run"), 202)
        async with asyncio.timeout(10):
            state = "queued"
            while state == "queued":
                await asyncio.sleep(0.02)
                state = expect(await ada.get(f"/api/runs/{run['id']}"), 200)["state"]
        assert state == "running"
    async with running_service(tmp_path / "first", tmp_path / "second") as service:
        ada = await service.log_in("ada", "a quiet river bends")
        waiting = expect(await ada.get(f"/api/runs/{run['id']}"), 200)
        assert waiting["finished_at"] is None
        assert (await ada.wait_for_run(run["id"]))["state"] == "succeeded"
