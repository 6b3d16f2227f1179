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
from tests.contract.world import SIGNING_KEY
from tests.integrations.adapters import Driver, send

from msk_auth import AsyncAuthenticator, Policy, TokenProfile, local_principal, require
from msk_auth.errors import ConfigurationError
from msk_auth.integrations.mcp import McpAuth
from msk_auth.testing import BackgroundLoop, audit_routes, list_routes

RESOURCE = "https://tasks.test/mcp"
METADATA = "https://tasks.test/.well-known/oauth-protected-resource/mcp"
MESSAGE = [(b"content-type", b"application/json")]


class Server:
    """An MCP server without an SDK: it answers with what a test gives it, and keeps what it was sent.

    Attributes:
        auth: The adapter.
        result: What every request gets.
        headers: Those of every response.
        as_events: Whether a response is an event stream.
        received: The scopes and messages that passed the gate.
    """

    def __init__(self, authenticator: Any, *, resource: str = RESOURCE, **options: Any) -> None:
        self.auth: McpAuth[Any] = McpAuth(authenticator, resource=resource, **options)
        self.result: dict[str, Any] | None = None
        self.headers: list[tuple[bytes, bytes]] = []
        self.as_events = False
        self.received: list[tuple[Any, Any]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
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


def context(scope: Any) -> Any:
    """What an SDK passes to a tool."""
    return SimpleNamespace(request_context=SimpleNamespace(request=SimpleNamespace(scope=scope)))


def rpc(method: str, **params: Any) -> bytes:
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

    @pytest.fixture(scope="class", params=["awaited", "blocking"])
    @classmethod
    def driver(
        cls, request: pytest.FixtureRequest, world: World, loop: BackgroundLoop
    ) -> AdapterDriver:
        blocks = request.param == "blocking"
        server = Server(world.blocking if blocks else world.authenticator)
        return ToolDriver(loop, server.auth.protect(server, tools=_tools(server.auth)))

    @pytest.mark.parametrize("request_line", _REQUESTS, ids=ascii)
    def test_a_guarded_route_gives_its_answer(
        self, request_line: str, world: World, driver: AdapterDriver
    ) -> None:
        check_all(GUARDED[request_line], driver, world)


# The rest: one world, one server, asked as a client would.

pytestmark = pytest.mark.anyio


@pytest.fixture
def world() -> World:
    return make_world()


@pytest.fixture
def server(world: World) -> Server:
    return Server(world.authenticator, authorization_servers=["https://login.test"])


@pytest.fixture
def app(server: Server) -> Any:
    auth = server.auth
    return auth.protect(
        server,
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


async def post(app: Any, headers: list[tuple[bytes, bytes]], body: bytes, **more: Any) -> Reply:
    return await send(app, "POST", b"/mcp", [*headers, *MESSAGE], body, **more)


async def test_the_metadata_says_where_to_get_tokens(app: Any) -> None:
    reply = await send(app, "GET", b"/.well-known/oauth-protected-resource/mcp")
    assert (reply.status, reply.header("content-type")) == (200, "application/json")
    assert reply.json == {
        "resource": RESOURCE,
        "authorization_servers": ["https://login.test"],
        "scopes_supported": ["admin:config", "tasks:read", "tasks:run"],
        "bearer_methods_supported": ["header"],
    }


async def test_the_metadata_of_a_server_for_keys_names_no_issuer(world: World) -> None:
    server = Server(world.authenticator, resource="https://tasks.test/")
    app = server.auth.protect(server)
    reply = await send(app, "GET", b"/.well-known/oauth-protected-resource", root_path="/")
    assert reply.json == {
        "resource": "https://tasks.test/",
        "bearer_methods_supported": ["header"],
    }


async def test_a_refused_credential_is_told_where_to_get_another(app: Any) -> None:
    reply = await post(app, [], rpc("tools/list"))
    assert reply.header("www-authenticate") == (
        f'Bearer realm="api", scope="admin:config tasks:read tasks:run", resource_metadata="{METADATA}"'
    )


async def test_a_missing_permission_is_a_challenge(world: World, app: Any) -> None:
    reply = await post(app, world.bearer("key_read"), rpc("tools/call", name="run"))
    assert (reply.status, reply.json["code"]) == (403, "permission_denied")
    assert reply.header("www-authenticate") == (
        f'Bearer realm="api", error="insufficient_scope", scope="tasks:run", resource_metadata="{METADATA}"'
    )


async def test_a_token_for_another_audience_is_refused(app: Any) -> None:
    profile = TokenProfile(issuer="https://tasks.test", audience="other", keys=[SIGNING_KEY])
    token = profile.issue(
        subject="alice", session_id="s", authenticated_at=START, now=START, lifetime=MAX_AGE
    )
    reply = await post(app, [(b"authorization", b"Bearer " + token.encode())], rpc("tools/list"))
    assert (reply.status, reply.json["code"]) == (401, "token_invalid")


@pytest.mark.parametrize(
    ("credential", "listed"),
    [
        ("key", ["list", "run"]),
        ("key_read", ["list"]),
        ("key_nothing", []),
        ("jwt", ["list", "run", "reset", "fresh"]),
        # A new login is enough for `fresh`.
        ("jwt_old", ["list", "run", "reset", "fresh"]),
    ],
)
@pytest.mark.parametrize("as_events", [False, True], ids=["json", "events"])
async def test_what_the_caller_may_not_use_is_not_listed(
    credential: str, listed: list[str], as_events: bool, world: World, server: Server, app: Any
) -> None:
    names = ["list", "run", "reset", "fresh", "unnamed"]
    server.as_events = as_events
    server.headers = [(b"content-length", b"1"), (b"cache-control", b"public")]
    server.result = {"tools": [{"name": name} for name in names] + [None], "cacheScope": "public"}
    headers = [*world.bearer(credential), (b"accept-encoding", b"gzip")]
    reply = await post(app, headers, rpc("tools/list"))
    # Without events: with the id of one the client could resume the stream, and get the listing as the server keeps it.
    assert reply.header("content-type") == "application/json"
    assert reply.header("content-length") == str(len(reply.body))
    assert reply.json["result"] == {
        "tools": [{"name": name} for name in listed],
        "cacheScope": "private",
    }
    assert reply.header("cache-control") == "no-store"
    assert b"accept-encoding" not in dict(server.received[0][0]["headers"])


@pytest.mark.parametrize(
    ("method", "kind", "key", "names", "listed"),
    [
        ("prompts/list", "prompts", "name", ["plan", "other"], ["plan"]),
        (
            "resources/list",
            "resources",
            "uri",
            ["tasks://1", "tasks://admin", "files://tasks/a/b", "other://1"],
            ["tasks://1", "files://tasks/a/b"],
        ),
        (
            "resources/templates/list",
            "resourceTemplates",
            "uriTemplate",
            ["tasks://{task_id}", "tasks://{other}", "files://tasks/{path*}"],
            ["tasks://{task_id}", "files://tasks/{path*}"],
        ),
    ],
)
async def test_prompts_and_resources_are_listed_alike(
    method: str,
    kind: str,
    key: str,
    names: list[str],
    listed: list[str],
    world: World,
    server: Server,
    app: Any,
) -> None:
    server.result = {kind: [{key: name} for name in names]}
    reply = await post(app, world.bearer("key"), rpc(method))
    assert [each[key] for each in reply.json["result"][kind]] == listed


async def test_a_listing_answers_no_other_request_of_its_id(
    world: World, server: Server, app: Any
) -> None:
    """The SDKs send an answer to the last request that has its id, which may be one that is no listing."""
    server.result = {"tools": []}
    for count in (1, 2):
        reply = await post(app, world.bearer("key"), rpc("tools/list"))
        assert reply.json == {"jsonrpc": "2.0", "id": 7, "result": {"tools": []}}
        asked = {7, *(message["id"] for _, message in server.received)}
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
    status: int, body: bytes, sent: int, world: World
) -> None:
    async def broken(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-type", b"text/plain")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    auth: McpAuth[Any] = McpAuth(world.authenticator, resource=RESOURCE)
    reply = await post(auth.protect(broken), world.bearer("key"), rpc("tools/list"))
    assert reply.status == sent
    if sent == 502:
        assert reply.json == {"type": "about:blank", "title": "Bad Gateway", "status": 502}
    else:
        assert (reply.header("content-type"), reply.body) == ("text/plain", body)


READ = ["resources/read", "resources/subscribe", "resources/unsubscribe"]


@pytest.mark.parametrize("method", READ)
async def test_a_resource_needs_the_policies_of_all_rows_that_match(
    method: str, world: World, app: Any
) -> None:
    for uri, status in [("tasks://1", 200), ("files://tasks/a/b", 200), ("tasks://admin", 403)]:
        reply = await post(app, world.bearer("key"), rpc(method, uri=uri))
        assert (reply.status, "error" in reply.json) == (status, False)


@pytest.mark.parametrize(
    "uri",
    [
        "TASKS://admin", "tasks://ADMIN", "tasks://%61dmin", "tasks://Admin", "tasks://admin\t", "tasks://ad\nmin", " tasks://admin",
        "tasks://admin/", "tasks://admin?", "tasks://admin#", "tasks://x/../admin", "tasks://./admin", "tasks://%2e%2e/admin",
        "tasks://x%2f..%2fadmin", "tasks:\\\\admin", "tasks://x\\..\\admin", "files://tasks/../admin", "files://tasks/%2E./x",
        "tasks://\uff41dmin", "tasks://admi\u0131n", "other://1", "", 7, None, ["tasks://1"], {"a": 1},
    ],
)  # fmt: skip
async def test_no_spelling_of_a_uri_reaches_another_resource(
    uri: object, world: World, server: Server, app: Any
) -> None:
    reply = await post(app, world.bearer("key"), rpc("resources/read", uri=uri))
    assert "result" not in reply.json
    assert server.received == []


@pytest.mark.parametrize(
    ("uri", "status"),
    [
        ("notes://a", 403), ("notes://a?x=1", 403), ("notes://a?", 403), ("notes://a#b", 403), ("notes://%61?x=/y", 403), ("notes://a#/y", 403),
        ("notes://?x", 403), ("notes://a%3Fb", 403), ("notes://shared/a?x", 200), ("notes://shared/a", 200), ("notes://shared/a%0a", 200),
        ("notes://shared/%61dmin%0a", 403), ("notes://shared/admin", 403), ("notes://shared/" + "a" * 2033, 200),
    ],
)  # fmt: skip
async def test_a_row_guards_what_a_server_may_take_for_its_own(
    uri: str, status: int, world: World, server: Server
) -> None:
    """FastMCP drops the query and the fragment, so that these reach `notes://{id}`; before 2.0 the official SDK keeps them in `id`."""
    read, admin = server.auth.require("tasks:read"), server.auth.require("admin:config")
    resources = {
        "notes://{id}": admin,
        "notes://{path*}": read,
        "notes://shared/admin{rest*}": admin,
    }
    app = server.auth.protect(server, resources=resources)
    reply = await post(app, world.bearer("key"), rpc("resources/read", uri=uri))
    assert (reply.status, "error" in reply.json) == (status, False)


@pytest.mark.parametrize(
    "uri", ["notes://all", "notes://all?q=1&r=2", "notes://v1", "notes://v1.2", "notes://x/a/b"]
)
@pytest.mark.parametrize("extra", ["", "s", "/x"])
async def test_an_operator_begins_what_its_expression_stands_for(
    uri: str, extra: str, world: World, server: Server
) -> None:
    read = server.auth.require("tasks:read")
    names = ("notes://all{?q,r}", "notes://v1{.minor}", "notes://x{/path*}")
    app = server.auth.protect(server, resources=dict.fromkeys(names, read))
    reply = await post(app, world.bearer("key"), rpc("resources/read", uri=uri + extra))
    is_named = not extra or not uri.endswith(("all", "v1"))
    assert ("result" in reply.json) == is_named


@pytest.mark.parametrize(
    "uri",
    ["notes://a?x", "notes://a#x", "notes://a%3Fx/y", "notes://a/b", "notes://" + "a" * 2041],
)
async def test_a_row_names_no_more_than_its_template(
    uri: str, world: World, server: Server
) -> None:
    app = server.auth.protect(server, resources={"notes://{id}": server.auth.require("tasks:read")})
    reply = await post(app, world.bearer("key"), rpc("resources/read", uri=uri))
    assert reply.json["error"]["data"]["code"] == "not_found"
    assert server.received == []


@pytest.mark.parametrize(
    "uri",
    [
        "https:/a.test/admin", "https:a.test/admin", "HTTPS:///a.test/admin", "https://a.test:443/admin", "https://a.test:/admin",
        "https://@a.test/admin", "https://a%2Etest/admin", "https://%EF%BD%81.test/admin", "https://a%C2%AD.test/admin",
        "http://2130706433/admin", "http://0x7f.1/admin", "http://0177.0.0.1/admin", "https://b.test",
        "file:/srv/admin", "file:////srv/admin", "file://localhost/srv/admin", "file:%2e///srv/admin", "notes://a|b", "notes://a<b",
    ],
)  # fmt: skip
async def test_no_spelling_of_a_web_address_or_a_file_reaches_another_resource(
    uri: str, world: World, server: Server
) -> None:
    """A parser that normalizes, such as that of the official SDK before 2.0, makes one resource of these."""
    auth = server.auth
    other = {
        name: auth.require("tasks:read")
        for name in ("https:{+any}", "http:{+any}", "file:{+any}", "notes:{+any}")
    }
    names = (
        *("https://a.test/admin", "https://b.test/", "http://127.0.0.1/admin"),
        *("file:///srv/admin", "notes://a%7Cb", "notes://a%3Cb"),
    )
    app = auth.protect(
        server, resources=other | {name: auth.require("admin:config") for name in names}
    )
    reply = await post(app, world.bearer("key"), rpc("resources/read", uri=uri))
    assert "result" not in reply.json
    assert server.received == []
    for plain in ("https://a.test/notes/1", "file:///srv/notes", "notes://a"):
        reply = await post(app, world.bearer("key"), rpc("resources/read", uri=plain))
        assert "result" in reply.json


@pytest.mark.parametrize(
    ("method", "params", "code"),
    [
        ("tools/call", {"name": "unnamed"}, "not_found"),
        ("tools/call", {"name": ["list"]}, "not_found"),
        ("tools/call", {}, "not_found"),
        ("prompts/get", {"name": "other"}, "not_found"),
        ("tools/call", {"name": "reset"}, "interactive_required"),
        ("completion/complete", {"ref": {"type": "ref/prompt", "name": "other"}}, "not_found"),
        (
            "completion/complete",
            {"ref": {"type": "ref/resource", "uri": "tasks://{other}"}},
            "not_found",
        ),
        # The server takes what the type names.
        (
            "completion/complete",
            {"ref": {"type": "ref/prompt", "name": "other", "uri": "tasks://{task_id}"}},
            "not_found",
        ),
        ("subscriptions/listen", {"notifications": {"uris": ["other://1"]}}, "not_found"),
        ("subscriptions/listen", {"notifications": {"uris": [["tasks://1"]]}}, "not_found"),
    ],
)
async def test_a_client_can_show_what_no_scope_would_change(
    method: str, params: dict[str, Any], code: str, world: World, server: Server, app: Any
) -> None:
    reply = await post(app, world.bearer("key"), rpc(method, **params))
    assert (reply.status, reply.header("content-type")) == (200, "application/json")
    error = reply.json["error"]
    assert (reply.json["id"], error["data"]["code"]) == (7, code)
    assert error["code"] == (-32602 if code == "not_found" else -32010)
    assert error["message"] == error["data"]["detail"]
    assert server.received == []


@pytest.mark.parametrize("name", [None, 7, True, ["7"]], ids=repr)
async def test_a_name_that_is_no_text_is_in_no_table(
    name: object, world: World, server: Server
) -> None:
    table = dict.fromkeys((str(name), "{+any}"), server.auth.require("tasks:read"))
    app = server.auth.protect(server, tools=table, resources=table)
    for call in (rpc("tools/call", name=name), rpc("resources/read", uri=name)):
        reply = await post(app, world.bearer("key"), call)
        assert reply.json["error"]["data"]["code"] == "not_found"
    assert server.received == []


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("initialize", {}), ("ping", {}), ("logging/setLevel", {}), ("notifications/initialized", {}), ("server/discover", {}),
        ("tools/call", {"name": "list"}), ("completion/complete", {"ref": {"type": "ref/resource", "uri": "tasks://{task_id}"}}),
        ("subscriptions/listen", {"notifications": {"a": ["tasks://1"], "b": True}}), ("subscriptions/listen", {}),
        ("subscriptions/listen", {"notifications": [1]}), ("subscriptions/listen", {"notifications": 7}),
    ],
)  # fmt: skip
async def test_a_key_with_scopes_may_send_what_needs_no_more(
    method: str, params: dict[str, Any], world: World, app: Any
) -> None:
    assert (await post(app, world.bearer("key_read"), rpc(method, **params))).status == 200


