"""What clients without a login can make the service write is bounded for each address (ASVS 5.0, sections 2.4.1 and 16.5)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx2
import pytest
from examples.task_service.tests.oidc_provider import TestProvider, at_provider, come_from
from examples.task_service.tests.service_support import (
    Service,
    running_service,
)
from sqlalchemy import delete, select

from task_service import app as app_module
from task_service import services as services_module
from task_service.accounts import throttle as throttle_module
from task_service.accounts.audit import AuditQuery
from task_service.accounts.throttle import REFUSED_LOGINS, STRAY_ANSWERS
from task_service.db import schema
from task_service.db.paging import PageRequest
from task_service.provider_login import CALLBACK, LOGOUT

pytestmark = pytest.mark.anyio

_LINK = {"token": "x" * 43, "password": "a long enough password"}


@pytest.fixture
def service(service_at_provider: Service) -> Service:
    return service_at_provider


async def _everything(service: Service) -> dict[str, list[tuple[object, ...]]]:
    async with service.services.db.read() as connection:
        return {
            name: [tuple(row) for row in await connection.execute(select(table))]
            for name, table in schema.metadata.tables.items()
        }


async def _pending(service: Service) -> tuple[str, dict[str, str]]:
    """A login that was begun: its state, and the header with its cookie."""
    begun = await service.caller().get("/login/oidc")
    state = httpx2.URL(begun.headers["location"]).params["state"]
    return state, {"cookie": begun.headers["set-cookie"].partition(";")[0]}


_Send = Callable[[int], Awaitable[httpx2.Response]]


async def _senders(service: Service) -> dict[str, _Send]:
    caller = service.caller()
    http = caller.http
    state, cookie = await _pending(service)
    return {
        "/login/oidc": lambda _: caller.get("/login/oidc"),
        CALLBACK: lambda number: caller.get(f"{CALLBACK}?code={number}&state={number}"),
        f"{CALLBACK} with an error": lambda _: caller.get(
            f"{CALLBACK}?error=access_denied&state={state}", headers=cookie
        ),
        LOGOUT: lambda number: http.post(LOGOUT, data={"logout_token": f"a.b.{number}"}),
        "/login": lambda number: http.post("/login", data={"username": number, "password": "x"}),
        "/api/auth/login": lambda number: caller.post(
            "/api/auth/login", {"username": f"user{number}", "password": "x"}
        ),
        "/api/auth/password-link": lambda _: caller.post(
            "/api/auth/password-link", {"token": _LINK["token"]}
        ),
        "/api/auth/set-password": lambda _: caller.post("/api/auth/set-password", _LINK),
        "/api/revoke": lambda number: http.post("/api/revoke", json={"key": f"msk_{number}"}),
        "/api/leaks/github": lambda _: http.post("/api/leaks/github", json=[]),
        "/api/auth/me": lambda number: service.caller(f"a.b.{number}").get("/api/auth/me"),
    }


_LIMITS = {
    app_module: ("LEAK_REPORTS", "REVOCATIONS"),
    services_module: ("REFUSED_LOGINS", "STRAY_ANSWERS"),
    throttle_module: ("PER_ADDRESS",),
}


async def test_over_its_limit_an_address_makes_the_service_write_nothing(
    template: Path, tmp_path: Path, provider: TestProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, names in _LIMITS.items():
        for name in names:
            monkeypatch.setattr(module, name, 5)
    async with running_service(template, tmp_path / "data", **at_provider(provider)) as service:
        for route, send in (await _senders(service)).items():
            # Each route meets an address that has used up nothing.
            async with service.services.db.write() as connection:
                await connection.execute(delete(schema.login_attempts))
            entries = len((await _everything(service))["audit"])
            for number in range(7):
                await send(number)
            before = await _everything(service)
            answers = [await send(number) for number in range(1000, 1005)]
            statuses = {each.status_code for each in answers}
            assert {400, 403, 410, 422, 401, 429, 302} >= statuses, route
            assert await _everything(service) == before, route
            assert len(before["audit"]) <= entries + 5, route


async def test_refused_answers_of_the_provider_are_counted_and_recorded(service: Service) -> None:
    async def entries() -> int:
        query = AuditQuery(action="login.failed")
        return len((await service.services.audit.list(query, PageRequest(limit=200))).items)

    state, cookie = await _pending(service)
    refused = f"{CALLBACK}?error=access_denied&state={state}"
    for sent, limit in ((refused, REFUSED_LOGINS), (f"{CALLBACK}?code=1", STRAY_ANSWERS)):
        before = await entries()
        answers = [await service.caller().get(sent, headers=cookie) for _ in range(limit + 3)]
        assert [each.status_code for each in answers] == [403] * limit + [429] * 3
        assert "Too many attempts" in answers[-1].text
        assert 0 < int(answers[-1].headers["retry-after"]) <= 900
        assert await entries() - before == limit


async def test_answers_to_no_login_keep_no_person_of_that_address_out(
    service: Service, provider: TestProvider
) -> None:
    """A page of another site can make browsers send them."""
    for _ in range(STRAY_ANSWERS + 1):
        answer = await service.caller().get(f"{CALLBACK}?code=1&state=2")
    assert answer.status_code == 429
    assert (await come_from(provider, service)).status_code == 200


async def test_an_address_over_its_limit_sends_the_provider_no_codes(
    service: Service, provider: TestProvider
) -> None:
    state, cookie = await _pending(service)
    refused = f"{CALLBACK}?error=access_denied&state={state}"
    for _ in range(REFUSED_LOGINS):
        await service.caller().get(refused, headers=cookie)
    assert (await come_from(provider, service)).status_code == 429
    # It still has the code.
    assert len(provider.codes) == 1
