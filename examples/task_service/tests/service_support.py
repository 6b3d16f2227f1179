"""A whole service in a test: who talks to it, and how."""

from __future__ import annotations

import asyncio
import copy
import functools
import json
import logging
import math
import os
import re
import secrets
import shutil
import signal
import socket
import ssl
import sys
import time
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import urlencode

import httpx2
import pytest
from argon2.profiles import CHEAPEST
from examples.task_service.tests import sqlite_connections
from examples.task_service.tests.waiting import eventually
from fastapi import FastAPI
from sqlalchemy import URL
from sqlalchemy.ext.asyncio import AsyncEngine

from msk_auth import SystemClock
from msk_auth.errors import Problem
from task_service import app as app_module
from task_service import provider_login
from task_service import server as server_module
from task_service import worker as worker_module
from task_service.app import create_app
from task_service.db import engine as engine_module
from task_service.db.migrate import migrate
from task_service.handlers import registry as registry_module
from task_service.housekeeping import keep_house
from task_service.server import Server, bind
from task_service.services import Services
from task_service.settings import Settings

ADMIN_PASSWORD = "a quiet river bends"
USER_PASSWORD = "seven copper lanterns"
BASE_URL = "http://127.0.0.1:8000"

# A whole key and a whole token; a mask or an id may stand anywhere.
_SECRETS = re.compile(
    r"msk_[0-9A-Za-z]{12}_[0-9A-Za-z]{38}"
    r"|eyJ[0-9A-Za-z_-]+\.[0-9A-Za-z_-]+\.[0-9A-Za-z_-]+"
    rf"|{ADMIN_PASSWORD}|{USER_PASSWORD}"
)


def refused_with(*codes: str) -> pytest.RaisesExc[Problem]:
    """Expects a problem with one of these codes in the block: `with refused_with("key_revoked"):`."""
    return pytest.RaisesExc(Problem, check=lambda problem: problem.code in codes)


class ShiftedClock(SystemClock):
    """The machine's clock, plus the time of :meth:`advance`."""

    def __init__(self) -> None:
        self._shift = timedelta(0)

    def now(self) -> datetime:
        return super().now() + self._shift

    def monotonic(self) -> float:
        return super().monotonic() + self._shift.total_seconds()

    def advance(self, **by: float) -> None:
        self._shift += timedelta(**by)


@dataclass
class Caller:
    """A client with one credential, or none."""

    http: httpx2.AsyncClient

    async def request(
        self,
        method: str,
        path: str,
        json: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        content: bytes | None = None,
    ) -> httpx2.Response:
        more: dict[str, Any] = {} if json is None else {"json": json}
        if content is not None:
            more["content"] = content
        return await self.http.request(method, path, headers=dict(headers or {}), **more)

    async def get(self, path: str, **more: Any) -> httpx2.Response:
        return await self.request("GET", path, **more)

    async def post(self, path: str, json: Any = None, **more: Any) -> httpx2.Response:
        return await self.request("POST", path, json, **more)

    async def patch(self, path: str, json: Any = None, **more: Any) -> httpx2.Response:
        return await self.request("PATCH", path, json, **more)

    async def delete(self, path: str, **more: Any) -> httpx2.Response:
        return await self.request("DELETE", path, **more)

    @property
    def token(self) -> str:
        """The credential."""
        return self.http.headers["authorization"].removeprefix("Bearer ")

    async def list_all(self, path: str, **query: str) -> list[dict[str, Any]]:
        """Every item of a listing, in pages of two."""
        items: list[dict[str, Any]] = []
        while True:
            page = expect(await self.get(f"{path}?{urlencode({'limit': 2, **query})}"), 200)
            assert len(page["items"]) <= 2
            items += page["items"]
            if page["next_cursor"] is None:
                return items
            query["cursor"] = page["next_cursor"]

    async def me(self) -> dict[str, Any]:
        """Who requests act for: the user, their permissions, and the credential."""
        return expect(await self.get("/api/auth/me"), 200)

    async def new_key(self, **body: Any) -> dict[str, Any]:
        """A new API key of this person, as it is answered once."""
        return expect(await self.post("/api/keys", {"name": "a key", **body}), 201)

    async def new_task(self, **body: Any) -> dict[str, Any]:
        """A new task of this user that prints hello."""
        task = {"name": "hello", "handler": "command", "params": {"argv": ["echo", "hello"]}}
        return expect(await self.post("/api/tasks", task | body), 201)

    async def wait_for_run(self, run_id: str, state: str | None = None) -> dict[str, Any]:
        """The run, once it is over, or in this state."""
        async with asyncio.timeout(60):
            while True:
                run = expect(await self.get(f"/api/runs/{run_id}"), 200)
                if run["state"] == state or (state is None and run["finished_at"] is not None):
                    return run
                await asyncio.sleep(0.05)


