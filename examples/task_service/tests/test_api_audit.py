"""The audit log as JSON, and as a download over a real connection: of any length, with any client."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from datetime import UTC, datetime

import httpx2
import pytest
from examples.task_service.tests.service_support import Caller, Service, expect, on_a_port
from examples.task_service.tests.waiting import eventually

from task_service.accounts.audit import AuditEntry, AuditQuery, UsedCredential

pytestmark = pytest.mark.anyio

ROUTE = "/api/admin/audit/export"


class EndlessLog:
    """Stands for a log of any length: each page is half a megabyte, and there is always another one."""

    def __init__(self) -> None:
        self.read = 0

    async def pages(self, query: AuditQuery) -> AsyncGenerator[Sequence[AuditEntry]]:
        assert query == AuditQuery()
        while True:
            await asyncio.sleep(0)  # as a database would
            self.read += 1
            yield [
                AuditEntry(
                    id=self.read,
                    at=datetime(2026, 1, 1, tzinfo=UTC),
                    action="key.created",
                    actor=None,
                    credential=UsedCredential(kind="system", id=None),
                    target=None,
                    address=None,
                    details={"text": "x" * 500_000},
                )
            ]


@pytest.fixture
async def endless(service: Service, monkeypatch: pytest.MonkeyPatch) -> EndlessLog:
    log = EndlessLog()
    monkeypatch.setattr(service.services.audit, "pages", log.pages)
    return log


@pytest.fixture
async def origin(service: Service) -> AsyncIterator[str]:
    async with on_a_port(service) as origin:
        yield origin


async def _stands_still(count: Callable[[], int]) -> int:
    """What it is once it has grown, and then not for a while."""
    async with asyncio.timeout(60):
        before, now = -1, count()
        while now != before or now == 0:
            await asyncio.sleep(0.3)
            before, now = now, count()
    return now


async def test_an_export_waits_for_its_reader_and_ends_with_them(
    origin: str, admin: Caller, endless: EndlessLog, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="task_service.access")

    def ended() -> bool:
        return any(getattr(record, "route", None) == ROUTE for record in caplog.records)

    headers = {"Authorization": admin.http.headers["Authorization"]}
    async with httpx2.AsyncClient(base_url=origin, headers=headers) as http:
        async with http.stream("GET", f"{ROUTE}?format=jsonl") as response:
            assert response.status_code == 200
            assert response.headers["content-disposition"] == 'attachment; filename="audit.jsonl"'
            # The client reads no further: the sockets buffer some pages, and no more are read from the log.
            assert 1 <= await _stands_still(lambda: endless.read) < 60
            assert not ended()
        # The reader is gone.
        await eventually(ended)
    pages = endless.read
    assert await _stands_still(lambda: endless.read) == pages


async def test_a_head_request_for_an_export_reads_no_log_to_its_end(
    origin: str, admin: Caller, endless: EndlessLog
) -> None:
    headers = {"Authorization": admin.http.headers["Authorization"]}
    async with httpx2.AsyncClient(base_url=origin, headers=headers) as http:
        response = await http.head(ROUTE)
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/csv; charset=utf-8"
    assert await _stands_still(lambda: endless.read) < 60


async def test_an_entry_as_json(service: Service, admin: Caller) -> None:
    me = (await admin.me())["user"]
    key = await admin.new_key()
    expect(await service.caller(key["key"]).post("/api/tasks", {"name": ""}), 422)
    [entry] = expect(await admin.get("/api/admin/audit?action=key.created"), 200)["items"]
    assert entry == {
        "id": entry["id"],
        "at": entry["at"],
        "action": "key.created",
        "actor": {"id": me["id"], "username": "ada"},
        "credential": {"kind": "interactive", "id": entry["credential"]["id"], "name": None},
        "target": key["id"],
        "address": "127.0.0.1",
        "details": entry["details"],
    }


async def test_a_time_is_written_as_one(admin: Caller) -> None:
    texts = ("0.5", "1767225600", "-1", "2026-01-01", "yesterday", "")
    for text, name in itertools.product(texts, ("since", "until")):
        answer = await admin.get(f"/api/admin/audit?{name}={text}")
        assert answer.status_code == 422
        assert answer.json()["errors"] == [
            {"field": name, "message": "Enter a time, such as 2026-03-01T12:00:00Z."}
        ]
    found = expect(await admin.get("/api/admin/audit?until=2026-01-01t00:00:00%2B01:00"), 200)
    assert found == {"items": [], "next_cursor": None}
