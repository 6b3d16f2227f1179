"""Programs and people that talk to a service which may fail them."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from typing import Any

from examples.task_service.tests.service_support import secrets_in

BOUND_SECONDS = 20.0
"""The longest wait for an answer, whatever happens to the database."""


class NoAnswer(Exception):
    """The connection was refused, or broke before the whole answer was there."""


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    text: str
    seconds: float

    @property
    def body(self) -> Any:
        return json.loads(self.text)

    @property
    def code(self) -> str:
        """The code of a problem document, whose form is checked (RFC 9457)."""
        assert self.headers["content-type"] == "application/problem+json", self
        document = self.body
        assert document["status"] == self.status
        assert document["type"].endswith(f"#{document['code']}")
        return str(document["code"])


class Client:
    """A client with one credential, or none. Each request has a connection of its own.

    Args:
        port: Of the service.
        credential: A key, or a login token.
    """

    def __init__(self, port: int, credential: str | None = None) -> None:
        self.port = port
        self._headers = {"Content-Type": "application/json", "Connection": "close"}
        if credential is not None:
            self._headers["Authorization"] = f"Bearer {credential}"

    def send(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Whatever is answered. What must never be in an answer is looked for in each.

        Raises:
            NoAnswer: There is none.
        """
        data = None if body is None else json.dumps(body)
        began = time.monotonic()
        with closing(HTTPConnection("127.0.0.1", self.port, timeout=60)) as connection:
            try:
                connection.request(method, path, data, {**self._headers, **(headers or {})})
                response = connection.getresponse()
                text = response.read().decode()
            except (OSError, HTTPException) as error:
                raise NoAnswer(f"{method} {path}: {error!r}") from error
        answer = Answer(
            response.status,
            {name.lower(): value for name, value in response.getheaders()},
            text,
            time.monotonic() - began,
        )
        assert answer.status != 500, answer
        assert "Traceback" not in text, answer
        assert answer.status < 300 or not secrets_in(text), answer
        assert answer.seconds < BOUND_SECONDS, answer
        return answer

    def get(self, path: str) -> Answer:
        return self.send("GET", path)

    def post(self, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Answer:
        return self.send("POST", path, body, headers)

    def must(self, method: str, path: str, body: Any = None, *, status: int = 200) -> Any:
        """The body of an answer that has this status."""
        answer = self.send(method, path, body)
        assert answer.status == status, answer
        return answer.body if answer.text else None


def check_is_outage(answer: Answer) -> None:
    """503 with the words and headers of the design's table, and never 200, 401 or "anonymous" (G5)."""
    assert (answer.status, answer.code) == (503, "store_unavailable"), answer
    assert 1 <= int(answer.headers["retry-after"]) <= 60
    assert answer.headers["cache-control"] == "no-store"
    assert "www-authenticate" not in answer.headers