async def test_a_method_that_the_gate_does_not_know_needs_a_key_without_scopes(
    world: World, app: Any
) -> None:
    unknown = [
        rpc("tasks/result", taskId="1"),
        rpc("completion/complete"),
        rpc("completion/complete", ref={"type": ["ref/prompt"], "name": "plan"}),
        # The name of a method that needs nothing is no kind of reference.
        rpc("completion/complete", ref={"type": "ping"}),
    ]
    for message in unknown:
        for credential, status in [("key_read", 403), ("key", 200), ("jwt", 200)]:
            assert (await post(app, world.bearer(credential), message)).status == status


async def test_without_tables_everything_needs_a_key_without_scopes(world: World) -> None:
    server = Server(world.authenticator)
    app = server.auth.protect(server)
    messages = [
        rpc("tools/call", name="x"),
        rpc("prompts/get", name="x"),
        rpc("resources/read", uri="x://1"),
    ]
    for message in messages:
        assert (await post(app, world.bearer("key"), message)).status == 200
        reply = await post(app, world.bearer("key_read"), message)
        assert (reply.status, reply.json["code"]) == (403, "permission_denied")
    server.result = {"tools": [{"name": "x"}]}
    for credential, count in [("key", 1), ("key_read", 0)]:
        reply = await post(app, world.bearer(credential), rpc("tools/list"))
        assert len(reply.json["result"]["tools"]) == count


