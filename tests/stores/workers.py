"""What the processes of `test_processes.py` do."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import warnings
from datetime import UTC, datetime, timedelta
from itertools import count
from multiprocessing.connection import Connection as Pipe

from sqlalchemy import (
    Column,
    Connection,
    Integer,
    MetaData,
    String,
    Table,
    create_engine,
)
from sqlalchemy import insert as insert_into
from sqlalchemy.ext.asyncio import create_async_engine

from msk_auth import ApiKey, Authenticator, SystemClock
from msk_auth.errors import KeyLimitReached
from msk_auth.events import Event, KeyEvent
from msk_auth.stores import KeyStore
from msk_auth.stores.sqlalchemy import AsyncSQLAlchemyKeyStore, SQLAlchemyKeyStore, prepare_sqlite

# As in the contract, whose module needs pytest and so half a second more to start with.
NOW = datetime(2026, 3, 1, 12, 30, 15, 123457, tzinfo=UTC)
OWNER = "owner-1"

ANNOUNCED = Table(
    "announced_ends",
    MetaData(),
    Column("key_id", String(64), nullable=False),
    Column("days", Integer, nullable=False),
)
"""An application's own table, which takes a row more than once."""


def make_record(key_id: str) -> ApiKey:
    return ApiKey(key_id, "name", OWNER, "digest", None, NOW)


def insert(store: KeyStore, name: str, limit: int) -> int:
    """Try to insert 20 keys, rotating every other one; how many were taken in."""
    taken = 0
    for number in range(20):
        record = make_record(f"{name}n{number}")
        try:
            store.insert(record, max_active=limit, now=NOW)
            taken += 1
            if number % 2:
                store.rotate(
                    record.id,
                    successor=make_record(f"{name}s{number}"),
                    ends_at=NOW + timedelta(hours=1),
                    max_active=limit,
                    now=NOW,
                )
                taken += 1
        except KeyLimitReached:
            continue
    return taken


class JobClock(SystemClock):
    """A clock that stands at the moment for which the keys were made."""

    def now(self) -> datetime:
        return NOW


def announce(url: str) -> None:
    """Announce the end of keys once: a row in the transaction of each, and a line after its commit."""

    def write_row(connection: Connection, event: KeyEvent) -> None:
        assert event.action == "expiring"
        record = event.record
        connection.execute(
            insert_into(ANNOUNCED).values(key_id=record.id, days=record.announced_days)
        )

    def print_line(event: Event) -> None:
        assert isinstance(event, KeyEvent)
        print(f"{event.record.id} {event.record.announced_days}", flush=True)

    store = SQLAlchemyKeyStore(create_engine(url), on_change=write_row)
    authenticator = Authenticator[None](
        store, find_owner=lambda _: None, on_event=print_line, clock=JobClock()
    )
    authenticator.announce_expiry()


async def insert_for_ever(store: AsyncSQLAlchemyKeyStore) -> None:
    """Insert keys and print each, and revoke every third, until killed."""
    for number in count():
        await store.insert(make_record(f"k{number}"), max_active=None, now=NOW)
        print(f"inserted k{number}", flush=True)
        if number % 3 == 0:
            await store.revoke(f"k{number}", owner_id=OWNER, at=NOW)
            print(f"revoked k{number}", flush=True)


def main(what: str, url: str, *rest: str) -> None:
    if what == "insert_for_ever":
        engine = create_async_engine(url)
        if engine.dialect.name == "sqlite":
            prepare_sqlite(engine)
        asyncio.run(insert_for_ever(AsyncSQLAlchemyKeyStore(engine)))
    store = SQLAlchemyKeyStore(create_engine(url))
    # A busy machine may take longer than an application would wait.
    store.write_seconds = 60
    print("ready", flush=True)
    sys.stdin.readline()
    if what == "announce":
        announce(url)
    elif what == "insert":
        print(insert(store, rest[0], int(rest[1])), flush=True)
    else:
        store.revoke(rest[0], owner_id=OWNER, at=NOW)


def work(lines: Pipe, prints: Pipe, *words: str) -> None:
    """Do what the words say, with pipes for the standard input and output."""
    # One that hangs is ended by the system.
    signal.alarm(120)
    warnings.simplefilter("error", ResourceWarning)
    os.dup2(lines.fileno(), 0)
    os.dup2(prints.fileno(), 1)
    lines.close()
    prints.close()
    with open(0, encoding="utf-8") as sys.stdin, open(1, "w", encoding="utf-8") as sys.stdout:
        main(*words)
