"""The same application in every framework, and a client that speaks raw ASGI to it.

To add an adapter: build this application with it, in a module beside this one, and add its name to
`ADAPTERS`. Those whose framework is installed take part.

::

    GET  /public          anybody
    GET  /me              authenticated
    GET  /tasks           tasks:read
    POST /tasks/run       tasks:run
    GET  /both            tasks:read and tasks:run, as two guards
    *    /admin/config    interactive, admin:config (GET and PATCH)
    POST /fresh           interactive, logged in within the last 15 minutes
    GET  /missing         authenticated; raises a problem of the application's own
    GET  /busy            anybody; raises TooManyAttempts
    GET  /boom            anybody; raises what nobody expects
    WS   /ws              authenticated; says who it is
    WS   /ws/admin        interactive
         /api/keys        the key routes
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from tests.integrations.world import Surprise


def _application(name: str) -> Callable[[Any], Any]:
    module = import_module(f"tests.integrations.{name}_app")
    made: Callable[[Any], Any] = getattr(module, f"{name}_app")
    return made


ADAPTERS = {
    name: _application(name)
    for name in ("fastapi", "starlette", "litestar", "flask")
    if find_spec(name) is not None
}
STARLETTE_BASED = [name for name in ("fastapi", "starlette") if name in ADAPTERS]
WITH_WEBSOCKETS = [name for name in ADAPTERS if name != "flask"]


@dataclass(frozen=True)
class Reply:
    """What came back."""

    status: int
    raw_headers: tuple[tuple[bytes, bytes], ...]
    body: bytes

    def header(self, name: str) -> str | None:
        """The header's value; None if it is missing. Twice is an error."""
        values = [value.decode() for key, value in self.raw_headers if key == name.encode()]
        assert len(values) <= 1, f"{name} was sent {len(values)} times"
        return values[0] if values else None

    @property
    def json(self) -> Any:
        return json.loads(self.body)


async def send(
    app: Any,
    method: str,
    target: bytes,
    headers: list[tuple[bytes, bytes]] | None = None,
    body: bytes = b"",
    *,
    chunks: list[bytes] | None = None,
    **more: Any,
) -> Reply:
    """One request with exactly these bytes, as a server would hand it on.

    An unexpected exception in the application is swallowed after the answer, as a server does.
    """
    path, _, query = target.partition(b"?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path.decode("latin-1"),
        "raw_path": path,
        "query_string": query,
        "root_path": "",
        "headers": [(b"host", b"tasks.test"), *(headers or [])],
        "client": ("192.0.2.1", 50000),
        "server": ("192.0.2.2", 80),
        "state": {},
        **more,
    }
    pending = [body] if chunks is None else list(chunks)
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if not pending:
            return {"type": "http.disconnect"}
        chunk = pending.pop(0)
        return {"type": "http.request", "body": chunk, "more_body": bool(pending)}

    async def receive_answer(message: dict[str, Any]) -> None:
        sent.append(message)

    with suppress(Surprise):
        await app(scope, receive, receive_answer)
    start, *rest = sent
    content = b"".join(message.get("body", b"") for message in rest)
    return Reply(start["status"], tuple(start["headers"]), content)
