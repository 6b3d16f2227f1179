"""The guide and the example of MCP servers: each server, called by a client."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import json
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integrations.adapters import send
from tests.integrations.mcp_servers import connected, living

from msk_auth import Owner, local_principal
from msk_auth.testing import audit_routes

from .tutorial import blocks

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "mcp.md"
EXAMPLE = ROOT / "examples" / "mcp_server" / "server.py"
METADATA = b"/.well-known/oauth-protected-resource/mcp"

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.filterwarnings("default"),
]


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    """The example closes no store: a connection that is collected in another test would fail that."""
    yield
    gc.collect()


async def test_each_server_of_the_guide_serves_a_key() -> None:
    page: dict[str, Any] = {"__name__": "page"}
    served = []
    for block in blocks(PAGE):
        if block.language != "python":
            continue
        exec(compile(block.text, str(PAGE), "exec"), page)
        app = page.get("site", page.get("app"))
        if app in served:
            continue
        served.append(app)
        ada = Owner("ada", frozenset({"notes:read"}), "Ada")
        at = page["authenticator"].clock.now()
        by = local_principal(ada, at=at, interactive=True)
        key = (await page["authenticator"].create_key(by, name="agent")).value.reveal()
        async with living(app):
            async with connected("official", {"Authorization": f"Bearer {key}"}, app) as caller:
                assert (await caller.listed())["tools"] == ["list_notes"]
                assert "Water the plants of Ada." in await caller.call("list_notes")
            metadata = (await send(app, "GET", METADATA)).json
            assert metadata["scopes_supported"] == ["notes:read"]
            assert (await send(app, "POST", b"/mcp")).json["code"] == "credentials_missing"
    assert len(served) == 3
    assert metadata["resource"] == "https://notes.example.com/mcp"
    assert metadata["authorization_servers"] == ["https://login.example.com"]
    assert audit_routes(served[0]).ok


async def test_the_state_of_a_call_is_its_callers_alone() -> None:
    from mcp.server.mcpserver import Context
    from mcp_types import InputRequiredResult

    page: dict[str, Any] = {"__name__": "page"}
    for block in blocks(PAGE):
        if block.language == "python":
            exec(compile(block.text, str(PAGE), "exec"), page)
    auth, authenticator, server = page["auth"], page["authenticator"], page["server"]

    async def ask(ctx: Any) -> Any:
        if ctx.request_state is not None:
            return f"{auth.principal(ctx).owner.id} has {ctx.request_state}"
        return InputRequiredResult(request_state="a state", input_requests={})

    ask.__annotations__ |= {"ctx": Context, "return": InputRequiredResult | str}
    server.tool()(ask)
    app = auth.protect(
        server.streamable_http_app(stateless_http=True, json_response=True, host="tasks.test")
    )

    async def call(owner_id: str, **more: str) -> dict[str, Any]:
        owner = Owner(owner_id, frozenset({"notes:read"}), owner_id)
        by = local_principal(owner, at=authenticator.clock.now(), interactive=True)
        key = (await authenticator.create_key(by, name="agent")).value.reveal()
        headers = {
            "authorization": f"Bearer {key}",
            "accept": "application/json, text/event-stream",
            "content-type": "application/json",
            "mcp-protocol-version": "2026-07-28",
            "mcp-method": "tools/call",
            "mcp-name": "ask",
        }
        meta = {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
        }
        params = {"name": "ask", "arguments": {}, "_meta": meta, **more}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
        answer: dict[str, Any] = (
            await send(app, "POST", b"/mcp", encoded, json.dumps(body).encode())
        ).json
        return answer

    async with living(app):
        state = (await call("ada"))["result"]["requestState"]
        again = await call("ada", requestState=state)
        assert again["result"]["content"][0]["text"] == "ada has a state"
        refused = await call("bob", requestState=state)
        assert refused["error"]["data"] == {"reason": "invalid_request_state"}


async def test_the_examples_key_opens_the_example(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), "key"])
    # It runs an event loop of its own.
    await asyncio.to_thread(runpy.run_path, str(EXAMPLE), run_name="__main__")
    key = capsys.readouterr().out.strip()
    spec = importlib.util.spec_from_file_location("mcp_example", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    # The SDK reads the annotations of tools by the name of their module.
    example: Any = importlib.util.module_from_spec(spec)
    sys.modules["mcp_example"] = example
    try:
        spec.loader.exec_module(example)
        async with living(example.app):
            headers = {"Authorization": f"Bearer {key}"}
            async with connected("official", headers, example.app) as caller:
                assert (await caller.listed())["tools"] == ["list_notes", "add_note"]
                assert await caller.call("list_notes") == "Water the plants."
    finally:
        del sys.modules["mcp_example"]
        await example.engine.dispose()


def test_what_is_pasted_into_clients_can_be_read() -> None:
    pasted = {block.language: block.text for block in blocks(PAGE)}
    assert "127.0.0.1:8000/mcp" in json.loads(pasted["json"])["mcpServers"]["notes"]["url"]
    assert {"bash", "json", "python", "toml"} <= pasted.keys()