async def test_the_clients_response_to_the_server_passes(world: World, app: Any) -> None:
    reply = await post(app, world.bearer("key_read"), b'{"jsonrpc": "2.0", "id": 1, "result": {}}')
    assert reply.status == 200


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{}", b"[]", b"7", b'"tools/list"', b"{", b"\xff", b"{}{}", b'{"method": 7}', b'{"method": ["tools/call"]}', b"[" * 9000,
        b'[{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "run"}}]',
        b'{"method": "tools/call", "id": ' + b"9" * 5000 + b"}",
    ],
)  # fmt: skip
async def test_a_body_that_is_no_message_is_refused(
    body: bytes, world: World, server: Server, app: Any
) -> None:
    reply = await post(app, world.bearer("key"), body)
    assert (reply.status, reply.json["code"]) == (400, "request_malformed")
    assert server.received == []


@pytest.mark.parametrize("method", ["post", "Post", "PUT", "PATCH", "QUERY"])
async def test_every_method_that_may_bring_a_message_is_checked(
    method: str, world: World, server: Server, app: Any
) -> None:
    headers = [*world.bearer("key_read"), *MESSAGE]
    reply = await send(app, method, b"/mcp", headers, rpc("tools/call", name="run"))
    assert (reply.status, reply.json["code"]) == (403, "permission_denied")
    assert server.received == []


