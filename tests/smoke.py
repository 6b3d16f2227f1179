"""What a clean environment has to be able to do with one extra: `python tests/smoke.py EXTRA`. Needs no test tools."""

from __future__ import annotations

import asyncio
import importlib
import json
import runpy
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from msk_auth import AsyncAuthenticator, Authenticator, Owner, Principal, local_principal
from msk_auth.stores.memory import AsyncMemoryKeyStore, MemoryKeyStore

SNIPPETS = Path(__file__).parents[1] / "docs" / "snippets"
ANN = Owner("ann", frozenset({"tasks:read"}), "Ann")
BY_ANN = local_principal(ANN, at=datetime.now(UTC), interactive=True)
OPTIONAL = {
    "argon2": ["msk_auth.argon2"],
    "fastapi": ["msk_auth.integrations.fastapi"],
    "flask": ["msk_auth.integrations.flask"],
    "litestar": ["msk_auth.integrations.litestar"],
    "mcp": ["msk_auth.integrations.mcp"],
    "sqlalchemy": ["msk_auth.stores.sqlalchemy", "msk_auth.stores.sqlalchemy.migrations"],
    "starlette": ["msk_auth.integrations.starlette"],
}


async def find_owner(_: str) -> Owner[str]:
    return ANN


def check_keys(authenticator: Authenticator[str]) -> None:
    created = authenticator.create_key(BY_ANN, name="ci")
    principal: Principal[str] = authenticator.authenticate([f"Bearer {created.value.reveal()}"])
    assert principal.user == "Ann"


def check_none() -> None:
    importlib.import_module("msk_auth.cli")
    check_keys(Authenticator(MemoryKeyStore(), find_owner=lambda _: ANN))


def check_argon2() -> None:
    importlib.import_module("msk_auth.argon2")


def check_sqlalchemy() -> None:
    from sqlalchemy import create_engine

    from msk_auth.stores.sqlalchemy import SQLAlchemyKeyStore
    from msk_auth.stores.sqlalchemy.migrations import upgrade

    with tempfile.TemporaryDirectory() as folder:
        engine = create_engine(f"sqlite:///{Path(folder) / 'keys.sqlite3'}")
        upgrade(engine)
        check_keys(Authenticator(SQLAlchemyKeyStore(engine), find_owner=lambda _: ANN))
        engine.dispose()


async def ask(app: Any, key: str | None) -> int:
    """The status that an ASGI application answers `GET /tasks` with."""
    headers = [] if key is None else [(b"authorization", b"Bearer " + key.encode())]
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET",
        "scheme": "http", "path": "/tasks", "raw_path": b"/tasks", "query_string": b"", "root_path": "",
        "headers": headers, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2), "state": {},
    }  # fmt: skip
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await app(scope, receive, send)
    status: int = sent[0]["status"]
    body = b"".join(message.get("body", b"") for message in sent[1:])
    assert json.loads(body), body
    return status


async def check_asgi(app: Any, authenticator: AsyncAuthenticator[str]) -> None:
    created = await authenticator.create_key(BY_ANN, name="ci")
    assert await ask(app, None) == 401
    assert await ask(app, created.value.reveal()) == 200
    await authenticator.revoke_presented_key(created.value.reveal())
    assert await ask(app, created.value.reveal()) == 401


def snippet(name: str) -> tuple[Any, Any]:
    """The smallest application of the documentation, and its adapter, which can make the key routes as well."""
    names = runpy.run_path(str(SNIPPETS / f"{name}_minimal.py"))
    app, auth = names["app"], names["auth"]
    assert auth.key_routes()
    return app, auth


def check_fastapi() -> None:
    app, auth = snippet("fastapi")
    assert "/tasks" in app.openapi()["paths"]
    asyncio.run(check_asgi(app, auth.authenticator))


def check_starlette() -> None:
    app, auth = snippet("starlette")
    asyncio.run(check_asgi(app, auth.authenticator))


def check_litestar() -> None:
    app, auth = snippet("litestar")
    asyncio.run(check_asgi(app, auth.authenticator))


def check_mcp() -> None:
    from msk_auth.integrations.mcp import McpAuth

    importlib.import_module("mcp.server")

    async def server(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"[7]"})

    authenticator = AsyncAuthenticator(AsyncMemoryKeyStore(), find_owner=find_owner)
    auth = McpAuth(authenticator, resource="http://127.0.0.1/mcp")
    asyncio.run(check_asgi(auth.protect(server), authenticator))


def check_flask() -> None:
    app, auth = snippet("flask")
    created = auth.authenticator.create_key(BY_ANN, name="ci")
    client = app.test_client()
    assert client.get("/tasks").status_code == 401
    headers = {"Authorization": f"Bearer {created.value.reveal()}"}
    assert client.get("/tasks", headers=headers).status_code == 200


def main() -> None:
    extra = sys.argv[1]
    wanted = set(OPTIONAL) if extra == "all" else {extra} - {"none"}
    assert wanted <= set(OPTIONAL), extra
    check_none()
    for name in sorted(wanted):
        globals()[f"check_{name}"]()
    if extra == "none":
        for modules in OPTIONAL.values():
            for module in modules:
                try:
                    importlib.import_module(module)
                except ImportError:
                    continue
                raise AssertionError(f"{module} needs nothing of its extra")
    print(f"{extra}: works")


if __name__ == "__main__":
    main()
