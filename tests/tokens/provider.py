"""A real HTTP server that publishes keys, and misbehaves in every way that a test asks for."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec, rsa
from tests.core.support import b64

DISCOVERY = "/.well-known/openid-configuration"


def public_jwk(key: Any) -> dict[str, Any]:
    """The public half of a private key (RFC 7518, section 6; RFC 8037), each coordinate in the full length of its curve.

    PyJWT before 2.10 leaves leading zeros out.
    """
    public = key.public_key()
    if isinstance(public, rsa.RSAPublicKey):
        numbers = public.public_numbers()
        parts = {"n": _integer(numbers.n), "e": _integer(numbers.e)}
        return {"kty": "RSA", **parts}
    if isinstance(public, ec.EllipticCurvePublicKey):
        point, size = public.public_numbers(), -(-public.key_size // 8)
        parts = {name: _integer(getattr(point, name), size) for name in ("x", "y")}
        return {"kty": "EC", "crv": f"P-{public.key_size}", **parts}
    name = type(key).__name__.removesuffix("PrivateKey")
    return {"kty": "OKP", "crv": name, "x": b64(public.public_bytes_raw())}


def _integer(value: int, size: int = 0) -> str:
    return b64(value.to_bytes(size or -(-value.bit_length() // 8), "big"))


class Provider:
    """What the server answers; change it at any time.

    Attributes:
        keys: The members of the set.
        answer: Answers the request for the keys in place of the set, if there is one.
        requests: How often each path was requested.
    """

    def __init__(self) -> None:
        self.keys: list[Any] = []
        self.answer: Callable[[BaseHTTPRequestHandler], None] | None = None
        self.discovery: dict[str, Any] | None = None
        self.requests: Counter[str] = Counter()
        self.headers: list[dict[str, str]] = []
        self.url = ""

    def respond(self, request: BaseHTTPRequestHandler) -> None:
        self.requests[request.path] += 1
        self.headers.append(dict(request.headers))
        if request.path == DISCOVERY:
            found = {"issuer": self.url, "jwks_uri": self.url + "/keys"}
            send(request, found if self.discovery is None else self.discovery)
        elif self.answer is not None:
            self.answer(request)
        else:
            send(request, {"keys": self.keys})

    @property
    def fetches(self) -> int:
        return self.requests["/keys"]


def send(request: BaseHTTPRequestHandler, value: object, status: int = 200, **headers: str) -> None:
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    request.send_response(status)
    for name, text in headers.items():
        request.send_header(name, text)
    request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    request.wfile.write(body)


def drip(request: BaseHTTPRequestHandler) -> None:
    """One byte after the other, for as long as the client waits."""
    request.send_response(200)
    request.end_headers()
    while True:
        request.wfile.write(b" ")
        time.sleep(0.05)


def huge(request: BaseHTTPRequestHandler) -> None:
    """100 MB, or as much as the client reads."""
    request.send_response(200)
    request.end_headers()
    for _ in range(100):
        request.wfile.write(b" " * 1_000_000)


@contextmanager
def serve() -> Iterator[Provider]:
    provider = Provider()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            with suppress(BrokenPipeError, ConnectionResetError):
                provider.respond(self)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    provider.url = f"http://127.0.0.1:{server.server_port}"
    # It looks every so often whether it is to end.
    thread = threading.Thread(target=server.serve_forever, args=[0.01], daemon=True)
    thread.start()
    try:
        yield provider
    finally:
        server.shutdown()
        server.server_close()