async def test_the_server_gets_what_the_gate_has_checked(
    world: World, server: Server, app: Any
) -> None:
    body = b'{"id":1,"method":"tools/call","method":"ping","params":{"name":"run","name":"list"}}'
    reply = await post(app, [*world.bearer("key_read"), (b"content-length", b"99")], body)
    assert reply.status == 200
    ((scope, message),) = server.received
    assert message == {"id": 1, "method": "ping", "params": {"name": "list"}}
    assert [value for name, value in scope["headers"] if name == b"content-length"] != [b"99"]


async def test_a_long_body_is_refused_and_so_is_one_that_breaks_off(world: World, app: Any) -> None:
    reply = await post(app, world.bearer("key"), rpc("tools/call", name="a" * 10_000))
    assert (reply.status, reply.json["code"]) == (413, "content_too_large")
    reply = await post(app, world.bearer("key"), b"", chunks=[])
    assert (reply.status, reply.json["code"]) == (400, "request_malformed")


# Sessions.


async def begin(app: Any, server: Server, headers: list[tuple[bytes, bytes]]) -> bytes:
    server.headers = [(b"mcp-session-id", b"a1")]
    reply = await post(app, headers, rpc("initialize"))
    server.headers = []
    server.received.clear()
    session_id = reply.header("mcp-session-id")
    assert session_id is not None
    assert re.fullmatch(r"a1\.[0-9a-f]{64}", session_id)
    return session_id.encode()


