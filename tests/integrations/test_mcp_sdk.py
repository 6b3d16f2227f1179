"""The gate in front of real servers, asked by real clients: those of the official SDK and of FastMCP."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from importlib.metadata import version
from typing import Any

import anyio
import pytest
from tests.contract.adapter import PEOPLE, START, World, make_world
from tests.integrations.adapters import send
from tests.integrations.mcp_servers import (
    MODES,
    SDKS,
    URL,
    Caller,
    LoginServer,
    connected,
    living,
    make_server,
    protect,
    served,
)
from tests.tokens.shapes import jwks, sign

from msk_auth import (
    AsyncAuthenticator,
    ExternalIdentity,
    Owner,
    local_principal,
)
from msk_auth.integrations.mcp import McpAuth
from msk_auth.tokens.issuers import ExternalIssuer, PinnedKeySet, Provider

pytestmark = [
    pytest.mark.anyio,
    # Old and new SDKs warn of one another and of what they use.
    pytest.mark.filterwarnings("default"),
]

WAITS_FOR_EVER = version("mcp").startswith("1.")

ALICE = local_principal(PEOPLE["alice"], at=START, interactive=True)


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    """The SDKs' clients leave connections to the garbage collector, which would warn of them in another test."""
    yield
    gc.collect()


@pytest.fixture
def world() -> World:
    return make_world()


# Each client with each server, in the mode that keeps most; and each mode of a server with the client of its own SDK.
PAIRS = [(client, "sessions", sdk) for client in SDKS for sdk in SDKS]
PAIRS += [(sdk, mode, sdk) for sdk in SDKS for mode in MODES if mode != "sessions"]


