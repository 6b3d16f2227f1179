"""A Flask application with its adapter, for tests that build their own views."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flask import Flask
from flask.testing import FlaskClient
from tests.contract.adapter import World
from werkzeug.test import TestResponse

from msk_auth.integrations.flask import FlaskAuth


class Site:
    """An application with its adapter, and a client for it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.app = Flask(__name__, static_folder=None)
        self.auth = FlaskAuth(world.blocking, self.app, errors="all")
        self.called: list[str] = []

    def view(self, name: str = "view") -> Callable[..., str]:
        """A view that remembers being called."""

        def view(**_: Any) -> str:
            self.called.append(name)
            return name

        view.__name__ = name
        return view

    def client(self) -> FlaskClient:
        return self.app.test_client()

    def ask(
        self, method: str, path: str, credential: str | None = None, **headers: str
    ) -> TestResponse:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if credential is not None:
            sent["Authorization"] = f"Bearer {self.world.names[credential]}"
        return self.client().open(path, method=method, headers=sent, buffered=True)

    def code(self, method: str, path: str, credential: str | None = None, **headers: str) -> str:
        """The code of the problem in the answer; the status where there is none."""
        reply = self.ask(method, path, credential, **headers)
        problem = reply.get_json(silent=True)
        code = problem.get("code") if isinstance(problem, dict) else None
        return str(reply.status_code) if code is None else str(code)
