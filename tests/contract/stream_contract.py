"""The contract of adapters for streaming responses, as tests to run against yours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from typing import Any, Final

from msk_auth import AsyncAuthenticator, Authenticator, Principal, local_principal

from .adapter_contract import AdapterDriver, Contract
from .case import TOKEN
from .world import World

# Not a measurement: a stream that should have ended earlier lasts this long.
_TOO_LONG_SECONDS: Final = 30


async def revoke(authenticator: AsyncAuthenticator[Any], principal: Principal[Any]) -> None:
    """Revoke the key of a principal during its request."""
    await authenticator.revoke_key(*_own_key(principal))


def revoke_blocking(authenticator: Authenticator[Any], principal: Principal[Any]) -> None:
    """Revoke the key of a principal during its request, in an adapter that blocks."""
    authenticator.revoke_key(*_own_key(principal))


def _own_key(principal: Principal[Any]) -> tuple[Principal[Any], str]:
    assert principal.key_id is not None, "send the request with a key"
    at = principal.authenticated_at
    assert at is not None
    return local_principal(principal.owner, at=at, interactive=True), principal.key_id


async def outstay(authenticator: AsyncAuthenticator[Any], principal: Principal[Any]) -> None:
    """Revoke the key of a principal, and continue for too long."""
    await revoke(authenticator, principal)
    await asyncio.sleep(_TOO_LONG_SECONDS)


async def lines(
    authenticator: AsyncAuthenticator[Any], principal: Principal[Any]
) -> AsyncGenerator[bytes]:
    """What the route `/follow` streams: one line, and another one when the key of its reader is revoked."""
    yield b"first\n"
    await outstay(authenticator, principal)
    yield b"second\n"


def lines_blocking(
    authenticator: Authenticator[Any], principal: Principal[Any]
) -> Generator[bytes]:
    """What the route `/follow` streams, in an adapter that blocks: another line when the key of its reader is revoked."""
    yield b"first\n"
    revoke_blocking(authenticator, principal)
    authenticator.clock.sleep(1)
    yield b"second\n"


class StreamContract(Contract):
    """Tests of an adapter's `watch` and `verify_again`: subclass it as :class:`AdapterContract`, with its driver.

    The driver keeps the connection open until the application has answered.
    """

    def test_a_stream_ends_when_its_credential_is_revoked(
        self, world: World, driver: AdapterDriver
    ) -> None:
        reply = driver.send("GET", b"/follow", world.bearer("key"), b"")
        assert (reply.status, reply.body) == (200, b"first\n")

    def test_a_request_that_verifies_again_is_refused_as_a_new_one(
        self, world: World, driver: AdapterDriver
    ) -> None:
        reply = driver.send("GET", b"/again", world.bearer("key"), b"")
        assert (reply.status, reply.json["code"]) == (401, "key_revoked")
        assert reply.header("www-authenticate") == TOKEN
