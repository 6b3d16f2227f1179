"""Websockets follow the same policy: a denial with the whole answer, or close code 1008 (RFC 6455, 7.4.1)."""

from __future__ import annotations

from typing import Any

import pytest
from tests.integrations.adapters import ADAPTERS, WITH_WEBSOCKETS

from msk_auth.testing.adapter import World, make_world

pytestmark = pytest.mark.anyio

DENIAL = {"websocket.http.response": {}}


async def connect(
    app: Any,
    path: str,
    headers: list[tuple[bytes, bytes]],
    extensions: dict[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """What the application sends to a websocket that connects and then leaves."""
    scope = {
        "type": "websocket",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "scheme": "ws",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", b"tasks.test"), *headers],
        "subprotocols": [],
        "client": ("192.0.2.1", 50000),
        "server": ("192.0.2.2", 80),
        "extensions": DENIAL if extensions is None else extensions,
        "state": {},
    }
    incoming = [{"type": "websocket.connect"}, {"type": "websocket.disconnect", "code": 1000}]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return incoming.pop(0)

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return sent


@pytest.fixture
async def world() -> World:
    return make_world()


@pytest.fixture(params=WITH_WEBSOCKETS)
def app(request: pytest.FixtureRequest, world: World) -> Any:
    return ADAPTERS[request.param](world.authenticator)


@pytest.mark.parametrize("credential", ["key", "jwt"])
async def test_an_accepted_credential_opens_it(app: Any, world: World, credential: str) -> None:
    sent = await connect(app, "/ws", world.bearer(credential))
    assert [message["type"] for message in sent] == [
        "websocket.accept",
        "websocket.send",
        "websocket.close",
    ]
    assert '"owner":"alice"' in sent[1]["text"]


REFUSED = [
    ("/ws", None, 401, b'Bearer realm="api"'),
    ("/ws", "key_revoked", 401, b'Bearer realm="api", error="invalid_token"'),
    ("/ws", "jwt_ended", 401, b'Bearer realm="api", error="invalid_token"'),
    ("/ws/admin", None, 401, b'Bearer realm="api"'),
    (
        "/ws/admin",
        "key_admin",
        403,
        b'Bearer realm="api", error="insufficient_user_authentication"',
    ),
]


@pytest.mark.parametrize(("path", "credential", "status", "challenge"), REFUSED)
async def test_a_refused_one_gets_the_whole_answer(
    app: Any, world: World, path: str, credential: str | None, status: int, challenge: bytes
) -> None:
    headers = [] if credential is None else world.bearer(credential)
    start, body = await connect(app, path, headers)
    assert (start["type"], start["status"]) == ("websocket.http.response.start", status)
    assert dict(start["headers"])[b"www-authenticate"] == challenge
    assert dict(start["headers"])[b"content-type"] == b"application/problem+json"
    assert body["type"] == "websocket.http.response.body"
    assert b'"code"' in body["body"]


@pytest.mark.parametrize(("path", "credential", "status", "challenge"), REFUSED)
async def test_where_the_server_cannot_send_it_the_handshake_is_refused(
    app: Any, world: World, path: str, credential: str | None, status: int, challenge: bytes
) -> None:
    headers = [] if credential is None else world.bearer(credential)
    (close,) = await connect(app, path, headers, extensions={})
    assert (close["type"], close["code"]) == ("websocket.close", 1008)


async def test_a_store_that_is_down_opens_nothing(app: Any, world: World) -> None:
    world.store.broken = OSError()
    start, _ = await connect(app, "/ws", world.bearer("key"))
    assert start["status"] == 503
    assert dict(start["headers"])[b"retry-after"] == b"5"


async def test_credentials_in_a_subprotocol_or_query_do_not_count(app: Any, world: World) -> None:
    headers = [(b"sec-websocket-protocol", b"bearer, " + world.names["key"].encode())]
    start, _ = await connect(app, "/ws", headers)
    assert start["status"] == 401


async def test_an_unknown_path_is_closed(app: Any, world: World) -> None:
    sent = await connect(app, "/ws/nowhere", world.bearer("jwt"))
    assert [message["type"] for message in sent] == ["websocket.close"]
