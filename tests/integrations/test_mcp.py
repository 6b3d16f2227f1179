"""The gate in front of an MCP server: what it answers, passes on and takes out. The server here speaks JSON-RPC and nothing more."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import anyio
import pytest
from tests.cases import case
from tests.contract.adapter import (
    MAX_AGE,
    PEOPLE,
    START,
    AdapterContract,
    AdapterDriver,
    Reply,
    World,
    describe,
    make_world,
)
from tests.contract.adapter_contract import GUARDED, check_all
from tests.integrations.adapters import Driver, send

from msk_auth import AsyncAuthenticator, Policy, local_principal, require
from msk_auth.errors import ConfigurationError
from msk_auth.integrations.mcp import McpAuth
from msk_auth.testing import BackgroundLoop, audit_routes, list_routes

RESOURCE = "https://tasks.test/mcp"
METADATA = "https://tasks.test/.well-known/oauth-protected-resource/mcp"
MESSAGE = [(b"content-type", b"application/json")]


class Site:
    """An MCP server without an SDK, behind the gate: it answers with what a test gives it, and keeps what it was sent.

    Attributes:
        auth: The adapter.
        app: The gate, with the tables of the last call of :meth:`protect`.
        result: What every request gets.
        headers: Those of every response.
        as_events: Whether a response is an event stream.
        received: The scopes and messages that passed the gate.
    """

    def __init__(self, world: World, authenticator: Any = None, **options: Any) -> None:
        self.world = world
        given = world.authenticator if authenticator is None else authenticator
        self.auth: McpAuth[Any] = McpAuth(given, **{"resource": RESOURCE, **options})
        self.result: dict[str, Any] | None = None
        self.headers: list[tuple[bytes, bytes]] = []
        self.as_events = False
        self.received: list[tuple[Any, Any]] = []
        self.protect()

    def protect(self, server: Any = None, **tables: Any) -> None:
        """Put the gate in front of this server, or of another one."""
        self.app: Any = self.auth.protect(server or self._serve, **tables)

    async def _serve(self, scope: Any, receive: Any, send: Any) -> None:
        body = (await receive())["body"]
        message = json.loads(body) if body else {}
        self.received.append((scope, message))
        result = self.result
        if result is None:
            result = {"structuredContent": describe(self.auth.principal(context(scope)))}
        payload = json.dumps({"jsonrpc": "2.0", "id": message.get("id"), "result": result}).encode()
        media_type = b"application/json"
        if self.as_events:
            media_type = b"text/event-stream; charset=utf-8"
            payload = (
                b"id: 1\r\ndata:\r\n\r\nevent: message\r\nid: 2\r\ndata: " + payload + b"\r\n\r\n"
            )
        headers = [(b"content-type", media_type), *self.headers]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        half = len(payload) // 2
        await send({"type": "http.response.body", "body": payload[:half], "more_body": True})
        await send({"type": "http.response.body", "body": payload[half:]})

    async def send(
        self,
        credential: str,
        body: bytes = b"",
        *headers: tuple[bytes, bytes],
        method: str = "POST",
        **more: Any,
    ) -> Reply:
        """A request with a credential of the world."""
        sent = [*self.world.bearer(credential), *headers, *MESSAGE]
        return await send(self.app, method, b"/mcp", sent, body, **more)

    async def call(self, credential: str, method: str, /, **params: Any) -> Reply:
        """A message with a credential of the world."""
        return await self.send(credential, rpc(method, **params))

    async def outcome(self, credential: str, method: str, /, **params: Any) -> str:
        """The code that a message is refused with, before the server gets it; `served` if it is not."""
        self.received.clear()
        reply = await self.call(credential, method, **params)
        document = reply.json
        if reply.status == 200 and "result" in document:
            return "served"
        assert self.received == []
        if reply.status == 200:
            # What no scope would change, so that a client can show it.
            assert reply.header("content-type") == "application/json"
            error, document = document["error"], document["error"]["data"]
            assert reply.json["id"] == 7
            assert error["code"] == (-32602 if document["code"] == "not_found" else -32010)
            assert error["message"] == document["detail"]
        code: str = document["code"]
        assert (reply.status == 200) == (code in {"not_found", "interactive_required"})
        return code

    async def begin(self, credential: str) -> tuple[bytes, bytes]:
        """The header of a new session."""
        self.headers = [(b"mcp-session-id", b"a1")]
        reply = await self.call(credential, "initialize")
        self.headers = []
        self.received.clear()
        session_id = reply.header("mcp-session-id")
        assert session_id is not None
        assert re.fullmatch(r"a1\.[0-9a-f]{64}", session_id)
        return b"mcp-session-id", session_id.encode()


def context(scope: Any) -> Any:
    """What an SDK passes to a tool."""
    return SimpleNamespace(request_context=SimpleNamespace(request=SimpleNamespace(scope=scope)))


def rpc(method: str, /, **params: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 7, "method": method, "params": params}).encode()


# The contract: each of its routes is a tool.


def _tools(auth: McpAuth[Any]) -> dict[str, Policy]:
    return {
        "GET /me": auth.require(),
        "GET /whoami": auth.any_credential(),
        "GET /beside": auth.require("tasks:read"),
        "GET /tasks": auth.require("tasks:read"),
        "POST /tasks/run": auth.require("tasks:run"),
        "GET /about": auth.require("tasks:read", resource="task:{task_id}"),
        "GET /both": auth.require("tasks:read", "tasks:run"),
        "GET /admin/config": auth.require_interactive("admin:config"),
        "PATCH /admin/config": auth.require_interactive("admin:config"),
        "POST /fresh": auth.require_interactive(max_age=MAX_AGE),
        "GET /login": auth.require_login(),
        "GET /key": auth.require_key(),
        "POST /hook": auth.require_key("tasks:run"),
    }


def _tool_of(request: str) -> tuple[str, dict[str, str]]:
    """The tool that stands for a request, and its arguments."""
    line, _, task_id = request.partition("?")[0].partition("/about/")
    return (f"{line}/about", {"task_id": unquote(task_id)}) if task_id else (line, {})


class ToolDriver(Driver):
    """Calls the tool that stands for a route, and reads the answer as that of the route."""

    def send(
        self, method: str, target: bytes, headers: Sequence[tuple[bytes, bytes]], body: bytes
    ) -> Reply:
        query = target.decode("latin-1").partition("?")[2]
        name, arguments = _tool_of(f"{method} {target.decode('latin-1')}")
        call = rpc("tools/call", name=name, arguments=arguments)
        reply = super().send("POST", f"/mcp?{query}".encode(), [*headers, *MESSAGE], call)
        document = reply.json
        if "result" in document:
            answer = json.dumps(document["result"]["structuredContent"]).encode()
            return Reply(reply.status, reply.raw_headers, answer)
        changed = {}
        if "error" in document:
            # A refusal that a client shows.
            assert (reply.status, document["id"]) == (200, 7)
            problem = document["error"]["data"]
            assert document["error"]["message"] == problem["detail"]
            changed[b"content-type"] = b"application/problem+json"
            reply = Reply(problem["status"], reply.raw_headers, json.dumps(problem).encode())
        if (challenge := reply.header("www-authenticate")) is not None:
            plain = challenge.removesuffix(f', resource_metadata="{METADATA}"')
            assert plain != challenge
            if reply.status == 401:
                plain, count = re.subn(r', scope="admin:config tasks:read tasks:run"', "", plain)
                assert count == 1
            changed[b"www-authenticate"] = plain.encode()
        kept = tuple((name, changed.get(name, value)) for name, value in reply.raw_headers)
        return Reply(reply.status, kept, reply.body)


_TOOLS = _tools(McpAuth(make_world().authenticator, resource=RESOURCE))
_REQUESTS = [line for line in GUARDED if _tool_of(line)[0] in _TOOLS]


class TestContract(AdapterContract):
    """Every case of a guarded route that is no page of the application's own."""

    test_a_key_route_gives_its_answer = None  # type: ignore[assignment]
    test_only_the_named_key_routes_are_mounted = None  # type: ignore[assignment]
    test_an_administrators_key_route_gives_its_answer = None  # type: ignore[assignment]
    test_an_administrator_lists_and_revokes_the_keys_of_all_owners = None  # type: ignore[assignment]

    @pytest.fixture(scope="class")
    @classmethod
    def driver(cls, world: World, loop: BackgroundLoop) -> AdapterDriver:
        site = Site(world)
        site.protect(tools=_tools(site.auth))
        return ToolDriver(loop, site.app)

    @pytest.mark.parametrize("request_line", _REQUESTS, ids=ascii)
    def test_a_guarded_route_gives_its_answer(
        self, request_line: str, world: World, driver: AdapterDriver
    ) -> None:
        check_all(GUARDED[request_line], driver, world)


