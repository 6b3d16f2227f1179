"""A bare FastAPI application: one route that does nothing, one that reads one row by SQLAlchemy's asynchronous engine."""

from __future__ import annotations

import socket
import sys

import uvicorn
from fastapi import FastAPI
from sqlalchemy import Column, MetaData, String, Table, create_engine, insert, make_url, select
from sqlalchemy.ext.asyncio import create_async_engine

from msk_auth.stores.sqlalchemy import prepare_sqlite

_USERS = Table(
    "bare_users",
    MetaData(),
    Column("id", String(32), primary_key=True),
    Column("username", String(64), nullable=False),
)
_ROW = {"id": "usr_1", "username": "ann"}


def bare_application(url: str) -> FastAPI:
    """The application.

    Args:
        url: Of an empty database, `sqlite:///…` or `postgresql+psycopg://…`.
    """
    blocking = create_engine(url)
    with blocking.begin() as connection:
        _USERS.create(connection)
        connection.execute(insert(_USERS).values(_ROW))
    blocking.dispose()
    engine = create_async_engine(make_url(url.replace("sqlite:", "sqlite+aiosqlite:", 1)))
    if engine.dialect.name == "sqlite":
        prepare_sqlite(engine)
    one = select(_USERS).where(_USERS.c.id == _ROW["id"])
    app = FastAPI()

    @app.get("/nothing")
    async def nothing() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/read")
    async def read() -> dict[str, str]:
        async with engine.connect() as connection:
            row = (await connection.execute(one)).one()
        return {"id": row.id, "username": row.username}

    return app


def main() -> None:
    """Serve it until SIGTERM; the database is named on the command line, the port is printed."""
    listening = socket.create_server(("127.0.0.1", 0), backlog=1024)
    app = bare_application(sys.argv[1])
    print(listening.getsockname()[1], flush=True)
    config = uvicorn.Config(
        app, http="httptools", loop="uvloop", log_level="critical", access_log=False
    )
    uvicorn.Server(config).run([listening])


if __name__ == "__main__":
    main()
