"""A websocket over a raw socket, as much of RFC 6455 as a test needs: short texts, and how it ends."""

from __future__ import annotations

import base64
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass

_TEXT, _CLOSE = 1, 8


@dataclass(frozen=True)
class Talk:
    """What came back.

    Attributes:
        status: Of the handshake; 101 if it was accepted.
        head: The handshake's headers, in lower case.
        body: What followed a handshake that was refused.
        texts: The texts that came.
        close: The code and the reason that the server closed with.
    """

    status: int
    head: str
    body: bytes = b""
    texts: tuple[str, ...] = ()
    close: tuple[int, str] | None = None


def talk(
    port: int, path: str, headers: Sequence[tuple[bytes, bytes]], messages: Sequence[str]
) -> Talk:
    """Open a websocket, send these texts, and read until the server closes it."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(_handshake(path, headers))
        with connection.makefile("rb") as received:
            lines = list(iter(lambda: received.readline().rstrip(b"\r\n"), b""))
            status = int(lines[0].split()[1])
            head = b"\n".join(lines[1:]).decode("latin-1").lower()
            if status != 101:
                length = int(head.partition("content-length:")[2].split("\n")[0] or 0)
                return Talk(status, head, received.read(length))
            for message in messages:
                connection.sendall(_text(message))
            texts: list[str] = []
            while True:
                first, length = received.read(2)
                if length == 126:
                    length = int.from_bytes(received.read(2))
                payload = received.read(length)
                if first & 0x0F == _TEXT:
                    texts.append(payload.decode())
                elif first & 0x0F == _CLOSE:
                    close = (int.from_bytes(payload[:2]), payload[2:].decode())
                    return Talk(status, head, texts=tuple(texts), close=close)


def _handshake(path: str, headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    lines = [
        f"GET {path} HTTP/1.1".encode(),
        b"host: tasks.test",
        b"upgrade: websocket",
        b"connection: upgrade",
        b"sec-websocket-version: 13",
        b"sec-websocket-key: " + base64.b64encode(os.urandom(16)),
        *(name + b": " + value for name, value in headers),
    ]
    return b"\r\n".join([*lines, b"", b""])


def _text(text: str) -> bytes:
    """One frame, masked with zeros."""
    payload = text.encode()
    assert len(payload) < 126
    return bytes([0x80 | _TEXT, 0x80 | len(payload)]) + bytes(4) + payload
