"""Routes that revoke keys without a login: for the holder of a key, and for GitHub's secret scanning."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Final

from fastapi import APIRouter
from httpx2 import AsyncClient

from msk_auth.integrations.fastapi import FastAPIAuth
from task_service.accounts.throttle import PublicThrottle
from task_service.accounts.users import User

FETCH_SECONDS: Final = 10.0
"""The time for a complete fetch of GitHub's keys."""

MAX_DOCUMENT: Final = 262_144
"""The most bytes of GitHub's answer that are read: the library's limit."""


def leak_routers(
    auth: FastAPIAuth[User],
    keys_url: str,
    *,
    revocations: PublicThrottle,
    reports: PublicThrottle,
) -> tuple[APIRouter, APIRouter]:
    """The library's own two routes, throttled by address.

    Args:
        auth: The adapter.
        keys_url: The address of the keys with which GitHub signs.
        revocations: Counts requests to revoke.
        reports: Counts reports.
    """

    async def fetch_keys(_url: str) -> bytes:
        return await fetch_github_keys(keys_url)

    return (
        auth.revocation_route(path="/api/revoke", throttle=lambda _: revocations.count()),
        auth.leak_route(fetch_keys, path="/api/leaks/github", throttle=lambda _: reports.count()),
    )


async def fetch_github_keys(url: str) -> bytes:
    """Fetch GitHub's public keys: one bounded request, without redirects.

    Raises:
        Exception: The address does not answer with a document.
    """
    # GitHub refuses requests without a user agent.
    headers = {
        "accept": "application/json",
        "accept-encoding": "identity",
        "user-agent": "task-service",
    }
    async with (
        asyncio.timeout(FETCH_SECONDS),
        AsyncClient(headers=headers) as client,
        client.stream("GET", url) as response,
    ):
        if response.status_code != HTTPStatus.OK:
            raise ConnectionError(f"{url} answers {response.status_code}")
        body = bytearray()
        async for chunk in response.aiter_raw():
            body += chunk
            if len(body) > MAX_DOCUMENT:
                raise ConnectionError(f"the answer of {url} is too large")
    return bytes(body)