_OPERATIONS: dict[tuple[str, str], dict[str, Any]] = {}
"""Each operation of the OpenAPI document, by its method and path."""


async def check_documented(app: FastAPI, response: httpx2.Response) -> None:
    """Fail if the OpenAPI document does not have this answer of one of its operations."""
    if not _OPERATIONS:
        _OPERATIONS.update(
            ((method.upper(), path), operation)
            for path, item in app.openapi()["paths"].items()
            for method, operation in item.items()
        )
    request = response.request
    for (method, path), operation in _OPERATIONS.items():
        pattern = re.sub(r"\{\w+\}", "[^/]+", path)
        if method == request.method and re.fullmatch(pattern, request.url.path):
            status = str(response.status_code)
            assert status in operation["responses"], (method, path, status)
            media_type = response.headers.get("content-type", "").partition(";")[0]
            content = operation["responses"][status].get("content")
            assert content is None or media_type in content, (method, path, status, media_type)
            return


@dataclass
class Service:
    """A service in this process, without a network."""

    app: FastAPI
    clock: ShiftedClock
    services: Services
    callers: list[httpx2.AsyncClient] = field(default_factory=list)
    # Of those who are logged in from the start, by username.
    tokens: dict[str, str] = field(default_factory=dict)

    def caller(self, credential: str | None = None, **headers: str) -> Caller:
        """A client with this credential."""
        if credential is not None:
            headers["Authorization"] = f"Bearer {credential}"
        http = httpx2.AsyncClient(
            transport=httpx2.ASGITransport(self.app),
            base_url=BASE_URL,
            headers=headers,
            event_hooks={"response": [functools.partial(check_documented, self.app)]},
        )
        self.callers.append(http)
        return Caller(http)

    async def log_in(self, username: str, password: str) -> Caller:
        """A client with a fresh login."""
        body = {"username": username, "password": password}
        answered = expect(await self.caller().post("/api/auth/login", body), 200)
        return self.caller(answered["access_token"])

    async def person(self, username: str, password: str) -> Caller:
        """A client with the login from the start, or with a fresh one."""
        if username in self.tokens:
            return self.caller(self.tokens[username])
        return await self.log_in(username, password)

    async def key_for(self, person: Caller, **body: Any) -> Caller:
        """A program with a new key of this person."""
        return self.caller((await person.new_key(**body))["key"])


def expect(response: httpx2.Response, status: int) -> Any:
    """The body, if the answer has this status."""
    assert response.status_code == status, (response.status_code, response.text)
    return response.json() if response.content else None


def problem(response: httpx2.Response) -> tuple[int, str]:
    """Status and code of a problem document, whose form is checked (RFC 9457)."""
    assert response.headers["content-type"] == "application/problem+json"
    document = response.json()
    assert document["status"] == response.status_code
    assert document["type"].endswith(f"#{document['code']}")
    assert document["title"]
    assert document["detail"]
    return response.status_code, document["code"]


def challenge(response: httpx2.Response) -> str | None:
    return response.headers.get("www-authenticate")


def wrong_fields(response: httpx2.Response) -> set[str]:
    """The fields that a 422 names."""
    assert problem(response) == (422, "input_invalid")
    return {error["field"] for error in response.json()["errors"]}


def run_elsewhere(work: Coroutine[Any, Any, None]) -> None:
    """Run this on a loop of its own: the thread's may be taken by a browser that other tests left open."""
    with ThreadPoolExecutor(1) as elsewhere:
        elsewhere.submit(asyncio.run, work).result()


async def make_template(folder: Path, **settings: Any) -> None:
    """A data folder with an administrator `ada` and a user `ulf`, to be copied for each test."""
    services = Services(Settings(data_dir=folder, **settings), password_hashing=CHEAPEST)
    await migrate(services.db)
    await services.users.create("ada", ["admin"], password=ADMIN_PASSWORD)
    await services.users.create("ulf", ["user"], password=USER_PASSWORD)
    await services.close()


@dataclass(frozen=True)
class Logins:
    """A data folder with open sessions, and the token of each person."""

    folder: Path
    tokens: dict[str, str]
    made_at: float

    @property
    def age(self) -> float:
        """In seconds."""
        return max(0.0, time.monotonic() - self.made_at)


