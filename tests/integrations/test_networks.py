"""The address of a client, from the server to the core: what adapters hand over, and what they do not believe."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from tests.cases import case
from tests.contract.adapter import PEOPLE, START, Reply, World, make_world
from tests.integrations.adapters import ADAPTERS, WITH_WEBSOCKETS, application, send
from tests.integrations.test_websockets import connect

from msk_auth import local_principal

pytestmark = pytest.mark.anyio

NETWORKS = ["203.0.113.0/24", "2001:db8::/32"]
INSIDE, OUTSIDE = "203.0.113.7", "198.51.100.1"


class Site:
    """An application of an adapter, and a key of Alice with networks.

    Attributes:
        headers: Those that present the key.
    """

    def __init__(self, adapter: str) -> None:
        # The lease is the key's, and the address the request's.
        self.world: World = make_world(lease=timedelta(seconds=1))
        self.app: Any = application(adapter, self.world)
        alice = local_principal(PEOPLE["alice"], at=START, interactive=True)
        created = self.world.blocking.create_key(alice, name="limited", networks=NETWORKS)
        self.key_id = created.record.id
        self.headers = [(b"authorization", f"Bearer {created.value.reveal()}".encode())]

    async def get(
        self, client: object, *more: tuple[bytes, bytes], target: bytes = b"/tasks"
    ) -> Reply:
        return await send(self.app, "GET", target, [*self.headers, *more], client=client)


@pytest.fixture(params=ADAPTERS)
def site(request: pytest.FixtureRequest) -> Site:
    return Site(request.param)


async def test_a_key_works_from_its_networks_alone(site: Site) -> None:
    for address, status in [
        (OUTSIDE, 403), (INSIDE, 200), (OUTSIDE, 403), ("::ffff:203.0.113.9", 200), ("2001:db8::1", 200),
        ("2001:db9::1", 403), (INSIDE, 200),
    ]:  # fmt: skip
        reply = await site.get((address, 50000))
        assert reply.status == status, address
        if status == 403:
            assert reply.json["code"] == "address_not_allowed"
            assert reply.header("www-authenticate") is None


async def test_a_client_without_an_address_is_refused(site: Site) -> None:
    for client in [None, ("", 0), ("testclient", 1), ("fe80::1%eth0", 1)]:
        with case(client):
            reply = await site.get(client)
            assert (reply.status, reply.json["code"]) == (403, "address_not_allowed")
            assert (
                await send(site.app, "GET", b"/tasks", site.world.bearer("key"), client=client)
            ).status == 200


async def test_no_header_of_the_client_changes_its_address(site: Site) -> None:
    for header in [
        (b"x-forwarded-for", b"203.0.113.7"),
        (b"x-forwarded-for", b"203.0.113.7, 198.51.100.1"),
        (b"forwarded", b"for=203.0.113.7"),
        (b"x-real-ip", b"203.0.113.7"),
        (b"x-client-ip", b"203.0.113.7"),
        (b"remote-addr", b"203.0.113.7"),
        (b"remote_addr", b"203.0.113.7"),
    ]:
        with case(header):
            reply = await site.get((OUTSIDE, 50000), header)
            assert (reply.status, reply.json["code"]) == (403, "address_not_allowed")
            spoofed = (header[0], header[1].replace(b"203.0.113.7", b"198.51.100.2"))
            assert (await site.get((INSIDE, 50000), spoofed)).status == 200


@pytest.mark.parametrize("adapter", WITH_WEBSOCKETS)
async def test_a_websocket_is_refused_from_elsewhere(adapter: str) -> None:
    site = Site(adapter)
    for address in (INSIDE, OUTSIDE, INSIDE):
        first, *_ = await connect(site.app, "/ws", site.headers, client=address)
        accepted = first["type"] == "websocket.accept"
        assert accepted == (address == INSIDE)
        if not accepted:
            assert first["status"] == 403
