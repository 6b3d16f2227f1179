"""Ports for servers of the tests."""

from __future__ import annotations

import secrets
import socket
import sys

# Linux gives outgoing connections a port from 32768 on, macOS from 49152 on. A server that is stopped and started again on such
# a port may find that a connection of another process has it.
_FIRST, _LAST = 20_000, 32_767


def free_port() -> int:
    """A port of 127.0.0.1 that is in no use, and that neither an outgoing connection nor another test is given later."""
    while True:
        port = _FIRST + secrets.randbelow(_LAST + 1 - _FIRST)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        if _reserve(port):
            return port


def can_listen(port: int) -> bool:
    """Whether a server could be started on this port of 127.0.0.1 now."""
    with socket.socket() as probe:
        # Refused while another socket listens. This one does not, since clients that retry would connect to it.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _reserve(port: int) -> bool:
    """Whether the port is this process's until it ends: a server of a test is stopped and started again on its port."""
    if sys.platform != "linux":
        return True
    # The kernel gives a name in its abstract name space to one process, and takes it back when that ends and closes the file.
    mark = socket.socket(socket.AF_UNIX)
    try:
        mark.bind(f"\0port {port} of the tests of msk_auth")
    except OSError:
        mark.close()
        return False
    mark.detach()
    return True