@pytest.fixture(params=SDKS)
def sdk(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def client(sdk: str) -> str:
    """The client of the server's SDK."""
    return sdk


def made(sdk: str, mode: str, world: World, waits: asyncio.Event | None = None) -> Any:
    auth = McpAuth(world.authenticator, resource="http://127.0.0.1:8000/mcp")
    return protect(make_server(sdk, mode, auth, waits or asyncio.Event()), auth)


def bearer(world: World, name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {world.names[name]}"}


@pytest.mark.parametrize(("client", "mode", "sdk"), PAIRS)
async def test_a_good_key_lists_and_calls_what_it_may(
    client: str, mode: str, sdk: str, world: World
) -> None:
    app = made(sdk, mode, world)
    async with living(app):
        async with connected(client, bearer(world, "key"), app) as caller:
            assert await caller.listed() == {
                "tools": ["whoami", "run", "wait"],
                "prompts": ["plan"],
                "resources": [],
                "resource_templates": ["tasks://{task_id}"],
            }
            assert await caller.call("whoami") == "alice"
            assert await caller.call("run") == "run by api_key"
            assert await caller.read("tasks://7") == "task 7"
        # The next caller sees nothing of that.
        async with connected(client, bearer(world, "key_nothing"), app) as caller:
            assert (await caller.listed())["tools"] == ["whoami"]
        async with connected(client, bearer(world, "jwt"), app) as caller:
            assert (await caller.listed())["tools"] == ["whoami", "run", "reset", "wait"]
            assert await caller.call("reset") == "reset"


async def test_a_client_shows_why_a_tool_refuses_a_key(client: str, sdk: str, world: World) -> None:
    app = made(sdk, "sessions", world)
    async with living(app), connected(client, bearer(world, "key"), app) as caller:
        for name, text in [("reset", "API keys cannot be used"), ("unnamed", "no tool")]:
            with pytest.raises(Exception, match=text):
                await caller.call(name)
        # And goes on.
        assert await caller.call("whoami") == "alice"


async def test_a_client_does_not_connect_with_a_revoked_key_or_while_the_store_is_down(
    client: str, sdk: str, world: World
) -> None:
    app = made(sdk, "sessions", world)
    async with living(app):
        await fails(never, client, bearer(world, "key_revoked"), app)
        world.store.broken = OSError("down")
        await fails(never, client, bearer(world, "key"), app)
        assert await answer(app, bearer(world, "key"), "initialize") == (503, "store_unavailable")
        world.store.broken = None
        async with connected(client, bearer(world, "key"), app) as caller:
            assert await caller.call("whoami") == "alice"


async def test_a_client_logs_in_where_the_metadata_says(sdk: str, world: World) -> None:
    issuer = "https://login.test"
    now = int(world.clock.now().timestamp())

    def issue(audience: str, scope: str) -> str:
        claims = {"iss": issuer, "aud": audience, "sub": "alice", "iat": now, "exp": now + 300}
        return sign({"alg": "ES256", "kid": "k", "typ": "at+jwt"}, {**claims, "scope": scope})

    async def find_external_owner(identity: ExternalIdentity) -> Owner[Any] | None:
        return PEOPLE.get(identity.subject)

    async def find_owner(_: str) -> Owner[Any] | None:
        return None

    external = ExternalIssuer(
        Provider.OIDC,
        issuer,
        audience=URL,
        grants="scope",
        keys=PinnedKeySet(jwks("k", "ES256")),
    )
    authenticator = AsyncAuthenticator(
        world.store,
        find_owner=find_owner,
        issuers=[external],
        find_external_owner=find_external_owner,
        clock=world.clock,
    )
    auth = McpAuth(authenticator, resource=URL, authorization_servers=[issuer])
    # While it logs in the client sends one request at a time, and the stream of a session would never end.
    gate = protect(make_server(sdk, "stateless", auth, asyncio.Event()), auth)
    login = LoginServer(issuer, issue)

    async def hosts(scope: Any, receive: Any, send: Any) -> None:
        is_login = (b"host", b"login.test") in scope.get("headers", ())
        await (login if is_login else gate)(scope, receive, send)

    async with living(gate), connected("official", {}, hosts, auth=login.login()) as caller:
        assert await caller.call("whoami") == "alice"
        assert await caller.call("run") == "run by token"
    authorization, exchange = login.asked
    # What the challenge and the metadata say.
    assert authorization["scope"].split() == ["admin:config", "tasks:read", "tasks:run"]
    assert authorization["resource"] == exchange["resource"] == URL
    assert caller.statuses[0] == 401
    other = issue("https://other.test/mcp", "tasks:run")
    headers = {"Authorization": f"Bearer {other}"}
    assert await answer(gate, headers, "tools/list") == (401, "token_invalid")


async def test_a_lost_permission_and_a_revocation_count_at_the_next_call_of_a_session(
    client: str, sdk: str, world: World
) -> None:
    people = dict(PEOPLE)

    async def find_owner(owner_id: str) -> Owner[Any] | None:
        return people.get(owner_id)

    world = replace(
        world,
        authenticator=AsyncAuthenticator(world.store, find_owner=find_owner, clock=world.clock),
    )
    app = made(sdk, "sessions", world)
    headers = bearer(world, "key")
    revoked: list[bool] = []

    async def use(caller: Caller) -> None:
        assert await caller.call("run") == "run by api_key"
        people["alice"] = replace(PEOPLE["alice"], permissions=frozenset({"tasks:read"}))
        assert (await caller.listed())["tools"] == ["whoami", "wait"]
        # A client of the official SDK before 2.0 would end its session at this status.
        assert await answer(app, headers, "tools/call", name="run") == (403, "permission_denied")
        assert await caller.call("whoami") == "alice"
        await revoke(world)
        revoked.append(True)
        await caller.call("whoami")

    async with living(app):
        await fails(use, client, headers, app)
        # A client wraps what is raised inside, so that only this shows how far it came.
        assert revoked == [True]
        assert await answer(app, headers, "tools/list") == (401, "key_revoked")


async def test_a_real_server_ends_a_call_that_waits_when_its_key_is_revoked(
    sdk: str, world: World
) -> None:
    async def use(caller: Caller) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(revoke_later)
            await caller.call("wait")

    waits = asyncio.Event()

    async def revoke_later() -> None:
        await waits.wait()
        await revoke(world)

    async with served(made(sdk, "sessions", world, waits)) as url:
        await fails(use, sdk, bearer(world, "key"), url=url)
        # So does the tool: an SDK would go on with what a session has begun.
        with anyio.fail_after(30):
            while waits.is_set():  # noqa: ASYNC110 - it tells only that the tool runs
                await anyio.sleep(0.01)


# Help.


async def revoke(world: World) -> None:
    await world.authenticator.revoke_key(ALICE, world.names["key_id"])


async def fails(
    use: Callable[[Caller], Awaitable[None]],
    sdk: str,
    headers: dict[str, str],
    app: Any = None,
    **more: Any,
) -> None:
    """Connecting, or the last call, ends with an error; which one differs between versions.

    Some calls of clients before 2.0 do not end: after a refusal they wait for an answer that does not come.
    """
    with anyio.move_on_after(5 if WAITS_FOR_EVER else 60) as waiting:
        with pytest.raises(BaseException) as caught:  # noqa: PT011
            async with connected(sdk, headers, app, **more) as caller:
                await use(caller)
        assert not isinstance(caught.value, AssertionError | TimeoutError), caught.value
    assert WAITS_FOR_EVER or not waiting.cancel_called


async def never(_: Caller) -> None:
    raise AssertionError("it connected")


async def answer(app: Any, headers: dict[str, str], method: str, **params: Any) -> tuple[int, str]:
    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    reply = await send(app, "POST", b"/mcp", raw, json.dumps(message).encode())
    return reply.status, reply.json["code"]
