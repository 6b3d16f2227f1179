"""Read by type checkers: the application's own user class reaches the tools of both SDKs, and tables take policies alone."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import assert_type

from fastmcp import Context as FastContext
from fastmcp import FastMCP
from mcp.server.mcpserver import Context, MCPServer

from msk_auth import AsyncAuthenticator, Authenticator, Owner, Policy, Principal
from msk_auth.integrations.mcp import McpAuth
from msk_auth.stores.memory import AsyncMemoryKeyStore, MemoryKeyStore

RESOURCE = "https://notes.example.com/mcp"


@dataclass
class User:
    name: str


async def find_owner(owner_id: str) -> Owner[User] | None:
    return Owner(owner_id, frozenset(), User(owner_id))


def find_owner_in_thread(owner_id: str) -> Owner[User] | None:
    return Owner(owner_id, frozenset(), User(owner_id))


auth = McpAuth(AsyncAuthenticator(AsyncMemoryKeyStore(), find_owner=find_owner), resource=RESOURCE)
assert_type(auth, McpAuth[User])
in_threads = McpAuth(
    Authenticator(MemoryKeyStore(), find_owner=find_owner_in_thread), resource=RESOURCE
)
assert_type(in_threads, McpAuth[User])

official, fast = MCPServer("Notes"), FastMCP("Notes")


@official.tool()
async def list_notes(ctx: Context) -> list[str]:
    principal = auth.principal(ctx)
    assert_type(principal, Principal[User])
    assert_type(principal.user, User)
    return [principal.user.name]


@fast.tool
def whoami(ctx: FastContext) -> str:
    return auth.principal(ctx).user.name


assert_type(auth.require("notes:read", resource="note:{note_id}"), Policy)
assert_type(auth.require_interactive(max_age=timedelta(minutes=5)), Policy)
assert_type(auth.require_key(), Policy)
assert_type(auth.any_credential(), Policy)

app = auth.protect(
    official.streamable_http_app(),
    tools={"list_notes": auth.require("notes:read")},
    prompts={"plan": auth.require_interactive()},
    resources={"notes://{note_id}": auth.any_credential()},
)
auth.protect(fast.http_app(), tools={"whoami": auth.any_credential()})
# A permission is no policy, and neither is what makes one.
auth.protect(app, tools={"list_notes": "notes:read"})  # type: ignore[dict-item]  # pyright: ignore[reportArgumentType]
auth.protect(app, tools={"list_notes": auth.require})  # type: ignore[dict-item]  # pyright: ignore[reportArgumentType]
auth.protect(app, tools=["list_notes"])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
auth.require(("notes:read", "notes:write"))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
McpAuth(auth.authenticator)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
