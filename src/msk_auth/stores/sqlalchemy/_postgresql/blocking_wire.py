"""A held connection that is waited for, by one thread at a time."""

from __future__ import annotations

import select
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msk_auth.clock import SystemClock

from .wire import ANSWER_SECONDS, CANCEL_SECONDS, Lost, Wire

if TYPE_CHECKING:
    from psycopg import Connection
    from psycopg.pq.abc import PGresult


class BlockingWire(Wire):
    """A connection that belongs to whoever holds this object. After anything went wrong with it, it is closed.

    Args:
        driver: Outside of a transaction, and nobody else's.
    """

    def __init__(self, driver: Connection[Any]) -> None:
        super().__init__(driver, SystemClock().monotonic)
        self._driver = driver
        self._wait = _waiter(self._libpq.socket)

    def prepare(self, name: bytes, statement: bytes) -> PGresult:
        """Have the server parse a statement, to be asked by its name."""
        return self._send(lambda: self._libpq.send_prepare(name, statement))

    def ask(self, name: bytes, statement: bytes, parameter: bytes) -> PGresult:
        """Ask what a statement gives for one parameter.

        Args:
            name: Of the prepared statement.
            statement: Its text, which is sent if statements are not prepared here.
            parameter: As text.

        Returns:
            What the server answers, be it an error.

        Raises:
            Lost: The connection ended.
            TimeoutError: The server takes too long. It is told that nobody waits for the answer any more.
        """
        if self.prepares:
            return self._send(lambda: self._libpq.send_query_prepared(name, [parameter]))
        return self._send(lambda: self._libpq.send_query_params(statement, [parameter]))

    def close(self) -> None:
        """Close the connection. Closing again does nothing."""
        if self.is_closed:
            return
        self.is_closed = True
        self._hang_up()

    def _send(self, send: Callable[[], None]) -> PGresult:
        self._used = self._clock()
        try:
            return self._exchange(send, self._used + ANSWER_SECONDS)
        except TimeoutError:
            self._give_up()
            raise
        except Exception as error:  # psycopg's own, which are not imported here
            self.close()
            raise Lost from error
        except BaseException:
            # An interrupt: an answer is still on its way, and it must not be the next one's.
            self.close()
            raise

    def _exchange(self, send: Callable[[], None], deadline: float) -> PGresult:
        libpq = self._libpq
        send()
        if libpq.flush():
            # Nothing else is under way, and yet a few hundred bytes do not fit: nobody takes them.
            raise Lost
        answer: PGresult | None = None
        while True:
            while libpq.is_busy():
                if not self._wait(max(0.0, deadline - self._clock())):
                    raise TimeoutError(
                        f"PostgreSQL did not answer within {ANSWER_SECONDS:g} seconds"
                    )
                libpq.consume_input()
            following = libpq.get_result()
            if following is None:
                break
            answer = following
        if answer is None:
            raise Lost
        # libpq tells of a connection that ended behind an answer only by its state.
        if libpq.status != 0:
            self.close()
        return answer

    def _give_up(self) -> None:
        # Else the server's process would go on waiting, for a lock say, and so would the next one.
        try:
            self._driver.cancel_safe(timeout=CANCEL_SECONDS)
        except Exception:  # noqa: BLE001, S110 - it was only polite to ask
            pass
        finally:
            self.close()


def _waiter(socket: int) -> Callable[[float], object]:
    """A function that waits until a socket can be read, for so many seconds at most; false if it cannot then."""
    # Without a selector around it, which takes longer than all the rest that is done here.
    if hasattr(select, "poll"):
        poll = select.poll()
        poll.register(socket, select.POLLIN)
        return lambda seconds: poll.poll(seconds * 1000)
    return lambda seconds: select.select([socket], [], [], seconds)[0]
