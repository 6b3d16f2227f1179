"""Notes for AI agents: `python server.py` serves them, and `python server.py key` makes a key."""

import asyncio
import sys

import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from sqlalchemy.ext.asyncio import create_async_engine

from msk_auth import AsyncAuthenticator, Owner, local_principal
from msk_auth.integrations.mcp import McpAuth
from msk_auth.stores.sqlalchemy import AsyncSQLAlchemyKeyStore, prepare_sqlite
from msk_auth.stores.sqlalchemy.migrations import upgrade

ADA = Owner("ada", frozenset({"notes:read", "notes:write"}), "Ada")
NOTES = {"ada": ["Water the plants."]}

engine = create_async_engine("sqlite+aiosqlite:///notes.db")
prepare_sqlite(engine)


async def find_owner(user_id: str) -> Owner[str] | None:
    """The one user of this example."""
    return ADA if user_id == "ada" else None


authenticator = AsyncAuthenticator(AsyncSQLAlchemyKeyStore(engine), find_owner=find_owner)
auth = McpAuth(authenticator, resource="http://127.0.0.1:8000/mcp")
server = MCPServer("Notes")


@server.tool()
async def list_notes(ctx: Context) -> list[str]:
    """The notes of the caller."""
    return NOTES[auth.principal(ctx).owner.id]


@server.tool()
async def add_note(text: str, ctx: Context) -> str:
    """Write a note."""
    NOTES[auth.principal(ctx).owner.id].append(text)
    return "Written."


app = auth.protect(
    server.streamable_http_app(),
    tools={"list_notes": auth.require("notes:read"), "add_note": auth.require("notes:write")},
)


async def make_key() -> None:
    """Print a new key of Ada's."""
    async with engine.connect() as connection, authenticator:
        await connection.run_sync(upgrade)
        ada = local_principal(ADA, at=authenticator.clock.now(), interactive=True)
        print((await authenticator.create_key(ada, name="agent")).value.reveal())
    await engine.dispose()


if __name__ == "__main__":
    if sys.argv[1:] == ["key"]:
        asyncio.run(make_key())
    else:
        uvicorn.run(app)
