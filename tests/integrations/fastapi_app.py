"""The application of `adapters.py`, in FastAPI."""

# No `from __future__ import annotations`: FastAPI reads the annotations of local names.

from typing import Annotated, Any

from fastapi import FastAPI, Request, WebSocket
from fastapi.params import Depends
from fastapi.responses import StreamingResponse
from tests.contract.adapter import (
    MAX_AGE,
    Surprise,
    TaskNotFound,
    User,
    describe,
    lines,
    outstay,
    revoke,
    talk,
)

from msk_auth import AsyncAuthenticator, Authenticator, Policy, Principal
from msk_auth.errors import TooManyAttempts
from msk_auth.integrations.fastapi import FastAPIAuth


def fastapi_app(
    authenticator: AsyncAuthenticator[User] | Authenticator[User],
    *,
    late: bool = False,
    **options: Any,
) -> FastAPI:
    auth = FastAPIAuth[User](None if late else authenticator, **options)
    app = FastAPI()
    auth.install(app, authenticator if late else None, errors="all")
    app.include_router(auth.key_routes(prefix="/api/keys"))
    some = auth.key_routes(prefix="/api/own-keys", operations=["create_key", "revoke_key"])
    app.include_router(some)
    app.include_router(auth.admin_key_routes("admin:config", max_age=MAX_AGE))
    Current = Annotated[Principal[User], auth.principal]  # noqa: N806 - it is a type

    async def load_user(owner_id: Annotated[str, auth.owner_id]) -> str:
        return owner_id

    def guard(permission: str) -> Depends:
        # One that gives the application's user guards as one that does not.
        return auth.user(permission, load_user=load_user) if late else auth.require(permission)

    @app.get("/public")
    async def public() -> dict[str, Any]:
        return {"public": True}

    async def describe_caller(principal: Current) -> dict[str, Any]:
        return describe(principal)

    # The principal as a parameter, beside the guards of the route.
    for method, path, guards in (
        ("GET", "/whoami", [auth.any_credential]),
        ("GET", "/api/own-keys", [auth.any_credential]),
        ("GET", "/beside", [auth.principal, guard("tasks:read")]),
        ("GET", "/both", [guard("tasks:read"), guard("tasks:run")]),
        ("POST", "/fresh", [auth.require_interactive(max_age=MAX_AGE)]),
        ("GET", "/login", [auth.require_login()]),
        ("GET", "/key", [auth.require_key()]),
        ("POST", "/hook", [auth.require_key("tasks:run")]),
    ):
        app.add_api_route(path, describe_caller, methods=[method], dependencies=guards)

    @app.get("/me")
    async def me(principal: Current) -> dict[str, Any]:
        return describe(principal)

    @app.get("/tasks")
    async def tasks(
        principal: Annotated[Principal[User], auth.require("tasks:read")],
    ) -> dict[str, Any]:
        return describe(principal)

    @app.post("/tasks/run", dependencies=[guard("tasks:run")])
    def run(principal: Current) -> dict[str, Any]:
        return describe(principal)

    @app.get("/about/{task_id}")
    async def about(
        principal: Annotated[
            Principal[User], auth.require("tasks:read", resource="task:{task_id}")
        ],
    ) -> dict[str, Any]:
        return describe(principal)

    administrators = [auth.require_interactive("admin:config")]

    @app.get("/admin/config", dependencies=administrators)
    @app.patch("/admin/config", dependencies=administrators)
    async def config() -> dict[str, Any]:
        return {"config": True}

    @app.get("/missing")
    async def missing(principal: Current) -> None:
        raise TaskNotFound

    @app.get("/busy")
    async def busy() -> None:
        raise TooManyAttempts(30)

    @app.get("/boom")
    async def boom() -> None:
        raise Surprise("the password is swordfish")

    @app.websocket("/ws")
    async def ws(websocket: WebSocket, principal: Current) -> None:
        await websocket.accept()
        await websocket.send_json(describe(principal))
        await websocket.close()

    @app.websocket("/ws/admin", dependencies=[auth.require_interactive()])
    async def ws_admin(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.close()

    @app.websocket("/ws/missing")
    async def ws_missing(principal: Current) -> None:
        raise TaskNotFound

    @app.websocket("/ws/talk")
    async def ws_talk(websocket: WebSocket, principal: Current) -> None:
        await websocket.accept()
        while True:
            await websocket.send_text(talk(await websocket.receive_text(), principal))

    @app.websocket("/ws/watch")
    async def ws_watch(websocket: WebSocket, principal: Current) -> None:
        await websocket.accept()
        async with auth.watch(principal):
            await outstay(auth.authenticator, principal)

    @app.websocket("/ws/again")
    async def ws_again(websocket: WebSocket, principal: Current) -> None:
        await websocket.accept()
        await revoke(auth.authenticator, principal)
        await auth.verify_again(websocket)

    @app.websocket("/ws/admit")
    async def ws_admit(websocket: WebSocket, principal: Current) -> None:
        await websocket.accept()
        await revoke(auth.authenticator, principal)
        await auth.admit(websocket, Policy())

    @app.get("/follow")
    async def follow(principal: Current) -> StreamingResponse:
        return StreamingResponse(auth.watch(principal).stream(lines(auth.authenticator, principal)))

    @app.get("/again")
    async def again(request: Request, principal: Current) -> None:
        await revoke(auth.authenticator, principal)
        await auth.verify_again(request)

    return app
