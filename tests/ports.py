"""Ports for servers of the tests."""

from __future__ import annotations

import secrets
import socket

# Linux gives outgoing connections a port from 32768 on, macOS from 49152 on. A server that is stopped and started again on such
# a port may find that a connection of another process has it.
_FIRST, _LAST = 20_000, 32_767


def free_port() -> int:
    """A port of 127.0.0.1 that is in no use, and that no outgoing connection is given later."""
    while True:
        port = _FIRST + secrets.randbelow(_LAST + 1 - _FIRST)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