# The rest: one world, one server, asked as a client would.

pytestmark = pytest.mark.anyio


@pytest.fixture
def site() -> Site:
    site = Site(make_world(), authorization_servers=["https://login.test"])
    auth = site.auth
    site.protect(
        tools={
            "list": auth.require("tasks:read"),
            "run": auth.require("tasks:run"),
            "reset": auth.require_interactive(),
            "fresh": auth.require_interactive(max_age=MAX_AGE),
        },
        prompts={"plan": auth.require("tasks:run")},
        resources={
            "tasks://{task_id}": auth.require("tasks:read"),
            "tasks://admin": auth.require("admin:config"),
            "files://tasks/{path*}": auth.require("tasks:run"),
        },
        max_body=10_000,
    )
    return site


async def test_a_blocking_authenticator_decides_in_a_thread() -> None:
    world = make_world()
    site = Site(world, world.blocking)
    reply = await site.call("key", "tools/call", name="any")
    assert reply.json["result"]["structuredContent"]["owner"] == "alice"
    assert await site.outcome("key_revoked", "tools/call", name="any") == "key_revoked"


async def test_the_metadata_says_where_to_get_tokens(site: Site) -> None:
    reply = await send(site.app, "GET", b"/.well-known/oauth-protected-resource/mcp")
    assert (reply.status, reply.header("content-type")) == (200, "application/json")
    assert reply.json == {
        "resource": RESOURCE,
        "authorization_servers": ["https://login.test"],
        "scopes_supported": ["admin:config", "tasks:read", "tasks:run"],
        "bearer_methods_supported": ["header"],
    }


