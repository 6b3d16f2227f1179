"""Failures: refused with the right status, and nothing revealed (G1, G5; ASVS 5.0 16.2 and 16.5)."""

from __future__ import annotations

import logging
from typing import Any

import anyio
import pytest
from tests.cases import case
from tests.contract.adapter import Reply, World
from tests.integrations.adapters import ADAPTERS, GUARDED, application, send

pytestmark = pytest.mark.anyio


@pytest.fixture(params=ADAPTERS)
def adapter(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def app(adapter: str, world: World) -> Any:
    return application(adapter, world)


async def ask(app: Any, world: World, request: str, credential: str) -> Reply:
    method, _, target = request.partition(" ")
    return await send(app, method, world.fill(target), world.bearer(credential))


@pytest.mark.parametrize("broken", ["raises", "returns None", "returns True"])
async def test_a_broken_authenticator_is_503(
    app: Any,
    world: World,
    broken: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def authenticate(authorization: Any, *_more: Any) -> Any:
        if broken == "raises":
            raise RuntimeError(f"cannot read {authorization[0]!r}")
        return None if broken == "returns None" else True

    async def authenticate_async(*given: Any) -> Any:
        return authenticate(*given)

    monkeypatch.setattr(world.blocking, "authenticate", authenticate)
    monkeypatch.setattr(world.authenticator, "authenticate", authenticate_async)
    for request_line in GUARDED:
        caplog.clear()
        with case(request_line), caplog.at_level(logging.DEBUG):
            reply = await ask(app, world, request_line, "key")
            assert (reply.status, reply.json["code"]) == (503, "store_unavailable")
            assert "authentication cannot answer" in caplog.text
            assert world.names["key"] not in caplog.text


async def test_what_the_library_did_not_raise_gets_no_code_of_it(app: Any, world: World) -> None:
    """G6: a code, and a challenge, stand for what the library found out."""
    for request_line, status, title in (
        ("GET /nowhere", 404, "Not Found"),
        ("PUT /me", 405, "Method Not Allowed"),
        ("GET /boom", 500, "Internal Server Error"),
    ):
        with case(request_line):
            reply = await ask(app, world, request_line, "key")
            assert reply.status == status
            assert reply.json == {"type": "about:blank", "title": title, "status": status}
            assert reply.header("content-type") == "application/problem+json"
            assert reply.header("www-authenticate") is None
            # Litestar's older versions misname the header.
            allow = reply.header("allow") or reply.header("allowed")
            assert (allow is None) == (status != 405)


async def test_parallel_requests_do_not_mix_up_their_principals(app: Any, world: World) -> None:
    async def ask(credential: str, owner: str) -> None:
        reply = await send(app, "GET", b"/me", world.bearer(credential))
        assert reply.json["owner"] == owner

    async with anyio.create_task_group() as tasks:
        for credential, owner in [("key", "alice"), ("jwt_bob", "bob"), ("key_admin", "root")] * 20:
            tasks.start_soon(ask, credential, owner)


async def test_no_secret_is_in_logs_tracebacks_or_reprs(
    app: Any, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    headers = [*world.bearer("jwt"), (b"content-type", b"application/json")]
    with caplog.at_level(logging.DEBUG):
        created = await send(app, "POST", b"/api/keys", headers, b'{"name": "one"}')
        key = created.json["key"]
        sent = [(b"authorization", b"Bearer " + key.encode())]
        assert (await send(app, "GET", b"/me", sent)).status == 200
        world.store.broken = OSError("no route to host")
        assert (await send(app, "GET", b"/me", sent)).status == 503
        world.store.broken = None
        location = created.header("location")
        assert location is not None
        assert (await send(app, "POST", location.encode() + b"/revoke", headers)).status == 200
        assert (await send(app, "GET", b"/me", sent)).status == 401
    shown = caplog.text + repr(world.events) + repr(app) + repr(vars(world.store))
    for secret in (key, key[17:], world.names["key"], world.names["jwt"]):
        assert secret not in shown
    # Shown once: no later answer has it.
    for target in (b"/api/keys", location.encode()):
        assert key[17:].encode() not in (await send(app, "GET", target, headers)).body


async def test_a_refusal_logs_no_traceback(
    app: Any, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """A refusal is an answer, not an error of the application."""
    with caplog.at_level(logging.DEBUG):
        for request_line, credential, status in (
            ("GET /me", "key_revoked", 401),
            ("GET /admin/config", "key", 403),
            ("POST /api/keys", "key", 403),
            ("GET /api/keys/AAAAAAAAAAAA", "key", 404),
            ("GET /busy", "key", 429),
        ):
            with case(request_line):
                assert (await ask(app, world, request_line, credential)).status == status
    assert [record for record in caplog.records if record.exc_info] == []
    assert "Traceback" not in caplog.text
