"""Deadlines of what is asked of a server, which a driver has none of or keeps in its own time."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

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


_checkout_deadline: Final[ContextVar[float | None]] = ContextVar(
    "msk_auth_checkout_deadline", default=None
)


def connect_until(engine: Engine, deadline: float) -> SQLAlchemyConnection:
    """A connection of the pool; after :func:`bound_checkouts` its ping and opening it keep a deadline.

    Args:
        engine: Of any driver.
        deadline: By :data:`CLOCK`.

    Raises:
        TimeoutError: The server did not answer the ping.
        sqlalchemy.exc.SQLAlchemyError: No connection can be had.
    """
    token = _checkout_deadline.set(deadline)
    try:
        return engine.connect()
    finally:
        _checkout_deadline.reset(token)


def bound_checkouts(engine: Engine) -> None:
    """Let the checkouts of :func:`connect_until` keep their deadline; those of the application stay as they are.

    The pool connects, and pings with `pool_pre_ping`, before it hands a connection out. Only the dialect can bound that.

    Args:
        engine: Of psycopg, blocking.
    """
    dialect = engine.dialect
    # Read once: a store in another thread may do the same now, and a ping that is bounded twice fails.
    ping = cast("Any", dialect).do_ping
    if not isinstance(ping, _BoundedPing):
        vars(dialect).update(do_ping=_BoundedPing(ping), connect=partial(_connect, dialect.connect))


class _BoundedPing:
    def __init__(self, ping: Callable[[Any], bool]) -> None:
        self._ping = ping

    def __call__(self, driver: Connection[Any]) -> bool:
        deadline = _checkout_deadline.get()
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


def _connect(connect: Callable[..., T], *args: Any, **parameters: Any) -> T:
    deadline = _checkout_deadline.get()
    if deadline is not None:
        # For each host, in whole seconds; 0 would mean no limit. A limit of the engine's own stays.
        hosts = str(parameters.get("host", "")).count(",") + 1
        seconds = math.ceil((deadline - CLOCK.monotonic()) / hosts)
        parameters.setdefault("connect_timeout", max(1, seconds))
    return connect(*args, **parameters)