@pytest.mark.parametrize("method", ["POST", "GET", "DELETE"])
@pytest.mark.parametrize("credential", ["key", "jwt"])
async def test_a_session_belongs_to_its_credential(
    credential: str, method: str, world: World, server: Server, app: Any
) -> None:
    session_id = await begin(app, server, world.bearer(credential))
    body = rpc("ping") if method == "POST" else b""
    for other in ("key", "key_read", "key_bob", "jwt", "jwt_bob"):
        headers = [*world.bearer(other), (b"Mcp-Session-Id", session_id), *MESSAGE]
        reply = await send(app, method, b"/mcp", headers, body)
        assert reply.status == (200 if other == credential else 404), other
    ((scope, _),) = server.received
    assert (b"Mcp-Session-Id", b"a1") in scope["headers"]


async def test_an_id_that_the_gate_did_not_sign_is_refused(
    world: World, server: Server, app: Any
) -> None:
    session_id = await begin(app, server, world.bearer("key"))
    for wrong in (b"a1", b"a2" + session_id[2:], session_id[:-1], session_id + b"0", b"", b"."):
        headers = [*world.bearer("key"), (b"mcp-session-id", wrong)]
        reply = await post(app, headers, rpc("ping"))
        assert (reply.status, reply.json["code"]) == (404, "not_found")
    twice = [*world.bearer("key"), (b"mcp-session-id", session_id), (b"mcp-session-id", b"a1")]
    assert (await post(app, twice, rpc("ping"))).status == 404
    assert server.received == []


