"""Websockets follow the same policy: a denial with the whole answer, or close code 1008 (RFC 6455, 7.4.1)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from tests.contract.adapter import (
    POLICY_VIOLATION,
    Conversation,
    Reply,
    WebSocketContract,
    WebSocketDriver,
    World,
    make_world,
)
from tests.integrations.adapters import WITH_WEBSOCKETS, application

from msk_auth.testing import BackgroundLoop

DENIAL = {"websocket.http.response": {}}


async def connect(
    app: Any,
    path: str,
    headers: list[tuple[bytes, bytes]],
    extensions: dict[str, Any] | None = None,
    texts: Sequence[str] = (),
    query: bytes = b"",
    client: str = "192.0.2.1",
) -> list[dict[str, Any]]:
    """What the application sends to a websocket that connects, sends these messages and disconnects."""
    scope = {
        "type": "websocket",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "scheme": "ws",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query,
        "root_path": "",
        "headers": [(b"host", b"tasks.test"), *headers],
        "subprotocols": [],
        "client": (client, 50000),
        "server": ("192.0.2.2", 80),
        "extensions": DENIAL if extensions is None else extensions,
        "state": {},
    }
    incoming: list[dict[str, Any]] = [
        {"type": "websocket.connect"},
        *({"type": "websocket.receive", "text": text} for text in texts),
        {"type": "websocket.disconnect", "code": 1000},
    ]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return incoming.pop(0)

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    try:
        await app(scope, receive, send)
    except Exception:
        # A server logs that an endpoint did not expect its client to leave.
        if not sent or incoming:
            raise
    return sent


class Driver:
    """Speaks raw ASGI to an application, on an event loop of its own, for a server that can deny or that cannot."""

    def __init__(self, loop: BackgroundLoop, app: Any, *, can_deny: bool) -> None:
        self._loop = loop
        self._app = app
        self._extensions = DENIAL if can_deny else {}

    def converse(
        self, target: bytes, headers: Sequence[tuple[bytes, bytes]], texts: Sequence[str]
    ) -> Conversation:
        path, _, query = target.partition(b"?")
        sent = self._loop.run(
            connect(self._app, path.decode(), list(headers), self._extensions, texts, query=query)
        )
        first, *rest = sent
        if first["type"] == "websocket.http.response.start":
            body = b"".join(message["body"] for message in rest)
            refusal = Reply(first["status"], tuple(first["headers"]), body)
            return Conversation(opened=False, refusal=refusal)
        if first["type"] == "websocket.close":
            # The server makes a bare 403 of it.
            assert first["code"] == POLICY_VIOLATION
            return Conversation(opened=False)
        assert first["type"] == "websocket.accept"
        last = rest.pop() if rest and rest[-1]["type"] == "websocket.close" else None
        assert all(message["type"] == "websocket.send" for message in rest)
        received = tuple(message["text"] for message in rest)
        if last is None:
            return Conversation(opened=True, received=received)
        return Conversation(
            opened=True, received=received, close_code=last["code"], close_reason=last["reason"]
        )


class TestAdapters(WebSocketContract):
    @pytest.fixture(
        scope="class",
        params=[
            pytest.param((name, *more), id=f"{name} {way}")
            for name in WITH_WEBSOCKETS
            for way, more in {
                "can deny": (True, False),
                "cannot deny": (False, False),
                "late": (True, True),
            }.items()
        ],
    )
    @classmethod
    def driver(
        cls, request: pytest.FixtureRequest, world: World, loop: BackgroundLoop
    ) -> WebSocketDriver:
        name, can_deny, late = request.param
        return Driver(loop, application(name, world, late=late), can_deny=can_deny)


@pytest.mark.anyio
@pytest.mark.parametrize("name", WITH_WEBSOCKETS)
async def test_where_the_server_can_it_sends_the_answer(name: str) -> None:
    app = application(name, make_world())
    start, body = await connect(app, "/ws", [])
    assert (start["type"], start["status"]) == ("websocket.http.response.start", 401)
    assert json.loads(body["body"])["code"] == "credentials_missing"
    (close,) = await connect(app, "/ws", [], {})
    assert (close["type"], close["code"]) == ("websocket.close", 1008)


@pytest.mark.anyio
@pytest.mark.parametrize("name", WITH_WEBSOCKETS)
async def test_an_unknown_path_is_closed(name: str) -> None:
    world = make_world()
    sent = await connect(application(name, world), "/ws/nowhere", world.bearer("jwt"))
    assert [message["type"] for message in sent] == ["websocket.close"]
