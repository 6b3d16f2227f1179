"""Whether the time of a refusal tells that a key exists: an unknown id against a wrong secret, call by call.

Each call is timed by itself, because that is what an attacker sees; the two kinds are called in a random order. Beside
the ratio of the medians stands the share of single calls that the best threshold tells apart: half of them is a guess.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from msk_auth import KeyFormat
from msk_auth.core.keys import checksum
from msk_auth.errors import CredentialRefused
from msk_auth.stores.memory import AsyncMemoryKeyStore, MemoryKeyStore
from msk_auth.stores.sqlalchemy import AsyncSQLAlchemyKeyStore, SQLAlchemyKeyStore, prepare_sqlite

from . import subjects
from .machine import describe
from .result import Aim, Column, Result, Row, Spread
from .timing import Scale

UNKNOWN, WRONG = 0, 1
MOST_TOLD_APART = 55.0
_KEYS, _FEW_KEYS = 1_000, 10
_FORMAT = KeyFormat()


def with_another_secret(key: str) -> str:
    """A well-formed key with the id of this one."""
    body = key[:17] + _FORMAT.generate().reveal()[17:49]
    return body + checksum(body)


def told_apart(unknown: Sequence[float], wrong: Sequence[float]) -> float:
    """Which percentage of the calls the best threshold assigns to the right kind; 50 is a guess."""
    calls = sorted([(took, UNKNOWN) for took in unknown] + [(took, WRONG) for took in wrong])
    below = {UNKNOWN: 0, WRONG: 0}
    best = 0.0
    for place, (took, kind) in enumerate(calls):
        below[kind] += 1
        # A threshold lies between two times, not between two calls that took equally long.
        if place + 1 < len(calls) and calls[place + 1][0] == took:
            continue
        difference = below[UNKNOWN] / len(unknown) - below[WRONG] / len(wrong)
        best = max(best, abs(difference))
    return 50 + 50 * best


def is_refused(call: Callable[[str], Any], key: str) -> bool:
    """Call it once: `authenticate` raises, and revoking a presented key answers None."""
    try:
        return call(key) is None
    except CredentialRefused:
        return True


async def is_refused_later(call: Callable[[str], Any], key: str) -> bool:
    """As :func:`is_refused`."""
    try:
        return await call(key) is None
    except CredentialRefused:
        return True


def sample(
    call: Callable[[str], Any], keys: tuple[Sequence[str], Sequence[str]], calls: int
) -> tuple[list[float], list[float]]:
    """Microseconds of single calls with unknown ids and with wrong secrets, one after the other in a random order."""
    took: tuple[list[float], list[float]] = ([], [])
    for kind, key in _in_random_order(keys, calls):
        began = time.perf_counter_ns()
        refused = is_refused(call, key)
        ended = time.perf_counter_ns()
        assert refused
        took[kind].append((ended - began) / 1000)
    return took


async def sample_async(
    call: Callable[[str], Any], keys: tuple[Sequence[str], Sequence[str]], calls: int
) -> tuple[list[float], list[float]]:
    """As :func:`sample`."""
    took: tuple[list[float], list[float]] = ([], [])
    for kind, key in _in_random_order(keys, calls):
        began = time.perf_counter_ns()
        refused = await is_refused_later(call, key)
        ended = time.perf_counter_ns()
        assert refused
        took[kind].append((ended - began) / 1000)
    return took


def _in_random_order(
    keys: tuple[Sequence[str], Sequence[str]], calls: int
) -> Iterator[tuple[int, str]]:
    kinds = [UNKNOWN, WRONG] * calls
    random.shuffle(kinds)
    for kind in kinds:
        yield kind, random.choice(keys[kind])


@contextmanager
def stores(runner: asyncio.Runner) -> Iterator[dict[str, Any]]:
    """Every store that there is a database for, by its name."""
    with ExitStack() as stack:
        found: dict[str, Any] = {
            "memory": MemoryKeyStore(),
            "memory, awaited": AsyncMemoryKeyStore(),
        }
        urls = {
            "SQLite": stack.enter_context(subjects.sqlite_url()),
            "PostgreSQL": stack.enter_context(subjects.postgres_url()),
        }
        for name, url in urls.items():
            if url is None:
                continue
            found[name] = SQLAlchemyKeyStore(stack.enter_context(subjects.engine_of(url)))
            driver = "sqlite+aiosqlite" if name == "SQLite" else url.drivername
            engine = create_async_engine(url.set(drivername=driver))
            if name == "SQLite":
                prepare_sqlite(engine)
            store = AsyncSQLAlchemyKeyStore(engine)
            found[f"{name}, awaited"] = store
            stack.callback(lambda store=store, engine=engine: runner.run(_close(store, engine)))
        yield found


async def _close(store: AsyncSQLAlchemyKeyStore, engine: AsyncEngine) -> None:
    await store.aclose()
    await engine.dispose()


def works(store: Any) -> Iterator[tuple[str, Any, str]]:
    """What is done with a store: its name, the authenticator and the method."""
    make: Any = (
        subjects.async_authenticator
        if inspect.iscoroutinefunction(store.find)
        else subjects.authenticator
    )
    yield "authenticate", make(store), "authenticate"
    yield "authenticate, with a lease", make(store, lease=subjects.LONG_LEASE), "authenticate"
    yield "authenticate, retired pepper", make(store, pepper_id="b"), "authenticate"
    yield "revoke a presented key", make(store), "revoke_presented_key"


def run(scale: Scale) -> Result:
    """Measure it."""
    rounds, calls = scale.pick(1, 15), scale.pick(5, 1_000)
    made: list[Row] = []
    with asyncio.Runner() as runner, stores(runner) as found:
        for name, store in found.items():
            is_async = inspect.iscoroutinefunction(store.find)
            # A dictionary of many records shows which of them the processor has at hand, and nothing of the library.
            count = _FEW_KEYS if "memory" in name else _KEYS
            known = _make_keys(store, runner, scale.pick(_FEW_KEYS, count))
            for work, authenticator, method in works(store):
                call = _call(authenticator, method)
                samples: list[tuple[list[float], list[float]]] = []
                gc.collect()
                gc.disable()
                try:
                    for number in range(rounds + 1):
                        # Others each round, so that what was remembered of them tells nothing.
                        unknown = [_FORMAT.generate().reveal() for _ in known]
                        keys = (unknown, [with_another_secret(key) for key in known])
                        took = (
                            runner.run(sample_async(call, keys, calls))
                            if is_async
                            else sample(call, keys, calls)
                        )
                        if number > 0:
                            samples.append(took)
                        gc.collect()
                finally:
                    gc.enable()
                made.append(_row(name, work, samples))
    return Result(
        name="refusals",
        title="Refusing an unknown id and a wrong secret",
        method=f"Time of single calls in a random order, {calls} of each kind in a round. What a threshold tells apart is the"
        " share of calls that it assigns to the right kind, with the best threshold found afterwards: 50 % is a guess."
        f" The databases hold {_KEYS} keys, the memory {_FEW_KEYS}.",
        columns=[
            Column("unknown", "Unknown id", "µs"),
            Column("wrong", "Wrong secret", "µs"),
            Column("ratio", "Ratio"),
            Column("told", "Told apart", "%"),
        ],
        rows=made,
        measured=describe("sqlalchemy", "psycopg"),
    )


def _make_keys(store: Any, runner: asyncio.Runner, count: int) -> list[str]:
    is_async = inspect.iscoroutinefunction(store.find)
    maker: Any = (subjects.async_authenticator if is_async else subjects.authenticator)(store)
    keys: list[str] = []
    for number in range(count):
        made = maker.create_key(subjects.interactive(), name=f"key {number}")
        keys.append((runner.run(made) if is_async else made).value.reveal())
    return keys


def _call(authenticator: Any, method: str) -> Callable[[str], Any]:
    bound = getattr(authenticator, method)
    if method != "authenticate":
        call: Callable[[str], Any] = bound
        return call
    return lambda key: bound([f"Bearer {key}"])


def _row(group: str, name: str, samples: Sequence[tuple[list[float], list[float]]]) -> Row:
    medians = [(statistics.median(unknown), statistics.median(wrong)) for unknown, wrong in samples]
    cells = {
        "unknown": Spread.of([unknown for unknown, _ in medians]),
        "wrong": Spread.of([wrong for _, wrong in medians]),
        "ratio": Spread.of([wrong / unknown for unknown, wrong in medians]),
        "told": Spread.of([told_apart(unknown, wrong) for unknown, wrong in samples]),
    }
    return Row(group, name, cells, aim=Aim("told", "at most", MOST_TOLD_APART))