@pytest.mark.parametrize("name", [b"last-event-id", b"Last-Event-ID"])
async def test_no_stream_is_resumed_by_the_id_of_an_event(
    name: bytes, world: World, server: Server, app: Any
) -> None:
    session_id = await begin(app, server, world.bearer("key"))
    headers = [*world.bearer("key"), (b"mcp-session-id", session_id), (name, b"3")]
    assert (await send(app, "GET", b"/mcp", headers)).status == 200
    ((scope, _),) = server.received
    assert all(sent.lower() != b"last-event-id" for sent, _ in scope["headers"])


# Open streams.


async def revoke(world: World) -> None:
    alice = local_principal(PEOPLE["alice"], at=START, interactive=True)
    await world.authenticator.revoke_key(alice, world.names["key_id"])


@pytest.mark.parametrize("has_begun", [True, False])
async def test_a_revocation_ends_what_is_open(has_begun: bool, world: World) -> None:
    ended: list[str] = []

    async def stream(scope: Any, receive: Any, send: Any) -> None:
        if has_begun:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"1", "more_body": True})
        await revoke(world)
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("stream")

    auth: McpAuth[Any] = McpAuth(world.authenticator, resource=RESOURCE)
    app = auth.protect(stream)
    with anyio.fail_after(60):
        reply = await send(app, "GET", b"/mcp", world.bearer("key"), stays=True)
    assert ended == ["stream"]
    if has_begun:
        assert (reply.status, reply.body) == (200, b"1")
    else:
        assert (reply.status, reply.json["code"]) == (401, "key_revoked")


