"""The service behind proxies: which pages are its own behind TLS, and a proxy that was not listed as trusted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from ipaddress import ip_address, ip_network
from pathlib import Path

import httpx2
import pytest
from examples.task_service.tests.accounts_support import KINDS, START, database_url
from examples.task_service.tests.service_support import (
    ADMIN_PASSWORD,
    expect,
    running_service,
)

from msk_auth.errors import StoreUnavailable
from msk_auth.testing import FrozenClock
from task_service.db.engine import Database
from task_service.db.migrate import migrate
from task_service.trusted_proxies import (
    RECORDED_EVERY,
    VALID_FOR,
    UntrustedProxies,
    untrusted_proxies,
)

pytestmark = pytest.mark.anyio

PROXY, OTHER_PROXY = ip_address("10.0.0.7"), ip_address("fd00::7")
STRANGER, OTHER_STRANGER = ip_address("8.8.8.8"), ip_address("2606:4700::1")
LOGGER = "task_service.trusted_proxies"


# Behind a proxy that ends TLS the service is spoken to over http.


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("https://tasks.example", 303),
        ("http://tasks.example", 403),
        ("https://evil.example", 403),
        ("null", 403),
        (None, 303),  # a program
    ],
)
async def test_a_browser_without_fetch_metadata_can_log_in_behind_a_tls_proxy(
    template: Path, tmp_path: Path, origin: str | None, status: int
) -> None:
    headers = {} if origin is None else {"Origin": origin}
    async with running_service(
        template, tmp_path / "data", shared_routes=True, base_url="https://tasks.example"
    ) as service:
        caller = service.caller(Host="tasks.example", **headers)
        response = await caller.http.post(
            "/login", data={"username": "ada", "password": ADMIN_PASSWORD}
        )
    assert response.status_code == status


# Keys that work from some networks only.


@pytest.mark.parametrize(
    ("proxies", "forwarded", "status"),
    [
        ("127.0.0.1", "203.0.113.7", 200),
        ("127.0.0.1", "::ffff:203.0.113.7", 200),
        ("127.0.0.1", "198.51.100.1", 403),
        # The client's own entry is on the left.
        ("127.0.0.1", "203.0.113.7, 198.51.100.1", 403),
        ("127.0.0.1", "unknown", 403),
        # A proxy that is not trusted is the client.
        ("", "203.0.113.7", 403),
    ],
)
async def test_a_key_is_limited_to_the_addresses_that_trusted_proxies_state(
    template: Path, tmp_path: Path, proxies: str, forwarded: str, status: int
) -> None:
    async with running_service(template, tmp_path / "data", trusted_proxies=proxies) as service:
        admin = await service.person("ada", ADMIN_PASSWORD)
        made = await admin.new_key(networks=["203.0.113.0/24"])
        assert made["networks"] == ["203.0.113.0/24"]
        program = service.caller(made["key"])
        answer = await program.get("/api/auth/me", headers={"X-Forwarded-For": forwarded})
        assert answer.status_code == status
        if status == 403:
            assert answer.json()["code"] == "address_not_allowed"
        path = f"/api/keys/{made['id']}"
        assert expect(await admin.patch(path, {"networks": None}), 200)["networks"] is None
        expect(await program.get("/api/auth/me", headers={"X-Forwarded-For": forwarded}), 200)


# Proxies that are not trusted.


@pytest.fixture(params=KINDS)
async def db(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Database]:
    async with database_url(request.param, tmp_path) as url:
        db = Database.open(url)
        await migrate(db)
        yield db
        await db.close()


async def test_what_forwards_without_being_trusted_is_noted_and_logged_once(
    db: Database, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FrozenClock(START)
    proxies = UntrustedProxies(db, clock)
    for address in (STRANGER, PROXY, OTHER_PROXY, OTHER_STRANGER) * 3:
        proxies.notice(address)
    # One of each kind: a client with many addresses fills neither the log nor the database.
    assert [record.args for record in caplog.records] == [(STRANGER,), (PROXY,)]
    assert "add it to TASK_SERVICE_TRUSTED_PROXIES" in caplog.messages[0]
    await proxies._write()
    assert await untrusted_proxies(db, [], START) == [PROXY, STRANGER]
    # Trusting it settles the matter, and so does its end.
    trusted = [ip_network("10.0.0.0/8")]
    assert await untrusted_proxies(db, trusted, START) == [STRANGER]
    assert await untrusted_proxies(db, [], START + VALID_FOR) == []


async def test_what_goes_on_is_noted_again_each_day_and_logged_no_more(
    db: Database, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FrozenClock(START)
    proxies = UntrustedProxies(db, clock)
    proxies.notice(PROXY)
    await proxies._write()
    clock.advance(RECORDED_EVERY)
    proxies.notice(OTHER_PROXY)
    await proxies._write()
    assert await untrusted_proxies(db, [], START + VALID_FOR) == [OTHER_PROXY]
    assert len(caplog.records) == 1


async def test_a_database_that_does_not_answer_is_tried_again(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("task_service.trusted_proxies._RETRY_SECONDS", 0)
    proxies = UntrustedProxies(db, FrozenClock(START))
    write, failures, written = proxies._write, [StoreUnavailable()], asyncio.Event()

    async def unavailable_once() -> None:
        if failures:
            raise failures.pop()
        await write()
        written.set()

    monkeypatch.setattr(proxies, "_write", unavailable_once)
    proxies.notice(PROXY)
    working = asyncio.create_task(proxies.write_queued())
    await asyncio.wait_for(written.wait(), 30)
    working.cancel()
    assert await untrusted_proxies(db, [], START) == [PROXY]


async def test_a_proxy_that_is_not_listed_is_logged_once_and_noted(
    template: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_service(template, tmp_path / "data", shared_routes=True) as service:
        proxied = httpx2.ASGITransport(service.app, client=(str(PROXY), 4711))
        async with httpx2.AsyncClient(
            transport=proxied, base_url="http://127.0.0.1:8000"
        ) as through_the_proxy:
            for client in range(3):
                header = {"X-Forwarded-For": f"198.51.100.{client}"}
                expect(await through_the_proxy.get("/healthz", headers=header), 200)
        assert [r.args for r in caplog.records if r.name == LOGGER] == [(PROXY,)]
        async with asyncio.timeout(30):
            while True:
                later = service.clock.now() + timedelta(hours=1)
                if await untrusted_proxies(service.services.db, [], later) == [PROXY]:
                    break
                await asyncio.sleep(0.01)
