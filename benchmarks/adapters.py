"""What guarding a route costs, per request: nothing, a hand-written dictionary, and this library.

The three are measured in turns within one run, in process and without a network, so that their
ratios hold on any machine::

    python -m benchmarks.adapters
"""

# No `from __future__ import annotations`: FastAPI reads the annotations of local names.

import asyncio
import gc
import hashlib
import statistics
import time
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException
from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from msk_auth import AsyncAuthenticator, Owner, Principal, SystemClock, local_principal
from msk_auth.integrations.fastapi import FastAPIAuth
from msk_auth.integrations.starlette import StarletteAuth
from msk_auth.stores.memory import AsyncMemoryKeyStore

ROUNDS = 40
REQUESTS = 250
WAYS = ("none", "dictionary", "msk_auth")

OWNER = Owner("ada", frozenset({"tasks:read"}), "ada")


async def find_owner(_owner_id: str) -> Owner[str]:
    return OWNER


class Dictionary:
    """What people write by hand: the digest of the header's value in a dictionary."""

    def __init__(self, key: str) -> None:
        self._users = {hashlib.sha256(key.encode()).digest(): "ada"}

    def find(self, connection: HTTPConnection) -> str:
        scheme, _, key = connection.headers.get("authorization", "").partition(" ")
        user = self._users.get(hashlib.sha256(key.encode()).digest())
        if scheme.lower() != "bearer" or user is None:
            raise HTTPException(401)
        return user


def fastapi_app(way: str, authenticator: AsyncAuthenticator[str], key: str) -> FastAPI:
    """An application with one route, guarded in this way."""
    auth = FastAPIAuth(authenticator)
    app = auth.install(FastAPI(openapi_url=None))
    by_hand = Dictionary(key)

    async def user(connection: HTTPConnection) -> str:
        return by_hand.find(connection)

    async def none() -> Response:
        return JSONResponse("ada")

    async def dictionary(user: Annotated[str, Depends(user)]) -> Response:
        return JSONResponse(user)

    async def msk_auth(principal: Annotated[Principal[str], auth.principal]) -> Response:
        return JSONResponse(principal.user)

    app.get("/")({"none": none, "dictionary": dictionary, "msk_auth": msk_auth}[way])
    return app


def starlette_app(way: str, authenticator: AsyncAuthenticator[str], key: str) -> Starlette:
    """An application with one route, guarded in this way."""
    auth = StarletteAuth(authenticator)
    by_hand = Dictionary(key)

    async def none(request: Request) -> Response:
        return JSONResponse("ada")

    async def dictionary(request: Request) -> Response:
        return JSONResponse(by_hand.find(request))

    @auth.require()
    async def msk_auth(request: Request) -> Response:
        return JSONResponse(auth.principal(request).user)

    endpoint = {"none": none, "dictionary": dictionary, "msk_auth": msk_auth}[way]
    return auth.install(Starlette(routes=[Route("/", endpoint)]))


async def request_many(app: Any, key: str) -> float:
    """The seconds of processor time that one request takes, on average."""

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    statuses: set[int] = set()

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            statuses.add(message["status"])

    headers = [(b"host", b"x"), (b"accept", b"*/*"), (b"authorization", b"Bearer " + key.encode())]
    began = time.thread_time()
    for _ in range(REQUESTS):
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "GET",
            "scheme": "http",
            "path": "/",
            "raw_path": b"/",
            "query_string": b"",
            "root_path": "",
            "headers": headers,
            "client": ("192.0.2.1", 1),
            "server": ("192.0.2.2", 80),
            "state": {},
        }
        await app(scope, receive, send)
    took = time.thread_time() - began
    assert statuses == {200}, statuses
    return took / REQUESTS


async def measure(build: Callable[[str, AsyncAuthenticator[str], str], Any]) -> dict[str, float]:
    """Microseconds of processor time per request for each way, the median of all rounds."""
    authenticator = AsyncAuthenticator(AsyncMemoryKeyStore(), find_owner=find_owner)
    created = await authenticator.create_key(
        local_principal(OWNER, at=SystemClock().now()), name="benchmark"
    )
    key = created.value.reveal()
    apps = {way: build(way, authenticator, key) for way in WAYS}
    rounds: dict[str, list[float]] = {way: [] for way in WAYS}
    gc.disable()
    for _ in range(ROUNDS):
        for way in WAYS:
            rounds[way].append(await request_many(apps[way], key))
        gc.collect()
    gc.enable()
    return {way: statistics.median(times) * 1e6 for way, times in rounds.items()}


def main() -> None:
    """Print a table: microseconds per request, and how much the guard adds."""
    print(f"{'':10} {'':12} {'µs/request':>10} {'added':>8} {'ratio':>7}")
    for name, build in (("FastAPI", fastapi_app), ("Starlette", starlette_app)):
        times = asyncio.run(measure(build))
        for way, microseconds in times.items():
            added = microseconds - times["none"]
            ratio = microseconds / times["none"]
            print(f"{name:10} {way:12} {microseconds:10.1f} {added:8.1f} {ratio:7.2f}")


if __name__ == "__main__":
    main()
