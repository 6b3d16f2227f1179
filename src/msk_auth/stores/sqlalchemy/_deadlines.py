"""Deadlines of what is asked of a server, which a driver has none of or keeps in its own time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msk_auth.clock import SystemClock

if TYPE_CHECKING:
    from psycopg import Connection
    from psycopg.abc import PQGen
    from sqlalchemy import Connection as SQLAlchemyConnection
    from sqlalchemy import Engine

T = TypeVar("T")

CLOCK: Final = SystemClock()


def no_answer() -> TimeoutError:
    return TimeoutError("the database did not answer in time")


_abandoned: Final[set[asyncio.Task[Any]]] = set()


async def within(deadline: float, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is abandoned when it is late.

    A driver that is cancelled may wait for its server for as long again, so `work` has a task of its own. When it is
    late, or its caller is cancelled, it is cancelled and ends by itself.

    Args:
        deadline: By the clock of the running loop.
        work: Cleans up after itself when it is cancelled.

    Raises:
        TimeoutError: There is no result by then.
    """
    loop = asyncio.get_running_loop()
    task = loop.create_task(work)
    try:
        await asyncio.wait((task,), timeout=max(0.0, deadline - loop.time()))
    finally:
        if not task.done():
            _abandon(task)
    if task in _abandoned:
        raise no_answer()
    return task.result()


def _abandon(task: asyncio.Task[Any]) -> None:
    # A loop holds its tasks weakly.
    _abandoned.add(task)
    task.add_done_callback(_forget)
    task.cancel()


def _forget(task: asyncio.Task[Any]) -> None:
    _abandoned.discard(task)
    if not task.cancelled():
        # No look-up waits for it, and asyncio need not log it.
        task.exception()


@contextmanager
def bounded(driver: Connection[Any], deadline: float) -> Generator[None]:
    """Let whatever a blocking connection of psycopg waits for raise `TimeoutError` at a deadline.

    Args:
        driver: In use by this thread only. After a `TimeoutError` it cannot be used for anything else.
        deadline: By :data:`CLOCK`.
    """

    def wait(generator: PQGen[T], *args: Any, **options: Any) -> T:
        # psycopg looks for interruptions every 0.1 seconds, and resumes what waits.
        waiting: T = type(driver).wait(driver, _bounded(generator, deadline), *args, **options)
        return waiting

    # All operations of psycopg wait in this method, which is public and made to be overridden.
    vars(driver)["wait"] = wait
    try:
        yield
    finally:
        del vars(driver)["wait"]


def _bounded(generator: PQGen[T], deadline: float) -> PQGen[T]:
    try:
        wanted = next(generator)
        while True:
            ready = yield wanted
            if not ready and CLOCK.monotonic() >= deadline:
                raise no_answer()
            wanted = generator.send(ready)
    except StopIteration as end:
        result: T = end.value
        return result


_ping_deadline: Final[ContextVar[float | None]] = ContextVar("msk_auth_ping_deadline", default=None)


def connect_until(engine: Engine, deadline: float) -> SQLAlchemyConnection:
    """A connection of the pool, whose ping raises `TimeoutError` at a deadline after :func:`bound_pings`.

    Args:
        engine: Of any driver.
        deadline: By :data:`CLOCK`.
    """
    token = _ping_deadline.set(deadline)
    try:
        return engine.connect()
    finally:
        _ping_deadline.reset(token)


def bound_pings(engine: Engine) -> None:
    """Let `pool_pre_ping` keep the deadline of :func:`connect_until`; the application's own pings stay as they are.

    The pool pings a connection before it hands it out, so only the dialect can bound that.

    Args:
        engine: Of psycopg, blocking.
    """
    dialect = engine.dialect
    if not isinstance(dialect.do_ping, _BoundedPing):
        vars(dialect)["do_ping"] = _BoundedPing(dialect.do_ping)


class _BoundedPing:
    def __init__(self, ping: Callable[[Any], bool]) -> None:
        self._ping = ping

    def __call__(self, driver: Connection[Any]) -> bool:
        deadline = _ping_deadline.get()
        if deadline is None:
            return self._ping(driver)
        try:
            with bounded(driver, deadline):
                return self._ping(driver)
        except Exception as error:
            if CLOCK.monotonic() < deadline:
                raise
            # SQLAlchemy cannot reset a connection that still waits, and would report that instead.
            driver.close()
            raise no_answer() from error
