"""A wire between the service and its database that can be made slow, and cut."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Wire:
    """Passes connections on to a port of this machine; use :func:`wire`.

    Attributes:
        port: Where it listens.
        delay: How many seconds each piece takes on its way, in both directions.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.delay = 0.0
        self._whole = threading.Event()
        self._whole.set()
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._closed = False
        self._ends = threading.Event()
        # A connection carries nothing any more once a later generation has begun.
        self._generation = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """From now on nothing arrives any more, without an error on either side."""
        self._whole.clear()

    def mend(self) -> None:
        """What was sent meanwhile arrives."""
        self._whole.set()

    def lose(self) -> None:
        """Whatever is on its way, or is sent from now on, on the connections of now is lost, without a reset."""
        self._generation += 1

    def close(self) -> None:
        self._closed = True
        self._ends.set()
        self.mend()
        self._listener.close()
        with self._lock:
            for each in self._sockets:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._join, args=(near,), daemon=True).start()

    def _join(self, near: socket.socket) -> None:
        self._whole.wait()
        try:
            far = socket.create_connection(("127.0.0.1", self._target), timeout=5)
        except OSError:
            near.close()
            return
        far.settimeout(None)
        for each in (near, far):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._lock:
            self._sockets |= {near, far}
        born = self._generation
        back = threading.Thread(target=self._carry, args=(far, near, born), daemon=True)
        back.start()
        self._carry(near, far, born)
        back.join()
        with self._lock:
            self._sockets -= {near, far}
        near.close()
        far.close()

    def _carry(self, source: socket.socket, target: socket.socket, born: int) -> None:
        with suppress(OSError):
            while piece := source.recv(65536):
                if self.delay:
                    time.sleep(self.delay)
                self._travel(born)
                target.sendall(piece)
        # An end travels like any other piece.
        self._travel(born)
        with suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)

    def _travel(self, born: int) -> None:
        self._whole.wait()
        if born != self._generation:
            self._ends.wait()


@contextmanager
def wire(target: int) -> Iterator[Wire]:
    """A wire to this port."""
    it = Wire(target)
    try:
        yield it
    finally:
        it.close()
