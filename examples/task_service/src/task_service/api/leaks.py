"""What ends keys without a login: whoever holds one, and GitHub's secret scanning."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fastapi import APIRouter
from starlette.requests import Request

from msk_auth.integrations.fastapi import FastAPIAuth
from msk_auth.leaks import AsyncGitHubLeakReceiver
from task_service.accounts.public_throttle import PublicThrottle
from task_service.accounts.users import User
from task_service.request_record import request_address


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