@pytest.mark.parametrize("has_session", [True, False])
async def test_a_revocation_cancels_what_a_session_would_go_on_with(
    has_session: bool, world: World, server: Server
) -> None:
    async def waiting(scope: Any, receive: Any, send: Any) -> None:
        await server(scope, receive, send)
        if server.received[-1][1]["method"] == "tools/call":
            await revoke(world)
            await anyio.sleep_forever()

    app = server.auth.protect(waiting)
    headers = world.bearer("key")
    if has_session:
        headers = [*headers, (b"mcp-session-id", await begin(app, server, headers))]
    with anyio.fail_after(60):
        await post(app, headers, rpc("tools/call", name="run"))
    (called, _), *more = server.received
    params = {"requestId": 7}
    cancelled = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}
    assert [message for _, message in more] == ([cancelled] if has_session else [])
    assert all(scope["headers"] == called["headers"] for scope, _ in more)


async def test_a_refused_call_cancels_nothing(world: World, server: Server, app: Any) -> None:
    """A client may use the id of a request that is still served."""
    headers = world.bearer("key")
    headers = [*headers, (b"mcp-session-id", await begin(app, server, headers))]
    reply = await post(app, headers, rpc("tools/call", name="reset"))
    assert reply.json["error"]["data"]["code"] == "interactive_required"
    assert server.received == []


async def test_a_revocation_ends_a_body_that_does_not_arrive(
    world: World, server: Server, app: Any
) -> None:
    sent: list[Any] = []

    async def receive() -> Any:
        await revoke(world)
        await anyio.sleep_forever()

    async def note(message: Any) -> None:
        sent.append(message)

    with anyio.fail_after(60):
        await app(scope_of(world.bearer("key")), receive, note)
    start, body = sent
    assert (start["status"], json.loads(body["body"])["code"]) == (401, "key_revoked")
    assert server.received == []


async def test_a_request_that_waits_for_nothing_costs_one_look_up_of_its_key(
    world: World, server: Server, app: Any
) -> None:
    async def receive() -> Any:
        return {"type": "http.request", "body": rpc("tools/list"), "more_body": False}

    async def note(message: Any) -> None:
        """No time passes here, so that no round of the watches can come."""

    world.store.reads = 0
    await app(scope_of(world.bearer("key")), receive, note)
    assert len(server.received) == world.store.reads == 1


def scope_of(headers: list[tuple[bytes, bytes]]) -> dict[str, Any]:
    return {"type": "http", "method": "POST", "path": "/mcp", "headers": headers, "client": None}


