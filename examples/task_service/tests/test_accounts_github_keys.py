"""Fetching GitHub's public keys: one bounded request, and only to where it may go."""

from __future__ import annotations

import asyncio

import pytest
from examples.task_service.tests.test_handlers_http_request import LOOPBACK, answer, serving

from msk_auth.leaks import MAX_KEYS_DOCUMENT
from task_service.accounts import github_keys
from task_service.accounts.github_keys import GitHubKeys
from task_service.handlers.targets import TargetGuard, TargetRefused

pytestmark = pytest.mark.anyio


def keys_at(port: int) -> GitHubKeys:
    return GitHubKeys(f"http://127.0.0.1:{port}/keys", TargetGuard(LOOPBACK))


async def test_the_document_is_fetched_as_it_is() -> None:
    async with serving(lambda _: answer("200 OK", b'{"public_keys": []}')) as server:
        assert await keys_at(server.port)() == b'{"public_keys": []}'
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
            await keys_at(server.port)()
        assert len(server.requests) == 1


async def test_a_long_answer_is_not_read_to_its_end() -> None:
    body = b" " * (MAX_KEYS_DOCUMENT + 1)
    async with serving(lambda _: answer("200 OK", body)) as server:
        with pytest.raises(ConnectionError, match="too much"):
            await keys_at(server.port)()


async def test_an_answer_that_does_not_come_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    over = asyncio.Event()

    async def late(_: str) -> bytes:
        await over.wait()
        return b""

    monkeypatch.setattr(github_keys, "FETCH_SECONDS", 0.2)
    async with serving(late) as server:
        with pytest.raises(TimeoutError):
            await keys_at(server.port)()
        over.set()


async def test_a_name_that_leads_inside_is_refused() -> None:
    async def inside(_host: str, _port: int) -> list[str]:
        return ["169.254.169.254"]

    with pytest.raises(TargetRefused):
        await GitHubKeys("https://api.github.com/keys", TargetGuard((), inside))()
