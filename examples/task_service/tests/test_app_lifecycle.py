"""What starts and ends with the service, and what it does when a part of it fails."""

from __future__ import annotations

import asyncio
import copy
import functools
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from examples.task_service.tests.accounts_support import record
from examples.task_service.tests.service_support import (
    ADMIN_PASSWORD,
    USER_PASSWORD,
    Caller,
    Service,
    expect,
    problem,
    running_service,
    wrong_fields,
)
from sqlalchemy import update

from msk_auth.errors import StoreUnavailable
from task_service import housekeeping
from task_service import worker as worker_module
from task_service.accounts.audit import AuditQuery
from task_service.db import schema
from task_service.handlers.command import Command
from task_service.services import Services

pytestmark = pytest.mark.anyio


async def test_a_restart_keeps_keys_and_logins_and_what_was_seen_of_them(
    template: Path, tmp_path: Path
) -> None:
    """Keys' and sessions' last use are collected in memory; stopping loses none of it, nor a key or a login."""
    async with running_service(template, tmp_path / "first", shared_routes=True) as service:
        user = await service.log_in("ulf", USER_PASSWORD)
        key = await user.new_key()
        expect(await service.caller(key["key"]).get("/api/tasks"), 200)
        (listed,) = expect(await user.get("/api/keys"), 200)["items"]
        assert listed["last_used_at"] is None
        token = user.token
    async with running_service(
        tmp_path / "first", tmp_path / "second", shared_routes=True
    ) as service:
        (listed,) = expect(await service.caller(token).get("/api/keys"), 200)["items"]
        assert listed["last_used_at"] is not None
        expect(await service.caller(key["key"]).get("/api/tasks"), 200)


class FailingRunner:
    """A runner with a mistake that shows once."""

    def __init__(self) -> None:
        self.starts = 0
        self.runs = asyncio.Event()

    async def run(self, stop: asyncio.Event, grace: timedelta) -> None:
        self.starts += 1
        if self.starts == 1:
            raise RuntimeError("a mistake in the runner")
        self.runs.set()
        await stop.wait()