class LoggedIn:
    """Copies of a template whose people have logged in at a service: that takes longer than most tests.

    The clock of a service that begins with one begins when the people had just logged in. One that is older than five minutes is
    made again.
    """

    def __init__(self, template: Path) -> None:
        self._template = template
        self._made: dict[tuple[tuple[str, str], ...], Logins] = {}

    def place(self) -> Path:
        """Where the data of one service after the other is. It is not there yet."""
        folder = self._template.with_name("of one test")
        shutil.rmtree(folder, ignore_errors=True)
        return folder

    async def template(self, *people: tuple[str, str]) -> Logins:
        """A template in which these people have logged in, in this order.

        Args:
            people: Username and password of each.
        """
        found = self._made.get(people)
        if found is None or found.age > 300:
            found = self._made[people] = await self._make(people)
        return found

    async def _make(self, people: Sequence[tuple[str, str]]) -> Logins:
        if not people:
            return Logins(self._template, {}, math.inf)
        place, tokens = self.place(), {}
        async with running_service(self._template, place, shared_routes=True) as service:
            for username, password in people:
                caller = await service.log_in(username, password)
                tokens[username] = caller.token
        folder = self._template.with_name("with " + " and ".join(tokens))
        shutil.rmtree(folder, ignore_errors=True)
        return Logins(place.rename(folder), tokens, time.monotonic())


@asynccontextmanager
async def running_service(
    template: Path,
    folder: Path,
    *,
    shared_routes: bool = False,
    housekeeping: bool = True,
    behind: float = 0,
    **settings: Any,
) -> AsyncIterator[Service]:
    """A service on a copy of the template, in this process.

    Args:
        template: The data folder that is copied.
        folder: Where its copy goes.
        shared_routes: Whether it answers with the routes of :class:`SharedRoutes`, which one service at a time can.
        housekeeping: Whether it purges and announces when it starts. A fresh service has nothing to purge, and looking for it takes
            a quarter of a short test.
        behind: By how many seconds its clock is behind the machine's.
        settings: Those that are not as by default.
    """
    shutil.copytree(template, folder)
    clock = ShiftedClock()
    clock.advance(seconds=-behind)
    engine_of = _kept_sqlite_engine if shared_routes else _sqlite_engine
    kept = mock.patch.multiple(engine_module, _sqlite_engine=engine_of)
    known = mock.patch.object(registry_module, "entry_points", _entry_points)
    trusted = mock.patch.object(provider_login, "create_ssl_context", _create_ssl_context)
    with kept, known, trusted:
        create = _SHARED_ROUTES.create_app if shared_routes else create_app
        chosen = Settings(data_dir=folder, **{"commands": "listed", **settings})
        app = create(chosen, clock=clock, password_hashing=CHEAPEST)
    service = Service(app, clock, app.state.services)
    # A run that goes on for ever is given back to the queue at once.
    hurried = mock.patch.object(worker_module, "RUN_GRACE", timedelta(seconds=0.1))
    kept_house = keep_house if housekeeping else _keep_no_house
    house = mock.patch.object(app_module, "keep_house", kept_house)
    with no_secret_in_logs(), hurried, house:
        async with app.router.lifespan_context(app):
            yield service
        for http in service.callers:
            await http.aclose()
    await sqlite_connections.join(folder)
    # What was opened after the service had closed its engine is stopped now. The next service in this place has the same
    # engine, and must not find it in the pool.
    await service.services.db.engine.dispose()


async def _keep_no_house(_services: Services) -> None:
    pass


class SharedRoutes:
    """The application that :func:`create_app` makes, made once for settings, with fresh services for each test.

    FastAPI takes longer to read the signatures of the routes than most tests take. The routes keep nothing: they were
    given stand-ins, each of which is whatever part the services of the running test have in its place.
    """

    def __init__(self) -> None:
        self._apps: dict[str, FastAPI] = {}
        self._services: Services | None = None

    def create_app(self, settings: Settings, **options: Any) -> FastAPI:
        """As the real one. Of the settings that differ between tests no route may use the data folder or the issuer."""
        services = self._services = Services(settings, **options)
        used = settings.model_dump_json(exclude={"data_dir", "oidc_issuer"})
        if used not in self._apps:
            stand_in = copy.copy(services)
            for name, part in vars(services).items():
                if part is not None and name not in {"settings", "fingerprints"}:
                    setattr(stand_in, name, _StandIn(self, name))
            with mock.patch.object(app_module, "Services", return_value=stand_in):
                self._apps[used] = create_app(settings, **options)
        app = self._apps[used]
        app.state.services = services
        return app

    def part(self, name: str) -> Any:
        return getattr(self._services, name)