async def test_the_metadata_of_a_server_for_keys_names_no_issuer() -> None:
    resource = "https://tasks.test/"
    app = Site(make_world(), resource=resource).app
    reply = await send(app, "GET", b"/.well-known/oauth-protected-resource", root_path="/")
    assert reply.json == {"resource": resource, "bearer_methods_supported": ["header"]}


@pytest.mark.parametrize(
    ("credential", "as_events", "listed"),
    [
        ("key", False, ["list", "run"]),
        ("key", True, ["list", "run"]),
        ("key_read", False, ["list"]),
        ("key_nothing", False, []),
        ("jwt", False, ["list", "run", "reset", "fresh"]),
        # A new login is enough for `fresh`.
        ("jwt_old", False, ["list", "run", "reset", "fresh"]),
    ],
)
async def test_what_the_caller_may_not_use_is_not_listed(
    credential: str, as_events: bool, listed: list[str], site: Site
) -> None:
    names = ["list", "run", "reset", "fresh", "unnamed"]
    site.as_events = as_events
    site.headers = [(b"content-length", b"1"), (b"cache-control", b"public")]
    site.result = {"tools": [{"name": name} for name in names] + [None], "cacheScope": "public"}
    reply = await site.send(credential, rpc("tools/list"), (b"accept-encoding", b"gzip"))
    # Without events: with the id of one the client could resume the stream, and get the listing as the server keeps it.
    assert reply.header("content-type") == "application/json"
    assert reply.header("content-length") == str(len(reply.body))
    assert reply.json["result"] == {
        "tools": [{"name": name} for name in listed],
        "cacheScope": "private",
    }
    assert reply.header("cache-control") == "no-store"
    assert b"accept-encoding" not in dict(site.received[0][0]["headers"])


LISTINGS = {
    "prompts/list": ("prompts", "name", ["plan"], ["other"]),
    "resources/list": (
        "resources",
        "uri",
        ["tasks://1", "files://tasks/a/b"],
        ["tasks://admin", "other://1"],
    ),
    "resources/templates/list": (
        "resourceTemplates",
        "uriTemplate",
        ["tasks://{task_id}", "files://tasks/{path*}"],
        ["tasks://{other}"],
    ),
}


@pytest.mark.parametrize("method", LISTINGS)
async def test_prompts_and_resources_are_listed_alike(method: str, site: Site) -> None:
    kind, key, listed, others = LISTINGS[method]
    site.result = {kind: [{key: name} for name in [*others, *listed]]}
    reply = await site.call("key", method)
    assert [each[key] for each in reply.json["result"][kind]] == listed


