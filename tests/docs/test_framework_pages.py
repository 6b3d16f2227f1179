"""The pages of the four frameworks: the applications that they show work."""

from __future__ import annotations

import base64
import importlib.util
import json
import sys
from collections.abc import Callable, Generator
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import jwt
import pytest
from itsdangerous import TimestampSigner
from litestar.testing import TestClient as LitestarClient
from starlette.testclient import TestClient

from msk_auth.testing import key_headers

from .tutorial import blocks

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"
FRAMEWORKS = ["fastapi", "flask", "litestar", "starlette"]


@pytest.fixture
def load(tmp_path: Path) -> Generator[Callable[[str], ModuleType]]:
    """Runs source as a module of its own. Litestar finds the annotations of a handler by the name of its module."""
    loaded: list[str] = []

    def load(source: str) -> ModuleType:
        name = f"page_{len(loaded)}"
        path = tmp_path / f"{name}.py"
        path.write_text(source, "utf-8")
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        loaded.append(name)
        spec.loader.exec_module(module)
        return module

    yield load
    for name in loaded:
        del sys.modules[name]


def python(framework: str, count: int | None = None) -> str:
    """The first blocks of a page; all of them if there is no count."""
    found = (b.text for b in blocks(HOW_TO / f"{framework}.md") if b.language == "python")
    return "\n\n".join(islice(found, count))


# The applications.


def client_of(framework: str, app: Any) -> Any:
    """A client of the framework, which answers 500 where a request raised."""
    if framework == "flask":
        return app.test_client()
    if framework == "litestar":
        return LitestarClient(app, raise_server_exceptions=False)
    return TestClient(app, raise_server_exceptions=False)


def content(reply: Any) -> Any:
    return reply.json() if callable(reply.json) else reply.json


def key_of(framework: str, authenticator: Any, client: Any) -> dict[str, str]:
    if framework == "flask":
        return key_headers(authenticator, "ada")
    portal = client.blocking_portal if framework == "litestar" else client.portal
    return key_headers(authenticator, "ada", portal=portal)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_new_and_an_existing_application_take_keys(
    framework: str, load: Callable[[str], ModuleType]
) -> None:
    page = load(python(framework))
    # The first block gives its name to what the factory replaces later.
    new = load(python(framework, 1))
    in_its_form = "Send an API key or a login token in the header 'Authorization: Bearer …'."
    for app, auth, refused in (
        (new.app, new.auth, ("code", "credentials_missing")),
        (page.existing, page.existing_auth, ("error", in_its_form)),
    ):
        with client_of(framework, app) as client:
            reply = client.get("/tasks")
            assert reply.status_code == 401
            assert reply.headers["www-authenticate"] == 'Bearer realm="api"'
            assert content(reply)[refused[0]] == refused[1]
            key = key_of(framework, auth.authenticator, client)
            assert client.get("/tasks", headers=key).status_code == 200


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_an_existing_application_keeps_its_logins(
    framework: str, load: Callable[[str], ModuleType]
) -> None:
    page = load(python(framework, 2))
    with client_of(framework, page.existing) as client:
        headers = {}
        if framework == "flask":
            with client.session_transaction() as session:
                session["user_id"] = "ada"
        elif framework == "starlette":
            written = base64.b64encode(json.dumps({"user_id": "ada"}).encode())
            signed = TimestampSigner(page.SECRET.decode()).sign(written)
            client.cookies.set("session", signed.decode())
        elif framework == "litestar":
            headers = {"Authorization": f"Bearer {page.jwt_auth.create_token('ada')}"}
            assert client.get("/profile", headers=headers).text == "ada"
            key = key_of(framework, page.existing_auth.authenticator, client)
            assert client.get("/profile", headers=key).status_code == 401
        else:
            claims = {"sub": "ada", "exp": 4_000_000_000}
            headers = {"Authorization": f"Bearer {jwt.encode(claims, page.SECRET, 'HS256')}"}
        assert client.get("/tasks", headers=headers).status_code == 200
        reply = client.get("/tasks", headers={"Authorization": "Bearer of-something-else"})
        assert (reply.status_code, content(reply).keys()) == (401, {"error"})


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_what_is_open_is_guarded_and_watched(
    framework: str, load: Callable[[str], ModuleType]
) -> None:
    page = load(python(framework))
    authenticator = page.new_authenticator()
    if framework == "flask":
        app = page.create_app(authenticator)
        app.register_blueprint(page.streams)
        client = app.test_client()
        assert client.get("/ticks").status_code == 401
        reply = client.get("/ticks", headers=key_headers(authenticator, "ada"), buffered=False)
        assert next(iter(reply.response)).startswith(b"event: tick")
        reply.close()
        return
    handlers = [page.echo, page.ticks] if framework == "litestar" else []
    with client_of(framework, page.create_app(authenticator, *handlers)) as client:
        assert client.get("/ticks").status_code == 401
        key = key_of(framework, authenticator, client)
        with client.websocket_connect("/echo", headers=key) as websocket:
            websocket.send_text("hello")
            assert websocket.receive_text() == "hello"
