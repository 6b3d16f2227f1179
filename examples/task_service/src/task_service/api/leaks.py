"""Routes that revoke keys without a login: for the holder of a key, and for GitHub's secret scanning."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from fastapi import APIRouter
from httpx2 import Request as OutgoingRequest
from starlette.requests import Request

from msk_auth.integrations.fastapi import FastAPIAuth
from msk_auth.leaks import MAX_KEYS_DOCUMENT, AsyncGitHubLeakReceiver
from task_service.accounts.throttle import PublicThrottle
from task_service.accounts.users import User
from task_service.handlers.outbound import OutboundClient, OutboundPolicy, parse_url
from task_service.request_record import request_address

FETCH_SECONDS: Final = 10.0
"""How long a fetch of GitHub's keys may take, from the look-up of the name to the last byte."""


def leak_routers(
    auth: FastAPIAuth[User],
    fetch_keys: Callable[[], Awaitable[bytes]],
    *,
    revocations: PublicThrottle,
    reports: PublicThrottle,
) -> tuple[APIRouter, APIRouter]:
    """The library's own two routes, throttled by address.

    Args:
        auth: The adapter.
        fetch_keys: Fetches the keys that GitHub signs with.
        revocations: Counts requests to revoke.
        reports: Counts reports.
    """
    receiver = AsyncGitHubLeakReceiver(auth.authenticator, fetch_keys=fetch_keys)
    return (
        auth.revocation_route(path="/api/revoke", throttle=_by_address(revocations)),
        auth.leak_route(receiver, path="/api/leaks/github", throttle=_by_address(reports)),
    )


def _by_address(throttle: PublicThrottle) -> Callable[[Request], Awaitable[None]]:
    async def count(_request: Request) -> None:
        await throttle.count(request_address())

    return count


class GitHubKeys:
    """Fetches GitHub's public keys for :class:`~msk_auth.leaks.AsyncGitHubLeakReceiver`.

    Args:
        url: The address of the keys.
        policy: Decides which addresses may be reached, so that DNS cannot direct the service at its own network.
    """

    def __init__(self, url: str, policy: OutboundPolicy) -> None:
        self._url = url
        self._client = OutboundClient(policy)

    async def __call__(self) -> bytes:
        """The document.

        Raises:
            Exception: The address may not be reached, or does not answer with a document.
        """
        url = parse_url(self._url)
        headers = {
            "accept": "application/json",
            "accept-encoding": "identity",
            "host": url.netloc.decode("ascii"),
            # GitHub refuses requests without a user agent.
            "user-agent": "task-service",
        }
        async with asyncio.timeout(FETCH_SECONDS), self._client.transport() as transport:
            response = await self._client.send(
                transport, OutgoingRequest("GET", url, headers=headers), url
            )
            try:
                if response.status_code != 200:
                    raise ConnectionError(f"{url} answers {response.status_code}")
                body = bytearray()
                async for chunk in response.aiter_raw():
                    body += chunk
                    if len(body) > MAX_KEYS_DOCUMENT:
                        raise ConnectionError(f"{url} answers with too much")
            finally:
                await response.aclose()
        return bytes(body)
