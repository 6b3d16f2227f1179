"""Ending keys without a login, in the service: throttled, recorded, and seen by the key's owner."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path

import pytest
from examples.task_service.tests.service_support import (
    USER_PASSWORD,
    Caller,
    Service,
    expect,
    problem,
    running_service,
    secrets_in,
    wrong_fields,
)
from examples.task_service.tests.test_handlers_http_request import answer, serving
from pydantic import ValidationError
from tests.leaks.support import Reporter, match, report

from task_service import app as app_module
from task_service.accounts.throttle import REVOCATIONS
from task_service.api import leaks
from task_service.api.leaks import fetch_github_keys
from task_service.settings import Settings

pytestmark = pytest.mark.anyio

GITHUB = Reporter("k1")


def signed(body: bytes) -> dict[str, str]:
    return {
        "content-type": "application/json",
        "github-public-key-identifier": "k1",
        "github-public-key-signature": GITHUB.sign(body, "k1"),
    }


@pytest.fixture
async def listening(template: Path, tmp_path: Path) -> AsyncIterator[Service]:
    """A service that takes what a server on this machine publishes for GitHub's keys."""
    async with (
        serving(lambda _: answer("200 OK", GITHUB.document())) as published,
        running_service(
            template,
            tmp_path / "data",
            github_keys_url=f"http://127.0.0.1:{published.port}/keys",
        ) as service,
    ):
        yield service


async def trail(person: Caller, key_id: str) -> list[tuple[str, str, dict[str, object]]]:
    items = expect(await person.get(f"/api/keys/{key_id}/audit"), 200)["items"]
    return [(each["action"], each["credential"]["kind"], each["details"]) for each in items]


async def test_the_holder_of_a_key_can_revoke_it(service: Service, user: Caller) -> None:
    created = await user.new_key(name="CI")
    anonymous = service.caller()
    for _ in range(2):
        response = await anonymous.post("/api/revoke", {"token": created["key"]})
        assert expect(response, 200) == {}
        assert response.headers["cache-control"] == "no-store"
    refused = await service.caller(created["key"]).get("/api/auth/me")
    assert problem(refused) == (401, "key_revoked")
    shown = expect(await user.get(f"/api/keys/{created['id']}"), 200)
    assert shown["status"] == "revoked"
    # Twice asked, once done.
    assert await trail(user, created["id"]) == [
        ("key.revoked", "none", {"name": "CI", "cause": "possession"}),
        ("key.created", "interactive", {"name": "CI", "scopes": None}),
    ]


async def test_an_address_revokes_only_so_often(service: Service, user: Caller) -> None:
    created = await user.new_key()
    anonymous = service.caller()
    for _ in range(REVOCATIONS):
        assert wrong_fields(await anonymous.post("/api/revoke", {"token": "x"})) == {"token"}
    refused = await anonymous.post("/api/revoke", {"token": created["key"]})
    assert problem(refused) == (429, "too_many_attempts")
    assert 1 <= int(refused.headers["retry-after"]) <= 900
    expect(await service.caller(created["key"]).get("/api/auth/me"), 200)
    # Reports and logins have counts of their own.
    assert problem(await anonymous.post("/api/leaks/github", [])) == (403, "signature_invalid")
    await service.log_in("ulf", USER_PASSWORD)


async def test_a_report_revokes_and_its_owner_sees_where(listening: Service) -> None:
    user = await listening.log_in("ulf", USER_PASSWORD)
    created = await user.new_key(name="CI")
    body = report(match(created["key"]), match("msk_nothing"))
    for _ in range(2):
        response = await listening.caller().post(
            "/api/leaks/github", content=body, headers=signed(body)
        )
        labels = [label["label"] for label in expect(response, 200)]
        assert labels == ["true_positive", "false_positive"]
        assert secrets_in(response.text) == []
    refused = await listening.caller(created["key"]).get("/api/auth/me")
    assert problem(refused) == (401, "key_revoked")
    assert (await trail(user, created["id"]))[0] == (
        "key.leaked",
        "none",
        {
            "name": "CI",
            "reporter": "github",
            "source": "commit",
            "url": "https://github.com/o/r/blob/1/.env",
            "revoked": True,
        },
    )
    assert len(await trail(user, created["id"])) == 2


async def test_where_github_cannot_be_asked(template: Path, tmp_path: Path) -> None:
    # Nothing listens there, and the service may not go there either.
    url = "https://127.0.0.1:9/keys"
    async with running_service(template, tmp_path / "data", github_keys_url=url) as service:
        response = await service.caller().post(
            "/api/leaks/github", content=b"[]", headers=signed(b"[]")
        )
        assert problem(response) == (503, "signing_keys_unavailable")
        assert response.headers["retry-after"] == "120"


async def test_an_address_reports_only_so_often(
    template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app_module, "LEAK_REPORTS", 3)
    async with running_service(template, tmp_path / "data") as service:
        anonymous = service.caller()
        for _ in range(3):
            assert (await anonymous.post("/api/leaks/github", [])).status_code == 403
        refused = await anonymous.post("/api/leaks/github", [])
        assert problem(refused) == (429, "too_many_attempts")


@pytest.mark.parametrize(
    "url", ["http://example.org/keys", "ftp://example.org/", "https://", "keys", "https://a:b@c/"]
)
def test_keys_come_over_tls(tmp_path: Path, url: str) -> None:
    with pytest.raises(ValidationError, match="write an address that begins with https://"):
        Settings(data_dir=tmp_path, github_keys_url=url)


# Fetching GitHub's public keys: one bounded request


def fetched(port: int) -> Awaitable[bytes]:
    return fetch_github_keys(f"http://127.0.0.1:{port}/keys")


async def test_the_document_is_fetched_as_it_is() -> None:
    async with serving(lambda _: answer("200 OK", b'{"public_keys": []}')) as server:
        assert await fetched(server.port) == b'{"public_keys": []}'
        (request,) = server.requests
        assert request.startswith("GET /keys HTTP/1.1\r\n")
        assert "user-agent: task-service\r\n" in request
        assert "authorization" not in request.lower()


@pytest.mark.parametrize(
    "status", ["204 No Content", "302 Found", "403 rate limited", "404 Not Found", "500 x"]
)
async def test_any_other_answer_is_none(status: str) -> None:
    async with serving(lambda _: answer(status, b"", "Location: /elsewhere")) as server:
        with pytest.raises(ConnectionError, match=status[:3]):
            await fetched(server.port)
        assert len(server.requests) == 1


async def test_a_long_answer_is_not_read_to_its_end() -> None:
    body = b" " * (leaks.MAX_DOCUMENT + 1)
    async with serving(lambda _: answer("200 OK", body)) as server:
        with pytest.raises(ConnectionError, match="is too large"):
            await fetched(server.port)


async def test_an_answer_that_does_not_come_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    over = asyncio.Event()

    async def late(_: str) -> bytes:
        await over.wait()
        return b""

    monkeypatch.setattr(leaks, "FETCH_SECONDS", 0.2)
    async with serving(late) as server:
        with pytest.raises(TimeoutError):
            await fetched(server.port)
        over.set()