@pytest.mark.parametrize("seconds", [0, 1], ids=["at once", "when it is watched"])
async def test_a_response_and_an_error_of_the_server_pass_as_they_are(
    seconds: float, world: World
) -> None:
    async def late(scope: Any, receive: Any, send: Any) -> None:
        await anyio.sleep(seconds)
        if scope["method"] == "GET":
            raise TimeoutError("of the server")
        await send({"type": "http.response.start", "status": 202, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    auth: McpAuth[Any] = McpAuth(world.authenticator, resource=RESOURCE)
    app = auth.protect(late)
    assert (await post(app, world.bearer("key"), rpc("ping"))).status == 202
    with pytest.raises(TimeoutError, match="of the server"):
        await send(app, "GET", b"/mcp", world.bearer("key"))


# What is not a request.


async def test_the_authenticator_is_open_while_the_server_is(world: World) -> None:
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

    auth = McpAuth(Opened(world.store, find_owner=find_owner), resource=RESOURCE)
    asked = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]

    async def receive() -> Any:
        return asked.pop(0)

    async def note(message: Any) -> None:
        order.append(message["type"])

    await auth.protect(server)({"type": "lifespan"}, receive, note)
    assert order == [
        *("open", "startup", "lifespan.startup.complete"),
        *("close", "shutdown", "lifespan.shutdown.complete"),
    ]


async def test_a_websocket_is_closed(app: Any) -> None:
    sent: list[Any] = []

    async def note(message: Any) -> None:
        sent.append(message)

    await app({"type": "websocket"}, None, note)
    assert sent == [{"type": "websocket.close", "code": 1008}]


@pytest.mark.parametrize(
    "resource", ["", "/mcp", "ftp://a/mcp", "https:///mcp", "https://a/mcp?b=c", "https://a/mcp#b"]
)
async def test_a_resource_is_a_url(resource: str, world: World) -> None:
    with pytest.raises(ConfigurationError, match="resource="):
        McpAuth(world.authenticator, resource=resource)


async def test_a_principal_is_of_a_request_through_the_gate(server: Server) -> None:
    for wrong in (None, SimpleNamespace(request_context=None), context({})):
        with pytest.raises(ConfigurationError, match="without a guard"):
            server.auth.principal(wrong)


async def test_the_route_audit_reads_the_tables(world: World, app: Any) -> None:
    report = list_routes(app)
    assert [(route.path, route.policy) for route in report.routes][:3] == [
        ("/tools/list", "permissions: tasks:read"),
        ("/tools/run", "permissions: tasks:run"),
        ("/tools/reset", "interactive"),
    ]
    auth: McpAuth[Any] = McpAuth(world.authenticator, resource=RESOURCE)
    (row, *_) = audit_routes(auth.protect(app)).routes
    assert (row.path, row.policies) == ("/tools/*", (require(),))
    with pytest.raises(AssertionError, match="revoke_key"):
        audit_routes(auth.protect(app, tools={"revoke_key": auth.require("keys:write")}))


@pytest.mark.parametrize(
    ("uri", "passes"),
    [
        ("tasks://42", True),
        ("tasks://%34%32", True),
        ("tasks://42%3Fx", False),
        ("tasks://42%2523", False),
        ("tasks://43", False),
        ("files://tasks/42", False),
    ],
)
async def test_the_uri_of_a_resource_names_what_it_is_about(
    uri: str, passes: bool, world: World, server: Server
) -> None:
    auth = server.auth
    app = auth.protect(
        server,
        resources={
            "tasks://{task_id}": auth.require("tasks:read", resource="task:{task_id}"),
            "files://tasks/{?a,b}": auth.require("tasks:read"),
            "files://tasks/{name*}": auth.require("tasks:read"),
        },
    )
    # What a client sends beside the URI says nothing of it.
    read = rpc("resources/read", uri=uri, arguments={"task_id": "42"})
    reply = await post(app, world.bearer("key_bound"), read)
    assert reply.status == (200 if passes else 403)
    server.result = {"resources": [{"uri": uri}]}
    reply = await post(app, world.bearer("key_bound"), rpc("resources/list"))
    assert len(reply.json["result"]["resources"]) == passes


@pytest.mark.parametrize(
    ("arguments", "passes"),
    [
        ({"task_id": 42}, True),
        ({"task_id": "42"}, True),
        ({"task_id": "43"}, False),
        ({"task_id": ["42"]}, False),
        ({}, False),
        (["42"], False),
        (None, False),
    ],
    ids=repr,
)
async def test_the_arguments_of_a_tool_name_its_resource(
    world: World, server: Server, arguments: Any, passes: bool
) -> None:
    app = server.auth.protect(server, tools=_tools(server.auth))
    call = rpc("tools/call", name="GET /about", arguments=arguments)
    reply = await post(app, world.bearer("key_bound"), call)
    if passes:
        assert reply.json["result"]["structuredContent"]["owner"] == "alice"
    else:
        assert (reply.status, reply.json["code"]) == (403, "permission_denied")


@pytest.mark.parametrize("arguments", [None, {"task_id": "42"}])
async def test_a_key_for_one_resource_completes_nothing_about_others(
    world: World, server: Server, arguments: Any
) -> None:
    policy = server.auth.require("tasks:read", resource="task:{task_id}")
    app = server.auth.protect(
        server, prompts={"plan": policy}, resources={"tasks://{task_id}": policy}
    )
    for about in (
        {"type": "ref/prompt", "name": "plan"},
        {"type": "ref/resource", "uri": "tasks://{task_id}"},
    ):
        # What a client adds to the reference says nothing of what is completed.
        completion = rpc("completion/complete", ref={**about, "arguments": arguments})
        assert (await post(app, world.bearer("key_bound"), completion)).status == 403
        assert (await post(app, world.bearer("key"), completion)).status == 200