class _StandIn:
    """Has the class and the attributes that a part of the running test's services has."""

    def __init__(self, routes: SharedRoutes, name: str) -> None:
        self._routes = routes
        self._name = name

    @property
    def __class__(self) -> type:  # what `isinstance` asks
        return type(self._routes.part(self._name))

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self._routes.part(self._name), attribute)

    async def __aenter__(self) -> Any:
        return await self._routes.part(self._name).__aenter__()

    async def __aexit__(self, *exc_info: Any) -> None:
        await self._routes.part(self._name).__aexit__(*exc_info)


_SHARED_ROUTES = SharedRoutes()
# Which handlers are installed does not change.
_entry_points = functools.cache(registry_module.entry_points)
_new_ssl_context = provider_login.create_ssl_context
_new_sqlite_engine = engine_module._sqlite_engine


def _create_ssl_context() -> ssl.SSLContext:
    return _ssl_context_of(os.environ.get("SSL_CERT_FILE"))


@functools.cache
def _ssl_context_of(_file: str | None) -> ssl.SSLContext:
    """The roots of the machine do not change either."""
    return _new_ssl_context()


def _sqlite_engine(url: URL, lock_seconds: float) -> AsyncEngine:
    engine = _new_sqlite_engine(url, lock_seconds)
    sqlite_connections.follow(engine)
    return engine


_kept_sqlite_engine = functools.cache(_sqlite_engine)
"""One engine for all services that answer with shared routes, one after another in one place.

Each has fresh data and fresh connections. What the engine keeps is the statements it compiled: a log-in takes a third of the time
with them. It is kept for good, since what the routes were given by the first service, such as a method, goes on using it.
"""


@asynccontextmanager
async def on_a_port(service: Service, listener: socket.socket | None = None) -> AsyncIterator[str]:
    """The same service behind its real server; yields the origin. For what goes on while it is answered.

    Args:
        service: The service.
        listener: Where to listen, for a service whose settings have its address; by default on a free port.
    """
    at_once = mock.patch.object(server_module, "_REQUEST_IN_TRANSIT_SECONDS", 0.0)
    listener = bind("127.0.0.1", 0) if listener is None else listener
    with listener, at_once:
        server = Server(
            service.app,
            host="127.0.0.1",
            grace_seconds=5,
            on_stopping=service.services.stopping.set,
        )
        serving = asyncio.create_task(server._serve([listener]))
        await eventually(lambda: server.started)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await serving


@asynccontextmanager
async def running_worker(
    folder: Path, database_url: str, *words: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A `task-service worker` in a process of its own, once it executes runs. It must stop in order.

    Args:
        folder: Its data folder, which it does not use.
        database_url: The database of the service that it belongs to.
        words: Its options.
    """
    address = f"\0{secrets.token_hex()}"
    settings = {
        "TASK_SERVICE_DATA_DIR": str(folder),
        "TASK_SERVICE_DATABASE_URL": database_url,
        "TASK_SERVICE_COMMANDS": "listed",
        "NOTIFY_SOCKET": address.replace("\0", "@"),
    }
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifications:
        notifications.bind(address)
        notifications.setblocking(False)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "task_service", "worker", *words),
            env={**os.environ, **settings},
        )
        # A signal before that would end it at once, and a busy machine takes long to start it.
        ready = asyncio.ensure_future(
            asyncio.get_running_loop().sock_recv(notifications, len(b"READY=1"))
        )
        ended = asyncio.ensure_future(process.wait())
        await asyncio.wait({ready, ended}, return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            # Otherwise the event loop goes on watching a closed socket, and fails when another one gets its number.
            ready.cancel()
            await asyncio.wait({ready})
        assert not ended.done(), f"the worker ended with {process.returncode}"
        assert await ready == b"READY=1"
    try:
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(ended, 120) == 0


@contextmanager
def no_secret_in_logs() -> Iterator[None]:
    """Fails if anything that is logged meanwhile, before any filter, holds a key, a token or a password."""
    root, collector = logging.getLogger(), _Collector()
    level = root.level
    root.addHandler(collector)
    root.setLevel(logging.INFO)
    try:
        yield
    finally:
        root.removeHandler(collector)
        root.setLevel(level)
    assert not [line for line in collector.lines if _SECRETS.search(line)]


class _Collector(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.startswith("httpx2"):
            return  # the tests' own client
        self.lines.append(
            f"{self.format(record)} {json.dumps(record.__dict__, default=str, sort_keys=True)}"
        )


def secrets_in(text: str) -> list[str]:
    """The keys, tokens and passwords in a text."""
    return _SECRETS.findall(text)
