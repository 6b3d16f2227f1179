"""Entries of refusals that the database could not take: logged, kept within bounds, written later."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from examples.task_service.tests.accounts_support import (
    KINDS,
    PASSWORD,
    World,
    principal,
    world,
)
from examples.task_service.tests.runs_support import failing
from examples.task_service.tests.test_accounts_key_audit import no_audit

from msk_auth.errors import StoreUnavailable
from task_service.accounts import audit_backlog
from task_service.accounts.audit import Audit
from task_service.errors import LoginFailed
from task_service.observability import Metrics
from task_service.request_record import RequestRecord, current_request

pytestmark = pytest.mark.anyio


@pytest.fixture(params=KINDS)
async def it(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    async with world(request.param, tmp_path) as it:
        yield it


async def _until(happened: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not happened():  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.01)


def logged(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """The entries that were logged in full."""
    return [record.audit_entry for record in caplog.records if hasattr(record, "audit_entry")]


async def test_a_failed_login_is_recorded_although_the_database_failed_just_then(
    it: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(audit_backlog, "_PAUSE_SECONDS", 0.01)
    user = await it.user("ann")
    refused_at = it.clock.now()
    token = current_request.set(RequestRecord("r1", "192.0.2.1"))
    async with it.audit.backlog:
        with no_audit(it) as refused:
            # No verdict without an entry, even one that only has to wait.
            with pytest.raises(StoreUnavailable):
                await it.login.log_in("ann", "a wrong password", address="192.0.2.1")
            await _until(lambda: len(refused) >= 3)
            assert len(it.audit.backlog) == 1
            assert await it.actions() == ["user.created"]
        it.clock.sleep(3600)
        await _until(lambda: not len(it.audit.backlog))
    current_request.reset(token)
    (entry,) = (row for row in await it.rows("audit") if row["action"] == "login.failed")

    assert (entry["at"], entry["target"], entry["address"], entry["credential_kind"]) == (
        refused_at,
        user.id,
        "192.0.2.1",
        "none",
    )
    (line,) = logged(caplog)
    assert (line["action"], line["target"], line["at"]) == (
        "login.failed",
        user.id,
        refused_at.isoformat(),
    )


async def test_a_wrong_present_password_is_recorded_likewise(it: World) -> None:
    user = await it.user("ann")
    with no_audit(it), pytest.raises(StoreUnavailable):
        await it.login.change_password(principal(user), "a wrong password", "another one of mine")
    await it.audit.backlog.write()

    assert (await it.actions())[-1] == "user.password_change_failed"
    assert len(it.audit.backlog) == 0


async def test_as_long_as_the_database_answers_nothing_waits(
    it: World, caplog: pytest.LogCaptureFixture
) -> None:
    await it.user("ann")
    with pytest.raises(LoginFailed):
        await it.login.log_in("ann", "a wrong password")

    assert (await it.actions())[-1] == "login.failed"
    assert len(it.audit.backlog) == 0
    assert logged(caplog) == []


async def test_how_much_waits_is_bounded_and_what_does_not_fit_is_logged_and_counted(
    it: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(audit_backlog, "MAX_WAITING", 2)
    metrics = Metrics()
    audit = Audit(it.db, it.clock, left_out=metrics.audit_entry_left_out)
    metrics.watch_audit_backlog(audit.backlog.__len__)
    with failing(it.db):
        for number in range(4):
            with pytest.raises(StoreUnavailable):
                await audit.record_refusal("login.failed", anonymous=True, target=f"usr_{number}")
        with pytest.raises(StoreUnavailable):
            await audit.backlog.write()
    shown = metrics.render().decode()

    assert "task_service_audit_waiting 2.0" in shown
    assert "task_service_audit_left_out_total 2.0" in shown
    assert [entry["target"] for entry in logged(caplog)] == [f"usr_{n}" for n in range(4)]
    await audit.backlog.write()
    assert [row["target"] for row in await it.rows("audit", order_by="id")] == ["usr_0", "usr_1"]
    assert "task_service_audit_waiting 0.0" in metrics.render().decode()


async def test_what_arrives_while_others_are_written_waits_for_its_turn(it: World) -> None:
    backlog = it.audit.backlog
    backlog.keep(it.audit.entry("one"))
    writing = asyncio.create_task(backlog.write())
    await asyncio.sleep(0)
    backlog.keep(it.audit.entry("two"))
    await writing

    assert len(backlog) == 1
    await backlog.write()
    assert await it.actions() == ["one", "two"]


async def test_a_stopping_process_writes_the_rest_or_logs_that_it_cannot(
    it: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with it.audit.backlog as backlog:
        backlog.keep(it.audit.entry("one"))
    assert await it.actions() == ["one"]
    async with it.audit.backlog as backlog:
        backlog.keep(it.audit.entry("two"))
        with failing(it.db):
            await backlog.__aexit__(None, None, None)
            assert "1 audit entries are in this log alone" in caplog.text
            backlog._waiting.clear()


async def test_a_login_that_succeeds_needs_its_entry(it: World) -> None:
    await it.user("ann")
    it.clock.sleep(timedelta(hours=1).total_seconds())
    with no_audit(it), pytest.raises(StoreUnavailable):
        await it.login.log_in("ann", PASSWORD)

    assert await it.rows("sessions") == []
    assert len(it.audit.backlog) == 0
