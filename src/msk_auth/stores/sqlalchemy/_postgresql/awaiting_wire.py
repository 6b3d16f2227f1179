"""A held connection that is awaited, on one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .wire import ANSWER_SECONDS, CANCEL_SECONDS, Lost, Wire

if TYPE_CHECKING:
    from psycopg import AsyncConnection
    from psycopg.pq.abc import PGresult


class AwaitingWire(Wire):
    """A connection that belongs to this loop alone. What was asked is answered, whoever still waits for it.

    Args:
        driver: Outside of a transaction, and nobody else's.
        loop: The running one.
    """

    def __init__(self, driver: AsyncConnection[Any], loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(driver, loop.time)
        self.loop = loop
        self.is_busy = False
        self._driver = driver
        self._answers: list[PGresult] = []
        self._waiter: asyncio.Future[PGresult] | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._cancelling: asyncio.Task[None] | None = None
        self._socket = self._libpq.socket
        loop.add_reader(self._socket, self._on_readable)

    def prepare(self, name: bytes, statement: bytes) -> asyncio.Future[PGresult]:
        """Have the server parse a statement, to be asked by its name."""
        return self._send(lambda: self._libpq.send_prepare(name, statement))

    def ask(self, name: bytes, statement: bytes, parameter: bytes) -> asyncio.Future[PGresult]:
        """Ask what a statement gives for one parameter.

        Args:
            name: Of the prepared statement.
            statement: Its text, which is sent if statements are not prepared here.
            parameter: As text.

        Returns:
            What the server answers, be it an error. It fails with :class:`Lost`, or with `TimeoutError` when the
            server takes too long; the wire is closed then.
        """
        if self.prepares:
            return self._send(lambda: self._libpq.send_query_prepared(name, [parameter]))
        return self._send(lambda: self._libpq.send_query_params(statement, [parameter]))

    def close(self) -> None:
        """Close the connection. Whoever waits is told that it is lost. Closing again does nothing."""
        if self.is_closed:
            return
        self.is_closed = True
        if self._alarm is not None:
            self._alarm.cancel()
        if not self.loop.is_closed():
            # Before its number is given to another file.
            self.loop.remove_reader(self._socket)
            self.loop.remove_writer(self._socket)
            self._fail(Lost())
        self._hang_up()

    def _send(self, send: Callable[[], None]) -> asyncio.Future[PGresult]:
        # Busy until the answer is here, even if nobody waits for it any more.
        self.is_busy = True
        self._used = self.loop.time()
        waiter = self._waiter = self.loop.create_future()
        self._alarm = self.loop.call_at(self._used + ANSWER_SECONDS, self._on_silence)
        try:
            send()
            self._flush()
        except Exception:  # noqa: BLE001 - psycopg's own errors, which are not imported here
            self.close()
        return waiter

    def _flush(self) -> None:
        if self._libpq.flush():
            self.loop.add_writer(self._socket, self._on_writable)

    def _on_writable(self) -> None:
        self.loop.remove_writer(self._socket)
        try:
            self._flush()
        except Exception:  # noqa: BLE001 - as above
            self.close()

    def _on_readable(self) -> None:
        libpq = self._libpq
        try:
            libpq.consume_input()
            while self.is_busy and not libpq.is_busy():
                answer = libpq.get_result()
                if answer is None:
                    self._finish()
                else:
                    self._answers.append(answer)
        except Exception:  # noqa: BLE001 - the server has gone; psycopg's errors are not imported here
            self.close()
            return
        # libpq tells of a connection that ended while it was idle only by its state.
        if libpq.status != 0:
            self.close()

    def _finish(self) -> None:
        answers, self._answers = self._answers, []
        waiter, self._waiter = self._waiter, None
        self.is_busy = False
        if self._alarm is not None:
            self._alarm.cancel()
        if waiter is not None and not waiter.done():
            if answers:
                waiter.set_result(answers[-1])
            else:
                waiter.set_exception(Lost())

    def _fail(self, error: Exception) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_exception(error)

    def _on_silence(self) -> None:
        self._fail(TimeoutError(f"PostgreSQL did not answer within {ANSWER_SECONDS:g} seconds"))
        self._cancelling = self.loop.create_task(self._give_up())

    async def _give_up(self) -> None:
        # Else the server's process would go on waiting, for a lock say, and so would the next one.
        try:
            async with asyncio.timeout(CANCEL_SECONDS):
                await self._driver.cancel_safe(timeout=CANCEL_SECONDS)
        except Exception:  # noqa: BLE001, S110 - it was only polite to ask
            pass
        finally:
            self.close()
