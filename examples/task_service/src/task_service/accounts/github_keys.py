"""Fetches the public keys that GitHub signs its reports of leaked keys with."""

from __future__ import annotations

import asyncio
from typing import Final

from httpx2 import Request

from msk_auth.leaks import MAX_KEYS_DOCUMENT
from task_service.handlers.guarded import GuardedClient
from task_service.handlers.targets import TargetGuard, parse_url

FETCH_SECONDS: Final = 10.0
"""How long a fetch may take, from the look-up of the name to the last byte."""


class GitHubKeys:
    """A function that fetches the keys, for :class:`~msk_auth.leaks.AsyncGitHubLeakReceiver`.

    Args:
        url: Where they are published.
        guard: Says which addresses may be reached; a name server cannot turn the service against its own network.
    """

    def __init__(self, url: str, guard: TargetGuard) -> None:
        self._url = url
        self._client = GuardedClient(guard)

    async def __call__(self) -> bytes:
        """The document.

        Raises:
            Exception: There is none: the address may not be reached, or what answers gives something else.
        """
        url = parse_url(self._url)
        headers = {
            "accept": "application/json",
            "accept-encoding": "identity",
            "host": url.netloc.decode("ascii"),
            # GitHub refuses requests that do not say who asks.
            "user-agent": "task-service",
        }
        async with asyncio.timeout(FETCH_SECONDS), self._client.transport() as transport:
            response = await self._client.send(transport, Request("GET", url, headers=headers), url)
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
