"""A small HTTP/1.1 client that keeps its connection: what it costs itself is little and always the same."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


class Connection:
    """One connection to a port of this machine, opened anew when the server has closed it.

    Args:
        port: Of the server.
        secret: The bearer credential.
    """

    def __init__(self, port: int, secret: str) -> None:
        self._port = port
        self._head = f"Host: 127.0.0.1:{port}\r\nAuthorization: Bearer {secret}\r\n"
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Status and body of the answer.

        Raises:
            OSError, asyncio.IncompleteReadError: There was none.
        """
        data = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\n{self._head}"
        if method != "GET":
            head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n"
        request = head.encode() + b"\r\n" + data
        for is_last in (False, True):
            is_fresh = self._streams is None
            if self._streams is None:
                self._streams = await asyncio.open_connection("127.0.0.1", self._port)
            try:
                return await self._exchange(*self._streams, request)
            except (OSError, asyncio.IncompleteReadError):
                self.close()
                if is_fresh or is_last:
                    raise
        raise AssertionError("unreachable")

    async def _exchange(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes
    ) -> tuple[int, Any]:
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        length = _LENGTH.search(head)
        body = await reader.readexactly(int(length[1])) if length else b""
        return int(head[9:12]), json.loads(body) if body else None

    def close(self) -> None:
        """Close it; the next question opens it again."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None