async def test_a_listing_answers_no_other_request_of_its_id(site: Site) -> None:
    """The SDKs send an answer to the last request that has its id, which may be one that is no listing."""
    site.result = {"tools": []}
    for count in (1, 2):
        reply = await site.call("key", "tools/list")
        assert reply.json == {"jsonrpc": "2.0", "id": 7, "result": {"tools": []}}
        asked = {7, *(message["id"] for _, message in site.received)}
        assert len(asked) == 1 + count


@pytest.mark.parametrize(
    ("status", "body", "sent"),
    [
        (200, b'{"result": {"tools": [{"name"', 502),
        (200, b'{"id": 7, "result": {"tools": [{"name": "reset"}]}}', 502),
        (200, b"", 502),
        # The server's own errors are as they were.
        (406, b"Accept both.", 406),
    ],
)
async def test_a_listing_that_cannot_be_read_is_not_sent(
    status: int, body: bytes, sent: int, site: Site
) -> None:
    async def broken(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-type", b"text/plain")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    site.protect(broken)
    reply = await site.call("key", "tools/list")
    assert reply.status == sent
    if sent == 502:
        assert reply.json == {"type": "about:blank", "title": "Bad Gateway", "status": 502}
    else:
        assert (reply.header("content-type"), reply.body) == ("text/plain", body)


@pytest.mark.parametrize(
    "method", ["resources/read", "resources/subscribe", "resources/unsubscribe"]
)
async def test_a_resource_needs_the_policies_of_all_rows_that_match(
    method: str, site: Site
) -> None:
    assert await site.outcome("key", method, uri="tasks://1") == "served"
    assert await site.outcome("key", method, uri="files://tasks/a/b") == "served"
    assert await site.outcome("key", method, uri="tasks://admin") == "permission_denied"


# The rows of a server, and what a URI gets from them. `admin` is a permission that the key does not have.
URIS: dict[str, tuple[dict[str, str], dict[str, list[Any]]]] = {
    "no spelling reaches another resource": (
        {"tasks://{task_id}": "read", "tasks://admin": "admin", "files://tasks/{path*}": "read"},
        {
            "permission_denied": ["TASKS://admin", "tasks://ADMIN", "tasks://%61dmin", "tasks://Admin"],
            "not_found": [
                "tasks://admin\t", "tasks://ad\nmin", " tasks://admin", "tasks://admin/", "tasks://admin?", "tasks://admin#", "tasks://x/../admin", "tasks://./admin",
                "tasks://%2e%2e/admin", "tasks://x%2f..%2fadmin", "tasks:\\\\admin", "tasks://x\\..\\admin", "files://tasks/../admin",
                "files://tasks/%2E./x", "tasks://\uff41dmin", "tasks://admi\u0131n", "other://1", "", 7, None, ["tasks://1"], {"a": 1},
            ],
        },
    ),
    # FastMCP drops the query and the fragment, so that these reach `notes://{id}`; before 2.0 the official SDK keeps them in `id`.
    "a row guards what a server may take for its own": (
        {"notes://{id}": "admin", "notes://{path*}": "read", "notes://shared/admin{rest*}": "admin"},
        {
            "permission_denied": [
                "notes://a", "notes://a?x=1", "notes://a?", "notes://a#b", "notes://%61?x=/y", "notes://a#/y", "notes://?x", "notes://a%3Fb",
                "notes://shared/%61dmin%0a", "notes://shared/admin",
            ],
            "served": ["notes://shared/a?x", "notes://shared/a", "notes://shared/a%0a", "notes://shared/" + "a" * 2033],
        },
    ),
    "an operator begins what its expression stands for": (
        {"notes://all{?q,r}": "read", "notes://v1{.minor}": "read", "notes://x{/path*}": "read"},
        {
            "served": [
                "notes://all", "notes://all?q=1&r=2", "notes://all?q=1&r=2s", "notes://all?q=1&r=2/x", "notes://v1", "notes://v1.2",
                "notes://v1.2s", "notes://v1.2/x", "notes://x/a/b", "notes://x/a/bs", "notes://x/a/b/x",
            ],
            "not_found": ["notes://alls", "notes://all/x", "notes://v1s", "notes://v1/x"],
        },
    ),
    "a row names no more than its template": (
        {"notes://{id}": "read"},
        {"not_found": ["notes://a?x", "notes://a#x", "notes://a%3Fx/y", "notes://a/b", "notes://" + "a" * 2041]},
    ),
    # A parser that normalizes, such as that of the official SDK before 2.0, makes one resource of these.
    "no spelling of a web address or a file reaches another resource": (
        dict.fromkeys(("https:{+any}", "http:{+any}", "file:{+any}", "notes:{+any}"), "read")
        | dict.fromkeys(
            (
                "https://a.test/admin", "https://b.test/", "http://127.0.0.1/admin", "file:///srv/admin", "notes://a%7Cb",
                "notes://a%3Cb",
            ),
            "admin",
        ),
        {
            "not_found": [
                "https:/a.test/admin", "https:a.test/admin", "HTTPS:///a.test/admin", "https://a.test:443/admin", "https://a.test:/admin",
                "https://@a.test/admin", "https://a%2Etest/admin", "https://%EF%BD%81.test/admin", "https://a%C2%AD.test/admin",
                "http://2130706433/admin", "http://0x7f.1/admin", "http://0177.0.0.1/admin", "https://b.test",
                "file:/srv/admin", "file:////srv/admin", "file://localhost/srv/admin", "file:%2e///srv/admin", "notes://a|b", "notes://a<b",
            ],
            "served": ["https://a.test/notes/1", "file:///srv/notes", "notes://a"],
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", URIS)
async def test_the_rows_decide_about_a_uri(name: str) -> None:
    rows, outcomes = URIS[name]
    site = Site(make_world())
    policies = {
        "read": site.auth.require("tasks:read"),
        "admin": site.auth.require("admin:config"),
    }
    site.protect(resources={uri: policies[needed] for uri, needed in rows.items()})
    for expected, uris in outcomes.items():
        for uri in uris:
            with case(uri):
                assert await site.outcome("key", "resources/read", uri=uri) == expected


# Messages, by their outcome for a key with scopes and one without.
OUTCOMES: dict[tuple[str, str], list[tuple[str, dict[str, Any]]]] = {
    ("not_found", "not_found"): [
        ("tools/call", {"name": "unnamed"}), ("tools/call", {"name": ["list"]}), ("tools/call", {}), ("prompts/get", {"name": "other"}),
        ("completion/complete", {"ref": {"type": "ref/prompt", "name": "other"}}),
        ("completion/complete", {"ref": {"type": "ref/resource", "uri": "tasks://{other}"}}),
        # The server takes what the type names.
        ("completion/complete", {"ref": {"type": "ref/prompt", "name": "other", "uri": "tasks://{task_id}"}}),
        ("subscriptions/listen", {"notifications": {"uris": ["other://1"]}}),
        ("subscriptions/listen", {"notifications": {"uris": [["tasks://1"]]}}),
    ],
    ("interactive_required", "interactive_required"): [("tools/call", {"name": "reset"})],
    # What needs no more.
    ("served", "served"): [
        ("initialize", {}), ("ping", {}), ("logging/setLevel", {}), ("notifications/initialized", {}), ("server/discover", {}),
        ("tools/call", {"name": "list"}), ("completion/complete", {"ref": {"type": "ref/resource", "uri": "tasks://{task_id}"}}),
        ("subscriptions/listen", {"notifications": {"a": ["tasks://1"], "b": True}}), ("subscriptions/listen", {}),
        ("subscriptions/listen", {"notifications": [1]}), ("subscriptions/listen", {"notifications": 7}),
    ],
    # What the gate does not know.
    ("permission_denied", "served"): [
        ("tasks/result", {"taskId": "1"}), ("completion/complete", {}),
        ("completion/complete", {"ref": {"type": ["ref/prompt"], "name": "plan"}}),
        # The name of a method that needs nothing is no kind of reference.
        ("completion/complete", {"ref": {"type": "ping"}}),
    ],
}  # fmt: skip


@pytest.mark.parametrize("expected", OUTCOMES, ids=" ".join)
async def test_the_tables_decide_about_a_message(expected: tuple[str, str], site: Site) -> None:
    for method, params in OUTCOMES[expected]:
        with case(method, params):
            for credential, outcome in zip(("key_read", "key"), expected, strict=True):
                assert await site.outcome(credential, method, **params) == outcome
            if expected[1] == "served":
                assert await site.outcome("jwt", method, **params) == "served"


@pytest.mark.parametrize("name", [None, 7, True, ["7"]], ids=repr)
async def test_a_name_that_is_no_text_is_in_no_table(name: object, site: Site) -> None:
    table = dict.fromkeys((str(name), "{+any}"), site.auth.require("tasks:read"))
    site.protect(tools=table, resources=table)
    assert await site.outcome("key", "tools/call", name=name) == "not_found"
    assert await site.outcome("key", "resources/read", uri=name) == "not_found"


async def test_without_tables_everything_needs_a_key_without_scopes() -> None:
    site = Site(make_world())
    for method, params in (
        ("tools/call", {"name": "x"}),
        ("prompts/get", {"name": "x"}),
        ("resources/read", {"uri": "x://1"}),
    ):
        assert await site.outcome("key", method, **params) == "served"
        assert await site.outcome("key_read", method, **params) == "permission_denied"
    site.result = {"tools": [{"name": "x"}]}
    for credential, count in [("key", 1), ("key_read", 0)]:
        reply = await site.call(credential, "tools/list")
        assert len(reply.json["result"]["tools"]) == count


async def test_the_clients_response_to_the_server_passes(site: Site) -> None:
    reply = await site.send("key_read", b'{"jsonrpc": "2.0", "id": 1, "result": {}}')
    assert reply.status == 200


async def test_a_body_that_is_no_message_is_refused(site: Site) -> None:
    for body in (
        b"", b"{}", b"[]", b"7", b'"tools/list"', b"{", b"\xff", b"{}{}", b'{"method": 7}', b'{"method": ["tools/call"]}', b"[" * 9000,
        b'[{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "run"}}]',
        b'{"method": "tools/call", "id": ' + b"9" * 5000 + b"}",
    ):  # fmt: skip
        with case(body[:40]):
            reply = await site.send("key", body)
            assert (reply.status, reply.json["code"]) == (400, "request_malformed")
            assert site.received == []


@pytest.mark.parametrize("method", ["post", "Post", "PUT", "PATCH", "QUERY"])
async def test_every_method_that_may_bring_a_message_is_checked(method: str, site: Site) -> None:
    reply = await site.send("key_read", rpc("tools/call", name="run"), method=method)
    assert (reply.status, reply.json["code"]) == (403, "permission_denied")
    assert site.received == []


async def test_the_server_gets_what_the_gate_has_checked(site: Site) -> None:
    body = b'{"id":1,"method":"tools/call","method":"ping","params":{"name":"run","name":"list"}}'
    assert (await site.send("key_read", body, (b"content-length", b"99"))).status == 200
    ((scope, message),) = site.received
    assert message == {"id": 1, "method": "ping", "params": {"name": "list"}}
    assert [value for name, value in scope["headers"] if name == b"content-length"] != [b"99"]


async def test_a_long_body_is_refused_and_so_is_one_that_breaks_off(site: Site) -> None:
    reply = await site.call("key", "tools/call", name="a" * 10_000)
    assert (reply.status, reply.json["code"]) == (413, "content_too_large")
    reply = await site.send("key", chunks=[])
    assert (reply.status, reply.json["code"]) == (400, "request_malformed")


# Sessions.


@pytest.mark.parametrize("method", ["POST", "GET", "DELETE"])
@pytest.mark.parametrize("credential", ["key", "jwt"])
async def test_a_session_belongs_to_its_credential(
    credential: str, method: str, site: Site
) -> None:
    _, session_id = await site.begin(credential)
    body = rpc("ping") if method == "POST" else b""
    for other in ("key", "key_read", "key_bob", "jwt", "jwt_bob"):
        reply = await site.send(other, body, (b"Mcp-Session-Id", session_id), method=method)
        assert reply.status == (200 if other == credential else 404), other
    ((scope, _),) = site.received
    assert (b"Mcp-Session-Id", b"a1") in scope["headers"]


async def test_an_id_that_the_gate_did_not_sign_is_refused(site: Site) -> None:
    name, session_id = await site.begin("key")
    for wrong in (b"a1", b"a2" + session_id[2:], session_id[:-1], session_id + b"0", b"", b"."):
        reply = await site.send("key", rpc("ping"), (name, wrong))
        assert (reply.status, reply.json["code"]) == (404, "not_found")
    twice = await site.send("key", rpc("ping"), (name, session_id), (name, b"a1"))
    assert twice.status == 404
    assert site.received == []


@pytest.mark.parametrize("name", [b"last-event-id", b"Last-Event-ID"])
async def test_no_stream_is_resumed_by_the_id_of_an_event(name: bytes, site: Site) -> None:
    session = await site.begin("key")
    assert (await site.send("key", b"", session, (name, b"3"), method="GET")).status == 200
    ((scope, _),) = site.received
    assert all(sent.lower() != b"last-event-id" for sent, _ in scope["headers"])


# Open streams.


async def revoke(world: World) -> None:
    alice = local_principal(PEOPLE["alice"], at=START, interactive=True)
    await world.authenticator.revoke_key(alice, world.names["key_id"])


@pytest.mark.parametrize("has_begun", [True, False])
async def test_a_revocation_ends_what_is_open(has_begun: bool, site: Site) -> None:
    ended: list[str] = []

    async def stream(scope: Any, receive: Any, send: Any) -> None:
        if has_begun:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"1", "more_body": True})
        await revoke(site.world)
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("stream")

    site.protect(stream)
    with anyio.fail_after(60):
        reply = await site.send("key", method="GET", stays=True)
    assert ended == ["stream"]
    if has_begun:
        assert (reply.status, reply.body) == (200, b"1")
    else:
        assert (reply.status, reply.json["code"]) == (401, "key_revoked")


@pytest.mark.parametrize("has_session", [True, False])
async def test_a_revocation_cancels_what_a_session_would_go_on_with(
    has_session: bool, site: Site
) -> None:
    serve = site._serve

    async def waiting(scope: Any, receive: Any, send: Any) -> None:
        await serve(scope, receive, send)
        if site.received[-1][1]["method"] == "tools/call":
            await revoke(site.world)
            await anyio.sleep_forever()

    site.protect(waiting)
    session = [await site.begin("key")] if has_session else []
    with anyio.fail_after(60):
        await site.send("key", rpc("tools/call", name="run"), *session)
    (called, _), *more = site.received
    params = {"requestId": 7}
    cancelled = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}
    assert [message for _, message in more] == ([cancelled] if has_session else [])
    assert all(scope["headers"] == called["headers"] for scope, _ in more)


async def test_a_refused_call_cancels_nothing(site: Site) -> None:
    """A client may use the id of a request that is still served."""
    session = await site.begin("key")
    reply = await site.send("key", rpc("tools/call", name="reset"), session)
    assert reply.json["error"]["data"]["code"] == "interactive_required"
    assert site.received == []


async def serve(site: Site, receive: Any) -> list[Any]:
    """What is sent for a request with the key whose body is received so. No time passes while it is sent."""
    sent: list[Any] = []

    async def note(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/mcp", "client": None}
    with anyio.fail_after(60):
        await site.app({**scope, "headers": site.world.bearer("key")}, receive, note)
    return sent


async def test_a_revocation_ends_a_body_that_does_not_arrive(site: Site) -> None:
    async def receive() -> Any:
        await revoke(site.world)
        await anyio.sleep_forever()

    start, body = await serve(site, receive)
    assert (start["status"], json.loads(body["body"])["code"]) == (401, "key_revoked")
    assert site.received == []


async def test_a_request_that_waits_for_nothing_costs_one_look_up_of_its_key(site: Site) -> None:
    async def receive() -> Any:
        return {"type": "http.request", "body": rpc("tools/list"), "more_body": False}

    site.world.store.reads = 0
    await serve(site, receive)
    assert len(site.received) == site.world.store.reads == 1


@pytest.mark.parametrize("seconds", [0, 1], ids=["at once", "when it is watched"])
async def test_a_response_and_an_error_of_the_server_pass_as_they_are(
    seconds: float, site: Site
) -> None:
    async def late(scope: Any, receive: Any, send: Any) -> None:
        await anyio.sleep(seconds)
        if scope["method"] == "GET":
            raise TimeoutError("of the server")
        await send({"type": "http.response.start", "status": 202, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    site.protect(late)
    assert (await site.call("key", "ping")).status == 202
    with pytest.raises(TimeoutError, match="of the server"):
        await site.send("key", method="GET")


# What is not a request.


async def test_the_authenticator_is_open_while_the_server_is() -> None:
    order: list[str] = []

    class Opened(AsyncAuthenticator[Any]):
        async def __aenter__(self) -> Any:
            order.append("open")
            return await super().__aenter__()

        async def __aexit__(self, *error: Any) -> None:
            order.append("close")
            await super().__aexit__(*error)

    async def server(scope: Any, receive: Any, send: Any) -> None:
        for phase in ("startup", "shutdown"):
            assert (await receive())["type"] == f"lifespan.{phase}"
            order.append(phase)
            await send({"type": f"lifespan.{phase}.complete"})

    async def find_owner(_: str) -> Any:
        return None

    world = make_world()
    site = Site(world, Opened(world.store, find_owner=find_owner))
    site.protect(server)
    asked = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]

    async def receive() -> Any:
        return asked.pop(0)

    async def note(message: Any) -> None:
        order.append(message["type"])

    await site.app({"type": "lifespan"}, receive, note)
    assert order == [
        *("open", "startup", "lifespan.startup.complete"),
        *("close", "shutdown", "lifespan.shutdown.complete"),
    ]


async def test_a_websocket_is_closed(site: Site) -> None:
    sent: list[Any] = []

    async def note(message: Any) -> None:
        sent.append(message)

    await site.app({"type": "websocket"}, None, note)
    assert sent == [{"type": "websocket.close", "code": 1008}]


@pytest.mark.parametrize(
    "resource", ["", "/mcp", "ftp://a/mcp", "https:///mcp", "https://a/mcp?b=c", "https://a/mcp#b"]
)
async def test_a_resource_is_a_url(resource: str) -> None:
    with pytest.raises(ConfigurationError, match="resource="):
        McpAuth(make_world().authenticator, resource=resource)


async def test_a_principal_is_of_a_request_through_the_gate(site: Site) -> None:
    for wrong in (None, SimpleNamespace(request_context=None), context({})):
        with pytest.raises(ConfigurationError, match="without a guard"):
            site.auth.principal(wrong)


async def test_the_route_audit_reads_the_tables(site: Site) -> None:
    report = list_routes(site.app)
    assert [(route.path, route.policy) for route in report.routes][:3] == [
        ("/tools/list", "permissions: tasks:read"),
        ("/tools/run", "permissions: tasks:run"),
        ("/tools/reset", "interactive"),
    ]
    site.protect()
    (row, *_) = audit_routes(site.app).routes
    assert (row.path, row.policies) == ("/tools/*", (require(),))
    site.protect(tools={"revoke_key": site.auth.require("keys:write")})
    with pytest.raises(AssertionError, match="revoke_key"):
        audit_routes(site.app)


# A key for one resource.


async def test_the_uri_of_a_resource_names_what_it_is_about(site: Site) -> None:
    auth = site.auth
    site.protect(
        resources={
            "tasks://{task_id}": auth.require("tasks:read", resource="task:{task_id}"),
            "files://tasks/{?a,b}": auth.require("tasks:read"),
            "files://tasks/{name*}": auth.require("tasks:read"),
        }
    )
    uris = ["tasks://42", "tasks://%34%32"]
    others = ["tasks://42%3Fx", "tasks://42%2523", "tasks://43", "files://tasks/42"]
    # What a client sends beside the URI says nothing of it.
    arguments = {"task_id": "42"}
    for uri in [*uris, *others]:
        outcome = await site.outcome("key_bound", "resources/read", uri=uri, arguments=arguments)
        assert outcome == ("served" if uri in uris else "permission_denied"), uri
    site.result = {"resources": [{"uri": uri} for uri in [*others, *uris]]}
    reply = await site.call("key_bound", "resources/list")
    assert [each["uri"] for each in reply.json["result"]["resources"]] == uris


async def test_the_arguments_of_a_tool_name_its_resource(site: Site) -> None:
    site.protect(tools=_tools(site.auth))
    call = {"name": "GET /about"}
    for arguments in ({"task_id": 42}, {"task_id": "42"}):
        assert (
            await site.outcome("key_bound", "tools/call", **call, arguments=arguments) == "served"
        )
    refused: list[Any] = [{"task_id": "43"}, {"task_id": ["42"]}, {}, ["42"], None]
    for arguments in refused:
        outcome = await site.outcome("key_bound", "tools/call", **call, arguments=arguments)
        assert outcome == "permission_denied", arguments


async def test_a_key_for_one_resource_completes_nothing_about_others(site: Site) -> None:
    policy = site.auth.require("tasks:read", resource="task:{task_id}")
    site.protect(prompts={"plan": policy}, resources={"tasks://{task_id}": policy})
    for about in (
        {"type": "ref/prompt", "name": "plan"},
        {"type": "ref/resource", "uri": "tasks://{task_id}"},
    ):
        # What a client adds to the reference says nothing of what is completed.
        for ref in ({**about, "arguments": None}, {**about, "arguments": {"task_id": "42"}}):
            denied = await site.outcome("key_bound", "completion/complete", ref=ref)
            assert denied == "permission_denied"
            assert await site.outcome("key", "completion/complete", ref=ref) == "served"