async def test_a_runner_that_failed_is_started_again(
    service: Service, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(worker_module, "_RUNNER_PAUSE_SECONDS", 0.0)
    runner, stop = FailingRunner(), asyncio.Event()
    worker = copy.copy(service.services.worker)
    worker.runner = runner
    async with asyncio.timeout(60):
        working = asyncio.create_task(worker.execute_runs(stop))
        await runner.runs.wait()
        stop.set()
        await working
    assert runner.starts == 2
    assert "a mistake in the runner" in caplog.text


async def test_a_change_whose_entry_cannot_be_written_does_not_happen(
    service: Service, user: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _allow_sleeping(service)
    task = await user.new_task(params={"argv": ["sleep", "60"]})
    path = f"/api/tasks/{task['id']}"
    run = expect(await user.post(f"{path}/run"), 202)
    before = expect(await user.get(path), 200)

    def gone(*_: object, **__: object) -> None:
        raise StoreUnavailable

    with monkeypatch.context() as patch:
        patch.setattr(service.services.audit, "entry", gone)
        for answer in (
            await user.post(
                "/api/tasks", {"name": "lost", "handler": "command", "params": {"argv": ["echo"]}}
            ),
            await user.patch(path, {"name": "renamed"}),
            await user.post(f"{path}/run"),
            await user.post(f"/api/runs/{run['id']}/cancel"),
            await user.delete(path),
        ):
            assert problem(answer) == (503, "store_unavailable")

    (after,) = expect(await user.get("/api/tasks"), 200)["items"]
    assert after["name"] == before["name"]
    assert after["updated_at"] == before["updated_at"]
    runs = expect(await user.get(f"{path}/runs"), 200)["items"]
    assert [each["id"] for each in runs] == [run["id"]]
    expect(await user.post(f"/api/runs/{run['id']}/cancel"), 200)
    assert (await user.wait_for_run(run["id"]))["state"] == "cancelled"


async def test_what_changes_nothing_is_not_recorded(
    service: Service, user: Caller, admin: Caller
) -> None:
    await _allow_sleeping(service)
    task = await user.new_task(params={"argv": ["sleep", "60"]})
    headers = {"Idempotency-Key": "once"}
    started = [
        expect(await user.post(f"/api/tasks/{task['id']}/run", headers=headers), 202)["id"]
        for _ in range(2)
    ]
    assert started[0] == started[1]
    for _ in range(2):
        expect(await user.post(f"/api/runs/{started[0]}/cancel"), 200)
    entries = expect(await admin.get(f"/api/admin/audit?target={started[0]}"), 200)["items"]
    assert [entry["action"] for entry in entries] == ["run.cancelled", "run.requested"]
    assert entries[1]["details"] == {"task_id": task["id"]}


async def _allow_sleeping(service: Service) -> None:
    await service.services.config.update({"allowed_commands": ["sleep", "echo"]}, by=None)


async def test_the_audit_log_is_kept_for_as_long_as_the_setting_says(
    template: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with running_service(template, tmp_path / "data", shared_routes=True) as service:
        old = (await service.services.audit.list(AuditQuery())).items
        assert len(old) == 2  # the users of the template
        settings = service.services.settings.model_copy(update={"audit_retention_days": 30})
        purging = copy.copy(service.services)
        purging.settings = settings
        service.clock.advance(days=29)
        await housekeeping.purge(purging)
        await record(service.services, "user.young")
        service.clock.advance(days=1, seconds=60)
        await housekeeping.purge(service.services)
        assert len((await service.services.audit.list(AuditQuery())).items) == 3
        await housekeeping.purge(purging)
        left = (await service.services.audit.list(AuditQuery())).items
    assert [entry.action for entry in left] == ["user.young"]
    assert "deleted 2 audit entries older than 30 days" in caplog.text


async def test_old_runs_are_purged(
    service: Service, user: Caller, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    run = expect(await user.post(f"/api/tasks/{(await user.new_task())['id']}/run"), 202)
    await user.wait_for_run(run["id"])
    service.clock.advance(days=29)
    await housekeeping.purge(service.services)
    assert "old runs" not in caplog.text
    service.clock.advance(days=2)
    await housekeeping.purge(service.services)
    assert "deleted 1 old runs" in caplog.text


async def test_housekeeping_goes_on_after_an_outage(
    service: Service, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calls, repeated = list[str](), asyncio.Event()

    async def fail_once(name: str, _: Services) -> None:
        calls.append(name)
        if len(calls) <= 2:
            raise StoreUnavailable
        if len(calls) == 4:
            repeated.set()

    monkeypatch.setattr(housekeeping, "_PAUSE_SECONDS", 0.0)
    for name in ("purge", "announce"):
        monkeypatch.setattr(housekeeping, name, functools.partial(fail_once, name))
    task = asyncio.create_task(housekeeping.keep_house(service.services))
    await asyncio.wait_for(repeated.wait(), 60)
    task.cancel()
    await asyncio.wait([task])
    assert calls[:4] == ["purge", "announce"] * 2
    assert "so nothing was purged; trying again later" in caplog.text
    assert "so no end of a key was announced; trying again later" in caplog.text


async def test_the_service_announces_ends_when_it_starts(
    template: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with running_service(
        template, tmp_path / "first", shared_routes=True, housekeeping=False
    ) as service:
        user = await service.log_in("ulf", USER_PASSWORD)
        key = await user.new_key(expires_in_days=90)
        ends_at = service.clock.now() + timedelta(days=5)
        async with service.services.db.write() as connection:
            moment = schema.to_microseconds(ends_at)
            await connection.execute(update(schema.api_keys).values(expires_at=moment))
    async with running_service(
        tmp_path / "first", tmp_path / "second", shared_routes=True
    ) as service:
        user = await service.log_in("ulf", USER_PASSWORD)
        trail: list[dict[str, Any]] = []
        async with asyncio.timeout(60):
            while not trail:
                await asyncio.sleep(0.02)
                found = expect(await user.get(f"/api/keys/{key['id']}/audit"), 200)["items"]
                trail = [entry for entry in found if entry["action"] == "key.expiring"]
    assert [entry["details"] for entry in trail] == [{"name": key["name"], "days": 7}]
    assert "announced the end of 1 keys" in caplog.text


async def test_a_page_without_its_database_is_a_503_and_not_a_login(
    service: Service, user: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def gone(*_: object) -> None:
        raise StoreUnavailable

    monkeypatch.setattr(service.services.authenticator._look_ups, "find_session", gone)
    page = await user.get("/tasks")
    assert page.status_code == 503
    assert "retry-after" in page.headers
    assert problem(await user.get("/api/tasks")) == (503, "store_unavailable")


async def test_logging_out_of_a_session_that_is_over_leads_to_the_login(
    service: Service, user: Caller
) -> None:
    token = user.token
    headers = {"Cookie": f"__Host-task_session={token}", "Sec-Fetch-Site": "same-origin"}
    for _ in range(2):
        answered = await service.caller().post("/logout", headers=headers)
        assert (answered.status_code, answered.headers["location"]) == (303, "/login")


async def test_runs_are_given_back_when_the_service_stops(
    template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = asyncio.Event()

    async def run_for_ever(*_: object) -> None:
        began.set()
        await asyncio.Event().wait()

    async with running_service(template, tmp_path / "first", shared_routes=True) as service:
        ada = await service.log_in("ada", "a quiet river bends")
        task = await ada.new_task()
        with monkeypatch.context() as patch:
            patch.setattr(Command, "run", run_for_ever)
            run = expect(await ada.post(f"/api/tasks/{task['id']}/run"), 202)
            await asyncio.wait_for(began.wait(), 60)
    looked, run_now = asyncio.Event(), Command.run

    async def run_later(*args: Any) -> Any:
        await asyncio.wait_for(looked.wait(), 60)
        return await run_now(*args)

    monkeypatch.setattr(Command, "run", run_later)
    async with running_service(
        tmp_path / "first", tmp_path / "second", shared_routes=True
    ) as service:
        ada = await service.log_in("ada", "a quiet river bends")
        waiting = expect(await ada.get(f"/api/runs/{run['id']}"), 200)
        assert waiting["finished_at"] is None
        looked.set()
        assert (await ada.wait_for_run(run["id"]))["state"] == "succeeded"


async def test_no_command_beside_echo_is_executed_until_the_operator_permits_it(
    template: Path, tmp_path: Path
) -> None:
    """A process that has the secrets would let a command read them."""
    change = {"allowed_commands": ["echo", "cat"]}
    async with running_service(template, tmp_path / "first", commands="echo") as service:
        ada = await service.log_in("ada", ADMIN_PASSWORD)
        refused = await ada.patch("/api/admin/config", change)
        assert wrong_fields(refused) == {"allowed_commands"}
        assert "TASK_SERVICE_COMMANDS=listed" in refused.text
        assert expect(await ada.get("/api/admin/config"), 200)["allowed_commands"] == ["echo"]
        # What is not about commands can be changed all the same, and the example works.
        expect(await ada.patch("/api/admin/config", {"max_keys_per_user": 3}), 200)
        task = await ada.new_task(params={"argv": ["echo", "hello"]})
        run = expect(await ada.post(f"/api/tasks/{task['id']}/run"), 202)
        assert (await ada.wait_for_run(run["id"]))["state"] == "succeeded"
    async with running_service(
        tmp_path / "first", tmp_path / "second", commands="listed"
    ) as service:
        ada = await service.log_in("ada", ADMIN_PASSWORD)
        expect(await ada.patch("/api/admin/config", change), 200)
        task = await ada.new_task(params={"argv": ["cat"]})
    async with running_service(tmp_path / "second", tmp_path / "third", commands="echo") as service:
        ada = await service.log_in("ada", ADMIN_PASSWORD)
        run = expect(await ada.post(f"/api/tasks/{task['id']}/run"), 202)
        assert (await ada.wait_for_run(run["id"]))["state"] == "failed"
    # A process that leaves runs to workers executes none.
    async with running_service(
        template, tmp_path / "fourth", commands="echo", execute_runs="never"
    ) as service:
        ada = await service.log_in("ada", ADMIN_PASSWORD)
        expect(await ada.patch("/api/admin/config", {"allowed_commands": ["cat"]}), 200)
        await ada.new_task(params={"argv": ["cat"]})
